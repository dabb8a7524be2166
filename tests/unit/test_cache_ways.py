"""How the ways of an application follow its response times, on a cache of which the curve is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.ways import LONGEST_RETRY_S, RETRY_S, Wait, WaysMemory, WaysSeen, next_ways

SLA_MS = 10.0
INTERVAL_S = 5.0
LEAST, MOST = 2, 18


def seen(now_s: float, percentile_ms: float | None, most: int = MOST) -> WaysSeen:
    return WaysSeen(now_s, percentile_ms, SLA_MS, LEAST, most)


def run(
    ways: int, percentile_ms: Callable[[int, float], float | None], hours: float = 1.0
) -> list[tuple[float, int, str]]:
    """Time, ways and reason of every change."""
    memory, changes = WaysMemory(ways), []
    for step in range(int(hours * 3600 / INTERVAL_S)):
        now_s = step * INTERVAL_S
        after, why = next_ways(memory, seen(now_s, percentile_ms(memory.ways, now_s)))
        assert LEAST <= after.ways <= MOST
        assert bool(why) == (after.ways != memory.ways)
        if why:
            changes.append((now_s, after.ways, why))
        memory = after
    return changes


def knee(at: int, fast_ms: float = 8.0, slow_ms: float = 4.0) -> Callable[[int, float], float]:
    """``fast_ms`` from ``at`` ways on, so much slower for each way that is missing."""
    return lambda ways, now_s: fast_ms + slow_ms * max(at - ways, 0)


def test_it_grows_until_the_promise_is_kept_and_then_rests() -> None:
    changes = run(4, knee(9))
    assert [ways for _, ways, _ in changes] == [5, 6, 7, 8, 10]
    assert changes[0][2] == "28 ms, target 10 ms"
    assert changes[-1][0] < 300


def test_ways_that_do_not_help_are_given_back_and_tried_ever_more_rarely() -> None:
    changes = run(4, lambda ways, now_s: 50.0, hours=6)
    assert [ways for _, ways, _ in changes[:8]] == [5, 6, 8, 12, 18, 4, 5, 6]
    assert changes[1][2] == "not enough: 50 ms with 4 ways, 50 ms with 5"
    assert changes[5][2] == "more ways did not help: 50 ms with 4 ways, 50 ms with 18"
    tries = [time_s for time_s, _, reason in changes if reason == "50 ms, target 10 ms"]
    assert changes[-1][1] == LEAST, "and no more are kept than are of use"
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= RETRY_S
    assert gaps[-1] >= LONGEST_RETRY_S
    assert len(tries) < 15


def test_a_working_set_that_helps_only_when_it_fits_is_found() -> None:
    changes = run(4, lambda ways, now_s: 8.0 if ways >= 11 else 30.0, hours=2)
    assert [ways for _, ways, _ in changes] == [5, 6, 8, 12]


def test_what_helped_but_not_enough_is_looked_at_again_and_stays_if_it_was_the_ways() -> None:
    changes = run(4, lambda ways, now_s: 40.0 - ways, hours=6)
    again = next(number for number, change in enumerate(changes) if change[2].startswith("whether ways help"))
    before, first, second = (ways for _, ways, _ in changes[again - 1 : again + 2])
    assert first == 4
    assert second == before
    assert changes[again + 1][2].startswith("fewer ways hurt")
    assert changes[-1][1] == before


def test_what_seemed_to_help_and_does_not_is_given_back_though_the_promise_is_not_kept() -> None:
    """Something else became better in the trial."""
    changes = run(4, lambda ways, now_s: 50.0 if now_s < 30 else 40.0, hours=6)
    assert changes[1][2].startswith("40 ms")
    again = next(number for number, change in enumerate(changes) if change[2].startswith("whether ways help"))
    assert changes[again][1] == 4
    assert "fewer ways hurt" not in {reason.split(":")[0] for _, _, reason in changes}


def test_while_something_else_is_tried_no_trial_begins_but_one_that_runs_ends() -> None:
    memory, why = next_ways(WaysMemory(5, (20.0,) * 4), replace(seen(100, 20.0), busy=True))
    assert (memory.ways, memory.times_ms, why) == (5, (), "")
    memory, _ = next_ways(WaysMemory(5, (20.0,) * 4, (4, 40.0)), replace(seen(100, 20.0), busy=True))
    assert memory.before is None


def test_with_slack_it_gives_ways_back_as_long_as_that_does_not_hurt() -> None:
    changes = run(12, knee(5, fast_ms=4.0, slow_ms=6.0), hours=8)
    lowest = [ways for _, ways, _ in changes]
    assert lowest[:9] == [11, 10, 9, 8, 7, 6, 5, 4, 5]
    assert changes[8][2] == "fewer ways hurt: 4 ms with 5 ways, 10 ms with 4"
    assert set(lowest[9:]) <= {4, 5}
    assert sum(ways == 4 for ways in lowest) <= 13, "and is not tried again and again"


def test_between_slack_and_miss_nothing_changes() -> None:
    assert run(6, lambda ways, now_s: 8.0) == []


def test_without_response_times_nothing_changes_and_no_trial_is_judged() -> None:
    assert run(6, lambda ways, now_s: None) == []
    changes = run(6, lambda ways, now_s: 50.0 if now_s < 40 else None)
    assert [ways for _, ways, _ in changes] == [7]


def test_the_bounds_of_the_cache_come_first() -> None:
    memory, why = next_ways(WaysMemory(12, before=(10, 50.0), times_ms=(1.0,) * 4), seen(0, 5.0, most=8))
    assert (memory.ways, memory.before, memory.times_ms) == (8, None, ())
    assert why == "the cache has 2 to 8 ways for it"
    assert run(18, lambda ways, now_s: 50.0) == [], "there is no more to have"


def test_a_trial_that_helps_makes_the_wait_short_again() -> None:
    memory = WaysMemory(5, (20.0,) * 4, (4, 40.0), grow=Wait(0.0, 960.0))
    memory, _ = next_ways(memory, seen(100, 20.0))
    assert memory.grow == Wait()


def test_what_is_measured_right_after_a_change_does_not_count() -> None:
    memory = WaysMemory(5, (), (4, 40.0), changed_s=100)
    after, _ = next_ways(memory, seen(105, 400.0))
    assert after.times_ms == ()
    after, _ = next_ways(memory, seen(110, 400.0))
    assert after.times_ms == (400.0,)


def test_what_a_shrinking_left_was_too_little_makes_the_next_wait_longer() -> None:
    memory = WaysMemory(5, (20.0,) * 4, shrink=Wait(0.0, 240.0), shrunk=True)
    memory, _ = next_ways(memory, seen(1000, 20.0))
    assert memory.ways == 6
    assert memory.shrink == Wait(1240.0, 480.0)


def test_growing_step_by_step_leaves_the_wait_of_shrinking_as_it_was() -> None:
    """A spike over, the ways go back to batch at once."""
    changes = run(4, lambda ways, now_s: knee(12, slow_ms=3)(ways, now_s) if now_s < 600 else 3.0)
    later = [(time_s, ways) for time_s, ways, _ in changes if time_s >= 600]
    assert later[0][0] < 700
    assert later[-1][1] == LEAST


@settings(max_examples=15, deadline=None)
@given(st.integers(LEAST, MOST), st.integers(LEAST, MOST), st.floats(2, 9.5), st.floats(0, 20), st.integers(0, 1000))
def test_it_never_oscillates_under_constant_load(
    start: int, at: int, fast_ms: float, slow_ms: float, seed: int
) -> None:
    """With noise of 10 %, and whatever the cache does: in the last of six hours there are few changes."""
    noise = random.Random(seed)
    curve = knee(at, fast_ms, slow_ms)
    changes = run(start, lambda ways, now_s: curve(ways, now_s) * noise.uniform(0.9, 1.1), hours=6)
    assert len([time_s for time_s, _, _ in changes if time_s > 5 * 3600]) <= 12, "a trial of all sizes, now and then"
