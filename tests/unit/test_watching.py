"""Names and targets of applications that are made from services."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.watching import TARGET_FACTOR, application_names, suggested_target_ms
from manager.model.fields import NAME_PATTERN
from manager.model.traffic import TapProtocol


@pytest.mark.parametrize(
    ("p95_ms", "target_ms"),
    [
        (0.01, 1),
        (0.3, 1),
        (0.34, 2),
        (0.66, 2),
        (0.7, 5),
        (1.9, 10),
        (3.4, 20),
        (7, 25),
        (8.3, 25),
        (8.4, 50),
        (20, 100),
        (50, 200),
        (80, 250),
        (150, 500),
        (200, 1000),
        (9_000, 50_000),
        (34_000, 100_000),
        (100_000, 100_000),
    ],
)
def test_a_target_is_three_times_the_p95_rounded_up(p95_ms: float, target_ms: float) -> None:
    assert suggested_target_ms(p95_ms) == target_ms


@given(st.floats(0, 33_000))
def test_a_target_is_never_below_what_it_is_derived_from_nor_far_above(p95_ms: float) -> None:
    target_ms = suggested_target_ms(p95_ms)
    assert target_ms >= max(1, TARGET_FACTOR * p95_ms)
    assert target_ms <= max(1, 2.5 * TARGET_FACTOR * p95_ms)
    assert re.fullmatch(r"(1|2|5|25)0*", f"{target_ms:.0f}")


@pytest.mark.parametrize(
    ("vm", "protocol", "taken", "names"),
    [
        ("shop-web", "http", (), ("shop", "web")),
        ("shop-web-1", "http", (), ("shop", "web")),
        ("my-shop-db02", "other", (), ("my-shop", "db")),
        ("web", "http", (), ("web", "web")),
        ("web-1", "tls", (), ("web", "web")),
        ("store", "memcached", (), ("store", "cache")),
        ("store", "memcached_binary", (), ("store", "cache")),
        ("store", "of a later version", (), ("store", "web")),
        ("7", "http", (), ("7", "web")),
        ("a-", "http", (), ("a-", "web")),
        ("shop-web", "http", ("shop",), ("shop-2", "web")),
        ("shop-web", "http", ("shop", "shop-2"), ("shop-3", "web")),
        ("shop-.", "http", (), ("shop-.", "web")),
    ],
)
def test_names_come_from_the_vm(vm: str, protocol: str, taken: tuple[str, ...], names: tuple[str, str]) -> None:
    assert application_names(vm, protocol, taken) == names


@given(st.from_regex(NAME_PATTERN, fullmatch=True), st.sampled_from(list(TapProtocol)))
def test_names_are_names_whatever_the_vm_is_called(vm: str, protocol: str) -> None:
    name, tier = application_names(vm, protocol, ())
    other, _ = application_names(vm, protocol, (name,))
    assert other != name
    for made in (name, tier, other):
        assert re.fullmatch(NAME_PATTERN, made), made
