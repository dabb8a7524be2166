"""The host layer of resctrl: groups, VMs moved, the mount and counters on the fake."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from manager.errors import HostError
from manager.host.resctrl.groups import Groups, Moved, group_of_others, move
from manager.host.resctrl.resctrl_cache import ensure_mounted, unmount_ours
from manager.host.resctrl.tree import discover
from manager.model.cache import (
    DEFAULT,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    Mask,
    Resctrl,
    Slot,
)
from tests.fakes.resctrl import FakeResctrl, refuse
from tests.fakes.resctrl_texts import FakeGroup

PERCENT, TWO = BandwidthUnit.PERCENT, (0, 1)
ALL_COUNTERS = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})
CACHE = CacheResource("L3", Mask(0xFFFFF), 2, Mask(0xC0000), 4, False, TWO, ((0, 1 << 20), (1, 1 << 20)))
BANDWIDTH = BandwidthResource("MB", 10, 10, 100, PERCENT, True, 8, TWO)
OURS, OTHER = "equipoise-shop", "equipoise-batch"


def fake(**more: object) -> FakeResctrl:
    return FakeResctrl((CACHE,), (BANDWIDTH,), **more)  # type: ignore[arg-type]


def test_the_fake_is_discovered_as_what_it_is() -> None:
    assert discover(fake()) == Resctrl((CACHE,), (BANDWIDTH,))
    assert discover(fake(mounted=None)) is None


# Groups


def test_groups_are_made_written_read_back_and_removed() -> None:
    tree = fake()
    groups = Groups(tree)
    groups.create(OURS)
    wanted = {Slot("L3", 0): 0xFF, Slot("L3", 1): 0xF0, Slot("MB", 0): 55}
    held = groups.write(OURS, wanted)
    assert held == {**wanted, Slot("MB", 0): 60}, "what the kernel made of it, not what was written"
    assert groups.read()[OURS].values == {**held, Slot("MB", 1): 100}
    assert not groups.read()[OURS].of_others
    groups.remove(OURS)
    groups.remove(OURS)
    assert list(groups.read()) == [DEFAULT]
    groups.close()
    assert not tree.held


def test_foreign_groups_are_seen_and_left_alone() -> None:
    tree = fake()
    tree.make("pqos1")
    tree.make("libvirt-vm")
    tree.groups["pqos1"].mode = "exclusive"
    groups = Groups(tree)
    found = groups.read()
    assert [(name, group.of_others, group.exclusive) for name, group in found.items()] == [
        (DEFAULT, False, False),
        ("libvirt-vm", True, False),
        ("pqos1", True, True),
    ]
    for action in (
        lambda: groups.write("pqos1", {Slot("L3", 0): 3}),
        lambda: groups.remove("pqos1"),
        lambda: groups.create("pqos2"),
        lambda: groups.create("pqos1/mon_groups/equipoise-x"),
        lambda: groups.create("equipoise-a/b"),
        lambda: groups.create("equipoise-a\n"),
        lambda: move(groups, "pqos1", lambda: [1]),
    ):
        with pytest.raises(HostError, match="not ours") as caught:
            action()
        assert caught.value.errno == errno.EPERM
    assert groups.read() == found


@pytest.mark.parametrize(
    ("values", "number", "words"),
    [
        (
            {Slot("L3", 0): 5},
            errno.EINVAL,
            r"write L3:0=5;1=f to .*Invalid argument: The mask 5 has non-consecutive 1-bits$",
        ),
        ({Slot("L3", 0): 1}, errno.EINVAL, "Need at least 2 bits in the mask$"),
        ({Slot("L3", 0): 0}, errno.EINVAL, "Mask out of range$"),
        ({Slot("L3", 0): 1 << 20}, errno.EINVAL, "Mask out of range$"),
        ({Slot("MB", 0): 5}, errno.EINVAL, r"MB value 5 out of range \[10,100\]$"),
        ({Slot("L2", 0): 15}, errno.EINVAL, "Unknown or unsupported resource name 'L2'$"),
        # the kernel says "ok" to this, which is no reason
        ({Slot("L3", 7): 15}, errno.EINVAL, "L3:1=f;7=f to resctrl's equipoise-shop/schemata: Invalid argument$"),
    ],
)
def test_a_refusal_has_errno_and_the_kernels_reason(values: dict[Slot, int], number: int, words: str) -> None:
    tree = fake()
    groups = Groups(tree)
    groups.create(OURS)
    before = groups.read()
    with pytest.raises(HostError, match=words) as caught:
        groups.write(OURS, values | {Slot("L3", 1): 0xF})
    assert caught.value.errno == number
    assert groups.read() == before, "of a refused command nothing is kept"


def test_a_reason_of_an_earlier_command_is_not_taken_for_this_ones() -> None:
    tree = fake(kernel="6.12")
    groups = Groups(tree)
    groups.create(OURS)
    with pytest.raises(HostError):
        groups.write(OURS, {Slot("L3", 0): 5})
    with pytest.raises(HostError, match=r"File exists$"):
        groups.create(OURS)
    groups.create(OTHER)
    groups.create("equipoise-3")
    with pytest.raises(HostError, match=r"No space left on device: Out of CLOSIDs$") as caught:
        groups.create("equipoise-4")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(HostError, match=r"Argument list too long$"):
        groups.command(OURS, "schemata", "L3:0=" + "0" * 5000 + "f\n")


def test_overlap_with_an_exclusive_group_is_refused_by_the_kernel() -> None:
    tree = fake()
    tree.make("pqos1")
    groups = Groups(tree)
    for name in (DEFAULT, "pqos1"):
        tree.groups[name].values[Slot("L3", 0)] = 0xF0 if name else 0xFF00
    tree.groups["pqos1"].mode = "exclusive"
    groups.create(OURS)
    with pytest.raises(HostError, match=r"Overlaps with exclusive group$"):
        groups.write(OURS, {Slot("L3", 0): 0xFF})


def test_a_group_that_somebody_removed_and_made_again_is_read_anew() -> None:
    tree = fake()
    groups = Groups(tree)
    groups.create(OURS)
    groups.write(OURS, {Slot("L3", 0): 0xF})
    groups.read()
    tree.remove(OURS)
    assert groups.text(OURS, "schemata") is None
    tree.make(OURS)
    assert groups.read()[OURS].values[Slot("L3", 0)] == 0xFFFFF
    tree.remove(OURS)
    with pytest.raises(HostError) as caught:
        groups.write(OURS, {Slot("L3", 0): 0xF})
    assert caught.value.errno == errno.ENOENT
    assert OURS not in groups.read()
    groups.close()
    assert not tree.held


def test_files_that_are_read_every_tick_stay_open() -> None:
    tree = fake()
    groups = Groups(tree)
    groups.create(OURS)
    groups.read()
    held = set(tree.held)
    groups.read()
    assert tree.held == held
    assert len(held) == 4, "schemata and mode of two groups"


# Moving


def threads_of(tree: FakeResctrl, *tids: int) -> Callable[[], list[int]]:
    return lambda: [tid for tid in tids if tid in tree.tasks]


def test_all_threads_are_moved() -> None:
    tree = fake()
    tree.start(10, 11, 12, 99)
    groups = Groups(tree)
    groups.create(OURS)
    assert move(groups, OURS, threads_of(tree, 10, 11, 12)) == Moved(threads=3, dead=0, rounds=2)
    assert groups.tasks(OURS) == {10, 11, 12}
    assert move(groups, OURS, threads_of(tree, 10, 11, 12)) == Moved(threads=0, dead=0, rounds=1)
    assert move(groups, DEFAULT, threads_of(tree, 10, 11, 12)).threads == 3
    assert {tree.group_of(tid) for tid in (10, 11, 12, 99)} == {DEFAULT}


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.2"])
def test_threads_that_start_and_die_meanwhile(kernel: str) -> None:
    """A thread not moved yet starts two others, one of which starts another before it is moved; one dies."""
    tree = fake(kernel=kernel)
    tree.start(10, 11, 12)
    groups = Groups(tree)
    groups.create(OURS)
    births = {10: (12, 20), 11: (12, 21), 20: (21, 22)}

    def before(group: FakeGroup, leaf: str, text: str) -> None:
        if leaf == "tasks" and int(text) in births:
            parent, child = births.pop(int(text))
            tree.start(child, by=parent)
            if child == 21:
                tree.end(12)

    tree.before_command = before
    moved = move(groups, OURS, threads_of(tree, *range(10, 30)))
    assert moved == Moved(threads=5, dead=1, rounds=4)
    assert groups.tasks(OURS) == {10, 11, 20, 21, 22}


def test_threads_without_end_are_given_up() -> None:
    tree = fake()
    tree.start(10)
    groups = Groups(tree)
    groups.create(OURS)
    numbers = iter(range(100, 1000))

    def threads() -> list[int]:
        tree.start(next(numbers))
        return list(tree.tasks)

    with pytest.raises(HostError, match="keep appearing") as caught:
        move(groups, OURS, threads)
    assert caught.value.errno == errno.EAGAIN


def test_a_vm_in_a_foreign_group_is_reported_and_not_moved() -> None:
    tree = fake()
    tree.start(10, 11)
    tree.make("vcpus-0")
    tree.tasks[11] = tree.groups["vcpus-0"]
    groups = Groups(tree)
    groups.create(OURS)
    assert group_of_others(groups, [10, 11]) == "vcpus-0"
    assert group_of_others(groups, [10]) is None
    with pytest.raises(HostError, match="in resctrl group vcpus-0, which another tool made") as caught:
        move(groups, OURS, threads_of(tree, 10, 11))
    assert caught.value.errno == errno.EBUSY
    assert (tree.group_of(10), tree.group_of(11)) == (DEFAULT, "vcpus-0")


def test_any_other_refusal_goes_on() -> None:
    tree = fake()
    tree.start(10)
    groups = Groups(tree)
    groups.create(OURS)
    tree.before_command = lambda group, leaf, text: refuse(errno.EPERM)
    with pytest.raises(HostError) as caught:
        move(groups, OURS, threads_of(tree, 10))
    assert caught.value.errno == errno.EPERM


def test_tasks_of_a_removed_group_are_the_default_ones() -> None:
    tree = fake()
    tree.start(10)
    groups = Groups(tree)
    groups.create(OURS)
    move(groups, OURS, threads_of(tree, 10))
    groups.remove(OURS)
    assert tree.group_of(10) == DEFAULT


# Mount


def test_it_is_mounted_only_if_absent() -> None:
    tree = fake(mounted=None)
    assert ensure_mounted(tree)
    assert tree.options() is not None
    assert not ensure_mounted(tree), "it was there"


def test_where_it_is_mounted_and_cannot_be_seen_nothing_is_done() -> None:
    """Such as in another mount namespace: the kernel mounts it once."""

    class Elsewhere(FakeResctrl):
        def options(self) -> None:
            return None

    with pytest.raises(HostError, match="mount resctrl: Device or resource busy") as caught:
        ensure_mounted(Elsewhere((CACHE,)))
    assert caught.value.errno == errno.EBUSY


def test_another_that_mounts_it_at_the_same_moment_is_no_error() -> None:
    class Raced(FakeResctrl):
        def mount(self, options: frozenset[str]) -> None:
            super().mount(options)
            super().mount(options)

    assert not ensure_mounted(Raced((CACHE,), mounted=None))


def test_it_is_unmounted_with_all_files_closed_unless_others_have_groups() -> None:
    tree = fake()
    groups = Groups(tree)
    groups.read()
    tree.make("pqos1")
    with pytest.raises(HostError, match="groups of others, such as pqos1") as caught:
        unmount_ours(tree, groups)
    assert caught.value.errno == errno.EBUSY
    assert tree.options() is not None
    tree.remove("pqos1")
    unmount_ours(tree, groups)
    assert tree.options() is None
    unmount_ours(tree, groups)


def test_what_another_holds_open_is_said() -> None:
    tree = fake()
    tree.open("tasks")
    with pytest.raises(HostError, match="unmount resctrl: Device or resource busy"):
        unmount_ours(tree, Groups(tree))
