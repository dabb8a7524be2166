"""Interference tables: the largest load of an application beside batch VMs. Pure.

After Leverich and Kozyrakis, "Reconciling High Server Utilization and Sub-millisecond Quality-of-Service" (EuroSys
2014), sections 4.1 and 5: response times and batch throughput by load say which load a shared server may be given.

A minute violates the SLA, or batch VMs lose more in it than they may. More load never helps with either, so the share
of such minutes over the bands of load is an isotonic regression (``manager.control.knee``), and bands with one share
count together. What that share shows is said with 95 % confidence (binomial distribution).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from manager.control.knee import fit
from manager.control.load_curve import CONFIDENCE, LEAST_STEPS, banded, chance_of
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS, BatchClass, LargestLoad
from manager.model.units import per_second, percent
from manager.model.verdict import FitVerdict

MOST_VIOLATED = 0.05
"""Share of minutes that may violate the SLA while it counts as met."""
_TYPICAL = 0.5
"""Batch VMs lose too much where they do in more than this share of the minutes: the median minute."""

_CLASSES = tuple(BatchClass)
_LEAST_WANTED = 0.0, 0.05, 0.25, 0.5, 1.0
"""What batch VMs of each class want at least."""


class MeasuredMinute(NamedTuple):
    """A minute of an application: req/s, the SLA's percentile in ms, and how batch VMs beside it fared.

    ``batch_wanted``: the CPU time that they want over that of the host, ``batch_lost``: the part of it that they did
    not get, 0 .. 1. ``start_s``: seconds since the epoch.
    """

    start_s: float
    rate_rps: float
    percentile_ms: float
    batch_wanted: float
    batch_lost: float


class _Band(NamedTuple):
    rate_rps: float
    minutes: Sequence[MeasuredMinute]


class _Limits(NamedTuple):
    """The largest load that is known to do, and the smallest that is known not to."""

    load_rps: float | None
    violated_rps: float | None


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What a table says of a load beside a class of batch VMs; ``verdict`` None: nothing, and why."""

    verdict: FitVerdict | None
    reason: str
    row: LargestLoad | None = None


def batch_class(wanted: float) -> BatchClass:
    """The class of batch VMs that want so much CPU time, over that of the host."""
    return _CLASSES[bisect_right(_LEAST_WANTED, wanted) - 1]


def interference_table(minutes: Sequence[MeasuredMinute], sla_ms: float) -> tuple[LargestLoad, ...]:
    """A row for each class of batch VMs and each of LOSS_BOUNDS, of minutes in any order."""
    peak_rps = max((minute.rate_rps for minute in minutes), default=0.0)
    by_class: dict[BatchClass, list[MeasuredMinute]] = {kind: [] for kind in BatchClass}
    for minute in minutes:
        by_class[batch_class(minute.batch_wanted)].append(minute)
    return tuple(row for kind, group in by_class.items() for row in _rows(kind, group, sla_ms, peak_rps))


def judged_by(rows: Iterable[LargestLoad], batch: BatchClass, max_loss: float, rate_rps: float) -> TableVerdict:
    """Whether a load does beside such batch VMs that may lose at most ``max_loss``, by the rows of a table.

    A load that does beside more of them does beside these, and one that does not beside fewer of them does not. Of the
    bounds the largest that is not above ``max_loss`` counts.
    """
    bound = max((each for each in LOSS_BOUNDS if each <= max_loss), default=None)
    if bound is None:
        return TableVerdict(None, f"no table has a bound of {percent(max_loss)} for what batch VMs lose")
    order = list(BatchClass)
    known = {row.batch: row for row in rows if row.max_loss == bound}
    if batch not in known:
        return TableVerdict(None, f"no load was measured with {batch} batch load")
    row, place = known[batch], order.index(batch)
    loads = [each.load_rps for kind, each in known.items() if each.load_rps is not None and order.index(kind) >= place]
    violated = [
        each.violated_rps
        for kind, each in known.items()
        if each.violated_rps is not None and order.index(kind) <= place
    ]
    load_rps, violated_rps = max(loads, default=None), min(violated, default=None)
    what = "the SLA" if bound == ANY_LOSS else f"the SLA and a batch loss of at most {percent(bound)}"
    at = f"at {per_second(rate_rps)} with {batch} batch load"
    if violated_rps is not None and rate_rps >= violated_rps:
        return TableVerdict(FitVerdict.NO, f"{what}, not met {at}: not from {per_second(violated_rps)} on", row)
    if load_rps is not None and rate_rps <= load_rps:
        return TableVerdict(FitVerdict.YES, f"{what}, met {at}: up to {per_second(load_rps)}", row)
    if row.measured_rps is None or rate_rps > row.measured_rps:
        most = f"only up to {per_second(row.measured_rps)}" if row.measured_rps is not None else row.why
        return TableVerdict(None, f"nothing was measured {at}: {most}", row)
    most = f"only up to {per_second(load_rps)}" if load_rps is not None else "at no load with confidence"
    return TableVerdict(FitVerdict.UNSURE, f"{what}, not known to be met {at}: {most}", row)


def _rows(kind: BatchClass, minutes: Sequence[MeasuredMinute], sla_ms: float, peak_rps: float) -> list[LargestLoad]:
    """From the tightest bound to none: what does under a bound does under a wider one, and the other way round."""
    none = LargestLoad(kind, ANY_LOSS, None, None, None, None, len(minutes), _too_few(len(minutes)))
    if len(minutes) < LEAST_STEPS:
        return [replace(none, max_loss=bound) for bound in LOSS_BOUNDS]
    bands = [_Band(_middle(group), group) for group in banded(minutes)]
    met = _limits(bands, lambda minute: minute.percentile_ms > sla_ms, MOST_VIOLATED)
    limits: list[_Limits] = []
    load_rps = None
    for bound in LOSS_BOUNDS:
        lost = _limits(bands, _loses_more(bound if kind is not BatchClass.NONE else ANY_LOSS), _TYPICAL)
        both = [met.load_rps, lost.load_rps]
        smallest = None if None in both else min(rate for rate in both if rate is not None)
        load_rps = max((rate for rate in (load_rps, smallest) if rate is not None), default=None)
        violated = [rate for rate in (met.violated_rps, lost.violated_rps) if rate is not None]
        limits.append(_Limits(load_rps, min(violated, default=None)))
    measured_rps = bands[-1].rate_rps
    rows = []
    for bound, (largest_rps, violated_rps) in zip(LOSS_BOUNDS, _tightened(limits), strict=True):
        share = None if largest_rps is None else largest_rps / peak_rps
        why = _why(largest_rps, violated_rps, measured_rps)
        rows.append(LargestLoad(kind, bound, largest_rps, share, violated_rps, measured_rps, len(minutes), why))
    return rows


def _tightened(limits: Sequence[_Limits]) -> list[_Limits]:
    """Limits by bound from the tightest on: a load that is too much under one is too much under each tighter one."""
    tightened: list[_Limits] = []
    violated_rps = None
    for limit in reversed(limits):
        violated_rps = min((rate for rate in (violated_rps, limit.violated_rps) if rate is not None), default=None)
        tightened.append(_Limits(limit.load_rps, violated_rps))
    return tightened[::-1]


def _loses_more(bound: float) -> Callable[[MeasuredMinute], bool]:
    return lambda minute: minute.batch_lost > bound


def _limits(bands: Sequence[_Band], bad: Callable[[MeasuredMinute], bool], most: float) -> _Limits:
    """What the bands, from little load to much, say of minutes of which at most the share ``most`` may be bad."""
    counts = [(sum(map(bad, band.minutes)), len(band.minutes)) for band in bands]
    # The fit never rises with its key, so the keys run from much load to little.
    shares = fit({-place: (hits / count, count) for place, (hits, count) in enumerate(counts)})
    load_rps = violated_rps = None
    for _, group in groupby(range(len(bands)), key=lambda place: shares[-place]):
        places = list(group)
        hits, count = (sum(counts[place][index] for place in places) for index in (0, 1))
        if hits <= most * count and _at_most(hits, count, _TYPICAL) <= 1 - CONFIDENCE:
            load_rps = bands[places[-1]].rate_rps
        if violated_rps is None and _at_least(hits, count, most) <= 1 - CONFIDENCE:
            violated_rps = bands[places[0]].rate_rps
    return _Limits(load_rps, violated_rps)


def _at_most(hits: int, count: int, share: float) -> float:
    """The probability of so many hits or fewer."""
    return sum(chance_of(each, count, share) for each in range(hits + 1))


def _at_least(hits: int, count: int, share: float) -> float:
    """The probability of so many hits or more."""
    return 1.0 if not hits else max(1 - _at_most(hits - 1, count, share), 0.0)


def _middle(group: Sequence[MeasuredMinute]) -> float:
    """The median rate of minutes in their order."""
    return group[(len(group) - 1) // 2].rate_rps


def _too_few(count: int) -> str:
    return "" if count >= LEAST_STEPS else f"{count} minutes were measured: {LEAST_STEPS} are needed"


def _why(load_rps: float | None, violated_rps: float | None, measured_rps: float) -> str:
    if load_rps is None and violated_rps is None:
        return f"not known with confidence at any load up to {per_second(measured_rps)}"
    if violated_rps is not None:
        return f"too much from {per_second(violated_rps)} on"
    if load_rps == measured_rps:
        return "no larger load was measured"
    return f"not known with confidence up to {per_second(measured_rps)}, the largest load that was measured"
