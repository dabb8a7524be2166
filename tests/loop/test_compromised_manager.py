"""A manager that means ill, and an agent with its default settings: what comes of it on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.registration import Application, Sla, Tier
from manager.model.rules import IrqSteering, PlacementRules
from manager.model.scheduling import Scheduling, SchedulingPolicy, is_real_time
from manager.model.topology import NicQueue, Topology
from manager.model.warp import Mechanism, WarpUse
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.fakes.host import FakeHost
from tests.loop.conftest import Rig


@pytest.fixture
def attacked(rig: Rig) -> Rig:
    """A host that has all there is to misuse, and a loop of which nothing was set."""
    host = rig.host
    queues = (NicQueue("eth0", 40, host.online, frozenset({1}), managed=False),)
    host.topology = replace(Topology.flat(host.online), queues=queues)
    host.irqs = {40: host.online}
    host.mechanisms = tuple(mechanism for mechanism in Mechanism if mechanism.value == "sched_ext")
    host.limits = True
    host.boot("web", 2)
    host.boot("hog")
    rig.loop = ControlLoop(
        host, rig.journal, {"equal": EQUAL, "priority": PRIORITY}, LoopSettings("h1", 1.0, 30.0, 20), rig.clock
    )
    return rig


def ticks(rig: Rig) -> FakeHost:
    for _ in range(3):
        rig.tick()
    return rig.host


def test_no_vcpu_gets_a_real_time_priority(attacked: Rig) -> None:
    attacked.register("web", scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.9))
    host = ticks(attacked)
    values = [value for vm in host.vms.values() for value in vm.schedulings.values()]
    assert [value for value in values if is_real_time(value)] == []


def test_no_vm_is_starved_by_its_limit(attacked: Rig) -> None:
    attacked.register("hog", "batch", max_pcpus=0.01)
    [hog] = [vm for vm in ticks(attacked).vms.values() if vm.instance.libvirt_name == "hog"]
    assert hog.quota.quota_us >= 0.1 * hog.quota.period_us


def test_no_scheduler_is_loaded(attacked: Rig) -> None:
    before = attacked.host.scheduler
    attacked.register("web")
    shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
    attacked.assignment = replace(attacked.assignment, applications=(shop,))
    attacked.control(warp=next(use for use in WarpUse if use.value == "sched_ext"))
    assert ticks(attacked).scheduler == before


def test_no_interrupt_is_moved(attacked: Rig) -> None:
    attacked.register("web", pin=True)
    attacked.control(placement=PlacementRules(irqs=IrqSteering.SERVING))
    before = dict(attacked.host.irqs)
    assert ticks(attacked).irqs == before
