"""Many runs side by side, on all cores."""

from __future__ import annotations

import os
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
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        for _ in as_completed(futures):
            on_done()
        return [future.result() for future in futures]


def one_by_one(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """The same in this process: where another would cost more than it saves, or is not to be had."""
    outcomes: list[Outcome] = []
    for job in jobs:
        outcomes.append(function(job))
        on_done()
    return outcomes
