"""What one source may ask for a second: bursts, debts, and that others are not concerned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager import rate_limit
from manager.rate_limit import BURST_S, RateLimit


class Clock:
    """Seconds that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_given_and_then_the_rate(clock: Clock) -> None:
    limit = RateLimit(10, clock)
    # An exactly emptied bucket is no debt yet: one more is given, and that is owed.
    assert [limit.ask("a") for _ in range(int(10 * BURST_S) + 1)] == [0.0] * 101
    assert limit.ask("a") == pytest.approx(0.1)
    assert limit.ask("b") == 0.0, "another source has a bucket of its own"
    clock.now_s += 0.1
    assert limit.ask("a") == 0.0


def test_what_is_taken_at_once_is_paid_back_before_more_is_given(clock: Clock) -> None:
    limit = RateLimit(10, clock)
    limit.take("a", 10 * BURST_S + 50)
    assert limit.wait_s("a") == pytest.approx(5)
    clock.now_s += 4.9
    assert limit.ask("a") == pytest.approx(0.1)
    clock.now_s += 0.1
    assert limit.ask("a") == 0.0


def test_none_at_all_means_no_limit(clock: Clock) -> None:
    limit = RateLimit(0, clock)
    limit.take("a", 1e12)
    assert limit.ask("a", 1e12) == 0.0


def test_of_many_keys_the_quietest_is_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MOST_KEYS", 3)
    limit = RateLimit(1, clock)
    for key in "abac":
        limit.take(key, 100)
    limit.take("d")
    assert [key for key in "abcd" if limit.wait_s(key) > 0] == ["a", "c"]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 300)), max_size=60))
def test_on_average_nobody_gets_more_than_the_rate(asked: list[tuple[float, float]]) -> None:
    clock = Clock()
    limit = RateLimit(10, clock)
    begun_s, given_in_all = clock.now_s, 0.0
    for pause_s, amount in asked:
        clock.now_s += pause_s
        if not limit.ask("a", amount):
            given_in_all += amount
        largest = max(amount for _, amount in asked)
        assert given_in_all <= 10 * (BURST_S + clock.now_s - begun_s) + largest + 1e-6
