"""Histories of a host that need the knobs of CPUs, and every way of letting one go."""

from __future__ import annotations

from manager.model.cpus import CpuSet
from manager.model.decision import CpusGoal, QuotaGoal
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import HOST_UUID, INSIDE, PARTLY, Knob, KnobKey
from manager.model.registration import Mode
from manager.model.rules import (
    BatchGroupUse,
    BatchPlacement,
    IrqSteering,
)
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.warp import LOADED, Mechanism, WarpUse
from tests.fakes.vm import domain_uuid
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


def _confining(**cpus: CpuSet) -> tuple[CpusGoal, ...]:
    return tuple(CpusGoal(vm, held, "as told") for vm, held in cpus.items())


def _limiting(**pcpus: float) -> tuple[QuotaGoal, ...]:
    return tuple(QuotaGoal(vm, most, "as told") for vm, most in pcpus.items())


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
