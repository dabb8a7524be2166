"""Who samples for the guard: itself, or the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.model.knobs import Knob
from tests.fakes.wait_alarm import FakeWaitAlarm
from tests.loop.conftest import Rig
from tests.loop.guarded import Guarded, booted


def test_calm_samples_of_the_kernel_are_looked_at_once_a_second(rig: Rig) -> None:
    alarm = rig.host.wait_alarm = FakeWaitAlarm(rig.host)
    guarded = Guarded(booted(rig))
    guarded.learn()
    arms, memory = alarm.arms, guarded.guard._memory
    guarded.look(*[0.02] * 100)
    assert 4 <= alarm.arms - arms <= 6
    assert guarded.guard._memory.customs["web"].samples - memory.customs["web"].samples == alarm.arms - arms
    assert guarded.guard._memory.customs["web"].usual > memory.customs["web"].usual


@pytest.mark.parametrize("waits", [(0.05, 0.05), (0.05, 0.0, 0.05, 0.0), (0.5,), (0.01, 0.039)])
def test_episodes_are_the_same_whoever_samples(tmp_path: Path, waits: tuple[float, ...]) -> None:
    """Who waits a bit in one sample is doubtful, in two is held for, and at once who waits much."""
    began: list[list[tuple[float, bool]]] = []
    for by_kernel in (False, True):
        rig = Rig(tmp_path / f"{by_kernel}")
        rig.host.wait_alarm = FakeWaitAlarm(rig.host) if by_kernel else None
        guarded = Guarded(booted(rig))
        guarded.learn()
        guarded.look(*[0.0] * 30)
        seen = []
        for wait in (*waits, *[0.0] * 10):
            guarded.look(wait)
            seen.append((rig.now_s, guarded.guard.status.holding))
        began.append(seen)
        rig.journal.close()
    assert began[0] == began[1]


def test_where_the_kernel_stands_still_the_guard_samples_for_a_while(rig: Rig) -> None:
    alarm = rig.host.wait_alarm = FakeWaitAlarm(rig.host)
    guarded = Guarded(booted(rig))
    guarded.learn()
    alarm.stands_still = True
    guarded.look(*[0.0] * 30)
    assert not alarm.armed
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}
    alarm.stands_still = False
    guarded.look(*[0.0] * 250)
    assert alarm.armed


def test_what_the_kernel_sampled_of_others_counts_for_nothing(rig: Rig) -> None:
    alarm = rig.host.wait_alarm = FakeWaitAlarm(rig.host)
    guarded = Guarded(booted(rig))
    guarded.learn()
    guarded.look(0.0)
    assert alarm.armed
    alarm.is_true = False
    guarded.guard.ticked()
    assert alarm.wakes == 1
    guarded.look(0.5)
    assert not alarm.armed
    assert guarded.values(Knob.IDLE) == {1}


def test_a_guard_that_stops_leaves_no_alarm(rig: Rig) -> None:
    alarm = rig.host.wait_alarm = FakeWaitAlarm(rig.host)
    guarded = Guarded(booted(rig))
    guarded.learn()
    assert alarm.armed
    guarded.guard.stop()
    assert not alarm.armed
