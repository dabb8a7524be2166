"""The demonstration of memory, disk and network: what it plays, what it reports, and its disk that is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.lab.commands import LabError
from deploy.lab.demo.measure import CpuUse
from deploy.lab.demo.resources import ANTAGONISTS, LEAD_S, UNITS, ResourceTurn, joined, lead_of
from deploy.lab.demo.resources_report import MOST_OF_ALONE, print_resources_report, ratio, resource_verdicts
from deploy.lab.demo.resources_scene import ALONE, PROTECTED, RESOURCES, Resource, resource_scene, with_disks
from deploy.lab.lab_vms import GuestRole
from deploy.lab.slow_wire import CLIENTS, UPLINK, slow_wire
from manager.model.histogram import Histogram

each_resource = pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.name)


@each_resource
def test_each_resource_has_a_service_and_who_harms_it(resource: Resource) -> None:
    scene = resource_scene(resource)
    assert [service.vm.role for service in scene.services] == [resource.service]
    assert {vm.role for vm in scene.batch} == {GuestRole.ANTAGONIST}
    assert len({vm.ip for vm in scene.vms}) == len(scene.vms) == 1 + resource.antagonists
    assert resource.phases[0].name == ALONE and not resource.phases[0].batch_runs
    assert (resource.phases[-1].name == PROTECTED) == (resource.settings is not None) == bool(resource.knobs)
    assert resource.name in UNITS and resource.name in ANTAGONISTS
    images = {vm.name: Path(f"/x/{vm.name}.img") for vm in scene.vms}
    assert [vm.disk for vm in with_disks(scene, images).vms] == list(images.values())


@each_resource
def test_only_what_protects_a_resource_needs_time_to_act(resource: Resource) -> None:
    assert [phase.name for phase in resource.phases if lead_of(resource, phase) == LEAD_S] == (
        [PROTECTED] if resource.settings else []
    )


def turn(*times_us: int, knobs: tuple[str, ...] = ()) -> ResourceTurn:
    return ResourceTurn(Histogram.of(times_us), 1, False, 0.1, CpuUse(0.9, 0.2, 1.0, 0.5), 100.0, knobs)


def test_turns_are_joined() -> None:
    found = joined([turn(1000, 1000, knobs=("first",)), turn(3000, 3000, knobs=("last",))])
    assert found["answers"] == 4 and found["errors"] == 2
    assert found["p50_ms"] == pytest.approx(1.0, rel=0.1) and found["p95_ms"] == pytest.approx(3.0, rel=0.1)
    assert (found["antagonist_per_s"], found["knobs"]) == (100.0, ["last"])
    assert joined([turn()])["p95_ms"] is None


def phase(name: str, p95_ms: float | None, knobs: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "says": name,
        "p50_ms": p95_ms,
        "p95_ms": p95_ms,
        "p99_ms": p95_ms,
        "answers": 10,
        "errors": 0,
        "client_limited": False,
        "load_generators_cpu_share": 0.1,
        "outside_cpu_share": 0.1,
        "stolen_cpu_share": 0.0,
        "host_cpu_share": 0.9,
        "antagonist_per_s": 300.0,
        "knobs": list(knobs),
    }


def played(harmed_ms: float | None, kept_ms: float | None, knobs: Sequence[str] = ("web: disk 8:0 ceiling 10",)) -> Any:
    phases = [
        phase(ALONE, 2.0),
        phase("equal", harmed_ms),
        phase("cpu only", harmed_ms),
        phase(PROTECTED, kept_ms, knobs),
    ]
    return {"resource": "disk", "service": "nginx", "phases": phases}


@pytest.mark.parametrize(
    ("resource", "holds"),
    [
        (played(20.0, 3.0), [True, True, True]),
        (played(20.0, 3.1), [True, True, False]),
        (played(3.0, 2.0), [False, True, True]),
        (played(20.0, 3.0, ()), [True, False, True]),
        (played(20.0, None), [True, True, False]),
        ({**played(20.0, 3.0), "phases": played(20.0, 3.0)["phases"][:3]}, []),
    ],
)
def test_bars(resource: Mapping[str, Any], holds: list[bool]) -> None:
    assert [held for held, _ in resource_verdicts(resource)] == holds


def test_a_report_says_what_falls_short_and_what_was_not_run() -> None:
    text = StringIO()
    result = {
        "scenario": "resources",
        "duration_s": 18,
        "accelerator": "tcg",
        "load_cpus": [1],
        "resources": [played(20.0, 8.0)],
        "skipped": {"memory": "no swap"},
        "restored": True,
        "not_restored": [],
        "kept_running": False,
    }
    print_resources_report(Console(file=text, width=160), result, UNITS)
    for words in (
        "4.00 x",
        "10.00 x",
        "300 requests/s",
        f"at most {MOST_OF_ALONE:g} x",
        "FALLS SHORT",
        "memory: no swap",
    ):
        assert words in text.getvalue()
    assert ratio(phase("a", 1.0), phase("b", None)) == float("inf")


class Recording:
    """Runs nothing; fails where told to."""

    def __init__(self, failing: str = "") -> None:
        self.ran: list[str] = []
        self._failing = failing

    def __call__(self, argv: Sequence[str], **_more: object) -> str:
        line = " ".join(argv)
        self.ran.append(line)
        if self._failing and self._failing in line:
            raise LabError("it failed")
        return f"{CLIENTS}\n" if line == "ip netns list" else ""


@pytest.mark.parametrize("failing", ["", "tbf", "netns add", f"set {UPLINK} master"])
def test_a_wire_goes_whatever_fails(failing: str) -> None:
    runner = Recording(failing)
    try:
        with slow_wire(50, runner) as wire:
            runner.ran.append("used")
            assert wire.uplink == UPLINK
    except LabError:
        assert failing
    else:
        assert not failing
    left = ["ip netns list", f"ip netns delete {CLIENTS}", "ip netns list", f"ip link delete {UPLINK}"]
    assert runner.ran[:4] == runner.ran[-4:] == left
    assert ("used" in runner.ran) == (not failing)
