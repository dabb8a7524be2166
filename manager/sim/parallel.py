"""Many runs side by side, on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def on_all_cores(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """What ``function``, of a module, returns for each job, in their order; ``on_done`` is called after each."""
    workers = min(len(jobs), len(os.sched_getaffinity(0)))
    if workers < 2:
        return one_by_one(function, jobs, on_done)
    # Not forked: the caller may have threads.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_when_interrupted)
    try:
        futures = [pool.submit(function, job) for job in jobs]
        for _ in as_completed(futures):
            on_done()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, too: those that have not begun are left out


def end_when_interrupted() -> None:
    """In a process of a pool: Ctrl-C ends it. Else it would be the result of a job, and the next one would begin."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def one_by_one(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """The same in this process: where another would cost more than it saves, or is not to be had."""
    outcomes: list[Outcome] = []
    for job in jobs:
        outcomes.append(function(job))
        on_done()
    return outcomes
