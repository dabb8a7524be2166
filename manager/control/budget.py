"""How often an SLA was violated and for how long: response times over periods, added up and never averaged.

A slot is judged when it holds enough response times (the setting ``min_samples``). A *violation* is a run of slots that
were violated: a slot that was met, or could not be judged, ends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from manager.control.error_budget import Judged
from manager.control.sla import sla_state
from manager.model.fields import WIRE, Count, EpochS
from manager.model.histogram import merged
from manager.model.registration import Sla
from manager.model.window import SlaState, Window

MINUTE_S = 60.0
HOUR_S = 3600.0
MAX_PERIODS = 3000
"""Most slots or minutes that are read for one answer; beyond it longer periods are."""

_CLOCK_S = 1e-4  # times in seconds since the epoch are that exact


@dataclass(frozen=True, slots=True)
class Violation:
    """A time in which an SLA was violated, in seconds since the epoch, and the number of its violated slots."""

    start_s: Annotated[EpochS, Field(alias="start")]
    end_s: Annotated[EpochS, Field(alias="end")]
    violated: Annotated[Count, Field(description="slots that violated it")]
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class Period:
    """Response times of an application over a slot or several, from ``start_s`` on (seconds since the epoch).

    ``slots`` counts those with data, ``judged`` those of them with enough of it, ``violated`` those that violated the
    SLA in force. ``window.ready`` is the largest of the ready percentiles, and None where response times were
    counted: what no slot exceeds, all of them together do not.
    """

    start_s: float
    window: Window
    slots: int = 0
    judged: int = 0
    violated: int = 0
    violations: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """SLA attainment over a time until now."""

    length_s: Count
    since_s: Annotated[EpochS, Field(alias="since")]
    judged: Count
    violated: Count
    violated_share: Annotated[float | None, Field(description="of the judged slots; null: none was")]
    attainment: Annotated[float | None, Field(description="share of the judged slots in which the SLA held")]
    burn_rate: Annotated[float | None, Field(description="`violated_share` by 1 - `attainment_target`")]
    longest_violation_s: float
    percentile_ms: Annotated[float | None, Field(description="the percentile of the SLA over the whole time")]
    __pydantic_config__: ClassVar = WIRE


def judge(window: Window, start_s: float, slot_s: float, sla: Sla | None, min_samples: int) -> Period:
    """The slot that begins at ``start_s``, judged by itself."""
    state = sla_state(window, sla, window.end_s, 0.0, min_samples)
    violated = state is SlaState.VIOLATED
    spans = (Violation(start_s, start_s + slot_s, 1),) if violated else ()
    return Period(start_s, window, 1, int(state is not SlaState.NO_DATA), int(violated), spans)


def total(application: str, periods: Sequence[Period], start_s: float, end_s: float) -> Period:
    """All of disjoint periods, oldest first, as one from ``start_s`` until ``end_s``."""
    windows = [period.window for period in periods]
    histogram = windows[0].histogram if len(windows) == 1 else merged(each.histogram for each in windows)
    requests = [window.requests for window in windows if window.requests is not None]
    ready = [window.ready for window in windows if window.ready is not None and not histogram.buckets]
    alike = [value for value in ready if value.percentile == ready[-1].percentile]
    largest = max(alike, key=lambda value: value.percentile_ms, default=None)
    whole = Window(application, start_s, end_s, histogram, math.fsum(requests) if requests else None, largest)
    return Period(
        start_s,
        whole,
        sum(period.slots for period in periods),
        sum(period.judged for period in periods),
        sum(period.violated for period in periods),
        joined(span for period in periods for span in period.violations),
    )


def joined(spans: Iterable[Violation], gap_s: float = 0.0) -> tuple[Violation, ...]:
    """Spans, oldest first, with those that are at most ``gap_s`` apart made one."""
    runs: list[Violation] = []
    for span in spans:
        if runs and span.start_s - runs[-1].end_s <= gap_s + _CLOCK_S:
            runs[-1] = Violation(runs[-1].start_s, span.end_s, runs[-1].violated + span.violated)
        else:
            runs.append(span)
    return tuple(runs)


def budget(period: Period, length_s: float, sla: Sla | None, target: float) -> Budget:
    """What a period of about ``length_s`` says of the SLA; ``target``: the attainment target."""
    judged = Judged(period.judged, period.violated)
    return Budget(
        length_s=round(length_s),
        since_s=period.start_s,
        judged=period.judged,
        violated=period.violated,
        violated_share=period.violated / period.judged if period.judged else None,
        attainment=judged.attainment,
        burn_rate=judged.burn_rate(target),
        longest_violation_s=max((span.end_s - span.start_s for span in period.violations), default=0.0),
        percentile_ms=period.window.percentile_ms(sla.percentile) if sla else None,
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

    @property
    def starts_s(self) -> list[float]:
        """Begin of each step."""
        return [self.first_s + place * self.step_s for place in range(self.count)]

    @property
    def end_s(self) -> float:
        """End of the last step."""
        return self.first_s + self.count * self.step_s


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


def by_step(application: str, periods: Iterable[Period], steps: Steps, now_s: float, slot_s: float) -> list[Period]:
    """One period a step, also for those without data. That in which ``now_s`` lies ends with its latest response time.

    Otherwise its rate would always look as if it were falling. Where slots do not divide a step, its window is as long
    as those that begin in it, whose requests it has.
    """
    parts: dict[int, list[Period]] = {place: [] for place in range(steps.count)}
    for period in periods:
        parts.get(math.floor((period.start_s - steps.first_s + _CLOCK_S) / steps.step_s), []).append(period)
    whole: list[Period] = []
    for start_s, part in zip(steps.starts_s, parts.values(), strict=True):
        first, last = (math.ceil((at_s - _CLOCK_S) / slot_s) for at_s in (start_s, start_s + steps.step_s))
        end_s = start_s + (last - first) * slot_s
        step = total(application, part, start_s, end_s)
        if part and start_s + steps.step_s > now_s:
            latest_s = max(period.window.end_s for period in part)
            step = replace(step, window=replace(step.window, end_s=min(max(latest_s, start_s), end_s)))
        whole.append(step)
    return whole
