"""Histories of a host that need every knob and every way of letting one go."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from manager.model.cpus import CpuSet
from manager.model.decision import CpusGoal, QuotaGoal, ResourceControl, ResourceGoal
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import HOST_UUID, INSIDE, PARTLY, Knob, KnobKey
from manager.model.network import EgressGroup, UplinkPort
from manager.model.power import ANY_LATENCY, ClockDomain
from manager.model.registration import Mode
from manager.model.resource_use import DeviceUse, DiskUse, Weighing
from manager.model.rules import (
    BatchGroupUse,
    BatchPlacement,
    DiskRules,
    IrqSteering,
    MemoryRules,
    NetworkRules,
    UplinkRules,
)
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.warp import LOADED, Mechanism, WarpUse
from tests.fakes.host import domain_uuid
from tests.loop.stage import Order, Scenario, Stage, nothing, release

ZERO, ONE, TWO = frozenset({0}), frozenset({1}), frozenset({2})


def _two_critical(stage: Stage) -> None:
    stage.boot("web", vcpus=2, iothreads=(1, 2), weight=5000, cpus=ZERO | ONE)
    stage.boot("db", cpus=TWO)
    stage.had("db", Knob.VCPU_PIN, TWO)  # just where it will be pinned


def _services(stage: Stage) -> None:
    _two_critical(stage)
    stage.boot("batch", "batch", weight=300)
    stage.boot("stranger", registered=False)


def _idle(stage: Stage) -> None:
    stage.boot("web", cpus=ZERO)
    for name, weight in (("batch", 5000), ("lazy", None)):
        stage.boot(name, "batch", weight=weight)
    stage.had("lazy", Knob.IDLE, 1)
    stage.control(batch_idle=True)
    stage.prompt_floor()


def _starve(stage: Stage) -> None:
    stage.starving = {"batch", "lazy"}


def _feed(stage: Stage) -> None:
    stage.starving = set()


def _limits(stage: Stage) -> None:
    stage.boot("web", quota_us=150_000, max_pcpus=0.5, cpus=ZERO)
    stage.boot("batch", "batch", max_pcpus=0.001)


def _batch(stage: Stage) -> None:
    _two_critical(stage)
    for name in ("red", "blue"):
        stage.boot(name, "batch", vcpus=2, iothreads=(1,))
    stage.placement(batch=BatchPlacement.FENCE)


def _grouped(stage: Stage) -> None:
    stage.boot("web", cpus=ZERO)
    for name, weight in (("red", 300), ("blue", None)):
        stage.boot(name, "batch", vcpus=2, weight=weight)
    begins = {Knob.BATCH_IDLE: 0, Knob.BATCH_WEIGHT: stage.host.scale.minimum if stage.host.scale else 0}
    stage.originals |= {KnobKey(HOST_UUID, knob): value for knob, value in begins.items()}
    stage.placement(batch_group=BatchGroupUse.ON)
    stage.prompt_floor()


def _scatter(stage: Stage) -> None:
    """A vCPU was plugged."""
    vm = stage.host.vms.get(domain_uuid("red"))
    if vm is not None and vm.place == INSIDE:
        vm.place = PARTLY


def _network(stage: Stage) -> None:
    stage.boot("web", cpus=ONE)
    stage.boot("db", cpus=TWO)
    stage.interrupts(24, 25, 26)
    stage.placement(irqs=IrqSteering.SERVING)


def _warped(*mechanisms: Mechanism, use: WarpUse = WarpUse.ON) -> Order:
    """A VM with a registered warp, one with another, and one without."""

    def build(stage: Stage) -> None:
        stage.host.mechanisms = mechanisms
        stage.boot("web", vcpus=2, warp_us=27_000)
        stage.boot("db", warp_us=4_000)
        stage.boot("batch", "batch")
        stage.control(warp=use, pinning=False)

    return build


def _eject(stage: Stage) -> None:
    if stage.host.scheduler == LOADED:
        stage.host.eject()


_WARP_ORDERS: tuple[Order, ...] = (
    nothing,
    nothing,
    lambda stage: stage.change("web", warp_us=8_000),
    lambda stage: stage.control(mode=Mode.OBSERVE),
    lambda stage: stage.control(mode=Mode.ENFORCE),
    nothing,
    lambda stage: stage.change("db", warp_us=None),
)


def _real_time(stage: Stage) -> None:
    """VMs that are to be real-time, one with a nice value, and one that is left alone."""
    stage.host.limits = True
    stage.boot("web", vcpus=2, scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.4))
    stage.boot("db", scheduling=Scheduling(SchedulingPolicy.RR, 3, limit=0.2))
    stage.boot("cache", scheduling=Scheduling(SchedulingPolicy.OTHER, nice=-5))
    stage.boot("batch", "batch")
    stage.had("cache", Knob.SCHEDULING, 3002)  # SCHED_BATCH, nice 2
    stage.control(pinning=False)


def _exchange(stage: Stage) -> None:
    """What one gives up the other is to have, and together they have all there is."""
    stage.change("web", scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.1))
    stage.change("db", scheduling=Scheduling(SchedulingPolicy.RR, 3, limit=0.85))


def _free(stage: Stage) -> None:
    stage.boot("web", vcpus=2)
    stage.boot("db", vcpus=1)
    stage.boot("batch", "batch")
    stage.placement(batch=BatchPlacement.FENCE)


def _meddle(stage: Stage) -> None:
    stage.meddle("web", Knob.WEIGHT, 777)
    stage.meddle("web", Knob.VCPU_PIN, TWO, 1)
    stage.meddle("batch", Knob.QUOTA, 70_000)


def _adoptable(stage: Stage) -> None:
    stage.boot("web", vcpus=2, cpus=ZERO | ONE)
    stage.boot("batch", "batch", max_pcpus=0.5)
    stage.boot("db", cpus=TWO)


def _meddle_with_interrupts(stage: Stage) -> None:
    stage.meddle("", Knob.IRQ_AFFINITY, ONE | TWO, 24)


def _plugged(stage: Stage) -> None:
    stage.boot("web", vcpus=2, cpus=ZERO | ONE | TWO, iothreads=(1,))
    stage.boot("batch", "batch", cpus=TWO | {3})


def _returning(stage: Stage) -> None:
    """One vCPU was just where the emulator will be, another just where that goes next."""
    stage.boot("web", vcpus=3, cpus=ZERO | ONE, iothreads=(1,))
    stage.had("web", Knob.VCPU_PIN, ZERO | ONE, 0)
    stage.had("web", Knob.VCPU_PIN, ONE | TWO, 1)


def _plug(stage: Stage) -> None:
    stage.plug("web")


def _decided(stage: Stage) -> None:
    """Placed as critical VMs, fenced as batch VMs, and limited each by its operator or its registration."""
    stage.boot("web", vcpus=2, iothreads=(1,), max_pcpus=1.5)
    stage.boot("db", cpus=TWO | {3})
    stage.boot("red", "batch", quota_us=150_000)
    stage.boot("blue", "batch")
    stage.placement(batch=BatchPlacement.FENCE)
    stage.control(policy="told")


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


def _sending(*orders: Order) -> tuple[Order, ...]:
    """A round goes by before each, in which critical VMs send 200 MB."""

    def send(stage: Stage, order: Order) -> None:
        sent = (stage.host.ports[2].critical_bytes or 0) + 200_000_000
        stage.host.ports[2] = replace(stage.host.ports[2], critical_bytes=sent)
        stage.now_s += 5.0
        order(stage)

    return tuple(partial(send, order=order) for order in orders)


def _confining(**cpus: CpuSet) -> tuple[CpusGoal, ...]:
    return tuple(CpusGoal(vm, held, "as told") for vm, held in cpus.items())


def _limiting(**pcpus: float) -> tuple[QuotaGoal, ...]:
    return tuple(QuotaGoal(vm, most, "as told") for vm, most in pcpus.items())


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


SCENARIOS = (
    Scenario(
        "weights and pins",
        _services,
        (
            nothing,
            nothing,
            lambda stage: stage.control(policy="equal", pinning=False),
            nothing,
            lambda stage: stage.control(policy="priority"),
        ),
    ),
    Scenario(
        "registrations",
        _services,
        (
            nothing,
            lambda stage: stage.change("web", cpus=ZERO | {3}),
            lambda stage: stage.change("web", mode=Mode.RELEASED),
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.change("web", mode=None, weight=123, pin=False, cpus=None),
            lambda stage: stage.unregister("db"),
        ),
    ),
    Scenario(
        "idle class",
        _idle,
        (
            nothing,
            _starve,
            nothing,
            _feed,
            lambda stage: stage.control(batch_idle=False),
            lambda stage: stage.control(batch_idle=True),
            lambda stage: stage.control(mode=Mode.OBSERVE),
        ),
    ),
    Scenario("idle class of cgroup v2", _idle, (nothing, _starve, nothing), scale=CPU_WEIGHT_V2),
    Scenario(
        "limits",
        _limits,
        (
            nothing,
            lambda stage: stage.change("web", max_pcpus=2.0),
            nothing,
            lambda stage: stage.change("web", max_pcpus=None),
            lambda stage: stage.meddle("batch", Knob.QUOTA, 70_000),
            nothing,
        ),
    ),
    Scenario(
        "batch group",
        _grouped,
        (
            nothing,
            nothing,
            _scatter,
            lambda stage: stage.control(batch_idle=True),
            lambda stage: stage.placement(batch_group=BatchGroupUse.OFF),
            nothing,
            lambda stage: stage.placement(batch_group=BatchGroupUse.ON),
        ),
    ),
    Scenario(
        "fenced and single batch VMs",
        _batch,
        (
            nothing,
            lambda stage: stage.placement(batch=BatchPlacement.SINGLE),
            nothing,
            lambda stage: stage.placement(batch=BatchPlacement.FLOAT),
        ),
        free=True,
    ),
    Scenario(
        "interrupts",
        _network,
        (
            nothing,
            nothing,
            lambda stage: stage.placement(irqs=IrqSteering.RESERVED, reserved_cpus=ZERO),
            _meddle_with_interrupts,
            nothing,
            nothing,
            lambda stage: stage.adopt(""),
            nothing,
            lambda stage: stage.placement(irqs=IrqSteering.OFF),
        ),
    ),
    Scenario(
        "settings of somebody else, adopted",
        _adoptable,
        (
            nothing,
            nothing,
            nothing,
            _meddle,
            nothing,
            nothing,
            nothing,
            lambda stage: stage.adopt("web"),
            nothing,
        ),
    ),
    Scenario(
        "vCPUs come and go",
        _plugged,
        (
            nothing,
            lambda stage: stage.change("web", cpus=TWO | {3}),
            lambda stage: stage.plug("web"),
            lambda stage: stage.change("web", cpus=ONE | TWO | {3}),
            lambda stage: stage.unplug("web"),
            nothing,
            nothing,
            lambda stage: stage.plug("web"),
            nothing,
            lambda stage: stage.unplug("web"),
            nothing,
        ),
        free=True,
    ),
    Scenario(
        "vCPUs come while pins go back",
        _returning,
        (
            nothing,
            lambda stage: stage.change("web", cpus=ONE | TWO),
            _plug,
            lambda stage: stage.control(pinning=False),
            _plug,
            nothing,
            lambda stage: stage.control(pinning=True),
            _plug,
            release,
            _plug,
            _plug,
        ),
        free=True,
    ),
    Scenario(
        "a pCPU goes offline",
        _free,
        (
            nothing,
            nothing,
            lambda stage: stage.offline(5),
            nothing,
            lambda stage: stage.offline(0),
            nothing,
            lambda stage: stage.online(5),
            nothing,
        ),
        free=True,
        cpus=6,
    ),
    Scenario(
        "pCPUs, quotas and pinning of a policy",
        _decided,
        (
            lambda stage: stage.decide(cpus=_confining(web=ONE | TWO | {3}, red=ZERO), quotas=_limiting(red=0.5)),
            nothing,
            lambda stage: stage.decide(
                cpus=_confining(web=TWO | {3}, blue=ZERO | ONE), quotas=_limiting(web=1.0, red=0.3)
            ),
            lambda stage: stage.decide(pinning=False, quotas=_limiting(web=2.0, blue=0.4)),
            lambda stage: stage.decide(pinning=True, cpus=_confining(web=ONE | TWO)),
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.decide(),
        ),
        free=True,
    ),
    Scenario("warps by slices", _warped(Mechanism.SLICE, use=WarpUse.SLICE), _WARP_ORDERS),
    Scenario("warps of the BVT patch", _warped(Mechanism.BVT), _WARP_ORDERS),
    Scenario("group identity", _warped(Mechanism.GROUP_IDENTITY, use=WarpUse.GROUP_IDENTITY), _WARP_ORDERS),
    Scenario(
        "warps by our scheduler, which is thrown out",
        _warped(Mechanism.SCHED_EXT, Mechanism.BVT, use=WarpUse.SCHED_EXT),
        (nothing, nothing, nothing, _eject, nothing, nothing, nothing, *_WARP_ORDERS),
    ),
    Scenario(
        "real-time vCPUs and a nice value",
        _real_time,
        (
            nothing,
            nothing,
            _exchange,
            lambda stage: stage.control(mode=Mode.OBSERVE),
            lambda stage: stage.control(mode=Mode.ENFORCE),
            lambda stage: stage.plug("web"),
            nothing,
            lambda stage: stage.stop("db"),
            lambda stage: stage.change("web", scheduling=Scheduling(SchedulingPolicy.OTHER, nice=3)),
            lambda stage: stage.change("cache", scheduling=None),
        ),
    ),
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
    Scenario(
        "VMs come and go",
        _free,
        (
            nothing,
            lambda stage: stage.stop("db"),
            lambda stage: stage.boot_again("db", 2),
            lambda stage: stage.boot("late", vcpus=1),
            lambda stage: stage.boot_again("web", 1),
            lambda stage: stage.stop("batch"),
        ),
        free=True,
        cpus=6,
    ),
)
