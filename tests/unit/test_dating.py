"""Which dates count of what agents report: none is of the future, each another, in their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from manager.control.dating import dated

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
