"""Jobs of batch VMs in the loop: weights, events, and the work that counts on when the agent starts again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.loop.status import tick_status
from manager.loop.tick import TickResult
from manager.model.job import BatchJob, JobState
from manager.model.knobs import Knob
from manager.model.registration import Mode
from tests.fakes.vm import domain_uuid
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
