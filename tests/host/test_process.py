"""QEMU processes on this machine's kernel: which one it is, its threads, and where they may run."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.model.cpus import MAX_CPU
from tests.host.conftest import REAL, QemuLike, Root

ONLINE = frozenset(os.sched_getaffinity(0))
FIRST = min(ONLINE)


def ended_pid(start: Callable[..., QemuLike]) -> int:
    """A process id that was somebody's and is nobody's now."""
    vm = start()
    vm.kill()
    return vm.pid


def test_threads_by_their_names(qemu: QemuLike) -> None:
    found = process.find_threads(REAL, qemu.pid)
    assert found.vcpus == ((0, qemu.tids["CPU 0/TCG"]), (1, qemu.tids["CPU 1/TCG"]))
    assert set(found.emulator) == {qemu.pid, qemu.tids["worker"]}, "I/O threads are left alone"


def test_vcpus_are_in_the_order_of_their_numbers(start: Callable[..., QemuLike]) -> None:
    vm = start("CPU 10/KVM", "CPU 9/KVM", "CPU 100/KVM", "CPU 0/KVM")
    found = process.find_threads(REAL, vm.pid)
    assert found.vcpus == tuple((number, vm.tids[f"CPU {number}/KVM"]) for number in (0, 9, 10, 100))


@pytest.mark.parametrize("name", ["CPU 0/KVMx", "xCPU 0/KVM", "CPU /KVM", "CPU 0", "vnc_worker", "IOx"])
def test_names_that_are_no_vcpus(start: Callable[..., QemuLike], name: str) -> None:
    vm = start(name)
    found = process.find_threads(REAL, vm.pid)
    assert (found.vcpus, set(found.emulator)) == ((), {vm.pid, *vm.tids.values()})


def test_any_bytes_may_be_a_name(start: Callable[..., QemuLike]) -> None:
    """Names are bytes that any process chooses for itself; the kernel cuts them after 15, in mid-letter if need be."""
    vm = start("\xff\xfe) R 1 2 (\xc3", name="a) Z 1 (b \xff")
    assert set(process.find_threads(REAL, vm.pid).emulator) == {vm.pid, *vm.tids.values()}
    assert process.is_alive(REAL, vm.instance)


def test_threads_come_and_go(qemu: QemuLike) -> None:
    plugged = qemu.tell("start CPU 2/TCG")
    assert (2, plugged) in process.find_threads(REAL, qemu.pid).vcpus
    qemu.tell("end CPU 1/TCG")
    assert [index for index, _ in process.find_threads(REAL, qemu.pid).vcpus] == [0, 2]


def test_a_process_that_ended_has_vanished(start: Callable[..., QemuLike]) -> None:
    pid = ended_pid(start)
    with pytest.raises(VmVanished) as caught:
        process.find_threads(REAL, pid)
    assert caught.value.errno == errno.ENOENT
    assert process.start_ticks(REAL, pid) is None


def test_start_time_and_pid_name_one_run(qemu: QemuLike, start: Callable[..., QemuLike]) -> None:
    instance = qemu.instance
    assert process.is_alive(REAL, instance)
    assert not process.is_alive(REAL, instance._replace(start_ticks=instance.start_ticks - 1)), "a recycled pid"
    assert process.start_ticks(REAL, start().pid) >= instance.start_ticks
    qemu.kill_only()
    assert not process.is_alive(REAL, instance), "a zombie does not run"
    qemu.kill()
    assert not process.is_alive(REAL, instance)


def test_start_time_is_field_22_whatever_the_name_before_it(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    numbers = " ".join(str(field) for field in range(4, 53))
    for state, ticks in (("S", 22), ("R", 22), ("D", 22), ("Z", None), ("X", None)):
        (tmp_path / "proc/7/stat").write_text(f"7 (a) Z 1 (b c) {state} {numbers}\n")
        assert process.start_ticks(HostPaths(tmp_path), 7) == ticks


def test_a_domains_process_is_found_by_its_pid_file(qemu: QemuLike, root: Root) -> None:
    root.note("web", f"{qemu.pid}\n")
    found = process.find_instance(root.paths, qemu.uuid, "web")
    assert found == qemu.instance._replace(libvirt_name="web")


@pytest.mark.parametrize("content", ["", "garbage", "-1", "0", "4194305", "12 34", "\xff"])
def test_a_pid_file_that_names_nobody(root: Root, content: str) -> None:
    root.note("web", content)
    assert process.find_instance(root.paths, "some-uuid", "web") is None


def test_the_command_line_must_confirm_the_domain(qemu: QemuLike, root: Root, start: Callable[..., QemuLike]) -> None:
    other = start()
    root.note("web", other.pid)
    assert process.find_instance(root.paths, qemu.uuid, "web") is None, "the pid is somebody else's by now"
    root.note("web", os.getpid())
    assert process.find_instance(root.paths, qemu.uuid, "web") is None
    assert process.find_instance(root.paths, qemu.uuid, "not-run-by-qemu") is None
    root.note("web", qemu.pid)
    qemu.kill_only()
    assert process.find_instance(root.paths, qemu.uuid, "web") is None, "a zombie runs nothing"
    qemu.kill()
    assert process.find_instance(root.paths, qemu.uuid, "web") is None


def test_affinity_is_per_thread(qemu: QemuLike) -> None:
    vcpu, other = qemu.tids["CPU 0/TCG"], qemu.tids["CPU 1/TCG"]
    before = process.affinity(other)
    process.set_affinity(vcpu, frozenset({FIRST}))
    assert (process.affinity(vcpu), process.affinity(other)) == ({FIRST}, before)
    process.set_affinity(vcpu, before)
    assert process.affinity(vcpu) == before


@pytest.mark.parametrize("cpus", [frozenset(), frozenset({MAX_CPU}), frozenset({MAX_CPU - 1, MAX_CPU})])
def test_no_online_pcpu_is_refused_by_the_kernel(qemu: QemuLike, cpus: frozenset[int]) -> None:
    vcpu = qemu.tids["CPU 0/TCG"]
    before = process.affinity(vcpu)
    with pytest.raises(HostError) as caught:
        process.set_affinity(vcpu, cpus)
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == errno.EINVAL
    assert str(caught.value) == f"sched_setaffinity of thread {vcpu}: Invalid argument"
    assert process.affinity(vcpu) == before


def test_the_kernel_leaves_out_pcpus_that_are_not_there(qemu: QemuLike) -> None:
    """No error: only reading back tells."""
    process.set_affinity(qemu.pid, frozenset({FIRST, MAX_CPU}))
    assert process.affinity(qemu.pid) == {FIRST}


def test_affinity_of_a_thread_that_ended(qemu: QemuLike) -> None:
    worker = qemu.tids["worker"]
    qemu.tell("end worker")
    for action in (lambda: process.affinity(worker), lambda: process.set_affinity(worker, ONLINE)):
        with pytest.raises(VmVanished) as caught:
            action()
        assert caught.value.errno == errno.ESRCH


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """As if this process had used up its file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_looked_up_has_not_vanished(qemu: QemuLike, root: Root) -> None:
    """Otherwise an agent short of descriptors would forget the original values of VMs that run."""
    instance = qemu.instance
    root.note("test", qemu.pid)
    host = KernelHost(root.paths, None)
    lookups = (
        lambda: process.start_ticks(root.paths, qemu.pid),
        lambda: process.is_alive(root.paths, instance),
        lambda: process.find_threads(root.paths, qemu.pid),
        lambda: process.find_instance(root.paths, qemu.uuid, "test"),
        lambda: host.read(instance),
    )
    caught: list[Exception] = []
    with no_descriptors_left():
        for lookup in lookups:
            try:
                lookup()
            except Exception as error:  # noqa: BLE001 - judged below, when files can be opened again
                caught.append(error)
        ended = host.ended({instance})
    assert [type(error) for error in caught] == [HostError] * len(lookups)
    assert {error.errno for error in caught} == {errno.EMFILE}
    assert not ended, "not known to have ended"
    assert host.read(instance).instance == instance
    host.forget(frozenset())
