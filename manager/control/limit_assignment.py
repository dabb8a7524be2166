"""What is left of an assignment within the agent's own limits, and what was taken from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from manager.control.resolve import effective_mode
from manager.model.knob_spec import Control
from manager.model.limits import AgentLimits
from manager.model.registration import Assignment, CacheControl, HostSpec, Mode, VmSpec
from manager.model.rules import BatchGroupUse, BatchPlacement, IrqSteering
from manager.model.warp import WarpUse


@dataclass(frozen=True, slots=True)
class Limited:
    """An assignment that may be carried out; ``told`` says for each thing that may not be why."""

    assignment: Assignment
    told: tuple[str, ...] = ()


def limit_assignment(assignment: Assignment, limits: AgentLimits) -> Limited:
    """Take from an assignment what the agent's settings do not allow. Pure."""
    host = assignment.host
    if host.mode is Mode.RELEASED:
        return Limited(assignment)
    reasons: list[str] = []
    mode = effective_mode(host.mode, limits.max_mode)
    if mode is not host.mode:
        reasons.append(f"mode {host.mode}: max_mode = {limits.max_mode}")
    host = replace(host, mode=mode)
    for control in _without(host):
        what, changes = _without(host)[control]
        if control not in limits.allowed and (less := replace(host, **changes)) != host:
            reasons.append(f"{what}: {limits.how_to_allow(control)}")
            host = less
    vms = tuple(_limit_vm(vm, limits, reasons) for vm in assignment.vms)
    return Limited(replace(assignment, host=host, vms=vms), tuple(reasons)) if reasons else Limited(assignment)


def _without(host: HostSpec) -> dict[Control, tuple[str, dict[str, Any]]]:
    """What a host's registration may ask for, and how it is without."""
    rules = host.placement
    warp = WarpUse.ON if host.warp is WarpUse.SCHED_EXT else host.warp
    mount = host.cache_mount and host.cache is CacheControl.OFF  # then nothing comes of it
    return {
        Control.PIN: ("pins", {"pinning": False, "placement": replace(rules, batch=BatchPlacement.FLOAT)}),
        Control.INTERRUPTS: ("steering of interrupts", {"placement": replace(rules, irqs=IrqSteering.OFF)}),
        Control.BATCH_GROUP: ("the batch group", {"placement": replace(rules, batch_group=BatchGroupUse.OFF)}),
        Control.IDLE: ("the idle class for batch VMs", {"batch_idle": False}),
        Control.WARP: ("warps", {"warp": WarpUse.OFF}),
        Control.SCHEDULER: ("loading our sched_ext scheduler", {"warp": warp}),
        Control.CACHE: ("dividing the cache", {"cache": CacheControl.OFF}),
        Control.MEMORY: (
            "protection and ceilings of memory",
            {"memory": replace(host.memory, protect=False, ceilings=False, steps=False)},
        ),
        Control.DISK: (
            "weights and ceilings of disks",
            {"disk": replace(host.disk, weights=False, ceilings=False, steps=False)},
        ),
        Control.NETWORK: (
            "shares of uplinks",
            {"network": replace(host.network, shares=False, steps=False)},
        ),
        Control.POWER: (
            "power settings of pCPUs",
            {"placement": replace(rules, resume_latency_us=None, performance_governor=False)},
        ),
        Control.MOUNT: ("mounting resctrl", {"cache_mount": mount}),
    }


def _limit_vm(vm: VmSpec, limits: AgentLimits, reasons: list[str]) -> VmSpec:
    allowed, name = limits.allowed, vm.name
    if vm.scheduling:
        control, what = (Control.REAL_TIME, "real-time scheduling") if vm.real_time else (Control.NICE, "a nice value")
        if control not in allowed:
            reasons.append(f"{what} of {name}: {limits.how_to_allow(control)}")
            vm = replace(vm, scheduling=None)
    most = vm.max_pcpus
    if most is not None:
        if Control.QUOTA not in allowed:
            reasons.append(f"the limit of {name}: {limits.how_to_allow(Control.QUOTA)}")
            vm = replace(vm, max_pcpus=None)
        elif most < limits.min_pcpus:
            reasons.append(f"{name} limited to {most:g} pCPUs: min_pcpus = {limits.min_pcpus:g}")
            vm = replace(vm, max_pcpus=limits.min_pcpus)
    if Control.PIN not in allowed:
        if vm.cpus is not None or vm.pin:
            reasons.append(f"pins of {name}: {limits.how_to_allow(Control.PIN)}")
        vm = replace(vm, pin=False, cpus=None)
    return vm
