"""Decisions as a story: what was changed of a VM in one tick, why, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import WIRE, Text
from manager.model.knob_spec import Order
from manager.model.knob_text import knob_name
from manager.model.knobs import Knob
from manager.model.numbers import milliseconds
from manager.model.records import KnobIndex, OutcomeKind
from manager.model.registration import Sla

MAX_SHOWN = 3
"""So many changes of pins are described; the others are counted."""

_ENDINGS = {  # the worst first
    OutcomeKind.FAILED: "could not be written",
    OutcomeKind.IGNORED: "the kernel keeps another value",
    OutcomeKind.EXTERNAL: "left alone: another tool changed it",
    OutcomeKind.VANISHED: "the VM had ended",
    OutcomeKind.OBSERVED: "observed only, nothing written",
    OutcomeKind.RESTORED: "restored",
    OutcomeKind.APPLIED: "",
}


@dataclass(frozen=True, slots=True)
class StoryChange:
    """One change of a knob, by its id in `/decisions`, with values as records write them, and what came of it."""

    record_id: Annotated[str, Field(alias="id")]
    knob: Knob
    index: KnobIndex
    before: Text
    after: Text
    reason: Text
    outcome: OutcomeKind
    detail: Text = ""
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class TimesAround:
    """The percentile of an application's SLA at a decision, and ``later_s`` seconds later; None: unknown."""

    application: str
    sla: Sla | None
    percentile_ms: float | None
    later_ms: float | None
    later_s: float


def outcome_of(changes: Sequence[StoryChange]) -> OutcomeKind:
    """The worst outcome of at least one change."""
    return min((change.outcome for change in changes), key=list(_ENDINGS).index)


def reasons(changes: Sequence[StoryChange]) -> str:
    """Why, each reason once and the first few of them."""
    different = list(dict.fromkeys(change.reason for change in changes))
    rest = len(different[MAX_SHOWN:])
    return "; ".join(different[:MAX_SHOWN]) + (f"; and {rest} more" if rest else "")


def sentence(host: str, vm: str | None, changes: Sequence[StoryChange], times: TimesAround | None) -> str:
    """Such as "shop: p95 612 ms, SLA 500 ms, weight of shop-web 9,100 to 24,300; 10 s later 431 ms"."""
    pins = [change for change in changes if change.knob.spec.order is Order.WIDEN_FIRST]
    others = [change for change in changes if change not in pins]
    rest = len(pins[MAX_SHOWN:])
    parts = [*_measured(times), *(_described(change, vm) for change in (*others, *pins[:MAX_SHOWN]))]
    if rest:
        parts[-1] += f" and {rest} more"
    text = f"{times.application if times else vm or host}: {', '.join(parts)}"
    outcome = outcome_of(changes)
    if _ENDINGS[outcome]:
        details = dict.fromkeys(change.detail for change in changes if change.outcome is outcome and change.detail)
        text += f" ({_ENDINGS[outcome]}{': ' if details else ''}{'; '.join(details)})"
    if times and times.later_ms is not None:
        text += f"; {times.later_s:g} s later {milliseconds(times.later_ms)}"
    return text


def _measured(times: TimesAround | None) -> list[str]:
    if times is None or times.sla is None:
        return []
    measured = "unknown" if times.percentile_ms is None else milliseconds(times.percentile_ms)
    return [f"p{times.sla.percentile:g} {measured}", f"SLA {milliseconds(times.sla.response_time_ms)}"]


def _described(change: StoryChange, vm: str | None) -> str:
    value = change.knob.spec.value
    before, after = value.shown(change.before), value.shown(change.after)
    if after.endswith(value.unit):  # which is said once
        before = before.removesuffix(value.unit).rstrip()
    return f"{knob_name(change.knob, change.index)}{f' of {vm}' if vm else ''} from {before} to {after}"
