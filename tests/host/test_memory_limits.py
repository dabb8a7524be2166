"""Files that protect and limit memory: those of v2 in a tree, and v1's on this kernel, where it has these."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, read_mounts
from manager.host.doctor import memory_check
from manager.host.doctor.check import Subject
from manager.host.knob_files import VmTarget
from manager.host.memory_limits import MemoryLimits
from manager.host.registry import HostPaths
from manager.model.finding import FindingStatus
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from tests.host.conftest import REAL, descriptors

WEB = KnobKey("u-web", Knob.MEMORY_CEILING)
OWN, INNER = (KnobKey("u-web", Knob.MEMORY_PROTECTION, index) for index in (0, 1))
SWAPPED, SWAPPED_INNER = (KnobKey("u-web", Knob.SWAPPINESS, index) for index in (0, 1))
V1_ALL = 9223372036854771712
V2_MOUNT = "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "25 24 0:23 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a v2 hierarchy with one VM in two slices."""
    for name in ("", "outer.slice", "outer.slice/machine.slice"):
        (tmp_path / name / "system.slice").mkdir(parents=True)
    scope = tmp_path / r"outer.slice/machine.slice/machine-qemu\x2d1\x2dweb.scope"
    for group in (scope / "libvirt", scope, scope.parent, scope.parent.parent, tmp_path / "system.slice"):
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.low").write_text("0\n")
        (group / "memory.high").write_text("max\n")
    return tmp_path


@pytest.fixture
def scope(root: Path) -> Path:
    return root / r"outer.slice/machine.slice/machine-qemu\x2d1\x2dweb.scope"


@pytest.fixture
def limits(root: Path) -> MemoryLimits:
    return MemoryLimits(CgroupMounts({"": (root, "/")}))


def target(folder: Path | None) -> VmTarget:
    return VmTarget("u-web", None, (), folder)


def test_what_a_vm_has(limits: MemoryLimits, scope: Path) -> None:
    (scope / "memory.low").write_text("4096\n")
    (scope.parent / "memory.low").write_text("max\n")
    found = limits.read(target(scope))
    above = [key for key in found if key.uuid == HOST_UUID]
    assert {key: value for key, value in found.items() if key.uuid != HOST_UUID} == {
        WEB: UNLIMITED,
        OWN: 4096,
        INNER: 0,
    }
    assert [found[key] for key in above] == [0, UNLIMITED]
    assert len({key.index for key in above}) == 2
    assert set(limits.read(None)) == set(above)


def test_what_an_agent_before_protected_is_found(limits: MemoryLimits, scope: Path, root: Path) -> None:
    assert limits.read(None) == {}
    (scope.parent / "memory.low").write_text("8192\n")
    (scope / "memory.low").write_text("8192\n")
    again = MemoryLimits(CgroupMounts({"": (root, "/")}))
    assert list(again.read(None).values()) == [8192]


@pytest.mark.parametrize("text", ["", "12", "max", "some\n", "-5\n", "1 2\n"])
def test_what_no_kernel_writes_is_an_error(limits: MemoryLimits, scope: Path, text: str) -> None:
    (scope / "memory.high").write_text(text)
    with pytest.raises(HostError) as raised:
        limits.read(target(scope))
    assert raised.value.errno == errno.EIO


def test_a_vm_without_the_controller_has_none(limits: MemoryLimits) -> None:
    assert limits.read(target(None)) == {}
    with pytest.raises(VmVanished):
        limits.write(WEB, 4096, target(None))
    with pytest.raises(VmVanished):
        limits.write(KnobKey(HOST_UUID, Knob.MEMORY_PROTECTION, 77), 4096, None)


def test_it_is_found_once_the_controller_is_enabled(limits: MemoryLimits, scope: Path) -> None:
    for name in ("memory.low", "memory.high"):
        (scope / name).rename(scope / f"{name}.later")
        (scope / "libvirt" / name).unlink()
    assert limits.read(target(scope)) == {}
    for name in ("memory.low", "memory.high"):
        (scope / f"{name}.later").rename(scope / name)
    found = limits.read(target(scope))
    assert {WEB, OWN} <= found.keys()
    assert len(found) == 4, "and those of the groups above"


def test_files_are_held_until_the_vm_ends(limits: MemoryLimits, scope: Path) -> None:
    limits.read(None)
    gc.collect()  # what tests before left open
    before = descriptors()
    limits.read(target(scope))
    held = descriptors()
    limits.read(target(scope))
    assert descriptors() == held != before
    limits.forget("u-web")
    limits.forget("u-web")
    assert descriptors() == before + 2  # those of the groups above


@pytest.mark.parametrize("value", [-2, frozenset({1})])
def test_other_values_are_refused(limits: MemoryLimits, scope: Path, value: int | frozenset[int]) -> None:
    with pytest.raises(HostError) as raised:
        limits.write(WEB, value, target(scope))
    assert raised.value.errno == errno.EINVAL


def subject(folder: Path, mounts: str) -> Subject:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text(mounts)
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    return Subject(HostPaths(folder), "", folder / "lock", folder, "journal.db")


def test_the_doctor_says_what_is_missing(tmp_path: Path) -> None:
    looked_at = subject(tmp_path, V2_MOUNT)
    controllers, enabled = (tmp_path / f"sys/fs/cgroup/cgroup.{name}" for name in ("controllers", "subtree_control"))
    for check in (memory_check.protection, memory_check.ceiling):
        controllers.write_text("cpu io\n")
        enabled.write_text("cpu\n")
        assert check(looked_at).status is FindingStatus.MISSING
        controllers.write_text("cpu io memory\n")
        assert check(looked_at).status is FindingStatus.UNKNOWN


def test_the_doctor_of_v1_without_swappiness(tmp_path: Path) -> None:
    result = memory_check.protection(subject(tmp_path, V1_MOUNT))
    assert result.status is FindingStatus.MISSING
    assert "memory.swappiness" in result.detail


@contextmanager
def swap(file: Path, size_mib: int) -> Iterator[None]:
    file.write_bytes(bytes(size_mib << 20))
    device = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    try:
        subprocess.run(["mkswap", "-q", device], check=True)
        subprocess.run(["swapon", device], check=True)
        yield
        subprocess.run(["swapoff", device], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextmanager
def holding(group: Path, size_mib: int) -> Iterator[Path]:
    """A process in a group of its own that has written so much memory."""
    group.mkdir()
    lines = (
        f"open('{group}/cgroup.procs', 'w').write('0')\nheld = bytearray(b'x') * ({size_mib} << 20)\nprint()\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield group
        process.kill()
    group.rmdir()


def swapped_mib(group: Path) -> int:
    counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(counts["swap"]) >> 20


@pytest.fixture
def v1_group() -> Iterator[Path]:
    """A group of the kernel's own, where its memory controller is v1's."""
    mount = read_mounts(REAL).by_controller.get("memory")
    if mount is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED: no memory controller of cgroup v1 here, or not root")
    folder = mount[0] / f"qemu-1-equipoise-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()


def test_the_soft_limit_of_v1(v1_group: Path) -> None:
    limits, vm = MemoryLimits(read_mounts(REAL)), target(v1_group)
    file = v1_group / "memory.soft_limit_in_bytes"
    assert int(file.read_text()) == V1_ALL
    usual = int((v1_group / "memory.swappiness").read_text())
    assert limits.read(vm) == {WEB: UNLIMITED, SWAPPED: usual}
    assert limits.read(None) == {}
    for amount in (64 << 20, 0, UNLIMITED):
        assert limits.write(WEB, amount, vm) == amount
    assert int(file.read_text()) == V1_ALL


def test_the_swappiness_of_v1(v1_group: Path) -> None:
    """That of the group inside is its own, where systemd has made one."""
    inner = v1_group / "libvirt"
    inner.mkdir()
    limits, vm = MemoryLimits(read_mounts(REAL)), target(v1_group)
    usual = limits.read(vm)[SWAPPED]
    for key, group in ((SWAPPED, v1_group), (SWAPPED_INNER, inner)):
        for swappiness in (0, usual):
            assert limits.write(key, swappiness, vm) == swappiness
            assert int((group / "memory.swappiness").read_text()) == swappiness
    with pytest.raises(HostError, match="at least 0"):
        limits.write(SWAPPED, -1, vm)
    inner.rmdir()
    assert limits.read(vm).keys() == {WEB, SWAPPED}


def test_a_v1_group_with_a_limit_of_its_own_is_swapped_as_before(v1_group: Path) -> None:
    """With nothing to swap out the kernel would end the VM at its limit."""
    (v1_group / "memory.limit_in_bytes").write_text(str(512 << 20))
    assert MemoryLimits(read_mounts(REAL)).read(target(v1_group)).keys() == {WEB}


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: not root")
def test_what_is_kept_in_memory_when_a_group_above_is_at_its_limit(v1_group: Path, tmp_path: Path) -> None:
    """Beside a process that takes more than is left, without it and with it, on a disk of its own for the swap."""
    found = {}
    with swap(tmp_path / "swap", 128):
        for swappiness in (60, 0):
            with holding(v1_group / "shop", 48) as shop:
                (v1_group / "shop/memory.swappiness").write_text(str(swappiness))
                (v1_group / "memory.limit_in_bytes").write_text(str(80 << 20))
                with holding(v1_group / "hog", 48):
                    found[swappiness] = swapped_mib(shop)
                (v1_group / "memory.limit_in_bytes").write_text("-1")
    assert found[0] == 0
    assert found[60] >= 4, "without it there is something to be protected from"


def test_a_group_that_is_gone(v1_group: Path) -> None:
    limits = MemoryLimits(read_mounts(REAL))
    folder = v1_group / "qemu-2-gone"
    folder.mkdir()
    vm = target(folder)
    assert limits.read(vm).keys() == {WEB, SWAPPED}
    folder.rmdir()
    assert limits.read(vm) == {}
    with pytest.raises(VmVanished):
        limits.write(WEB, 0, vm)


def test_the_doctor_on_this_kernel(v1_group: Path) -> None:
    looked_at = Subject(REAL, "", Path("/nowhere"), Path("/nowhere"), "journal.db")
    for check in (memory_check.ceiling, memory_check.protection):
        result = check(looked_at)
        assert result.status is FindingStatus.DEGRADED, result.detail
    assert not list(v1_group.parent.glob("equipoise-doctor-*"))
