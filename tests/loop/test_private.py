"""Folders and files of the service are its own, whatever the umask is and whatever was there before."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from manager.cli import main
from manager.errors import UnsafeFile
from manager.hook import HookSocket
from manager.loop.journal import Journal
from manager.loop.outbox import Outbox
from manager.loop.replicated import Reserve
from manager.private import claim_folder, open_new, replace_file
from manager.store.database import open_database

NOBODY = 65534
OWN = ("equipoise.db", "journal.db")


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_folder_is_its_owners(tmp_path: Path) -> None:
    claim_folder(tmp_path / "a/state", OWN)
    assert mode(tmp_path / "a/state") == 0o700


def test_a_folder_of_before_is_closed_to_others_with_all_files_in_it(tmp_path: Path) -> None:
    """As of an installation that made it by hand: database and journal were readable by everybody."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    files = [state / name for name in ("equipoise.db", "equipoise.db-wal", "journal.db", "anything")]
    for file in files:
        file.touch(mode=0o666)
    (state / "link").symlink_to("/etc/passwd")
    claim_folder(state, OWN)
    assert [mode(one) for one in (state, *files)] == [0o700, *[0o600] * 4]
    assert mode(Path("/etc/passwd")) & 0o444 == 0o444


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_a_database_that_root_makes_for_the_managers_user_is_its_own(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    result = CliRunner().invoke(main, ["db", "upgrade", "--state-dir", str(state)])
    assert result.exit_code == 0, result.output
    assert (state / "equipoise.db").exists()
    assert {(one.stat().st_uid, mode(one)) for one in state.iterdir()} == {(NOBODY, 0o600)}


@pytest.mark.parametrize("command", [["db", "upgrade"], ["token", "list"]])
def test_commands_close_it(tmp_path: Path, command: list[str]) -> None:
    state = tmp_path / "state"
    claim_folder(state, OWN)
    runner = CliRunner()
    assert runner.invoke(main, ["db", "upgrade", "--state-dir", str(state)]).exit_code == 0
    state.chmod(0o755)
    (state / "equipoise.db").chmod(0o644)
    result = runner.invoke(main, [*command, "--state-dir", str(state)])
    assert result.exit_code == 0, result.output
    assert {one.name: oct(mode(one)) for one in (state, *state.iterdir()) if mode(one) & 0o077} == {}


def test_an_empty_one_that_others_may_write_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o777)
    claim_folder(tmp_path / "state", OWN)
    assert mode(tmp_path / "state") == 0o700


@pytest.mark.parametrize(
    ("bits", "name", "says"),
    [
        (0o775, "journal.db", "others may write in .* .mode 0775.*`chmod 0700"),
        (0o777, "journal.db", "others may write in .* .mode 0777"),
        (0o1777, "", "others may write in .* .mode 1777"),
        (0o755, "web-site", "holds other things, which others may read: name a folder"),
    ],
)
def test_what_may_be_of_others_is_refused_and_left_alone(tmp_path: Path, bits: int, name: str, says: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    if name:
        (state / name).touch(mode=0o644)
    state.chmod(bits)
    with pytest.raises(UnsafeFile, match=says):
        claim_folder(state, OWN)
    assert mode(state) == bits
    assert not name or mode(state / name) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="files of others are made by root")
def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    with pytest.raises(UnsafeFile, match=f"belongs to user {NOBODY}, who could exchange .*`chown` it to root"):
        claim_folder(state, OWN)
    claim_folder(state, OWN, of_another=True)
    os.chown(state, 0, 0)
    (state / "journal.db").touch()
    os.chown(state / "journal.db", NOBODY, NOBODY)
    with pytest.raises(UnsafeFile, match=f"journal.db belongs to user {NOBODY}"):
        claim_folder(state, OWN)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UnsafeFile, match="is a symbolic link that belongs to"):
        claim_folder(link, OWN)


def test_a_file_system_of_its_own_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state/lost+found").mkdir(parents=True)
    claim_folder(tmp_path / "state", OWN)
    assert mode(tmp_path / "state") == 0o700


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "state").symlink_to(tmp_path / "there")
    claim_folder(tmp_path / "state", OWN)
    assert mode(tmp_path / "there") == 0o700


def test_a_command_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "journal.db").touch()
    state.chmod(0o777)
    result = CliRunner().invoke(main, ["db", "current", "--state-dir", str(state)])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert f"`chmod 0700 {state}`" in result.output


def test_all_that_is_written_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    claim_folder(state, OWN)
    journal, outbox = Journal(state / "journal.db", "boot"), Outbox(state / "outbox.db", 100)
    Reserve(state / "reserve").keep()
    database = open_database(f"sqlite:///{state}/equipoise.db")
    database.upgrade()
    database.ping()
    replace_file(state / "assignment.json", b"{}")
    hook = HookSocket(state / "hook.sock", lambda _uuid, _name: None)
    try:
        found = {one.name: mode(one) for one in state.iterdir()}
        assert {"journal.db-wal", "outbox.db-wal", "equipoise.db-wal", "reserve", "hook.sock"} <= found.keys()
        assert {name: oct(bits) for name, bits in found.items() if bits != 0o600} == {}
    finally:
        hook.close()
        database.close()
        outbox.close()
        journal.close()


def test_a_new_file_is_neither_one_that_is_there_nor_at_the_end_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "there").write_text("precious")
    for name in ("link", "there"):
        with pytest.raises(FileExistsError):
            open_new(tmp_path / name)
    assert not (tmp_path / "target").exists()
    (tmp_path / "a.new").symlink_to(tmp_path / "there")
    replace_file(tmp_path / "a", b"x")
    assert ((tmp_path / "there").read_text(), (tmp_path / "a").read_text()) == ("precious", "x")


def test_a_backup_and_its_copies_are_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    claim_folder(state, OWN)
    runner = CliRunner()
    assert runner.invoke(main, ["db", "upgrade", "--state-dir", str(state)]).exit_code == 0
    (tmp_path / "b.part").symlink_to(tmp_path / "victim")
    assert runner.invoke(main, ["backup", str(tmp_path / "b"), "--state-dir", str(state)]).exit_code == 0
    assert mode(tmp_path / "b") == 0o600
    assert not (tmp_path / "victim").exists()
    with closing(sqlite3.connect(tmp_path / "b")) as made:
        assert made.execute("SELECT count(*) FROM tokens").fetchone() == (0,)
