"""The parent of a manager's workers: what it does where they end, hang, or do not start, and their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from manager.api.worker_share import WorkerShare
from manager.cli.manager_worker import ALIVE, HANGS, READY
from manager.cli.manager_workers import Supervisor, workers_of
from manager.errors import EquipoiseError, SettingsError
from manager.notify import Notifier
from manager.serving.door import GuestLimits
from manager.serving.edge import EdgeLimits
from manager.serving.exchange import MAX_BODY_BYTES
from manager.settings import load_settings

POSTGRESQL = "postgresql://db/equipoise"


@pytest.mark.parametrize(
    ("given", "cpus", "count"),
    [
        ({"database_url": POSTGRESQL}, 4, 4),
        ({"database_url": POSTGRESQL}, 64, 8),
        ({"database_url": POSTGRESQL, "workers": 12}, 4, 12),
        ({"database_url": POSTGRESQL, "workers": 1}, 4, 1),
        ({}, 4, 1),
        ({"workers": 1}, 4, 1),
    ],
)
def test_how_many_serve(given: Mapping[str, str | int], cpus: int, count: int) -> None:
    assert workers_of(load_settings(None, {}, given), cpus) == count


def test_sqlite_has_one_and_says_why() -> None:
    with pytest.raises(SettingsError, match=r"workers = 2 \(from flag --workers\) .*SQLite.*allowed: 0 or 1"):
        workers_of(load_settings(None, {}, {"workers": 2}), 4)


def test_each_has_its_part_of_what_is_limited() -> None:
    share = WorkerShare(1, 3, (), Path())
    assert [share.of(32), share.of(1), share.of(8, 4)] == [11, 1, 4]
    guests = GuestLimits(address=64, all=512).shared_by(3)
    assert (guests.address, guests.all) == (22, 171)
    assert EdgeLimits().shared_by(64).held_bytes == MAX_BODY_BYTES


class Fake:
    """A process that does what the test says."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.killed = self.asked = False
        self.words, self._write = os.pipe()
        os.set_blocking(self.words, False)

    def say(self, word: str) -> None:
        os.write(self._write, f"{word}\n".encode())

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.asked, self.status = True, 0

    def kill(self) -> None:
        self.killed, self.status = True, -9

    def close(self) -> None:
        os.close(self._write)


class Told(Notifier):
    """What systemd is told."""

    def __init__(self) -> None:
        super().__init__({"WATCHDOG_USEC": "40000000"})
        self.lines: list[str] = []

    def ready(self, status: str = "") -> None:
        self.lines.append(f"ready: {status}")

    def alive(self, status: str = "") -> None:
        self.lines.append(status)


class Site:
    """A supervisor of fakes, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.started: list[tuple[int, Fake]] = []
        self.ended: list[int] = []
        self.told = Told()
        self.supervisor = Supervisor(2, self._spawn, self.told, self.ended.append, lambda: self.now_s)

    def _spawn(self, number: int) -> tuple[Fake, int]:
        fake = Fake(100 + len(self.started))
        self.started.append((number, fake))
        return fake, fake.words

    def look(self, after_s: float = 0.2) -> None:
        self.now_s += after_s
        self.supervisor.look()

    def fake(self, place: int) -> Fake:
        return self.started[place][1]

    def serve(self) -> None:
        self.look()
        for _, fake in self.started:
            fake.say(READY)
        self.look()

    def numbers(self) -> list[int]:
        return [number for number, _ in self.started]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.supervisor.stop()
    for _, fake in site.started:
        fake.close()


def test_systemd_is_told_once_all_serve(site: Site) -> None:
    site.look()
    assert site.numbers() == [0, 1]
    site.fake(0).say(READY)
    site.look()
    assert "ready: serving with 2 workers" not in site.told.lines
    site.fake(1).say(READY)
    site.look()
    assert site.told.lines.count("ready: serving with 2 workers") == 1
    site.look(11)
    assert site.told.lines[-1] == "2 of 2 workers serve"


def test_one_that_ends_before_all_served_ends_the_start(site: Site) -> None:
    site.look()
    site.fake(1).status = 1
    with pytest.raises(EquipoiseError, match="worker 1 ended with status 1 before it served"):
        site.look()
    site.supervisor.workers.pop(1)


def test_one_that_ends_is_replaced_at_once_and_then_more_and_more_slowly(site: Site) -> None:
    site.serve()
    gaps_s = []
    for _ in range(4):
        site.fake(-1).status = -9
        ended_s, count = site.now_s, len(site.started)
        while len(site.started) == count:
            site.look()
        gaps_s.append(site.now_s - ended_s)
    assert site.numbers() == [0, 1, 1, 1, 1, 1]
    assert gaps_s[0] < 0.5
    assert gaps_s[1] < gaps_s[2] < gaps_s[3]
    assert site.ended == [101, 102, 103, 104]


HANGING: tuple[Callable[[Site], None], ...] = (
    lambda site: site.fake(0).say(f"{HANGS}no thread was free for 31 s"),
    lambda site: site.look(31),
)


@pytest.mark.parametrize("hang", HANGING)
def test_one_that_hangs_is_ended_and_replaced(site: Site, hang: Callable[[Site], None]) -> None:
    site.serve()
    hang(site)
    site.fake(1).say(ALIVE)
    site.look()
    site.look()
    assert site.fake(0).killed
    assert site.numbers()[2:3] == [0]


def test_they_are_renewed_one_by_one_each_once_its_successor_serves(site: Site) -> None:
    site.serve()
    site.supervisor.renew()
    site.look()
    assert site.numbers() == [0, 1, 0]
    assert not site.fake(0).asked
    site.fake(2).say(READY)
    site.look()
    assert site.fake(0).asked
    site.look()
    assert site.numbers() == [0, 1, 0, 1]
    assert not site.fake(1).asked
    site.fake(3).say(READY)
    site.look()
    assert site.fake(1).asked
    site.look()
    assert site.numbers() == [0, 1, 0, 1]


def test_where_a_new_one_cannot_start_the_old_ones_stay(site: Site) -> None:
    site.serve()
    site.supervisor.renew()
    site.look()
    site.fake(2).status = 1
    site.look()
    site.look()
    assert site.numbers() == [0, 1, 0]
    assert not any(site.fake(place).asked for place in (0, 1))
