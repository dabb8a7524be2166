"""How soon it shows that an application answers too many requests late, and how seldom by chance."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.late_answers import ENOUGH, MULTIPLE, LateShare, SeenAnswers, added_up, shares, worst_of
from manager.model.traffic import AnswerCount, Answered, JudgedService

LOOK_S = 0.1
LATE_S = 0.25
SHOP = JudgedService("shop", (1, 80), 0.05, LATE_S)


def shop(answers: int, share: float, allowed: float = 0.05, name: str = "shop") -> LateShare:
    return LateShare(name, answers, share, allowed)


def of(*counted: tuple[tuple[int, int], str, int, int]) -> Answered:
    """Place, application, answers, and the late ones among them: all that was asked is answered."""
    services = tuple(JudgedService(application, place, 0.05, LATE_S) for place, application, _, _ in counted)
    return Answered(services, [AnswerCount(answers, answers, answers, late) for _, _, answers, late in counted])


def since(before: Answered, now: Answered, watched: Collection[str] = ()) -> tuple[LateShare, ...]:
    return shares(SeenAnswers(0.0, before).followed(now, LOOK_S).new, watched)


A, B = (1, 80), (2, 80)


@pytest.mark.parametrize(
    ("before", "now", "seen"),
    [
        (of(), of((A, "shop", 1000, 900)), []),
        (of((A, "shop", 1000, 900)), of(), []),
        (of((A, "shop", 10, 1)), of((A, "shop", 10, 1)), []),
        (of((A, "shop", 10, 1)), of((A, "shop", 14, 2)), [("shop", 4, 0.25)]),
        (of((A, "shop", 10, 1)), of((A, "bank", 14, 2)), []),
        (of((A, "shop", 10, 1)), of((A, "shop", 3, 2)), []),
        (of((A, "shop", 0, 0), (B, "shop", 0, 0)), of((A, "shop", 6, 0), (B, "shop", 4, 5)), [("shop", 10, 0.5)]),
        (of((A, "shop", 0, 0)), of((B, "shop", 99, 9), (A, "shop", 4, 1)), [("shop", 4, 0.25)]),
        (of((A, "shop", 0, 0), (B, "bank", 0, 0)), of((A, "shop", 4, 0), (B, "bank", 4, 4)), [("bank", 4, 1.0)]),
    ],
    ids=["new", "gone", "silent", "answered", "another's", "counted anew", "two VMs", "one new", "one in time"],
)
def test_what_was_answered_between_two_looks(
    before: Answered, now: Answered, seen: list[tuple[str, int, float]]
) -> None:
    assert [(share.application, share.answers, share.share) for share in since(before, now)] == seen


def test_of_watched_applications_answers_in_time_are_told_too() -> None:
    [share] = since(of((A, "shop", 0, 0)), of((A, "shop", 4, 0)), {"shop", "bank"})
    assert (share.answers, share.share, share.allowed) == (4, 0.0, 0.05)


def looks(*counts: tuple[int, int, int]) -> list[tuple[int, int]]:
    """What is new of a service at each look: asked, ended, and late so often."""
    look, told = SeenAnswers(0.0, Answered((SHOP,), [AnswerCount(0, 0, 0, 0)])), []
    for asked, ended, late in counts:
        count = AnswerCount(asked, ended, ended, late)
        look = look.followed(Answered((SHOP,), [count]), look.at_s + LOOK_S)
        told.append(look.new.get(SHOP, (0, 0)))
    return told


@pytest.mark.parametrize(
    ("counts", "new"),
    [
        ([(5, 0, 0)] * 4, [(0, 0), (0, 0), (0, 0), (5, 5)]),
        ([(5, 0, 0)] * 4 + [(5, 5, 5)], [(0, 0), (0, 0), (0, 0), (5, 5), (0, 0)]),
        ([(5, 0, 0)] * 3 + [(5, 5, 5)], [(0, 0), (0, 0), (0, 0), (5, 5)]),
        ([(5, 0, 0)] * 4 + [(9, 6, 6)], [(0, 0), (0, 0), (0, 0), (5, 5), (1, 1)]),
        ([(5, 0, 0)] * 4 + [(5, 2, 2), (5, 5, 5)], [(0, 0), (0, 0), (0, 0), (5, 5), (0, 0), (0, 0)]),
        ([(5, 0, 0)] * 4 + [(7, 5, 5)] + [(7, 5, 5)] * 4, [(0, 0)] * 3 + [(5, 5)] + [(0, 0)] * 5),
        ([(5, 0, 0), (9, 0, 0)] + [(9, 0, 0)] * 6, [(0, 0)] * 3 + [(5, 5)] + [(0, 0)] * 2 + [(4, 4), (0, 0)]),
        ([(5, 4, 0)] + [(5, 4, 0)] * 8, [(4, 0)] + [(0, 0)] * 8),
    ],
    ids=[
        "nothing is answered",
        "what was known to wait is answered",
        "answered before that is known",
        "and another",
        "one by one",
        "two came with the answer",
        "more came",
        "it waits for ever beside those that are answered",
    ],
)
def test_requests_of_a_service_that_answers_nothing_are_late_once_they_have_waited_too_long(
    counts: list[tuple[int, int, int]], new: list[tuple[int, int]]
) -> None:
    assert looks(*counts) == new


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60), st.integers(0, 12))
def test_no_request_is_late_twice_and_none_that_is_answered_in_time(
    script: list[tuple[int, bool]], stalls: int
) -> None:
    """A service that answers all that waits in some looks and nothing in others, and stands still at the end."""
    waiting: deque[float] = deque()
    look = SeenAnswers(0.0, Answered((SHOP,), [AnswerCount(0, 0, 0, 0)]))
    asked = ended = late = told = 0
    for come, answers in [*script, *[(0, False)] * stalls]:
        now_s = look.at_s + LOOK_S
        while answers and waiting:
            late += now_s - waiting.popleft() > LATE_S
            ended += 1
        waiting.extend([now_s] * come)
        asked += come
        look = look.followed(Answered((SHOP,), [AnswerCount(asked, ended, ended, late)]), now_s)
        told += look.new.get(SHOP, (0, 0))[1]
        too_long = sum(look.at_s - came_s > LATE_S for came_s in waiting)
        assert told <= late + too_long
    if stalls * LOOK_S > 2 * (LATE_S + LOOK_S):
        assert told >= late


@pytest.mark.parametrize(
    ("rate_rps", "share", "most_s"),
    [(2000, 0.5, 0.1), (2000, 0.15, 0.3), (200, 1.0, 0.1), (200, 0.3, 0.4), (10, 1.0, 1.4), (10, 0.3, 6.2)],
)
def test_how_long_it_takes(rate_rps: int, share: float, most_s: float) -> None:
    sums, took_s, answered, late = {}, 0.0, 0.0, 0.0
    worst = None
    while worst is None:
        took_s += LOOK_S
        answers, answered = divmod(answered + rate_rps * LOOK_S, 1)
        late += answers * share
        counted, late = divmod(late, 1)
        sums, worst = added_up(sums, (shop(int(answers), counted / answers),) if answers else ())
        assert took_s <= most_s + 1e-9


@pytest.mark.parametrize("rate_rps", [10, 100, 2000])
def test_what_the_sla_allows_is_no_trouble_in_an_hour(rate_rps: int) -> None:
    """Each answer is late by its own chance."""
    chance, sums = random.Random(rate_rps), {}
    for _ in range(round(3600 / LOOK_S) if rate_rps < 2000 else 3000):
        answers = max(round(rate_rps * LOOK_S), 1)
        late = sum(chance.random() < 0.05 for _ in range(answers))
        sums, worst = added_up(sums, (shop(answers, late / answers),))
        assert worst is None


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1), st.sampled_from([0.01, 0.05, 0.5])), max_size=50))
def test_sums_stay_in_their_bounds_and_nobody_within_the_multiple_is_told(
    looks: list[tuple[int, float, float]],
) -> None:
    sums = {}
    for answers, share, allowed in looks:
        sums, worst = added_up(sums, (shop(answers, share, allowed),))
        assert all(0 < total <= ENOUGH for total in sums.values())
        assert worst is None or worst.share > MULTIPLE * worst.allowed


def test_the_worst_is_who_is_furthest_from_what_is_allowed() -> None:
    far, near = shop(10, 0.9, name="far"), shop(1000, 0.8, name="near")
    assert worst_of([near, far]) == far
    assert worst_of([shop(10, 0.1)]) is None
    _, worst = added_up({"near": ENOUGH}, (far, near))
    assert worst == near, "of the other it is not certain"
