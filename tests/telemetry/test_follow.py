"""Following a log through everything that happens to logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.host import log_file
from manager.model.source import NginxFile, SourceState
from manager.telemetry import follow
from manager.telemetry.follow import MAX_LINE, Follower
from tests.telemetry.conftest import Clock, Running, shop, until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def follower(log: Path, clock: Clock) -> Iterator[Follower]:
    made = Follower(str(log), [str(log.parent)], clock)
    yield made
    made.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_it_begins_at_the_end_and_keeps_partial_lines(log: Path, follower: Follower) -> None:
    log.write_text("old\nold, without its e")
    assert follower.read() == []
    append(log, "nd\none\ntw")
    assert follower.read() == [b"nd", b"one"]
    assert follower.read() == []
    append(log, "o\n\n")
    assert follower.read() == [b"two", b""]


def test_a_file_that_appears_later_is_read_from_its_beginning(log: Path, follower: Follower) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            follower.read()
    append(log, "one\n")
    assert follower.read() == [b"one"]


def test_a_rotation_loses_nothing(log: Path, follower: Follower, clock: Clock) -> None:
    log.touch()
    follower.read()
    append(log, "one\n")
    old = log.rename(log.with_suffix(".1"))
    append(old, "two\n")
    assert follower.read() == [b"one", b"two"], "renamed, and not yet reopened by the server"
    with pytest.raises(FileNotFoundError):
        follower.read()
    append(log, "four\n")
    append(old, "three\n")
    assert follower.read() == [b"three", b"four"]
    clock.now_s += 9
    append(old, "a worker that is late\n")
    assert follower.read() == [b"a worker that is late"]
    clock.now_s += 2
    follower.read()
    append(old, "much too late\n")
    append(log, "five\n")
    assert follower.read() == [b"five"]


def test_nothing_stays_open_after_many_rotations(log: Path, follower: Follower, clock: Clock) -> None:
    log.touch()
    follower.read()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        log.rename(log.with_suffix(f".{number}"))
        append(log, f"{number}\n")
        assert follower.read() == [b"%d" % number]
        clock.now_s += 11
        follower.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    follower.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


def test_a_truncated_file_is_read_from_its_beginning(log: Path, follower: Follower) -> None:
    log.touch()
    follower.read()
    append(log, "one\npartia")
    assert follower.read() == [b"one"]
    log.write_text("two\n")
    assert follower.read() == [b"two"]


def test_an_endless_line_is_one_malformed_line(log: Path, follower: Follower) -> None:
    log.touch()
    follower.read()
    append(log, "x" * (3 * MAX_LINE))
    assert follower.read() == []
    append(log, "x" * MAX_LINE + "\none\n" + "y" * (MAX_LINE + 1) + "\ntwo\n")
    assert follower.read() == [None, b"one", None, b"two"]


def test_what_is_no_file_is_refused_and_a_pipe_is_not_waited_for(log: Path, follower: Follower) -> None:
    os.mkfifo(log)
    with pytest.raises(OSError, match="it is not a regular file"):
        follower.read()
    log.unlink()
    log.mkdir()
    with pytest.raises(OSError, match="it is not a regular file"):
        follower.read()


@given(st.lists(st.text(alphabet="ab\n", max_size=20), max_size=30), st.integers(1, 7))
def test_lines_do_not_depend_on_how_they_were_written(tmp_path_factory, parts: list[str], chunk: int) -> None:
    log = tmp_path_factory.mktemp("log") / "access.log"
    log.touch()
    follower = Follower(str(log), [str(log.parent)])
    found = follower.read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "_CHUNK", chunk)
        for part in parts:
            append(log, part)
            found += follower.read()
        for _ in range(sum(map(len, parts)) // chunk + 1):
            found += follower.read()
    follower.close()
    assert found == [line.encode() for line in "".join(parts).split("\n")[:-1]]


def test_a_source_counts_lines_and_says_why_it_fails(running: Running, log: Path) -> None:
    running.configure(shop(NginxFile("log", str(log))))
    until(lambda: running.status("log").state is SourceState.FAILING, "the missing file is noticed")
    assert running.status("log").detail == f"{log}: No such file or directory"
    append(log, "request_time=0.100 status=200\nrequest_time=0.200 status=500\n\nroot:x:0:0\n" + "x" * 70_000 + "\n")
    until(lambda: running.status("log").malformed == 2, "all is read")
    status = running.status("log")
    assert (status.accepted, status.errors, status.state) == (2, 1, SourceState.OK)
    assert "root" not in status.detail, "what a file holds is not shown"
    assert running.count() == 2


def test_a_file_that_becomes_unreadable_is_failing(running: Running, log: Path, monkeypatch) -> None:
    """Root may read everything, so the refusal is made."""
    real: Callable[..., int] = os.open
    denied = [True]

    def deny(path: str, *more: int, **options: int) -> int:
        if path == log.name and denied:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *more, **options)

    monkeypatch.setattr(log_file.os, "open", deny)
    append(log, "request_time=0.001\n")
    running.configure(shop(NginxFile("log", str(log))))
    until(lambda: running.status("log").state is SourceState.FAILING, "the refusal is noticed")
    assert "Permission denied" in running.status("log").detail
    denied.clear()
    until(lambda: running.status("log").state is SourceState.STARTING, "it can be read")
    append(log, "request_time=0.001\n")
    until(lambda: running.status("log").accepted, "new lines count")
    assert running.status("log").accepted == 1, "what was there before is old"
