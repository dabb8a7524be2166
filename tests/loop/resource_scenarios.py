"""Histories of a host that need the knobs of memory, disks, uplinks and power."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from manager.model.decision import ResourceControl, ResourceGoal
from manager.model.knobs import Knob
from manager.model.network import EgressGroup, UplinkPort
from manager.model.power import ANY_LATENCY, ClockDomain
from manager.model.registration import Mode
from manager.model.resource_use import DeviceUse, DiskUse, Weighing
from manager.model.rules import (
    DiskRules,
    MemoryRules,
    NetworkRules,
    UplinkRules,
)
from tests.fakes.vm import domain_uuid
from tests.loop.stage import Order, Scenario, Stage, nothing

ZERO, ONE, TWO = frozenset({0}), frozenset({1}), frozenset({2})


def _resident(mebibytes: int, growth_bytes_per_s: float = 0.0, refaults_per_s: float = 0.0) -> dict[str, object]:
    return {
        "resident_bytes": mebibytes << 20,
        "growth_bytes_per_s": growth_bytes_per_s,
        "refaults_per_s": refaults_per_s,
    }


def _remembered(version: int) -> Order:
    """Two critical VMs, of which one is protected by its operator, and a batch VM that grows while one is short."""

    def build(stage: Stage) -> None:
        stage.host.memory_version = version
        for name in ("web", "db"):
            stage.boot(name)
        stage.boot("batch", "batch")
        stage.boot("calm", "batch")
        if version == 2:
            stage.had("db", Knob.MEMORY_PROTECTION, 300 << 20)
            stage.had("calm", Knob.MEMORY_CEILING, 50 << 20)
        stage.control(policy="equal", pinning=False, memory=MemoryRules(protect=True, ceilings=True))
        stage.measure(web=_resident(100), db=_resident(100), batch=_resident(50), calm=_resident(50))

    return build


def _short(stage: Stage) -> None:
    grows = 5e6
    stage.measure(web=_resident(150, 0, 500), batch=_resident(60, grows), calm=_resident(60, grows))


def _meddle_with_memory(stage: Stage) -> None:
    stage.meddle("batch", Knob.MEMORY_CEILING, 80 << 20)
    stage.meddle("", Knob.MEMORY_PROTECTION, 64 << 20, 17)
    stage.meddle("web", Knob.MEMORY_PROTECTION, 8 << 20, 1)


def _adopt_memory(stage: Stage) -> None:
    stage.adopt("")
    stage.adopt("web")


_MEMORY_ORDERS = (
    nothing,
    _short,
    nothing,
    _meddle_with_memory,
    nothing,
    _adopt_memory,
    lambda stage: stage.control(mode=Mode.OBSERVE),
    lambda stage: stage.control(mode=Mode.ENFORCE),
    lambda stage: stage.stop("db"),
    lambda stage: stage.control(memory=MemoryRules(protect=True)),
    lambda stage: stage.unregister("web"),
)


def _on_disks(stage: Stage) -> None:
    """Two disks, on one of which BFQ makes weights act, and io.cost on the other."""
    stage.host.disk_weights = True
    stage.boot("web")
    stage.boot("red", "batch")
    stage.boot("blue", "batch")
    stage.had("web", Knob.IO_WEIGHT, 5000)
    stage.control(policy="equal", pinning=False, disk=DiskRules(weights=True))
    vda, vdb = DiskUse("vda", 0.0, 0.0), DiskUse("vdb", 0.0, 0.0)
    stage.measure(web={"disks": (vda, vdb)}, red={"disks": (vda,)}, blue={"disks": (vdb,)})
    _weigh(stage, Weighing.BFQ)


def _disks_are_slow(stage: Stage) -> None:
    """Two batch VMs make one of two disks slow for a critical VM. One of them has a ceiling there, the other a lower
    one on the other disk.
    """
    stage.host.disks = (2064, 65024)
    stage.boot("web")
    stage.boot("red", "batch")
    stage.boot("blue", "batch")
    stage.had("red", Knob.DISK_CEILING, 900, 65024)
    stage.had("blue", Knob.DISK_CEILING, 50, 2064)
    stage.control(policy="equal", pinning=False, disk=DiskRules(ceilings=True))
    _make_slow(stage, 30.0)


def _make_slow(stage: Stage, latency_ms: float, device: str = "vda", number: int = 65024) -> None:
    """So few requests that batch VMs get the least there is at once, however many rounds were seen."""
    for vm, rate in (("web", 10.0), ("red", 60.0), ("blue", 60.0)):
        stage.measure(**{vm: {"disks": (DiskUse(device, 0.0, 0.0, rate),)}})
    stage.use = replace(stage.use, disks=(DeviceUse(device, 1e6, 130.0, 1.0, latency_ms, None, number),))


def _weigh(stage: Stage, vda: Weighing | None) -> None:
    disks = (("vda", vda), ("vdb", Weighing.COST))
    devices = tuple(DeviceUse(name, 0.0, 0.0, 0.0, None, weighing) for name, weighing in disks)
    stage.use = replace(stage.use, disks=devices)


def _on_uplinks(stage: Stage) -> None:
    """One whose speed is known, one that another tool has, and a port of a bridge that nobody named."""
    eth0 = UplinkPort("eth0", 1_000_000, physical=True, bridged=True)
    stage.host.ports = {
        2: eth0,
        3: replace(eth0, name="eth1", other_qdisc="tbf 1:"),
        4: UplinkPort("veth0", bridged=True),
    }
    stage.boot("web")
    stage.boot("red", "batch")
    stage.boot("blue", "batch")
    stage.control(policy="equal", pinning=False, network=NetworkRules(shares=True))


def _at_taps(stage: Stage) -> None:
    """A batch VM is limited at both of its taps."""
    for name, kind, taps in (("web", "critical", {10}), ("red", "batch", {11, 12})):
        stage.boot(name, kind)
        stage.host.interfaces[domain_uuid(name)] = frozenset(taps)
    stage.control(policy="equal", pinning=False, network=NetworkRules(batch_tap_mbit=100))


def _sending(*orders: Order) -> tuple[Order, ...]:
    """A round goes by before each, in which critical VMs send 200 MB."""

    def send(stage: Stage, order: Order) -> None:
        sent = (stage.host.ports[2].critical_bytes or 0) + 200_000_000
        stage.host.ports[2] = replace(stage.host.ports[2], critical_bytes=sent)
        stage.now_s += 5.0
        order(stage)

    return tuple(partial(send, order=order) for order in orders)


def _decidable(stage: Stage) -> None:
    """A policy may decide memory, disks and uplinks of a critical VM and two batch VMs."""
    _disks_are_slow(stage)
    stage.host.memory_version = 2
    stage.host.disk_weights = True
    stage.host.ports = {2: UplinkPort("eth0", 1_000_000, physical=True, bridged=True)}
    stage.had("red", Knob.MEMORY_CEILING, 900 << 20)
    stage.control(
        policy="told",
        memory=MemoryRules(steps=True),
        disk=DiskRules(steps=True),
        network=NetworkRules(steps=True),
    )
    stage.measure(web=_resident(100), red=_resident(50), blue=_resident(50))
    device = DeviceUse("vda", 1e6, 130.0, 1.0, 30.0, Weighing.BFQ, 65024)
    stage.use = replace(stage.use, disks=(device,))


def _switching_on(*controls: tuple[ResourceControl, str]) -> Order:
    goals = tuple(ResourceGoal(control, vm, "as told", 40.0, 65024) for control, vm in controls)
    return lambda stage: stage.decide(resources=goals)


def _powered(stage: Stage) -> None:
    """Clocks of two pCPUs each, one without the governor; an operator's own stricter limit on one pCPU."""
    stage.boot("web", cpus=ZERO)
    stage.boot("db", cpus=TWO)
    stage.boot("batch", "batch")
    stage.host.clock_domains = {0: ClockDomain(ZERO | ONE, True), 2: ClockDomain(TWO | {3}, False)}
    stage.host.powers = {(Knob.RESUME_LATENCY, cpu): ANY_LATENCY for cpu in range(4)}
    stage.host.powers |= {(Knob.GOVERNOR, 0): 2, (Knob.GOVERNOR, 2): 2, (Knob.RESUME_LATENCY, 2): 5}
    stage.originals |= stage.host.settings()
    stage.control(policy="equal", pinning=True)
    stage.placement(resume_latency_us=20, performance_governor=True)


RESOURCE_SCENARIOS = (
    Scenario("memory", _remembered(2), _MEMORY_ORDERS),
    Scenario("memory of cgroup v1", _remembered(1), _MEMORY_ORDERS),
    Scenario(
        "disks",
        _on_disks,
        (
            nothing,
            lambda stage: stage.control(disk=DiskRules(weights=True, batch_weight=50)),
            lambda stage: stage.meddle("red", Knob.BFQ_WEIGHT, 300),
            nothing,
            lambda stage: stage.adopt("red"),
            lambda stage: _weigh(stage, None),
            lambda stage: _weigh(stage, Weighing.BFQ),
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.control(disk=DiskRules()),
        ),
    ),
    Scenario(
        "ceilings of disks",
        _disks_are_slow,
        (
            nothing,
            lambda stage: _make_slow(stage, 25.0),
            lambda stage: _make_slow(stage, 25.1),
            lambda stage: stage.meddle("red", Knob.DISK_CEILING, 77, 65024),
            lambda stage: _make_slow(stage, 25.2, "sdb", 2064),
            lambda stage: stage.adopt("red"),
            lambda stage: stage.stop("blue"),
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.control(disk=DiskRules()),
        ),
    ),
    Scenario(
        "limits of taps",
        _at_taps,
        (
            nothing,
            lambda stage: stage.meddle("red", Knob.TAP_LIMIT, 7_000, 11),
            lambda stage: stage.adopt("red"),
            lambda stage: stage.control(network=NetworkRules(batch_tap_mbit=200)),
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.control(network=NetworkRules()),
        ),
    ),
    Scenario(
        "uplinks",
        _on_uplinks,
        _sending(
            nothing,
            nothing,
            nothing,
            nothing,
            lambda stage: stage.meddle("red", Knob.EGRESS_GROUP, EgressGroup.CHANGED, 2),
            lambda stage: stage.meddle("", Knob.BATCH_EGRESS, 70_000, 2),
            nothing,
            lambda stage: stage.adopt("red"),
            lambda stage: stage.adopt(""),
            nothing,
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            nothing,
            nothing,
            nothing,
            lambda stage: stage.change("blue", weight=30),
            nothing,
            lambda stage: stage.meddle("blue", Knob.EGRESS_TURN, 7, 2),
            lambda stage: stage.adopt("blue"),
            nothing,
            lambda stage: stage.change("blue", weight=None),
            nothing,
            lambda stage: stage.control(network=NetworkRules(shares=True, uplinks=(UplinkRules("eth0", 500),))),
            lambda stage: stage.boot("late", "batch"),
            lambda stage: stage.stop("blue"),
            lambda stage: stage.stop("web"),
        ),
    ),
    Scenario(
        "memory, disks and uplinks that a policy decides",
        _decidable,
        (
            _switching_on((ResourceControl.MEMORY_PROTECTION, "web"), (ResourceControl.DISK_WEIGHTS, "")),
            _switching_on(
                (ResourceControl.MEMORY_CEILING, "red"),
                (ResourceControl.DISK_CEILING, "red"),
                (ResourceControl.DISK_CEILING, "blue"),
                (ResourceControl.UPLINK_SHARES, ""),
            ),
            _switching_on(),
        ),
    ),
    Scenario(
        "resume latency and governor",
        _powered,
        (
            nothing,
            lambda stage: stage.meddle("", Knob.RESUME_LATENCY, 50, 0),
            nothing,
            lambda stage: stage.adopt(""),
            lambda stage: stage.change("db", mode=Mode.RELEASED),
            lambda stage: stage.placement(resume_latency_us=None),
        ),
    ),
)
