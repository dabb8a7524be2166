"""What the manager does by the clock, each job once in the fleet however many managers there are.

Every manager asks for each job in time; the first one that does takes the job's lock, notes in the database that it
began, and does it. For the others the job is done until its period is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from manager.errors import DatabaseUnavailable
from manager.store.database import Database
from manager.store.host_models import JobRow

_ASKED_S = 60.0  # at least so often a manager asks for a job: another one that had it may be gone
_EARLY = 0.9  # of a period; managers do not ask at the same moments
_GAP = 2.5  # periods without a run, after which it was not run in time

log = logging.getLogger(__name__)


class JobResult(StrEnum):
    """What came of asking for a job. ``ELSEWHERE``: another manager does it, or did it in this period."""

    DONE = "done"
    ELSEWHERE = "elsewhere"
    PUT_OFF = "put_off"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, at ``now``. The fleet has run it in time ``since`` then; ``stopped``: it is to end early."""

    now: datetime
    since: datetime
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Job:
    """``act`` is called every ``period_s`` seconds, and tells how many rows it made, changed or removed."""

    name: str
    period_s: float
    act: Callable[[Run], int]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job that was asked for, what came of it, and for how many seconds it was done."""

    job: str
    result: JobResult
    took_s: float


class Jobs:
    """Asks for jobs in the background, at once and then in time. A mistake in one ends only that run of it."""

    def __init__(
        self,
        database: Database,
        jobs: Sequence[Job],
        clock: Callable[[], float],
        ended: Callable[[JobEnd], None] = lambda _end: None,
    ) -> None:
        """``clock`` answers seconds since the epoch; ``ended`` is told of each end, from several threads."""
        self._database = database
        self._jobs = tuple(jobs)
        self._clock = clock
        self._ended = ended
        self._stop = threading.Event()
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(max(len(jobs), 1))},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self) -> None:
        """Begin."""
        for job in self._jobs:
            seconds = min(job.period_s, _ASKED_S)
            begin = datetime.now(UTC)
            self._scheduler.add_job(
                self.ask, "interval", [job], seconds=seconds, next_run_time=begin, id=job.name, name=job.name
            )
        self._scheduler.start()

    def close(self) -> None:
        """End, after what jobs do at once is done."""
        self._stop.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def ask(self, job: Job) -> JobResult:
        """Do a job, unless another manager does or did."""
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
            count = job.act(Run(now, since, self._stop.is_set))
        log.log(logging.INFO if count else logging.DEBUG, "%s: %d rows", job.name, count)
        return JobResult.DONE

    def _begin(self, job: Job) -> datetime | None:
        """Note that it begins, and tell since when it has been run in time; None: it was run in this period."""
        now, period = self._now(), timedelta(seconds=job.period_s)
        with self._database.writing() as session:
            row = session.get(JobRow, job.name)
            if row is None:
                row = JobRow(name=job.name, began_at=now, since=now)
                session.add(row)
            elif timedelta(0) <= now - row.began_at < _EARLY * period:
                return None
            elif not timedelta(0) <= now - row.began_at <= _GAP * period:  # before 0: the clock was put back
                row.since = now
            row.began_at = now
            return row.since

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)
