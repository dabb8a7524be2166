"""Decisions in sentences."""

from __future__ import annotations

import pytest

from manager.control.story import StoryChange, TimesAround, outcome_of, reasons, sentence
from manager.model.knobs import Knob
from manager.model.numbers import milliseconds
from manager.model.records import OutcomeKind
from manager.model.registration import Sla


def change(
    knob: Knob = Knob.WEIGHT,
    before: str = "9100",
    after: str = "24300",
    outcome: OutcomeKind = OutcomeKind.APPLIED,
    index: int = 0,
    detail: str = "",
    reason: str = "fair",
) -> StoryChange:
    return StoryChange("", knob, index, before, after, reason, outcome, detail)


SLA = Sla(500)


def times(percentile_ms: float | None = 612, later_ms: float | None = 431, sla: Sla | None = SLA) -> TimesAround:
    return TimesAround("shop", sla, percentile_ms, later_ms, 10)


def pin(index: int, before: str = "0-3", after: str = "1") -> StoryChange:
    return change(Knob.VCPU_PIN, before, after, index=index)


@pytest.mark.parametrize(
    ("vm", "changes", "seen", "text"),
    [
        (
            "web",
            [change()],
            times(),
            "shop: p95 612 ms, SLA 500 ms, CPU weight of web from 9,100 to 24,300; 10 s later 431 ms",
        ),
        (
            "web",
            [change()],
            times(later_ms=None),
            "shop: p95 612 ms, SLA 500 ms, CPU weight of web from 9,100 to 24,300",
        ),
        (
            "web",
            [change()],
            times(percentile_ms=None, later_ms=0.8234, sla=Sla(2, 99)),
            "shop: p99 unknown, SLA 2 ms, CPU weight of web from 9,100 to 24,300; 10 s later 0.823 ms",
        ),
        ("web", [change()], times(None, None, None), "shop: CPU weight of web from 9,100 to 24,300"),
        ("hog", [change(Knob.IDLE, "0", "1")], None, "hog: idle class of hog from off to on"),
        ("hog", [change(Knob.IDLE, "1", "0")], None, "hog: idle class of hog from on to off"),
        ("hog", [change(Knob.QUOTA, "-1", "150000")], None, "hog: CPU quota of hog from none to 150,000 us a period"),
        (
            "web",
            [change(Knob.SCHEDULING, "3", "1002", index=1)],
            None,
            "web: vCPU 1 scheduling of web from nice 3 to fifo 2",
        ),
        (
            "web",
            [change(Knob.RT_RUNTIME, "0", "300000")],
            None,
            "web: group 0 real-time limit of web from 0 to 300,000 us a second",
        ),
        (
            None,
            [change(Knob.RT_RUNTIME, "300000", "0", index=17)],
            None,
            "kvm1: group 17 real-time limit from 300,000 to 0 us a second",
        ),
        (
            "web",
            [change(Knob.CACHE_GROUP, "", "equipoise-shop")],
            None,
            "web: cache group of web from the default group to equipoise-shop",
        ),
        ("web", [change(Knob.CACHE_GROUP, "a", "")], None, "web: cache group of web from a to the default group"),
        (None, [change(Knob.CACHE_WAYS, "a L3:0=1", "a L3:0=f")], None, "kvm1: cache ways from a L3:0=1 to a L3:0=f"),
        (None, [change(Knob.CACHE_WAYS, "a L3:0=f", "")], None, "kvm1: cache ways from a L3:0=f to no group"),
        (None, [change(Knob.IRQ_AFFINITY, "0-3", "0", index=40)], None, "kvm1: interrupt 40 affinity from 0-3 to 0"),
        (
            "web",
            [pin(0), pin(1, after="2"), change(Knob.EMULATOR_PIN, "0-3", "1-2"), change(before="100", after="50")],
            None,
            "web: CPU weight of web from 100 to 50, vCPU 0 pin of web from 0-3 to 1, vCPU 1 pin of web from 0-3 to 2,"
            " emulator pin of web from 0-3 to 1-2",
        ),
        (
            "web",
            [pin(number) for number in range(8)],
            None,
            "web: vCPU 0 pin of web from 0-3 to 1, vCPU 1 pin of web from 0-3 to 1, vCPU 2 pin of web from 0-3 to 1"
            " and 5 more",
        ),
        (
            "web",
            [change(outcome=OutcomeKind.OBSERVED)],
            times(later_ms=700),
            "shop: p95 612 ms, SLA 500 ms, CPU weight of web from 9,100 to 24,300 (observed only, nothing written);"
            " 10 s later 700 ms",
        ),
        (
            "web",
            [change(), change(Knob.IDLE, "0", "1", OutcomeKind.FAILED, detail="EBUSY")],
            None,
            "web: CPU weight of web from 9,100 to 24,300, idle class of web from off to on"
            " (could not be written: EBUSY)",
        ),
    ],
)
def test_the_sentence(vm: str | None, changes: list[StoryChange], seen: TimesAround | None, text: str) -> None:
    assert sentence("kvm1", vm, changes, seen) == text


@pytest.mark.parametrize("kind", OutcomeKind)
def test_every_outcome_that_is_not_as_wanted_is_told(kind: OutcomeKind) -> None:
    told = sentence("kvm1", "web", [change(outcome=kind)], None)
    assert ("(" in told) == (kind is not OutcomeKind.APPLIED)
    assert outcome_of([change(), change(outcome=kind)]) is kind


def test_reasons_are_told_once_and_not_without_end() -> None:
    assert reasons([change(reason="a"), change(reason="b"), change(reason="a")]) == "a; b"
    assert reasons([change(reason=str(number)) for number in range(5)]) == "0; 1; 2; and 2 more"


@pytest.mark.parametrize(
    ("percentile_ms", "text"), [(0.01, "0.01 ms"), (1.5, "1.5 ms"), (99.96, "100 ms"), (1250, "1,250 ms")]
)
def test_milliseconds(percentile_ms: float, text: str) -> None:
    assert milliseconds(percentile_ms) == text
