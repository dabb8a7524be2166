"""One agent a host: the second is refused, and a dead one does not count."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import AlreadyRunning, UnsafeFile
from manager.loop.lock import HostLock

TOP = Path(__file__).parents[2]
HOLDER = """
import subprocess, sys
from pathlib import Path
from manager.loop.lock import HostLock
lock = HostLock(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run/equipoise-agent/lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, and that has started a program."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    os.kill(child, signal.SIGKILL)
    process.communicate()


def refusal(path: Path) -> str:
    with pytest.raises(AlreadyRunning) as caught:
        HostLock(path)
    return str(caught.value)


def test_the_holder_writes_its_process_id(path: Path) -> None:
    lock = HostLock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.close()


def test_a_second_holder_is_refused_and_told_who_has_it(path: Path) -> None:
    lock = HostLock(path)
    assert refusal(path) == f"an agent already controls this host: process {os.getpid()}"
    assert path.read_text() == f"{os.getpid()}\n", "the refused one leaves it as it is"
    lock.close()
    HostLock(path).close()


def test_another_process_holds_it_until_it_is_killed(path: Path, holder: subprocess.Popen[str]) -> None:
    assert refusal(path) == f"an agent already controls this host: process {holder.pid}"
    holder.kill()
    holder.wait()
    lock = HostLock(path)  # also while a program that it started goes on
    assert path.read_text() == f"{os.getpid()}\n"
    lock.close()


def test_what_a_dead_holder_wrote_does_not_count(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("123456789012345 and a long tail\n")
    lock = HostLock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.close()


def test_a_holder_that_has_not_written_yet(path: Path) -> None:
    lock = HostLock(path)
    path.write_text("")
    assert refusal(path) == "an agent already controls this host: process unknown"
    lock.close()


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert (
        refusal(tmp_path / "lock" / "x") == f"the lock {tmp_path}/lock/x cannot be opened: Not a directory; run as root"
    )


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_can_open_it_whatever_the_umask(path: Path, umask: int) -> None:
    path.parent.parent.mkdir()
    before = os.umask(umask)
    try:
        lock = HostLock(path)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
    lock.close()


def test_one_that_others_could_have_opened_is_made_anew(path: Path) -> None:
    """Somebody who opened it before could lock the same file later."""
    path.parent.mkdir(parents=True)
    path.touch(mode=0o644)
    with path.open() as opened_before:
        lock = HostLock(path)
        assert path.stat().st_mode & 0o777 == 0o600
        fcntl.flock(opened_before, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the file that is no more
        assert refusal(path) == f"an agent already controls this host: process {os.getpid()}"
        lock.close()
        HostLock(path).close()


def test_one_that_others_could_have_opened_and_hold_is_refused_with_what_to_do(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o644)
    with path.open() as hostile:
        fcntl.flock(hostile, fcntl.LOCK_EX)
        with pytest.raises(UnsafeFile, match=f"is held, and others could open it .*`rm {path}`"):
            HostLock(path)
        path.unlink()
        HostLock(path).close()


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo"])
def test_what_is_no_file_is_replaced_and_not_followed(path: Path, tmp_path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True)
    other = tmp_path / "other"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    if kind == "link":
        other.write_text("precious")
    lock = HostLock(path)
    assert stat.S_ISREG(path.lstat().st_mode)
    assert other.exists() is (kind == "link")
    assert kind != "link" or other.read_text() == "precious"
    lock.close()


def test_a_folder_in_which_others_may_write_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o600)
    path.parent.chmod(0o777)
    with pytest.raises(UnsafeFile, match=r"others may write in .*`chmod 0700"):
        HostLock(path)
