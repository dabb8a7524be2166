"""Whether a job can be agreed at all: what its VM can use until the deadline. Pure."""

from __future__ import annotations

import math

from manager.model.fields import timestamp
from manager.model.job import BatchJob


def objection(job: BatchJob, pcpus: float | None, now_s: float, done_cpu_s: float = 0.0) -> tuple[str, str] | None:
    """The field of the job that cannot be agreed, and why; None: it can.

    ``pcpus``: CPU seconds a second that its VM can use at most, None: unknown; ``now_s`` is seconds since the epoch;
    ``done_cpu_s``: of the work, what is done already.
    """
    if job.alone_pcpus is not None and pcpus is not None and job.alone_pcpus > pcpus:
        return "alone_pcpus", f"{job.alone_pcpus:g} is refused; its VM can use {pcpus:g} pCPUs at most"
    if job.deadline_s is None or job.cpu_seconds is None:
        return None
    left_s = job.deadline_s - now_s
    if left_s <= 0:
        return "deadline", f"{_time(job.deadline_s)} is refused; it is not after now, {_time(now_s)}"
    if pcpus is None:
        return None
    most_cpu_s = pcpus * left_s + done_cpu_s
    if job.cpu_seconds > most_cpu_s:
        done = f" and {done_cpu_s:.0f} are done" if done_cpu_s else ""
        return "cpu_seconds", (
            f"{job.cpu_seconds:.10g} is refused; use at most {math.floor(most_cpu_s)}: its VM can use {pcpus:g} pCPUs"
            f" for the {left_s:.0f} s until {_time(job.deadline_s)}{done}"
        )
    return None


def _time(time_s: float) -> str:
    return timestamp(time_s).isoformat(timespec="seconds").replace("+00:00", "Z")
