"""The sweep and the search: which load comes next, and when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.load_search import (
    DEFAULT_SEARCH,
    LoadPoint,
    LoadVerdict,
    NextLoad,
    OwnDelay,
    SearchResult,
    SearchRules,
    judged,
    most_loads,
    next_load,
    others_at_risk,
    sweep_rates,
)
from manager.model.window import SlaState

MET, VIOLATED, UNREACHED, LIMITED, UNJUDGED = LoadVerdict
SWEEP = sweep_rates(1000)


def swept(*verdicts: LoadVerdict) -> list[LoadPoint]:
    return [LoadPoint(rate_rps, verdict) for rate_rps, verdict in zip(SWEEP, verdicts, strict=False)]


@pytest.mark.parametrize(
    ("points", "has_sla", "expected"),
    [
        ([], True, NextLoad(100, "sweep")),
        (swept(MET), True, NextLoad(200, "sweep")),
        (swept(MET, VIOLATED), True, NextLoad(300, "sweep")),
        (swept(MET, MET, UNREACHED), True, NextLoad(250, "search")),
        (swept(MET, MET, LIMITED), True, NextLoad(400, "sweep")),
        (swept(*[MET] * 2, *[LIMITED] * 8), True, NextLoad(250, "search")),
        (swept(LIMITED, *[MET] * 3, *[VIOLATED] * 6), True, NextLoad(450, "search")),
        (swept(*[MET] * 3, *[LIMITED] * 3, *[VIOLATED] * 4), True, NextLoad(350, "search")),
        (
            [*swept(*[LIMITED] * 10), LoadPoint(10, LIMITED)],
            True,
            SearchResult(None, "it was not met even at 10 req/s: the load generator was too slow to judge it"),
        ),
        (swept(*[UNJUDGED] * 10), False, SearchResult(None, "it has no SLA to compare with")),
        (swept(*[UNJUDGED] * 10), True, SearchResult(None, "too few response times to judge")),
        (
            swept(*[MET] * 10),
            True,
            SearchResult(1000, "it was met up to the largest load that was tried, 1,000 req/s"),
        ),
        (swept(*[MET] * 4, *[VIOLATED] * 6), True, NextLoad(450, "search")),
        (swept(MET, VIOLATED, *[MET] * 8), True, NextLoad(150, "search")),
        (swept(*[VIOLATED] * 10), True, NextLoad(50, "search")),
        (
            [*swept(*[MET] * 4, *[VIOLATED] * 6), LoadPoint(485, MET)],
            True,
            SearchResult(485, "485 req/s meets it, 500 req/s does not"),
        ),
        (
            [*swept(*[MET] * 4, *[LIMITED] * 6), LoadPoint(490, MET)],
            True,
            SearchResult(490, "490 req/s meets it, 500 req/s could not be generated well enough"),
        ),
        (
            [*swept(*[VIOLATED] * 10), LoadPoint(10, VIOLATED)],
            True,
            SearchResult(
                None,
                "it was not met even at 10 req/s: the target is below what the service gives with hardly any load",
            ),
        ),
    ],
)
def test_what_comes_next(points: list[LoadPoint], has_sla: bool, expected: NextLoad | SearchResult) -> None:
    assert next_load(1000, points, has_sla) == expected
    assert next_load(1000, points[::-1], has_sla) == expected


RULES = st.builds(SearchRules, steps=st.integers(2, 50), span=st.floats(0.001, 0.5), least=st.floats(0.001, 0.5))


@given(
    peak_rps=st.floats(1e-3, 1e6), limit=st.floats(0, 1.2), reach=st.floats(0, 1.2), has_sla=st.booleans(), rules=RULES
)
def test_the_search_ends_near_the_limit(
    peak_rps: float, limit: float, reach: float, has_sla: bool, rules: SearchRules
) -> None:
    """A service that meets its SLA up to ``limit`` of the peak, and takes up to ``reach`` of it."""
    points: list[LoadPoint] = []
    while isinstance(step := next_load(peak_rps, points, has_sla, rules), NextLoad):
        assert 0 < step.rate_rps <= peak_rps
        assert step.rate_rps not in {point.offered_rps for point in points}
        too_much = [point.offered_rps for point in points if point.verdict is UNREACHED]
        assert all(step.rate_rps < rate_rps for rate_rps in too_much)
        met = step.rate_rps <= limit * peak_rps
        taken = step.rate_rps <= reach * peak_rps
        verdict = UNREACHED if not taken else UNJUDGED if not has_sla else MET if met else VIOLATED
        points.append(LoadPoint(step.rate_rps, verdict))
        assert len(points) <= most_loads(rules)
    assert step.why
    true_rps = min(limit, reach, 1.0) * peak_rps
    if not has_sla:
        assert step.qos_rps is None
    elif step.qos_rps is None:
        assert true_rps <= rules.least * peak_rps
    else:
        assert step.qos_rps <= true_rps <= step.qos_rps + max(rules.span, rules.least) * peak_rps * (1 + 1e-6)


@given(
    st.lists(st.builds(LoadPoint, st.sampled_from([*SWEEP, 50, 150, 475, 10]), st.sampled_from(LoadVerdict))),
    st.booleans(),
)
def test_whatever_was_measured_the_answer_is_sound(points: list[LoadPoint], has_sla: bool) -> None:
    """Noise included: what is named as meeting the SLA did, and nothing below it was violated."""
    step = next_load(1000, points, has_sla)
    if isinstance(step, NextLoad):
        assert 0 < step.rate_rps <= 1000
        assert step.rate_rps not in {point.offered_rps for point in points}
    elif step.qos_rps is not None:
        assert LoadPoint(step.qos_rps, MET) in points
        assert not [one for one in points if one.offered_rps < step.qos_rps and one.verdict in {VIOLATED, UNREACHED}]


PROMPT, LATE, BUSY = OwnDelay(), OwnDelay(late_ms=3.0), OwnDelay(busy=True)


@pytest.mark.parametrize(
    ("percentile_ms", "sla_ms", "shortfall", "own", "verdict"),
    [
        (5.0, 10.0, False, PROMPT, MET),
        (10.0, 10.0, False, PROMPT, MET),
        (10.1, 10.0, False, PROMPT, VIOLATED),
        (5.0, 10.0, True, PROMPT, UNREACHED),
        (None, 10.0, False, PROMPT, UNJUDGED),
        (5.0, None, False, PROMPT, UNJUDGED),
        (5.0, None, True, PROMPT, UNREACHED),
        (5.0, 10.0, False, LATE, MET),
        (12.0, 10.0, False, LATE, LIMITED),
        (13.1, 10.0, False, LATE, VIOLATED),
        (5.0, 10.0, True, LATE, UNREACHED),
        (None, 10.0, False, LATE, LIMITED),
        (5.0, None, False, LATE, LIMITED),
        (5.0, 10.0, False, BUSY, MET),
        (50.0, 10.0, False, BUSY, LIMITED),
        (5.0, 10.0, True, BUSY, LIMITED),
        (5.0, None, False, BUSY, LIMITED),
        (None, 10.0, False, BUSY, LIMITED),
    ],
)
def test_judged(
    percentile_ms: float | None, sla_ms: float | None, shortfall: bool, own: OwnDelay, verdict: LoadVerdict
) -> None:
    assert judged(percentile_ms, sla_ms, shortfall, own) is verdict


def test_others_at_risk() -> None:
    states = {
        "shop": SlaState.VIOLATED,
        "shop2": SlaState.AT_RISK,
        "bank": SlaState.MET,
        "mail": SlaState.VIOLATED,
        "wiki": SlaState.NO_DATA,
    }
    assert others_at_risk(states, {"shop"}) == "mail (violated), shop2 (at risk)"
    assert others_at_risk(states, {"shop"}, SlaState.VIOLATED) == "mail (violated)"
    assert others_at_risk({"shop": SlaState.VIOLATED}, {"shop", "bank"}) == ""
    assert others_at_risk({}, ()) == ""


def test_the_usual_sweep_is_of_tenths() -> None:
    assert tuple(range(100, 1001, 100)) == SWEEP
    assert most_loads(DEFAULT_SEARCH) < 20
