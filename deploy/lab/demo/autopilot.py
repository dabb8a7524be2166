"""The demonstration of the autopilot: the same load under each policy, and how soon each meets the SLAs.

Each turn begins at equal weights, which violate at least one SLA. Then the policy is set, and nothing else; the load of
NGINX rises for a third of the time, and a batch VM starts for the last third. The phases take turns, so that a machine
that others use is slow, or quick, for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from rich.console import Console

from deploy.lab.demo.autopilot_scene import (
    AT_EQUAL,
    BY_HAND,
    LEAD_S,
    PHASES,
    autopilot_scene,
    late_vm,
    with_events,
    with_targets,
)
from deploy.lab.demo.autopilot_turns import PARTS, CpuPlace, PlayedTurn, joined, target_of
from deploy.lab.demo.measure import CpuReading, Meter, measure
from deploy.lab.demo.phases import load_it_bears
from deploy.lab.demo.scene import WARMUP_S, DemoPhase, Scene
from deploy.lab.demo.stage import Stage, progress_bar, set_up
from deploy.lab.lab_vms import LabHost, LabVm

DEFAULT_PHASE_S = 72.0
TURNS = 3
CALIBRATE_S = 18.0
CPU_EVERY_S = 1.0
SWITCH_S = 6.0
"""About how long it takes to go back to equal weights."""


@dataclass
class _Watched:
    """What is seen while a turn runs. ``changed_s``: when the policy was set, in seconds since the epoch."""

    pushed: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    cpu: list[CpuReading] = field(default_factory=list)
    changed_s: float = 0.0
    late_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def push(self, service: str, interval: Mapping[str, Any]) -> None:
        """Keep a load generator's interval: the agent has response times of its own, from the taps."""
        with self.lock:
            self.pushed.setdefault(service, []).append(interval)


def play(console: Console, stack: ExitStack, duration_s: float, keep: bool) -> dict[str, Any]:
    """Run all phases, each ``duration_s`` long in all its turns, and give the result as JSON. Raises EquipoiseError.

    Where equal weights violate no target that the hand-made setting meets, ``calibrated`` is false, and nothing more
    ran.
    """
    bears = load_it_bears(console)

    def tune(scene: Scene, lab: LabHost, meter: Meter) -> Scene:
        return with_events(bears(scene, lab, meter))

    late = late_vm()
    stage = set_up(console, stack, autopilot_scene(late), tune)
    stage.service.needs_batch_group()
    turn_s = duration_s / TURNS
    turns: dict[str, list[PlayedTurn]] = {phase.name: [] for phase in PHASES}
    with progress_bar(console) as progress:
        extra_s = WARMUP_S + LEAD_S + SWITCH_S
        task = progress.add_task("targets", total=CALIBRATE_S + extra_s + TURNS * len(PHASES) * (turn_s + extra_s))
        done_s = 0.0

        def run(phase: DemoPhase, says: str, length_s: float) -> PlayedTurn:
            nonlocal done_s
            progress.update(task, completed=done_s, description=says)
            if not console.is_terminal:  # where a bar cannot move
                console.print(f"      {says}, {length_s:g} s", highlight=False)
            start_s = done_s
            played = _turn(
                stage, late, phase, length_s, lambda gone_s: progress.update(task, completed=start_s + gone_s)
            )
            done_s += length_s + extra_s
            return played

        tried = run(BY_HAND, "targets: equal weights, then the hand-made setting", CALIBRATE_S)
        targets = {service.name: target_of(tried, service.name) for service in stage.scene.services}
        for name, target in targets.items():
            console.print(f"      {name}: {target.why}", highlight=False)
        found = {name: target.sla_ms for name, target in targets.items() if target.sla_ms is not None}
        calibrated = len(found) == len(targets) and any(target.violated for target in targets.values())
        if calibrated:
            stage = replace(stage, scene=with_targets(stage.scene, found))
            stage.service.promise(stage.scene.services)
            for number, phase in product(range(1, TURNS + 1), PHASES):
                turns[phase.name].append(run(phase, f"turn {number} of {TURNS}, {phase.name}", turn_s))
        progress.update(task, completed=progress.tasks[0].total, description="done")
    phases = [
        {"name": phase.name, "says": phase.says, "settings": dict(phase.settings)}
        | joined(turns[phase.name], found, _steps(stage, turns[phase.name]))
        for phase in PHASES
        if turns[phase.name]
    ]
    changed = stage.close(keep)
    return {
        "scenario": "autopilot",
        "accelerator": stage.accelerator.accelerator,
        "accelerator_reason": stage.accelerator.reason,
        "duration_s": duration_s,
        "turns": TURNS,
        "turn_s": turn_s,
        "interval_s": stage.scene.interval_s,
        "cpu_every_s": CPU_EVERY_S,
        "managed_cpus": sorted(stage.scene.managed_cpus),
        "load_cpus": sorted(stage.scene.load_cpus),
        "batch_vms": [{"name": vm.name, "vcpus": vm.vcpus} for vm in (*stage.scene.batch, late)],
        "rates_rps": {service.name: round(service.rate_rps, 1) for service in stage.scene.services},
        "calibrated": calibrated,
        "calibration": {name: target.why for name, target in targets.items()},
        "phases": phases,
        "restored": changed is not None and not changed,
        "not_restored": list(changed or ()),
        "kept_running": changed is None,
    }


def _steps(stage: Stage, turns: Sequence[PlayedTurn]) -> list[dict[str, int]]:
    return [stage.service.steps(turn.changed_s, turn.ended_s) for turn in turns]


def _turn(stage: Stage, late: LabVm, phase: DemoPhase, turn_s: float, progress: Callable[[float], None]) -> PlayedTurn:
    """From equal weights to the phase's settings, under load; ``late`` starts for the last part."""
    stage.service.control(AT_EQUAL.settings)
    watched = _Watched()
    began_s = time.time()

    def change() -> None:
        stage.service.set_host(phase.settings)
        watched.changed_s = time.time()

    def start_late() -> None:
        watched.late_s = time.time()
        stage.lab.start(late)

    begins_s = WARMUP_S + LEAD_S
    due = [(begins_s, change), (begins_s + turn_s * (1 - 1 / len(PARTS)), start_late)]

    def step(gone_s: float) -> None:
        progress(gone_s)
        while due and gone_s >= due[0][0]:
            due.pop(0)[1]()
        if gone_s >= begins_s + len(watched.cpu) * CPU_EVERY_S:
            watched.cpu.append(stage.meter.read())

    try:
        measured = measure(stage.scene, stage.meter, LEAD_S + turn_s, watched.push, step)
        watched.cpu.append(stage.meter.read())
    finally:
        stage.lab.destroy(late)
    uses = [stage.meter.use(before, after) for before, after in zip(watched.cpu, watched.cpu[1:], strict=False)]
    places = [
        CpuPlace(after.at_s - before.at_s, use.host_share, use.batch_rate)
        for before, after, use in zip(watched.cpu, watched.cpu[1:], uses, strict=False)
    ]
    return PlayedTurn(
        turn_s, began_s, watched.changed_s, watched.late_s, time.time(), watched.pushed, measured, tuple(places)
    )
