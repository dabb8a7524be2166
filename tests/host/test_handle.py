"""Settings and counters of a VM, on this machine's own cgroups and threads."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.cgroup import MOST_UNREAD, CpuGroup, VmCgroup, find_vm_cgroup, read_mounts
from manager.host.handle import PINS_EVERY, VmHandle
from manager.host.registry import CGROUP_USAGE, CGROUP_V1, CGROUP_V2, CgroupUsage
from manager.host.write_watch import WriteWatch
from manager.model.cpus import MAX_CPU, CpuSet
from manager.model.host import Quota, VmState
from manager.model.knob_spec import KnobValue
from manager.model.knobs import LEAST_QUOTA_US, UNLIMITED, Knob, KnobKey
from tests.host.conftest import REAL, QemuLike, VmGroup, descriptors, until

ONLINE = frozenset(os.sched_getaffinity(0))
FIRST, LAST = min(ONLINE), max(ONLINE)


def weight_key(vm: QemuLike) -> KnobKey:
    return KnobKey(vm.uuid, Knob.WEIGHT)


def vcpu_key(vm: QemuLike, index: int = 0) -> KnobKey:
    return KnobKey(vm.uuid, Knob.VCPU_PIN, index)


def emulator_key(vm: QemuLike) -> KnobKey:
    return KnobKey(vm.uuid, Knob.EMULATOR_PIN)


NO_GROUP = VmCgroup(None, None, None, None)


@pytest.fixture(params=["watched", "unwatched"])
def handle(request: pytest.FixtureRequest, qemu: QemuLike, group: VmGroup) -> Iterator[VmHandle]:
    """Of the VM in its groups, found as the agent finds it, with and without inotify."""
    group.take(qemu)
    cgroup = find_vm_cgroup(REAL, read_mounts(REAL), group.cpu, qemu.pid)
    with closing(WriteWatch()) as watch:
        opened = VmHandle(REAL, qemu.instance, cgroup, watch if request.param == "watched" else None)
        yield opened
        opened.close()


@pytest.fixture
def bare(qemu: QemuLike) -> Iterator[VmHandle]:
    """Of a VM without groups of its own."""
    opened = VmHandle(REAL, qemu.instance, NO_GROUP)
    yield opened
    opened.close()


def test_the_groups_are_found(qemu: QemuLike, group: VmGroup) -> None:
    assert find_vm_cgroup(REAL, read_mounts(REAL), group.cpu, qemu.pid).cpu_folder is None, "in nobody's group yet"
    group.take(qemu)
    found = find_vm_cgroup(REAL, read_mounts(REAL), group.cpu, qemu.pid)
    assert found.cpu_folder == group.weight.parent
    assert found.usage_file is not None
    assert found.usage_file.parent.name == "qemu-99-test.libvirt-qemu"


def test_a_fresh_vm(handle: VmHandle, qemu: QemuLike, group: VmGroup) -> None:
    state = handle.read()
    assert state.instance == qemu.instance
    assert state.weight == group.cpu.scale.default
    assert [vcpu.index for vcpu in state.vcpus] == [0, 1]
    assert {vcpu.cpus for vcpu in state.vcpus} == {state.emulator_cpus} == {ONLINE}


def test_counters_grow_and_never_shrink(handle: VmHandle, qemu: QemuLike) -> None:
    """Two vCPUs that want the same pCPU: both use it, and both wait for it."""
    for index in range(2):
        handle.write(vcpu_key(qemu, index), frozenset({FIRST}))
    seen = [handle.read()]

    def grown() -> bool:
        seen.append(handle.read())
        waited = [
            late.run_delay_ns > early.run_delay_ns for late, early in zip(seen[-1].vcpus, seen[0].vcpus, strict=True)
        ]
        return seen[-1].cpu_ns > seen[0].cpu_ns + 20_000_000 and all(waited)

    qemu.tell("spin")
    until(grown, "CPU time and run-queue delay of both vCPUs grew")
    before, waits, after = handle.read().vcpus, handle.waits(), handle.read().vcpus
    for early, wait, late in zip(before, waits, after, strict=True):
        assert 0 < early.run_delay_ns <= wait <= late.run_delay_ns
    qemu.tell("rest")
    for counter in counters(seen):
        assert counter == sorted(counter)
    for index in range(2):
        before = waited_ns(qemu, index)
        assert before <= handle.read().vcpus[index].run_delay_ns <= waited_ns(qemu, index)


def waited_ns(vm: QemuLike, index: int) -> int:
    """What the kernel says of a vCPU's waiting: Documentation/scheduler/sched-stats.rst."""
    ran, waited, _ = Path(f"/proc/{vm.pid}/task/{vm.tids[f'CPU {index}/TCG']}/schedstat").read_text().split()
    assert ran != waited
    return int(waited)


def counters(seen: list[VmState]) -> list[list[int]]:
    delays = [[state.vcpus[index].run_delay_ns for state in seen] for index in range(2)]
    assert all(delay is not None for delay in delays[0] + delays[1])
    return [[state.cpu_ns for state in seen], *delays]  # type: ignore[list-item]


def test_the_time_of_all_threads_counts_also_without_groups(bare: VmHandle, qemu: QemuLike) -> None:
    before = bare.read()
    assert before.weight is None
    assert weight_key(qemu) not in before.knobs()
    qemu.tell("spin")
    until(lambda: bare.read().cpu_ns > before.cpu_ns, "CPU time grew")
    qemu.tell("rest")


def test_a_weight_is_written_and_read_back(handle: VmHandle, qemu: QemuLike, group: VmGroup) -> None:
    scale = group.cpu.scale
    for weight in (scale.maximum, scale.minimum, 777, scale.batch, scale.critical, scale.default):
        assert handle.write(weight_key(qemu), weight) == weight
        assert group.weight.read_text() == f"{weight}\n"
        assert handle.read().weight == weight


@pytest.mark.parametrize(
    ("weight", "v1"),
    [
        (0, 2),
        (1, 2),
        (262_145, 262_144),
        (2**64 - 1, 262_144),
        (2**64, errno.ERANGE),
        (-1, errno.EINVAL),
    ],
)
def test_weights_out_of_range(handle: VmHandle, qemu: QemuLike, group: VmGroup, weight: int, v1: int) -> None:
    """cgroup v1 clamps without a word (sched_group_set_shares), so reading back is what tells; v2 refuses."""
    if group.cpu is CGROUP_V1 and v1 not in (errno.ERANGE, errno.EINVAL):
        assert handle.write(weight_key(qemu), weight) == v1
        return
    before = handle.read().weight
    with pytest.raises(HostError) as caught:
        handle.write(weight_key(qemu), weight)
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno in ({v1} if group.cpu is CGROUP_V1 else {errno.ERANGE, errno.EINVAL})
    assert str(caught.value) == f"write {weight}: {os.strerror(caught.value.errno)}"
    assert handle.read().weight == before


def test_an_idle_group_takes_no_weight(handle: VmHandle, qemu: QemuLike, group: VmGroup) -> None:
    """cpu.idle (Linux 5.15): the group is SCHED_IDLE, and its weight the kernel's until it is not idle any more."""
    idle = group.weight.with_name("cpu.idle")
    if not idle.exists():
        pytest.skip("NOT TESTED: this kernel has no cpu.idle")
    idle.write_text("1")
    with pytest.raises(HostError) as caught:
        handle.write(weight_key(qemu), 500)
    assert caught.value.errno == errno.EINVAL
    assert handle.read().weight != 500
    idle.write_text("0")
    assert handle.write(weight_key(qemu), 500) == 500


@pytest.mark.parametrize("value", [5, frozenset({0})])
def test_a_vm_without_a_group_has_no_weight_to_write(bare: VmHandle, qemu: QemuLike, value: KnobValue) -> None:
    with pytest.raises(HostError) as caught:
        bare.write(weight_key(qemu), value)
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == errno.ENOENT


def test_pins_take_pcpus_only(bare: VmHandle, qemu: QemuLike) -> None:
    for key in (vcpu_key(qemu), emulator_key(qemu)):
        with pytest.raises(HostError) as caught:
            bare.write(key, 0)
        assert caught.value.errno == errno.EINVAL


def test_a_vcpu_is_pinned_and_let_go(bare: VmHandle, qemu: QemuLike) -> None:
    assert bare.write(vcpu_key(qemu, 1), frozenset({LAST})) == {LAST}
    state = bare.read()
    assert [vcpu.cpus for vcpu in state.vcpus] == [ONLINE, {LAST}]
    assert state.emulator_cpus == ONLINE
    assert bare.write(vcpu_key(qemu, 1), ONLINE) == ONLINE
    assert {vcpu.cpus for vcpu in bare.read().vcpus} == {ONLINE}


def test_the_emulator_is_all_threads_but_vcpus_and_io(bare: VmHandle, qemu: QemuLike) -> None:
    assert bare.write(emulator_key(qemu), frozenset({FIRST})) == {FIRST}
    pinned = {name: os.sched_getaffinity(tid) for name, tid in qemu.tids.items()}
    assert pinned == {"CPU 0/TCG": ONLINE, "CPU 1/TCG": ONLINE, "worker": {FIRST}, "IO iothread1": ONLINE}
    assert os.sched_getaffinity(qemu.pid) == {FIRST}
    late = qemu.tell("start late worker")
    assert os.sched_getaffinity(late) == {FIRST}, "threads it starts from now on inherit"
    assert bare.write(emulator_key(qemu), ONLINE) == ONLINE
    assert os.sched_getaffinity(late) == ONLINE, "also those that came since the threads were listed"


def test_a_pin_to_no_online_pcpu_is_refused_and_changes_nothing(bare: VmHandle, qemu: QemuLike) -> None:
    before = bare.read().knobs()
    for key in (vcpu_key(qemu), emulator_key(qemu)):
        for cpus in (frozenset({MAX_CPU}), frozenset()):
            with pytest.raises(HostError) as caught:
                bare.write(key, cpus)
            assert not isinstance(caught.value, VmVanished)
            assert caught.value.errno == errno.EINVAL
    assert bare.read().knobs() == before


def test_what_the_kernel_made_of_a_pin_is_read_back(bare: VmHandle, qemu: QemuLike) -> None:
    assert bare.write(vcpu_key(qemu), frozenset({FIRST, MAX_CPU})) == {FIRST}


def test_a_vcpu_that_is_not_there(bare: VmHandle, qemu: QemuLike) -> None:
    with pytest.raises(VmVanished, match="has no thread for vcpu_pin 2"):
        bare.write(vcpu_key(qemu, 2), ONLINE)


def test_a_vcpu_that_is_unplugged_does_not_take_the_vm_with_it(bare: VmHandle, qemu: QemuLike) -> None:
    qemu.tell("end CPU 1/TCG")
    with pytest.raises(VmVanished):
        bare.write(vcpu_key(qemu, 1), ONLINE)
    assert bare.waits() == (), "until it is known which are left"
    assert [vcpu.index for vcpu in bare.read().vcpus] == [0]
    assert len(bare.waits()) == 1


def test_a_vcpu_that_is_plugged_is_seen_at_the_second_reading(bare: VmHandle, qemu: QemuLike) -> None:
    """At the first one libvirt may still be setting its affinity."""
    plugged = qemu.tell("start CPU 2/TCG")
    assert [vcpu.index for vcpu in bare.read().vcpus] == [0, 1]
    assert [vcpu.index for vcpu in bare.read().vcpus] == [0, 1, 2]
    assert bare.write(vcpu_key(qemu, 2), frozenset({FIRST})) == {FIRST} == os.sched_getaffinity(plugged)


def test_threads_are_not_listed_at_each_reading_where_the_kernel_has_no_schedstat(
    qemu: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "schedstat" and exists(path))
    opened = VmHandle(REAL, qemu.instance, NO_GROUP)
    opened.find_threads()  # as when another VM comes
    assert opened.read().vcpus[0].run_ns is None
    listed: list[int] = []
    monkeypatch.setattr(process, "find_threads", lambda *_: listed.append(1))
    opened.read()
    assert not listed
    opened.close()


def test_vcpus_that_nobody_has_seen_yet_go_where_the_emulator_goes(bare: VmHandle, qemu: QemuLike) -> None:
    """But one that libvirt or the operator has pinned already stays."""
    bare.write(emulator_key(qemu), frozenset({FIRST}))
    plugged, pinned = (qemu.tell(f"start CPU {index}/TCG") for index in (2, 3))
    os.sched_setaffinity(pinned, {LAST})
    assert os.sched_getaffinity(plugged) == {FIRST}, "it inherited our pin"
    bare.write(emulator_key(qemu), ONLINE)
    assert (os.sched_getaffinity(plugged), os.sched_getaffinity(pinned)) == (ONLINE, {LAST})


def all_actions(vm: QemuLike, handle: VmHandle) -> dict[str, Callable[[], object]]:
    return {
        "read": handle.read,
        "vcpu": lambda: handle.write(vcpu_key(vm), ONLINE),
        "emulator": lambda: handle.write(emulator_key(vm), ONLINE),
    }


@pytest.mark.parametrize("action", ["read", "vcpu", "emulator"])
@pytest.mark.parametrize("zombie", [False, True])
def test_a_killed_vm_has_vanished(handle: VmHandle, qemu: QemuLike, action: str, zombie: bool) -> None:
    actions = all_actions(qemu, handle)
    if zombie:
        qemu.kill_only()
    else:
        qemu.kill()
    with pytest.raises(VmVanished):
        actions[action]()


@pytest.mark.parametrize("action", ["read", "weight"])
def test_a_removed_group_has_vanished(handle: VmHandle, qemu: QemuLike, group: VmGroup, action: str) -> None:
    """The held files answer ENODEV, also when another VM's group has the same name by now."""
    group.remove()
    for folder in group.folders:
        folder.mkdir()
    before = group.weight.read_text()
    with pytest.raises(VmVanished) as caught:
        if action == "read":
            handle.read()
        else:
            handle.write(weight_key(qemu), 777)
    assert caught.value.errno == errno.ENODEV
    assert group.weight.read_text() == before


def test_another_process_with_that_pid_is_not_taken_for_the_vm(qemu: QemuLike) -> None:
    earlier = qemu.instance._replace(start_ticks=qemu.instance.start_ticks - 1)
    held = descriptors()
    with pytest.raises(VmVanished):
        VmHandle(REAL, earlier, NO_GROUP)
    assert descriptors() == held, "what was opened before is closed"
    assert os.sched_getaffinity(qemu.pid) == ONLINE


def test_nothing_is_pinned_once_the_process_has_ended(bare: VmHandle, qemu: QemuLike, monkeypatch) -> None:
    """Whoever has its pid and thread ids by then: they are not looked up."""
    qemu.kill()
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("a thread of another process was moved"))
    for key in (vcpu_key(qemu), emulator_key(qemu)):
        with pytest.raises(VmVanished):
            bare.write(key, frozenset({FIRST}))


def test_opening_what_cannot_be_opened_leaves_nothing_open(
    qemu: QemuLike, start: Callable[..., QemuLike], tmp_path: Path
) -> None:
    gone = start()
    instance = gone.instance
    gone.kill()
    held = descriptors()
    with pytest.raises(VmVanished):
        VmHandle(REAL, instance, NO_GROUP)
    weight, usage = tmp_path / "cpu.shares", tmp_path / "cpuacct.usage"
    weight.touch()
    usage.symlink_to(usage)
    with pytest.raises(HostError) as caught:
        VmHandle(REAL, qemu.instance, VmCgroup(tmp_path, CGROUP_V1, usage, CGROUP_USAGE[0]))
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == errno.ELOOP
    assert descriptors() == held


def test_closing_closes_everything_and_may_be_done_twice(qemu: QemuLike, group: VmGroup) -> None:
    group.take(qemu)
    cgroup = find_vm_cgroup(REAL, read_mounts(REAL), group.cpu, qemu.pid)
    instance = qemu.instance
    gc.collect()  # hosts of earlier tests
    held = descriptors()
    files = {"cpu.idle", group.cpu.weight_file, group.cpu.quota_file, group.cpu.period_file}
    of_group = sum((group.weight.parent / name).exists() for name in files if name)
    for _ in range(3):
        handle = VmHandle(REAL, instance, cgroup)
        assert descriptors() == held + of_group + 5, "group, usage, process, its threads, each vCPU's delay"
        handle.read()
        handle.find_threads()
        assert descriptors() == held + of_group + 5
        handle.close()
        handle.close()
        assert descriptors() == held


def test_plugging_leaks_nothing(bare: VmHandle, qemu: QemuLike) -> None:
    held = descriptors()
    for _ in range(3):
        qemu.tell("start CPU 2/TCG")
        bare.find_threads()
        assert descriptors() == held + 1
        qemu.tell("end CPU 2/TCG")
        bare.find_threads()
        assert descriptors() == held


def test_io_threads_are_pinned_by_their_number(handle: VmHandle, qemu: QemuLike) -> None:
    key = KnobKey(qemu.uuid, Knob.IOTHREAD_PIN, 1)
    assert handle.read().iothread_cpus == ((1, ONLINE),)
    assert handle.write(key, frozenset({LAST})) == {LAST}
    assert os.sched_getaffinity(qemu.tids["IO iothread1"]) == {LAST}
    assert handle.read().knobs()[key] == {LAST}
    assert handle.read().emulator_cpus == ONLINE
    with pytest.raises(VmVanished):
        handle.write(key._replace(index=2), ONLINE)


def test_the_idle_class_has_no_weight_and_loses_it(handle: VmHandle, qemu: QemuLike, group: VmGroup) -> None:
    key = KnobKey(qemu.uuid, Knob.IDLE)
    state = handle.read()
    if state.idle is None:
        pytest.skip("NOT TESTED: this kernel has no cpu.idle")
    assert state.idle is False
    handle.write(weight_key(qemu), 777)
    assert handle.write(key, 1) == 1
    assert (handle.read().idle, handle.read().weight) == (True, None)
    assert weight_key(qemu) not in handle.read().knobs()
    with pytest.raises(HostError) as caught:
        handle.write(weight_key(qemu), 5)
    assert caught.value.errno == errno.EINVAL
    assert handle.write(key, 0) == 0
    assert handle.read().weight == group.cpu.scale.default, "what it had before is lost"
    with pytest.raises(HostError) as caught:
        handle.write(key, 2)
    assert caught.value.errno == errno.EINVAL


def test_a_quota_is_set_in_its_period_and_lifted(handle: VmHandle, qemu: QemuLike) -> None:
    key = KnobKey(qemu.uuid, Knob.QUOTA)
    assert handle.read().quota == Quota(UNLIMITED, 100_000)
    assert handle.write(key, 150_000) == 150_000
    assert handle.read().quota == Quota(150_000, 100_000)
    with pytest.raises(HostError) as caught:
        handle.write(key, LEAST_QUOTA_US - 1)
    assert caught.value.errno == errno.EINVAL
    assert handle.write(key, UNLIMITED) == UNLIMITED
    assert handle.read().quota == Quota(UNLIMITED, 100_000)


def test_what_another_tool_writes_is_in_the_next_reading(handle: VmHandle, group: VmGroup) -> None:
    """Each setting by itself, also one that is written twice and one that is written by a file opened long before."""
    folder = group.weight.parent
    if not (folder / "cpu.cfs_quota_us").exists():
        pytest.skip("NOT TESTED: no cgroup v1 here")
    with (folder / "cpu.cfs_period_us").open("w") as period:
        assert handle.read().quota == Quota(UNLIMITED, 100_000)
        period.write("50000")
        period.flush()
        assert handle.read().quota == Quota(UNLIMITED, 50_000)
    for quota_us in (30_000, 40_000):
        (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}")
        assert handle.read().quota == Quota(quota_us, 50_000)
    group.weight.write_text("3")  # as the idle class shows it
    assert (handle.read().weight, handle.read().idle) == (3, False)
    (folder / "cpu.idle").write_text("1")
    assert (handle.read().weight, handle.read().idle) == (None, True)


def test_what_is_known_from_the_reading_before_is_what_was_read(
    handle: VmHandle, qemu: QemuLike, group: VmGroup
) -> None:
    """Whatever changed since, by us and by others; and the same object while nothing did."""

    def read() -> Mapping[KnobKey, KnobValue]:
        state = handle.read()
        assert state.knobs() == state._replace(known=None).knobs()
        return state.knobs()

    group.weight.write_text("200")
    before = read()
    assert read() is before
    for tid, key in ((qemu.tids["CPU 0/TCG"], vcpu_key(qemu)), (qemu.pid, emulator_key(qemu))):
        os.sched_setaffinity(tid, {LAST})
        assert read()[key] == {LAST}
    group.weight.write_text("300")
    assert read()[weight_key(qemu)] == 300
    handle.write(vcpu_key(qemu), ONLINE)
    assert read()[vcpu_key(qemu)] == ONLINE
    qemu.tell("end CPU 1/TCG")
    assert vcpu_key(qemu, 1) not in read()


class Deaf(WriteWatch):
    """As inotify is for writes from another control group namespace."""

    def writes(self, number: int) -> int | None:
        return number


def test_a_setting_whose_write_is_not_reported_is_seen_in_the_end(group: VmGroup) -> None:
    with closing(Deaf()) as deaf, closing(CpuGroup(group.cpu, group.folders[0], deaf)) as opened:
        before = opened.read()
        group.weight.write_text("200")
        seen = [opened.read().weight for _ in range(MOST_UNREAD)]
    assert (seen[0], seen[-1]) == (before.weight, 200)


def test_pins_are_read_now_and_then_unless_asked_for_afresh(handle: VmHandle, qemu: QemuLike) -> None:
    """And at once when threads have come or gone, or after a pin was written."""
    key = vcpu_key(qemu)
    for _ in range(PINS_EVERY):
        handle.read(afresh=False)

    def readings_until_seen(cpus: CpuSet) -> int:
        return next(count for count in range(1, 100) if handle.read(afresh=False).knobs()[key] == cpus)

    os.sched_setaffinity(qemu.tids["CPU 0/TCG"], {LAST})
    assert readings_until_seen(frozenset({LAST})) <= PINS_EVERY
    os.sched_setaffinity(qemu.tids["CPU 0/TCG"], ONLINE)
    assert handle.read().knobs()[key] == ONLINE
    handle.write(key, frozenset({LAST}))
    assert readings_until_seen(frozenset({LAST})) == 1
    handle.read()
    os.sched_setaffinity(qemu.tids["CPU 0/TCG"], ONLINE)
    qemu.tell("end CPU 1/TCG")
    assert readings_until_seen(ONLINE) <= 2


@pytest.mark.parametrize("key", [vcpu_key, emulator_key])
def test_a_pin_that_another_tool_set_since_it_was_read_is_not_written_over(
    handle: VmHandle, qemu: QemuLike, key: Callable[[QemuLike], KnobKey]
) -> None:
    tid = qemu.pid if key is emulator_key else qemu.tids["CPU 0/TCG"]
    handle.read()
    os.sched_setaffinity(tid, {LAST})
    with pytest.raises(HostError, match="changed meanwhile"):
        handle.write(key(qemu), ONLINE)
    assert os.sched_getaffinity(tid) == {LAST}
    assert handle.read(afresh=False).knobs()[key(qemu)] == {LAST}, "it is seen at the next reading"
    assert handle.write(key(qemu), ONLINE) == ONLINE


def test_a_quota_of_v2_is_read_with_its_period(qemu: QemuLike, tmp_path: Path) -> None:
    """As far as ordinary files go, see above."""
    (tmp_path / CGROUP_V2.weight_file).write_text("100\n")
    (tmp_path / CGROUP_V2.quota_file).write_text("max 100000\n")
    handle = VmHandle(REAL, qemu.instance, VmCgroup(tmp_path, CGROUP_V2, None, None))
    assert handle.read().quota == Quota(UNLIMITED, 100_000)
    (tmp_path / CGROUP_V2.quota_file).write_text("20000 50000\n")
    assert handle.read().quota == Quota(20_000, 50_000)
    handle.close()


V2_STAT = b"usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnr_periods 9\n"


@pytest.mark.parametrize(
    ("usage", "text", "cpu_ns"),
    [(CGROUP_USAGE[0], b"987654321\n", 987_654_321), (CGROUP_USAGE[1], V2_STAT, 1_234_567_000)],
)
def test_units_of_cpu_time(qemu: QemuLike, tmp_path: Path, usage: CgroupUsage, text: bytes, cpu_ns: int) -> None:
    (tmp_path / usage.file).write_bytes(text)
    handle = VmHandle(REAL, qemu.instance, replace(NO_GROUP, usage_file=tmp_path / usage.file, usage=usage))
    assert handle.read().cpu_ns == cpu_ns
    handle.close()


def test_weights_of_v2_are_read_from_its_own_file(qemu: QemuLike, tmp_path: Path) -> None:
    """As far as ordinary files go; a v2 host's own groups are used where there are any."""
    file = tmp_path / CGROUP_V2.weight_file
    file.write_text("100\n")
    handle = VmHandle(REAL, qemu.instance, VmCgroup(tmp_path, CGROUP_V2, None, None))
    assert handle.read().weight == 100
    assert handle.write(weight_key(qemu), 200) == 200
    handle.close()


@pytest.mark.parametrize("text", [b"", b"garbage\n", b"user_usec 5\n", b"usage_usec \n", b"usage_usec x\n"])
def test_counters_that_make_no_sense_are_an_error_of_that_vm(qemu: QemuLike, tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "cpu.stat"
    file.write_bytes(text)
    handle = VmHandle(REAL, qemu.instance, replace(NO_GROUP, usage_file=file, usage=CGROUP_USAGE[1]))
    with pytest.raises(HostError) as caught:
        handle.read()
    assert not isinstance(caught.value, VmVanished)
    assert caught.value.errno == errno.EIO
    handle.close()
