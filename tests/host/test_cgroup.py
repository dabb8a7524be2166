"""Which cgroup is a VM's own, from texts as kernels, systemd and libvirt make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.host.cgroup import (
    CgroupMounts,
    cpu_controller,
    find_vm_cgroup,
    parse_process_cgroups,
    read_mounts,
    vm_group,
)
from manager.host.registry import CGROUP_V1, CGROUP_V2, HostPaths

PID = 4711
V1 = """\
24 1 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:23 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
26 24 0:24 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
27 24 0:25 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
28 24 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_COMOUNTED = """\
25 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory
"""
V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


class Tree:
    """A root folder with the few files that finding a VM's groups reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = HostPaths(folder)

    def write(self, path: str, text: str = "") -> None:
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))

    def mounts(self, mountinfo: str) -> None:
        self.write("/proc/self/mountinfo", mountinfo)

    def find(self, cgroups: str) -> tuple[str | None, str | None]:
        """The files with the weight and the CPU time of the process in these groups."""
        self.write(f"/proc/{PID}/cgroup", cgroups)
        mounts = read_mounts(self.paths)
        found = find_vm_cgroup(self.paths, mounts, cpu_controller(mounts), PID)
        assert (found.usage is None) == (found.usage_file is None)
        weight = found.cpu_folder / found.cpu.weight_file if found.cpu_folder and found.cpu else None
        return self._inside(weight), self._inside(found.usage_file)

    def _inside(self, file: Path | None) -> str | None:
        return None if file is None else "/" + str(file.relative_to(self.folder))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("group", "own"),
    [
        ("/machine/qemu-1-web.libvirt-qemu/emulator", "/machine/qemu-1-web.libvirt-qemu"),
        ("/machine/qemu-1-web.libvirt-qemu/vcpu0", "/machine/qemu-1-web.libvirt-qemu"),
        ("/machine/qemu-1-web.libvirt-qemu/vcpu117", "/machine/qemu-1-web.libvirt-qemu"),
        ("/machine/qemu-1-web.libvirt-qemu/iothread2", "/machine/qemu-1-web.libvirt-qemu"),
        ("/machine/qemu-1-web.libvirt-qemu", "/machine/qemu-1-web.libvirt-qemu"),
        ("/machine/qemu-12-emulator.libvirt-qemu/emulator", "/machine/qemu-12-emulator.libvirt-qemu"),
        ("/gold.partition/qemu-3-web.libvirt-qemu/emulator", "/gold.partition/qemu-3-web.libvirt-qemu"),
        ("/docker/0a1b/machine/qemu-1-web.libvirt-qemu/emulator", "/docker/0a1b/machine/qemu-1-web.libvirt-qemu"),
        (
            r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator",
            r"/machine.slice/machine-qemu\x2d1\x2dweb.scope",
        ),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/emulator", r"/machine.slice/machine-qemu\x2d1\x2dweb.scope"),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt", r"/machine.slice/machine-qemu\x2d1\x2dweb.scope"),
        (
            r"/machine.slice/machine-qemu\x2d42\x2dshop\x2dcache\x2d01.scope/libvirt/vcpu3",
            r"/machine.slice/machine-qemu\x2d42\x2dshop\x2dcache\x2d01.scope",
        ),
        ("/machine/qemu-1-with blank ü.libvirt-qemu/emulator", "/machine/qemu-1-with blank ü.libvirt-qemu"),
        ("", None),
        ("/", None),
        ("/emulator", None),
        ("/libvirt/emulator", None),
        ("/machine", None),
        ("/machine.slice", None),
        ("/user.slice/user-1000.slice/session-3.scope", None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/virt-manager.service", None),
        ("/system.slice/libvirtd.service", None),
        ("/system.slice/libvirtd.service/emulator", None),
        ("/system.slice/my-qemu.service", None),
        ("/system.slice/not-qemu-1-web.libvirt-qemu/emulator", None),
        ("/machine/lxc-1-web.libvirt-lxc", None),
        (r"/machine.slice/machine-lxc\x2d1\x2dweb.scope", None),
        ("/machine/qemu-web/emulator", None),
        ("/machine/qemu-1-web.libvirt-qemu/vcpu0/deeper", None),
        ("/machine/qemu-1-web.libvirt-qemu/somebody-elses", None),
    ],
)
def test_the_group_of_a_vm_is_above_those_of_its_threads(group: str, own: str | None) -> None:
    """None: the group is shared with others, and the weight of a shared group is never written."""
    assert vm_group(group) == own


def test_groups_of_a_process() -> None:
    text = "9:name=systemd:/\n3:cpu,cpuacct:/machine/a:b/emulator\n2:cpuset:/x\n1:broken\n\n0::/machine.slice/y\n"
    assert parse_process_cgroups(text) == {
        "name=systemd": "/",
        "cpu": "/machine/a:b/emulator",
        "cpuacct": "/machine/a:b/emulator",
        "cpuset": "/x",
        "": "/machine.slice/y",
    }


def test_mounts_of_a_host_with_both_versions(tree: Tree) -> None:
    tree.mounts(V1)
    found = read_mounts(tree.paths).by_controller
    assert found["cpu"] == (tree.folder / "sys/fs/cgroup/cpu", "/")
    assert found["cpuacct"] == (tree.folder / "sys/fs/cgroup/cpuacct", "/")
    assert found[""] == (tree.folder / "sys/fs/cgroup/unified", "/")
    assert "memory" not in found


def test_escapes_in_mounts(tree: Tree) -> None:
    r"""The kernel writes blank, tab, newline and backslash as \040, \011, \012, \134 (proc_pid_mountinfo(5))."""
    tree.mounts(
        "20 1 0:5 / /mnt/not\\040-\\040a\\040cgroup rw - ext4 /dev/vda rw\n"
        r"25 24 0:23 /a\040b\134x2d /mnt/my\040cgroups/c\134d rw - cgroup cgroup rw,cpu" + "\n"
    )
    assert read_mounts(tree.paths).by_controller["cpu"] == (tree.folder / r"mnt/my cgroups/c\d", r"/a b\x2d")


def test_mounts_of_other_kinds_and_odd_names_do_not_matter(tree: Tree) -> None:
    tree.mounts(f"20 1 0:5 / /mnt/caf\udce9 rw - ext4 /dev/vda rw\n21 1 0:6 / /broken\n\n{V2}22 1 0:7 / /x rw - \n")
    assert read_mounts(tree.paths).by_controller == {"": (tree.folder / "sys/fs/cgroup", "/")}


def test_of_two_mounts_of_one_hierarchy_the_first_counts(tree: Tree) -> None:
    tree.mounts(V2 + "40 23 0:27 /docker/0a1b /var/lib/x/cgroup rw - cgroup2 cgroup2 rw\n")
    assert read_mounts(tree.paths).by_controller[""] == (tree.folder / "sys/fs/cgroup", "/")


@pytest.mark.parametrize(
    ("top", "group", "folder"),
    [
        ("/", "/", "/m"),
        ("/", "/a/b", "/m/a/b"),
        ("/a", "/a", "/m"),
        ("/a", "/a/b", "/m/b"),
        ("/a", "/ab", None),
        ("/a", "/b", None),
        ("/a", "/", None),
        ("/", "/..", None),
        ("/", "/../b", None),
        ("/", "/b/../../c", None),
        ("/..", "/../b", "/m/b"),
        ("/..", "/../../b", None),
    ],
)
def test_the_folder_of_a_group(top: str, group: str, folder: str | None) -> None:
    mounts = CgroupMounts({"cpu": (Path("/m"), top)})
    assert mounts.folder("cpu", group) == (None if folder is None else Path(folder))
    assert mounts.folder("memory", group) is None


@pytest.mark.parametrize(
    ("mountinfo", "controllers", "found"),
    [
        (V1, None, CGROUP_V1),
        (V1_COMOUNTED, None, CGROUP_V1),
        (V2, "cpuset cpu io memory pids\n", CGROUP_V2),
        (V2, "cpuset io memory\n", None),
        (V2, "\n", None),
        (V2, None, None),
        (V1 + V2, "cpuset io\n", CGROUP_V1),
        (V1_COMOUNTED.replace("cpu,cpuacct", "cpuacct") + V2, "cpu\n", CGROUP_V2),
        ("", None, None),
    ],
    ids=["v1", "co-mounted", "v2", "v2 without", "v2 with none", "v2 unreadable", "hybrid", "accounting only", "none"],
)
def test_the_version_that_carries_the_cpu_controller(
    tree: Tree, mountinfo: str, controllers: str | None, found
) -> None:
    tree.mounts(mountinfo)
    if controllers is not None:
        tree.write("/sys/fs/cgroup/cgroup.controllers", controllers)
    assert cpu_controller(read_mounts(tree.paths)) is found


CGROUPS = "/sys/fs/cgroup"
SCOPE = r"/machine.slice/machine-qemu\x2d1\x2dshop\x2dweb.scope"
PLAIN = "/machine/qemu-1-shop-web.libvirt-qemu"


@pytest.mark.parametrize(
    ("mountinfo", "cgroups", "weight", "usage"),
    [
        pytest.param(
            V1,
            f"2:cpuacct:{PLAIN}/emulator\n1:cpu:{PLAIN}/emulator\n0::/\n",
            f"{CGROUPS}/cpu{PLAIN}/cpu.shares",
            f"{CGROUPS}/cpuacct{PLAIN}/cpuacct.usage",
            id="v1 without systemd",
        ),
        pytest.param(
            V1_COMOUNTED,
            f"4:cpu,cpuacct:{SCOPE}/libvirt/emulator\n1:name=systemd:{SCOPE}/libvirt\n",
            f"{CGROUPS}/cpu,cpuacct{SCOPE}/cpu.shares",
            f"{CGROUPS}/cpu,cpuacct{SCOPE}/cpuacct.usage",
            id="v1 with systemd",
        ),
        pytest.param(
            V1_COMOUNTED,
            f"4:cpu,cpuacct:{SCOPE}/emulator\n",
            f"{CGROUPS}/cpu,cpuacct{SCOPE}/cpu.shares",
            f"{CGROUPS}/cpu,cpuacct{SCOPE}/cpuacct.usage",
            id="v1 with systemd and an older libvirt",
        ),
        pytest.param(
            V2,
            f"0::{SCOPE}/libvirt/emulator\n",
            f"{CGROUPS}{SCOPE}/cpu.weight",
            f"{CGROUPS}{SCOPE}/cpu.stat",
            id="v2 with systemd",
        ),
        pytest.param(
            V2,
            f"0::{PLAIN}/emulator\n",
            f"{CGROUPS}{PLAIN}/cpu.weight",
            f"{CGROUPS}{PLAIN}/cpu.stat",
            id="v2 without systemd",
        ),
        pytest.param(
            V1,
            f"2:cpuacct:/\n1:cpu:{PLAIN}/emulator\n0::{PLAIN}/emulator\n",
            f"{CGROUPS}/cpu{PLAIN}/cpu.shares",
            f"{CGROUPS}/unified{PLAIN}/cpu.stat",
            id="weight from v1, accounting from v2",
        ),
        pytest.param(
            V2.replace("0:27 /", f"0:27 {SCOPE}"),
            f"0::{SCOPE}/libvirt/emulator\n",
            f"{CGROUPS}/cpu.weight",
            f"{CGROUPS}/cpu.stat",
            id="a mount whose root is the VM's group",
        ),
        pytest.param(
            V2.replace("0:27 /", "0:27 /docker/0a1b"),
            f"0::/docker/0a1b{PLAIN}/emulator\n",
            f"{CGROUPS}{PLAIN}/cpu.weight",
            f"{CGROUPS}{PLAIN}/cpu.stat",
            id="in a container that sees its own part",
        ),
        pytest.param(
            V2.replace("0:27 /", "0:27 /docker/0a1b"),
            f"0::/docker/0a1b-other{PLAIN}/emulator\n",
            None,
            None,
            id="in a container that does not see it",
        ),
        pytest.param(V2, f"0::/../..{PLAIN}/emulator\n", None, None, id="outside this cgroup namespace"),
        pytest.param(
            V2.replace("0:27 /", "0:27 /.."),
            f"0::/..{PLAIN}/emulator\n",
            f"{CGROUPS}{PLAIN}/cpu.weight",
            f"{CGROUPS}{PLAIN}/cpu.stat",
            id="outside this cgroup namespace, but mounted here",
        ),
        pytest.param(V1, "2:cpuacct:/\n1:cpu:/\n0::/\n", None, None, id="in nobody's group"),
        pytest.param(
            V2, "0::/user.slice/user-1000.slice/session-3.scope\n", None, None, id="started by hand in a session"
        ),
        pytest.param(V2, "0::/system.slice/libvirtd.service\n", None, None, id="in libvirtd's own group"),
        pytest.param("", f"0::{PLAIN}/emulator\n", None, None, id="no cgroups mounted"),
        pytest.param(V1, "", None, None, id="a process in no group"),
    ],
)
def test_files_of_a_vm(tree: Tree, mountinfo: str, cgroups: str, weight: str | None, usage: str | None) -> None:
    tree.mounts(mountinfo)
    for top in ("", "/cpu", "/cpuacct", "/cpu,cpuacct", "/unified"):
        for group in ("", PLAIN, SCOPE, "/docker/0a1b" + PLAIN, "/user.slice/user-1000.slice/session-3.scope"):
            for name in ("cpu.shares", "cpu.weight", "cpuacct.usage", "cpu.stat"):
                tree.write(f"{CGROUPS}{top}{group}/{name}")
    tree.write(f"{CGROUPS}/cgroup.controllers", "cpu")
    assert tree.find(cgroups) == (weight, usage)


def test_a_group_without_the_controller_has_no_weight_but_counts(tree: Tree) -> None:
    """cgroup v2: cpu.stat is always there, cpu.weight only where the parent delegates the controller."""
    tree.mounts(V2)
    tree.write(f"{CGROUPS}/cgroup.controllers", "cpu")
    tree.write(f"{CGROUPS}{PLAIN}/cpu.stat")
    assert tree.find(f"0::{PLAIN}/emulator\n") == (None, f"{CGROUPS}{PLAIN}/cpu.stat")


def test_a_name_of_any_bytes_is_found(tree: Tree) -> None:
    tree.mounts(V2)
    tree.write(f"{CGROUPS}/cgroup.controllers", "cpu")
    group = "/machine/qemu-1-caf\udce9.libvirt-qemu"
    for name in ("cpu.weight", "cpu.stat"):
        tree.write(f"{CGROUPS}{group}/{name}")
    assert tree.find(f"0::{group}/emulator\n") == (f"{CGROUPS}{group}/cpu.weight", f"{CGROUPS}{group}/cpu.stat")


def test_a_process_that_ended(tree: Tree) -> None:
    tree.mounts(V2)
    with pytest.raises(FileNotFoundError):
        find_vm_cgroup(tree.paths, read_mounts(tree.paths), CGROUP_V2, PID)
