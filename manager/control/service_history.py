"""Services in VMs over the last minute, from the counters of the program on taps, which only grow. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from manager.model.histogram import Histogram
from manager.model.traffic import MOST_SERVICES, SeenService, ServicePlace, ServiceTraffic

Value = TypeVar("Value")

PANE_S = 30.0
"""Figures are of the last one to two panes."""
IDLE_S = 600.0
"""After so long without a request a service is reported no more."""
MOST_PORTS = 64
"""Ports of a VM that are kept."""
MOST_REPORTED = 16
"""Ports of a VM that are reported: those with the most requests."""

QUIET_TIMES = 100
"""Response times of a pane whose p95 may be the lowest."""

_COUNTERS = ("connections", "answers", "untimed", "unanswered", "errors")


@dataclass(frozen=True, slots=True)
class PortCounters:
    """The counters as they were at ``at_s``, in seconds of a clock that only grows."""

    at_s: float
    traffic: Mapping[ServicePlace, ServiceTraffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity:
    """When requests were seen: the first ones at ``since_s`` (epoch) and after ``begin_s``, the last at ``asked_s``."""

    since_s: float
    begin_s: float
    asked_s: float


@dataclass(frozen=True, slots=True)
class ServiceHistory:
    """Three readings, at most two panes apart, and when the services that are reported had requests."""

    older: PortCounters
    newer: PortCounters
    latest: PortCounters
    active: Mapping[ServicePlace, Activity] = field(default_factory=dict)
    quiet_us: Mapping[ServicePlace, float] = field(default_factory=dict)
    """The lowest p95 of a pane so far, of services that had QUIET_TIMES response times in one."""


def begun(at_s: float) -> ServiceHistory:
    """The history of counters that are all zero at ``at_s``."""
    return ServiceHistory(PortCounters(at_s), PortCounters(at_s), PortCounters(at_s))


def continued(
    history: ServiceHistory,
    traffic: Iterable[ServiceTraffic],
    domains: Mapping[int, str],
    at_s: float,
    epoch_s: float,
) -> ServiceHistory:
    """With the counters as they are at ``at_s``, later than those before, which is ``epoch_s`` since the epoch.

    ``domains`` are those that interfaces belong to; other interfaces are left out. A counter that shrank began anew.
    """
    before = history.latest
    latest = PortCounters(at_s, _kept(traffic, domains, before))
    comparable = {
        place: then
        for place, then in before.traffic.items()
        if place in latest.traffic and not _restarted(latest.traffic[place], then)
    }
    late = _late(latest, before, domains)
    older, newer, quiet_us = history.older, history.newer, history.quiet_us
    if before.at_s - newer.at_s >= PANE_S:
        quiet_us = _quieter(quiet_us, newer, before)
        older, newer = newer, before
    active = _active(history, latest, comparable | late, epoch_s)
    return ServiceHistory(
        replace(older, traffic=_of(older, comparable) | late),
        replace(newer, traffic=_of(newer, comparable) | late),
        latest,
        active,
        {place: time_us for place, time_us in quiet_us.items() if place in active},
    )


def forgotten(history: ServiceHistory, interfaces: Collection[int]) -> ServiceHistory:
    """Without what was seen at these interfaces, which are those of other domains now."""

    def kept(places: Mapping[ServicePlace, Value]) -> dict[ServicePlace, Value]:
        return {place: value for place, value in places.items() if place[0] not in interfaces}

    older, newer, latest = (
        replace(counters, traffic=kept(counters.traffic)) for counters in (history.older, history.newer, history.latest)
    )
    return ServiceHistory(older, newer, latest, kept(history.active), kept(history.quiet_us))


def _quieter(
    quiet_us: Mapping[ServicePlace, float], begin: PortCounters, end: PortCounters
) -> dict[ServicePlace, float]:
    """The lowest p95 of each service, with the pane between these readings."""
    lowest = dict(quiet_us)
    for place in begin.traffic.keys() & end.traffic.keys():
        times = _more(end.traffic[place].times, begin.traffic[place].times)
        p95_us = times.percentile_us(95)
        if p95_us is not None and times.count >= QUIET_TIMES:
            lowest[place] = min(p95_us, lowest.get(place, p95_us))
    return lowest


def _of(reading: PortCounters, places: Iterable[ServicePlace]) -> dict[ServicePlace, ServiceTraffic]:
    return {place: reading.traffic[place] for place in places if place in reading.traffic}


def _active(
    history: ServiceHistory, latest: PortCounters, before: Mapping[ServicePlace, ServiceTraffic], epoch_s: float
) -> dict[ServicePlace, Activity]:
    """When each service had requests; those without any for long are left out."""
    active: dict[ServicePlace, Activity] = {}
    for place, now in latest.traffic.items():
        known = history.active.get(place)
        if _requests(now) > (_requests(before[place]) if place in before else 0):
            since = known or Activity(epoch_s, history.latest.at_s, latest.at_s)
            active[place] = replace(since, asked_s=latest.at_s)
        elif known is not None and latest.at_s - known.asked_s < IDLE_S:
            active[place] = known
    return active


def services_in(history: ServiceHistory, domains: Mapping[int, str]) -> tuple[SeenService, ...]:
    """What is reported of the services, by domain and port; ``domains`` are those that interfaces belong to."""
    places: defaultdict[tuple[str, int], list[ServicePlace]] = defaultdict(list)
    for interface, port in history.active:
        if interface in domains:
            places[domains[interface], port].append((interface, port))
    of_domains: defaultdict[str, list[_Counted]] = defaultdict(list)
    for (domain, port), of_service in places.items():
        of_domains[domain].append(_counted(history, domain, port, of_service))
    reported = [
        counted for of_domain in of_domains.values() for counted in sorted(of_domain, key=_busiest)[:MOST_REPORTED]
    ]
    most = [service for _, service in sorted(reported, key=_busiest)[:MOST_SERVICES]]
    return tuple(sorted(most, key=lambda service: (service.libvirt_uuid, service.port)))


_Counted = tuple[int, SeenService]
"""Requests of a service, and what is reported of it."""


def _busiest(counted: _Counted) -> tuple[int, str, int]:
    requests, service = counted
    return -requests, service.libvirt_uuid, service.port


def _counted(history: ServiceHistory, domain: str, port: int, places: Sequence[ServicePlace]) -> _Counted:
    """A service behind these interfaces. Its protocol is that of all requests so far where there were none lately."""
    now = _sum([history.latest.traffic[place] for place in places])
    passed = _sum([increase(history.latest.traffic[place], history.older.traffic.get(place)) for place in places])
    activities = [history.active[place] for place in places]
    quiet_us = max((history.quiet_us[place] for place in places if place in history.quiet_us), default=None)
    begin_s = max(history.older.at_s, min(activity.begin_s for activity in activities))
    window_s = history.latest.at_s - begin_s
    requests = _requests(passed)
    protocol, share = (passed if requests else now).protocol
    p50_ms, p95_ms, p99_ms = (_milliseconds(passed.times.percentile_us(percentile)) for percentile in (50, 95, 99))
    service = SeenService(
        domain,
        port,
        protocol=protocol.value,
        protocol_share=round(share, 4),
        rate_rps=round(requests / window_s, 3),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        error_share=round(min((passed.errors + passed.unanswered) / requests, 1.0), 4) if requests else 0.0,
        since_s=min(activity.since_s for activity in activities),
        window_s=round(window_s, 3),
        quiet_p95_ms=_milliseconds(quiet_us),
    )
    return requests, service


def _milliseconds(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us / 1000, 3)


def increase(now: ServiceTraffic, before: ServiceTraffic | None) -> ServiceTraffic:
    """What passed since counters were ``before``; None: since they were zero."""
    if before is None:
        return now
    requests = {protocol: count - before.requests.get(protocol, 0) for protocol, count in now.requests.items()}
    times, handshakes = _more(now.times, before.times), _more(now.handshakes, before.handshakes)
    counters = {name: getattr(now, name) - getattr(before, name) for name in _COUNTERS}
    return replace(now, requests=requests, times=times, handshakes=handshakes, **counters)


def _more(now: Histogram, before: Histogram) -> Histogram:
    had = before.buckets
    return Histogram({bucket: more for bucket, count in now.buckets.items() if (more := count - had.get(bucket, 0))})


def _kept(
    traffic: Iterable[ServiceTraffic], domains: Mapping[int, str], before: PortCounters
) -> dict[ServicePlace, ServiceTraffic]:
    """Those that there is room for: those known before first, then those with the most requests."""
    of_domains = [seen for seen in traffic if seen.interface in domains]
    of_domains.sort(key=lambda seen: (_place(seen) not in before.traffic, -_requests(seen), _place(seen)))
    ports: defaultdict[str, set[int]] = defaultdict(set)
    kept: dict[ServicePlace, ServiceTraffic] = {}
    for seen in of_domains:
        of_domain = ports[domains[seen.interface]]
        if seen.port in of_domain or len(of_domain) < MOST_PORTS:
            of_domain.add(seen.port)
            kept[_place(seen)] = seen
    return kept


def _late(latest: PortCounters, before: PortCounters, domains: Mapping[int, str]) -> dict[ServicePlace, ServiceTraffic]:
    """New places of domains that had no room for them before: their requests so far are of unknown times."""
    ports: defaultdict[str, set[int]] = defaultdict(set)
    for interface, port in before.traffic:
        if interface in domains:
            ports[domains[interface]].add(port)
    full = {domain for domain, of_domain in ports.items() if len(of_domain) >= MOST_PORTS}
    return {
        place: seen
        for place, seen in latest.traffic.items()
        if place not in before.traffic and domains[place[0]] in full
    }


def _restarted(now: ServiceTraffic, before: ServiceTraffic | None) -> bool:
    """Whether a counter is less than it was."""
    if before is None:
        return False
    requests = any(now.requests.get(protocol, 0) < count for protocol, count in before.requests.items())
    times = any(now.times.buckets.get(bucket, 0) < count for bucket, count in before.times.buckets.items())
    return requests or times or any(getattr(now, name) < getattr(before, name) for name in _COUNTERS)


def _sum(several: Sequence[ServiceTraffic]) -> ServiceTraffic:
    """The traffic of one port behind several interfaces."""
    first, *others = several
    requests = dict(first.requests)
    for other in others:
        for protocol, count in other.requests.items():
            requests[protocol] = requests.get(protocol, 0) + count
    counters = {name: sum(getattr(traffic, name) for traffic in several) for name in _COUNTERS}
    times = first.times.merge(*(other.times for other in others))
    return replace(first, requests=requests, times=times, **counters)


def _place(traffic: ServiceTraffic) -> ServicePlace:
    return traffic.interface, traffic.port


def _requests(traffic: ServiceTraffic) -> int:
    return sum(traffic.requests.values())
