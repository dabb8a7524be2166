"""Finding a VM's group, and reading and writing its weight, through the agent's host layer."""

from __future__ import annotations

import errno
import gc
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.cgroup import cpu_controller, find_vm_cgroup, parse_process_cgroups, read_mounts, vm_group
from manager.host.kernel_host import KernelHost
from manager.host.registry import CGROUP_V2
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import Knob, KnobKey
from tests.host.conftest import REAL, descriptors, until
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, ONLINE, SLICE, Place, Vm, delegate, open_host, scope_name


def weight_of(vm: Vm) -> KnobKey:
    return KnobKey(vm.process.uuid, Knob.WEIGHT)


@pytest.fixture
def host(web: Vm, batch: Vm) -> Iterator[KernelHost]:
    opened = open_host(web, batch)
    yield opened
    opened.forget(frozenset())


def test_what_this_kernel_offers(host: KernelHost) -> None:
    found = host.capabilities
    assert found.kernel == platform.release()
    assert (found.cgroup_version, found.weights) == (2, CPU_WEIGHT_V2)
    assert found.online_cpus == found.managed_cpus == ONLINE
    assert found.schedstat
    assert found.warnings == ()


def test_names_are_escaped_as_systemd_does() -> None:
    assert scope_name(1, "shop-web") == r"machine-qemu\x2d1\x2dshop\x2dweb.scope"


def test_the_group_of_a_vm_is_its_scope(web: Vm) -> None:
    group = rf"/machine.slice/{scope_name(1, 'shop-web')}"
    shown = Path(f"/proc/{web.process.pid}/cgroup").read_text()
    assert shown == f"0::{group}/libvirt/emulator\n"
    for index in range(2):
        tid = web.process.tids[f"CPU {index}/KVM"]
        thread = parse_process_cgroups(Path(f"/proc/{web.process.pid}/task/{tid}/cgroup").read_text())
        assert thread == {"": f"{group}/libvirt/vcpu{index}"}
        assert vm_group(thread[""]) == group
    mounts = read_mounts(REAL)
    assert cpu_controller(mounts) is CGROUP_V2
    found = find_vm_cgroup(REAL, mounts, CGROUP_V2, web.process.pid)
    assert (found.cpu_folder, found.usage_file) == (web.scope, web.scope / "cpu.stat")


@pytest.mark.parametrize(
    ("group", "nested"),
    [
        (SLICE / scope_name(9, "spare"), False),
        (CGROUPS / "machine/qemu-9-spare.libvirt-qemu", False),
        (CGROUPS / "machine/qemu-9-spare.libvirt-qemu", True),
    ],
    ids=["an older libvirt", "without systemd", "nested without systemd"],
)
def test_groups_of_other_shapes(place: Place, group: Path, nested: bool) -> None:
    if not group.parent.exists():
        group.parent.mkdir()
        delegate(group.parent)
    vm = place(group, nested=nested)
    found = find_vm_cgroup(REAL, read_mounts(REAL), CGROUP_V2, vm.process.pid)
    assert (found.cpu_folder, found.usage_file) == (group, group / "cpu.stat")
    host = open_host(vm)
    assert host.write(vm.instance, weight_of(vm), 777) == 777
    assert vm.weight.read_text() == "777\n"
    assert host.read(vm.instance).weight == 777
    host.forget(frozenset())


def test_a_process_in_no_group_of_its_own_has_no_weight(spare: Vm) -> None:
    service = CGROUPS / "system.slice/libvirtd.service"
    service.mkdir()
    (service / "cgroup.procs").write_text(str(spare.process.pid))
    before = (CGROUPS / "system.slice/cpu.weight").read_text()
    host = open_host(spare)
    assert host.read(spare.instance).weight is None
    with pytest.raises(HostError) as caught:
        host.write(spare.instance, weight_of(spare), 1)
    assert caught.value.errno == errno.ENOENT
    assert (CGROUPS / "system.slice/cpu.weight").read_text() == before
    host.forget(frozenset())
    (CGROUPS / "cgroup.procs").write_text(str(spare.process.pid))
    until(lambda: not (service / "cgroup.procs").read_text(), "the service's group is empty")
    service.rmdir()


def test_a_weight_is_written_read_back_and_undone(host: KernelHost, web: Vm, batch: Vm) -> None:
    before = (web.settings(), batch.settings())
    assert host.read(web.instance).weight == CPU_WEIGHT_V2.default == 100
    for weight in (10_000, 1, 777, 9_999, 2):
        assert host.write(web.instance, weight_of(web), weight) == weight
        assert web.weight.read_text() == f"{weight}\n"
        assert host.read(web.instance).weight == weight
        changed = {name for name, text in web.settings().items() if before[0][name] != text}
        assert changed == {str(web.weight.relative_to(CGROUPS))}, "the weights of its own threads stay"
    assert host.write(web.instance, weight_of(web), 100) == 100
    assert (web.settings(), batch.settings()) == before


def test_weights_all_over_the_range_are_kept_as_written(host: KernelHost, web: Vm) -> None:
    """The scheduler's own unit is 1024/100 of it; rounding there and back must lose nothing."""
    for weight in range(1, 10_001, 41):
        assert host.write(web.instance, weight_of(web), weight) == weight


@pytest.mark.parametrize(
    ("weight", "number"),
    [
        (0, errno.ERANGE),
        (10_001, errno.ERANGE),
        (262_144, errno.ERANGE),
        (2**64 - 1, errno.ERANGE),
        (2**64, errno.ERANGE),
        (-1, errno.EINVAL),
    ],
)
def test_a_weight_out_of_range_is_refused(host: KernelHost, web: Vm, weight: int, number: int) -> None:
    before = web.settings()
    with pytest.raises(HostError) as caught:
        host.write(web.instance, weight_of(web), weight)
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == number
    assert web.settings() == before


def test_cpu_time_and_waiting_are_counted(host: KernelHost, web: Vm) -> None:
    """Both vCPUs want one pCPU, so each waits."""
    for index in range(2):
        key = KnobKey(web.process.uuid, Knob.VCPU_PIN, index)
        assert host.write(web.instance, key, frozenset({0})) == {0}
    first = host.read(web.instance)
    assert first.cpu_ns // 1000 <= web.stat("usage_usec")
    web.process.tell("spin")

    def grown() -> bool:
        now = host.read(web.instance)
        waited = [now.vcpus[index].run_delay_ns > first.vcpus[index].run_delay_ns for index in range(2)]
        return now.cpu_ns > first.cpu_ns + 50_000_000 and all(waited)

    until(grown, "CPU time and run-queue delay of both vCPUs grew")
    web.process.tell("rest")
    low = web.stat("usage_usec")
    assert low * 1000 <= host.read(web.instance).cpu_ns <= web.stat("usage_usec") * 1000


def test_where_the_controller_is_not_enabled_there_is_no_weight(place: Place) -> None:
    """The slice has the controller itself but does not delegate it, as systemd leaves it where nobody asked for it."""
    other = CGROUPS / "other.slice"
    other.mkdir(exist_ok=True)
    vm = place(other / scope_name(5, "spare"))
    assert not vm.weight.exists()
    host = open_host(vm)
    state = host.read(vm.instance)
    assert state.weight is None
    assert weight_of(vm) not in state.knobs()
    assert state.cpu_ns > 0, "cpu.stat is there all the same"
    assert len(state.vcpus) == 2
    with pytest.raises(HostError) as caught:
        host.write(vm.instance, weight_of(vm), 100)
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == errno.ENOENT
    host.forget(frozenset())


def test_a_controller_that_is_taken_away_and_comes_back(place: Place) -> None:
    """systemd does so when the last unit that asked for it is gone. The weight is lost with it."""
    other = CGROUPS / "coming.slice"
    other.mkdir(exist_ok=True)
    delegate(other)
    vm = place(other / scope_name(6, "spare"))
    host = open_host(vm)
    assert host.write(vm.instance, weight_of(vm), 300) == 300
    for group in (vm.scope / "libvirt", vm.scope, other):
        (group / "cgroup.subtree_control").write_text("-cpu")
    with pytest.raises(VmVanished) as caught:
        host.read(vm.instance)
    assert caught.value.errno == errno.ENODEV
    host.forget(frozenset())
    assert host.read(vm.instance).weight is None
    delegate(other)
    assert host.read(vm.instance).weight is None, "it is looked for when the VM is opened again"
    host.forget(frozenset())
    assert host.read(vm.instance).weight == 100, "the group's state is new"
    host.forget(frozenset())


def test_a_removed_group_has_vanished(spare: Vm) -> None:
    """Also when another group has the same name by then."""
    host = open_host(spare)
    assert host.read(spare.instance).weight == 100
    gc.collect()  # hosts of tests before
    held = descriptors()
    spare.leave()
    spare.scope.mkdir()
    for action in (
        lambda: host.read(spare.instance),
        lambda: host.write(spare.instance, weight_of(spare), 777),
    ):
        with pytest.raises(VmVanished) as caught:
            action()
        assert caught.value.errno == errno.ENODEV
    assert spare.weight.read_text() == "100\n"
    assert descriptors() == held
    host.forget(frozenset())
    assert descriptors() < held


def test_pins_reach_the_threads_and_are_undone(host: KernelHost, web: Vm) -> None:
    before = web.settings()
    for key in (KnobKey(web.process.uuid, Knob.VCPU_PIN, 1), KnobKey(web.process.uuid, Knob.EMULATOR_PIN)):
        assert host.write(web.instance, key, frozenset({1})) == {1}
    assert os.sched_getaffinity(web.process.tids["CPU 1/KVM"]) == {1}
    assert os.sched_getaffinity(web.process.tids["CPU 0/KVM"]) == ONLINE
    assert os.sched_getaffinity(web.process.pid) == {1}
    for key in (KnobKey(web.process.uuid, Knob.VCPU_PIN, 1), KnobKey(web.process.uuid, Knob.EMULATOR_PIN)):
        assert host.write(web.instance, key, ONLINE) == ONLINE
    assert web.settings() == before
