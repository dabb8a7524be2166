"""What the kernel refuses comes with its errno and its reason, and changes nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.model.cache import DEFAULT, Slot
from tests.kernel.inside.resctrl.host import POINT, Host

OURS, OTHER = "equipoise-shop", "equipoise-mail"


def refused(action: Callable[[], object]) -> tuple[int, str]:
    """The errno of what is refused and what is said to it."""
    with pytest.raises(HostError) as caught:
        action()
    return caught.value.errno, str(caught.value)


REFUSED: tuple[tuple[dict[Slot, int], str], ...] = (
    ({Slot("L3", 0): 5}, ": The mask 5 has non-consecutive 1-bits"),
    ({Slot("L3", 0): 1}, ": Need at least 2 bits in the mask"),
    ({Slot("L3", 0): 0}, ": Mask out of range"),
    ({Slot("L3", 0): 1 << 20}, ": Mask out of range"),
    ({Slot("L3", 1): 15, Slot("L3", 0): 5}, ": The mask 5 has non-consecutive 1-bits"),
    ({Slot("L2", 0): 15}, ": Unknown or unsupported resource name 'L2'"),
    ({Slot("L3CODE", 0): 15}, ": Unknown or unsupported resource name 'L3CODE'"),
    ({Slot("MB", 0): 50}, ": Unknown or unsupported resource name 'MB'"),
    # the kernel says "ok" to these, which is no reason
    ({Slot("L3", 7): 15}, ""),
    ({Slot("L3", 0): 15, Slot("L3", 7): 15}, ""),
)


@pytest.mark.parametrize("group", [OURS, DEFAULT], ids=["ours", "default"])
def test_values(host: Host, group: str) -> None:
    """Of a refused command of several values nothing is kept."""
    host.groups.create(OURS)
    before = host.groups.read()
    path = f"{group}/schemata" if group else "schemata"
    for values, reason in REFUSED:
        number, said = refused(lambda values=values: host.groups.write(group, values))  # type: ignore[misc]
        assert number == errno.EINVAL
        assert said.endswith(f" to resctrl's {path}: Invalid argument{reason}")
        assert host.groups.read() == before


def test_lines_that_the_layer_does_not_write(host: Host) -> None:
    host.groups.create(OURS)
    for text, words in (
        ("L3:0=zz\n", "Non-hex character in the mask zz"),
        ("L3:0=ff;0=f0\n", "Duplicate domain 0"),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L3:x=ff\n", "Missing '=' or non-numeric domain"),
    ):
        number, said = refused(lambda text=text: host.groups.command(OURS, "schemata", text))  # type: ignore[misc]
        assert number == errno.EINVAL
        assert said.endswith(f"Invalid argument: {words}")


def test_a_reason_of_an_earlier_command_is_not_taken_for_this_ones(host: Host) -> None:
    host.groups.create(OURS)
    refused(lambda: host.groups.write(OURS, {Slot("L3", 0): 5}))
    number, said = refused(lambda: host.groups.create(OURS))
    assert number == errno.EEXIST
    assert said.endswith("File exists")
    refused(lambda: host.groups.write(OURS, {Slot("L3", 0): 5}))
    number, said = refused(lambda: host.groups.command(OURS, "schemata", "L3:0=" + "0" * 5000 + "f\n"))
    assert number == errno.E2BIG
    assert said.endswith("Argument list too long")


def test_the_last_closid(host: Host, closids: int) -> None:
    for number in range(1, closids):
        host.groups.create(f"equipoise-{number}")
    # mkdir's reason is added to those before it in 6.1: only its own is told.
    refused(lambda: host.groups.write("equipoise-1", {Slot("L3", 0): 5}))
    before = host.state()
    number, said = refused(lambda: host.groups.create(OURS))
    assert number == errno.ENOSPC
    assert said == f"make resctrl group {OURS}: No space left on device: Out of CLOSIDs"
    assert host.state() == before
    host.groups.remove("equipoise-2")
    host.groups.create(OURS)


def test_ways_of_an_exclusive_group(host: Host, foreign: Path) -> None:
    (POINT / "schemata").write_text("L3:0=fff;1=fff\n")
    (foreign / "schemata").write_text("L3:0=3f000;1=3f000\n")
    (foreign / "mode").write_text("exclusive\n")
    assert host.groups.read()["pqos1"].exclusive
    host.groups.create(OURS)
    for group in (OURS, DEFAULT):
        number, said = refused(lambda group=group: host.groups.write(group, {Slot("L3", 0): 0xFF000}))  # type: ignore[misc]
        assert number == errno.EINVAL
        assert said.endswith("Invalid argument: Overlaps with exclusive group")
    assert host.groups.write(OURS, {Slot("L3", 0): 0xF00}) == {Slot("L3", 0): 0xF00}


def test_no_way_is_left_for_a_new_group(host: Host, foreign: Path) -> None:
    (POINT / "schemata").write_text("L3:0=3;1=3\n")
    (foreign / "schemata").write_text("L3:0=3fffc;1=3fffc\n")
    (foreign / "mode").write_text("exclusive\n")
    (POINT / "schemata").write_text("L3:0=3;1=3\n")
    host.groups.create(OURS)
    made = host.groups.read()[OURS].values
    assert made == {Slot("L3", 0): 3, Slot("L3", 1): 3}, "the kernel gives what is not exclusive, from the lowest on"


def test_a_thread_that_is_none(host: Host) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    host.groups.create(OURS)
    number, said = refused(lambda: host.groups.command(OURS, "tasks", f"{pid}\n"))
    assert number == errno.ESRCH
    assert f"No such process: No task {pid}" in said


def test_a_group_that_was_removed(host: Host) -> None:
    host.groups.create(OURS)
    held = (POINT / OURS / "schemata").open("w")
    host.groups.read()
    (POINT / OURS).rmdir()
    assert host.groups.text(OURS, "schemata") is None
    assert refused(lambda: host.groups.write(OURS, {Slot("L3", 0): 3}))[0] == errno.ENOENT
    with pytest.raises(OSError, match="No such device"):  # ENODEV
        os.write(held.fileno(), b"L3:0=f\n")
    held.close()
    host.groups.remove(OURS)
    assert OURS not in host.groups.read()


def test_groups_where_there_are_none(host: Host) -> None:
    host.groups.create(OURS)
    assert refused(lambda: host.groups.create(f"mon_groups/{OTHER}"))[0] == errno.ENOENT
    assert refused(lambda: host.groups.create(f"{OURS}/mon_groups/{OTHER}"))[0] == errno.ENOENT
    assert refused(lambda: host.groups.create("equipoise-a\n"))[0] == errno.EPERM
    for path, number in ((f"{OURS}/equipoise-x", errno.EPERM), ("info/x", errno.EPERM), ("equipoise\n", errno.EINVAL)):
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            host.tree.make(path)
        assert caught.value.errno == number
    with pytest.raises(OSError, match="not permitted") as caught:
        host.tree.remove("info")
    assert caught.value.errno == errno.EPERM


@pytest.mark.parametrize("path", ["info/last_cmd_status", "info/L3/cbm_mask", "size"])
def test_files_that_are_only_read(host: Host, path: str) -> None:
    with pytest.raises(PermissionError):
        host.tree.open(path, write=True)
