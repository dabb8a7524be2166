"""Whom more weight saves, by prediction and by trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.helping import BY_FAR, Help, Standing, beyond_help, judge
from manager.model.law import Law

LAW = Law()


def standing(ratio: float, pcpus: float = 1.0, sla_ms: float = 100.0, weight: int = 100) -> Standing:
    """An application whose response time is ``ratio`` times its SLA."""
    return Standing(math.log(ratio), pcpus, sla_ms, weight)


def hopeless(judged: Mapping[str, Help]) -> set[str]:
    return {name for name, help_app in judged.items() if help_app.hopeless}


def run(course: Sequence[Mapping[str, Standing]], law: Law = LAW, before: Mapping[str, Help] | None = None):
    """What is remembered after each interval of 5 s."""
    memory: Mapping[str, Help] = before or {}
    seen = []
    for number, standings in enumerate(course):
        memory = judge(standings, memory, law, 5.0 * number)
        seen.append(memory)
    return seen


@pytest.mark.parametrize(
    ("excess", "trust", "lost"),
    [
        ({"a": -10.0, "b": 8.0}, 1.0, set()),
        ({"a": -10.0, "b": 12.0}, 1.0, {"b"}),
        ({"a": -10.0, "b": 12.0}, 2.0, set()),
        ({"a": -10.0, "b": 8.0, "c": 4.0}, 1.0, {"b"}),  # the cheaper one first
        ({"a": 1.0, "b": 2.0}, 1.0, {"a", "b"}),
        ({"a": -1.0}, 1.0, set()),
        ({}, 1.0, set()),
    ],
)
def test_who_cannot_be_saved(excess: dict[str, float], trust: float, lost: set[str]) -> None:
    assert beyond_help(excess, {}, trust) == lost


def test_who_cannot_be_saved_stays_so_for_a_small_change() -> None:
    before = {"b": Help(hopeless=True)}
    assert beyond_help({"a": -10.0, "b": 8.0}, before, 1.0) == {"b"}
    assert beyond_help({"a": -10.0, "b": 6.0}, before, 1.0) == set()


def test_need_and_room_are_measured_to_a_margin_below_the_sla() -> None:
    """Two alike: what the one is above 80 % of its SLA, the other has to be below that."""
    assert hopeless(judge({"a": standing(0.5), "b": standing(1.05)}, {}, LAW, 0)) == set()
    assert hopeless(judge({"a": standing(0.5), "b": standing(1.2)}, {}, LAW, 0)) == {"b"}
    assert hopeless(judge({"a": standing(0.5, pcpus=3.0), "b": standing(1.2)}, {}, LAW, 0)) == set()


def test_help_in_vain_is_taken_back_and_tried_again_later_each_time() -> None:
    """By prediction the donor had room, but now that it pays the other is no better."""
    law = Law(help_intervals=4, help_cool_down_s=20, help_trust=1000)
    roomy = standing(0.5, pcpus=9.0)
    begun = {"a": standing(0.5), "b": standing(1.2, weight=200), "c": roomy}
    paying = {"a": standing(1.1, weight=50), "b": standing(1.2, weight=200), "c": roomy}
    seen = run([begun, *[paying] * 60], law)
    barred = [help_now["b"].hopeless for help_now in seen]
    assert not any(barred[:4]), "it is given time"
    first = barred.index(True)
    assert seen[first]["b"].failures == 1
    lengths = [len(part) for part in "".join("x" if one else " " for one in barred[first:]).split()]
    assert lengths[:2] == [4, 8], "20 s, then 40 s, of intervals of 5 s"


def test_who_is_helped_and_gets_better_or_costs_nothing_is_helped_on() -> None:
    law = Law(help_intervals=4, help_trust=1000)
    roomy = standing(0.5, pcpus=9.0)
    better = [
        {"a": standing(1.1 if number else 0.5, weight=50), "b": standing(3 * 0.97**number, weight=200), "c": roomy}
        for number in range(30)
    ]
    assert run(better, law)[-1]["b"].failures == 0
    free = [{"a": standing(0.9, weight=50), "b": standing(1.5, weight=200), "c": roomy}] * 30
    assert run(free, law)[-1]["b"].failures == 0


def test_failures_are_forgotten_after_as_long_again() -> None:
    before = {"b": Help(failures=2, until_s=100.0)}
    calm = {"a": standing(0.5), "b": standing(0.7)}
    assert judge(calm, before, Law(help_cool_down_s=50), 199.0)["b"].failures == 2
    assert judge(calm, before, Law(help_cool_down_s=50), 200.0)["b"].failures == 0


def test_who_was_at_ease_when_another_got_into_need_is_protected_from_it() -> None:
    calm = {"crowded": standing(0.5), "other": standing(0.6)}
    crowd = {"crowded": standing(20.0), "other": standing(0.7)}
    both = {"crowded": standing(40.0), "other": standing(1.3)}
    after = run([calm, crowd, both])[-1]
    assert hopeless(after) == {"crowded"}
    assert after["other"].protected and not after["crowded"].protected


@pytest.mark.parametrize(("times", "protected"), [(BY_FAR * 0.9, set()), (BY_FAR * 1.1, {"small"})])
def test_of_two_that_got_into_need_at_once_who_needs_far_less_is_protected(times: float, protected: set[str]) -> None:
    calm = {"small": standing(0.5), "large": standing(0.5)}
    bad = {"small": standing(1.8), "large": standing(0.8 + times)}
    after = run([calm, bad])[-1]
    assert {name for name, help_app in after.items() if help_app.protected} == protected
    assert hopeless(after) == {"small", "large"} - protected


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abcd"),
            st.builds(standing, st.floats(0.01, 100), st.floats(0, 16), st.floats(1, 10_000), st.integers(1, 10_000)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_who_is_at_ease_is_not_hopeless_but_while_it_cools_down(course) -> None:
    for number, (standings, judged) in enumerate(zip(course, run(course), strict=True)):
        assert judged.keys() == standings.keys()
        for name, help_app in judged.items():
            assert not (help_app.hopeless and help_app.protected)
            if standings[name].excess(LAW.help_margin) <= 0 and help_app.until_s <= 5.0 * number:
                assert not help_app.hopeless
