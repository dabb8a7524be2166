"""Equipoise runs beside VMs in a real cgroup v1, and leaves nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from manager.host.cgroup import cpu_controller, parse_process_cgroups, read_mounts
from manager.host.own_group import FOLDER, beside_vms
from manager.host.registry import CGROUP_V1, HostPaths
from tests.host.conftest import REAL, remove_groups

LIBVIRTS = "machine"
WITHIN = """
import os, sys
from pathlib import Path
from subprocess import check_output
from manager.host.own_group import beside_vms
from manager.host.registry import HostPaths
root, top = map(Path, sys.argv[1:3])
(top / "cgroup.procs").write_text(str(os.getpid()))
(root / f"proc/{os.getpid()}").mkdir()
(root / f"proc/{os.getpid()}/cgroup").write_text(sys.argv[3])
own = Path("/proc/self/cgroup")
with beside_vms(HostPaths(root)) as folder:
    inside, child = own.read_text(), check_output(["cat", own], text=True)
assert inside == child, "what it starts is there, too"
print(folder and folder.relative_to(root), inside, own.read_text(), sep="---")
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A group that stands for the root of the cpu controller's hierarchy."""
    mounts = read_mounts(REAL)
    if os.geteuid() != 0 or cpu_controller(mounts) is not CGROUP_V1:
        pytest.skip("NOT TESTED: needs root and cgroup v1")
    mine = mounts.by_controller["cpu"][0] / f"equipoise-own-test-{os.getpid()}"
    mine.mkdir()
    yield mine
    remove_groups(mine)


@pytest.fixture
def root(tmp_path: Path, top: Path) -> Path:
    """A root folder in which that group is the root of the hierarchy."""
    files = {"proc/self/mountinfo": "31 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"}
    make(tmp_path, files)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu").symlink_to(top)
    return tmp_path


def make(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def run(root: Path, top: Path, groups: str = "1:cpu:/") -> list[str]:
    """Where another process says that it was beside the VMs, and its group below ``top`` meanwhile and afterwards."""
    command = [sys.executable, "-c", WITHIN, str(root), str(top), groups]
    folder, *held = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("---")
    return [folder, *(parse_process_cgroups(text)["cpu"].removeprefix(f"/{top.name}") for text in held)]


def test_it_is_beside_the_vms_meanwhile_and_back_afterwards(root: Path, top: Path) -> None:
    (top / LIBVIRTS).mkdir()
    assert run(root, top) == [f"sys/fs/cgroup/cpu/{LIBVIRTS}/{FOLDER}", f"/{LIBVIRTS}/{FOLDER}", ""]
    assert not (top / LIBVIRTS / FOLDER).exists()


def test_what_a_crash_left_is_used_and_removed(root: Path, top: Path) -> None:
    (top / LIBVIRTS / FOLDER).mkdir(parents=True)
    assert run(root, top)[1:] == [f"/{LIBVIRTS}/{FOLDER}", ""]
    assert not (top / LIBVIRTS / FOLDER).exists()


def test_what_is_there_already_leaves_and_removes_it_too(root: Path, top: Path) -> None:
    (top / LIBVIRTS).mkdir(parents=True)
    groups = f"1:cpu:/{LIBVIRTS}/{FOLDER}"  # as the one that started it left it there
    assert run(root, top, groups)[1:] == [f"/{LIBVIRTS}/{FOLDER}", ""]
    assert not (top / LIBVIRTS / FOLDER).exists()


def test_the_group_stays_while_another_is_in_it(root: Path, top: Path) -> None:
    (top / LIBVIRTS / FOLDER).mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            (top / LIBVIRTS / FOLDER / "cgroup.procs").write_text(str(other.pid))
            assert run(root, top)[2] == ""
            assert (top / LIBVIRTS / FOLDER).exists()
        finally:
            other.kill()


def test_without_a_group_of_vms_it_stays_where_it_is(root: Path, top: Path) -> None:
    assert run(root, top) == ["None", "", ""]
    assert list(top.glob("*/")) == []


@pytest.mark.parametrize("own", ["/user.slice", "/machine.slice/equipoise-agent.service"])
def test_who_was_put_into_a_group_stays_there(tmp_path: Path, own: str) -> None:
    mounts = "31 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    make(tmp_path, {"proc/self/mountinfo": mounts, f"proc/{os.getpid()}/cgroup": f"3:cpu:{own}"})
    machine = tmp_path / "sys/fs/cgroup/cpu/machine"
    machine.mkdir(parents=True)
    with beside_vms(HostPaths(tmp_path)) as folder:
        assert folder is None
    assert list(machine.iterdir()) == []


def test_on_cgroup_v2_it_stays_where_it_is(tmp_path: Path) -> None:
    mounts = "31 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    controllers = {"sys/fs/cgroup/cgroup.controllers": "cpu io", "sys/fs/cgroup/machine/cgroup.procs": ""}
    make(tmp_path, {"proc/self/mountinfo": mounts, f"proc/{os.getpid()}/cgroup": "0::/", **controllers})
    with beside_vms(HostPaths(tmp_path)) as folder:
        assert folder is None


def test_a_host_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    with beside_vms(HostPaths(tmp_path)) as folder:
        assert folder is None
