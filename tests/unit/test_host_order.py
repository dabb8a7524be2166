"""Hosts of lists: what is wrong with them, which are wanted, and their order and groups."""

from __future__ import annotations

import pytest

from manager.control.host_order import HostFilter, HostGroup, HostSort, count_groups, count_health, ordered
from manager.model.host_health import GlancedHost, HostHealth, health_of
from manager.model.registration import Mode

HOSTS = (
    GlancedHost(1, "a1", "auto", Mode.ENFORCE, HostHealth.HEALTHY, 0.5),
    GlancedHost(2, "a2", "fair", Mode.OBSERVE, HostHealth.SILENT, 0.9),
    GlancedHost(3, "b1", "auto", Mode.ENFORCE, HostHealth.ERRORS, 0.0),
    GlancedHost(4, "b2", "fair", Mode.ENFORCE, HostHealth.NEVER_REPORTED, None),
)


@pytest.mark.parametrize(
    ("wanted", "sort", "group", "names"),
    [
        (HostFilter(), "worst", None, "a2 b1 b2 a1"),
        (HostFilter(), "name", None, "a1 a2 b1 b2"),
        (HostFilter(), "load", None, "a2 a1 b1 b2"),
        (HostFilter(), "worst", "policy", "b1 a1 a2 b2"),
        (HostFilter(), "name", "health", "a2 b1 b2 a1"),
        (HostFilter(), "name", "mode", "a1 b1 b2 a2"),
        (HostFilter(search="B"), "name", None, "b1 b2"),
        (HostFilter(policy="auto"), "worst", None, "b1 a1"),
        (HostFilter(mode=Mode.OBSERVE), "worst", None, "a2"),
        (HostFilter(health=HostHealth.HEALTHY, search="b"), "worst", None, ""),
    ],
)
def test_filter_order_and_groups(wanted: HostFilter, sort: HostSort, group: HostGroup | None, names: str) -> None:
    assert [host.name for host in ordered(HOSTS, wanted, sort, group)] == names.split()


def test_health_is_counted_whatever_health_is_asked_for() -> None:
    counts = count_health(HOSTS, HostFilter(search="b", health=HostHealth.ERRORS))
    assert {health: count for health, count in counts.items() if count} == {"errors": 1, "never_reported": 1}
    assert list(counts) == list(HostHealth)


def test_groups_are_counted_in_the_order_of_the_list() -> None:
    by_policy = ordered(HOSTS, HostFilter(), "worst", "policy")
    counts = [(value, list(count.items())) for value, count in count_groups(by_policy, "policy").items()]
    assert counts == [
        ("auto", [(HostHealth.ERRORS, 1), (HostHealth.HEALTHY, 1)]),
        ("fair", [(HostHealth.SILENT, 1), (HostHealth.NEVER_REPORTED, 1)]),
    ]


@pytest.mark.parametrize(
    ("reported", "silent", "connected", "errors", "slow", "health"),
    [
        (False, True, False, 1, True, HostHealth.NEVER_REPORTED),
        (True, True, False, 1, True, HostHealth.SILENT),
        (True, False, False, 1, True, HostHealth.NO_LIBVIRT),
        (True, False, True, 1, True, HostHealth.ERRORS),
        (True, False, True, 0, True, HostHealth.SLOW),
        (True, False, True, 0, False, HostHealth.HEALTHY),
    ],
)
def test_the_worst_of_what_is_wrong_counts(
    reported: bool, silent: bool, connected: bool, errors: int, slow: bool, health: HostHealth
) -> None:
    assert health_of(reported=reported, silent=silent, connected=connected, errors=errors, slow=slow) is health
