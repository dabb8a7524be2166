"""What came of each fault of ``tests.bench.fleet_faults``, from what agents and a reader of the fleet saw."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.bench.fault_agents import Exchange, Seen


@dataclass(frozen=True, slots=True)
class Phase:
    """A fault, or none (the time before all of them). All times are of the monotonic clock, ``repaired_at_s`` of the
    other, too: ``repaired_epoch_s``.
    """

    name: str
    begin_s: float
    repaired_s: float
    repaired_epoch_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """A look at the fleet: when it ended, how long it took, and whether there was an answer."""

    at_s: float
    took_s: float
    answered: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Of a phase. From the repair on: ``live_s`` until each host has reported again; ``steady_s`` until each does so in
    its turns, and nothing fails any more; ``stored_s`` until what had waited is stored.

    ``busiest_s``: the most requests that began in a second and were answered. ``during_ms``: the median of a request
    until the repair, None where that is at once. ``live_ms``, ``live_p99_ms``: of a live report from the repair until
    what had waited was stored.
    """

    name: str
    seconds: float
    failed: int
    live_s: float
    steady_s: float
    stored_s: float
    busiest_s: int
    median_ms: float
    p99_ms: float
    during_ms: float | None
    live_ms: float | None
    live_p99_ms: float | None
    tick_gap_s: float
    reads: int
    reads_failed: int
    read_p95_ms: float


def largest_gap_s(ticks: Sequence[tuple[str, float]], begin_s: float, end_s: float) -> float:
    """The longest time without a tick of any host."""
    last: dict[str, float] = {}
    longest = 0.0
    for host, at_s in sorted(ticks, key=lambda tick: tick[1]):
        if begin_s <= at_s <= end_s and host in last:
            longest = max(longest, at_s - last[host])
        last[host] = at_s
    overdue = [end_s - at_s for host, at_s in last.items() if at_s < end_s - longest and at_s >= begin_s]
    return max([longest, *overdue])


def live_after_s(exchanges: Sequence[Exchange], repaired_s: float, hosts: int) -> float:
    """How long after the repair each host had an answer; infinity where one never had."""
    first: dict[str, float] = {}
    for one in sorted(exchanges, key=lambda one: one.at_s):
        if one.answered and one.at_s >= repaired_s:
            first.setdefault(one.host, one.at_s - repaired_s)
    return max(first.values()) if len(first) == hosts else float("inf")


def stored_after_s(exchanges: Sequence[Exchange], phase: Phase, hosts: int) -> float:
    """How long after the repair all that had waited then was stored: reports have the oldest first."""
    first: dict[str, float] = {}
    for one in sorted(exchanges, key=lambda one: one.at_s):
        newest_s = one.newest_tick_s
        if one.answered and newest_s is not None and newest_s >= phase.repaired_epoch_s:
            first.setdefault(one.host, one.at_s - phase.repaired_s)
    return max(first.values()) if len(first) == hosts else float("inf")


def regular_after_s(exchanges: Sequence[Exchange], phase: Phase, hosts: int, apart_s: float) -> float:
    """How long after the repair no host was without an answer for longer than ``apart_s`` any more; infinity where one
    still was at the end.
    """
    answered: dict[str, list[float]] = {}
    for one in sorted(exchanges, key=lambda one: one.at_s):
        if one.answered and one.at_s >= phase.repaired_s:
            answered.setdefault(one.host, []).append(one.at_s)
    regular_s = phase.repaired_s
    for times_s in answered.values():
        if phase.end_s - times_s[-1] > apart_s:
            return float("inf")
        pairs = zip((phase.repaired_s, *times_s), times_s, strict=False)
        regular_s = max([regular_s, *(at_s for before_s, at_s in pairs if at_s - before_s > apart_s)])
    return regular_s - phase.repaired_s if len(answered) == hosts else float("inf")


def median_ms(exchanges: Iterable[Exchange]) -> float | None:
    """Of those that were answered; None: none was."""
    took_ms = [1000 * one.took_s for one in exchanges if one.answered]
    return statistics.median(took_ms) if took_ms else None


def find(phase: Phase, seen: Seen, reads: Sequence[Read], hosts: int, apart_s: float) -> Found:
    """What came of a fault. ``apart_s``: a host that is longer without an answer has missed its turn."""
    within = [one for one in seen.exchanges if phase.begin_s <= one.at_s < phase.end_s]
    after = [one for one in within if one.at_s >= phase.repaired_s]
    failed_s = [one.at_s - phase.repaired_s for one in after if not one.answered]
    live_s = live_after_s(after, phase.repaired_s, hosts)
    stored_s = stored_after_s(after, phase, hosts)
    live = [one for one in after if one.newest_tick_s is None and one.at_s <= phase.repaired_s + stored_s]
    live_ms = sorted(1000 * one.took_s for one in live if one.answered)
    seconds = collections.Counter(int(one.at_s - one.took_s) for one in within if one.answered)
    took_ms = sorted(1000 * one.took_s for one in within if one.answered)
    looked = [one for one in reads if phase.begin_s <= one.at_s < phase.end_s]
    read_ms = sorted(1000 * one.took_s for one in looked if one.answered) or [float("inf")]
    return Found(
        phase.name,
        phase.end_s - phase.begin_s,
        sum(not one.answered for one in within),
        live_s,
        max([live_s, regular_after_s(after, phase, hosts, apart_s), *failed_s]),
        stored_s,
        max(seconds.values(), default=0),
        took_ms[len(took_ms) // 2],
        took_ms[len(took_ms) * 99 // 100],
        median_ms(one for one in within if one.at_s < phase.repaired_s),
        median_ms(live),
        live_ms[len(live_ms) * 99 // 100] if live_ms else None,
        largest_gap_s(seen.ticks, phase.begin_s, phase.end_s),
        len(looked),
        sum(not one.answered for one in looked),
        read_ms[len(read_ms) * 95 // 100],
    )
