"""cpu.max, the quota: written, read back, undone (Documentation/scheduler/sched-bwc.rst).

The agent writes the quota alone, so the period is the operator's and stays.
"""

from __future__ import annotations

import errno

import pytest

from manager.errors import HostError
from manager.model.host import Quota
from manager.model.knobs import LEAST_QUOTA_US, UNLIMITED, Knob, KnobKey
from tests.host.conftest import until
from tests.kernel.inside.cgroup_v2.conftest import Vm, open_host, try_write


def text_quota(vm: Vm, text: str) -> int:
    """Write cpu.max as an operator does, with a period; 0 or the errno."""
    return try_write(vm.quota, text)


def quota(vm: Vm, quota_us: int) -> int:
    """Limit a VM as the agent does; 0 or the errno. What is read back is what was written."""
    host = open_host(vm)
    try:
        assert host.write(vm.instance, KnobKey(vm.process.uuid, Knob.QUOTA), quota_us) == quota_us
    except HostError as error:
        return error.errno
    finally:
        host.forget(frozenset())
    return 0


def seen(vm: Vm) -> Quota | None:
    """The quota as the agent reads it."""
    host = open_host(vm)
    try:
        return host.read(vm.instance).quota
    finally:
        host.forget(frozenset())


def test_a_new_group_has_none(web: Vm) -> None:
    assert web.quota.read_text() == "max 100000\n"


@pytest.mark.parametrize("quota_us", [50_000, LEAST_QUOTA_US, 150_000, 400_000])
@pytest.mark.parametrize("period_us", [100_000, 50_000, 1_000_000])
def test_a_quota_is_written_read_back_and_undone(web: Vm, quota_us: int, period_us: int) -> None:
    assert text_quota(web, f"max {period_us}") == 0
    before = web.settings()
    assert quota(web, quota_us) == 0
    assert web.quota.read_text() == f"{quota_us} {period_us}\n"
    assert seen(web) == Quota(quota_us, period_us)
    assert quota(web, UNLIMITED) == 0
    assert web.settings() == before
    assert seen(web) == Quota(UNLIMITED, period_us)


def test_an_operators_quota_with_a_period_of_its_own_is_put_back_whole(web: Vm) -> None:
    assert text_quota(web, "20000 50000") == 0
    assert quota(web, 30_000) == 0
    assert web.quota.read_text() == "30000 50000\n"
    assert quota(web, 20_000) == 0
    assert web.quota.read_text() == "20000 50000\n"


@pytest.mark.parametrize("quota_us", [LEAST_QUOTA_US - 1, 0, -2])
def test_other_quotas_are_refused(web: Vm, quota_us: int) -> None:
    assert text_quota(web, "50000 100000") == 0
    assert quota(web, quota_us) == errno.EINVAL
    assert web.quota.read_text() == "50000 100000\n"


@pytest.mark.parametrize("text", ["50000 999", "50000 1000001", "some"], ids=["below 1 ms", "above 1 s", "no number"])
def test_other_periods_are_refused(web: Vm, text: str) -> None:
    assert text_quota(web, text) == errno.EINVAL
    assert web.quota.read_text() == "max 100000\n"


def test_a_quota_below_that_of_the_group_above_is_taken_as_written(web: Vm) -> None:
    """cgroup v2 takes any: the tightest of the groups on the way counts."""
    assert quota(web, 20_000) == 0
    child = web.folders["vcpu0"] / "cpu.max"
    assert try_write(child, "50000 100000") == 0
    assert (web.quota.read_text(), child.read_text()) == ("20000 100000\n", "50000 100000\n")
    assert try_write(child, "max 100000") == 0


def test_a_quota_leaves_the_weight(web: Vm) -> None:
    assert try_write(web.weight, 777) == 0
    assert quota(web, 50_000) == 0
    assert web.weight.read_text() == "777\n"
    assert try_write(web.weight, 300) == 0
    assert quota(web, UNLIMITED) == 0
    assert web.weight.read_text() == "300\n"


def test_a_quota_throttles_and_its_end_ends_that(web: Vm) -> None:
    throttled = web.stat("nr_throttled")
    web.process.tell("spin")
    assert quota(web, 20_000) == 0
    until(lambda: web.stat("nr_throttled") > throttled + 5, "the group was throttled")
    assert web.stat("throttled_usec") > 0
    assert quota(web, UNLIMITED) == 0
    throttled, periods = web.stat("nr_throttled"), web.stat("nr_periods")
    used = web.stat("usage_usec")
    until(lambda: web.stat("usage_usec") > used + 500_000, "the group ran")
    assert (web.stat("nr_throttled"), web.stat("nr_periods")) == (throttled, periods)
