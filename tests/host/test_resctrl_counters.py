"""Counters of groups, and VMs in monitoring groups, on the fake."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.resctrl.groups import Groups, move
from manager.host.resctrl.resctrl_cache import Monitor, ResctrlCache
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import DEFAULT, CacheUse, monitoring_group
from tests.fakes.resctrl import FakeResctrl
from tests.host.resctrl import unpack
from tests.host.test_resctrl import OURS, fake, threads_of


def cache_of(tree: FakeResctrl) -> ResctrlCache:
    return ResctrlCache(tree, lambda _vm, _afresh: frozenset(), lambda _level: {})


def test_counters_of_a_vm_are_read_by_domain() -> None:
    tree = fake(rmids=8)
    tree.start(10)
    groups = Groups(tree)
    groups.create(OURS)
    path = monitoring_group(OURS, "web")
    groups.create(path)
    move(groups, OURS, threads_of(tree, 10))
    move(groups, path, threads_of(tree, 10))
    assert groups.tasks(path) == {10}
    assert groups.tasks(OURS) == {10}, "the control group has those of its monitoring groups too"
    counters = tree.groups[OURS].monitored["equipoise-web"].counters
    counters |= {(0, "llc_occupancy"): "1048576", (0, "mbm_total_bytes"): "77", (1, "mbm_local_bytes"): "5"}
    monitor = Monitor(tree, path)
    assert monitor.read() == (CacheUse(0, 1048576, 77, 0), CacheUse(1, 0, 0, 5))
    counters |= {(0, "llc_occupancy"): "Unavailable", (0, "mbm_total_bytes"): "Error"}
    assert monitor.read()[0] == CacheUse(0, None, None, 0)
    groups.remove(path)
    with pytest.raises(HostError) as caught:
        monitor.read()
    assert caught.value.errno == errno.ENODEV
    monitor.close()
    groups.close()
    assert not tree.held


def test_counters_of_groups_are_held_from_reading_to_reading_and_let_go_of_with_their_groups() -> None:
    tree = fake(rmids=8)
    tree.start(10)
    groups, monitors = Groups(tree), cache_of(tree)
    path = monitoring_group(OURS, "web")
    groups.create(OURS)
    groups.create(path)
    move(groups, OURS, threads_of(tree, 10))
    move(groups, path, threads_of(tree, 10))
    tree.use(10, 0, mbm_total_bytes=7, llc_occupancy=3)
    assert monitors.uses((OURS, path, "equipoise-none")) == {
        OURS: (CacheUse(0, 3, 7, 0), CacheUse(1, 0, 0, 0)),
        path: (CacheUse(0, 3, 7, 0), CacheUse(1, 0, 0, 0)),
    }
    held = set(tree.held)
    monitors.uses((OURS, path))
    assert tree.held == held
    groups.remove(path)
    groups.create(path)
    assert monitors.uses((OURS, path)).keys() == {OURS}, "it is another group"
    assert monitors.uses((OURS, path))[path][0].total_bytes == 0
    monitors.uses((OURS,))
    groups.close()
    assert len(tree.held) == 6, "three counters in two domains"
    monitors.close()
    assert not tree.held


def test_a_domain_that_comes_back_is_counted_again() -> None:
    tree = fake(rmids=8)
    whole, monitors = tree.caches, cache_of(tree)
    tree.caches = (replace(whole[0], domains=(0,)), *whole[1:])
    assert monitors.offered(frozenset({0, 1})) is not None
    assert [use.domain for use in monitors.uses((DEFAULT,))[DEFAULT]] == [0]
    tree.caches = whole
    assert monitors.offered(frozenset(range(4))) is not None
    assert [use.domain for use in monitors.uses((DEFAULT,))[DEFAULT]] == [0, 1]


def test_monitoring_groups_are_told_with_those_of_others() -> None:
    tree = fake(rmids=8)
    groups = Groups(tree)
    groups.create(OURS)
    groups.create(monitoring_group(OURS, "web"))
    tree.make("mon_groups/perf")
    assert groups.monitored((DEFAULT, OURS, "equipoise-none")) == {
        DEFAULT: frozenset({"perf"}),
        OURS: frozenset({"equipoise-web"}),
    }
    assert Groups(fake()).monitored((DEFAULT,)) == {}


def test_a_control_group_counts_what_its_monitoring_groups_do_as_far_as_they_can() -> None:
    tree = fake(rmids=8)
    tree.start(10, 11)
    tree.make("mon_groups/perf")
    tree.tasks[10] = tree.root.monitored["perf"]
    tree.use(10, 0, mbm_total_bytes=5)
    tree.use(11, 0, mbm_total_bytes=2)
    assert cache_of(tree).uses((DEFAULT,))[DEFAULT][0].total_bytes == 7
    tree.root.monitored["perf"].counters[0, "mbm_total_bytes"] = "Unavailable"
    assert cache_of(tree).uses((DEFAULT,))[DEFAULT][0].total_bytes == 2
    tree.root.counters[0, "mbm_total_bytes"] = "Unavailable"
    assert cache_of(tree).uses((DEFAULT,))[DEFAULT][0].total_bytes is None


def test_a_vm_is_moved_into_a_monitoring_group_of_its_own_control_group_only() -> None:
    tree = fake(rmids=8)
    tree.start(10)
    groups = Groups(tree)
    groups.create(OURS)
    groups.create(monitoring_group(OURS, "web"))
    with pytest.raises(HostError, match="Can't move task to different control group"):
        move(groups, monitoring_group(OURS, "web"), threads_of(tree, 10))


def test_rmids_run_out() -> None:
    tree = fake(rmids=3)
    groups = Groups(tree)
    groups.create(OURS)
    groups.create(monitoring_group(DEFAULT, "web"))
    with pytest.raises(HostError, match=r"Out of RMIDs$") as caught:
        groups.create(monitoring_group(OURS, "db"))
    assert caught.value.errno == errno.ENOSPC


def test_without_monitoring_nothing_is_read(tmp_path: Path) -> None:
    for tree in (fake(), ResctrlTree(unpack("haswell", tmp_path))):
        with pytest.raises(HostError, match="open the counters") as caught:
            Monitor(tree, DEFAULT)
        assert caught.value.errno == errno.ENODEV


def test_counters_that_a_machine_has_not_are_none(tmp_path: Path) -> None:
    monitor = Monitor(ResctrlTree(unpack("arm-mpam", tmp_path)), DEFAULT)
    assert monitor.read() == (CacheUse(1, 0, 0, None), CacheUse(5, 0, 0, None))
    monitor.close()
