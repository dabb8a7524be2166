"""Real processes, real cgroups and a libvirtd of our own to test against. Nothing of the machine's own is touched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.process import start_ticks
from manager.host.registry import CGROUP_V1, CgroupCpu, HostPaths
from manager.model.host import VmInstance
from tests.host.tree import Tree

if TYPE_CHECKING:
    from tests.host.wire import LoadedTap

REAL = HostPaths(Path("/"))
DEADLINE_S = 60.0
CHILD_GROUPS = ("emulator", "vcpu0", "vcpu1")


@pytest.fixture(scope="session")
def loaded_tap() -> Iterator[LoadedTap]:
    """See ``tests.host.wire``."""
    from tests.host.wire import LoadedTap

    with contextlib.ExitStack() as stack:
        yield LoadedTap(stack)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine made of files."""
    return Tree(tmp_path)


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.005)


def descriptors(pid: int | str = "self") -> int:
    """How many files and connections a process holds open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class QemuLike:
    """A running ``qemu_like.py``; ``tids`` are its threads by name."""

    def __init__(self, threads: tuple[str, ...], name: str = "qemu-system-x86", uuid: str = "") -> None:
        self.uuid = uuid or str(uuid4())
        program = [sys.executable, str(Path(__file__).with_name("qemu_like.py"))]
        self._process = subprocess.Popen(
            [*program, "-uuid", self.uuid, "-name", name, "-threads", *threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.tids: dict[str, int] = json.loads(self._answer())

    @property
    def instance(self) -> VmInstance:
        ticks = start_ticks(REAL, self.pid)
        assert ticks is not None
        return VmInstance(self.uuid, "test", self.pid, ticks)

    def tell(self, command: str) -> int:
        """Give a command of ``qemu_like.py`` and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return line

    def kill(self) -> None:
        """End it as it is, and leave nothing of it. May be called twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def kill_only(self) -> None:
        """End it, but let it stay a zombie."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def start() -> Iterator[Callable[..., QemuLike]]:
    """Starts processes with given thread names; they are gone at the end."""
    started: list[QemuLike] = []

    def start_one(*threads: str, **options: str) -> QemuLike:
        started.append(QemuLike(threads, **options))
        return started[-1]

    yield start_one
    for one in started:
        one.kill()


@pytest.fixture
def qemu(start: Callable[..., QemuLike]) -> QemuLike:
    """A VM of two vCPUs with a worker and an I/O thread."""
    return start("CPU 0/TCG", "CPU 1/TCG", "worker", "IO iothread1")


@dataclass
class Root:
    """A root folder with the machine's own /proc and /sys, and a /run of its own."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in ("proc", "sys"):
            (self.folder / name).symlink_to(f"/{name}")
        (self.folder / "run/libvirt/qemu").mkdir(parents=True)

    @property
    def paths(self) -> HostPaths:
        return HostPaths(self.folder)

    def note(self, name: str, pid: object) -> None:
        """Write the pid file of a domain."""
        self.paths.pid_file(name).write_text(f"{pid}")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@dataclass
class VmGroup:
    """The groups libvirt makes for a VM, in each hierarchy that counts. ``weight`` is the file of its CPU weight."""

    cpu: CgroupCpu
    folders: list[Path]
    homes: list[Path] = field(default_factory=list)

    @property
    def weight(self) -> Path:
        return self.folders[0] / self.cpu.weight_file

    def take(self, vm: QemuLike) -> None:
        """Put the threads where libvirt puts them; on v2 the whole process, beside which no thread may stay."""
        for folder in self.folders:
            if self.cpu is not CGROUP_V1:
                (folder / "emulator/cgroup.procs").write_text(str(vm.pid))
                continue
            for task in Path(f"/proc/{vm.pid}/task").iterdir():
                (folder / "emulator/tasks").write_text(task.name)
            for index in range(2):
                (folder / f"vcpu{index}/tasks").write_text(str(vm.tids[f"CPU {index}/TCG"]))

    def empty(self) -> None:
        """Send whoever is in the groups back to the hierarchy's root."""
        for folder, home in zip(self.folders, self.homes, strict=True):
            for group in (folder, *(folder / name for name in CHILD_GROUPS)):
                if group.exists():
                    for pid in (group / "cgroup.procs").read_text().split():
                        with contextlib.suppress(ProcessLookupError):
                            (home / "cgroup.procs").write_text(pid)

    def remove(self) -> None:
        """Remove the groups; the threads go on."""
        self.empty()
        for folder in self.folders:
            remove_groups(folder)


def remove_groups(top: Path) -> None:
    """Remove a group and all below it."""
    for folder, _, _ in os.walk(top, topdown=False):
        until(lambda folder=folder: _removed(Path(folder)), f"{folder} can be removed")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # somebody who just ended is still being counted
        return False
    return True


@pytest.fixture
def group() -> Iterator[VmGroup]:
    """Groups named as libvirt's, in a parent of our own."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: real cgroups need root")
    mounts = read_mounts(REAL)
    cpu = cpu_controller(mounts)
    if cpu is None:
        pytest.skip("NOT TESTED: this machine has no cgroup hierarchy with a cpu controller")
    wanted = (cpu.controller, "cpuacct") if cpu is CGROUP_V1 else (cpu.controller,)
    homes = list(dict.fromkeys(mounts.by_controller[name][0] for name in wanted if name in mounts.by_controller))
    parents = [home / f"equipoise-test-{os.getpid()}" for home in homes]
    made = VmGroup(cpu, [parent / "qemu-99-test.libvirt-qemu" for parent in parents], homes)
    delegating = homes[0] / "cgroup.subtree_control"  # v2 only: which controllers the root's children have
    delegated = cpu is CGROUP_V1 or "cpu" in delegating.read_text().split()
    try:
        for parent, folder in zip(parents, made.folders, strict=True):
            parent.mkdir()
            if cpu is not CGROUP_V1:
                delegating.write_text("+cpu")
                (parent / delegating.name).write_text("+cpu")
            for one in (folder, *(folder / name for name in CHILD_GROUPS)):
                one.mkdir()
        yield made
    except OSError as error:
        pytest.skip(f"NOT TESTED: no cgroups can be made on this machine: {error}")
    finally:
        made.empty()
        for parent in parents:
            remove_groups(parent)
        if not delegated:
            delegating.write_text("-cpu")


@pytest.fixture
def disk_group_of_v1() -> Iterator[Path]:
    """A group like a VM's that disks count and limit."""
    mount = read_mounts(REAL).by_controller.get("blkio")
    if mount is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED: no blkio controller of cgroup v1 here, or not root")
    folder = mount[0] / f"qemu-1-equipoise-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()
