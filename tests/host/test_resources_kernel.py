"""This machine's kernel: processes in groups of their own that use memory, disks and interfaces are seen to do so."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.control.resource_rates import CountedVm, Round, resource_use
from manager.errors import VmVanished
from manager.host.cgroup import CgroupMounts, read_mounts
from manager.host.process import start_ticks
from manager.host.resources.kernel_resources import KernelResources
from manager.host.resources.link_counters import read_links
from manager.model.host import VmInstance
from manager.model.resource_use import HostCounters, Signal, VmResources
from tests.host.conftest import REAL, remove_groups, until

MIB = 1 << 20
LIMIT = 24 * MIB
"""Of a group whose process goes through four times as much."""
GROUP = "qemu-99-heavy.libvirt-qemu"
TOP = Path(__file__).parents[2]


class HeavyVm:
    """A running ``heavy_vm.py`` in groups as a VM's, in each hierarchy that there is; ``limit`` of its memory."""

    def __init__(self, mounts: CgroupMounts, mode: str, file: Path, limit: int | None = None) -> None:
        self.folders: list[Path] = []
        program = [sys.executable, str(Path(__file__).with_name("heavy_vm.py")), mode, str(file)]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for controller in ("memory", "blkio", ""):
            self._join(mounts, controller, limit)
        assert self.process.stdin is not None
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()
        ticks = start_ticks(REAL, self.process.pid)
        assert ticks is not None
        self.instance = VmInstance("u-heavy", "heavy", self.process.pid, ticks)

    def _join(self, mounts: CgroupMounts, controller: str, limit: int | None) -> None:
        if controller not in mounts.by_controller:
            return
        parent = mounts.by_controller[controller][0] / f"equipoise-test-heavy-{os.getpid()}"
        folder = parent / GROUP
        folder.mkdir(parents=True)
        self.folders.append(parent)
        bound = folder / ("memory.limit_in_bytes" if controller else "memory.max")
        if limit is not None and bound.exists():
            bound.write_text(str(limit))
        (folder / "cgroup.procs").write_text(str(self.process.pid))

    def turn(self) -> None:
        """Wait until it has gone through its file once more."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        for parent in self.folders:
            remove_groups(parent)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., HeavyVm]]:
    """Starts one; its file is on a disk, not in memory."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: real cgroups need root")
    mounts = read_mounts(REAL)
    running: list[HeavyVm] = []

    def start(mode: str, size: int, limit: int | None = None) -> HeavyVm:
        file = tmp_path / "disk.img"
        with file.open("wb") as opened:
            for _ in range(size // MIB):
                opened.write(os.urandom(MIB))
            opened.flush()
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        running.append(HeavyVm(mounts, mode, file, limit))
        return running[-1]

    yield start
    for vm in running:
        vm.end()


def used(vm: HeavyVm, resources: KernelResources, turns: int = 1) -> VmResources:
    """What it uses while it goes through its file so often."""

    def counted() -> Round:
        return Round({"heavy": CountedVm(vm.instance, resources.vm(vm.instance))}, {}, resources.host(()))

    before = counted()
    for _ in range(turns):
        vm.turn()
    use = resource_use(counted(), before)
    assert Signal.FAULTS not in use.missing and Signal.DISK not in use.missing
    [found] = use.vms
    return found


def has_memory_controller(vm: HeavyVm) -> bool:
    return any((folder / GROUP / "memory.stat").exists() for folder in vm.folders)


def test_a_vm_that_needs_more_memory_than_it_may_have(run: Callable[..., HeavyVm]) -> None:
    vm = run("touch", 4 * LIMIT, LIMIT)
    if not has_memory_controller(vm):
        pytest.skip("NOT TESTED: groups on this machine have no memory controller")
    vm.turn()
    use = used(vm, KernelResources(REAL, read_mounts(REAL)))
    assert (use.major_faults_per_s or 0.0) > 50, use
    assert (use.refaults_per_s or 0.0) > 50, use
    assert (use.disk_bytes_per_s) > MIB, use
    assert MIB < (use.resident_bytes or 0) < 4 * LIMIT
    if use.memory_pressure is not None:
        assert use.memory_pressure > 0.01, use


def test_one_that_has_enough_shows_none_of_it(run: Callable[..., HeavyVm]) -> None:
    vm = run("touch", 4 * MIB)
    vm.turn()
    use = used(vm, KernelResources(REAL, read_mounts(REAL)), turns=5)
    assert (use.major_faults_per_s, use.refaults_per_s or 0.0, use.disk_bytes_per_s) == (0.0, 0.0, 0.0)


def test_one_that_reads_and_writes_past_the_page_cache(run: Callable[..., HeavyVm]) -> None:
    vm = run("direct", 16 * MIB)
    vm.turn()
    resources = KernelResources(REAL, read_mounts(REAL))
    before: HostCounters = resources.host(())
    use = used(vm, resources, turns=3)
    after = resources.host(())
    read = sum(disk.read_bytes_per_s for disk in use.disks)
    written = sum(disk.written_bytes_per_s for disk in use.disks)
    assert read > MIB and written > MIB, use
    assert use.refaults_per_s in {0.0, None}
    assert before.disks is not None and after.disks is not None
    moved = {name: after.disks[name].total_bytes - before.disks[name].total_bytes for name in before.disks}
    assert max(moved.values(), default=0) > 3 * 16 * MIB, "the host's own disk did it"


def test_a_vm_that_ends(run: Callable[..., HeavyVm]) -> None:
    vm = run("touch", MIB)
    resources = KernelResources(REAL, read_mounts(REAL))
    resources.vm(vm.instance)
    vm.end()
    with pytest.raises(VmVanished):
        resources.vm(vm.instance)


def test_all_interfaces_of_this_machine_are_counted_as_sysfs_does() -> None:
    links = read_links()
    indexes = {int((folder / "ifindex").read_text()): folder for folder in REAL.interfaces.iterdir()}
    assert links.keys() == indexes.keys()
    lo = next(index for index, folder in indexes.items() if folder.name == "lo")
    statistics = indexes[lo] / "statistics"
    before = int((statistics / "rx_bytes").read_text())
    counted = read_links()[lo].received_bytes
    assert before <= counted <= int((statistics / "rx_bytes").read_text())


RENAMED = """
set -e
ip link add veth0 type veth peer name veth1
ip link set veth0 up; ip link set veth1 up
ip address add 192.0.2.1/24 dev veth0
exec "$1" -c 'import json, subprocess, sys
from tests.host.test_resources_kernel import renamed
renamed()'
"""


def renamed() -> None:
    """Run in a network of its own: traffic of an interface that is renamed between two readings, and one that goes."""
    resources = KernelResources(REAL, read_mounts(REAL))
    index = int((REAL.interfaces / "veth1/ifindex").read_text())
    first = resources.host((index,))
    assert first.links is not None and first.names[index] == "veth1"
    subprocess.run(["ip", "link", "set", "veth1", "name", "web-lan"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.sendto(b"who has it?", ("192.0.2.9", 9))  # which is asked by ARP
    second = resources.host((index,))
    assert second.links is not None and second.names[index] == "web-lan"
    assert second.links[index].received_packets > first.links[index].received_packets
    subprocess.run(["ip", "link", "delete", "veth0"], check=True)
    gone = resources.host((index,))
    assert gone.links is not None and index not in gone.links and not gone.names


def test_an_interface_that_is_renamed_keeps_its_counters_and_one_that_goes_is_left_out() -> None:
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("unshare", "ip")):
        pytest.skip("NOT TESTED: a network of our own needs root, unshare and ip")
    # With a sysfs of its own, which shows the interfaces of that network.
    script = "mount -t sysfs sysfs /sys\n" + RENAMED
    command = ["unshare", "--net", "--mount", "bash", "-c", script, "bash", sys.executable]
    ended = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_pressure_of_this_machine_only_grows() -> None:
    resources = KernelResources(REAL, read_mounts(REAL))
    first = resources.host(()).pressures
    if first.cpu_us is None:
        pytest.skip("NOT TESTED: this machine measures no pressure")
    until(lambda: (resources.host(()).pressures.cpu_us or 0) >= (first.cpu_us or 0), "it is read again")
    time.sleep(0.01)
    assert all(
        now is not None and now >= then for now, then in zip(resources.host(()).pressures, first, strict=True) if then
    )
