"""`equipoise user`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from manager.cli.admin_commands import local_actor, open_store
from manager.cli.options import OnePage, with_settings
from manager.settings import Settings
from manager.store.access_models import UserRow
from manager.store.audit import audited
from manager.store.registrations import delete as delete_registered
from manager.store.registrations import page
from manager.store.tokens import Role
from manager.store.users import create_user, described_user, hash_password, set_password
from manager.terminal import Table, say, show

_USERS_PAGE = """
ROLES
  viewer    sees everything
  operator  also registers VMs and applications, sets SLAs, policies and modes, sees who changed what
  admin     also makes and removes users and tokens

EXAMPLES
  equipoise user create --role operator --name alice
  equipoise user password alice
  pwgen 20 1 | equipoise user create --role viewer --name wall --password-stdin
"""

_from_stdin = click.option("--password-stdin", is_flag=True, help="Read the password's line from standard input.")


@click.group()
def user() -> None:
    """Make, list and remove the users of the dashboard, and give them passwords.

    These commands work on the database directly, so they run on the manager's machine. Passwords have 10 to 200
    characters and are stored as a hash.
    """


@user.command(cls=OnePage, epilog=_USERS_PAGE)
@with_settings("state_dir", "database_url")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), required=True, help="See ROLES.")
@click.option("--name", required=True, metavar="NAME", help="What the user signs in as.")
@_from_stdin
def create(settings: Settings, role: str, name: str, password_stdin: bool) -> None:
    """Make a user; asks for the password."""
    database, now = open_store(settings), datetime.now(UTC)
    database.upgrade()
    password_hash = _ask(password_stdin)
    with audited(database, local_actor(), "user.create", UserRow, name, described_user, now) as session:
        create_user(session, name, Role(role), password_hash, now)
    say(f"created {name}")


@user.command("list", cls=OnePage, epilog=_USERS_PAGE)
@with_settings("state_dir", "database_url")
def list_users(settings: Settings) -> None:
    """List the users."""
    table = Table("name", "role", "created", "last signed in")
    with open_store(settings).reading() as session:
        for one in page(session, UserRow, None, 1000):
            table.add_row(one.name, one.role, str(one.created_at), str(one.signed_in_at or "never"))
    show(table)


@user.command(cls=OnePage, epilog=_USERS_PAGE)
@with_settings("state_dir", "database_url")
@click.argument("name")
@_from_stdin
def password(settings: Settings, name: str, password_stdin: bool) -> None:
    """Give the user NAME a new password, end the user's sessions, and forget failed tries to sign in."""
    database, now = open_store(settings), datetime.now(UTC)
    password_hash = _ask(password_stdin)
    with audited(database, local_actor(), "user.password", UserRow, name, described_user, now) as session:
        set_password(session, name, password_hash, now)
    say(f"{name} has a new password")


@user.command(cls=OnePage, epilog=_USERS_PAGE)
@with_settings("state_dir", "database_url")
@click.argument("name")
def delete(settings: Settings, name: str) -> None:
    """Remove the user NAME, whose sessions end at once."""
    database, now = open_store(settings), datetime.now(UTC)
    with audited(database, local_actor(), "user.delete", UserRow, name, described_user, now) as session:
        delete_registered(session, UserRow, name, lambda _etag: None)
    say(f"removed {name}")


def _ask(from_stdin: bool) -> str:
    """The hash of the password that is given. Raises InvalidRequest."""
    if from_stdin:
        return hash_password(sys.stdin.readline().rstrip("\n"))
    return hash_password(click.prompt("Password", hide_input=True, confirmation_prompt=True))
