"""Slots of other hosts where a clock was set: this one, that of the others, or the manager's."""

from __future__ import annotations

import pytest

from manager.loop.link import dated_here, remember
from manager.model.histogram import Histogram
from manager.model.window import Window

THEIRS_S = 1.8e9


def slot(end_s: float) -> Window:
    return Window("shop", end_s - 5, end_s, Histogram({500: 1}))


@pytest.mark.parametrize("ahead_s", [None, 0.0, 4.0, -7200.0, 7200.0, 31_536_000.0])
def test_slots_of_others_are_dated_by_this_clock_where_that_was_set(ahead_s: float | None) -> None:
    slots = {"shop": tuple(slot(THEIRS_S - back_s) for back_s in (10, 5, 0)), "idle": ()}
    assert dated_here(slots, THEIRS_S, ahead_s, 5.0) == slots, "this clock is theirs, whatever the manager's is"
    here_s = THEIRS_S + (ahead_s or 0.0)
    assert 0 <= here_s - dated_here(slots, here_s, ahead_s, 5.0)["shop"][-1].end_s < 5


@pytest.mark.parametrize("back_s", [7200.0, 40.0])
def test_slots_of_a_clock_that_was_ahead_do_not_hide_those_that_come(back_s: float) -> None:
    known = {"shop": (slot(THEIRS_S), slot(THEIRS_S + 5))}
    fresh = slot(THEIRS_S - back_s)
    assert remember(known, {"shop": (fresh,)}, 5.0)["shop"][-1] == fresh
