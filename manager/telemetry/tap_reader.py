"""Response times at the taps of VMs: one program for all sources of this host, and for the services in its VMs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from manager.control.busiest_port import PortChoice
from manager.control.service_history import begun, continued, forgotten, increase, services_in
from manager.errors import HostError
from manager.host.taps import AnswerCounts, TapProgram
from manager.model.histogram import Histogram, bucket_of
from manager.model.source import Tap
from manager.model.traffic import Answered, HostServices, JudgedService, ServicePlace, ServiceTraffic
from manager.model.units import percent
from manager.telemetry.feed import Feed, until_next_s

MOST_S = 1.0
"""It is read at least so often for sources, whatever the length of windows."""
FIND_S = 5.0
"""It is read so often for the services in VMs."""
_NOTABLE = 0.1
_ROUNDED = 1e-5  # times since the epoch are exact to less than a microsecond
_MOST_REASON = 500
_NO_TAP = "no running VM has a tap: the packets of their interfaces do not pass the host's kernel where it can be seen"

Load = Callable[[], TapProgram]
_OwnedAs = tuple[str, int]
"""What an interface is part of, a domain or an application, and its index."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapRoute:
    """A source with the network interfaces of its application's VMs, by their indexes.

    ``late_us``: a response time above it violates the SLA; None: there is none. ``late_share``: the share of answers
    that the SLA allows to be late, 0 .. 1. ``slot_s``: the length of its windows. ``released``: nothing is done where
    they are late.
    """

    source: Tap
    feed: Feed
    interfaces: frozenset[int]
    late_us: float | None
    slot_s: float
    late_share: float = 0.0
    released: bool = False

    @property
    def name(self) -> tuple[str, str]:
        """Of the application and of the source."""
        return self.feed.application, self.feed.source

    def ends_slot(self, end_s: float, every_s: float) -> bool:
        """Whether the reading at ``end_s`` is the last one of its window, of readings ``every_s`` apart."""
        left_s = math.ceil(end_s / self.slot_s) * self.slot_s - end_s
        return left_s < (1 - _ROUNDED) * every_s


@dataclass(frozen=True, slots=True)
class JudgedServices:
    """The services of which late answers are counted, and their counters, in the same order."""

    routes: Mapping[ServicePlace, TapRoute]
    services: tuple[JudgedService, ...]
    counts: AnswerCounts


class TapReader:
    """Reads the program for all sources, and for the services in VMs.

    Belongs to one asyncio loop, but for ``routes``, ``find`` and ``services``.
    """

    def __init__(self, load: Load, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic) -> None:
        """``load`` makes the program, which may take a second; ``clock`` returns seconds since the epoch, ``steady``
        seconds that only grow.
        """
        self._load = load
        self._clock = clock
        self._steady = steady
        self._domains: Mapping[int, str] = {}
        self._owners: Mapping[_OwnedAs, str] = {}
        self._before: Mapping[ServicePlace, ServiceTraffic] = {}
        self._history = begun(steady())
        self._chosen: Mapping[tuple[str, str], PortChoice] = {}
        self._chosen_s = steady()
        self.routes: tuple[TapRoute, ...] = ()
        self.every_s = MOST_S
        self.services = HostServices()
        """The services in VMs, as last read."""
        self._judged: JudgedServices | None = None
        self._loading: asyncio.Future[TapProgram] | None = None

    def find(self, taps: Mapping[str, frozenset[int]]) -> None:
        """Look for services behind these interfaces, by the UUIDs of their domains."""
        self._domains = {interface: domain for domain, interfaces in taps.items() for interface in interfaces}
        if not self._domains:
            self.services = HostServices(problem=_NO_TAP if taps else "")

    def answered(self) -> Answered:
        """Until now, of the services of applications with an SLA, but for released ones.

        Of any thread; takes microseconds.
        """
        judged = self._judged
        return Answered(judged.services, judged.counts.read(), judged.counts) if judged else Answered()

    @property
    def wanted(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.routes or self._domains)

    async def run(self) -> None:
        """Until cancelled. Raises HostError where the kernel does not take the program, or does not answer."""
        program = await self._loaded()
        self._owners = {}
        self._before = {}
        self._history = begun(self._steady())
        with closing(program):
            try:
                self._read(program, self._clock())
                while True:
                    now_s = self._clock()
                    wait_s = until_next_s(now_s, self.every_s)
                    await asyncio.sleep(wait_s)
                    self._read(program, min(now_s + wait_s, self._clock()))  # the clock may have been set back
            finally:
                self._judged = None

    async def _loaded(self) -> TapProgram:
        """The program. What was being loaded as the last run was cancelled is taken: two at a time are one too many.

        Raises HostError.
        """
        loading, self._loading = self._loading, None
        if loading is None or loading.done():  # then it is about to be closed
            loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        else:
            loading.remove_done_callback(_close)
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close)
            self._loading = loading
            raise

    def failing(self, reason: str) -> None:
        """No source can work now, and no service can be seen."""
        for route in self.routes:
            route.feed.failing(reason)
        if self._domains:
            self.services = HostServices(problem=reason[:_MOST_REASON])

    def _read(self, program: TapProgram, end_s: float) -> None:
        """Count what was answered until ``end_s``, and since the reading before."""
        routes, domains = self.routes, self._domains
        self._forget_former(program, _owners(routes, domains))
        problems = _attach(program, frozenset(domains).union(*(route.interfaces for route in routes)))
        traffic = program.traffic()
        now = {(seen.interface, seen.port): seen for seen in traffic}
        chosen = self._choose([route for route in routes if route.source.port is None], now)
        served = {place: route for route in routes for place in _places(route, chosen, now)}
        self._judge(program, served)
        for route in routes:
            _report(route, problems)
            places = _places(route, chosen, now)
            passed = [increase(now[place], self._before.get(place)) for place in places]
            late = [_late(seen, route) for seen in passed] if route.ends_slot(end_s, self.every_s) else []
            _count(route.feed, passed, late, end_s)
            if late or not places or any(sum(seen.requests.values()) for seen in passed):
                route.feed.explain(_notes(route, passed, late))
        self._before = now
        self._find(traffic, domains, problems)

    def _forget_former(self, program: TapProgram, owners: Mapping[_OwnedAs, str]) -> None:
        """Forget what was counted at interfaces that belong to others now.

        A tap that libvirt has not made itself outlasts its VM, and has the same index for the next one.
        """
        moved = {key[1] for key, owner in owners.items() if self._owners.get(key, owner) != owner}
        for interface in moved & program.attached:
            program.detach(interface)  # and is attached again below
        if moved:
            self._before = {place: seen for place, seen in self._before.items() if place[0] not in moved}
            self._history = forgotten(self._history, moved)
        self._owners = {key: owner for key, owner in self._owners.items() if key[1] in program.attached} | dict(owners)

    def _judge(self, program: TapProgram, served: Mapping[ServicePlace, TapRoute]) -> None:
        """Have the program count what is late at these services, from now on."""
        before = self._judged.routes if self._judged else {}
        routes = {place: route for place, route in served.items() if route.late_us is not None and not route.released}
        for place in before.keys() - routes.keys():
            program.judge(*place, None)
        for place, route in routes.items():
            program.judge(*place, route.late_us)
        if routes != before:
            services = tuple(
                JudgedService(route.feed.application, place, route.late_share, (route.late_us or 0.0) / 1e6)
                for place, route in routes.items()
            )
            self._judged = JudgedServices(routes, services, program.answers(list(routes))) if routes else None

    def _choose(
        self, routes: Sequence[TapRoute], now: Mapping[ServicePlace, ServiceTraffic]
    ) -> Mapping[tuple[str, str], PortChoice]:
        """The port of each route that has none of its own."""
        now_s = self._steady()
        passed_s, self._chosen_s = now_s - self._chosen_s, now_s
        requests: dict[tuple[str, str], Counter[int]] = {route.name: Counter() for route in routes}
        for route in routes:
            for place, seen in now.items():
                if place[0] in route.interfaces:
                    passed = increase(seen, self._before.get(place))
                    requests[route.name][place[1]] += sum(passed.requests.values())
        before = self._chosen
        self._chosen = {
            name: before.get(name, PortChoice()).after(by_port, passed_s) for name, by_port in requests.items()
        }
        return self._chosen

    def _find(self, traffic: Sequence[ServiceTraffic], domains: Mapping[int, str], problems: Mapping[int, str]) -> None:
        """Take a reading of the services in VMs, where one is due."""
        now_s = self._steady()
        if not domains or now_s < self._history.latest.at_s + FIND_S - MOST_S / 2:
            return
        self._history = continued(self._history, traffic, domains, now_s, self._clock())
        problem = "; ".join(sorted({problems[interface] for interface in domains.keys() & problems.keys()}))
        if problem and not self.services.problem:
            log.warning("services of VMs cannot be seen: %s", problem)
        self.services = HostServices(services_in(self._history, domains), problem[:_MOST_REASON])


def _owners(routes: Sequence[TapRoute], domains: Mapping[int, str]) -> dict[_OwnedAs, str]:
    """Whose interfaces these are, as far as is known."""
    of_domains = {("domain", interface): domain for interface, domain in domains.items()}
    of_routes = {
        ("application", interface): route.feed.application for route in routes for interface in route.interfaces
    }
    return of_domains | of_routes


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


def _places(
    route: TapRoute, chosen: Mapping[tuple[str, str], PortChoice], now: Collection[ServicePlace]
) -> list[ServicePlace]:
    """Where a source's services were seen."""
    port = route.source.port or chosen[route.name].port
    return [(interface, port) for interface in sorted(route.interfaces) if port and (interface, port) in now]


def _report(route: TapRoute, problems: Mapping[int, str]) -> None:
    if not route.interfaces:
        route.feed.failing("no VM of the application that runs here has a tap: its packets cannot be seen")
    elif reasons := sorted({problems[interface] for interface in route.interfaces & problems.keys()}):
        route.feed.failing("; ".join(reasons))
    else:
        route.feed.working()


def _late(now: ServiceTraffic, route: TapRoute) -> Histogram:
    """The requests that wait longer than the SLA allows, with their ages: response times that can only get longer.

    Of each window that they wait through, they are part: a server that hangs violates its SLA, and answers nothing.
    """
    if route.late_us is None:
        return Histogram()
    too_long = bucket_of(route.late_us)
    return Histogram({bucket: count for bucket, count in now.waiting.buckets.items() if bucket > too_long})


def _count(feed: Feed, passed: Sequence[ServiceTraffic], late: Sequence[Histogram], end_s: float) -> None:
    """Count what passed since the reading before, of each VM, and what is late."""
    for seen in passed:
        feed.take(end_s, buckets=seen.times.buckets, requests=sum(seen.requests.values()))
        if seen.errors:
            feed.error("the server answered that it failed", seen.errors)
        if seen.unanswered:
            feed.error("a request was not answered", seen.unanswered)
    for waiting in late:
        if waiting.count:
            feed.take(end_s, buckets=waiting.buckets, requests=0)


def _notes(route: TapRoute, passed: Sequence[ServiceTraffic], late: Sequence[Histogram]) -> str:
    """What is to be known of these figures."""
    notes: list[str] = []
    if not passed:
        port = route.source.port
        notes.append("no service was seen yet" if port is None else f"nobody was seen to serve port {port}")
    if waiting := sum(histogram.count for histogram in late):
        notes.append(f"{waiting} requests wait, longer than the SLA allows")
    requests = sum(sum(seen.requests.values()) for seen in passed)
    untimed = sum(seen.untimed for seen in passed)
    if requests and untimed / requests > _NOTABLE:
        notes.append(f"{percent(untimed / requests)} of the requests cannot be timed: see docs/internals/taps.md")
    if route.source.port is None and passed:
        notes.append(f"the port with the most requests is {passed[0].port}")
    return "; ".join(notes)
