"""The demonstration's command line and its course."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.lab.accelerator import decide
from deploy.lab.demo.measure import Measured, Meter, load_group, measure
from deploy.lab.demo.originals import differences, settings_of_all
from deploy.lab.demo.report import PhaseResult, print_report, to_json
from deploy.lab.demo.scene import PHASES, WARMUP_S, DemoPhase, Scene, make_scene
from deploy.lab.demo.service import Equipoise
from deploy.lab.guest import DEFAULT_BASE, build
from deploy.lab.vms import LabHost, connect
from manager.errors import EquipoiseError

_STATE = DEFAULT_BASE / "demo-state"


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--duration", type=click.FloatRange(3, 3600), default=40.0, metavar="S", help="Length of each phase.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JSON."
)
@click.option("--keep", is_flag=True, help="Leave VMs and Equipoise running at the end, and print how to reach them.")
def main(duration: float, json_file: Path | None, keep: bool) -> None:
    """Measure, on real VMs, what CPU weights and pins do for services on a full host.

    Boots one memcached, one NGINX and two batch VMs, starts `equipoise run`, registers everything through its REST
    interface, and puts the same open-loop load on both services in four phases: alone (batch paused), equal
    weights, priority, and priority with pinned vCPUs. At the end Equipoise is stopped, and every weight and CPU
    affinity is compared with what it was before. KVM is used where a probe shows that it works, else emulation
    (TCG), of which only ratios between phases mean anything.

    \b
    EXIT STATUS
      0  measured, and everything is as it was   1  something failed, or was not put back

    Whether the run kept what the design promises is printed, but does not change the exit status: other load on the
    machine spoils a run.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            result = _run(console, stack, duration, keep)
    except EquipoiseError as error:
        raise SystemExit(f"deploy/demo: {error}") from error
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    print_report(console, result)
    sys.exit(0 if result["restored"] or keep else 1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(console: Console, stack: ExitStack, duration_s: float, keep: bool) -> dict[str, Any]:
    console.print("== guests")
    guest = build(say=lambda line: console.print(f"      {line}", highlight=False))
    verdict = decide(guest)
    console.print(f"      accelerator: {verdict.accelerator} ({verdict.reason})", highlight=False)
    scene = make_scene()
    connection = connect()
    stack.callback(connection.close)
    lab = LabHost(connection, guest, verdict.accelerator)
    lab.destroy_all()
    on_exit = stack.enter_context(ExitStack())
    for vm in scene.vms:
        on_exit.callback(lab.destroy, vm)
        lab.start(vm)
    for vm in scene.vms:
        console.print(f"      {vm.name} at {vm.ip} is ready after {lab.wait_ready(vm):.1f} s", highlight=False)
    names = [vm.name for vm in scene.vms]
    before = settings_of_all(names)

    console.print("== equipoise run, and everything registered through its REST interface")
    shutil.rmtree(_STATE, ignore_errors=True)
    service = Equipoise(_STATE, scene)
    on_exit.callback(service.stop)
    service.register()
    stack.enter_context(load_group())

    phases: list[PhaseResult] = []
    meter = Meter(scene, connection)
    solo_s = max(5.0, duration_s / 4)
    with _progress(console) as progress:
        task = progress.add_task("batch by itself", total=solo_s + len(PHASES) * (duration_s + WARMUP_S))
        service.control(PHASES[1])
        batch_alone_rate = meter.over(solo_s).batch_rate
        done_s = solo_s
        for phase in PHASES:
            progress.update(task, completed=done_s, description=f"{phase.name}: {phase.says}")
            if not console.is_terminal:  # where a bar cannot move
                console.print(f"      {phase.name}: {phase.says}, {duration_s:g} s")
            start_s = done_s
            measured = _phase(
                scene,
                lab,
                service,
                meter,
                phase,
                duration_s,
                lambda s, at=start_s: progress.update(task, completed=at + s),
            )
            phases.append(PhaseResult(phase, measured, service.sla_states(), batch_alone_rate))
            done_s += duration_s + WARMUP_S
        progress.update(task, completed=done_s, description="done")

    changed: list[str] | None = None
    if keep:
        on_exit.pop_all()
        _say_how_to_reach(console, service, scene)
    else:
        console.print("== stopping Equipoise and comparing every weight and pin with its original")
        decisions = service.decisions()
        service.stop()
        changed = differences(before, settings_of_all(names))
        console.print(
            f"      {len(before)} settings compared, {len(changed)} differ, {decisions} decisions were recorded"
        )
    return to_json(scene, verdict.accelerator, verdict.reason, duration_s, phases, changed)


def _phase(
    scene: Scene, lab: LabHost, service: Equipoise, meter: Meter, phase: DemoPhase, duration_s: float, progress: Any
) -> Measured:
    service.control(phase)
    if not phase.batch_runs:
        for vm in scene.batch:
            lab.suspend(vm)
    try:
        return measure(scene, meter, duration_s, service.push, progress)
    finally:
        if not phase.batch_runs:
            for vm in scene.batch:
                lab.resume(vm)


def _progress(console: Console) -> Progress:
    """A bar on a terminal; elsewhere it is printed once, at the end."""
    return Progress(
        TextColumn("{task.description:<45}"), BarColumn(), TimeRemainingColumn(), console=console, refresh_per_second=2
    )


def _say_how_to_reach(console: Console, service: Equipoise, scene: Scene) -> None:
    console.print(f"== kept running: Equipoise at {service.url} (API documentation at {service.url}/api/v1/docs)")
    console.print(f"      the agent's metrics: {service.metrics_url}")
    console.print(f"      admin's token: {service.token_file}, log: {service.log}", highlight=False)
    end = f"kill {service.pid}; for vm in {' '.join(vm.name for vm in scene.vms)}; do virsh destroy $vm; done"
    console.print(f"      end it with: {end}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
