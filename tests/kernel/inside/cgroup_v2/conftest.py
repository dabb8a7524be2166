"""A host with cgroup v2 as systemd and libvirt leave it, and processes like QEMU's in groups like libvirt's.

libvirt's src/util/vircgroupv2.c: below the scope that systemd made, a group ``libvirt`` holds the process, and threaded
groups in it hold the emulator's threads and each vCPU's, each with the cpu controller.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.model.host import Discovery, VmInstance
from tests.host.conftest import REAL, QemuLike, remove_groups
from tests.kernel.inside.cgroup_v2.modules import load_module

CGROUPS = Path("/sys/fs/cgroup")
SLICE = CGROUPS / "machine.slice"
VCPUS = ("CPU 0/KVM", "CPU 1/KVM")
DEFAULTS = {"cpu.weight": "100\n", "cpu.idle": "0\n", "cpu.max": "max 100000\n"}
ONLINE = frozenset({0, 1})


def delegate(group: Path) -> None:
    """Let a group's children have the cpu controller."""
    (group / "cgroup.subtree_control").write_text("+cpu")


def scope_name(number: int, name: str) -> str:
    """The scope of a libvirt domain: machine-TITLE.scope with systemd's escapes (systemd.unit(5)) in the title."""
    return rf"machine-qemu-{number}-{name}.scope".replace("-", r"\x2d").replace(r"machine\x2d", "machine-", 1)


def try_write(file: Path, text: object) -> int:
    """Write to a kernel's file; 0 or the errno."""
    try:
        file.write_text(str(text))
    except OSError as error:
        return error.errno or -1
    return 0


@dataclass
class Vm:
    """A process like QEMU's in groups of its own. ``scope`` is the group that competes with other VMs'."""

    name: str
    scope: Path
    process: QemuLike
    nested: bool = True
    folders: dict[str, Path] = field(default_factory=dict)
    vcpus: tuple[str, ...] = VCPUS

    def __post_init__(self) -> None:
        self.scope.mkdir(parents=True)
        top = self.scope / "libvirt" if self.nested else self.scope
        top.mkdir(exist_ok=True)
        (top / "cgroup.procs").write_text(str(self.process.pid))
        weighted = "cpu" in (self.scope / "cgroup.controllers").read_text().split()
        if weighted and self.nested:
            delegate(self.scope)
        for name in ("emulator", *(f"vcpu{index}" for index in range(len(self.vcpus)))):
            self.folders[name] = top / name
            self.folders[name].mkdir()
            (self.folders[name] / "cgroup.type").write_text("threaded")
        if weighted:
            delegate(top)
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            (self.folders["emulator"] / "cgroup.threads").write_text(task.name)
        for index, thread in enumerate(self.vcpus):
            (self.folders[f"vcpu{index}"] / "cgroup.threads").write_text(str(self.process.tids[thread]))

    @property
    def instance(self) -> VmInstance:
        return self.process.instance._replace(libvirt_name=self.name)

    @property
    def weight(self) -> Path:
        return self.scope / "cpu.weight"

    @property
    def idle(self) -> Path:
        return self.scope / "cpu.idle"

    @property
    def quota(self) -> Path:
        return self.scope / "cpu.max"

    def settings(self) -> dict[str, str]:
        """All that the kernel holds of the VM's groups and threads and that somebody may set."""
        found: dict[str, str] = {}
        for folder in (self.scope, *sorted(self.scope.rglob("*/"))):
            for name in DEFAULTS:
                if (folder / name).exists():
                    found[f"{folder.relative_to(CGROUPS)}/{name}"] = (folder / name).read_text()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found[f"affinity of {task.name}"] = str(sorted(os.sched_getaffinity(int(task.name))))
        return found

    def stat(self, key: str) -> int:
        """A number of the group's cpu.stat."""
        return int(dict(line.split() for line in (self.scope / "cpu.stat").read_text().splitlines())[key])

    def reset(self) -> None:
        """As it was started. The order matters: an idle group takes no weight."""
        for name in ("cpu.max", "cpu.idle", "cpu.weight"):
            if (self.scope / name).exists():
                (self.scope / name).write_text(DEFAULTS[name])
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), ONLINE)

    def leave(self) -> None:
        """Back to the root group; the VM's own are removed."""
        with contextlib.suppress(ProcessLookupError):
            (CGROUPS / "cgroup.procs").write_text(str(self.process.pid))
        remove_groups(self.scope)


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains = field(default_factory=lambda: Domains({}))
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))


def open_host(*vms: Vm) -> KernelHost:
    """This machine as an agent that just started sees it, with these domains running."""
    instances: Mapping[str, VmInstance] = {vm.process.uuid: vm.instance for vm in vms}
    return KernelHost(REAL, Watch(Domains(instances, 1, True, "9.0.0")))  # type: ignore[arg-type]


def lay_out_slices() -> None:
    """Slices as systemd makes them; the tests run in one, as the agent does, and not among the VMs."""
    service = CGROUPS / "system.slice/equipoise.service"
    service.mkdir(parents=True)
    SLICE.mkdir()
    delegate(CGROUPS)
    delegate(SLICE)
    (service / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture(scope="session")
def systemd() -> None:
    lay_out_slices()


@pytest.fixture(scope="session")
def null_blk() -> None:
    """A disk that answers each request a millisecond later, one at a time; more can be made of other kinds."""
    load_module("configfs")
    load_module("null_blk", "nr_devices=1 queue_mode=2 irqmode=2 completion_nsec=1000000 hw_queue_depth=1 gb=1")


def start_process() -> QemuLike:
    return QemuLike((*VCPUS, "worker"))


@pytest.fixture(scope="session")
def started(systemd: None) -> Iterator[tuple[Vm, Vm]]:
    """Two VMs for all tests: starting one takes a second in an emulated machine."""
    names = ("shop-web", "batch")
    vms = [Vm(name, SLICE / scope_name(number, name), start_process()) for number, name in enumerate(names, start=1)]
    yield vms[0], vms[1]
    for vm in vms:
        vm.process.kill()


@pytest.fixture
def web(started: tuple[Vm, Vm]) -> Iterator[Vm]:
    """A VM that nobody has changed."""
    yield started[0]
    started[0].process.tell("rest")
    started[0].reset()


@pytest.fixture
def batch(started: tuple[Vm, Vm], web: Vm) -> Iterator[Vm]:
    """Another; it rests after ``web`` does, as a starved process could not hear of it."""
    yield started[1]
    web.process.tell("rest")
    started[1].reset()
    started[1].process.tell("rest")


@pytest.fixture(scope="session")
def spare_process(systemd: None) -> Iterator[QemuLike]:
    process = start_process()
    yield process
    process.kill()


class Place:
    """Puts the spare process into a scope, one after the other."""

    def __init__(self, process: QemuLike) -> None:
        self._process = process
        self._placed: list[Vm] = []

    def __call__(self, scope: Path, *, nested: bool = True) -> Vm:
        self._placed.append(Vm("spare", scope, self._process, nested))
        return self._placed[-1]

    def leave(self) -> None:
        for vm in self._placed:
            vm.reset()
            if vm.scope.exists():
                vm.leave()


@pytest.fixture
def place(spare_process: QemuLike) -> Iterator[Place]:
    placing = Place(spare_process)
    yield placing
    placing.leave()


@pytest.fixture
def spare(place: Place) -> Vm:
    """A third VM, in a group made for this test."""
    return place(SLICE / scope_name(3, "spare"))
