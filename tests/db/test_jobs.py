"""Scheduled jobs: once in the fleet, again next time, and what they leave to the others; and silent hosts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter

import pytest
from sqlalchemy import select, text, update

from manager.errors import DatabaseUnavailable
from manager.model.registration import HostSpec
from manager.steady import Every, SteadyScheduler, SteadyZone
from manager.store.database import Database, open_database
from manager.store.hosts import put_host
from manager.store.jobs import Job, JobEnd, JobResult, Jobs, Rests, Run
from manager.store.models import EventRow, HostRow
from manager.store.silent_hosts import SilenceWatch, ranks_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AFTER = timedelta(seconds=30)
DONE, ELSEWHERE, PUT_OFF, FAILED = JobResult.DONE, JobResult.ELSEWHERE, JobResult.PUT_OFF, JobResult.FAILED


class Fleet:
    """Managers on one database with one clock; ``ran`` are the runs of their job, which lasts a minute."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = NOW
        self.ran: list[Run] = []
        self.ends: list[JobEnd] = []
        self.job = Job("tidy", 60.0, self.act)
        self.fails = False

    def clock(self) -> float:
        return self.now.timestamp()

    def act(self, run: Run) -> int:
        self.ran.append(run)
        if self.fails:
            raise ZeroDivisionError("a mistake")
        return 1

    def manager(self, database: Database | None = None) -> Jobs:
        return Jobs(database or self.database, [self.job], self.clock, self.ends.append)

    def at(self, second: float) -> Jobs:
        self.now = NOW + timedelta(seconds=second)
        return self.manager()


@pytest.fixture
def fleet(database: Database) -> Fleet:
    return Fleet(database)


def test_a_job_is_done_once_a_period_by_whoever_asks_first(fleet: Fleet) -> None:
    asked = [0, 0.5, 30, 59.9, 60.1, 90, 150, 400]
    assert [fleet.at(second).ask(fleet.job) for second in asked] == [
        *(DONE, ELSEWHERE, ELSEWHERE),
        *(DONE, ELSEWHERE, ELSEWHERE),
        *(DONE, DONE),
    ]
    assert [(run.now - NOW).total_seconds() for run in fleet.ran] == [0, 59.9, 150, 400]


def test_a_job_knows_since_when_it_was_run_in_time(fleet: Fleet) -> None:
    for second in (0, 60, 120, 400, 460, 100):
        fleet.at(second).ask(fleet.job)
    assert [(run.since - NOW).total_seconds() for run in fleet.ran] == [0, 0, 0, 400, 400, 100]


JUMPS_S = [-2 * 3600.0, 2 * 3600.0, -365 * 86_400.0, 365 * 86_400.0]


class Site:
    """Managers on one database, each with a clock of its own that may be set, and one monotonic time for all."""

    def __init__(self, database: Database, clocks_s: dict[str, float]) -> None:
        self.steady_s = 1000.0
        self.clocks_s = dict(clocks_s)
        self.ran: list[tuple[float, str]] = []
        self.managers = {name: self._manager(database, name) for name in clocks_s}

    def _manager(self, database: Database, name: str) -> tuple[Jobs, Job]:
        def act(_run: Run) -> int:
            self.ran.append((self.steady_s - 1000, name))
            return 0

        def wall() -> float:
            return NOW.timestamp() + self.clocks_s[name] + self.steady_s

        job = Job("tidy", 60.0, act)
        return Jobs(database, [job], wall, steady=lambda: self.steady_s), job

    def ask(self, second: float, name: str) -> None:
        self.steady_s = 1000.0 + second
        jobs, job = self.managers[name]
        assert jobs.ask(job) in {DONE, ELSEWHERE}


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_clock_that_jumps_keeps_no_job_waiting_and_runs_none_twice(database: Database, jump_s: float) -> None:
    site = Site(database, {"a": 0.0})
    for second in range(0, 600, 20):
        if second == 300:
            site.clocks_s["a"] += jump_s
        site.ask(second, "a")
    assert site.ran == [(float(second), "a") for second in range(0, 600, 60)]


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_managers_whose_clocks_differ_run_a_job_once_a_period(database: Database, jump_s: float) -> None:
    site = Site(database, {"a": 0.0, "b": jump_s})
    for second in range(0, 600, 20):
        site.ask(second, "a")
        site.ask(second + 10, "b")
    # The second one cannot tell at its first look when the first one did it.
    later = [when for when, _ in site.ran if when >= 60]
    assert 8 <= len(later) <= 10
    gaps = [after - before for before, after in itertools.pairwise(later)]
    assert min(gaps) >= 0.9 * 60
    assert max(gaps) <= 2 * 60


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_manager_takes_over_from_one_with_another_clock(database: Database, jump_s: float) -> None:
    site = Site(database, {"a": 0.0, "b": jump_s})
    site.ask(0, "a")
    site.ask(10, "b")
    for second in range(60, 300, 20):
        site.ask(second, "b")
    whens = [when for when, _ in site.ran]
    assert max(after - before for before, after in itertools.pairwise(whens)) <= 2 * 60
    jobs, _ = site.managers["b"]
    assert jobs.ages_s() == {"tidy": site.steady_s - 1000 - whens[-1]}


def test_a_mistake_is_counted_and_the_job_goes_on_next_time(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.fails = True
    assert fleet.at(0).ask(fleet.job) is FAILED
    assert "tidy failed: ZeroDivisionError('a mistake')" in caplog.text
    fleet.fails = False
    assert fleet.at(60).ask(fleet.job) is DONE, "nobody holds its lock any more"
    assert [(end.job, end.result) for end in fleet.ends] == [("tidy", FAILED), ("tidy", DONE)]


def test_without_a_database_a_job_is_put_off(fleet: Fleet, new_url: Callable[[str], str]) -> None:
    empty = open_database(new_url("sqlite"))
    assert fleet.manager(empty).ask(fleet.job) is PUT_OFF
    empty.close()
    assert fleet.ran == []


def test_while_one_manager_is_at_it_no_other_begins_however_long_it_takes(migrated: Callable[[str], Database]) -> None:
    fleet = Fleet(migrated("postgresql"))
    begun, end = threading.Event(), threading.Event()

    def act(run: Run) -> int:
        begun.set()
        assert end.wait(120)
        return 0

    long = Job("tidy", 60.0, act)
    first = threading.Thread(target=fleet.manager().ask, args=[long])
    first.start()
    assert begun.wait(120)
    assert fleet.at(600).ask(fleet.job) is ELSEWHERE
    assert fleet.manager().ask(Job("other", 60.0, fleet.act)) is DONE, "of another name"
    end.set()
    first.join()
    assert fleet.manager().ask(fleet.job) is DONE


def test_a_manager_that_dies_leaves_its_job_to_the_others(migrated: Callable[[str], Database]) -> None:
    database = migrated("postgresql")
    fleet = Fleet(database)
    with pytest.raises(DatabaseUnavailable, match="terminat"), database.alone("job tidy") as alone:
        assert alone
        assert fleet.at(0).ask(fleet.job) is ELSEWHERE
        with database.writing() as session:
            others = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            session.execute(text(others))
        assert fleet.at(60).ask(fleet.job) is DONE


def test_a_job_that_takes_long_leaves_half_of_the_time_to_all_else() -> None:
    now_s, rests = 100.0, []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            assert timeout is not None
            rests.append(timeout)
            now_s += timeout
            return False

    stop = Stop()
    stopped = Rests(stop, lambda: now_s)
    for works_s in (0.4, 0.5, 0.25, 0.25, 5.0):
        now_s += works_s
        assert not stopped()
    assert rests == [0.25, 0.25, 1.0], "not in its first second, and at most a second"
    stop.set()
    assert stopped()


@pytest.mark.parametrize("asks", [attrgetter("stopped"), attrgetter("rested")], ids=["stopped", "rested"])
def test_jobs_run_in_the_background_until_told_to_stop(fleet: Fleet, asks: Callable[[Run], Callable[[], bool]]) -> None:
    ran = threading.Event()
    stopped: list[bool] = []

    def act(run: Run) -> int:
        ran.set()
        while not asks(run)():
            threading.Event().wait(0.01)
        stopped.append(True)
        return 0

    jobs = Jobs(fleet.database, [Job("long", 60.0, act)], fleet.clock)
    jobs.start()
    assert ran.wait(120)
    jobs.close()
    assert stopped == [True]


def test_jobs_of_the_same_period_take_turns(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    added: dict[str, list[float]] = {}

    def add(_self: SteadyScheduler, name: str, _job: object, trigger: Every, _pool: str) -> None:
        begin = SteadyZone().now()
        first = trigger.get_next_fire_time(None, begin)
        second = trigger.get_next_fire_time(first, first)
        added[name] = [(time - begin).total_seconds() for time in (first, second)]

    monkeypatch.setattr(SteadyScheduler, "add", add)
    periods_s = {"often": 5.0, "one": 60.0, "two": 60.0, "hourly": 3600.0}
    jobs = Jobs(fleet.database, [Job(name, period_s, fleet.act) for name, period_s in periods_s.items()], fleet.clock)
    jobs.start()
    jobs.close()
    assert added == {"often": [0, 5], "one": [0, 60], "two": [0, 80], "hourly": [0, 100]}, "which is asked for as often"


def host(database: Database, name: str, second: float | None) -> None:
    """A host that reported last so many seconds after noon."""
    with database.registering() as session:
        row, _ = put_host(session, HostSpec(name), NOW, lambda _etag: None)
        row.last_seen_at = None if second is None else NOW + timedelta(seconds=second)


class Looking:
    """A manager that looks for silent hosts; its clock may be ``ahead`` by so many seconds of what passes."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.second = 0.0
        self.ahead = 0.0
        self.watch = SilenceWatch(AFTER, lambda: self.second)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.second + self.ahead)

    def report(self, *names: str) -> None:
        with self.database.writing() as session:
            session.execute(update(HostRow).where(HostRow.name.in_(names)).values(last_seen_at=self.now))

    def noted(self, second: float, since: float = -3600) -> list[tuple[str, str]]:
        """Host and kind of the events that are new."""
        self.second = second
        count = self.watch.look(self.database, self.now, NOW + timedelta(seconds=since))
        with self.database.reading() as session:
            newest = select(EventRow).order_by(EventRow.id.desc()).limit(count)
            return sorted((event.host, event.kind) for event in session.scalars(newest))


@pytest.fixture
def looking(database: Database) -> Looking:
    return Looking(database)


def test_a_silent_host_is_told_of_once_and_once_that_it_is_back(database: Database, looking: Looking) -> None:
    for name, second in (("a", 0), ("b", 25), ("never", None)):
        host(database, name, second)
    assert looking.noted(30) == []
    assert looking.noted(31) == [("a", "host-silent")]
    assert looking.noted(36) == []
    assert looking.noted(56) == [("b", "host-silent")]
    looking.second = 65
    looking.report("a")
    assert looking.noted(66) == [("a", "host-back")]
    assert looking.noted(67) == []
    assert looking.noted(96) == []
    assert looking.noted(97) == [("a", "host-silent")], "again, counted from when that was seen"
    with database.reading() as session:
        assert dict(session.execute(select(HostRow.name, HostRow.silent)).all()) == {
            "a": True,
            "b": True,
            "never": False,
        }


def test_silence_while_nobody_listened_does_not_count(database: Database, looking: Looking) -> None:
    host(database, "a", 0)
    assert looking.noted(3600, since=3575) == []
    assert looking.noted(3605, since=3575) == []
    assert looking.noted(3606, since=3575) == [("a", "host-silent")]


def test_a_manager_that_takes_over_takes_no_old_report_for_a_new_one(database: Database, looking: Looking) -> None:
    host(database, "a", 0)
    other = Looking(database)
    assert looking.noted(1) == []
    looking.second = 10
    looking.report("a")
    assert [other.noted(second) for second in (20, 40, 41)] == [[], [], [("a", "host-silent")]]
    assert looking.noted(60) == [], "it reported since this one looked, but is silent"
    looking.report("a")
    assert looking.noted(65) == [("a", "host-back")]


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_clock_that_is_set_makes_no_host_silent_and_hides_none(
    database: Database, looking: Looking, jump_s: float
) -> None:
    for name in ("lives", "dies"):
        host(database, name, 0)
    events = []
    for second in range(5, 200, 5):
        looking.second = second
        if second == 50:
            looking.ahead = jump_s
        looking.report("lives", *(["dies"] if second < 100 else []))
        events += [(second, *event) for event in looking.noted(second)]
    assert events == [(130, "dies", "host-silent")]


def test_how_much_hosts_can_be_relied_on(database: Database, looking: Looking) -> None:
    for name, second in (("a", 0), ("b", 600), ("never", None)):
        host(database, name, second)

    def ranks(second: float) -> list[int]:
        with database.reading() as session:
            found = ranks_of(session, ["a", "b", "never", "unknown"], NOW + timedelta(seconds=second))
        return [found[name] for name in ("a", "b", "never", "unknown")]

    assert ranks(0) == [0, 0, 2, 2]
    for second in (0, 20, 31, 50, 70, 90):
        looking.second = second
        looking.report("b")
        looking.noted(second)
    assert ranks(31) == [2, 0, 2, 2]
    looking.second = 100
    looking.report("a")
    looking.noted(100)
    assert ranks(100) == ranks(159) == [1, 0, 2, 2], "it may fall silent again"
    assert ranks(160) == [0, 0, 2, 2]
    assert ranks(-3600) == [0, 0, 2, 2], "nor for as long as a clock was set back"
