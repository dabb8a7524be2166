"""Many VMs as the kernel shows them, without QEMU: real processes, threads, control groups and pid files.

Each VM is a small C program, compiled at the start, which sleeps. Its groups are named as libvirt names them, in a
group of the benchmark's own. Processes, groups and files are gone at the end, however that comes. Of a benchmark that
was killed with SIGKILL empty groups and files remain, since the processes end with it, and the next one removes those.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.hypervisor import Domains
from manager.host.process import find_instance
from manager.host.registry import CGROUP_USAGE, CGROUP_V1, CgroupCpu, HostPaths
from manager.model.host import Discovery, VmInstance
from manager.model.registration import Application, Assignment, HostSpec, Sla, Tier, VmClass, VmSpec

VCPUS = 2
VMS_OF_APPLICATION = 5
HOST = "bench"
_SOURCE = Path(__file__).with_name("qemu_like.c")
_PREFIX = "equipoise-bench-"
_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Vm:
    """A running one. ``folders`` are its groups, the one with the CPU weight first."""

    name: str
    uuid: str
    instance: VmInstance
    folders: tuple[Path, ...]
    weight_file: Path


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of domains that does not change, in the place of a HypervisorWatch."""

    domains: Domains
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))

    @classmethod
    def of(cls, vms: Iterable[Vm]) -> Listed:
        """All of these, found by one listing."""
        instances = {vm.uuid: vm.instance for vm in vms}
        hardware = {uuid: frozenset({b"\x52\x54" + number.to_bytes(4)}) for number, uuid in enumerate(instances)}
        return cls(Domains(instances, 1, True, "9.0.0", hardware=hardware))


class BenchError(Exception):
    """A benchmark cannot be run on this machine; the text says why."""


class Vms:
    """Starts VMs and takes them away. ``folder`` is for the benchmark's other files. To be closed."""

    def __init__(self) -> None:
        """Compile the program and make the root folder. Raises BenchError."""
        if os.geteuid() != 0:
            raise BenchError("real control groups need root")
        mounts = read_mounts(HostPaths(Path("/")))
        cpu = cpu_controller(mounts)
        if cpu is None:
            raise BenchError("this machine has no cgroup hierarchy with a cpu controller")
        self.cpu: CgroupCpu = cpu
        of_v1 = (cpu.controller, CGROUP_USAGE[0].controller, "memory", "blkio")
        controllers = of_v1 if cpu is CGROUP_V1 else (cpu.controller,)
        points = [mounts.by_controller[name][0] for name in controllers if name in mounts.by_controller]
        self._parents = [point / f"{_PREFIX}{os.getpid()}" for point in dict.fromkeys(points)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # as the agent does: some are held open for each VM
        with ExitStack() as undo:
            _remove_folders()
            self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            undo.callback(shutil.rmtree, self.folder)
            self._program = _compile(self.folder)
            self.paths = _make_root(self.folder / "root")
            for point in dict.fromkeys(points):
                _remove_leftovers(point)
            undo.callback(self._remove_groups)
            for parent in self._parents:
                _make_parent(parent, cpu)
            # While the writing end is open, they live: it closes with this process at the latest.
            self._sleep, self._wake = os.pipe()
            undo.callback(os.close, self._sleep)
            self._ready, self._tell = os.pipe()
            undo.callback(os.close, self._ready)
            undo.callback(os.close, self._tell)
            undo.callback(self._end_processes)
            self._undo = undo.pop_all()

    def start(self, names: Iterable[str]) -> list[Vm]:
        """Start VMs and put their threads where libvirt puts them; returns when all of them run."""
        fresh = [(name, str(UUID(int=0x4000_8000_0000_0000_0000 + self._started + i))) for i, name in enumerate(names)]
        pids = [self._launch(name, uuid) for name, uuid in fresh]
        self._wait_ready(len(fresh))
        return [self._settle(name, uuid, pid) for (name, uuid), pid in zip(fresh, pids, strict=True)]

    def _launch(self, name: str, uuid: str) -> int:
        process = subprocess.Popen(
            [self._program, name, uuid, str(VCPUS)], stdin=self._sleep, stdout=self._tell, start_new_session=True
        )
        self._processes.append(process)
        return process.pid

    def _wait_ready(self, count: int) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._ready], [], [], left_s)[0]:
                raise BenchError(f"{count} processes did not start")
            count -= len(os.read(self._ready, count))

    def _settle(self, name: str, uuid: str, pid: int) -> Vm:
        self._started += 1
        folders = tuple(parent / f"qemu-{self._started}-{name}.libvirt-qemu" for parent in self._parents)
        tids = {
            task.joinpath("comm").read_text().rstrip("\n"): task.name for task in Path(f"/proc/{pid}/task").iterdir()
        }
        for folder in folders:
            for group in (folder, folder / "emulator", *(folder / f"vcpu{index}" for index in range(VCPUS))):
                group.mkdir()
            (folder / "emulator/cgroup.procs").write_text(str(pid))
            if self.cpu is CGROUP_V1:  # v2 allows no thread beside its process but in threaded groups
                for index in range(VCPUS):
                    (folder / f"vcpu{index}/tasks").write_text(tids[f"CPU {index}/KVM"])
        self.paths.pid_file(name).write_text(str(pid))
        instance = find_instance(self.paths, uuid, name)
        if instance is None:
            raise BenchError(f"{name} is not found as the agent finds it")
        return Vm(name, uuid, instance, folders, folders[0] / self.cpu.weight_file)

    def burst(self, vms: Iterable[Vm]) -> None:
        """Let each vCPU use two milliseconds of CPU time, and wait for that."""
        busy = list(vms)
        for vm in busy:
            os.kill(vm.instance.pid, signal.SIGUSR1)
        time.sleep(0.1 + len(busy) * VCPUS * 0.003)

    def close(self) -> None:
        """End the processes and remove everything. Ctrl-C does not interrupt it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._undo.close()
        finally:
            signal.signal(signal.SIGINT, before)

    def _end_processes(self) -> None:
        os.close(self._wake)
        for process in self._processes:
            try:
                process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _remove_groups(self) -> None:
        for parent in self._parents:
            _remove_tree(parent)


@contextmanager
def running_vms(count: int) -> Iterator[tuple[Vms, list[Vm]]]:
    """So many VMs named ``vm-0000`` and so on."""
    vms = Vms()
    try:
        yield vms, vms.start(vm_name(number) for number in range(count))
    finally:
        vms.close()


def vm_name(number: int) -> str:
    """The name that a VM has here and is registered under."""
    return f"vm-{number:04d}"


def assignment(count: int, policy: str) -> Assignment:
    """Half of the VMs critical, in applications of two tiers, the other half batch."""
    names = [vm_name(number) for number in range(count)]
    critical, batch = names[0::2], names[1::2]
    specs = [VmSpec(name, VmClass.CRITICAL, libvirt_name=name) for name in critical]
    specs += [VmSpec(name, VmClass.BATCH, libvirt_name=name) for name in batch]
    applications = []
    for first in range(0, len(critical), VMS_OF_APPLICATION):
        served = critical[first : first + VMS_OF_APPLICATION]
        tiers = (Tier("web", tuple(served[:3])), Tier("store", tuple(served[3:])))
        applications.append(Application(f"app-{first:04d}", tiers, Sla(50.0)))
    specs.sort(key=lambda spec: spec.name)
    return Assignment(HostSpec(HOST, policy=policy), tuple(specs), tuple(applications))


def _compile(folder: Path) -> str:
    program = folder / "qemu-system-x86_64"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchError("there is no C compiler; install gcc")
    subprocess.run([compiler, "-O2", "-Wall", "-pthread", "-o", program, _SOURCE], check=True)
    return str(program)


def _make_root(root: Path) -> HostPaths:
    """A root folder with the machine's own /proc and /sys, and a /run of its own."""
    root.mkdir()
    for name in ("proc", "sys"):
        (root / name).symlink_to(f"/{name}")
    (root / "run/libvirt/qemu").mkdir(parents=True)
    return HostPaths(root)


def _make_parent(parent: Path, cpu: CgroupCpu) -> None:
    parent.mkdir()
    if cpu is not CGROUP_V1:  # which controllers the children have
        for group in (parent.parent, parent):
            (group / "cgroup.subtree_control").write_text("+cpu")
            for controller in ("memory", "io"):
                with contextlib.suppress(OSError):  # not every host has them
                    (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _remove_leftovers(point: Path) -> None:
    for group in point.glob(f"{_PREFIX}*"):
        if not _runs(group):
            _remove_tree(group)


def _remove_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not _runs(folder):
            shutil.rmtree(folder)


def _runs(made: Path) -> bool:
    """Whether the benchmark that made a group or folder still runs."""
    return Path("/proc", made.name.removeprefix(_PREFIX).partition("-")[0]).exists()


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        deadline_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):  # somebody who just ended is still being counted
                Path(folder).rmdir()
                break
            time.sleep(0.002)
