"""The loop of an agent on this kernel: uplinks are divided, another agent follows one that died, all is undone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.loop.journal import Journal
from manager.loop.observer import Clock, LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import EGRESS, HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.network import NO_RATE, USUAL_TURN, EgressGroup
from manager.model.registration import Assignment, HostSpec, Mode, VmClass, VmSpec
from manager.model.rules import NetworkRules, UplinkRules
from policies.equal import POLICY as EQUAL
from tests.host.conftest import QemuLike, Root
from tests.host.test_kernel_host import Watch
from tests.host.uplink_wire import BATCH_ADDRESS, CRITICAL_ADDRESS, Wire, lacks, run, slow_wire

VMS = {"web": (VmClass.CRITICAL, CRITICAL_ADDRESS), "hog": (VmClass.BATCH, BATCH_ADDRESS)}
RATE_KBIT = 45_000


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    reason = lacks()
    if reason:
        pytest.skip(f"NOT TESTED: {reason}")
    with slow_wire() as made:
        yield made


class Agent:
    """Of VMs that are small processes; its clock moves by hand."""

    def __init__(self, root: Root, wire: Wire, processes: dict[str, QemuLike], journal: Path) -> None:
        self.index = wire.index
        self.wire = wire
        self.uuids = {name: process.uuid for name, process in processes.items()}
        hardware = {
            self.uuids[name]: frozenset({bytes.fromhex(address.replace(":", ""))}) for name, (_, address) in VMS.items()
        }
        instances = {process.uuid: process.instance._replace(libvirt_name=name) for name, process in processes.items()}
        watch = Watch(Domains(instances, 1, True, "9.0.0", hardware=hardware))
        self.host = KernelHost(root.paths, watch)  # type: ignore[arg-type]
        self.journal = Journal(journal, self.host.boot_id)
        self.now_s = 1000.0
        self.loop = ControlLoop(
            self.host,
            self.journal,
            {"equal": EQUAL},
            LoopSettings("h1", 5.0, 30.0, 20),
            clock=lambda: Clock(1e9 + self.now_s, self.now_s),
            limits=EVERYTHING,
        )
        network = NetworkRules(shares=True, uplinks=(UplinkRules(wire.uplink, RATE_KBIT // 1000),))
        specs = tuple(VmSpec(name, kind, libvirt_name=name) for name, (kind, _) in VMS.items())
        self.assignment = Assignment(HostSpec("h1", policy="equal", pinning=False, network=network), specs)

    def tick(self, times: int = 1) -> TickResult:
        for _ in range(times):
            self.now_s += 5.0
            result = self.loop.tick(self.assignment, {})
        return result

    def held(self) -> dict[Knob, list[KnobValue]]:
        """What knobs hold on the uplink: of the host, and of both VMs."""
        self.host.look()
        found: dict[Knob, list[KnobValue]] = {}
        for instance in (self.host.itself, *(self.host.running()[self.uuids[name]] for name in VMS)):
            for key, value in self.host.knobs(instance, Family.NETWORK).items():
                if key.index == self.index:
                    found.setdefault(key.knob, []).append(value)
        return found

    def qdisc(self) -> str:
        command = ["tc", "qdisc", "show", "dev", self.wire.uplink]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def end(self) -> None:
        """Nothing is undone: as when it is killed."""
        self.journal.close()
        self.host.forget(frozenset())


@pytest.fixture
def started(root: Root, wire: Wire, start: Callable[..., QemuLike], tmp_path: Path) -> Iterator[Callable[[], Agent]]:
    processes = {name: start("CPU 0/TCG") for name in VMS}
    agents: list[Agent] = []

    def begin() -> Agent:
        agents.append(Agent(root, wire, processes, tmp_path / "journal.db"))
        return agents[-1]

    probe = begin()
    try:
        probe.host.write(probe.host.itself, KnobKey(HOST_UUID, Knob.UPLINK_RATE, probe.index), RATE_KBIT)
        probe.host.write(probe.host.itself, KnobKey(HOST_UUID, Knob.UPLINK_RATE, probe.index), NO_RATE)
    except HostError as error:
        pytest.skip(f"NOT TESTED: {error}")
    probe.end()
    yield begin
    agents[-1].end()


def divided(ceiling: int) -> dict[Knob, list[KnobValue]]:
    return {
        Knob.UPLINK_RATE: [RATE_KBIT],
        Knob.BATCH_EGRESS: [ceiling],
        Knob.EGRESS_GROUP: [EgressGroup.CRITICAL, EgressGroup.BATCH],
        Knob.EGRESS_TURN: [USUAL_TURN, USUAL_TURN],
    }


def test_an_uplink_is_divided_by_the_loop_and_undone(started: Callable[[], Agent]) -> None:
    agent = started()
    before = agent.qdisc()
    agent.tick(3)
    assert agent.held() == divided(int(RATE_KBIT * 0.95))
    for mode in (Mode.OBSERVE, Mode.ENFORCE):
        agent.assignment = replace(agent.assignment, host=replace(agent.assignment.host, mode=mode))
        agent.tick(2)
        assert (agent.qdisc() == before) is (mode is Mode.OBSERVE)
    agent.tick()
    agent.end()
    after = started()
    after.tick()
    assert after.held() == divided(int(RATE_KBIT * 0.95)), "an agent that was killed is followed by another"
    assert after.loop.release("test") is not None
    assert after.qdisc() == before
    assert not after.journal.runs.knobs & EGRESS


def test_observe_writes_nothing(started: Callable[[], Agent]) -> None:
    agent = started()
    before = agent.qdisc()
    agent.assignment = replace(agent.assignment, host=replace(agent.assignment.host, mode=Mode.OBSERVE))
    agent.tick(3)
    assert agent.qdisc() == before and not agent.journal.entries


def test_the_ceiling_follows_what_the_critical_vm_sends(started: Callable[[], Agent]) -> None:
    agent = started()
    agent.tick(3)
    agent.wire.flood("batch", 0.5)
    agent.tick()
    assert agent.held() == divided(int(RATE_KBIT * 0.95)), "what batch VMs send lowers nothing"
    agent.wire.flood("critical", 1.5)
    agent.tick()
    [ceiling] = agent.held()[Knob.BATCH_EGRESS]
    assert isinstance(ceiling, int) and 0 < ceiling < RATE_KBIT * 0.9
    agent.tick()
    [after] = agent.held()[Knob.BATCH_EGRESS]
    assert isinstance(after, int) and after > ceiling, "only what still waited was sent"
    agent.loop.release("test")


def test_what_another_tool_does_is_left_alone_until_it_is_adopted(started: Callable[[], Agent]) -> None:
    agent = started()
    agent.tick(3)
    run(f"tc class change dev {agent.wire.uplink} parent e951:1 classid e951:20 htb rate 2250kbit ceil 9mbit")
    agent.tick(2)
    assert agent.held()[Knob.BATCH_EGRESS] == [9000]
    agent.assignment = replace(agent.assignment, host=replace(agent.assignment.host, adoptions=1))
    agent.tick(2)
    assert agent.held()[Knob.BATCH_EGRESS] == [int(RATE_KBIT * 0.95)]
    run(f"tc qdisc replace dev {agent.wire.uplink} root handle 7: tbf rate 40mbit burst 16kb latency 50ms")
    result = agent.tick(2)
    assert any("another tool gave it the qdisc tbf 7:" in problem.text for problem in result.problems)
    agent.loop.release("test")
    assert agent.qdisc().startswith("qdisc tbf 7: root"), "it stays"
    run(f"tc qdisc del dev {agent.wire.uplink} root")
    assert UNLIMITED not in agent.held().get(Knob.BATCH_EGRESS, [])
