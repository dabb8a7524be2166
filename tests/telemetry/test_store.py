"""Slots: every response time is counted once, in the slot in which it ended, or counted as late or early."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manager.control.judged_windows import latest, slot_number
from manager.model.window import Ready
from manager.telemetry.store import Fate, WindowStore
from tests.telemetry.conftest import NOW_S, Clock

T = NOW_S  # a multiple of the slot length


@pytest.fixture
def clock() -> Clock:
    return Clock(T + 2)


@pytest.fixture
def store(clock: Clock) -> WindowStore:
    return WindowStore(clock)


@pytest.mark.parametrize(
    ("end_s", "fate", "start_s"),
    [
        (T + 2, Fate.TAKEN, T),
        (T + 0.001, Fate.TAKEN, T),
        (T, Fate.TAKEN, T - 5),
        (T - 5, Fate.TAKEN, T - 10),
        (T + 2.9, Fate.TAKEN, T),
        (T + 3.1, Fate.EARLY, None),
        (T - 14.9, Fate.TAKEN, T - 15),
        (T - 15, Fate.LATE, None),
        (T - 1000, Fate.LATE, None),
        (0.0, Fate.LATE, None),
    ],
    ids=["now", "just begun", "the last one of a slot", "of another", "a little ahead", "of the future", "out of order",
         "of a closed slot", "long ago", "never"],
)  # fmt: skip
def test_a_response_time_belongs_to_the_slot_it_ended_in(store, end_s, fate, start_s) -> None:
    assert store.add("shop", end_s, (1000.0,), requests=1) is fate
    assert [slot.start_s for slot in store.slots().get("shop", ())] == ([] if start_s is None else [start_s])


def test_the_newest_slot_ends_now_and_older_ones_at_their_end(store: WindowStore, clock: Clock) -> None:
    store.add("shop", T - 1, (1000.0,))
    store.add("shop", T + 1, (1000.0, 2000.0))
    assert [(slot.start_s, slot.end_s) for slot in store.recent()] == [(T - 5, T), (T, T + 2)]
    clock.now_s = T + 5.03
    assert [(slot.end_s, slot.histogram.count) for slot in store.slots()["shop"]] == [(T, 1), (T + 5, 2)]


def test_a_slot_is_closed_once_and_does_not_change_any_more(store: WindowStore, clock: Clock) -> None:
    store.add("shop", T + 1, (1000.0,), requests=1)
    clock.now_s = T + 19.9
    store.add("shop", T + 2, (1000.0,), requests=1)
    assert store.closed() == ()
    clock.now_s = T + 20
    assert store.add("shop", T + 2, (1000.0,)) is Fate.LATE
    [slot] = store.closed()
    assert (slot.application, slot.start_s, slot.end_s, slot.histogram.count, slot.requests) == ("shop", T, T + 5, 2, 2)
    assert store.closed() == ()
    assert store.recent() == ()
    assert store.slots()["shop"] == (slot,)
    clock.now_s = T + 5 + 180
    assert store.slots()["shop"] == (slot,)
    clock.now_s = T + 5 + 186
    assert store.slots() == {}


def test_what_comes_again_after_the_clock_was_set_back_is_counted_again(store: WindowStore, clock: Clock) -> None:
    store.add("shop", T + 1, (1000.0, 1000.0))
    clock.now_s = T + 21
    [slot] = store.closed()
    clock.now_s = T + 4
    assert store.add("shop", T + 3, (2000.0,)) is Fate.TAKEN
    assert [one.histogram.count for one in store.slots()["shop"]] == [1], "decided by what is new"
    clock.now_s = T + 30
    [again] = store.closed()
    assert (slot.start_s, slot.histogram.count) == (again.start_s, 2), (
        "told of before; the manager keeps the fuller one"
    )
    assert store.slots()["shop"] == (again,)


@pytest.mark.parametrize("jump_s", [-2 * 3600.0, 2 * 3600.0, -365 * 86_400.0, 365 * 86_400.0, -60.0, -17.0])
def test_wherever_the_clock_is_set_the_next_response_time_counts_alone(
    store: WindowStore, clock: Clock, jump_s: float
) -> None:
    for second in range(0, 60, 5):
        clock.now_s = T + second
        store.add("shop", clock.now_s, (1000.0,))
    before = len(store.closed())
    clock.now_s += jump_s
    assert store.add("shop", clock.now_s, (2000.0,)) is Fate.TAKEN
    newest = store.slots()["shop"][-1]
    assert (newest.end_s, newest.histogram.count) == (clock.now_s, 1)
    assert latest(store.slots()["shop"], clock.now_s, 5.0) == newest
    clock.now_s += 40
    assert before + len(store.closed()) == 13, "nothing of before is lost"


def test_a_sender_whose_clock_was_not_set_is_understood(clock: Clock) -> None:
    steady = Clock(500.0)
    store = WindowStore(clock, steady=steady)
    assert store.local_s(T + 7200) == T + 7200, "as long as this clock was not set, that of the sender is wrong"
    for jump_s in (-7200.0, 86_400.0):
        sender_s = clock.now_s
        clock.now_s += jump_s
        assert store.local_s(sender_s - 1) == clock.now_s - 1
        assert store.local_s(clock.now_s - 1) == clock.now_s - 1, "nor is one that was"
        assert store.local_s(sender_s - 3600) == sender_s - 3600, "too old either way"
        clock.now_s = sender_s


def test_a_clock_that_was_ahead_for_a_while_does_no_lasting_harm(store: WindowStore, clock: Clock) -> None:
    clock.now_s = T + 3600
    store.add("shop", T + 3600, (1000.0,))
    clock.now_s = T + 3640
    assert store.recent() == ()
    clock.now_s = T + 45
    assert store.add("shop", T + 44, (1000.0,)) is Fate.TAKEN
    assert [slot.start_s for slot in store.slots()["shop"]] == [T + 40]


def test_requests_without_times_are_spread_over_the_slots_of_their_interval(store: WindowStore, clock: Clock) -> None:
    clock.now_s = T + 6
    store.add_requests("shop", T - 4, T + 6, 100)
    assert [(slot.start_s, slot.requests) for slot in store.recent()] == [(T - 5, 40), (T, 50), (T + 5, 10)]
    store.add_requests("shop", T, T + 5, 5)
    assert [slot.requests for slot in store.recent()] == [40, 55, 10]


def test_no_requests_at_all_is_known_and_nothing_is_unknown(store: WindowStore, clock: Clock) -> None:
    store.add_requests("idle", T, T + 1, 0)
    store.add("probed", T + 1, (1000.0,))
    idle, probed = store.recent()
    assert (idle.requests, idle.rate_rps, idle.histogram.count) == (0, 0, 0)
    assert (probed.requests, probed.rate_rps, probed.histogram.count) == (None, None, 1)
    clock.now_s = T + 100
    store.add_requests("gone", T, T + 5, 7)
    assert "gone" not in store.slots()


def test_requests_of_closed_slots_are_dropped(store: WindowStore, clock: Clock) -> None:
    clock.now_s = T + 22
    store.add_requests("shop", T, T + 10, 100)
    assert [(slot.start_s, slot.requests) for slot in store.recent()] == [(T + 5, 50)]


def test_a_ready_percentile_stands_in_its_slot_the_newest_one_counting(store: WindowStore) -> None:
    store.add("shop", T + 1, ready=Ready(95, 12.0))
    store.add("shop", T + 2, ready=Ready(95, 14.0))
    [slot] = store.recent()
    assert (slot.ready, slot.requests, slot.percentile_ms(95)) == (Ready(95, 14.0), None, 14.0)


def test_another_slot_length_closes_all_slots(store: WindowStore, clock: Clock) -> None:
    store.add("shop", T + 1, (1000.0,))
    store.set_slot_length(2)
    [slot] = store.closed()
    assert (slot.start_s, slot.end_s) == (T, T + 2)
    assert store.slots() == {}
    store.add("shop", T + 2, (1000.0,))
    assert [slot.start_s for slot in store.recent()] == [T]
    store.set_slot_length(2)
    assert len(store.recent()) == 1, "the same length changes nothing"


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(-40, 5), st.integers(1, 3)), max_size=40),
    st.sampled_from([0.2, 0.3, 1.0, 5.0, 7.1]),
)
@example([(0.0, 0.0, 1), (0.125, 0.0, 1), (16.0, 0.0, 1)], 0.2)
def test_nothing_is_lost_and_nothing_counted_twice(steps: list[tuple[float, float, int]], slot_s: float) -> None:
    clock = Clock()
    store = WindowStore(clock, slot_s=slot_s)
    handed: dict[int, int] = {}
    taken = 0
    for wait_s, offset_s, count in steps:
        clock.now_s += wait_s
        end_s = clock.now_s + offset_s
        fate = store.add("shop", end_s, [1000.0] * count, requests=count)
        assert (fate is Fate.EARLY) == (offset_s > 1 and end_s > clock.now_s + 1)
        taken += count if fate is Fate.TAKEN else 0
        for slot in store.closed():
            number = slot_number(slot.end_s, slot_s)
            assert number not in handed
            assert slot.requests == slot.histogram.count
            handed[number] = slot.histogram.count
    assert sum(handed.values()) + sum(slot.histogram.count for slot in store.recent()) == taken


@given(st.integers(0, 10**10), st.sampled_from([0.2, 0.3, 0.7, 1.1, 5.0, 7.1]), st.floats(0.001, 0.999))
def test_the_window_of_a_slot_is_known_as_that_slot(number: int, slot_s: float, share: float) -> None:
    clock = Clock((number + share) * slot_s)
    store = WindowStore(clock, slot_s=slot_s)
    store.add("shop", clock.now_s, (1000.0,))
    [partial] = store.recent()
    clock.now_s = (number + 1.5) * slot_s
    [complete] = store.recent()
    assert slot_number(partial.end_s, slot_s) == slot_number(complete.end_s, slot_s)
