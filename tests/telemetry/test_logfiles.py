"""What a log may be: a plain file in a folder of the settings. Everything else is refused, and was never opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import SettingsError
from manager.host.log_file import look_at_log, open_log
from manager.model.source import NginxFile, SourceState
from manager.settings import load_settings, parse_folders
from manager.telemetry import follow
from manager.telemetry.follow import MOST_BEHIND, Follower
from tests.telemetry.conftest import Fed, Running, run_virtually, shop, until


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is opened otherwise than to look at it: with O_PATH nothing of a file is touched (open(2))."""
    found: list[str] = []
    real = os.open

    def note(path: str, flags: int, *more: int, **options: int | None) -> int:
        if not flags & os.O_PATH:
            found.append(path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", note)
    return found


@pytest.mark.parametrize(
    ("folder", "path", "why"),
    [
        ("/var/log", "/proc/cpuinfo", "in no folder of this agent's setting log_dirs"),
        ("/var/log", "/var/log/../../proc/kmsg", "in no folder"),
        ("/var/log", "/var/logs/x", "in no folder"),
        ("/var/log", "/var/log", "in no folder"),
        ("/proc", "/proc/cpuinfo", "no file system of a disk"),
        ("/proc", "/proc/kmsg", "no file system of a disk"),
        ("/proc", "/proc/self/cwd/setup.cfg", "symbolic link"),
        ("/sys", "/sys/kernel/mm/transparent_hugepage/enabled", "no file system of a disk"),
        ("/dev", "/dev/kmsg", "not a regular file"),
        ("/dev", "/dev/null", "not a regular file"),
        ("/dev", "/dev/stdin", "symbolic link"),
    ],
)
def test_what_the_kernel_shows_as_files_is_refused_unopened(
    folder: str, path: str, why: str, opened: list[str]
) -> None:
    if folder != "/var/log" and not os.path.lexists(path):
        pytest.skip(f"NOT TESTED: there is no {path} here")
    with pytest.raises(OSError, match=why):
        Follower(path, [folder]).read()
    assert opened == []


def test_a_pipe_a_socket_and_a_folder_are_refused_unopened(tmp_path: Path, opened: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="it is not a regular file"):
            Follower(str(tmp_path / name), [str(tmp_path)]).read()
    assert opened == []


def test_no_link_is_followed_wherever_it_is(tmp_path: Path, opened: list[str]) -> None:
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    secret.mkdir()
    logs.mkdir()
    (secret / "log").write_text("request_time=1\n")
    (logs / "last").symlink_to(secret / "log")
    (logs / "between").symlink_to(secret)
    (logs / "inside").symlink_to(logs)
    for path in ("last", "between/log", "inside/last"):
        with pytest.raises(OSError, match="symbolic link"):
            Follower(str(logs / path), [str(logs)]).read()
    assert opened == []


def test_a_file_that_is_swapped_after_it_was_looked_at_is_the_one_that_was_looked_at(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ours\n")
    looked_at = look_at_log(str(log), [str(tmp_path)])
    log.unlink()
    log.symlink_to("/etc/passwd")
    descriptor = open_log(looked_at)
    assert os.read(descriptor, 100) == b"ours\n"
    for one in (looked_at, descriptor):
        os.close(one)


def test_a_folder_of_the_settings_may_itself_be_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "log").write_text("")
    (tmp_path / "log").symlink_to(real)
    assert Follower(str(tmp_path / "log/log"), [str(tmp_path / "log")]).read() == []


def test_nothing_stays_open_of_what_was_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    follower = Follower(str(tmp_path / "link"), [str(tmp_path)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(OSError, match="symbolic link"):
            follower.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_log_that_becomes_a_link_is_failing_and_its_target_is_not_read(running: Running, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    (tmp_path / "secret").write_text("request_time=1\n" * 9)
    log.touch()
    running.configure(shop(NginxFile("log", str(log))))
    until(lambda: running.status("log").state is SourceState.STARTING, "it is followed")
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    until(lambda: "symbolic link" in running.status("log").detail, "the link is refused")
    assert running.status("log").accepted == 0


def test_cpuinfo_is_refused_by_a_running_agent(running: Running) -> None:
    running.configure(shop(NginxFile("log", "/proc/cpuinfo")))
    until(lambda: running.status("log").state is SourceState.FAILING, "it is refused")
    status = running.status("log")
    assert "log_dirs" in status.detail
    assert status.malformed == 0, "none of it was read"


class _Reads:
    """Counts how often a source reads, and how much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.taken = 0
        real = os.pread

        def read(descriptor: int, length: int, position: int) -> bytes:
            data = real(descriptor, length, position)
            self.calls += 1
            self.taken += len(data)
            return data

        monkeypatch.setattr(follow.os, "pread", read)


@pytest.mark.parametrize("line", ["request_time=0.001\n", "x" * 60_000 + "\n", "y" * 300_000])
def test_a_log_that_is_always_shorter_than_it_was_does_not_keep_the_agent_busy(
    fed: Fed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """As a file of procfs looks, whose size is 0: what was read of it is read again and again."""
    log = tmp_path / "log"
    log.touch()
    reads = _Reads(monkeypatch)
    real = os.fstat

    def always_empty(descriptor: int) -> object:
        found = real(descriptor)
        return os.stat_result((*found[:6], 0, *found[7:10]))

    log.write_text(line * 20_000 if len(line) < 100 else line * 20)
    monkeypatch.setattr(follow.os, "fstat", always_empty)
    run_virtually(lambda: follow.follow_file(NginxFile("log", str(log)), fed.feed, [str(tmp_path)], 20_000), 10)
    assert 0 < reads.taken <= 10 * follow.MOST_BYTES_S * 1.1
    assert reads.calls <= 10 * (20_000 / 13_000) * 20, "it waits between two readings"
    assert fed.status.accepted <= 10 * 20_000 * 1.1


def test_of_a_log_that_grows_faster_than_it_is_read_some_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(str(log), [str(tmp_path)])
    follower.read()
    os.truncate(log, MOST_BEHIND * 3)  # a file with a hole
    assert follower.read() == []
    assert follower.left_out == MOST_BEHIND * 2
    assert follower.read() == []
    assert follower.left_out == 0


def test_a_log_that_is_renamed_all_the_time_keeps_few_files_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(str(log), [str(tmp_path)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(40):
        follower.read()
        log.rename(tmp_path / f"old-{number}")
        log.touch()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 6
    follower.close()


def test_folders_are_absolute_and_not_all_there_is() -> None:
    assert parse_folders(" /var/log, /srv/logs/ ,") == ("/var/log", "/srv/logs/")
    assert parse_folders("") == ()
    for bad in ("var/log", "/", "/var/log, /var/../etc", "//"):
        with pytest.raises(SettingsError, match="log_dirs"):
            load_settings(None, {}, {"log_dirs": bad})


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    """Opening a pipe for reading would wait for a writer: a test that does so ends here, and fails."""
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before, "threads end")
