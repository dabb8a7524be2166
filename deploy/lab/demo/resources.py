"""The demonstration of memory, disk and network: a service beside somebody who takes one of them, phase by phase.

Each resource has VMs of its own, one after the other; their phases take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import libvirt
from rich.console import Console
from rich.progress import Progress, TaskID

from deploy.lab.demo.measure import CpuUse, measure
from deploy.lab.demo.originals import qemu_pid
from deploy.lab.demo.resources_scene import (
    DISK_FILE,
    DISK_MIB,
    DISK_REQUESTS_PER_S,
    PROTECTED,
    RESOURCES,
    SERVED_MIB,
    SWAP_MIB,
    TAKEN_MIB,
    USED_MIB,
    VMS_MIB,
    WIRE_MBIT,
    Resource,
    resource_scene,
    with_disks,
)
from deploy.lab.demo.scene import WARMUP_S, DemoPhase, Scene
from deploy.lab.demo.stage import Stage, paused, progress_bar, set_up
from deploy.lab.demo.stretches import stretches
from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.short_memory import limited_together, swap_on
from deploy.lab.slow_disk import slow_disk, why_no_slow_disk
from deploy.lab.slow_wire import slow_wire
from manager.model.histogram import Histogram

DEFAULT_PHASE_S = 18.0
TURNS = 3
LEAD_S = 27.0
"""So long what protects a resource has to find its measure: five rounds of readings, and some more."""
_DISK = DEFAULT_BASE / "slow-disk"


@dataclass(frozen=True, slots=True)
class ResourceTurn:
    """What a turn showed: response times after its lead, errors, the use of CPUs, and what the antagonist did.

    ``knobs`` are the settings of the resource that were in force at the end and are not as usual, in words.
    """

    times: Histogram
    errors: int
    client_limited: bool
    client_cpu: float
    use: CpuUse
    antagonist_per_s: float
    knobs: tuple[str, ...]


def play(console: Console, duration_s: float) -> dict[str, Any]:
    """Run all phases of all resources, each ``duration_s`` long in all turns; the result as JSON. Raises
    EquipoiseError.
    """
    played, skipped = [], {}
    for resource in RESOURCES:
        why = why_no_slow_disk() if resource.name in {"disk", "memory"} else ""
        if why:
            skipped[resource.name] = why
            console.print(f"== {resource.name} is left out: {why}", highlight=False)
            continue
        with ExitStack() as own:
            played.append(_play_resource(console, own, resource, duration_s))
    return {
        "scenario": "resources",
        "duration_s": duration_s,
        "turns": TURNS,
        "accelerator": played[0]["accelerator"],
        "load_cpus": played[0]["load_cpus"],
        "resources": played,
        "skipped": skipped,
        "restored": all(each["restored"] for each in played),
        "not_restored": [text for each in played for text in each["not_restored"]],
        "kept_running": False,
    }


def _play_resource(console: Console, stack: ExitStack, resource: Resource, duration_s: float) -> dict[str, Any]:
    console.print(f"== {resource.name}: {resource.service} beside {_in_words(resource)}", highlight=False)
    stage = set_up(console, stack, resource_scene(resource), prepare=_PREPARATIONS.get(resource.name, _nothing))
    if resource.name == "memory":
        console.print(f"      all VMs together get {VMS_MIB} MiB, less than they need", highlight=False)
        stack.enter_context(limited_together(qemu_pid(stage.scene.vms[0].name), VMS_MIB))
    turn_s = duration_s / TURNS
    turns: dict[str, list[ResourceTurn]] = {phase.name: [] for phase in resource.phases}
    with progress_bar(console) as progress:
        length_s = {phase.name: WARMUP_S + lead_of(resource, phase) + turn_s for phase in resource.phases}
        task = progress.add_task(resource.name, total=TURNS * sum(length_s.values()))
        done_s = 0.0
        for number, phase in product(range(1, TURNS + 1), resource.phases):
            text = f"turn {number} of {TURNS}, {phase.name}: {phase.says}"
            progress.update(task, completed=done_s, description=f"{resource.name}, {phase.name}")
            if not console.is_terminal:  # where a bar cannot move
                console.print(f"      {text}", highlight=False)
            shown = partial(_advance, progress, task, done_s)
            turns[phase.name].append(_turn(stage, resource, phase, turn_s, shown))
            done_s += length_s[phase.name]
        progress.update(task, completed=done_s, description=f"{resource.name}, done")
    changed = stage.close(keep=False)
    return {
        "resource": resource.name,
        "service": str(resource.service),
        "rate_rps": resource.rate_rps,
        "antagonist": dict(resource.antagonist),
        "accelerator": stage.accelerator.accelerator,
        "load_cpus": sorted(stage.scene.load_cpus),
        "phases": [{"name": phase.name, "says": phase.says} | joined(turns[phase.name]) for phase in resource.phases],
        "restored": changed is not None and not changed,
        "not_restored": list(changed or ()),
    }


def _advance(progress: Progress, task: TaskID, done_s: float, more_s: float) -> None:
    progress.update(task, completed=done_s + more_s)


def lead_of(resource: Resource, phase: DemoPhase) -> float:
    """Seconds of load before a phase is measured."""
    return LEAD_S if phase.name == PROTECTED else resource.settle_s


def joined(turns: Sequence[ResourceTurn]) -> dict[str, Any]:
    """The turns of a phase as one; times in milliseconds."""
    times = Histogram().merge(*(turn.times for turn in turns))

    def of(percentile: float) -> float | None:
        time_us = times.percentile_us(percentile)
        return None if time_us is None else round(time_us / 1000, 3)

    count = len(turns)
    return {
        "answers": times.count,
        "p50_ms": of(50),
        "p95_ms": of(95),
        "p99_ms": of(99),
        "errors": sum(turn.errors for turn in turns),
        "client_limited": any(turn.client_limited for turn in turns),
        "load_generators_cpu_share": round(sum(turn.client_cpu for turn in turns) / count, 4),
        "outside_cpu_share": round(sum(turn.use.outside_share for turn in turns) / count, 4),
        "stolen_cpu_share": round(sum(turn.use.stolen_share for turn in turns) / count, 4),
        "host_cpu_share": round(sum(turn.use.host_share for turn in turns) / count, 4),
        "antagonist_per_s": round(sum(turn.antagonist_per_s for turn in turns) / count, 1),
        "knobs": list(turns[-1].knobs),
    }


def _turn(
    stage: Stage, resource: Resource, phase: DemoPhase, turn_s: float, progress: Callable[[float], None]
) -> ResourceTurn:
    pushed: list[Mapping[str, Any]] = []

    def push(service: str, interval: Mapping[str, Any]) -> None:
        pushed.append(interval)
        stage.service.push(service, interval)

    antagonists = stage.scene.batch
    stage.service.control(phase.settings)
    with paused(stage.lab, () if phase.batch_runs else antagonists):
        before = _done(stage, resource)
        measured = measure(stage.scene, stage.meter, lead_of(resource, phase) + turn_s, push, progress)
        done = _done(stage, resource) - before
        knobs = stage.service.knobs(resource.knobs)
    ends_s = max(interval["end_epoch_s"] for interval in pushed)
    (times,) = stretches(pushed, ends_s - turn_s, turn_s, 1)
    (load,) = measured.loads.values()
    return ResourceTurn(
        times,
        sum(load["errors"].values()),
        load["client_limited"],
        load["cpu_share"],
        measured.use,
        done / (WARMUP_S + lead_of(resource, phase) + turn_s),
        knobs,
    )


def _done(stage: Stage, resource: Resource) -> float:
    """What the antagonists have done since they started: requests of their disks, packets they sent, or CPU seconds."""
    kinds = libvirt.VIR_DOMAIN_STATS_BLOCK | libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
    every = [stage.lab.stats(vm.name, kinds) for vm in stage.scene.batch]
    match resource.antagonist["kind"]:
        case "disk":
            return float(sum(stats["block.0.rd.reqs"] + stats["block.0.wr.reqs"] for stats in every))
        case "network":
            return float(sum(stats["net.0.tx.pkts"] for stats in every))
        case _:
            return float(sum(stats["cpu.time"] for stats in every)) / 1e9


def _images(stack: ExitStack, scene: Scene) -> Scene:
    """The scene with the disks of its VMs on one slow disk."""
    disk = stack.enter_context(slow_disk(_DISK, DISK_REQUESTS_PER_S, DISK_MIB))
    images: dict[str, Path] = {}
    for service in scene.services:
        images[service.vm.name] = disk.image("served", SERVED_MIB, {DISK_FILE: b"x" * 4096})
    for vm in scene.batch:
        images[vm.name] = disk.image(vm.name, USED_MIB)
    return with_disks(scene, images)


def _swap(stack: ExitStack, scene: Scene) -> Scene:
    """The same scene, with a slow disk to swap to."""
    disk = stack.enter_context(slow_disk(_DISK, DISK_REQUESTS_PER_S, SWAP_MIB + SWAP_MIB // 4))
    stack.enter_context(swap_on(disk, SWAP_MIB))
    return scene


def _nothing(_stack: ExitStack, scene: Scene) -> Scene:
    return scene


def _uplink(stack: ExitStack, scene: Scene) -> Scene:
    """The scene with its load generators behind a slow wire."""
    return replace(scene, clients=stack.enter_context(slow_wire(WIRE_MBIT)).clients)


_PREPARATIONS = {"memory": _swap, "disk": _images, "network": _uplink}


def _in_words(resource: Resource) -> str:
    whom = "a VM that takes" if resource.antagonists == 1 else f"{resource.antagonists} VMs that take"
    return f"{whom} {ANTAGONISTS[resource.name]}"


ANTAGONISTS = {
    "memory": f"memory: grows to {TAKEN_MIB} MiB, and touches all of that for ever",
    "disk": "the disk that all use: blocks of 4 KiB, half of them written, 16 at once",
    "network": "the uplink: datagrams of 1,400 bytes through it, as many as it can send",
    "interrupts": "interrupts: datagrams of one byte to the host, as many as it can send",
    "cache": "the cache: 64 MiB walked through by each of two vCPUs",
}
UNITS = {"memory": "pCPUs", "disk": "requests/s", "network": "packets/s", "interrupts": "packets/s", "cache": "pCPUs"}
