"""The demonstration of phases: the same load on memcached and NGINX under ever better protection.

The phases take turns, so that a machine that others use is slow, or quick, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import product
from typing import Any

from rich.console import Console

from deploy.lab.demo.demo_report import PhaseResult, to_json
from deploy.lab.demo.measure import DemoMeasurement, Meter, measure
from deploy.lab.demo.scene import FULLEST_ALONE, PHASES, WARMUP_S, BatchShape, DemoPhase, Scene, eased, phases_scene
from deploy.lab.demo.stage import Stage, paused, progress_bar, set_up
from deploy.lab.demo.turns import merged
from deploy.lab.demo.warping import warp_to_show
from deploy.lab.lab_vms import LabHost
from manager.model.units import percent
from manager.model.warp import WarpUse

DEFAULT_PHASE_S = 40.0
TURNS = 4
PROBE_S = 6.0
PROBES = 4
"""A request costs more at a lower rate, where fewer are answered at one wake-up: once is seldom enough."""


def play(console: Console, stack: ExitStack, duration_s: float, keep: bool, shape: BatchShape) -> dict[str, Any]:
    """Run all phases, each ``duration_s`` long in all its turns, and give the result as JSON. Raises EquipoiseError."""

    stage = set_up(console, stack, phases_scene(shape), load_it_bears(console))
    console.print(f"      {shape.vms} batch VMs, {shape.vcpus} vCPUs each")
    needed = stage.service.needs_batch_group()
    console.print(f"      doctor: this kernel {_NEEDS[needed]}", highlight=False)
    use, why = warp_to_show(stage.service.warp_offers())
    played = [phase for phase in PHASES if use is not WarpUse.OFF or not phase.warp]
    skipped = {phase.name: why for phase in PHASES if phase not in played}
    for name in skipped:
        console.print(f"      the phase {name} is left out: {why}", highlight=False)
    turns: dict[str, list[DemoMeasurement]] = {phase.name: [] for phase in played}
    sla_states: dict[str, Mapping[str, str]] = {}
    warps: dict[str, Mapping[str, Any] | None] = {}
    solo_s, turn_s = max(5.0, duration_s / 4), duration_s / TURNS
    with progress_bar(console) as progress:
        task = progress.add_task("batch by itself", total=solo_s + TURNS * len(played) * (turn_s + WARMUP_S))
        stage.service.control(PHASES[1].settings)
        batch_alone_rate = stage.meter.over(solo_s).batch_rate
        done_s = solo_s
        for number, phase in product(range(1, TURNS + 1), played):
            progress.update(task, completed=done_s, description=f"{phase.name}: {phase.says}")
            if not console.is_terminal:  # where a bar cannot move
                console.print(f"      turn {number} of {TURNS}, {phase.name}: {phase.says}, {turn_s:g} s")
            start_s = done_s
            measured = _phase(stage, phase, use, turn_s, lambda s, at=start_s: progress.update(task, completed=at + s))
            turns[phase.name].append(measured)
            sla_states[phase.name] = stage.service.sla_states()
            warps[phase.name] = stage.service.warp()
            done_s += turn_s + WARMUP_S
        progress.update(task, completed=done_s, description="done")
    phases = [
        PhaseResult(phase, merged(turns[phase.name]), sla_states[phase.name], batch_alone_rate, warps[phase.name])
        for phase in played
    ]
    changed = stage.close(keep)
    how = stage.accelerator.accelerator, stage.accelerator.reason
    return to_json(stage.scene, *how, duration_s, phases, changed, skipped)


def load_it_bears(console: Console) -> Callable[[Scene, LabHost, Meter], Scene]:
    """What makes the loads smaller where the services alone would take too much of this machine."""

    def tune(scene: Scene, lab: LabHost, meter: Meter) -> Scene:
        with paused(lab, scene.batch):
            for _ in range(PROBES):
                use = measure(scene, meter, PROBE_S, lambda _name, _interval: None, lambda _gone_s: None).use
                console.print(f"      alone they take {percent(use.host_share)} of the pCPUs")
                if use.host_share <= FULLEST_ALONE:
                    break
                scene = eased(scene, use.host_share)
        rates = ", ".join(f"{service.name} {service.rate_rps:.0f}" for service in scene.services)
        console.print(f"      requests/s in all phases: {rates}")
        return scene

    return tune


_NEEDS = {
    True: "needs a batch group",
    False: "needs no batch group: `protected` is as `weighted`",
    None: "may need a batch group, which could not be found out: none is used",
}


def _phase(stage: Stage, phase: DemoPhase, use: WarpUse, duration_s: float, progress: Any) -> DemoMeasurement:
    warp = use if phase.warp else WarpUse.OFF
    stage.service.control({**phase.settings, "warp": warp})
    with paused(stage.lab, () if phase.batch_runs else stage.scene.batch):
        return measure(stage.scene, stage.meter, duration_s, stage.service.push, progress)
