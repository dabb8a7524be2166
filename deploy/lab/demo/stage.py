"""What every demonstration begins and ends with: VMs, Equipoise, registration, and comparing the settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.lab.accelerator import Chosen, decide
from deploy.lab.demo.equipoise_service import Equipoise
from deploy.lab.demo.measure import Meter, load_group
from deploy.lab.demo.originals import all_settings, differences
from deploy.lab.demo.scene import Scene
from deploy.lab.guest import DEFAULT_BASE, build
from deploy.lab.lab_vms import LabHost, LabVm, connect

_STATE = DEFAULT_BASE / "demo-state"


@dataclass(frozen=True, slots=True)
class Stage:
    """A scene that plays: its VMs run and are registered with ``service``; ``before`` are their original settings."""

    console: Console
    scene: Scene
    accelerator: Chosen
    lab: LabHost
    service: Equipoise
    meter: Meter
    before: Mapping[str, str]
    on_exit: ExitStack

    def close(self, keep: bool) -> list[str] | None:
        """Stop Equipoise and name the settings that are not as before; None where all is kept running."""
        if keep:
            self.on_exit.pop_all()
            _say_how_to_reach(self.console, self.service, self.scene)
            return None
        self.console.print("== stopping Equipoise and comparing every setting with its original")
        decisions = self.service.decisions()
        self.service.stop()
        changed = differences(self.before, all_settings([vm.name for vm in self.scene.vms]))
        self.console.print(
            f"      {len(self.before)} settings compared, {len(changed)} differ, {decisions} decisions were recorded"
        )
        return changed


def set_up(
    console: Console,
    stack: ExitStack,
    scene: Scene,
    tune: Callable[[Scene, LabHost, Meter], Scene] = lambda scene, _lab, _meter: scene,
    prepare: Callable[[ExitStack, Scene], Scene] = lambda _stack, scene: scene,
) -> Stage:
    """Boot the scene's VMs and start Equipoise; ``stack`` takes what ends both.

    ``prepare`` makes what the VMs need before they start; the stack it is given ends that after them. ``tune`` may
    change loads and SLAs once they run. Raises LabError.
    """
    console.print("== guests")
    guest = build(say=lambda line: console.print(f"      {line}", highlight=False))
    verdict = decide(guest)
    console.print(f"      accelerator: {verdict.accelerator} ({verdict.reason})", highlight=False)
    connection = connect()
    stack.callback(connection.close)
    lab = LabHost(connection, guest, verdict.accelerator)
    lab.destroy_all()
    stack.enter_context(load_group())
    on_exit = stack.enter_context(ExitStack())
    scene = prepare(on_exit, scene)
    for vm in scene.vms:
        on_exit.callback(lab.destroy, vm)
        lab.start(vm)
    for vm in scene.vms:
        console.print(f"      {vm.name} at {vm.ip} is ready after {lab.wait_ready(vm):.1f} s", highlight=False)
    before = all_settings([vm.name for vm in scene.vms])

    meter = Meter(scene, connection)
    scene = tune(scene, lab, meter)

    console.print("== equipoise run, and everything registered through its REST interface")
    shutil.rmtree(_STATE, ignore_errors=True)
    service = Equipoise(_STATE, scene)
    on_exit.callback(service.stop)
    service.register()
    return Stage(console, scene, verdict, lab, service, meter, before, on_exit)


@contextmanager
def paused(lab: LabHost, vms: Collection[LabVm]) -> Iterator[None]:
    """Those VMs stand still while the block runs."""
    for vm in vms:
        lab.suspend(vm)
    try:
        yield
    finally:
        for vm in vms:
            lab.resume(vm)


def progress_bar(console: Console) -> Progress:
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
