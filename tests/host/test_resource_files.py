"""Counters of VMs and the host read from trees as kernels have them: v2, hybrid and v1 hosts, and files that go."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.cgroup import read_mounts
from manager.host.registry import HostPaths
from manager.host.resources.held_file import HeldFile
from manager.host.resources.host_counters import UPLINKS_EVERY, HostCounterFiles
from manager.host.resources.kernel_resources import KernelResources
from manager.host.resources.vm_counters import SELDOM
from manager.model.host import VmInstance
from manager.model.resource_use import (
    ALL_DISKS,
    DeviceCounters,
    DiskCounters,
    LinkCounters,
    Pressures,
    Uplink,
    VmCounters,
    WorkCounters,
)
from tests.host.conftest import descriptors
from tests.host.test_counter_texts import DISKSTATS, PSI, STAT, V1, V2

WEB = VmInstance("u-web", "web", 101, 9000)
SCOPE = r"machine.slice/machine-qemu\x2d1\x2dweb.scope"
V2_MOUNT = "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = """\
25 24 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
26 24 0:24 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
27 24 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
"""
UNIFIED = "28 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
V1_GROUP = "machine/qemu-1-web.libvirt-qemu"
IO = b"read_bytes: 100\nwrite_bytes: 200\n"


class Tree:
    """A host of files, with process 101 in groups as libvirt makes them."""

    def __init__(self, folder: Path, mounts: str, groups: str) -> None:
        self.folder = folder
        self.paths = HostPaths(folder)
        self.write({"proc/self/mountinfo": mounts, "proc/101/stat": STAT, "proc/101/io": IO})
        self.write({"proc/101/cgroup": groups, "proc/101/task/101/comm": "qemu\n", "proc/diskstats": DISKSTATS})
        (folder / "sys/block/vda").mkdir(parents=True)

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def open(self) -> KernelResources:
        return KernelResources(self.paths, read_mounts(self.paths))


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path, V2_MOUNT, f"0::/{SCOPE}/libvirt/emulator\n")
    group = f"sys/fs/cgroup/{SCOPE}"
    tree.write({f"{group}/{name}.pressure": PSI for name in ("cpu", "memory", "io")})
    tree.write({f"{group}/memory.stat": V2, f"{group}/io.stat": "254:0 rbytes=1 wbytes=2 rios=3 wios=4\n"})
    return tree


@pytest.fixture
def hybrid(tmp_path: Path) -> Tree:
    groups = f"4:memory:/{V1_GROUP}\n3:blkio:/{V1_GROUP}\n1:cpu:/{V1_GROUP}/emulator\n0::/{V1_GROUP}/emulator\n"
    tree = Tree(tmp_path, V1_MOUNTS + UNIFIED, groups)
    tree.write({f"sys/fs/cgroup/unified/{V1_GROUP}/memory.pressure": PSI})
    tree.write({f"sys/fs/cgroup/memory/{V1_GROUP}/memory.stat": V1})
    for policy in ("bfq", "throttle"):
        for name in ("io_service_bytes", "io_serviced"):
            tree.write({f"sys/fs/cgroup/blkio/{V1_GROUP}/blkio.{policy}.{name}_recursive": "Total 0\n"})
    return tree


def same(counters: VmCounters, **wanted: object) -> bool:
    return counters == counters._replace(**wanted)


def test_a_v2_host(v2: Tree) -> None:
    counters = v2.open().vm(WEB)
    assert same(
        counters,
        pressures=Pressures(100086327, 100086327, 100086327),
        major_faults=3,
        refaults=12,
        resident_bytes=256 * os.sysconf("SC_PAGE_SIZE"),
        disks={"vda": DiskCounters(1, 2, 7)},
        vhost_ns=None,
    ), counters


def test_a_hybrid_host_has_pressure_of_v2_and_the_rest_of_v1(hybrid: Tree) -> None:
    counters = hybrid.open().vm(WEB)
    disks = {ALL_DISKS: DiskCounters(100, 200, None)}
    assert same(counters, pressures=Pressures(None, 100086327, None), major_faults=3, refaults=7, disks=disks), counters


@pytest.mark.parametrize("policy", ["bfq", "throttle"])
def test_v1_counts_disks_where_a_policy_acts_on_them(hybrid: Tree, policy: str) -> None:
    folder = f"sys/fs/cgroup/blkio/{V1_GROUP}/blkio.{policy}."
    hybrid.write({f"{folder}io_service_bytes_recursive": "254:0 Read 8\n254:0 Write 9\nTotal 17\n"})
    hybrid.write({f"{folder}io_serviced_recursive": "254:0 Read 1\n254:0 Write 2\nTotal 3\n"})
    assert hybrid.open().vm(WEB).disks == {"vda": DiskCounters(8, 9, 3)}


def test_a_policy_that_begins_to_count_is_found_after_a_while(hybrid: Tree) -> None:
    resources = hybrid.open()
    assert ALL_DISKS in (resources.vm(WEB).disks or {})
    folder = f"sys/fs/cgroup/blkio/{V1_GROUP}/blkio.bfq."
    hybrid.write({f"{folder}io_service_bytes_recursive": "254:0 Read 8\n254:0 Write 9\nTotal 17\n"})
    found = [resources.vm(WEB).disks for _ in range(SELDOM)]
    assert found[-1] == {"vda": DiskCounters(8, 9, 0)}


def test_a_process_in_no_group_of_its_own_has_what_processes_have(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V2_MOUNT, "0::/user.slice\n")
    tree.write({"sys/fs/cgroup/user.slice/memory.stat": V2})
    assert same(tree.open().vm(WEB), pressures=Pressures(), major_faults=42, refaults=None)


@pytest.mark.parametrize("name", ["cpu.pressure", "memory.pressure", "io.pressure", "memory.stat", "io.stat"])
def test_a_file_that_a_host_does_not_have_is_missing_alone(v2: Tree, name: str) -> None:
    whole = v2.open().vm(WEB)
    v2.remove(f"sys/fs/cgroup/{SCOPE}/{name}")
    part = v2.open().vm(WEB)
    differing = {field for field in whole._fields if getattr(whole, field) != getattr(part, field)} - {"monotonic_s"}
    wanted = {"memory.stat": {"major_faults", "refaults"}, "io.stat": {"disks"}}
    assert differing == wanted.get(name, {"pressures"})


def test_faults_are_looked_up_once_something_waited_for_memory_or_had_a_fault(v2: Tree) -> None:
    group, resources = f"sys/fs/cgroup/{SCOPE}", v2.open()
    assert same(resources.vm(WEB), major_faults=3)
    v2.write({f"{group}/memory.stat": V2.replace(b"pgmajfault 3", b"pgmajfault 8")})
    assert same(resources.vm(WEB), major_faults=3), "nothing says that there were any"
    v2.write({f"{group}/memory.pressure": PSI.replace(b"total=100086327", b"total=100086328")})
    assert same(resources.vm(WEB), major_faults=8)
    v2.write({f"{group}/memory.stat": V2.replace(b"pgmajfault 3", b"pgmajfault 9")})
    for _ in range(SELDOM):
        found = resources.vm(WEB)
    assert same(found, major_faults=9), "and now and then in any case"


def test_without_pressure_faults_are_looked_up_once_something_was_read_or_had_a_fault(v2: Tree) -> None:
    group, resources = f"sys/fs/cgroup/{SCOPE}", v2.open()
    v2.remove(f"{group}/memory.pressure")
    assert same(resources.vm(WEB), refaults=12)
    v2.write({f"{group}/memory.stat": V2.replace(b"pgmajfault 3", b"pgmajfault 8")})
    assert same(resources.vm(WEB), major_faults=3), "nothing says that there were any"
    v2.write({f"proc/{WEB.pid}/io": IO.replace(b"100", b"4196")})
    assert same(resources.vm(WEB), major_faults=8)


@pytest.mark.parametrize("text", [b"", b"garbage", b"some total=\n", b"\xff\xfe\n" * 10])
def test_files_without_sense_count_nothing(v2: Tree, text: bytes) -> None:
    group = f"sys/fs/cgroup/{SCOPE}"
    v2.write({f"{group}/{name}": text for name in ("cpu.pressure", "memory.pressure", "io.pressure", "memory.stat")})
    v2.write({f"{group}/io.stat": text})
    assert same(v2.open().vm(WEB), pressures=Pressures(), major_faults=42, refaults=None, disks={})


def test_a_vm_that_is_gone(v2: Tree) -> None:
    resources = v2.open()
    with pytest.raises(VmVanished):
        resources.vm(WEB._replace(start_ticks=1))  # another process has its number
    v2.remove("proc/101/stat")
    with pytest.raises(VmVanished):
        resources.vm(WEB)
    v2.remove("proc/101/cgroup")
    with pytest.raises(VmVanished):
        resources.vm(WEB)


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, call: str = "pread") -> None:
    """Let calls about files of that name fail, as where a cgroup was removed while its files are open."""
    real: Callable[..., object] = getattr(os, call)
    opened: dict[object, str] = {}
    real_open = os.open

    def open_(path: object, *rest: object, **named: object) -> int:
        if call == "open" and str(path).endswith(name):
            raise OSError(number, os.strerror(number))
        descriptor = real_open(path, *rest, **named)  # type: ignore[arg-type]
        opened[descriptor] = str(path)
        return descriptor

    def refuse(descriptor: int, *rest: object) -> object:
        if opened.get(descriptor, "").endswith(name):
            raise OSError(number, os.strerror(number))
        return real(descriptor, *rest)

    monkeypatch.setattr(os, "open", open_)
    if call != "open":
        monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EOPNOTSUPP, errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "pread"])
@pytest.mark.parametrize("name", ["memory.pressure", "memory.stat", "io.stat", "101/io"])
def test_a_file_that_is_refused_is_missing_alone_and_comes_back(
    v2: Tree, monkeypatch: pytest.MonkeyPatch, name: str, call: str, number: int
) -> None:
    whole = v2.open().vm(WEB)
    resources = v2.open()
    with monkeypatch.context() as patch:
        refusing(patch, name, number, call)
        part = resources.vm(WEB)
        if name == "memory.pressure":
            assert same(part, pressures=whole.pressures._replace(memory_us=None))
        if name == "memory.stat":
            assert same(part, major_faults=42, refaults=None, disks=whole.disks)
        if name == "io.stat":
            assert part.disks == {ALL_DISKS: DiskCounters(100, 200, None)}
    later = [resources.vm(WEB) for _ in range(SELDOM)][-1]
    assert later._replace(monotonic_s=0) == whole._replace(monotonic_s=0)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EMFILE])
def test_no_descriptor_stays_open(v2: Tree, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = descriptors()
    resources = v2.open()
    resources.vm(WEB)
    with monkeypatch.context() as patch:
        refusing(patch, "io.stat", number)
        resources.vm(WEB)
    resources.forget({WEB})
    assert descriptors() > before
    resources.forget(())
    resources.host(())
    del resources
    assert descriptors() == before


def test_a_held_file_is_read_anew_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "io.pressure"
    file = HeldFile(path)
    assert file.read() is None
    path.write_text("one")
    assert file.read() == b"one"
    path.write_text("two")
    assert file.read() == b"two", "through the descriptor it has"
    file.close()
    file.close()
    assert file.read(2) == b"tw"


def test_a_file_that_lists_is_read_whole() -> None:
    listing = HeldFile(Path("/proc/kallsyms"))
    text = listing.read_in_parts(1 << 16)
    assert text is not None
    assert len(text) == 1 << 16, "not the page that the kernel answers with"
    listing.close()
    assert HeldFile(Path("/proc/nowhere")).read_in_parts(100) is None


def test_disks_beyond_the_first_page_of_diskstats_are_seen(v2: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"dm-{number}" for number in range(60)]
    counters = "1200300 4567 98765432 654321 2300400 8901 87654321 765432 0 543210 1419753 0 0 0 0 54321 98765"
    v2.write({"proc/diskstats": "".join(f" 253 {n:7} {name} {counters}\n" for n, name in enumerate(names))})
    for name in names:
        (v2.folder / "sys/block" / name).mkdir()
    whole = os.pread

    def in_pages(descriptor: int, most: int, offset: int) -> bytes:
        text = whole(descriptor, most, offset)  # as fs/seq_file.c: whole lines, at most a page
        return text[: text.rfind(b"\n", 0, 4096) + 1] if len(text) > 4096 else text

    monkeypatch.setattr(os, "pread", in_pages)
    disks = v2.open().host(()).disks
    assert disks is not None
    assert sorted(disks) == sorted(names)


def test_vhost_threads_of_the_process_are_found(v2: Tree) -> None:
    v2.write({"proc/101/task/105/comm": "vhost-101\n", "proc/105/schedstat": "7000 1 1\n"})
    v2.write({"proc/101/task/106/comm": "vhost-101\n", "proc/106/schedstat": "500 1 1\n"})
    v2.write({"proc/101/task/107/comm": "CPU 0/KVM\n", "proc/107/schedstat": "9 1 1\n"})
    resources = v2.open()
    assert resources.vm(WEB).vhost_ns == 7500
    v2.remove("proc/105/schedstat")
    assert resources.vm(WEB).vhost_ns == 7500, "it is open"
    v2.write({"proc/106/schedstat": "garbage\n"})
    assert resources.vm(WEB).vhost_ns == 7000


def test_vhost_threads_of_the_kernel_are_in_the_emulators_group(hybrid: Tree) -> None:
    hybrid.write({f"sys/fs/cgroup/cpu/{V1_GROUP}/emulator/tasks": "101\n400\n401\n"})
    hybrid.write({"proc/400/comm": "vhost-101\n", "proc/400/schedstat": "77 0 0\n", "proc/401/comm": "vhost-7\n"})
    assert hybrid.open().vm(WEB).vhost_ns == 77


def test_vhost_threads_of_the_kernel_are_in_the_emulators_group_of_v2(v2: Tree) -> None:
    v2.write({f"sys/fs/cgroup/{SCOPE}/libvirt/emulator/cgroup.threads": "101\n400\n"})
    v2.write({"proc/400/comm": "vhost-101\n", "proc/400/schedstat": "77 0 0\n"})
    assert v2.open().vm(WEB).vhost_ns == 77


LINKS = {7: LinkCounters(1, 2, 3, 4, 5), 2: LinkCounters(0, 0, 0, 0, 0), 3: LinkCounters(0, 0, 0, 0, 0)}


@pytest.fixture
def host(v2: Tree) -> HostCounterFiles:
    v2.write({f"proc/pressure/{name}": PSI for name in ("cpu", "memory", "io")})
    v2.write({"sys/class/net/eth0/ifindex": "2\n", "sys/class/net/eth0/speed": "1000\n"})
    v2.write({"sys/class/net/eth0/device/vendor": "0x1af4\n", "sys/class/net/vnet3/ifindex": "7\n"})
    v2.write({"sys/class/net/vf0/ifindex": "3\n", "sys/class/net/vf0/device/physfn/vendor": "0x1af4\n"})
    return HostCounterFiles(v2.paths, lambda: LINKS)


def test_the_host(host: HostCounterFiles) -> None:
    counters = host.read((7,))
    assert counters.pressures == Pressures(100086327, 100086327, 100086327)
    assert counters.disks == {"vda": DeviceCounters(3000 * 512, 150, 50, 40)}, "no partitions"
    assert counters.links == LINKS
    assert counters.uplinks == (Uplink(2, 125e6),), "neither taps nor functions that are passed to a VM"


@pytest.mark.parametrize("speed", ["-1\n", "0\n", "unknown\n", None])
def test_an_uplink_may_not_know_its_speed(v2: Tree, host: HostCounterFiles, speed: str | None) -> None:
    v2.remove("sys/class/net/eth0/speed")
    if speed is not None:
        v2.write({"sys/class/net/eth0/speed": speed})
    assert host.read(()).uplinks == (Uplink(2, None),)


def test_a_speed_that_changes_is_seen_after_a_while(v2: Tree, host: HostCounterFiles) -> None:
    host.read(())
    v2.write({"sys/class/net/eth0/speed": "10000\n"})
    found = [host.read(()).uplinks[0].speed_bytes_per_s for _ in range(UPLINKS_EVERY)]
    assert (found[0], found[-1]) == (125e6, 1.25e9)


def test_what_the_host_refuses_is_missing_alone(
    v2: Tree, host: HostCounterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "pressure/memory", errno.EOPNOTSUPP, "open")
    v2.remove("proc/diskstats")

    def deaf() -> Mapping[int, LinkCounters]:
        raise TimeoutError("timed out")

    counters = HostCounterFiles(v2.paths, deaf).read((7,))
    assert counters.pressures == Pressures(100086327, None, 100086327)
    assert (counters.disks, counters.links, counters.names, counters.uplinks) == (None, None, {}, ())


def test_a_vm_has_what_it_did_where_there_is_a_pmu(v2: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manager.host.resources.vm_counters.GroupCounters", Scripted)
    monkeypatch.setattr("manager.host.resources.kernel_resources.why_none", lambda: "")
    (v2.folder / "sys/fs/cgroup" / SCOPE).mkdir(parents=True, exist_ok=True)
    v2.write({"sys/devices/system/cpu/online": "0-3\n"})
    assert v2.open().vm(WEB).work is None, "nobody asked for it"
    resources = counting(v2)
    assert resources.vm(WEB).work == WorkCounters(4, 5, 6)
    Scripted.fails = True
    assert resources.vm(WEB).work is None
    Scripted.fails = False
    monkeypatch.setattr("manager.host.resources.kernel_resources.MOST_EVENTS", 11)
    assert counting(v2).vm(WEB).work is None, "three for each of four pCPUs are too many"


def counting(tree: Tree) -> KernelResources:
    resources = tree.open()
    resources.counts_work = True
    return resources


class Scripted:
    """Stands for the counters of a group."""

    fails = False

    def __init__(self, _folder: int, pcpus: frozenset[int]) -> None:
        assert pcpus == {0, 1, 2, 3}

    def read(self) -> tuple[int, ...]:
        if self.fails:
            raise HostError("performance counters: Input/output error")
        return 4, 5, 6

    def close(self) -> None:
        """Nothing is open."""
