"""The map of two applications: what comes next, and what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.load_search import LoadVerdict
from manager.control.pair_map import PairPoint, PairVerdict, most_together, next_pair, pair_map, pair_verdict

MET, VIOLATED, UNREACHED, LIMITED, UNJUDGED = LoadVerdict


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (MET, MET, "both"),
        (MET, VIOLATED, "first"),
        (UNREACHED, MET, "second"),
        (VIOLATED, UNREACHED, "none"),
        (LIMITED, MET, "unknown"),
        (MET, UNJUDGED, "unknown"),
        (LIMITED, VIOLATED, "unknown"),
    ],
)
def test_who_meets_the_sla(first: LoadVerdict, second: LoadVerdict, verdict: str) -> None:
    assert pair_verdict(first, second) == verdict


def test_from_little_load_to_much_and_not_beyond_none() -> None:
    points: list[PairPoint] = []
    tried = []
    while (pair := next_pair(3, points)) is not None:
        tried.append(pair)
        good = MET if sum(pair) <= 3 else VIOLATED
        points.append(PairPoint(pair, (good, MET if pair[1] < 2 else good)))
    assert tried == [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1)]
    known = pair_map(3, points)
    assert {pair: str(verdict) for pair, verdict in known.items()} == {
        (1, 1): "both",
        (1, 2): "both",
        (2, 1): "both",
        (1, 3): "none",
        (2, 2): "none",
        (3, 1): "second",
        (2, 3): "none",
        (3, 2): "none",
        (3, 3): "none",
    }
    assert most_together(known) == (2, 1)


def test_what_is_met_by_luck_counts_for_nothing() -> None:
    known = {(1, 1): PairVerdict.BOTH, (1, 2): PairVerdict.FIRST, (2, 2): PairVerdict.BOTH, (2, 1): PairVerdict.UNKNOWN}
    assert most_together(known) == (1, 1)
    assert most_together({(1, 1): PairVerdict.NONE}) is None
    assert most_together({}) is None


@given(levels=st.integers(2, 8), data=st.data())
def test_it_ends_and_knows_every_pair(levels: int, data: st.DataObject) -> None:
    """Whatever is measured: no pair twice, none above one at which both failed, and the map is whole at the end."""
    points: list[PairPoint] = []
    while (pair := next_pair(levels, points)) is not None:
        assert pair not in {point.levels for point in points}
        for point in points:
            if point.verdict is PairVerdict.NONE:
                assert pair[0] < point.levels[0] or pair[1] < point.levels[1]
        verdicts = data.draw(st.tuples(st.sampled_from(LoadVerdict), st.sampled_from(LoadVerdict)))
        points.append(PairPoint(pair, verdicts))
    known = pair_map(levels, points)
    assert len(known) == levels**2
    together = most_together(known)
    assert together is None or PairPoint(together, (MET, MET)) in points
