"""Which load to try next, and when to stop: a sweep up to the peak, then a binary search for what the SLA allows.

Nothing here sends a request; what was measured goes in, the next load or the result comes out.

The largest load that meets the SLA is searched between two that were measured: the lowest that violates it, and the
highest below that which meets it. So a load that meets it by luck, above one that does not, counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from manager.model.units import per_second
from manager.model.window import SlaState

SEARCH_BOUNDS: dict[str, tuple[float, float]] = {"steps": (2, 50), "span": (0.001, 0.5), "least": (0.001, 0.5)}
"""Least and largest value of each setting."""


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The sweep has ``steps`` loads, up to the peak.

    The search ends when the load is known to ``span`` of the peak, and tries none below ``least`` of it.
    """

    steps: int = 10
    span: float = 0.02
    least: float = 0.01


DEFAULT_SEARCH = SearchRules()


class LoadVerdict(StrEnum):
    """What a load was. ``unreached``: the server did not take it. ``limited``: it could not be generated."""

    MET = "met"
    VIOLATED = "violated"
    UNREACHED = "unreached"
    LIMITED = "limited"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A load that was tried: ``offered_rps`` and what came of it."""

    offered_rps: float
    verdict: LoadVerdict


@dataclass(frozen=True, slots=True)
class NextLoad:
    """Try this load, in requests per second; ``purpose`` is ``sweep`` or ``search``."""

    rate_rps: float
    purpose: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The largest load that meets the SLA, None where there is none or it is not known; ``why`` says it in words."""

    qos_rps: float | None
    why: str


@dataclass(frozen=True, slots=True)
class OwnDelay:
    """What the load generator had to do with it. ``busy``: it used too much CPU time to be believed.

    ``late_ms``: how late it was, where that is too much to be neglected, in the 99th percentile.
    """

    busy: bool = False
    late_ms: float = 0.0


def judged(percentile_ms: float | None, sla_ms: float | None, shortfall: bool, own: OwnDelay) -> LoadVerdict:
    """The verdict on a load: its percentile against the SLA, where server and generator kept up with it.

    Delays of the generator only add to response times: an SLA that is met with them is met, and one that is violated
    by more than it was late is violated.
    """
    limited = own.busy or own.late_ms > 0
    if sla_ms is not None and percentile_ms is not None and not shortfall:
        if percentile_ms <= sla_ms:
            return LoadVerdict.MET
        if not limited or (not own.busy and percentile_ms - own.late_ms > sla_ms):
            return LoadVerdict.VIOLATED
    if own.busy or (limited and not shortfall):
        return LoadVerdict.LIMITED
    return LoadVerdict.UNREACHED if shortfall else LoadVerdict.UNJUDGED


def next_load(
    peak_rps: float, points: Sequence[LoadPoint], has_sla: bool, rules: SearchRules = DEFAULT_SEARCH
) -> NextLoad | SearchResult:
    """What comes after these points, in any order. ``peak_rps`` is above 0."""
    too_much = min((point.offered_rps for point in points if point.verdict is LoadVerdict.UNREACHED), default=math.inf)
    tried = {point.offered_rps for point in points}
    for rate_rps in sweep_rates(peak_rps, rules):
        if rate_rps not in tried and rate_rps < too_much:
            return NextLoad(rate_rps, "sweep")
    return _search(peak_rps, points, rules) if has_sla else SearchResult(None, "it has no SLA to compare with")


def _search(peak_rps: float, points: Sequence[LoadPoint], rules: SearchRules) -> NextLoad | SearchResult:
    high = min((point for point in points if point.verdict in _NOT_MET), key=_rate, default=None)
    met = [
        _rate(one) for one in points if one.verdict is LoadVerdict.MET and (high is None or _rate(one) < _rate(high))
    ]
    low_rps = max(met, default=0.0)
    # Nothing is known of a load that could not be generated, so it ends the search only above what met the SLA.
    limited = [one for one in points if one.verdict is LoadVerdict.LIMITED and _rate(one) > low_rps]
    high = min([*limited, *filter(None, [high])], key=_rate, default=None)
    if high is None:
        if not met:
            return SearchResult(None, "too few response times to judge")
        return SearchResult(low_rps, f"it was met up to the largest load that was tried, {per_second(low_rps)}")
    high_rps = _rate(high)
    if high_rps <= rules.least * peak_rps:
        return SearchResult(None, f"it was not met even at {per_second(high_rps)}: {_WHY_NEVER[high.verdict]}")
    middle_rps = max((low_rps + high_rps) / 2, rules.least * peak_rps)
    if (met and high_rps - low_rps <= rules.span * peak_rps) or middle_rps in set(map(_rate, points)):
        limit = "could not be generated well enough" if high.verdict is LoadVerdict.LIMITED else "does not"
        return SearchResult(low_rps or None, f"{per_second(low_rps)} meets it, {per_second(high_rps)} {limit}")
    return NextLoad(middle_rps, "search")


def _rate(point: LoadPoint) -> float:
    return point.offered_rps


def sweep_rates(peak_rps: float, rules: SearchRules = DEFAULT_SEARCH) -> tuple[float, ...]:
    """The loads of the sweep in requests per second, from the smallest."""
    return (*(peak_rps * step / rules.steps for step in range(1, rules.steps)), peak_rps)


def most_loads(rules: SearchRules = DEFAULT_SEARCH) -> int:
    """At most so many loads are tried after the peak was measured."""
    return rules.steps + max(math.ceil(math.log2(1 / rules.steps / min(rules.span, rules.least))), 0) + 2


def others_at_risk(states: Mapping[str, SlaState], own: Collection[str], worst: SlaState = SlaState.AT_RISK) -> str:
    """Which application that is not among ``own`` forbids more load, by the state of its SLA; empty where none does.

    ``worst`` AT_RISK: one whose SLA is at risk or violated; VIOLATED: only one whose SLA is violated.
    """
    bad = {SlaState.VIOLATED} | {worst}
    harmed = [(name, state) for name, state in sorted(states.items()) if state in bad and name not in own]
    return ", ".join(f"{name} ({state.replace('_', ' ')})" for name, state in harmed)


_NOT_MET = frozenset({LoadVerdict.UNREACHED, LoadVerdict.VIOLATED})
_WHY_NEVER = {
    LoadVerdict.VIOLATED: "the target is below what the service gives with hardly any load",
    LoadVerdict.UNREACHED: "the service does not take it",
    LoadVerdict.LIMITED: "the load generator was too slow to judge it",
}
