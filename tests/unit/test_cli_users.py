"""`equipoise user`, and the user that `equipoise run` makes."""

from __future__ import annotations

import getpass
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.cli.admin_commands import ensure_admin_user, local_actor, open_store
from manager.errors import InvalidRequest, SettingsError, SignInRefused
from manager.settings import load_settings
from manager.store.access_models import UserRow
from manager.store.audit import AuditFilter, list_audit
from manager.store.database import Database
from manager.store.registrations import delete
from manager.store.sessions import DEFAULT_LIMITS, sign_in
from manager.store.tokens import Principal, PrincipalKind, Role, create_token
from manager.store.users import hash_password

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def state_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EQUIPOISE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "carol")
    return tmp_path


@pytest.fixture
def database(state_dir: Path) -> Database:
    database = open_store(load_settings(None, {}, {"state_dir": str(state_dir)}))
    database.upgrade()
    return database


def call(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(main, ["user", *arguments], input=typed)


def enter(database: Database, name: str, password: str) -> Principal:
    return sign_in(database, name, password, "", NOW, DEFAULT_LIMITS).principal


def test_users_are_made_listed_given_passwords_and_removed(database: Database) -> None:
    arguments = ("create", "--role", "operator", "--name", "alice")
    made = call(*arguments, typed="correct horse\ncorrect horse\n")
    assert made.exit_code == 0, made.output
    assert "correct horse" not in made.output
    assert enter(database, "alice", "correct horse") == Principal("alice", Role.OPERATOR, None, PrincipalKind.USER)
    assert "already" in call(*arguments, typed="correct horse\ncorrect horse\n").output
    listed = call("list").output
    assert "alice" in listed
    assert "scrypt" not in listed
    assert call("password", "alice", "--password-stdin", typed="battery staple\n").exit_code == 0
    with pytest.raises(SignInRefused):
        enter(database, "alice", "correct horse")
    enter(database, "alice", "battery staple")
    assert call("delete", "alice").exit_code == 0
    assert call("delete", "alice").exit_code == 1
    with database.reading() as session:
        done = list_audit(session, AuditFilter(object_kind="user"), None, 9)
    assert [(row.actor_kind, row.actor, row.action) for row in done] == [
        ("local", "carol", "user.delete"),
        ("local", "carol", "user.password"),
        ("local", "carol", "user.create"),
    ]


@pytest.mark.parametrize(
    ("arguments", "typed", "says"),
    [
        (("create", "--role", "viewer", "--name", "x", "--password-stdin"), "short\n", "10 to 200 characters"),
        (("create", "--role", "viewer", "--name", "a b", "--password-stdin"), "long enough\n", "name: 'a b'"),
        (("password", "nobody", "--password-stdin"), "long enough\n", "no user named 'nobody'"),
    ],
)
def test_what_is_refused_is_named(database: Database, arguments: tuple[str, ...], typed: str, says: str) -> None:
    result = call(*arguments, typed=typed)
    assert result.exit_code == 1
    assert says in result.output


def without_a_terminal(*arguments: str, typed: str) -> subprocess.CompletedProcess[str]:
    """A session of its own has none."""
    command = [sys.executable, "-m", "manager.cli", "user", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, start_new_session=True, check=False)


def test_without_a_terminal_a_password_is_read_twice_and_without_a_word(database: Database) -> None:
    create = ("create", "--role", "viewer", "--name", "x")
    refused = without_a_terminal(*create, typed="correct horse\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("equipoise: standard input has not the same password in two lines: ")
    made = without_a_terminal(*create, typed="correct horse\ncorrect horse\n")
    assert (made.returncode, made.stdout, made.stderr) == (0, "created x\n", "")
    enter(database, "x", "correct horse")
    assert without_a_terminal("password", "x", typed="battery staple\n" * 2).stderr == ""
    enter(database, "x", "battery staple")


def test_a_password_of_another_encoding_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not text in UTF-8"):
        hash_password(b"long en\xff\xfeough".decode(errors="surrogateescape"))


def test_tokens_made_here_are_audited(database: Database) -> None:
    for arguments in (("create", "--role", "viewer", "--name", "t"), ("revoke", "t")):
        assert CliRunner().invoke(main, ["token", *arguments]).exit_code == 0
    with database.reading() as session:
        done = [(row.actor, row.action) for row in list_audit(session, AuditFilter(), None, 9)]
    assert done == [("carol", "token.delete"), ("carol", "token.create")]


def test_all_tokens_of_a_large_fleet_are_listed(database: Database) -> None:
    names = [f"agent-kvm{number:04d}" for number in range(1001)]
    with database.exclusively() as session:
        for name in names:
            create_token(session, name, Role.HOST, name.removeprefix("agent-"), NOW)
    listed = CliRunner().invoke(main, ["token", "list"]).output
    assert [name for name in names if name not in listed] == []


def test_a_number_without_a_name_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert local_actor().name.isdigit()


def test_the_first_user_is_made_once_with_a_password_in_a_file(database: Database, state_dir: Path) -> None:
    file = state_dir / "admin-password"
    assert ensure_admin_user(database, file)
    password = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert enter(database, "admin", password).role is Role.ADMIN
    assert ensure_admin_user(database, file)
    assert file.read_text().strip() == password
    file.unlink()
    assert not ensure_admin_user(database, file), "there is a user: nothing is made, or told, again"
    assert not file.exists()
    enter(database, "admin", password)


def test_no_admin_is_made_where_there_is_another_user(database: Database, state_dir: Path) -> None:
    call("create", "--role", "viewer", "--name", "alice", "--password-stdin", typed="correct horse\n")
    assert not ensure_admin_user(database, state_dir / "admin-password")
    with database.registering() as session:
        delete(session, UserRow, "alice", lambda _etag: None)
    assert ensure_admin_user(database, state_dir / "admin-password")


def test_without_the_file_there_is_no_user(database: Database, state_dir: Path) -> None:
    with pytest.raises(SettingsError, match="admin-password"):
        ensure_admin_user(database, state_dir / "nowhere" / "admin-password")
    assert ensure_admin_user(database, state_dir / "admin-password")
