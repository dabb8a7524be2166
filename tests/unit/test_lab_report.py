"""What the demonstration makes of its measurements, and that it can say no."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from deploy.lab.demo.demo_report import (
    PhaseResult,
    batch_lost_to,
    print_report,
    print_verdicts,
    request_costs,
    to_json,
    verdicts,
    warp_brought,
)
from deploy.lab.demo.measure import CpuReading, CpuUse, DemoMeasurement, Meter, ServiceUse
from deploy.lab.demo.originals import differences
from deploy.lab.demo.scene import PHASES, BatchShape, parse_shape, phases_scene
from deploy.lab.demo.turns import merged
from deploy.lab.demo.warping import warp_to_show
from manager.model.histogram import Histogram
from manager.model.warp import Mechanism, WarpUse


def phase(name: str, memcached_p95_us: float, nginx_p95_us: float, host_share: float = 0.99) -> dict[str, Any]:
    def load(p95_us: float) -> dict[str, Any]:
        return {
            "p50_us": p95_us / 2,
            "p95_us": p95_us,
            "p99_us": p95_us * 2,
            "rate_rps": 500.0,
            "sent": 1000,
            "errors": 0,
            "client_limited": False,
            "sla_state": "met",
            "cpu_us_per_request": p95_us / 5,
            "sleeps_per_request": 0.75,
        }

    return {
        "name": name,
        "services": {"memcached": load(memcached_p95_us), "nginx": load(nginx_p95_us)},
        "host_cpu_share": host_share,
        "batch_share_of_alone": 0.5,
        "batch_pcpus": 1.0,
        "critical_pcpus": 0.8,
        "outside_cpu_share": 0.1,
        "stolen_cpu_share": 0.0,
        "load_generators_cpu_share": 0.17,
    }


GOOD = [
    phase("alone-pinned", 500, 700, 0.5),
    phase("equal", 8000, 9000),
    phase("weighted", 700, 3000),
    phase("protected", 600, 700),
]


def test_all_holds_when_it_does() -> None:
    assert all(holds for holds, _ in verdicts(GOOD))


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (phase("equal", 8000, 9000, host_share=0.9), ["equal: the managed CPUs are full (90.0 %"]),
        (
            phase("protected", 700, 700),
            ["memcached's p95 protected is 1.40 x pinned and alone (at most 1.3 x); with weights and pins only 1.40 x"],
        ),
        (phase("protected", 600, 1500), ["nginx's p95 protected is 2.14 x", "nginx's p99 protected is 2.14 x"]),
        ({**phase("protected", 600, 700), "batch_share_of_alone": 0.4}, ["batch gets 80 % of what weights"]),
    ],
)
def test_what_falls_short_is_said(replaced: dict[str, Any], says: list[str]) -> None:
    phases = [replaced if one["name"] == replaced["name"] else one for one in GOOD]
    short = [text for holds, text in verdicts(phases) if not holds]
    assert len(short) == len(says)
    assert all(text.startswith(beginning) for text, beginning in zip(short, says, strict=True))


def test_shapes_of_batch_vms() -> None:
    assert parse_shape("4x1") == BatchShape(4, 1)
    assert [(vm.name, vm.vcpus) for vm in phases_scene(BatchShape(1, 4)).batch] == [("eqp-lab-batch-1", 4)]
    for text in ("5x1", "2x0", "2", "axb"):
        with pytest.raises(ValueError):
            parse_shape(text)


@pytest.mark.parametrize("restored", [True, False])
def test_the_report_labels_emulation_and_says_what_was_not_put_back(restored: bool) -> None:
    result = {
        "accelerator": "tcg",
        "duration_s": 40.0,
        "load_cpus": [0, 1],
        "batch_vms": [{"name": "batch-1", "vcpus": 2}],
        "phases": GOOD,
        "skipped": {},
        "restored": restored,
        "not_restored": [] if restored else ["web: cpu.shares: was 1024, is 2"],
        "kept_running": False,
    }
    out = StringIO()
    print_report(Console(file=out, width=160), result)
    assert "emulated (TCG)" in out.getvalue()
    assert ("was 1024, is 2" in out.getvalue()) is not restored


def test_differences_name_what_changed_appeared_and_went() -> None:
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == ["b: was 2, is 3"]
    assert differences({"a": "1"}, {"c": "1"}) == ["a: was 1, is absent", "c: was absent, is 1"]


def test_turns_are_one_measurement() -> None:
    def turn(times_us: list[float], late_us: float, errors: dict[str, int], host_share: float) -> DemoMeasurement:
        stolen_share = (1 - host_share) / 5
        services = {"memcached": ServiceUse(host_share / 2, 100 * host_share)}
        buckets = {str(bucket): count for bucket, count in Histogram.of(times_us).buckets.items()}
        load = {
            "histogram": {"buckets": buckets},
            "rate_rps": float(len(times_us)),
            "sent": len(times_us),
            "errors": errors,
            "client_limited": late_us > 500,
            "lateness": {"p99_us": late_us},
            "cpu_share": 0.1,
        }
        return DemoMeasurement({"memcached": load}, CpuUse(host_share, 0.1, 1.5, 0.4, services, stolen_share))

    both = merged([turn([1000] * 90, 900, {"refused": 1}, 1.0), turn([9000] * 10, 100, {}, 0.5)])
    [load] = both.loads.values()
    assert load["p50_us"] == pytest.approx(1000, rel=0.01)
    assert load["p95_us"] == pytest.approx(9000, rel=0.01), "of all response times, no mean of percentiles"
    assert (load["rate_rps"], load["sent"], load["errors"]) == (50, 100, {"refused": 1})
    assert load["client_limited"], "in one turn is enough"
    assert load["lateness"]["p99_us"] == 900
    assert both.use == CpuUse(0.75, 0.1, 1.5, 0.4, {"memcached": ServiceUse(0.375, 75)}, 0.05)


def test_stolen_time_is_no_other_programs() -> None:
    scene = phases_scene(BatchShape(1, 1))
    meter = Meter(scene, MagicMock())
    sleeps = dict.fromkeys((service.name for service in scene.services), 0)
    idle_s = dict.fromkeys((vm.name for vm in scene.vms), 0.0)
    before = CpuReading(0, 0, 0, 0, 0, idle_s, sleeps, 5)
    after = CpuReading(10, 18, 20, 18, 20, idle_s | {scene.batch[0].name: 15.0}, sleeps, 7)
    use = meter.use(before, after)
    assert (use.stolen_share, use.outside_share) == pytest.approx((0.1, 0.05))


@pytest.mark.parametrize(("stolen_share", "trusted"), [(0.01, True), (0.13, False)])
def test_a_run_on_a_machine_whose_cpus_are_taken_away_is_not_to_be_trusted(stolen_share: float, trusted: bool) -> None:
    out = StringIO()
    part = {**GOOD[3], "stolen_cpu_share": stolen_share}
    result = {"load_cpus": [0, 1], "restored": True}
    print_verdicts(Console(file=out, width=160), result, {"protected": part}, [])
    told = "protected: 13 % of the CPUs' time went to other virtual machines: do not trust this run"
    assert (told in out.getvalue()) is not trusted


def warped(p95_us: float, vms: int = 2) -> list[dict[str, Any]]:
    told = {"mechanism": "slice", "detail": "EEVDF honours a slice", "vms": vms}
    return [*GOOD, phase("warp", p95_us, 9000) | {"warp": told}]


def test_who_got_what_batch_lost_is_said() -> None:
    protected = {**GOOD[3], "batch_pcpus": 0.88, "critical_pcpus": 0.95}
    assert batch_lost_to([*GOOD[:3], protected]) == (
        "protected, batch VMs have 0.12 pCPUs less than with weights and pins only, and critical VMs use 0.15 more: "
        "0.95, where they use 0.80 alone and 0.80 while they wait for batch VMs"
    )


def test_what_a_request_costs_is_said_by_phase() -> None:
    assert request_costs(GOOD) == [
        "a request of memcached costs its VM: alone-pinned 100 us of CPU time and 0.75 sleeps, "
        "weighted 140 us of CPU time and 0.75 sleeps, protected 120 us of CPU time and 0.75 sleeps",
        "a request of nginx costs its VM: alone-pinned 140 us of CPU time and 0.75 sleeps, "
        "weighted 600 us of CPU time and 0.75 sleeps, protected 140 us of CPU time and 0.75 sleeps",
    ]


def test_costs_are_those_of_the_answers_that_came() -> None:
    load = {"p50_us": 1, "p95_us": 1, "p99_us": 1, "rate_rps": 500.0, "sent": 1, "errors": {}, "client_limited": False}
    load |= {"lateness": {"p99_us": 1}, "cpu_share": 0.1}
    use = CpuUse(1, 0.1, 1.5, 0.4, {"memcached": ServiceUse(0.25, 400)})
    [told] = PhaseResult(PHASES[0], DemoMeasurement({"memcached": load}, use), {}, 2).to_json()["services"].values()
    assert (told["cpu_us_per_request"], told["sleeps_per_request"]) == (500, 0.8)
    [told] = (
        PhaseResult(PHASES[0], DemoMeasurement({"memcached": load | {"rate_rps": 0}}, use), {}, 2)
        .to_json()["services"]
        .values()
    )
    assert told["cpu_us_per_request"] is None


def test_what_a_warp_brought_is_said_whatever_it_is() -> None:
    assert warp_brought(warped(7600)) == [
        "memcached's p95 with a warp by slice is 0.95 x that at equal weights without",
        "nginx's p95 with a warp by slice is 1.00 x that at equal weights without",
    ]
    assert all(holds for holds, _ in verdicts(warped(80_000))), "nothing is promised of it"
    assert warp_brought(warped(7600, vms=0)) == ["no warp was in force in the phase warp: EEVDF honours a slice"]
    assert warp_brought(GOOD) == []


@pytest.mark.parametrize(
    ("there", "use", "words"),
    [
        ({"sched_ext", "bvt", "slice"}, WarpUse.SCHED_EXT, "by Equipoise's sched_ext scheduler"),
        ({"bvt", "slice"}, WarpUse.ON, "by the BVT patch"),
        ({"slice", "group_identity"}, WarpUse.OFF, "measured to help is here: sched_ext lacks; bvt lacks"),
        (set(), WarpUse.OFF, "measured to help"),
    ],
)
def test_warps_are_shown_by_what_helps_only(there: set[str], use: WarpUse, words: str) -> None:
    offers = [
        {
            "mechanism": str(mechanism),
            "available": mechanism in there,
            "detail": f"{mechanism} {'is there' if mechanism in there else 'lacks'}",
        }
        for mechanism in Mechanism
        if mechanism is not Mechanism.NONE
    ]
    found, why = warp_to_show(offers)
    assert found is use
    assert words in why
    assert warp_to_show([])[0] is WarpUse.OFF


def test_a_phase_that_was_left_out_is_told_with_the_reason() -> None:
    scene = phases_scene(BatchShape())
    result = to_json(scene, "tcg", "no KVM", 40, [], [], {"warp": "nothing here helps"})
    assert (result["skipped"], result["phases"]) == ({"warp": "nothing here helps"}, [])
    console = Console(record=True, width=200, file=StringIO())
    print_report(console, result | {"phases": GOOD})
    assert "left out    the phase warp: nothing here helps" in console.export_text()


def test_the_phase_of_warps_differs_from_equal_weights_by_nothing_else() -> None:
    by_name = {one.name: one for one in PHASES}
    equal, warp = by_name["equal"], by_name["warp"]
    assert replace(warp, name=equal.name, says=equal.says, warp=False) == equal
