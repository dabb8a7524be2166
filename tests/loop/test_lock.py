"""One agent a host: the second is refused, and a dead one does not count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import AlreadyRunning
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
    return tmp_path / "run/equipoise-agent.lock"


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
    path.parent.mkdir()
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
    assert refusal(tmp_path) == f"the lock {tmp_path} cannot be opened: Is a directory; run as root"
