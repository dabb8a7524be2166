"""The host as the control loop sees it: this machine's, and trees that stand for others."""

from __future__ import annotations

import errno
import gc
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.handle import PINS_EVERY
from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.host.replugs import Replugs
from manager.model.cpus import MAX_CPU, parse_cpus
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, CpuTimes, Discovery, PcpuTimes
from manager.model.knobs import Knob, KnobKey
from tests.host.conftest import REAL, QemuLike, Root, VmGroup, descriptors, until

ONLINE = frozenset(os.sched_getaffinity(0))


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains = field(default_factory=lambda: Domains({}))
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))


@pytest.fixture
def host(root: Root) -> Iterator[KernelHost]:
    opened = KernelHost(root.paths, Watch())  # type: ignore[arg-type]
    yield opened
    opened.forget(frozenset())


def test_what_this_machine_offers() -> None:
    found = KernelHost(REAL, None).capabilities
    assert found.kernel == platform.release()
    assert found.libvirt == "unknown"
    assert found.online_cpus == found.managed_cpus == parse_cpus(REAL.online_cpus.read_text())
    assert found.weights is {1: CPU_SHARES_V1, 2: CPU_WEIGHT_V2, 0: None}[found.cgroup_version]
    assert (found.weights is None) == any("weights cannot be set" in warning for warning in found.warnings)


def test_the_boot_id_is_the_kernels() -> None:
    host = KernelHost(REAL, None)
    assert host.boot_id == REAL.boot_id.read_text().strip()
    assert len(host.boot_id) == 36


def test_without_libvirt_nothing_runs() -> None:
    host = KernelHost(REAL, None)
    assert (host.connected, host.running()) == (False, {})


def test_what_libvirt_told_is_passed_on(qemu: QemuLike, root: Root) -> None:
    watch = Watch(Domains({qemu.uuid: qemu.instance}, 1, True, "9.1.2"))
    host = KernelHost(root.paths, watch)  # type: ignore[arg-type]
    assert (host.connected, host.running()) == (True, {qemu.uuid: qemu.instance})
    assert host.capabilities.libvirt == "9.1.2"


def test_managed_pcpus_are_a_part_of_those_online() -> None:
    some = frozenset({min(ONLINE)})
    assert KernelHost(REAL, None, some).capabilities.managed_cpus == some
    with pytest.raises(HostError) as caught:
        KernelHost(REAL, None, some | {MAX_CPU - 1, MAX_CPU})
    assert str(caught.value).startswith(
        f"setting managed_cpus names pCPUs that are not online: [{MAX_CPU - 1}, {MAX_CPU}]; online are [0"
    )


def test_cpu_times_only_grow() -> None:
    host = KernelHost(REAL, None)
    first = host.cpu_times()
    assert 0 < first.busy_ns < first.total_ns
    until(lambda: host.cpu_times().total_ns > first.total_ns, "the host's CPU time grew")


def test_cpu_times_count_steal_as_busy_and_guests_once(tree: Tree) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    tree.write("proc/stat", "cpu  100 20 30 4000 500 6 7 80 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 1 2\n")
    host = tree.host()
    assert host.cpu_times() == CpuTimes(
        4743 * 10_000_000, 243 * 10_000_000, {0: PcpuTimes(80_000_000, 60_000_000, 20_000_000)}
    )
    tree.write("proc/stat", "cpu  100 20 30 4000 500 6 7 80 90 9\ncpu0 2 1 1 1 1 1 1 1 1 1\ncpu3 0 0 0 1 0 0 0 0 0 0\n")
    assert host.cpu_times().pcpus == {
        0: PcpuTimes(90_000_000, 70_000_000, 20_000_000),
        3: PcpuTimes(10_000_000, 0, 0),
    }, "read again where it is open"


def test_time_on_interrupts_is_that_of_hard_and_soft_ones(tree: Tree) -> None:
    tree.write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 100 0 100 700 0 30 70 0 0 0\n")
    [times] = tree.host().cpu_times().pcpus.values()
    assert times == PcpuTimes(10_000_000_000, 3_000_000_000, 1_000_000_000)


def test_cpu_times_of_each_pcpu_are_those_of_this_machine() -> None:
    times = KernelHost(REAL, None).cpu_times()
    assert times.pcpus.keys() == ONLINE
    assert sum(total for total, _, _ in times.pcpus.values()) == pytest.approx(times.total_ns, rel=0.01)


@pytest.mark.parametrize("text", [None, "", "cpu\n", "cpu 1 2 3 4\n", "cpu a b c d e f g h\n"])
def test_cpu_times_that_cannot_be_read_are_an_error(tree: Tree, text: str | None) -> None:
    host = tree.host()
    if text is None:
        (tree.folder / "proc/stat").unlink()
    else:
        tree.write("proc/stat", text)
    with pytest.raises(HostError, match="proc/stat cannot be read"):
        host.cpu_times()


class Tree:
    """A root folder of a host with cgroup v2 and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("proc/sys/kernel/random/boot_id", "0e0e0e0e-0000-4000-8000-000000000000\n")
        self.write("proc/sys/kernel/osrelease", "6.12.0-test\n")
        self.write("proc/self/mountinfo", "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.write("proc/stat", "cpu  1 1 1 1 1 1 1 1\n")
        self.write("proc/1/schedstat", "1 2 3\n")
        self.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n")
        self.write("sys/devices/system/cpu/online", "0-3,6\n")

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def host(self) -> KernelHost:
        return KernelHost(HostPaths(self.folder), None)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def test_an_interrupt_is_lost_only_once_the_kernel_has_none_of_its_number(tree: Tree) -> None:
    host = tree.host()
    (tree.folder / "proc/irq/40").mkdir(parents=True)  # also where nobody handles it now, as its interface is down
    assert list(host.lost_interrupts([40, 41])) == [41]


def test_a_v2_host(tree: Tree) -> None:
    found = tree.host().capabilities
    assert (found.kernel, found.cgroup_version, found.weights) == ("6.12.0-test", 2, CPU_WEIGHT_V2)
    assert found.online_cpus == {0, 1, 2, 3, 6}
    assert found.schedstat
    assert found.warnings == ()


def test_the_idle_class_is_seen_once_a_group_has_the_cpu_controller(tree: Tree) -> None:
    host = tree.host()
    assert not host.capabilities.idle_class
    tree.write("sys/fs/cgroup/machine.slice/cpu.idle", "0\n")
    assert host.capabilities.idle_class


def test_what_is_missing_is_said(tree: Tree) -> None:
    tree.write("sys/fs/cgroup/cgroup.controllers", "io\n")
    tree.write("sys/kernel/sched_ext/root/ops", "lavd\n")
    tree.write("sys/kernel/sched_ext/state", "enabled\n")
    (tree.folder / "proc/1/schedstat").unlink()
    found = tree.host().capabilities
    assert (found.cgroup_version, found.weights, found.schedstat) == (0, None, False)
    assert found.warnings == (
        "no cpu controller in any cgroup hierarchy: weights cannot be set",
        "the sched_ext scheduler 'lavd' is loaded: it may ignore CPU weights",
        "no schedstat: run-queue delay of vCPUs is not known",
    )


def test_a_scheduler_that_is_loaded_later_is_seen(tree: Tree) -> None:
    host = tree.host()
    assert host.capabilities.warnings == ()
    tree.write("sys/kernel/sched_ext/root/ops", "bvt\n")
    tree.write("sys/kernel/sched_ext/state", "enabled\n")
    assert (host.capabilities.scheduler, len(host.capabilities.warnings)) == ("bvt", 1)
    tree.write("sys/kernel/sched_ext/state", "disabled\n")
    assert (host.capabilities.scheduler, host.capabilities.warnings) == ("", ()), "thrown out; its name stayed"


@pytest.mark.parametrize(
    "path",
    [
        "proc/sys/kernel/random/boot_id",
        "proc/sys/kernel/osrelease",
        "proc/self/mountinfo",
        "sys/devices/system/cpu/online",
    ],
)
def test_a_host_that_cannot_be_read_is_refused(tree: Tree, path: str) -> None:
    (tree.folder / path).unlink()
    with pytest.raises(HostError, match=path):
        tree.host()


def test_a_cpu_list_that_makes_no_sense_is_refused(tree: Tree) -> None:
    tree.write("sys/devices/system/cpu/online", "all\n")
    with pytest.raises(HostError, match="'all' is not a CPU number"):
        tree.host()


def test_a_vm_is_read_and_written(host: KernelHost, qemu: QemuLike, group: VmGroup) -> None:
    group.take(qemu)
    instance = qemu.instance
    assert not host.ended({instance})
    assert host.read(instance).weight == group.cpu.scale.default
    assert host.write(instance, KnobKey(qemu.uuid, Knob.WEIGHT), group.cpu.scale.batch) == group.cpu.scale.batch
    assert host.write(instance, KnobKey(qemu.uuid, Knob.VCPU_PIN, 1), frozenset({0})) == {0}
    state = host.read(instance)
    assert (state.weight, state.vcpus[1].cpus) == (group.cpu.scale.batch, {0})


def test_pins_are_read_again_at_once_when_pcpus_went_or_came(
    host: KernelHost, qemu: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the kernel sets them then; else they are read now and then."""
    plugs = [0]
    monkeypatch.setattr(Replugs, "count", property(lambda _: plugs[0]))
    for pins in ({0}, host.capabilities.online_cpus):
        for _ in range(PINS_EVERY):
            host.read(qemu.instance, afresh=False)
        os.sched_setaffinity(qemu.tids["CPU 0/TCG"], pins)
        plugs[0] += 1
        assert host.capabilities.online_cpus
        assert host.read(qemu.instance, afresh=False).vcpus[0].cpus == pins


def test_a_vm_that_ends_vanishes_and_its_next_run_is_another(
    host: KernelHost, qemu: QemuLike, start: Callable[..., QemuLike]
) -> None:
    instance = qemu.instance
    host.read(instance)
    qemu.kill()
    assert host.ended({instance}) == {instance}
    with pytest.raises(VmVanished):
        host.read(instance)
    with pytest.raises(VmVanished):
        host.write(instance, KnobKey(qemu.uuid, Knob.VCPU_PIN), ONLINE)
    host.forget(frozenset())
    with pytest.raises(VmVanished) as caught:
        host.read(instance)
    assert caught.value.errno in {errno.ENOENT, errno.ESRCH}
    again = start("CPU 0/TCG")
    assert host.read(again.instance).instance == again.instance


def test_a_group_that_was_made_again_is_found_after_forgetting(
    host: KernelHost, qemu: QemuLike, group: VmGroup
) -> None:
    group.take(qemu)
    instance = qemu.instance
    host.read(instance)
    group.remove()
    with pytest.raises(VmVanished):
        host.read(instance)
    host.forget(frozenset())
    assert host.read(instance).weight is None, "it is in nobody's group now"


def test_forgetting_closes_what_is_not_kept(host: KernelHost, start: Callable[..., QemuLike]) -> None:
    gc.collect()  # hosts of earlier tests
    held = descriptors()
    one, other = start("CPU 0/TCG"), start("CPU 0/TCG")
    pipes = descriptors() - held
    for vm in (one, other):
        host.read(vm.instance)
    open_now = descriptors() - pipes
    assert open_now > held
    host.forget(frozenset({one.instance, other.instance}))
    assert descriptors() - pipes == open_now
    host.forget(frozenset({one.instance}))
    assert descriptors() - pipes == held + (open_now - held) / 2
    host.forget(frozenset())
    assert descriptors() - pipes == held
    assert host.read(one.instance).instance == one.instance, "and it can be read again"


def test_the_same_question_gets_another_answer_once_vms_came_or_ended(
    host: KernelHost, start: Callable[..., QemuLike]
) -> None:
    one, other = start("CPU 0/TCG"), start("CPU 0/TCG")
    ending = other.instance
    both, kept = frozenset({one.instance, ending}), frozenset({one.instance})
    assert not host.ended(both)
    for vm in (one, other):
        host.read(vm.instance)
    assert not host.ended(both) and not host.ended(both)
    other.kill()
    assert host.ended(both) == {ending}
    host.forget(kept)
    assert host.ended(both) == {ending}, "also when it is watched no longer"
    held = descriptors()
    third = start("CPU 0/TCG")
    pipes = descriptors() - held
    host.read(third.instance)
    host.forget(kept)
    assert descriptors() - pipes == held
    one.kill()
    assert host.ended(kept) == kept


def test_threads_are_looked_for_at_each_listing(root: Root, qemu: QemuLike) -> None:
    watch = Watch()
    host = KernelHost(root.paths, watch)  # type: ignore[arg-type]
    instance = qemu.instance
    assert len(host.read(instance).vcpus) == 2
    qemu.tell("end worker")
    qemu.tell("start CPU 2/TCG")
    assert len(host.read(instance).vcpus) == 2, "there are as many as before"
    watch.domains = Domains({}, generation=1)
    assert len(host.read(instance).vcpus) == 3
    host.forget(frozenset())


def test_pins_are_not_read_again_at_a_listing_that_finds_the_same_threads(
    root: Root, qemu: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    host = KernelHost(root.paths, watch)  # type: ignore[arg-type]
    host.read(qemu.instance, afresh=False)
    asked, really = Counter[int](), os.sched_getaffinity

    def ask(tid: int) -> set[int]:
        asked[tid] += 1
        return really(tid)

    monkeypatch.setattr(os, "sched_getaffinity", ask)
    for generation in range(1, PINS_EVERY + 1):
        watch.domains = Domains({}, generation=generation)
        host.look()
        host.read(qemu.instance, afresh=False)
    assert set(asked.values()) == {1}, "at every so many readings, as between listings"
    host.forget(frozenset())
