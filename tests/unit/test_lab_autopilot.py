"""The autopilot's demonstration: what it makes of what it saw, the bars it judges by, and its picture."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.lab.demo.autopilot_report import autopilot_verdicts, cures, noise_of, print_autopilot_report
from deploy.lab.demo.autopilot_scene import LEAD_S, PHASES, autopilot_scene, late_vm, with_events, with_targets
from deploy.lab.demo.autopilot_turns import (
    MARGIN,
    CpuPlace,
    PlayedTurn,
    SeenViolation,
    joined,
    target_of,
    violations,
)
from deploy.lab.demo.measure import CpuUse, DemoMeasurement
from deploy.lab.demo.picture import draw_autopilot
from deploy.lab.lab_vms import GuestRole
from manager.model.histogram import bucket_of

CHANGED_S, TURN_S = 1000.0, 12.0


def load(time_ms: float) -> dict[str, Any]:
    return {
        "histogram": {"buckets": {str(bucket_of(time_ms * 1000)): 100}},
        "rate_rps": 100.0,
        "sent": 100,
        "errors": {},
        "client_limited": False,
        "lateness": {"p99_us": 50},
        "cpu_share": 0.05,
    }


def turn(equal_ms: float, parts_ms: tuple[float | None, ...], cure_s: float = 0.0, batch: float = 0.8) -> PlayedTurn:
    """A turn with those p95 at equal weights and in each third; for ``cure_s`` it goes on as at equal weights."""
    pushed = []
    for place in range(-6, int(TURN_S / 0.5)):
        at_s = place * 0.5
        part_ms = parts_ms[max(int(at_s // (TURN_S / 3)), 0)]
        time_ms = equal_ms if at_s < cure_s else part_ms
        buckets = {} if time_ms is None else {bucket_of(time_ms * 1000): 50}
        pushed.append({"start_epoch_s": CHANGED_S + at_s, "end_epoch_s": CHANGED_S + at_s + 0.5, "buckets": buckets})
    measured = DemoMeasurement({"web": load(equal_ms)}, CpuUse(0.99, 0.1, batch, 1.0))
    cpu = tuple(CpuPlace(1.0, 0.99, batch if second >= 8 else 1.5) for second in range(12))
    return PlayedTurn(TURN_S, 990.0, CHANGED_S, CHANGED_S + 8, CHANGED_S + TURN_S, {"web": pushed}, measured, cpu)


def test_a_spike_is_agreed_and_nothing_is_registered_but_an_sla() -> None:
    scene = with_events(autopilot_scene(late_vm()))
    for service in scene.services:
        rates = [phase.rate_rps for phase in service.load(30.0, 0.5).schedule]
        assert service.max_rate_rps is not None
        assert max(rates) < service.max_rate_rps
        assert (max(rates) > rates[0]) == (service.vm.role is GuestRole.NGINX)
        lengths_s = [phase.duration_s for phase in service.load(30.0 + LEAD_S, 0.5).schedule]
        assert lengths_s == ([10.0 + LEAD_S, 10.0, 10.0] if service.spike_rps else [30.0 + LEAD_S])
    assert scene.tapped
    assert scene.late not in scene.vms
    assert {vm.vcpus for vm in scene.batch} == {1, 2}
    assert [set(phase.settings) for phase in PHASES] == [{"policy"}] * len(PHASES)
    targets = {"memcached": 3.0, "nginx": 4.0}
    assert {service.name: service.sla_ms for service in with_targets(scene, targets).services} == targets


@pytest.mark.parametrize(
    ("times_ms", "found"),
    [
        ([1, 1, 1], []),
        ([], []),
        ([9, 9, 1, 1, 1], [SeenViolation(0, 1.0, met=True)]),
        ([9, 1, 9, 1, 1], [SeenViolation(0, 1.5, met=True)]),  # one interval within the target is not enough
        ([1, None, 1, 1], [SeenViolation(0.5, 0.5, met=True)]),  # nothing was answered
        ([9, 1, 1, 9, 9], [SeenViolation(0, 0.5, met=True), SeenViolation(1.5, 1.0, met=False)]),
        ([9, 1], [SeenViolation(0, 1.0, met=False)]),
    ],
)
def test_a_violation_ends_when_two_intervals_in_a_row_meet_the_sla(
    times_ms: list[float | None], found: list[SeenViolation]
) -> None:
    assert violations(times_ms, 5.0, 0.5) == found


@pytest.mark.parametrize(
    ("equal_ms", "parts_ms", "sla_ms", "violated"),
    [
        (20.0, (2.0, 3.0, 2.0), 6.0, True),  # twice the slowest part
        (6.5, (2.0, 3.0, 2.0), 6.5 / MARGIN, True),  # less, so that equal weights violate it clearly
        (5.0, (2.0, 3.0, 2.0), 6.0, False),
        (20.0, (2.0, None, 2.0), None, False),
    ],
)
def test_the_target_is_met_by_hand_and_violated_by_equal_weights_if_that_can_be(
    equal_ms: float, parts_ms: tuple[float | None, ...], sla_ms: float | None, violated: bool
) -> None:
    target = target_of(turn(equal_ms, parts_ms), "web")
    assert target.sla_ms == (None if sla_ms is None else pytest.approx(sla_ms, rel=0.02))
    assert target.violated == violated


def test_what_piled_up_at_equal_weights_is_no_target() -> None:
    target = target_of(turn(400.0, (2.0, 3.0, 2.0), cure_s=2.5), "web")
    assert target.sla_ms == pytest.approx(6.0, rel=0.02)
    assert target.violated


def test_turns_are_one_phase() -> None:
    phase = joined([turn(20, (2, 3, 2), cure_s=1.5), turn(20, (2, 9, 2), batch=0.6)], {"web": 6.0}, [{"weight": 4}, {}])
    seen = phase["services"]["web"]
    assert seen["before_p95_ms"] == pytest.approx([20, 20], rel=0.02)
    assert cures(seen) == [1.5, 0.0]
    assert seen["violations"][1] == [{"start_s": 4.0, "length_s": 4.0, "met": True}]
    assert seen["violated_share"] == pytest.approx((3 + 8) / 48, abs=1e-4)
    assert seen["parts"]["spike"]["p95_ms"] == pytest.approx(9, rel=0.02)
    assert len(seen["p95_ms"]) == 24
    assert phase["batch_at_end_pcpus"] == pytest.approx(0.7)
    assert len(phase["batch_pcpus"]) == 12


def result_of(**changed: PlayedTurn) -> dict[str, Any]:
    """All policies alike but those given, as a demonstration's result."""
    phases = []
    for number, phase in enumerate(PHASES):
        played = changed.get(phase.name, turn(20, (2, 3, 2), cure_s=1.5))
        phases.append({"name": phase.name} | joined([played], {"web": 6.0}, [{"weight": number}]))
    return {
        "scenario": "autopilot",
        "accelerator": "tcg",
        "turns": 1,
        "turn_s": TURN_S,
        "interval_s": 0.5,
        "cpu_every_s": 1.0,
        "load_cpus": [1],
        "calibrated": True,
        "calibration": {"web": "measured"},
        "phases": phases,
        "restored": True,
        "kept_running": False,
        "not_restored": [],
    }


def test_a_run_that_keeps_all_bars_says_so() -> None:
    result = result_of()
    assert [text for holds, text in autopilot_verdicts(result["phases"]) if not holds] == []
    assert "web's p95 1.00 x, batch 100 %" in noise_of(result["phases"])


@pytest.mark.parametrize(
    ("auto", "says"),
    [
        (turn(20, (2, 3, 2), cure_s=5.5), "auto: from violation to met web takes 5.5 s at most (at most 5 s)"),
        (turn(20, (2, 9, 2)), None),  # 4 s of violation in the spike
        (turn(20, (2, 3, 3)), "auto: web ends with 1."),
        (turn(20, (2, 3, 2), batch=0.7), "auto: batch ends with 87 % of what the hand-made setting leaves it"),
        (turn(5, (2, 3, 2)), "equal weights violate web's SLA before auto is set in 0 of 1 turns"),
    ],
)
def test_what_falls_short_is_printed(auto: PlayedTurn, says: str | None) -> None:
    result = result_of(auto=auto)
    short = [text for holds, text in autopilot_verdicts(result["phases"]) if not holds]
    assert [text.startswith(says or "") for text in short] == [True] * (says is not None)
    out = StringIO()
    print_autopilot_report(Console(file=out, width=200), result)
    assert ("FALLS SHORT" in out.getvalue()) == (says is not None)
    assert "emulated (TCG)" in out.getvalue()


def test_a_violation_that_is_not_over_at_the_end_is_no_cure_however_short() -> None:
    result = result_of(auto=turn(20, (2, 3, 9)))
    short = [text for holds, text in autopilot_verdicts(result["phases"]) if not holds]
    assert any("one was not over at the end of its turn" in text for text in short)


def test_without_a_target_nothing_is_judged() -> None:
    out = StringIO()
    result = result_of() | {"calibrated": False, "phases": []}
    print_autopilot_report(Console(file=out, width=200), result)
    assert "FAILED      web: measured" in out.getvalue()


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_of_the_kind_its_name_says(suffix: str, begins: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"autopilot.{suffix}"
    draw_autopilot(result_of(), file)
    assert file.read_bytes().startswith(begins)
