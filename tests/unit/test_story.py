"""Decisions in sentences."""

from __future__ import annotations

import pytest

from manager.control.story import KnobChange, Times, milliseconds, outcome_of, reasons, sentence
from manager.model.records import Knob, OutcomeKind
from manager.model.registration import Sla


def change(
    knob: Knob = Knob.WEIGHT,
    before: str = "9100",
    after: str = "24300",
    outcome: OutcomeKind = OutcomeKind.APPLIED,
    index: int = 0,
    detail: str = "",
    reason: str = "fair",
) -> KnobChange:
    return KnobChange(knob, index, before, after, reason, outcome, detail)


SLA = Sla(500)


def times(time_ms: float | None = 612, later_ms: float | None = 431, sla: Sla | None = SLA) -> Times:
    return Times("shop", sla, time_ms, later_ms, 10)


def pin(index: int, before: str = "0-3", after: str = "1") -> KnobChange:
    return change(Knob.VCPU_PIN, before, after, index=index)


@pytest.mark.parametrize(
    ("vm", "changes", "seen", "text"),
    [
        ("web", [change()], times(), "shop: p95 612 ms, SLA 500 ms, weight of web 9,100 to 24,300; 10 s later 431 ms"),
        ("web", [change()], times(later_ms=None), "shop: p95 612 ms, SLA 500 ms, weight of web 9,100 to 24,300"),
        (
            "web",
            [change()],
            times(time_ms=None, later_ms=0.8234, sla=Sla(2, 99)),
            "shop: p99 unknown, SLA 2 ms, weight of web 9,100 to 24,300; 10 s later 0.823 ms",
        ),
        ("web", [change()], times(None, None, None), "shop: weight of web 9,100 to 24,300"),
        ("hog", [change(Knob.IDLE, "0", "1")], None, "hog: hog into the idle class"),
        ("hog", [change(Knob.IDLE, "1", "0")], None, "hog: hog out of the idle class"),
        ("hog", [change(Knob.QUOTA, "-1", "150000")], None, "hog: CPU limit of hog none to 150,000 us a period"),
        ("web", [change(Knob.SCHEDULING, "3", "1002", index=1)], None, "web: vCPU 1 of web from nice 3 to fifo 2"),
        ("web", [change(Knob.RT_RUNTIME, "0", "300000")], None, "web: real-time limit of web 0 to 300,000 us a second"),
        (
            None,
            [change(Knob.RT_RUNTIME, "300000", "0", index=17)],
            None,
            "kvm1: real-time limit of group 17 of the host's VMs 300,000 to 0 us a second",
        ),
        ("web", [change(Knob.CACHE_GROUP, "", "equipoise-shop")], None, "web: web to cache group equipoise-shop"),
        ("web", [change(Knob.CACHE_GROUP, "a", "")], None, "web: web to the default group of the cache"),
        (None, [change(Knob.CACHE_WAYS, "a L3:0=1", "a L3:0=f")], None, "kvm1: cache group a L3:0=f"),
        (None, [change(Knob.CACHE_WAYS, "a L3:0=f", "")], None, "kvm1: cache group a L3:0=f removed"),
        (None, [change(Knob.IRQ_AFFINITY, "0-3", "0", index=40)], None, "kvm1: interrupt 40 to 0 (was 0-3)"),
        (
            "web",
            [pin(0), pin(1, after="2"), change(Knob.EMULATOR_PIN, "0-3", "1-2"), change(before="100", after="50")],
            None,
            "web: weight of web 100 to 50, vCPU 0 pinned to 1 (was 0-3), vCPU 1 pinned to 2 (was 0-3),"
            " emulator pinned to 1-2 (was 0-3)",
        ),
        (
            "web",
            [pin(number) for number in range(8)],
            None,
            "web: vCPU 0 pinned to 1 (was 0-3), vCPU 1 pinned to 1 (was 0-3), vCPU 2 pinned to 1 (was 0-3) and 5 more",
        ),
        (
            "web",
            [change(outcome=OutcomeKind.OBSERVED)],
            times(later_ms=700),
            "shop: p95 612 ms, SLA 500 ms, weight of web 9,100 to 24,300 (observed only, nothing written);"
            " 10 s later 700 ms",
        ),
        (
            "web",
            [change(), change(Knob.IDLE, "0", "1", OutcomeKind.FAILED, detail="EBUSY")],
            None,
            "web: weight of web 9,100 to 24,300, web into the idle class (could not be written: EBUSY)",
        ),
    ],
)
def test_the_sentence(vm: str | None, changes: list[KnobChange], seen: Times | None, text: str) -> None:
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
    ("time_ms", "text"), [(0.01, "0.01 ms"), (1.5, "1.5 ms"), (99.96, "100 ms"), (1250, "1,250 ms")]
)
def test_milliseconds(time_ms: float, text: str) -> None:
    assert milliseconds(time_ms) == text
