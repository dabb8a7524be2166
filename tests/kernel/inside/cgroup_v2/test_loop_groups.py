"""The loop with the idle class and quotas: what the kernel loses on the way comes back, whenever the agent dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.host.kernel_host import KernelHost
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, HostSpec, Mode, VmClass, VmSpec
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, Place, Vm, scope_name, try_write
from tests.kernel.inside.cgroup_v2.test_loop import Agent

LIMIT_PCPUS = 0.4


@pytest.fixture
def assignment(web: Vm, batch: Vm) -> Assignment:
    specs = (
        VmSpec("web", VmClass.CRITICAL, libvirt_name=web.name),
        VmSpec("batch", VmClass.BATCH, libvirt_name=batch.name),
    )
    return Assignment(HostSpec("guest", mode=Mode.ENFORCE, policy="priority", batch_idle=True), vms=specs)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def agent(journal: Path, web: Vm, batch: Vm) -> Iterator[Agent]:
    started = Agent(journal, web, batch)
    yield started
    started.end()


def outcomes(agent: Agent, assignment: Assignment) -> set[OutcomeKind]:
    return {record.outcome for record in agent.tick(assignment).records}


@pytest.mark.parametrize("policy", ["priority", "equal"])
@pytest.mark.parametrize("weight", [777, 100, 1])
def test_the_weight_that_the_idle_class_loses_comes_back(
    agent: Agent, assignment: Assignment, web: Vm, batch: Vm, policy: str, weight: int
) -> None:
    assert try_write(batch.weight, weight) == 0
    before = [web.settings(), batch.settings()]
    wanted = replace(assignment, host=replace(assignment.host, policy=policy))
    assert outcomes(agent, wanted) == {OutcomeKind.APPLIED}
    assert batch.idle.read_text() == "1\n"
    for _ in range(3):
        assert outcomes(agent, wanted) == set(), "an idle group's weight is not written"
    agent.release()
    assert [web.settings(), batch.settings()] == before
    assert not agent.journal.entries


def test_leaving_the_class_gives_the_policys_weight_and_then_the_original(
    agent: Agent, assignment: Assignment, web: Vm, batch: Vm
) -> None:
    assert try_write(batch.weight, 777) == 0
    before = [web.settings(), batch.settings()]
    agent.tick(assignment)
    agent.tick(replace(assignment, host=replace(assignment.host, batch_idle=False)))
    assert (batch.idle.read_text(), batch.weight.read_text()) == ("0\n", "1\n")
    agent.tick(assignment)
    assert batch.idle.read_text() == "1\n"
    agent.tick(replace(assignment, host=replace(assignment.host, mode=Mode.OBSERVE)))
    assert [web.settings(), batch.settings()] == before


def die(agent: Agent, assignment: Assignment, moment: tuple[str, int]) -> None:
    """Enforce and release, but end this process by SIGKILL after the first write of a value to cpu.idle."""
    real = KernelHost.write

    def write(self: KernelHost, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        deadly = key.knob is Knob.IDLE and value == moment[1]
        if deadly and moment[0] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        held = real(self, instance, key, value)
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return held

    KernelHost.write = write  # type: ignore[method-assign]
    agent.tick(assignment)
    agent.release()


@pytest.mark.parametrize("again", [False, True], ids=["release at once", "go on and release"])
@pytest.mark.parametrize(
    "moment",
    [("before", 1), ("after", 1), ("before", 0), ("after", 0)],
    ids=["before entering", "after entering", "before leaving", "after leaving, before the weight"],
)
def test_killed_at_the_edge_of_the_idle_class(
    journal: Path, assignment: Assignment, web: Vm, batch: Vm, moment: tuple[str, int], again: bool
) -> None:
    assert try_write(batch.weight, 777) == 0
    before = [web.settings(), batch.settings()]
    child = os.fork()
    if child == 0:
        try:
            die(Agent(journal, web, batch), assignment, moment)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it killed itself and did not fail before"
    assert batch.weight.read_text() != "777\n"
    agent = Agent(journal, web, batch)
    if again:
        assert outcomes(agent, assignment) <= {OutcomeKind.APPLIED, OutcomeKind.RESTORED}, "nothing looks foreign"
        assert batch.idle.read_text() == "1\n"
    agent.release()
    assert [web.settings(), batch.settings()] == before
    assert not agent.journal.entries
    agent.end()


def test_a_vm_that_another_tool_made_idle_is_left_so(agent: Agent, assignment: Assignment, web: Vm, batch: Vm) -> None:
    assert try_write(batch.idle, 1) == 0
    before = batch.settings()
    for wants_idle in (False, True):
        wanted = replace(assignment, host=replace(assignment.host, batch_idle=wants_idle))
        for _ in range(2):
            agent.tick(wanted)
            assert batch.settings() == before
    assert web.weight.read_text() == "10000\n"
    agent.release()
    assert batch.settings() == before


def test_an_idle_class_that_another_tool_set_is_left_to_it(agent: Agent, assignment: Assignment, batch: Vm) -> None:
    wanted = replace(assignment, host=replace(assignment.host, batch_idle=False))
    agent.tick(wanted)
    agent.tick(wanted)
    assert try_write(batch.idle, 1) == 0
    agent.tick(wanted)
    agent.tick(wanted)
    assert batch.idle.read_text() == "1\n"
    agent.release()
    assert batch.idle.read_text() == "1\n"


def test_an_idle_class_that_systemd_took_back_is_set_again(agent: Agent, assignment: Assignment, batch: Vm) -> None:
    agent.tick(assignment)
    agent.tick(assignment)
    assert try_write(batch.idle, 0) == 0  # as systemd does in a scope on daemon-reload
    agent.tick(assignment)
    agent.tick(assignment)
    assert batch.idle.read_text() == "1\n"
    agent.release()
    assert batch.idle.read_text() == "0\n"


@pytest.mark.parametrize("original", ["max 50000", "30000 50000", "5000 10000", "max 100000", "2000000 1000000"])
def test_a_quota_is_put_back_with_the_period_it_had(
    agent: Agent, assignment: Assignment, web: Vm, batch: Vm, original: str
) -> None:
    assert try_write(batch.quota, original) == 0
    before = [web.settings(), batch.settings()]
    limited = replace(assignment.vms[1], max_pcpus=LIMIT_PCPUS)
    agent.tick(replace(assignment, vms=(assignment.vms[0], limited)))
    period_us = int(original.split()[1])
    assert batch.quota.read_text() == f"{round(LIMIT_PCPUS * period_us)} {period_us}\n"
    agent.release()
    assert [web.settings(), batch.settings()] == before


def test_a_quota_that_another_tool_changed_is_left_to_it(agent: Agent, assignment: Assignment, batch: Vm) -> None:
    limited = replace(assignment, vms=(assignment.vms[0], replace(assignment.vms[1], max_pcpus=LIMIT_PCPUS)))
    agent.tick(limited)
    agent.tick(limited)
    assert try_write(batch.quota, "70000 100000") == 0
    assert OutcomeKind.EXTERNAL in outcomes(agent, limited)
    agent.tick(limited)
    agent.release()
    assert batch.quota.read_text() == "70000 100000\n"


def test_without_the_controller_there_is_nothing_to_limit(
    journal: Path, assignment: Assignment, web: Vm, batch: Vm, place: Place
) -> None:
    plain = CGROUPS / "limitless.slice"
    plain.mkdir(exist_ok=True)
    bare = place(plain / scope_name(7, "spare"))
    spec = VmSpec("bare", VmClass.BATCH, libvirt_name=bare.name, max_pcpus=LIMIT_PCPUS)
    before = bare.settings()
    agent = Agent(journal, web, batch, bare)
    result = agent.tick(replace(assignment, vms=(*assignment.vms, spec)))
    assert {record.vm for record in result.records} == {"web", "batch"}
    assert {record.outcome for record in result.records} == {OutcomeKind.APPLIED}
    assert bare.settings() == before
    agent.release()
    agent.end()
