"""Limits that several processes share by a file."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from manager.errors import Busy
from manager.rate_limit import OwnBuckets, RateLimit, Turns
from manager.shared_limits import SharedLimits

PROGRAM = """
import sys, time
from pathlib import Path
from manager.shared_limits import SharedLimits
shared = SharedLimits(Path(sys.argv[1]))
with shared.gate(), shared.locked(0):
    print("in", flush=True)
    time.sleep(60)
"""


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "limits"


def test_what_one_process_takes_the_others_lack(file: Path) -> None:
    clock = Clock()
    first, second = (RateLimit(1, clock, SharedLimits(file).buckets("requests")) for _ in range(2))
    assert [limit.ask("alice") for _ in range(5) for limit in (first, second)] == [0.0] * 10
    first.take("alice", 2)
    assert first.ask("alice") == pytest.approx(2.0)
    assert second.wait_s("alice") == pytest.approx(2.0)
    assert second.ask("bob") == 0.0
    assert RateLimit(1, clock, SharedLimits(file).buckets("tries")).ask("alice") == 0.0, "another limit"
    clock.now_s += 2.0
    assert second.ask("alice") == 0.0
    assert file.stat().st_mode & 0o077 == 0


def test_its_place_on_the_disk_is_taken_at_once(file: Path) -> None:
    """A page of a mapped file that finds no room is SIGBUS for whoever writes to it."""
    SharedLimits(file)
    status = file.stat()
    assert status.st_blocks * 512 >= status.st_size > 0


KEYS = some.sampled_from(["alice", ("token", "kvm1"), ("open", "10.0.0.1")])
CALLS = some.lists(some.tuples(KEYS, some.floats(0.5, 30), some.floats(0, 5)), max_size=30)


@given(CALLS)
@settings(max_examples=25)
def test_they_limit_as_those_of_one_process(calls: list[tuple[object, float, float]]) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        shared = SharedLimits(Path(folder) / "limits")
    limits = [RateLimit(1, clock, buckets) for buckets in (OwnBuckets(), shared.buckets("requests"))]
    for key, amount, passed_s in calls:
        clock.now_s += passed_s
        own, ours = (limit.ask(key, amount) for limit in limits)
        assert own == pytest.approx(ours)


def test_of_more_keys_than_there_is_room_the_longest_unused_is_forgotten(file: Path) -> None:
    buckets = SharedLimits(file).buckets("requests")
    for number in range(40_000):
        buckets.set(number, 0.0, float(number + 1))
    assert buckets.read(39_999) == (0.0, 40_000.0)
    assert buckets.read(0) is None


@contextmanager
def another_process(file: Path) -> Iterator[subprocess.Popen[str]]:
    """One that is in the gate and has a lock."""
    command = [sys.executable, "-c", PROGRAM, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        try:
            yield process
        finally:
            process.kill()


def test_one_process_at_a_time_has_the_turn_and_one_that_is_killed_gives_it_back(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manager.shared_limits._GATE_WAIT_S", 0.05)
    shared = SharedLimits(file)
    turns = Turns(gate=shared.gate)
    with another_process(file) as other:
        with pytest.raises(Busy, match="try again"), turns.turn():
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        with turns.turn(), shared.locked(0):
            pass
    with turns.turn():
        pass
