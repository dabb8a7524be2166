"""Response times at the taps of VMs: one program for all sources of this host, read when a window ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from manager.errors import HostError
from manager.host.taps import TapProgram
from manager.model.source import Tap
from manager.model.traffic import ServiceTraffic
from manager.telemetry.feed import Feed, until_next_s

MOST_S = 1.0
"""It is read at least so often, whatever the length of windows."""
_NOTABLE = 0.1

Load = Callable[[], TapProgram]
Place = tuple[int, int]
"""Interface and port."""


@dataclass(frozen=True, slots=True)
class TapRoute:
    """A source with the network interfaces of its application's VMs, by their indexes."""

    source: Tap
    feed: Feed
    interfaces: frozenset[int]


class TapReader:
    """Reads the program for all sources. Belongs to one asyncio loop, but for ``routes``."""

    def __init__(self, load: Load, clock: Callable[[], float]) -> None:
        """``load`` makes the program, which may take a second; ``clock`` returns seconds since the epoch."""
        self._load = load
        self._clock = clock
        self._before: Mapping[Place, ServiceTraffic] = {}
        self.routes: tuple[TapRoute, ...] = ()
        self.every_s = MOST_S

    async def run(self) -> None:
        """Until cancelled. Raises HostError where the kernel does not take the program, or does not answer."""
        loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        try:
            program = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close)
            raise
        self._before = {}
        with closing(program):
            self._read(program, self._clock())
            while True:
                now_s = self._clock()
                wait_s = until_next_s(now_s, self.every_s)
                await asyncio.sleep(wait_s)
                self._read(program, min(now_s + wait_s, self._clock()))  # the clock may have been set back

    def failing(self, reason: str) -> None:
        """No source can work now."""
        for route in self.routes:
            route.feed.failing(reason)

    def _read(self, program: TapProgram, end_s: float) -> None:
        """Count what was answered until ``end_s``, and since the reading before."""
        routes = self.routes
        problems = _attach(program, frozenset[int]().union(*(route.interfaces for route in routes)))
        now = {(traffic.interface, traffic.port): traffic for traffic in program.traffic()}
        for route in routes:
            _report(route, problems)
            for interface in route.interfaces:
                place = interface, route.source.port
                if place in now:
                    _count(route.feed, now[place], self._before.get(place), end_s)
        self._before = now


def _close(loading: asyncio.Future[TapProgram]) -> None:
    """A program that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()


def _attach(program: TapProgram, wanted: frozenset[int]) -> dict[int, str]:
    """Attach the program to these interfaces and no others. Returns why it could not be, by interface."""
    problems: dict[int, str] = {}
    for gone in program.attached - wanted:
        program.detach(gone)
    for new in wanted - program.attached:
        try:
            program.attach(new)
        except HostError as error:
            problems[new] = str(error)
    return problems


def _report(route: TapRoute, problems: Mapping[int, str]) -> None:
    if not route.interfaces:
        route.feed.failing("no VM of the application that runs here has a tap: its packets cannot be seen")
    elif reasons := sorted({problems[interface] for interface in route.interfaces & problems.keys()}):
        route.feed.failing("; ".join(reasons))
    else:
        route.feed.working()


def _count(feed: Feed, now: ServiceTraffic, before: ServiceTraffic | None, end_s: float) -> None:
    """Count the difference between two readings of a service."""
    had = before.times.buckets if before else {}
    times = {bucket: count - had.get(bucket, 0) for bucket, count in now.times.buckets.items()}
    requests = sum(now.requests.values()) - (sum(before.requests.values()) if before else 0)
    feed.take(end_s, buckets={bucket: count for bucket, count in times.items() if count}, requests=requests)
    failed = now.errors - (before.errors if before else 0)
    if failed:
        feed.error("the server answered that it failed", failed)
    unanswered = now.unanswered - (before.unanswered if before else 0)
    if unanswered:
        feed.error("a connection ended before the answer", unanswered)
    untimed = now.untimed - (before.untimed if before else 0)
    if requests:
        share = untimed / requests
        text = f"{share:.0%} of the requests cannot be timed: see docs/internals/taps.md"
        feed.explain(text if share > _NOTABLE else "")
