"""Placement in the loop: where VMs go on a host with siblings and interrupts, tick after tick."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.model.host import PcpuTimes
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.topology import NicQueue, Topology
from tests.loop.conftest import Rig
from tests.unit.placements import machine

TICK_NS = 1_000_000_000


@pytest.fixture
def hyperthreaded(rig: Rig) -> Rig:
    """Two cores of two threads: pCPUs 0 and 1, and their siblings 2 and 3."""
    rig.host.topology = machine(cores=2, threads=2)
    return rig


def serve(rig: Rig, cpu: int) -> None:
    """Let a pCPU serve the interrupts of a network interface."""
    queue = NicQueue("eth0", 40, frozenset({cpu}), frozenset({cpu}))
    rig.host.topology = Topology(machine(cores=2, threads=2).cpus, (queue,))


def spend(rig: Rig, cpu: int, share: float) -> None:
    """A tick in which a pCPU spends that share of its time on interrupts, and the others none."""
    before, rig.host.pcpu_times = rig.host.pcpu_times, {}
    for number in range(4):
        total_ns, busy_ns, interrupts_ns = before.get(number, PcpuTimes(0, 0, 0))
        more_ns = round(share * TICK_NS) if number == cpu else 0
        rig.host.pcpu_times[number] = PcpuTimes(total_ns + TICK_NS, busy_ns + more_ns, interrupts_ns + more_ns)
    rig.tick()


def seats(rig: Rig, *names: str) -> list[list[int]]:
    return [sorted(rig.value(name, Knob.VCPU_PIN, 0)) for name in names]  # type: ignore[arg-type]


def test_a_vm_leaves_the_pcpu_whose_time_goes_to_interrupts_and_stays_away(hyperthreaded: Rig) -> None:
    rig = hyperthreaded
    for name in ("db", "web"):
        rig.host.boot(name)
        rig.register(name)
    rig.control(policy="equal")
    spend(rig, 0, 0.0)
    assert seats(rig, "db", "web") == [[0], [1]]
    serve(rig, 0)
    for _ in range(15):
        spend(rig, 0, 0.05)
    assert seats(rig, "db", "web") == [[0], [1]], "a twentieth is not worth a move"
    for _ in range(200):
        spend(rig, 0, 0.6)
    away = seats(rig, "db", "web")
    assert away[0] != [0]
    assert away[1] == [1]
    writes = len(rig.host.writes)
    for step in range(60):
        spend(rig, 0, 0.6 + 0.01 * (step % 3))
    assert seats(rig, "db", "web") == away
    assert len(rig.host.writes) == writes, "what changes from tick to tick changes nothing"


def test_a_newcomer_stays_off_interrupts_of_unknown_extent(hyperthreaded: Rig) -> None:
    rig = hyperthreaded
    serve(rig, 0)
    rig.host.boot("web")
    rig.register("web")
    rig.control(policy="equal")
    spend(rig, 0, 0.0)
    assert seats(rig, "web") == [[1]]


def test_an_agent_that_starts_anew_moves_nobody_for_interrupts_it_has_not_measured(hyperthreaded: Rig) -> None:
    rig = hyperthreaded
    rig.host.boot("web")
    rig.register("web")
    rig.control(policy="equal")
    spend(rig, 0, 0.0)
    assert seats(rig, "web") == [[0]]
    serve(rig, 0)
    rig.crash()
    for _ in range(30):
        spend(rig, 0, 0.02)
        assert seats(rig, "web") == [[0]]


def test_a_fence_keeps_batch_off_the_sibling_and_restores_it(hyperthreaded: Rig) -> None:
    rig = hyperthreaded
    for name in ("hog", "web"):
        rig.host.boot(name)
    rig.register("hog", "batch")
    rig.register("web")
    rig.control(policy="equal", placement=PlacementRules(batch=BatchPlacement.FENCE))
    spend(rig, 0, 0.0)
    assert seats(rig, "web", "hog") == [[0], [1, 3]]
    rig.control(placement=PlacementRules())
    spend(rig, 0, 0.0)
    assert seats(rig, "web", "hog") == [[0], [0, 1, 2, 3]]


@pytest.mark.parametrize("crashes", [False, True])
def test_an_interrupt_that_the_host_has_no_more_keeps_no_release_from_its_end(rig: Rig, crashes: bool) -> None:
    """As after `ethtool -L`: queues that an interface has no more take their interrupts with them."""
    rig.host.boot("web")
    rig.register("web")
    rig.host.irqs = dict.fromkeys((40, 41, 42), rig.host.online)
    queues = tuple(NicQueue("eth0", irq, rig.host.online, frozenset({0})) for irq in rig.host.irqs)
    rig.host.topology = replace(Topology.flat(rig.host.online), queues=queues)
    rig.control(placement=PlacementRules(irqs=IrqSteering.RESERVED, reserved_cpus=frozenset({0})))
    rig.tick()
    steered = {KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, irq) for irq in (40, 41, 42)}
    assert rig.journal.entries.keys() >= steered
    del rig.host.irqs[41]
    if crashes:
        rig.crash()
    rig.tick()
    assert {key.index for key in rig.journal.entries.keys() & steered} == {40, 42}
    rig.loop.release("agent stopped")
    assert not rig.journal.entries
    assert set(rig.host.irqs.values()) == {rig.host.online}
