"""Commands of set-up: config, db, token."""

from __future__ import annotations

import getpass
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from manager.cli.options import OnePage, make_state_dir, with_settings, write_secret
from manager.errors import SettingsError
from manager.settings import Settings
from manager.store.access_models import TokenRow, UserRow
from manager.store.audit import LOCAL, Actor, audited, record
from manager.store.database import Database, open_database
from manager.store.host_models import JoinTokenRow
from manager.store.joining import JOIN, create_join_token, described_join_token
from manager.store.registrations import delete, find, page
from manager.store.tokens import (
    Role,
    authenticate,
    create_token,
    described_token,
    free_name,
    list_tokens,
    replaced_tokens,
    revoke_token,
)
from manager.store.users import create_user, described_user, hash_password
from manager.terminal import Table, say, show

_PASSWORD_BYTES = 15


def open_store(settings: Settings, threads: int = 1) -> Database:
    """The manager's database. Raises EquipoiseError when its URL or folder cannot be used."""
    make_state_dir(settings)
    return open_database(settings.database_url, threads)


def upgrade_store(database: Database, revision: str = "head") -> None:
    """Bring the tables to ``revision``; a damaged file that was recovered before is told of in the audit.

    Raises DatabaseUnavailable.
    """
    damage = database.upgrade(revision)
    if damage is not None and revision == "head":
        told = {"set_aside": damage.aside.name if damage.aside else None, "why": damage.why, "kept": damage.kept}
        with database.writing() as session:
            record(session, local_actor(), "database.recover", damage.path.name, datetime.now(UTC), None, told)


def ensure_token_file(database: Database, path: Path, name: str, role: Role, host: str | None) -> None:
    """A file, readable by its owner alone, with a token of that role and host; made anew where either is not so.

    Then tokens that speak for the same host, or had the name, are revoked: nobody can read them any more. A name that
    another token has, or that is too long, gets a random end. Raises SettingsError when the file cannot be written.
    """
    now = datetime.now(UTC)
    try:
        known = authenticate(database, path.read_text().strip(), now) if path.exists() else None
        if known is not None and (known.role, known.host) == (role, host):
            return
        with database.registering() as session:
            for row in replaced_tokens(session, name, role, host):
                record(session, local_actor(), "token.delete", row.name, now, described_token(session, row), None)
                revoke_token(session, row.name)
            session.flush()
            made, secret = create_token(session, free_name(session, name), role, host, now)
            record(session, local_actor(), "token.create", made.name, now, None, described_token(session, made))
        write_secret(path, secret)
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be used: {error.strerror}") from error


def ensure_admin_user(database: Database, path: Path) -> bool:
    """Where there is no user at all, one named ``admin`` with a random password, in a file its owner alone can read.

    Tells whether there is that file. Raises SettingsError when it cannot be written.
    """
    now = datetime.now(UTC)
    with database.reading() as session:
        known = page(session, UserRow, None, 1)
    if known:
        return path.exists()
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    password_hash = hash_password(password)
    try:
        with audited(database, local_actor(), "user.create", UserRow, "admin", described_user, now) as session:
            create_user(session, "admin", Role.ADMIN, password_hash, now)
            write_secret(path, password)  # first: of a user without the file nobody would know the password
    except OSError as error:
        raise SettingsError(f"the password file {path} cannot be used: {error.strerror}") from error
    return True


def local_actor() -> Actor:
    """Whoever runs a command on the manager's machine, as the audit names them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        name = str(os.getuid())
    return Actor(LOCAL, name, Role.ADMIN, "")


_DB_EPILOG = """
EXAMPLES
  equipoise db current
  equipoise db upgrade
  equipoise db downgrade base --yes    remove all tables and what is in them
"""


@click.group()
def db() -> None:
    """Look after the manager's database: its tables are versioned by migrations.

    `equipoise run` and `equipoise manager` upgrade on start; these commands are for doing it by hand.
    """


@db.command(cls=OnePage, epilog=_DB_EPILOG)
@with_settings("state_dir", "database_url")
@click.argument("revision", default="head")
def upgrade(settings: Settings, revision: str) -> None:
    """Bring the tables up to REVISION (the newest by default)."""
    database = open_store(settings)
    upgrade_store(database, revision)
    say(f"at revision {database.current()}")


@db.command(cls=OnePage, epilog=_DB_EPILOG)
@with_settings("state_dir", "database_url")
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask.")
def downgrade(settings: Settings, revision: str, yes: bool) -> None:
    """Take the tables back to REVISION; `base` removes them. Data the older tables cannot hold is lost."""
    if not yes:
        click.confirm(f"Take the tables back to {revision}? Data may be lost", abort=True)
    database = open_store(settings)
    database.downgrade(revision)
    say(f"at revision {database.current() or 'base'}")


@db.command(cls=OnePage, epilog=_DB_EPILOG)
@with_settings("state_dir", "database_url")
def current(settings: Settings) -> None:
    """Print the revision of the tables."""
    say(open_store(settings).current() or "base (no tables)")


_ROLES_PAGE = """
ROLES
  viewer    reads everything
  operator  also registers VMs and applications, sets SLAs, policies and modes, sends response times
  admin     also makes and revokes tokens
  host      an agent: reports for its own host, and reads what it is to do there
  source    sends response times of one application, and nothing else

EXAMPLES
  equipoise token create --role operator --name alice
  equipoise token create --role viewer --name report --days 90
  equipoise token create --role source --application shop --name shop-probe
  equipoise token create --role host --host kvm7 --name kvm7 > /etc/equipoise/token
  equipoise token create --join --host kvm7     what `equipoise agent join` takes, once
  equipoise token create --join --host kvm7 --replace     the same for a host that was installed anew
"""


@click.group()
def token() -> None:
    """Make, list and revoke the bearer tokens of the REST interface.

    These commands work on the database directly, so they run on the manager's machine and need no token. A token's
    secret is printed once and stored as a hash.
    """


@token.command(cls=OnePage, epilog=_ROLES_PAGE)
@with_settings("state_dir", "database_url")
@click.option("--role", type=click.Choice([str(one) for one in Role]), help="See ROLES.")
@click.option("--join", "joins", is_flag=True, help="In place of a role: a host joins with it, once.")
@click.option("--name", metavar="NAME", help="What the token is called in lists. [default with --join: by the time]")
@click.option("--host", metavar="HOST", help="The host that a token of role host speaks for, or that is to join.")
@click.option("--application", metavar="NAME", help="The application that a token of role source measures.")
@click.option("--replace", is_flag=True, help="With --join --host: also while that host is served; revokes its tokens.")
@click.option("--days", type=click.FloatRange(0.001, 3650), help="Days until it expires. [default: never; --join: 1]")
def create(
    settings: Settings,
    role: str | None,
    joins: bool,
    replace: bool,
    name: str | None,
    host: str | None,
    application: str | None,
    days: float | None,
) -> None:
    """Make a token and print its secret on standard output."""
    if joins is (role is not None) or not (name or joins) or (joins and application):
        raise click.UsageError("give --role and --name, or --join")
    if replace and not (joins and host):
        raise click.UsageError("--replace goes with --join and --host")
    database = open_store(settings)
    database.upgrade()
    now = datetime.now(UTC)
    if role is None:
        until = now + timedelta(days=days or 1)
        name = name or f"join-{now:%Y%m%d-%H%M%S-%f}"
        described = described_join_token
        with audited(database, local_actor(), "join-token.create", JoinTokenRow, name, described, now) as session:
            _, secret = create_join_token(session, name, host, now, until, replace=replace)
        say(secret)
        return
    name = str(name)
    expires_at = None if days is None else now + timedelta(days=days)
    with audited(database, local_actor(), "token.create", TokenRow, name, described_token, now) as session:
        _, secret = create_token(session, name, Role(role), host, now, expires_at, application)
    say(secret)


@token.command("list", cls=OnePage, epilog=_ROLES_PAGE)
@with_settings("state_dir", "database_url")
def list_command(settings: Settings) -> None:
    """List the tokens, without their secrets."""
    table = Table("name", "role", "for", "created", "last used", "expires")
    with open_store(settings).reading() as session:
        for one in list_tokens(session):
            used, expires = str(one.last_used_at or "never"), str(one.expires_at or "never")
            table.add_row(one.name, one.role, one.host or one.application or "-", str(one.created_at), used, expires)
        for join in page(session, JoinTokenRow, None, 1000):
            used = f"{join.used_at} by {join.used_by}" if join.used_at else "never"
            table.add_row(join.name, JOIN, join.host or "any host", str(join.created_at), used, str(join.expires_at))
    show(table)


@token.command(cls=OnePage, epilog=_ROLES_PAGE)
@with_settings("state_dir", "database_url")
@click.argument("name")
def revoke(settings: Settings, name: str) -> None:
    """Make the token NAME invalid at once; also one to join with, if no other has this name."""
    database, now = open_store(settings), datetime.now(UTC)
    with database.reading() as session:
        joins = find(session, TokenRow, name) is None and find(session, JoinTokenRow, name) is not None
    if joins:
        described = described_join_token
        with audited(database, local_actor(), "join-token.delete", JoinTokenRow, name, described, now) as session:
            delete(session, JoinTokenRow, name, lambda _etag: None)
        say(f"revoked {name}")
        return
    with audited(database, local_actor(), "token.delete", TokenRow, name, described_token, now) as session:
        revoke_token(session, name)
    say(f"revoked {name}")
