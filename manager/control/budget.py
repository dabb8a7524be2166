"""How often an SLA was missed and for how long: response times over periods, added up and never averaged.

A slot is judged when it holds enough response times (the setting ``min_samples``). A *violation* is a run of slots that
were missed: a slot that was met, or could not be judged, ends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from manager.control.sla import sla_state
from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.model.window import SlaState, Window

MINUTE_S = 60.0
HOUR_S = 3600.0
MAX_PERIODS = 3000
"""Most slots or minutes that are read for one answer; beyond it longer periods are."""

_CLOCK_S = 1e-4  # times in seconds since the epoch are that exact


@dataclass(frozen=True, slots=True)
class Span:
    """A violation from ``start_s`` until ``end_s`` (seconds since the epoch), in which ``missed`` slots were missed."""

    start_s: float
    end_s: float
    missed: int


@dataclass(frozen=True, slots=True)
class Period:
    """Response times of an application over a slot or several, from ``start_s`` on (seconds since the epoch).

    ``slots`` counts those with data, ``judged`` those of them with enough of it, ``missed`` those that missed the SLA
    that was in force. ``window.ready`` is the largest of the ready percentiles, and None where response times were
    counted: what no slot exceeds, all of them together do not.
    """

    start_s: float
    window: Window
    slots: int = 0
    judged: int = 0
    missed: int = 0
    violations: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a promise was kept; ``missed_share`` is of the judged slots, None without any.

    ``time_ms`` is the SLA's percentile over the whole time, None without response times.
    """

    judged: int
    missed: int
    missed_share: float | None
    longest_s: float
    time_ms: float | None


def judge(window: Window, start_s: float, slot_s: float, sla: Sla | None, min_samples: int) -> Period:
    """The slot that begins at ``start_s``, judged by itself."""
    state = sla_state(window, sla, window.end_s, 0.0, min_samples)
    missed = state is SlaState.MISSED
    spans = (Span(start_s, start_s + slot_s, 1),) if missed else ()
    return Period(start_s, window, 1, int(state is not SlaState.NO_DATA), int(missed), spans)


def total(application: str, periods: Sequence[Period], start_s: float, end_s: float) -> Period:
    """All of disjoint periods, oldest first, as one from ``start_s`` until ``end_s``."""
    windows = [period.window for period in periods]
    histogram = Histogram().merge(*(window.histogram for window in windows))
    known = [window.requests for window in windows if window.requests is not None]
    ready = [window.ready for window in windows if window.ready is not None]
    alike = [one for one in ready if one.percentile == ready[-1].percentile]
    largest = max(alike, key=lambda one: one.time_ms, default=None)
    whole = Window(
        application,
        start_s,
        end_s,
        histogram,
        math.fsum(known) if known else None,
        None if histogram.buckets else largest,
    )
    return Period(
        start_s,
        whole,
        sum(period.slots for period in periods),
        sum(period.judged for period in periods),
        sum(period.missed for period in periods),
        joined(span for period in periods for span in period.violations),
    )


def joined(spans: Iterable[Span], gap_s: float = 0.0) -> tuple[Span, ...]:
    """Spans, oldest first, with those that are at most ``gap_s`` apart made one."""
    found: list[Span] = []
    for span in spans:
        if found and span.start_s - found[-1].end_s <= gap_s + _CLOCK_S:
            found[-1] = Span(found[-1].start_s, span.end_s, found[-1].missed + span.missed)
        else:
            found.append(span)
    return tuple(found)


def budget(period: Period, sla: Sla | None) -> Budget:
    """What a period says of the promise."""
    return Budget(
        judged=period.judged,
        missed=period.missed,
        missed_share=period.missed / period.judged if period.judged else None,
        longest_s=max((span.end_s - span.start_s for span in period.violations), default=0.0),
        time_ms=period.window.percentile_ms(sla.percentile) if sla else None,
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """How a range of time is cut: from ``first_s`` in ``count`` steps of ``step_s``, from periods of ``period_s``.

    Steps are multiples of ``step_s`` since the epoch, so that a chart does not flicker while time goes on.
    """

    first_s: float
    step_s: float
    count: int
    period_s: float


def cut_range(
    since_s: float,
    until_s: float,
    points: int,
    slot_s: float,
    slots_from_s: float = -math.inf,
    minutes_from_s: float = -math.inf,
) -> Steps:
    """At most ``points`` steps (2 or more), each a multiple of the finest periods that are few enough to be read.

    Slots from before ``slots_from_s`` and minutes from before ``minutes_from_s`` are not kept any more.
    """
    length_s = until_s - since_s
    slots_do = since_s >= slots_from_s and length_s <= MAX_PERIODS * slot_s
    minutes_do = since_s >= minutes_from_s and length_s <= MAX_PERIODS * MINUTE_S
    period_s = slot_s if slots_do else MINUTE_S if minutes_do else HOUR_S
    # A slot longer than a minute is in the minute in which it begins.
    unit_s = period_s if slots_do else max(math.ceil(slot_s / period_s), 1) * period_s
    step_s = max(math.ceil(length_s / (points - 1) / unit_s - _CLOCK_S), 1) * unit_s
    first_s = math.floor((since_s + _CLOCK_S) / step_s) * step_s
    return Steps(first_s, step_s, max(math.ceil((until_s - first_s - _CLOCK_S) / step_s), 1), period_s)


def by_step(application: str, periods: Iterable[Period], steps: Steps, now_s: float) -> list[Period]:
    """One period a step, also for those without data. That in which ``now_s`` lies ends with its latest response time.

    Otherwise its rate would always look as if it were falling.
    """
    parts: list[list[Period]] = [[] for _ in range(steps.count)]
    for period in periods:
        place = math.floor((period.start_s - steps.first_s + _CLOCK_S) / steps.step_s)
        if 0 <= place < steps.count:
            parts[place].append(period)
    found: list[Period] = []
    for place, part in enumerate(parts):
        start_s = steps.first_s + place * steps.step_s
        end_s = start_s + steps.step_s
        step = total(application, part, start_s, end_s)
        if part and end_s > now_s:
            latest_s = max(period.window.end_s for period in part)
            step = replace(step, window=replace(step.window, end_s=min(max(latest_s, start_s), end_s)))
        found.append(step)
    return found
