"""`equipoise backup` and `restore`: the manager's database in one file and back."""

from __future__ import annotations

import time
from pathlib import Path

import click

from manager.cli.admin_commands import open_store
from manager.cli.options import OnePage, with_settings
from manager.settings import Settings
from manager.store.backup import Backup, back_up
from manager.store.backup import restore as restore_database
from manager.terminal import say, say_json

_BACKUP_EPILOG = """
WHAT IT DOES
  Writes one state of the database to FILE, while managers go on using it: all that is registered, the history, users,
  and tokens as hashes. Only its owner can read FILE. A database of SQLite becomes a file of SQLite; one of PostgreSQL
  a dump of pg_dump, which must be installed (postgresql-client). Journals of agents are not in it: they tell of their
  hosts' kernels as they are now.

EXAMPLES
  equipoise backup /var/backups/equipoise-$(date +%F)
  equipoise backup --database-url postgresql://equipoise@db/equipoise --json nightly.dump
"""

_RESTORE_EPILOG = """
WHAT IT DOES
  Makes the database what it was when FILE was written by `equipoise backup`, all of it or nothing, and upgrades its
  tables where FILE is of an older version. Stop the managers before: they would go on with what they remember. FILE
  of a newer version is refused, and so is a database that has tables already, without --force.

  Who has access is not restored: tokens, users and their passwords stay as they are in the database that is replaced,
  and all sessions end. FILE may hold tokens that were revoked since, and people who were removed. In a new database
  there are none then: make a user (`equipoise user create`), and have each host join again (`equipoise token create
  --join --host NAME`, `equipoise agent join --force`). --with-access restores those of FILE: afterwards revoke again
  what had been revoked, and change passwords that are known to others.

EXAMPLES
  systemctl stop equipoise-manager && equipoise restore --force /var/backups/equipoise-2026-03-01
  equipoise restore --with-access /var/backups/equipoise-2026-03-01     on a new machine, all as it was
"""

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command(cls=OnePage, epilog=_BACKUP_EPILOG)
@with_settings("state_dir", "database_url")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("file", type=_PATH)
def backup(settings: Settings, as_json: bool, file: Path) -> None:
    """Write the manager's database to FILE while it is in use."""
    begin_s = time.monotonic()
    database = open_store(settings)
    try:
        _tell("backed up", back_up(database, file, _say), begin_s, as_json)
    finally:
        database.close()


@click.command(cls=OnePage, epilog=_RESTORE_EPILOG)
@with_settings("state_dir", "database_url")
@click.option("--force", is_flag=True, help="Replace what is in the database.")
@click.option("--with-access", is_flag=True, help="Also restore the tokens and users of then, revoked ones too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("file", type=_PATH)
def restore(settings: Settings, force: bool, with_access: bool, as_json: bool, file: Path) -> None:
    """Make the manager's database what FILE holds."""
    begin_s = time.monotonic()
    database = open_store(settings)
    try:
        _tell(
            "restored", restore_database(database, file, _say, force=force, with_access=with_access), begin_s, as_json
        )
    finally:
        database.close()


def _say(text: str) -> None:
    say(f"equipoise: {text}", err=True)


def _tell(done: str, found: Backup, begin_s: float, as_json: bool) -> None:
    seconds = round(time.monotonic() - begin_s, 3)
    about = {"file": str(found.path), "database": found.kind, "revision": found.revision, "bytes": found.size_bytes}
    if as_json:
        say_json({**about, "seconds": seconds}, None)
    else:
        size = f"{found.size_bytes / 1e6:,.1f} MB"
        say(f"{done}: {found.path}, {found.kind} at revision {found.revision}, {size}, in {seconds:.1f} s")
