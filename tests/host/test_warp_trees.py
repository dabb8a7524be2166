"""Two kernels with one file and two meanings of it, told apart by trees of files; and never a wrong write."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from manager import bpf
from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.knob_files import VmTarget
from manager.host.registry import HostPaths
from manager.host.warp_mechanisms import WARP_FILE, FileKind, WarpMechanisms, bvt_file, offers_of
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED, Mechanism

UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"
V1 = "36 35 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
VM = "machine/qemu-1-web.libvirt-qemu"
IDENTITY, EPSILON = "sched_group_identity_enabled", "sched_bvt_place_epsilon"


class Tree:
    """A host's files: a kernel's release, its settings, and a VM's group with or without the file."""

    def __init__(self, folder: Path, release: str, *, file: bool = True, **settings: int) -> None:
        self.folder = folder
        self.write("proc/sys/kernel/osrelease", f"{release}\n")
        self.write("proc/self/mountinfo", V1)
        for name, value in settings.items():
            self.write(f"proc/sys/kernel/{name}", f"{value}\n")
        self.group = folder / "sys/fs/cgroup/cpu" / VM
        for group in (self.group.parent, self.group):
            group.mkdir(parents=True, exist_ok=True)
            if file:
                (group / WARP_FILE).write_text("0\n")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def paths(self) -> HostPaths:
        return HostPaths(self.folder)

    @property
    def kind(self) -> FileKind:
        mounts = read_mounts(self.paths)
        return bvt_file(self.paths, mounts, cpu_controller(mounts)).kind

    @property
    def mechanisms(self) -> WarpMechanisms:
        mounts = read_mounts(self.paths)
        return WarpMechanisms(self.paths, mounts, cpu_controller(mounts))

    @property
    def vm(self) -> VmTarget:
        return VmTarget(UUID, self.group, ())

    @property
    def held(self) -> str:
        return (self.group / WARP_FILE).read_text().strip()


@pytest.mark.parametrize(
    ("release", "settings", "kind"),
    [
        ("3.5.0", {EPSILON: 1}, FileKind.NANOSECONDS),
        ("3.5.0", {}, FileKind.UNCLEAR),
        ("6.6.0-my-own", {}, FileKind.UNCLEAR),
        ("5.10.134-13.al8.x86_64", {IDENTITY: 1}, FileKind.CLASS),
        ("5.10.134-13.an8.x86_64", {IDENTITY: 1}, FileKind.CLASS),
        ("5.10.134-13.al8.x86_64", {IDENTITY: 0}, FileKind.SWITCHED_OFF),
        ("4.19.91-26.4.al7.x86_64", {IDENTITY: 1}, FileKind.CLASS),
        ("4.19.91-26.4.al7.x86_64", {IDENTITY: 1, EPSILON: 1}, FileKind.UNCLEAR),
        ("4.19.91-26.4.al7.x86_64", {EPSILON: 1}, FileKind.UNCLEAR),
        ("3.5.0", {IDENTITY: 1, EPSILON: 1}, FileKind.UNCLEAR),
        ("4.19.91-23.al7.x86_64", {}, FileKind.SWITCHED_OFF),
        ("4.19.91-24.al7.x86_64", {}, FileKind.CLASS),
        ("4.19.91-25.al7.x86_64", {}, FileKind.CLASS),
        ("4.19.91-25.1.al7.x86_64", {}, FileKind.CRASHES),
        ("4.19.91-25.3.al7.x86_64", {IDENTITY: 1}, FileKind.CRASHES),
        ("4.19.91-25.5.al7.x86_64", {EPSILON: 1}, FileKind.CRASHES),
        ("4.19.91-25.6.al7.x86_64", {}, FileKind.CLASS),
        ("4.19.91-26.1.al7.x86_64", {}, FileKind.SWITCHED_OFF),
        ("5.10.46-6.al8.x86_64", {}, FileKind.SWITCHED_OFF),
        ("5.10.46-7.al8.x86_64", {}, FileKind.CLASS),
        ("5.10.84-10.4.al8.x86_64", {}, FileKind.CLASS),
        ("5.10.112-11.1.al8.x86_64", {}, FileKind.SWITCHED_OFF),
        ("5.10.134-12.2.al8.x86_64", {}, FileKind.SWITCHED_OFF),
    ],
)
def test_what_the_file_takes(tmp_path: Path, release: str, settings: dict[str, int], kind: FileKind) -> None:
    assert Tree(tmp_path, release, **settings).kind is kind


@pytest.mark.parametrize(
    ("release", "settings", "kind"),
    [
        ("6.18.0", {}, FileKind.ABSENT),
        ("3.5.0", {EPSILON: 1}, FileKind.SWITCHED_OFF),
        ("4.19.91-25.2.al7.x86_64", {}, FileKind.CRASHES),
    ],
)
def test_without_the_file(tmp_path: Path, release: str, settings: dict[str, int], kind: FileKind) -> None:
    assert Tree(tmp_path, release, file=False, **settings).kind is kind


@pytest.mark.parametrize(
    ("release", "settings", "knob", "values"),
    [
        ("3.5.0", {EPSILON: 1}, Knob.BVT_WARP, (29_651_000, 0)),
        ("5.10.134-13.al8", {IDENTITY: 1}, Knob.GROUP_IDENTITY, (2, -1, 0)),
        ("4.19.91-25.6.al7", {}, Knob.GROUP_IDENTITY, (1, 0)),
    ],
)
def test_the_one_that_there_is_is_set_and_read_back(
    tmp_path: Path, release: str, settings: dict[str, int], knob: Knob, values: tuple[int, ...]
) -> None:
    tree = Tree(tmp_path, release, **settings)
    mechanisms, key = tree.mechanisms, KnobKey(UUID, knob)
    assert mechanisms.read(tree.vm) == {key: 0}
    for value in values:
        (tree.group / WARP_FILE).write_text("")  # a kernel's file holds nothing of what was written before
        assert mechanisms.write(key, value, tree.vm) == value
        assert tree.held == str(value)
        assert mechanisms.read(tree.vm) == {key: value}


@pytest.mark.parametrize(
    ("release", "settings"),
    [
        ("4.19.91-25.3.al7", {IDENTITY: 1}),  # crashes
        ("4.19.91-25.5.al7", {}),
        ("3.5.0", {}),  # nobody knows
        ("5.10.134-13.al8", {IDENTITY: 0}),  # switched off
        ("5.10.134-13.al8", {IDENTITY: 1, EPSILON: 1}),  # says both
    ],
)
def test_where_it_must_not_be_written_nothing_is_read_offered_or_written(
    tmp_path: Path, release: str, settings: dict[str, int]
) -> None:
    tree = Tree(tmp_path, release, **settings)
    mechanisms = tree.mechanisms
    assert {offer.mechanism for offer in mechanisms.offers if offer.available} <= {Mechanism.SLICE}
    assert mechanisms.read(tree.vm) == {}
    for knob in (Knob.BVT_WARP, Knob.GROUP_IDENTITY):
        with pytest.raises(HostError, match="does not take"):
            mechanisms.write(KnobKey(UUID, knob), 1, tree.vm)
    assert tree.held == "0"


def test_nanoseconds_never_reach_an_anolis_file(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "5.10.134-13.al8", **{IDENTITY: 1})
    with pytest.raises(HostError, match="does not take bvt_warp"):
        tree.mechanisms.write(KnobKey(UUID, Knob.BVT_WARP), 12_000_000, tree.vm)
    with pytest.raises(HostError, match="takes -2 to 2, not 12000000") as refused:
        tree.mechanisms.write(KnobKey(UUID, Knob.GROUP_IDENTITY), 12_000_000, tree.vm)
    assert refused.value.errno == errno.EINVAL
    assert tree.held == "0"


def test_a_vm_without_a_group_of_its_own_has_no_such_warp(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3.5.0", **{EPSILON: 1})
    alone = VmTarget(UUID, None, ())
    assert tree.mechanisms.read(alone) == {}
    with pytest.raises(HostError, match="no CPU cgroup of its own"):
        tree.mechanisms.write(KnobKey(UUID, Knob.BVT_WARP), 1000, alone)


def test_a_group_that_went_has_nothing_to_tell(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3.5.0", **{EPSILON: 1})
    mechanisms = tree.mechanisms
    shutil.rmtree(tree.group)
    assert mechanisms.read(tree.vm) == {}


def test_nonsense_in_the_file_is_no_number(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3.5.0", **{EPSILON: 1})
    (tree.group / WARP_FILE).write_text("much\n")
    with pytest.raises(HostError, match=WARP_FILE):
        tree.mechanisms.read(tree.vm)


def sched_ext_tree(folder: Path, release: str = "6.18.0") -> Tree:
    """A kernel with all that our scheduler needs."""
    tree = Tree(folder, release, file=False)
    tree.write("proc/self/mountinfo", V1 + "40 30 0:33 / /sys/fs/bpf rw - bpf bpf rw\n")
    tree.write("sys/kernel/sched_ext/state", "disabled\n")
    tree.write("sys/kernel/btf/vmlinux", "")
    (folder / "sys/fs/bpf").mkdir(parents=True)
    return tree


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("", "what it takes to load our scheduler"),
        ("sys/kernel/sched_ext/state", "no sched_ext"),
        ("sys/kernel/btf/vmlinux", "the types of this kernel"),
    ],
)
def test_what_our_scheduler_needs(tmp_path: Path, without: str, says: str) -> None:
    tree = sched_ext_tree(tmp_path)
    if without:
        (tmp_path / without).unlink()
    offer = offers_of(tree.paths, read_mounts(tree.paths), None, bpftool="sh")[0]
    assert (offer.mechanism, offer.available) == (Mechanism.SCHED_EXT, not without)
    assert says in offer.detail


@pytest.mark.parametrize(
    ("release", "there"), [("6.14.0-37-generic", False), ("6.17.0-42-generic", True), ("next", False)]
)
def test_kernels_that_it_was_not_seen_on_are_left_alone(tmp_path: Path, release: str, there: bool) -> None:
    tree = sched_ext_tree(tmp_path, release)
    offer = offers_of(tree.paths, read_mounts(tree.paths), None, bpftool="sh")[0]
    assert offer.available == there
    assert there or f"Linux {release} is older than 6.17" in offer.detail


def test_without_bpftool_or_a_bpf_file_system_it_is_not_offered(tmp_path: Path) -> None:
    tree = sched_ext_tree(tmp_path)
    tree.write("proc/self/mountinfo", V1)
    offer = offers_of(tree.paths, read_mounts(tree.paths), None, bpftool="no-such-program")[0]
    assert not offer.available
    assert "no BPF file system" in offer.detail
    assert "bpftool is not installed" in offer.detail


def test_the_scheduler_is_what_the_kernel_says_and_its_pin_tells_an_ejected_one(tmp_path: Path) -> None:
    tree = sched_ext_tree(tmp_path)
    mechanisms = tree.mechanisms
    assert mechanisms.sched_ext.state == UNLOADED
    tree.write("sys/fs/bpf/equipoise_bvt", "")
    assert mechanisms.sched_ext.state == EJECTED
    assert mechanisms.write(KnobKey(HOST_UUID, Knob.SCHEDULER), UNLOADED, None) == UNLOADED, "the stale pin is removed"
    assert not (tmp_path / "sys/fs/bpf/equipoise_bvt").exists()
    tree.write("sys/kernel/sched_ext/state", "enabled\n")
    tree.write("sys/kernel/sched_ext/root/ops", "scx_lavd_1.0\n")
    assert mechanisms.sched_ext.state == UNLOADED, "somebody else's is not ours"
    tree.write("sys/kernel/sched_ext/root/ops", f"{bpf.build_name()}\n")
    assert mechanisms.sched_ext.state == LOADED
    tree.write("sys/kernel/sched_ext/root/ops", "equipoise_bvt_00000000\n")
    assert mechanisms.sched_ext.state == OUTDATED
    tree.write("sys/kernel/sched_ext/state", "disabled\n")


def test_a_warp_in_a_scheduler_that_is_gone_is_not_there(tmp_path: Path) -> None:
    tree = sched_ext_tree(tmp_path)
    assert KnobKey(UUID, Knob.WARP) not in tree.mechanisms.read(tree.vm)
