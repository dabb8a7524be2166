"""When requests are due: a Poisson process whose rate is constant within each phase."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from manager.load.spec import Phase


def arrivals(phases: Iterable[Phase], seed: int) -> Iterator[float]:
    """Ascending send times in seconds since the first phase began, a function of phases and seed alone.

    The exponential distribution has no memory, so drawing afresh where a phase begins keeps the process exact.
    """
    exponential = random.Random(seed).expovariate  # noqa: S311 - reproducible load, not a secret
    begin_s = 0.0
    for phase in phases:
        end_s = begin_s + phase.duration_s
        if phase.rate_rps > 0:
            at_s = begin_s
            while (at_s := at_s + exponential(phase.rate_rps)) < end_s:
                yield at_s
        begin_s = end_s
