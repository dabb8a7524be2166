"""The whole loop over this kernel: enforce, be killed, start again, release, and everything is as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.host.kernel_host import KernelHost
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, HostSpec, Mode, VmClass, VmSpec
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, ONLINE, Place, Vm, open_host, scope_name, try_write


class Agent:
    """The loop of an agent on this host, from its start to its end."""

    def __init__(self, journal: Path, *vms: Vm) -> None:
        self.host = open_host(*vms)
        self.journal = Journal(journal, self.host.boot_id)
        policies = {"equal": EQUAL, "priority": PRIORITY}
        self._loop = ControlLoop(
            self.host, self.journal, policies, LoopSettings("guest", 1.0, 30.0, 20), limits=EVERYTHING
        )

    def tick(self, assignment: Assignment) -> TickResult:
        result = self._loop.tick(assignment, {})
        assert not result.problems
        return result

    def release(self) -> TickResult:
        return self._loop.release("test")

    def end(self) -> None:
        self.journal.close()
        self.host.forget(frozenset())


@pytest.fixture
def assignment(web: Vm, batch: Vm) -> Assignment:
    specs = (
        VmSpec("web", VmClass.CRITICAL, libvirt_name=web.name),
        VmSpec("batch", VmClass.BATCH, libvirt_name=batch.name),
    )
    return Assignment(HostSpec("guest", mode=Mode.ENFORCE, policy="priority"), vms=specs)


@pytest.fixture
def vms(web: Vm, batch: Vm, spare: Vm) -> tuple[Vm, ...]:
    """Two that are registered and one that is not; the operator has set a few things before."""
    assert try_write(web.weight, 250) == 0
    assert try_write(spare.weight, 300) == 0
    assert try_write(batch.quota, "150000 100000") == 0
    os.sched_setaffinity(batch.process.tids["CPU 1/KVM"], {1})
    return web, batch, spare


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def agent(journal: Path, vms: tuple[Vm, ...]) -> Iterator[Agent]:
    started = Agent(journal, *vms)
    yield started
    started.end()


def settings(vms: tuple[Vm, ...]) -> list[dict[str, str]]:
    return [vm.settings() for vm in vms]


def assert_enforced(vms: tuple[Vm, ...], before: list[dict[str, str]]) -> None:
    web, batch, _ = vms
    assert (web.weight.read_text(), batch.weight.read_text()) == ("10000\n", "1\n")
    pinned = [os.sched_getaffinity(web.process.tids[f"CPU {index}/KVM"]) for index in range(2)]
    assert sorted(map(sorted, pinned)) == [[0], [1]]
    assert os.sched_getaffinity(batch.process.pid) == ONLINE
    assert vms[2].settings() == before[2], "nobody registered it"


def test_priority_and_release(agent: Agent, assignment: Assignment, vms: tuple[Vm, ...]) -> None:
    before = settings(vms)
    enforced = agent.tick(assignment)
    assert {record.outcome for record in enforced.records} == {OutcomeKind.APPLIED}
    assert_enforced(vms, before)
    assert agent.tick(assignment).records == (), "nothing differs any more"
    released = agent.release()
    assert {record.outcome for record in released.records} == {OutcomeKind.RESTORED}
    assert settings(vms) == before
    assert not agent.journal.entries


def test_observing_writes_nothing(agent: Agent, assignment: Assignment, vms: tuple[Vm, ...]) -> None:
    before = settings(vms)
    observed = agent.tick(replace(assignment, host=replace(assignment.host, mode=Mode.OBSERVE)))
    assert {record.outcome for record in observed.records} == {OutcomeKind.OBSERVED}
    assert settings(vms) == before


def die(agent: Agent, assignment: Assignment, moment: str) -> None:
    """End this process by SIGKILL at a moment of its first tick."""
    real = KernelHost.write

    def write(self: KernelHost, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        if moment == "before the first write":
            os.kill(os.getpid(), signal.SIGKILL)
        held = real(self, instance, key, value)
        if moment == "after the first weight" and key.knob is Knob.WEIGHT:
            os.kill(os.getpid(), signal.SIGKILL)
        return held

    KernelHost.write = write  # type: ignore[method-assign]
    agent.tick(assignment)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("again", [False, True], ids=["release at once", "go on and release"])
@pytest.mark.parametrize("moment", ["before the first write", "after the first weight", "after the tick"])
def test_killed_and_started_again(
    journal: Path, assignment: Assignment, vms: tuple[Vm, ...], moment: str, again: bool
) -> None:
    before = settings(vms)
    child = os.fork()
    if child == 0:
        try:
            die(Agent(journal, *vms), assignment, moment)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it killed itself and did not fail before"
    if moment == "before the first write":
        assert settings(vms) == before
    else:
        assert settings(vms) != before
    agent = Agent(journal, *vms)
    assert agent.journal.entries, "what it was about to write is known"
    if again:
        agent.tick(assignment)
        assert_enforced(vms, before)
    agent.release()
    assert settings(vms) == before
    assert not agent.journal.entries
    agent.end()


def test_a_value_that_another_tool_changed_is_left_to_it(
    agent: Agent, assignment: Assignment, vms: tuple[Vm, ...]
) -> None:
    agent.tick(assignment)
    agent.tick(assignment)
    assert try_write(vms[0].weight, 555) == 0
    foreign = agent.tick(assignment)
    assert OutcomeKind.EXTERNAL in {record.outcome for record in foreign.records}
    agent.release()
    assert vms[0].weight.read_text() == "555\n"
    assert vms[1].weight.read_text() == "100\n"


def test_a_vm_without_the_controller_is_pinned_but_not_weighted(
    journal: Path, assignment: Assignment, web: Vm, batch: Vm, place: Place
) -> None:
    plain = CGROUPS / "plain.slice"
    plain.mkdir(exist_ok=True)
    bare = place(plain / scope_name(7, "spare"))
    specs = (*assignment.vms, VmSpec("bare", VmClass.CRITICAL, libvirt_name=bare.name))
    vms = (web, batch, bare)
    before = settings(vms)
    agent = Agent(journal, *vms)
    wanted = replace(assignment, vms=specs, host=replace(assignment.host, pinning=False))
    result = agent.tick(replace(wanted, vms=(*assignment.vms, replace(specs[-1], pin=True))))
    assert {record.outcome for record in result.records} == {OutcomeKind.APPLIED}
    assert {record.knob for record in result.records if record.vm == "bare"} <= {Knob.VCPU_PIN, Knob.EMULATOR_PIN}
    assert (web.weight.read_text(), batch.weight.read_text()) == ("10000\n", "1\n")
    assert not bare.weight.exists()
    agent.release()
    assert settings(vms) == before
    agent.end()
