"""A restored backup lets nobody in who was shut out since, unless that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text

from manager.errors import DatabaseUnavailable
from manager.settings import load_settings
from manager.store.access_models import SessionRow, UserRow
from manager.store.backup import back_up, restore
from manager.store.database import Database, open_database
from manager.store.joining import create_join_token
from manager.store.registrations import get
from manager.store.tokens import Role, authenticate, create_token, revoke_token
from manager.store.users import create_user, remove_user, set_password, set_role
from tests.db.test_migrations import revisions

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST, SECOND = "hash of the first password", "hash of the second"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = open_database(database_url)
    made.upgrade()
    yield made
    made.close()


def make(database: Database, name: str, role: Role = Role.ADMIN, host: str | None = None) -> str:
    with database.registering() as session:
        return create_token(session, name, role, host, NOW)[1]


def who(database: Database, secret: str) -> str | None:
    found = authenticate(database, secret, NOW)
    return found and f"{found.name} {found.role} {found.host}"


def user(database: Database, name: str, password_hash: str) -> str | None:
    """The role of the user, who has that password; None: there is none of that name and password."""
    with database.reading() as session:
        row = session.scalars(select(UserRow).where(UserRow.name == name)).one_or_none()
    return row.role if row and row.password_hash == password_hash else None


def sessions(database: Database) -> int:
    with database.reading() as session:
        return len(session.scalars(select(SessionRow)).all())


def sign_in(database: Database, name: str) -> None:
    with database.writing() as session:
        row = get(session, UserRow, name)
        about = {"user_id": row.id, "created_at": NOW, "last_seen_at": NOW, "expires_at": NOW, "address": ""}
        session.add(SessionRow(secret_hash=name, **about))


def test_what_was_taken_since_stays_taken_and_what_was_given_stays(database: Database, tmp_path: Path) -> None:
    kept, revoked, renewed = (
        make(database, "kept"),
        make(database, "revoked"),
        make(database, "kvm1", Role.HOST, "kvm1"),
    )
    with database.registering() as session:
        for name in ("ada", "bob", "eve", "root"):
            create_user(session, name, Role.ADMIN, FIRST, NOW)
        create_join_token(session, "join", None, NOW, NOW + timedelta(days=1))
    sign_in(database, "eve")
    backup = back_up(database, tmp_path / "backup", lambda _text: None)
    with database.registering() as session:
        revoke_token(session, "revoked")
        revoke_token(session, "kvm1")
        set_role(session, "ada", Role.VIEWER, NOW, lambda _etag: None)
        set_password(session, "bob", SECOND, NOW)
        remove_user(session, "eve", lambda _etag: None)
        session.execute(text("DELETE FROM join_tokens"))
        session.execute(text("DELETE FROM events"))
    sign_in(database, "root")
    again = make(database, "kvm1", Role.HOST, "kvm1")
    said: list[str] = []
    restore(database, backup.path, said.append, force=True)
    assert who(database, kept) == "kept admin None"
    assert (who(database, revoked), who(database, renewed)) == (None, None)
    assert who(database, again) == "kvm1 host kvm1", "made since, and still valid"
    assert [user(database, "ada", FIRST), user(database, "bob", SECOND), user(database, "root", FIRST)] == [
        Role.VIEWER,
        Role.ADMIN,
        Role.ADMIN,
    ]
    assert [user(database, "bob", FIRST), user(database, "eve", FIRST), sessions(database)] == [None, None, 0]
    with database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM join_tokens")).scalar() == 0
    assert "access is as before this restore: 2 tokens, 3 users, 0 join tokens; all sessions ended" in " ".join(said)
    assert who(database, make(database, "another")) == "another admin None"


def test_a_new_database_lets_nobody_in_unless_asked_to(
    database: Database, tmp_path: Path, new_url: Callable[[str], str]
) -> None:
    secret = make(database, "old")
    with database.registering() as session:
        create_user(session, "ada", Role.ADMIN, FIRST, NOW)
    sign_in(database, "ada")
    backup = back_up(database, tmp_path / "backup", lambda _text: None)
    other = open_database(new_url(backup.kind))
    said: list[str] = []
    restore(other, backup.path, said.append)
    assert (who(other, secret), user(other, "ada", FIRST)) == (None, None)
    assert "`equipoise token create --join`" in " ".join(said)
    restore(other, backup.path, said.append, force=True, with_access=True)
    assert (who(other, secret), user(other, "ada", FIRST), sessions(other)) == ("old admin None", Role.ADMIN, 0)
    other.close()


def test_tables_of_an_older_version_keep_their_tokens(database_url: str, tmp_path: Path) -> None:
    database = open_database(database_url)
    database.upgrade()
    secret, late = make(database, "old"), make(database, "late")
    database.downgrade(revisions()[0])
    backup = back_up(database, tmp_path / "backup", lambda _text: None)
    with database.writing() as session:
        session.execute(text("DELETE FROM tokens WHERE name = 'late'"))
    restore(database, backup.path, lambda _text: None, force=True)
    assert (who(database, secret), who(database, late)) == ("old admin None", None)
    database.close()


@pytest.mark.parametrize("name", ["what?", "%41", "a#b"])
def test_whatever_the_path_of_the_database_nobody_is_let_in_and_tables_are_upgraded(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    database = open_database(load_settings(None, {}, {"state_dir": str(folder)}).database_url)
    database.upgrade()
    secret = make(database, "revoked")
    database.downgrade(revisions()[0])
    backup = back_up(database, tmp_path / "backup", lambda _text: None)
    with database.writing() as session:
        session.execute(text("DELETE FROM tokens"))
    restore(database, backup.path, lambda _text: None, force=True)
    assert (who(database, secret), database.current()) == (None, revisions()[-1])
    assert {one.name for one in tmp_path.iterdir()} == {name, "backup"}
    database.close()


def test_where_it_cannot_be_told_nobody_is_let_in(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make(database, "old")
    backup = back_up(database, tmp_path / "backup", lambda _text: None)

    def fail(_connection: object) -> None:
        raise DatabaseUnavailable("damaged")

    monkeypatch.setattr("manager.store.backup.inspect_tables", fail)
    said: list[str] = []
    restore(database, backup.path, said.append, force=True)
    assert who(database, secret) is None
    assert "cannot be read, so there will be none" in said[0]
