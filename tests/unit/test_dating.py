"""Which dates count of what agents report: none is of the future, each another, in their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.dating import behind_s, dated, latest_end

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SKEW = timedelta(minutes=1)
YEARS = st.integers(-2000, 7900).map(lambda years: NOW + timedelta(days=365 * years))
MOMENTS = YEARS | st.integers(-200, 200).map(lambda second: NOW + timedelta(seconds=second))


@given(st.lists(MOMENTS, max_size=30), st.none() | st.floats(-1e10, 1e10))
def test_nothing_is_of_the_future_and_each_has_a_date_of_its_own(
    claimed: list[datetime], ahead_s: float | None
) -> None:
    dates = dated(claimed, NOW, ahead_s, SKEW)
    assert dates.keys() == set(claimed)
    assert len(set(dates.values())) == len(dates)
    for moment, date in dates.items():
        assert date <= NOW + SKEW
        assert date == moment or (moment > NOW + SKEW and date > NOW - 2 * SKEW)


def test_what_an_agent_knows_of_its_clock_counts_and_else_the_arrival() -> None:
    year = timedelta(days=365)
    claimed = [NOW - SKEW, NOW + year - timedelta(seconds=5), NOW + year]
    known = dated(claimed, NOW, year.total_seconds(), SKEW)
    assert list(known.values()) == [NOW - SKEW, NOW - timedelta(seconds=5), NOW]
    unknown = dated(claimed, NOW, None, SKEW)
    assert list(unknown.values()) == [NOW - SKEW, NOW - timedelta(microseconds=1), NOW]


HOUR_S, YEAR_S = 3600.0, 365 * 86_400.0


@pytest.mark.parametrize(
    ("set_back_s", "aheads_s", "expected_s"),
    [
        (0.0, [], 0.0),
        (0.0, [YEAR_S], 0.0),  # one host alone may be wrong itself
        (YEAR_S, [], YEAR_S),
        (YEAR_S, [0.0, 0.0], YEAR_S),  # hosts that found it before the clock was set
        (-YEAR_S, [], 0.0),
        (0.0, [YEAR_S, YEAR_S + 2], YEAR_S + 1),
        (0.0, [YEAR_S, 0.0], 0.0),
        (0.0, [YEAR_S, YEAR_S, 0.0], YEAR_S),
        (0.0, [YEAR_S, YEAR_S, 0.0, 0.0], 0.0),
        (0.0, [YEAR_S, HOUR_S, 0.0], 0.0),
        (0.0, [-YEAR_S, -YEAR_S], 0.0),
    ],
)
def test_a_manager_is_behind_by_uptime_or_where_most_hosts_agree(
    set_back_s: float, aheads_s: list[float], expected_s: float
) -> None:
    assert behind_s(set_back_s, aheads_s, SKEW.total_seconds()) == expected_s


SECONDS = st.floats(-1e9, 1e9)


@given(SECONDS, st.lists(SECONDS, max_size=9), st.none() | SECONDS)
def test_a_window_may_end_now_by_any_clock_that_may_be_right(
    set_back_s: float, aheads_s: list[float], ahead_s: float | None
) -> None:
    behind = behind_s(set_back_s, aheads_s, SKEW.total_seconds())
    latest = latest_end(NOW, ahead_s, behind, SKEW)
    assert behind >= max(set_back_s, 0)
    assert latest >= NOW + SKEW + timedelta(seconds=behind)
    assert latest <= NOW + SKEW + timedelta(seconds=max(behind, ahead_s or 0, 0))
    if ahead_s is not None and 0 <= ahead_s < 86_400:
        assert latest >= NOW + SKEW + timedelta(seconds=ahead_s)


@given(SECONDS, st.integers(2, 9), st.lists(SECONDS, max_size=9))
def test_what_most_hosts_agree_about_is_believed(right_s: float, agree: int, others: list[float]) -> None:
    found = behind_s(0.0, [right_s] * agree + others[: agree - 1], SKEW.total_seconds())
    assert found == pytest.approx(max(right_s, 0.0), abs=SKEW.total_seconds())
