"""Jobs of batch VMs in the loop: weights, events, and the work that counts on when the agent starts again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from manager.control.batch_progress import MOST_AWAY
from manager.loop.status import tick_status
from manager.loop.tick import TickResult
from manager.model.job import BatchJob, JobState
from manager.model.knobs import INSIDE, OUTSIDE, Knob
from manager.model.registration import Mode
from manager.model.rules import BatchGroupUse, PlacementRules
from tests.fakes.vm import FakeVm, domain_uuid
from tests.loop.conftest import Rig


@pytest.fixture
def busy(rig: Rig) -> Rig:
    """Two batch VMs beside a critical one; the first has 60 CPU seconds to do in 200 s."""
    for name in ("web", "render", "other"):
        rig.host.boot(name)
    rig.register("web")
    rig.register("render", "batch", job=BatchJob(rig.now_s + 200, 60.0))
    rig.register("other", "batch")
    return rig


def pass_time(rig: Rig, seconds: int, got: float = 0.25) -> TickResult:
    """Each batch VM gets so much of a pCPU and waits for the rest."""
    for _ in range(seconds):
        for name in ("render", "other"):
            vm = rig.host.vms[domain_uuid(name)]
            vm.cpu_ns += round(got * 1e9)
            vm.delay_ns += round((1 - got) * 1e9)
        result = rig.tick()
    return result


def test_the_job_goes_first_and_its_risk_is_an_event(busy: Rig) -> None:
    busy.tick()
    before = busy.value("web")
    events = [event for _ in range(80) for event in pass_time(busy, 1).events]
    assert busy.value("render") > busy.value("other")  # type: ignore[operator]
    assert busy.value("web") == before
    [event] = [event for event in events if event.kind == "job-at-risk"]
    assert event.vm == "render"
    assert "render needs" in event.message
    result = pass_time(busy, 1)
    faring = {vm.vm: vm for vm in tick_status(result, 0, 0, True).batch_vms}
    assert (faring["render"].state, faring["other"].state) == (JobState.AT_RISK, None)
    assert faring["render"].done_cpu_s == pytest.approx(20, abs=1)


def test_work_counts_on_when_the_agent_starts_again(busy: Rig) -> None:
    pass_time(busy, 20)
    busy.crash()
    busy.control(mode=Mode.RELEASED)
    busy.tick()
    busy.control(mode=Mode.ENFORCE)
    result = pass_time(busy, 2)
    [render] = [vm for vm in result.batch_vms if vm.vm == "render"]
    assert render.done_cpu_s == pytest.approx(5.2, abs=0.5)


def test_without_the_job_weights_are_alike_again(busy: Rig) -> None:
    pass_time(busy, 20)
    busy.assignment = replace(busy.assignment, vms=tuple(replace(vm, job=None) for vm in busy.assignment.vms))
    pass_time(busy, 2)
    assert busy.value("render") == busy.value("other")
    assert busy.value("render", Knob.WEIGHT) == 2


def test_how_they_fare_is_looked_at_every_few_seconds_and_at_once_when_a_job_changes(busy: Rig) -> None:
    pass_time(busy, 10)
    seen = [pass_time(busy, 1).batch_vms for _ in range(10)]
    assert len({id(vms) for vms in seen}) in {2, 3}
    assert seen[-1][0].got_pcpus == pytest.approx(0.25, abs=0.01)
    busy.assignment = replace(busy.assignment, vms=tuple(replace(vm, job=None) for vm in busy.assignment.vms))
    assert {vm.state for vm in pass_time(busy, 1).batch_vms} == {None}


def test_work_in_the_batch_group_counts_on_when_the_agent_starts_again(
    busy: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cpu and cpuacct are one mount, the count of what a VM used in its copy of the group ends with the copy."""
    move, outside_ns = busy.host._move, dict[object, int]()

    def counted(vm: FakeVm, place: int) -> None:
        if place == INSIDE:
            outside_ns.setdefault(vm.instance, vm.cpu_ns)
        move(vm, place)
        if place == OUTSIDE:
            vm.cpu_ns = outside_ns.pop(vm.instance)

    monkeypatch.setattr(busy.host, "_move", counted)
    busy.control(placement=PlacementRules(batch_group=BatchGroupUse.ON), pinning=False)
    pass_time(busy, 20)
    busy.loop.release("agent stopped")
    busy.crash()
    result = pass_time(busy, 2)
    [render] = [vm for vm in result.batch_vms if vm.vm == "render"]
    assert render.done_cpu_s == pytest.approx(5.2, abs=0.5)


def test_jobs_of_vms_that_are_gone_are_not_kept_for_ever(rig: Rig) -> None:
    nobody = rig.assignment
    for number in range(MOST_AWAY + 20):
        rig.host.boot(f"job-{number}")
        rig.assignment = nobody
        rig.register(f"job-{number}", "batch", job=BatchJob(rig.now_s + 100, 60.0))
        rig.tick()
        rig.host.stop(f"job-{number}")
        rig.tick()
    rig.assignment = nobody
    for _ in range(30):
        rig.tick()
    kept = json.loads(rig.journal.jobs)
    assert len(kept) == MOST_AWAY
    assert "job-19" not in kept, "of the earliest deadlines"
    assert "job-20" in kept
