"""Commands on the manager's database: db, token, user, backup, restore."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from manager.cli.options import (
    ManPage,
    ManPageGroup,
    NumberRange,
    json_option,
    make_state_dir,
    with_settings,
    write_secret,
)
from manager.cli.times import local_time
from manager.errors import SettingsError
from manager.private import make_file
from manager.settings import Settings
from manager.store.access_models import TokenRow, UserRow
from manager.store.audit import LOCAL, Actor, audited, record
from manager.store.backup import Backup, back_up
from manager.store.backup import restore as restore_database
from manager.store.database import Database, open_database
from manager.store.host_models import JoinTokenRow
from manager.store.joining import JOIN, create_join_token, described_join_token
from manager.store.registrations import Row, find, page
from manager.store.registrations import delete as delete_row
from manager.store.tokens import (
    Role,
    authenticate,
    create_token,
    described_token,
    free_name,
    replaced_tokens,
    revoke_token,
)
from manager.store.users import create_user, described_user, hash_password, set_password
from manager.terminal import Table, output, say, show

_PASSWORD_BYTES = 15
_PAGE = 1000
_DESCRIBED: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    UserRow: ("user", described_user),
    TokenRow: ("token", described_token),
    JoinTokenRow: ("join-token", described_join_token),
}
"""How the audit names each kind, and what it records of one."""


def open_store(settings: Settings, threads: int = 1) -> Database:
    """The manager's database. Raises EquipoiseError when its URL or folder cannot be used."""
    folder = make_state_dir(settings)
    database = open_database(settings.database_url, threads)
    if database.file is not None and database.file.parent == folder.resolve():
        with suppress(OSError):  # for which SQLite has a better error
            make_file(database.file, of_folder=True)
    return database


def upgrade_store(database: Database, revision: str = "head") -> None:
    """Bring the tables to ``revision``; the audit records the recovery of a damaged file.

    Raises DatabaseUnavailable.
    """
    damage = database.upgrade(revision)
    if damage is not None and revision == "head":
        after = {"set_aside": damage.aside.name if damage.aside else None, "why": damage.why, "kept": damage.kept}
        with database.writing() as session:
            record(session, local_actor(), "database.recover", damage.path.name, datetime.now(UTC), None, after)


def ensure_token_file(database: Database, path: Path, name: str, role: Role, host: str | None) -> None:
    """Keep a file with a valid token of that role and host, readable by its owner alone, or create both.

    A new token revokes those for the same host or with the same name, whose secrets are lost. A name that is taken or
    too long gets a random end. Raises SettingsError when the file cannot be written.
    """
    now = datetime.now(UTC)
    try:
        principal = authenticate(database, path.read_text().strip(), now) if path.exists() else None
        if principal is not None and (principal.role, principal.host) == (role, host):
            return
        with database.exclusively() as session:
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
    """Without any user, create ``admin`` with a random password in a file that only its owner can read.

    Returns whether there is that file. Raises SettingsError when it cannot be written.
    """
    now = datetime.now(UTC)
    with database.reading() as session:
        if page(session, UserRow, None, 1):
            return path.exists()
    secret = secrets.token_urlsafe(_PASSWORD_BYTES)
    try:
        with _changing(database, UserRow, "admin", "create", now) as session:
            create_user(session, "admin", Role.ADMIN, hash_password(secret), now)
            write_secret(path, secret)  # before the commit: without the file nobody would know the password
    except OSError as error:
        raise SettingsError(f"the password file {path} cannot be used: {error.strerror}") from error
    return True


def local_actor() -> Actor:
    """The user who runs a command on the manager's machine, for the audit."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        name = str(os.getuid())
    return Actor(LOCAL, name, Role.ADMIN, "")


def _changing(database: Database, kind: type, name: str, action: str, now: datetime) -> AbstractContextManager[Any]:
    """A session for one audited change of a user or token."""
    label, describe = _DESCRIBED[kind]
    return audited(database, local_actor(), f"{label}.{action}", kind, name, describe, now)


_with_database = with_settings("state_dir", "database_url")

_DB_EPILOG = """
EXAMPLES
  equipoise db current
  equipoise db upgrade
  equipoise db downgrade base --yes    remove all tables and their content
"""


def _some_revision(_context: click.Context, _parameter: click.Parameter, revision: str) -> str:
    if not revision.strip():
        raise click.BadParameter("it is empty")
    return revision


@click.group(cls=ManPageGroup)
def db() -> None:
    """Manage the versioned tables of the manager's database.

    `equipoise run` and `equipoise manager` upgrade them on start.
    """


@db.command(epilog=_DB_EPILOG)
@_with_database
@click.argument("revision", default="head", callback=_some_revision)
def upgrade(settings: Settings, revision: str) -> None:
    """Upgrade the tables to REVISION (default: the newest)."""
    database = open_store(settings)
    upgrade_store(database, revision)
    say(f"at revision {database.current()}")


@db.command(epilog=_DB_EPILOG)
@_with_database
@click.argument("revision", callback=_some_revision)
@click.option("--yes", is_flag=True, help="Do not ask.")
def downgrade(settings: Settings, revision: str, yes: bool) -> None:
    """Downgrade the tables to REVISION; `base` removes them. Data that older tables cannot hold is lost."""
    if not yes:
        click.confirm(f"Downgrade the tables to {revision}? Data may be lost", abort=True)
    database = open_store(settings)
    database.downgrade(revision)
    say(f"at revision {database.current() or 'base'}")


@db.command(epilog=_DB_EPILOG)
@_with_database
def current(settings: Settings) -> None:
    """Print the revision of the tables."""
    say(open_store(settings).current() or "base (no tables)")


_ROLES_EPILOG = """
ROLES
  viewer    reads everything
  operator  also registers VMs and applications, sets SLAs, policies and modes, sends response times
  admin     also creates and revokes tokens
  host      an agent: reports for its own host and reads its assignment
  source    sends the response times of one application, and nothing else

EXAMPLES
  equipoise token create --role operator --name alice
  equipoise token create --role viewer --name report --days 90
  equipoise token create --role source --application shop --name shop-probe
  equipoise token create --role host --host kvm7 --name kvm7 > /etc/equipoise/token
  equipoise token create --join --host kvm7               for `equipoise agent join`, once
  equipoise token create --join --host kvm7 --replace     the same for a reinstalled host
"""


@click.group(cls=ManPageGroup)
def token() -> None:
    """Create, list and revoke bearer tokens of the REST interface.

    These commands use the database directly: run them on the manager's machine; they need no token. A token's secret
    is printed once and stored as a hash.
    """


@token.command("create", epilog=_ROLES_EPILOG)
@_with_database
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="See ROLES.")
@click.option("--join", "joins", is_flag=True, help="Instead of a role: a host joins with it, once.")
@click.option("--name", metavar="NAME", help="The token's name in lists. [default with --join: by the time]")
@click.option("--host", metavar="HOST", help="The host that a token of role host speaks for, or that is to join.")
@click.option("--application", metavar="NAME", help="The application that a token of role source measures.")
@click.option("--replace", is_flag=True, help="With --join --host: also while that host is served; revokes its tokens.")
@click.option("--days", type=NumberRange(0.001, 3650), help="Days until it expires. [default: never; --join: 1]")
def create_token_command(
    settings: Settings,
    role: str | None,
    joins: bool,
    replace: bool,
    name: str | None,
    host: str | None,
    application: str | None,
    days: float | None,
) -> None:
    """Create a token and print its secret on standard output."""
    if joins is (role is not None) or not (name or joins) or (joins and application):
        raise click.UsageError("give --role and --name, or --join")
    if replace and not (joins and host):
        raise click.UsageError("--replace goes with --join and --host")
    database, now = open_store(settings), datetime.now(UTC)
    database.upgrade()
    name = name or f"join-{now:%Y%m%d-%H%M%S-%f}"
    with _changing(database, JoinTokenRow if joins else TokenRow, name, "create", now) as session:
        if role is None:
            until = now + timedelta(days=days or 1)
            _, secret = create_join_token(session, name, host, now, until, replace=replace)
        else:
            expires_at = None if days is None else now + timedelta(days=days)
            _, secret = create_token(session, name, Role(role), host, now, expires_at, application)
        say(secret)  # before it is stored for good: without its secret nobody has a use of it


def _every(database: Database, kind: type[Row]) -> Iterator[Row]:
    """All of a kind by name: a fleet has a token for each of its hosts."""
    after: str | None = None
    with database.reading() as session:
        while rows := page(session, kind, after, _PAGE):
            yield from rows
            after = rows[-1].name


def _when(moment: datetime | None) -> str:
    return local_time(moment) if moment else "never"


@token.command("list", epilog=_ROLES_EPILOG)
@_with_database
def list_tokens_command(settings: Settings) -> None:
    """List the tokens, without their secrets."""
    table = Table("name", "role", "for", "created", "last used", "expires")
    database = open_store(settings)
    for row in _every(database, TokenRow):
        times = map(_when, (row.created_at, row.last_used_at, row.expires_at))
        table.add_row(row.name, row.role, row.host or row.application or "-", *times)
    for join in _every(database, JoinTokenRow):
        used = f"{_when(join.used_at)} by {join.used_by}" if join.used_at else "never"
        created, expires = _when(join.created_at), _when(join.expires_at)
        table.add_row(join.name, JOIN, join.host or "any host", created, used, expires)
    show(table)


@token.command(epilog=_ROLES_EPILOG)
@_with_database
@click.argument("name")
def revoke(settings: Settings, name: str) -> None:
    """Revoke the token NAME at once, or the token to join with if no other has this name."""
    database, now = open_store(settings), datetime.now(UTC)
    with database.reading() as session:
        joins = find(session, TokenRow, name) is None and find(session, JoinTokenRow, name) is not None
    with _changing(database, JoinTokenRow if joins else TokenRow, name, "delete", now) as session:
        if joins:
            delete_row(session, JoinTokenRow, name, lambda _etag: None)
        else:
            revoke_token(session, name)
    say(f"revoked {name}")


_USER_EPILOG = """
ROLES
  viewer    sees everything
  operator  also registers VMs and applications, sets SLAs, policies and modes, reads the audit
  admin     also creates and removes users and tokens

EXAMPLES
  equipoise user create --role operator --name alice
  equipoise user password alice
  pwgen 20 1 | equipoise user create --role viewer --name wall --password-stdin
"""

_from_stdin = click.option("--password-stdin", is_flag=True, help="Read the password's line from standard input.")


@click.group(cls=ManPageGroup)
def user() -> None:
    """Manage the users of the dashboard and their passwords.

    These commands use the database directly: run them on the manager's machine. Passwords have 10 to 200 characters
    and are stored as a hash.
    """


@user.command("create", epilog=_USER_EPILOG)
@_with_database
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), required=True, help="See ROLES.")
@click.option("--name", required=True, metavar="NAME", help="Name to sign in with.")
@_from_stdin
def create_user_command(settings: Settings, role: str, name: str, password_stdin: bool) -> None:
    """Create a user; asks for the password."""
    database, now = open_store(settings), datetime.now(UTC)
    database.upgrade()
    password_hash = _ask(password_stdin)
    with _changing(database, UserRow, name, "create", now) as session:
        create_user(session, name, Role(role), password_hash, now)
    say(f"created {name}")


@user.command("list", epilog=_USER_EPILOG)
@_with_database
def list_users_command(settings: Settings) -> None:
    """List the users."""
    table = Table("name", "role", "created", "last signed in")
    for row in _every(open_store(settings), UserRow):
        table.add_row(row.name, row.role, _when(row.created_at), _when(row.signed_in_at))
    show(table)


@user.command(epilog=_USER_EPILOG)
@_with_database
@click.argument("name")
@_from_stdin
def password(settings: Settings, name: str, password_stdin: bool) -> None:
    """Set a new password for the user NAME, end the user's sessions, and forget failed attempts to sign in."""
    database, now = open_store(settings), datetime.now(UTC)
    password_hash = _ask(password_stdin)
    with _changing(database, UserRow, name, "password", now) as session:
        set_password(session, name, password_hash, now)
    say(f"{name} has a new password")


@user.command(epilog=_USER_EPILOG)
@_with_database
@click.argument("name")
def delete(settings: Settings, name: str) -> None:
    """Remove the user NAME and end the user's sessions."""
    with _changing(open_store(settings), UserRow, name, "delete", datetime.now(UTC)) as session:
        delete_row(session, UserRow, name, lambda _etag: None)
    say(f"removed {name}")


def _ask(from_stdin: bool) -> str:
    """The hash of the password that is entered: at the terminal, or in lines of standard input where there is none.

    Raises InvalidRequest, and SettingsError where it is not given twice.
    """
    if from_stdin:
        return hash_password(_line())
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # in place of a question that nobody sees
        try:
            return hash_password(click.prompt("Password", hide_input=True, confirmation_prompt=True))
        except getpass.GetPassWarning:
            password, again = _line(), _line()
    if password != again:
        raise SettingsError(
            "standard input has not the same password in two lines: repeat it, or use --password-stdin with one"
        )
    return hash_password(password)


def _line() -> str:
    return sys.stdin.readline().rstrip("\n")


_BACKUP_EPILOG = """
WHAT IT DOES
  Writes a consistent copy of the database to FILE while managers use it: registrations, history, users, and tokens as
  hashes. Only its owner can read FILE. SQLite is written as an SQLite file, PostgreSQL as a dump of pg_dump, which must
  be installed (postgresql-client). The journals of agents are not included: they describe the present state of their
  hosts.

EXAMPLES
  equipoise backup /var/backups/equipoise-$(date +%F)
  equipoise backup --database-url postgresql://equipoise@db/equipoise --json nightly.dump
"""

_RESTORE_EPILOG = """
WHAT IT DOES
  Replaces the database with FILE, written by `equipoise backup`: all of it or nothing. Tables of an older version are
  upgraded; FILE of a newer version is refused, and without --force a database that has tables. Stop the managers first:
  they would continue with what they remember.

  Access is not restored, as FILE may hold revoked tokens and removed users: tokens, users and passwords stay as they
  are in the database that is replaced, and all sessions end. A new database then has none: create a user (`equipoise
  user create`), and have each host join again (`equipoise token create --join --host NAME`, `equipoise agent join
  --force`). --with-access restores those of FILE: afterwards revoke again what had been revoked, and change passwords
  that others know.

EXAMPLES
  systemctl stop equipoise-manager && equipoise restore --force /var/backups/equipoise-2026-03-01
  equipoise restore --with-access /var/backups/equipoise-2026-03-01     everything, on a new machine
"""

_file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.command(cls=ManPage, epilog=_BACKUP_EPILOG)
@_with_database
@json_option
@_file_argument
def backup(settings: Settings, as_json: bool, file: Path) -> None:
    """Write the manager's database to FILE while it is in use."""
    begin_s = time.monotonic()
    with closing(open_store(settings)) as database:
        _report_backup("backed up", back_up(database, file, _say), begin_s, as_json)


@click.command(cls=ManPage, epilog=_RESTORE_EPILOG)
@_with_database
@click.option("--force", is_flag=True, help="Replace what is in the database.")
@click.option("--with-access", is_flag=True, help="Also restore the tokens and users of FILE, revoked ones too.")
@json_option
@_file_argument
def restore(settings: Settings, force: bool, with_access: bool, as_json: bool, file: Path) -> None:
    """Replace the manager's database with FILE."""
    begin_s = time.monotonic()
    with closing(open_store(settings)) as database:
        restored = restore_database(database, file, _say, force=force, with_access=with_access)
        _report_backup("restored", restored, begin_s, as_json)


def _say(text: str) -> None:
    say(f"equipoise: {text}", err=True)


def _report_backup(done: str, written: Backup, begin_s: float, as_json: bool) -> None:
    seconds = round(time.monotonic() - begin_s, 3)
    body = {"file": str(written.path), "database": written.kind, "revision": written.revision}
    size = f"{written.size_bytes / 1e6:,.1f} MB"
    output(
        as_json,
        body | {"bytes": written.size_bytes, "seconds": seconds},
        f"{done}: {written.path}, {written.kind} at revision {written.revision}, {size}, in {seconds:.1f} s",
    )
