"""When strangers give reason to look for VMs anew."""

from __future__ import annotations

from manager.telemetry.trust import LONGEST_S, MOST, Strangers


def test_one_stranger_gives_reason_once_a_minute() -> None:
    strangers = Strangers()
    assert [now_s for now_s in range(130) if strangers.should_look("a", float(now_s))] == [0, 60, 120]


def test_a_flood_of_strangers_has_all_looked_for_more_and_more_rarely() -> None:
    strangers = Strangers()
    looked = [now_s for now_s in range(500) if strangers.should_look(str(now_s), float(now_s))]
    assert looked == [0, 5, 15, 35, 75, 155, 235, 315, 395, 475]
    quiet_s = looked[-1] + 2 * LONGEST_S + 1
    assert strangers.should_look("x", quiet_s) and strangers.should_look("y", quiet_s + 5)


def test_no_more_strangers_are_remembered_than_a_bound() -> None:
    strangers = Strangers()
    for number in range(2 * MOST):
        strangers.should_look(str(number), number * 1000.0)
    assert len(strangers._seen) == MOST
