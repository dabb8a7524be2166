"""An agent that measures what VMs use after each tick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.limits import EVERYTHING
from manager.model.registration import Assignment, HostSpec, VmClass, VmSpec
from policies.equal import POLICY as EQUAL
from tests.kernel.inside.cgroup_v2.conftest import Vm, open_host


class MeasuringAgent:
    """The loop of an agent that measures all VMs after each tick."""

    def __init__(self, journal: Path, *vms: Vm, **host: object) -> None:
        self.vms, self.path = vms, journal
        classes = (VmClass.CRITICAL, VmClass.BATCH)
        specs = tuple(VmSpec(vm.name, kind, libvirt_name=vm.name) for vm, kind in zip(vms, classes, strict=True))
        spec = HostSpec("guest", policy="equal", pinning=False)
        self.assignment = Assignment(replace(spec, **host), vms=specs)  # type: ignore[arg-type]
        self.start()

    def start(self) -> None:
        self.host = open_host(*self.vms)
        self.journal = Journal(self.path, self.host.boot_id)
        settings = LoopSettings("guest", 5.0, 30.0, 20)
        self.loop = ControlLoop(self.host, self.journal, {"equal": EQUAL}, settings, limits=EVERYTHING)

    def end(self) -> None:
        self.journal.close()
        self.host.forget(frozenset())
        self.host.resources.forget(())

    def tick(self, rounds: int = 1) -> TickResult:
        for _ in range(rounds):
            result = self.loop.tick(self.assignment, {})
            assert not result.problems
            self.loop.look_at_resources(result)
        return result
