"""Sources that count the same requests, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from manager.control.counted_twice import SourceCounts, counted_twice
from manager.model.source import SourceKind


def counts(source: str, kind: SourceKind, requests: Sequence[float], application: str = "shop") -> SourceCounts:
    return SourceCounts(application, source, kind, requests)


WIRE = counts("wire", SourceKind.TAP, (6000, 5400, 6600))


def test_both_are_named() -> None:
    found = counted_twice([WIRE, counts("app", SourceKind.PUSH, (6010, 5390, 6590))])
    assert found == {
        ("shop", "wire"): "source app (push) counted as many requests in each of the last 3 minutes"
        " (17,990 and 18,000): they probably count twice; keep one of the two",
        ("shop", "app"): "source wire (tap) counted as many requests in each of the last 3 minutes"
        " (18,000 and 17,990): they probably count twice; keep one of the two",
    }


def test_prometheus_is_compared_too() -> None:
    """It counts a few seconds later than the tap, so its minutes differ a little where the load does."""
    assert counted_twice([WIRE, counts("prom", SourceKind.PROMETHEUS, (6100, 5600, 6200))])


@pytest.mark.parametrize(
    "requests",
    [(6000, 5400, 5000), (6000, 0, 6600), (3000, 2700, 3300), (6000, 6600, 5400)],
    ids=["one-minute", "a-gap", "half", "in-another-order"],
)
def test_other_requests_are_not_as_many_in_each_minute(requests: Sequence[float]) -> None:
    assert not counted_twice([WIRE, counts("app", SourceKind.PUSH, requests)])


def test_few_requests_tell_nothing() -> None:
    few = (99.0, 99.0, 99.0)
    assert not counted_twice([counts("wire", SourceKind.TAP, few), counts("app", SourceKind.PUSH, few)])


def test_a_silent_source_counts_nothing_twice() -> None:
    assert not counted_twice([WIRE, counts("app", SourceKind.PUSH, (0, 0, 0))])


def test_only_sources_of_one_application_are_compared() -> None:
    assert not counted_twice([WIRE, counts("app", SourceKind.PUSH, WIRE.requests, "mail")])


@pytest.mark.parametrize("kind", [SourceKind.TAP, SourceKind.HTTP_PROBE, SourceKind.NGINX_SYSLOG])
def test_taps_of_other_ports_and_what_is_refused_beside_a_tap_are_not_compared(kind: SourceKind) -> None:
    """Two servers behind one balancer are asked alike."""
    assert not counted_twice([WIRE, counts("other", kind, WIRE.requests)])


def test_two_sources_without_a_tap_are_not_compared() -> None:
    pushes = [counts(name, SourceKind.PUSH, WIRE.requests) for name in ("one", "two")]
    assert not counted_twice(pushes)
