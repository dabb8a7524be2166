"""Random arrivals and service times, from generators of their own, so that every policy meets the same requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

from manager.sim.scenario import Constant, Segment, ServiceTime, Shape

SHORTEST_S = 1e-9
"""No request takes no CPU time at all."""


def random_stream(name: str) -> Random:
    """Random numbers that are always the same for a name, on any machine."""
    return Random(name)  # noqa: S311 - nothing secret


def arrivals(load: Sequence[Segment], random: Random) -> Iterator[float]:
    """Times in seconds, ascending, of a Poisson process whose rate follows ``load``, again and again.

    Varying rates are made by thinning (Lewis and Shedler 1979). Ends when no further request will come.
    """
    uniform, log = random.random, math.log
    begin_s = 0.0
    while any(segment.peak_rps > 0 for segment in load):
        for segment in load:
            end_s = begin_s + segment.for_s
            peak_rps = segment.peak_rps
            constant = isinstance(segment, Constant)
            at_s = begin_s if peak_rps > 0 else math.inf
            while True:
                at_s -= log(1.0 - uniform()) / peak_rps if peak_rps > 0 else 0.0
                if at_s >= end_s:
                    break
                if constant or uniform() * peak_rps < segment.rate_at(at_s - begin_s):
                    yield at_s
            begin_s = end_s
        if math.isinf(begin_s):
            return


def service_times(service: ServiceTime, random: Random) -> Callable[[], float]:
    """A function that draws CPU times in seconds."""
    mean_s = service.mean_ms / 1000
    if service.shape is Shape.DETERMINISTIC or (service.shape is Shape.LOGNORMAL and service.cv == 0):
        return lambda: mean_s
    uniform, log, exp, gauss = random.random, math.log, math.exp, random.gauss
    if service.shape is Shape.EXPONENTIAL:
        return lambda: SHORTEST_S - log(1.0 - uniform()) * mean_s
    sigma = math.sqrt(log(1 + service.cv**2))
    mu = log(mean_s) - sigma**2 / 2
    return lambda: SHORTEST_S + exp(gauss(mu, sigma))


def request_maker(services: Sequence[ServiceTime], random: Random) -> Callable[[], tuple[float, ...]]:
    """A function that draws the CPU times of a request in all tiers, in seconds."""
    draws = [service_times(service, random) for service in services]
    if len(draws) == 1:
        [draw] = draws
        return lambda: (draw(),)
    return lambda: tuple([draw() for draw in draws])
