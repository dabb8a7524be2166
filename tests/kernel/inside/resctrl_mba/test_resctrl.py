"""Memory bandwidth, and code and data apart."""

from __future__ import annotations

import errno
import platform
from collections.abc import Callable

import pytest

from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP, CacheDemand
from manager.errors import HostError
from manager.host.resctrl.tree import discover
from manager.model.cache import BandwidthResource, BandwidthUnit, CacheResource, Mask, Monitoring, Resctrl, Slot
from tests.host.resctrl.replay import differences, read_record
from tests.kernel.inside.resctrl.host import Host, claim, demand
from tests.kernel.inside.resctrl.test_allocation import test_no_closid_is_left
from tests.kernel.inside.resctrl.test_table import KernelSubject, record_of, subject
from tests.kernel.inside.resctrl_mba.conftest import remount

__all__ = ["subject", "test_no_closid_is_left"]

WAY_BYTES = ((0, 838860), (1, 838860))
MONITORING = Monitoring(frozenset({"llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"}), 24)
OURS = "equipoise-shop"


@pytest.fixture(scope="session")
def closids() -> int:
    """The fewest of all resources."""
    return 8


def cache(name: str, closids: int) -> CacheResource:
    return CacheResource(name, Mask(0xFFFFF), 1, Mask(0xC0000), closids, False, (0, 1), WAY_BYTES)


def bandwidth(host: Host) -> BandwidthResource:
    (found,) = host.offered.bandwidths
    return found


def test_what_is_offered(host: Host, record_property: Callable[[str, object], None]) -> None:
    found = bandwidth(host)
    assert host.offered == Resctrl((cache("L3", 16),), (found,), MONITORING)
    assert (found.name, found.least, found.step, found.most, found.unit) == ("MB", 10, 10, 100, BandwidthUnit.PERCENT)
    assert (found.linear, found.closids, found.domains) == (True, 8, (0, 1))
    assert host.offered.closids == 8
    record_property("kernel", platform.release())
    record_property("offered", str(host.offered))


def test_what_is_offered_with_code_and_data_apart(divided: Host) -> None:
    assert divided.offered == Resctrl((cache("L3CODE", 8), cache("L3DATA", 8)), (bandwidth(divided),), MONITORING)


def test_bandwidth_is_rounded_as_the_kernel_does(host: Host) -> None:
    host.groups.create(OURS)
    for value in (10, 11, 50, 55, 91, 100):
        assert host.groups.write(OURS, {Slot("MB", 0): value}) == {Slot("MB", 0): bandwidth(host).legal(value)}
    for value in (0, 9, 101):
        with pytest.raises(HostError, match=rf"Invalid argument: MB value {value} out of range \[10,100\]") as caught:
            host.groups.write(OURS, {Slot("MB", 1): value})
        assert caught.value.errno == errno.EINVAL
    assert host.groups.read()[OURS].values[Slot("MB", 0)] == 100


def test_one_batch_vm_is_held_back(host: Host) -> None:
    original = host.state()
    wanted = CacheDemand(
        (claim("shop", "6 ways"),), frozenset({"batch", "mail"}), held=frozenset({"mail"}), bandwidth=34
    )
    host.reach(wanted)
    assert host.placed() == {"shop": OURS, "batch": BATCH_GROUP, "mail": HELD_GROUP, "wiki": ""}
    groups = host.groups.read()
    assert [groups[name].values[Slot("MB", 1)] for name in (OURS, BATCH_GROUP, HELD_GROUP)] == [100, 100, 40]
    host.reach(demand())
    assert host.state() == original


def test_code_and_data_get_the_same_ways(divided: Host) -> None:
    original = divided.state()
    plan = divided.reach(demand(claim("shop", "6 ways"), claim("mail", "4 ways"), batch=frozenset({"batch"})))
    for name, group in divided.groups.read().items():
        assert name in plan.groups
        for domain in (0, 1):
            assert group.values[Slot("L3CODE", domain)] == group.values[Slot("L3DATA", domain)]
    divided.reach(demand(claim("mail", "9 ways")))
    divided.reach(demand())
    assert divided.state() == original


def test_bandwidth_in_megabytes(host: Host) -> None:
    """Nothing is rounded then, and the least and the step are still those of percents."""
    remount(host, "mba_MBps")
    offered = discover(host.tree)
    assert offered is not None
    (found,) = offered.bandwidths
    assert (found.unit, found.least, found.step, found.most) == (BandwidthUnit.MBPS, 10, 10, 2**32 - 1)
    host.groups.create(OURS)
    for value in (1, 12345):
        assert host.groups.write(OURS, {Slot("MB", 0): value}) == {Slot("MB", 0): value}
    host.groups.remove(OURS)
    remount(host)


def test_the_kernel_answers_as_it_did(subject: KernelSubject, record_property: Callable[[str, object], None]) -> None:
    record = f"{record_of(platform.release())}-mba-cdp"
    operations, different = differences(subject, read_record(record))
    record_property("record", record)
    record_property("operations", operations)
    subject.tree.unmount()  # it was mounted with CDP
    subject.tree.mount(frozenset())
    assert not different, "\n".join(different)
    assert operations > 400
