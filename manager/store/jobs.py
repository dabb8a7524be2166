"""The manager's scheduled jobs, each run once in the fleet however many managers there are.

Every manager asks for each job in time; the first one takes the job's lock, notes in the database that it began, and
runs it. For the others the job is done until its period is over.

When a period is over is judged by steady time, because no two clocks agree and any may be set. The database tells a
manager only *that* the job began since it last looked, and its own monotonic clock how long ago it looked. So a job
runs within two periods of the last time, and still once a period, wherever clocks jump. Only a manager that looks for
the first time relies on the date, unless that is of the future.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial

from manager.errors import DatabaseUnavailable
from manager.steady import Every, SteadyScheduler
from manager.store.database import Database
from manager.store.host_models import JobRow

_ASKED_S = 60.0  # at least so often a manager asks for a job: the one that ran it may be gone
_EARLY = 0.9  # of a period; managers do not ask at the same moments
_POOL = "jobs"
_AT_EASE_S = 1.0  # a job that takes no longer is in nobody's way
_LONGEST_REST_S = 1.0
_GAP = 2.5  # periods without a run, after which it was not run in time

log = logging.getLogger(__name__)


class JobResult(StrEnum):
    """The result of asking for a job. ``ELSEWHERE``: another manager runs it, or did in this period."""

    DONE = "done"
    ELSEWHERE = "elsewhere"
    PUT_OFF = "put_off"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, at ``now``. The fleet has run it in time ``since`` then; ``stopped``: it is to end early.

    A job of many transactions asks ``rested`` in place of ``stopped``, before each: it says the same, after a rest.
    """

    now: datetime
    since: datetime
    stopped: Callable[[], bool] = lambda: False
    rested: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Job:
    """``act`` is called every ``period_s`` seconds, and returns how many rows it made, changed or removed."""

    name: str
    period_s: float
    act: Callable[[Run], int]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job that was asked for, the result, and how many seconds it took."""

    job: str
    result: JobResult
    took_s: float


@dataclass(frozen=True, slots=True)
class _SeenRun:
    """When a job began by the database, and since when on this manager's steady clock the database has said so."""

    began_at: datetime
    steady_s: float


class Rests:
    """Says whether a job is to end early, after a rest where it takes long.

    It rests for as long as it worked since the rest before, at most a second: reports and pages come first, also where
    much is to be rolled up at once, as after an outage of all managers.
    """

    def __init__(self, stop: threading.Event, steady: Callable[[], float]) -> None:
        self._stop, self._steady = stop, steady
        self._begun_s = self._rested_s = steady()

    def __call__(self) -> bool:
        now_s = self._steady()
        if now_s - self._begun_s > _AT_EASE_S:
            self._stop.wait(min(now_s - self._rested_s, _LONGEST_REST_S))
        self._rested_s = self._steady()
        return self._stop.is_set()


class Jobs:
    """Asks for jobs in the background, at once and then in time. A mistake in one ends only that run of it."""

    def __init__(
        self,
        database: Database,
        jobs: Sequence[Job],
        clock: Callable[[], float],
        ended: Callable[[JobEnd], None] = lambda _end: None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` returns seconds since the epoch, ``steady`` seconds that only grow.

        ``ended`` is called at each end, from several threads.
        """
        self._database = database
        self._jobs = tuple(jobs)
        self._clock = clock
        self._ended = ended
        self._steady = steady
        self._seen: dict[str, _SeenRun] = {}
        self._stop = threading.Event()
        self._scheduler = SteadyScheduler({_POOL: max(len(jobs), 1)})

    def start(self) -> None:
        """Begin. Those that are asked for equally often take turns: requests would wait for all of them at once."""
        asked: dict[float, list[Job]] = {}
        for job in self._jobs:
            asked.setdefault(min(job.period_s, _ASKED_S), []).append(job)
        for period_s, alike in asked.items():
            for place, job in enumerate(alike):
                every = Every(period_s, at_once=True, turn_s=period_s * place / len(alike))
                self._scheduler.add(job.name, partial(self.ask, job), every, _POOL)
        self._scheduler.start()

    def close(self) -> None:
        """End, once the running jobs have."""
        self._stop.set()
        self._scheduler.stop()

    def ages_s(self) -> dict[str, float]:
        """How long ago each job last began in the fleet, as far as this manager saw, by its steady clock."""
        now_s = self._steady()
        return {name: now_s - seen.steady_s for name, seen in tuple(self._seen.items())}

    def ask(self, job: Job) -> JobResult:
        """Run a job, unless another manager does or did."""
        begin_s = time.monotonic()
        try:
            result = self._do(job)
        except DatabaseUnavailable as error:
            log.warning("%s: put off: %s", job.name, error)
            result = JobResult.PUT_OFF
        except Exception as error:  # a mistake in one run must not end the job for good
            log.exception("%s failed: %r", job.name, error)
            result = JobResult.FAILED
        self._ended(JobEnd(job.name, result, time.monotonic() - begin_s))
        return result

    def _do(self, job: Job) -> JobResult:
        with self._database.alone(f"job {job.name}") as alone:
            since = self._begin(job) if alone and not self._stop.is_set() else None
            if since is None:
                return JobResult.ELSEWHERE
            now = self._now()
            count = job.act(Run(now, since, self._stop.is_set, Rests(self._stop, time.monotonic)))
        log.log(logging.INFO if count else logging.DEBUG, "%s: %d rows", job.name, count)
        return JobResult.DONE

    def _begin(self, job: Job) -> datetime | None:
        """Note that it begins; returns since when it has been run in time, None where it was run in this period."""
        now, steady_s = self._now(), self._steady()
        with self._database.writing() as session:
            row = session.get(JobRow, job.name)
            if row is None:
                row = JobRow(name=job.name, began_at=now, since=now)
                session.add(row)
            else:
                age_s = self._age_s(row, now, steady_s)
                if age_s is not None and age_s < _EARLY * job.period_s:
                    return None
                if age_s is None or age_s > _GAP * job.period_s or row.since > now:
                    row.since = now
            row.began_at, since = now, row.since
        self._seen[job.name] = _SeenRun(now, steady_s)
        return since

    def _age_s(self, row: JobRow, now: datetime, steady_s: float) -> float | None:
        """How long ago the job last began, in steady seconds; None: unknown."""
        seen = self._seen.get(row.name)
        if seen is None:
            age_s = (now - row.began_at).total_seconds()
            if age_s < 0:
                return None
            self._seen[row.name] = _SeenRun(row.began_at, steady_s - age_s)
            return age_s
        if seen.began_at != row.began_at:
            # Another manager began it at some time since the last look.
            self._seen[row.name] = _SeenRun(row.began_at, steady_s)
            return 0.0
        return steady_s - seen.steady_s

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)
