"""Memory that the lab's VMs are short of: which group is limited, and that all of it goes whatever fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.lab.commands import LabError
from deploy.lab.short_memory import group_above, limited_together, swap_on
from deploy.lab.slow_disk import SlowDisk

MIB = 1 << 20
V1 = "5:cpu:/machine/a\n4:memory:/machine/qemu-1-a.libvirt-qemu\n0::/\n"
V2 = r"0::/machine.slice/machine-qemu\x2d1\x2da.scope/libvirt/emulator" + "\n"
FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def tree(root: Path, text: str, group: str, version: int, used_mib: int = 100) -> Path:
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(text)
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True)
    (folder / FILES[version]).write_text("none yet")
    (folder / {1: "memory.usage_in_bytes", 2: "memory.current"}[version]).write_text(f"{used_mib * MIB}\n")
    return folder


@pytest.mark.parametrize(("text", "group", "version"), [(V1, "memory/machine", 1), (V2, "machine.slice", 2)])
@pytest.mark.parametrize("used_mib", [10, 100])
def test_the_group_of_all_vms_is_limited_for_a_while(
    tmp_path: Path, text: str, group: str, version: int, used_mib: int
) -> None:
    folder = tree(tmp_path, text, group, version, used_mib)
    with limited_together(7, 60, tmp_path) as limited:
        assert limited == folder
        assert (folder / FILES[version]).read_text() == str(60 * MIB)
    assert (folder / FILES[version]).read_text() in {"-1", "max"}


@pytest.mark.parametrize("text", ["4:memory:/\n0::/\n", "0::/\n", "3:cpu:/machine\n"])
def test_a_process_in_no_group(tmp_path: Path, text: str) -> None:
    tree(tmp_path, text, "memory/machine", 1)
    with pytest.raises(LabError, match="process 7"):
        group_above(7, tmp_path)


@pytest.mark.parametrize("failing", ["", "mkswap", "swapon"])
def test_swap_goes_if_it_came(tmp_path: Path, failing: str) -> None:
    ran: list[str] = []

    def runner(argv: Sequence[str], **_more: object) -> str:
        if argv[0] == failing:
            raise LabError("it failed")
        ran.append(argv[0])
        (tmp_path / "swap.img").touch()
        return ""

    try:
        with swap_on(SlowDisk("loop0", tmp_path, runner), 64, runner):
            ran.append("used")
    except LabError:
        assert failing
    assert (
        ran
        == {"": ["dd", "mkswap", "swapon", "used", "swapoff"], "mkswap": ["dd"], "swapon": ["dd", "mkswap"]}[failing]
    )
