"""What resctrl offers, and its mount, by the host layer."""

from __future__ import annotations

import errno
import platform
from collections.abc import Callable

import pytest

from manager.errors import HostError
from manager.host.resctrl.groups import Groups
from manager.host.resctrl.resctrl_cache import Monitor, ensure_mounted, unmount_ours
from manager.host.resctrl.tree import discover
from manager.model.cache import DEFAULT, CacheResource, Mask, Resctrl, Slot
from tests.host.conftest import descriptors
from tests.kernel.inside.resctrl.host import POINT, Host

ALL = Mask(0xFFFFF)


def test_what_is_offered(host: Host, closids: int, record_property: Callable[[str, object], None]) -> None:
    """20 ways in each of two domains. The emulated processor's cache has 16 MiB, which 20 does not divide."""
    way_bytes = ((0, 838860), (1, 838860))
    cache = CacheResource("L3", ALL, 2, Mask(0xC0000), closids, False, (0, 1), way_bytes)
    assert host.offered == Resctrl((cache,), ())
    assert host.offered.closids == closids
    record_property("kernel", platform.release())
    record_property("offered", str(host.offered))


def test_the_default_group_has_everything(host: Host) -> None:
    (only,) = host.groups.read().values()
    assert only.name == DEFAULT
    assert only.values == {Slot("L3", 0): ALL.bits, Slot("L3", 1): ALL.bits}
    assert set(host.placed().values()) == {DEFAULT}


def test_nothing_is_monitored(host: Host) -> None:
    with pytest.raises(HostError, match="open the counters") as caught:
        Monitor(host.tree, DEFAULT)
    assert caught.value.errno == errno.ENODEV


def test_it_is_mounted_once_and_unmounted_again(host: Host) -> None:
    tree = host.tree
    assert not ensure_mounted(tree), "it was there"
    unmount_ours(tree, host.groups)
    assert tree.options() is None
    assert not list(POINT.iterdir())
    assert discover(tree) is None
    assert ensure_mounted(tree)
    assert discover(tree) == host.offered


def test_groups_of_others_keep_it_mounted(host: Host) -> None:
    (POINT / "pqos1").mkdir()
    with pytest.raises(HostError, match="groups of others, such as pqos1") as caught:
        unmount_ours(host.tree, host.groups)
    assert caught.value.errno == errno.EBUSY
    assert host.tree.options() is not None


def test_a_file_that_another_holds_open_keeps_it_mounted(host: Host) -> None:
    with (POINT / "schemata").open(), pytest.raises(HostError, match="unmount resctrl: Device or resource busy"):
        unmount_ours(host.tree, host.groups)
    assert host.tree.options() is not None


@pytest.mark.parametrize("option", ["foo", "mba_MBps", "cdpl2"])
def test_options_that_this_machine_has_not(host: Host, option: str) -> None:
    unmount_ours(host.tree, host.groups)
    with pytest.raises(OSError, match="Invalid argument") as caught:
        host.tree.mount(frozenset({option}))
    assert caught.value.errno == errno.EINVAL
    assert ensure_mounted(host.tree)


def test_no_file_stays_open(host: Host) -> None:
    before = descriptors()
    groups = Groups(host.tree)
    groups.create("equipoise-shop")
    groups.read()
    groups.remove("equipoise-shop")
    groups.close()
    assert descriptors() == before
