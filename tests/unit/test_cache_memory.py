"""What is known of an ``auto`` outlives the agent, and rubbish in its place is as if nothing were known."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.cache_demand import JudgedWays, judged_text, read_judged
from manager.control.ways import LONGEST_RETRY_S, SETTLE_S, Wait, WaysMemory, WaysSeen, next_ways

NOW_S = 1e9
TRIED = WaysMemory(6, (90.0, 95.0), (5, 120.0), NOW_S - 20, NOW_S - 5, Wait(NOW_S + 60, 240.0), Wait(NOW_S - 9, 480.0))
TOLD = json.loads(judged_text({"shop": JudgedWays(TRIED)}))["shop"]

times = st.floats(0, NOW_S)
waits = st.builds(Wait, times, st.floats(0, LONGEST_RETRY_S))
memories = st.builds(
    WaysMemory,
    st.integers(1, 64),
    before=st.none() | st.tuples(st.integers(1, 64), st.floats(0, 1e6)),
    changed_s=times | st.just(-math.inf),
    grow=waits,
    shrink=waits,
    base=st.none() | st.integers(1, 64),
    shrunk=st.booleans(),
)


@given(st.dictionaries(st.text(), memories.map(JudgedWays), max_size=4))
def test_what_was_told_is_read(judged: dict[str, JudgedWays]) -> None:
    assert read_judged(judged_text(judged), NOW_S) == judged


def test_all_else_that_there_is_is_told() -> None:
    assert {one.name for one in fields(WaysMemory)} == {*TOLD, "times_ms", "calm_s"}


def test_response_times_are_measured_anew() -> None:
    """So nothing is written from one tick to the next while no trial begins or ends."""
    measured = replace(TRIED, times_ms=(1.0,), calm_s=3.0)
    assert judged_text({"shop": JudgedWays(measured, 7.0)}) == judged_text({"shop": JudgedWays(TRIED)})
    assert read_judged(judged_text({"shop": JudgedWays(TRIED)}), NOW_S)["shop"].memory == replace(
        TRIED, times_ms=(), calm_s=None
    )
    assert judged_text({}) == ""
    assert read_judged("", NOW_S) == {}


@pytest.mark.parametrize("now_s", [0.0, NOW_S - 86400])
def test_a_clock_that_was_ahead_makes_nobody_wait_for_ever(now_s: float) -> None:
    memory = read_judged(judged_text({"shop": JudgedWays(TRIED)}), now_s)["shop"].memory
    assert memory.changed_s <= now_s
    assert memory.grow.until_s <= now_s + LONGEST_RETRY_S


@pytest.mark.parametrize(
    "rubbish",
    [
        {"ways": 0},
        {"ways": 10**30},
        {"ways": "6"},
        {"ways": math.nan},
        {"grow": [math.inf, 1.0]},
        {"shrink": [math.nan, 1.0]},
        {"grow": 3},
        {"before": [5]},
        {"before": [5, -1.0]},
        {"before": [5, 10**400]},
        {"changed_s": [1]},
        {"base": 0},
    ],
)
def test_an_application_of_which_rubbish_is_told_is_not_known(rubbish: dict[str, object]) -> None:
    text = json.dumps({"shop": TOLD | rubbish, "mail": TOLD})
    assert read_judged(text, NOW_S).keys() == {"mail"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*TOLD, "x"]), inner),
    max_leaves=12,
)


@given(st.text() | json_values.map(json.dumps) | json_values.map(lambda value: json.dumps({"shop": value})))
def test_whatever_is_read_can_be_gone_on_from(text: str) -> None:
    for judged in read_judged(text, NOW_S).values():
        seen = WaysSeen(NOW_S + SETTLE_S, 50.0, 100.0, 1, 16)
        memory, _ = next_ways(judged.memory, seen)
        assert 1 <= memory.ways <= 16
