"""What is left of an assignment within the agent's own limits, and what was taken from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from manager.control.resolve import effective_mode
from manager.model.knobs import Control
from manager.model.limits import AgentLimits
from manager.model.registration import Assignment, CacheControl, HostSpec, Mode, VmSpec
from manager.model.rules import BatchPlacement, IrqSteering
from manager.model.warp import WarpUse


@dataclass(frozen=True, slots=True)
class Limited:
    """An assignment that may be carried out; ``told`` says for each thing that may not be why."""

    assignment: Assignment
    told: tuple[str, ...] = ()


def limit_assignment(assignment: Assignment, limits: AgentLimits) -> Limited:
    """Take from an assignment what the agent's settings do not allow. Pure."""
    wanted = assignment.host
    if wanted.mode is Mode.RELEASED:
        return Limited(assignment)
    host = _limit_host(wanted, limits)
    vms = tuple(_limit_vm(vm, limits) for vm in assignment.vms)
    told = (*_told_of_host(wanted, host, limits), *_told_of_vms(assignment.vms, vms, limits))
    return Limited(replace(assignment, host=host, vms=vms), told) if told else Limited(assignment)


def _limit_host(host: HostSpec, limits: AgentLimits) -> HostSpec:
    allowed, rules = limits.allowed, host.placement
    if Control.PIN not in allowed:
        rules = replace(rules, batch=BatchPlacement.FLOAT)
    if Control.INTERRUPTS not in allowed:
        rules = replace(rules, irqs=IrqSteering.OFF)
    warp = host.warp
    if warp is WarpUse.SCHED_EXT and Control.SCHEDULER not in allowed:
        warp = WarpUse.ON
    return replace(
        host,
        mode=effective_mode(host.mode, limits.max_mode),
        placement=rules,
        pinning=host.pinning and Control.PIN in allowed,
        batch_idle=host.batch_idle and Control.IDLE in allowed,
        warp=warp if Control.WARP in allowed else WarpUse.OFF,
        cache=host.cache if Control.CACHE in allowed else CacheControl.OFF,
        cache_mount=host.cache_mount and Control.MOUNT in allowed,
    )


def _limit_vm(vm: VmSpec, limits: AgentLimits) -> VmSpec:
    allowed, scheduling = limits.allowed, vm.scheduling
    if scheduling and (Control.REAL_TIME if scheduling.real_time else Control.NICE) not in allowed:
        scheduling = None
    most = vm.max_pcpus if Control.QUOTA in allowed else None
    pins = Control.PIN in allowed
    return replace(
        vm,
        scheduling=scheduling,
        max_pcpus=most if most is None else max(most, limits.min_pcpus),
        pin=vm.pin if pins else False,
        cpus=vm.cpus if pins else None,
    )


def _told_of_host(wanted: HostSpec, host: HostSpec, limits: AgentLimits) -> Iterator[str]:
    if host.mode is not wanted.mode:
        yield f"mode {wanted.mode}: max_mode = {limits.max_mode}"
    rules, wishes = host.placement, wanted.placement
    found = (
        (Control.PIN, "pins", (host.pinning, rules.batch) != (wanted.pinning, wishes.batch)),
        (Control.INTERRUPTS, "steering of interrupts", rules.irqs is not wishes.irqs),
        (Control.IDLE, "the idle class for batch VMs", host.batch_idle is not wanted.batch_idle),
        (Control.SCHEDULER, "loading our sched_ext scheduler", _scheduler_missing(wanted, limits)),
        (Control.WARP, "warps", wanted.warp is not WarpUse.OFF and host.warp is WarpUse.OFF),
        (Control.CACHE, "dividing the cache", host.cache is not wanted.cache),
        (Control.MOUNT, "mounting resctrl", _mount_missing(wanted, host)),
    )
    yield from (f"{what}: {limits.how_to_allow(control)}" for control, what, is_less in found if is_less)


def _scheduler_missing(wanted: HostSpec, limits: AgentLimits) -> bool:
    """Without warps nothing would be loaded in any case."""
    missing = Control.SCHEDULER not in limits.allowed and Control.WARP in limits.allowed
    return wanted.warp is WarpUse.SCHED_EXT and missing


def _mount_missing(wanted: HostSpec, host: HostSpec) -> bool:
    return host.cache is CacheControl.ON and wanted.cache_mount and not host.cache_mount


def _told_of_vms(wanted: tuple[VmSpec, ...], given: tuple[VmSpec, ...], limits: AgentLimits) -> Iterator[str]:
    for before, after in zip(wanted, given, strict=True):
        if before.scheduling and not after.scheduling:
            control = Control.REAL_TIME if before.real_time else Control.NICE
            what = "real-time scheduling" if before.real_time else "a nice value"
            yield f"{what} of {before.name}: {limits.how_to_allow(control)}"
        if before.max_pcpus is not None and after.max_pcpus is None:
            yield f"the limit of {before.name}: {limits.how_to_allow(Control.QUOTA)}"
        elif before.max_pcpus != after.max_pcpus:
            yield f"{before.name} limited to {before.max_pcpus:g} pCPUs: min_pcpus = {limits.min_pcpus:g}"
        if before.cpus != after.cpus or (before.pin and not after.pin):
            yield f"pins of {before.name}: {limits.how_to_allow(Control.PIN)}"
