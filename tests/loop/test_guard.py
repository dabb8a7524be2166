"""The guard between ticks: what it writes, what ticks make of that, and what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.guard_law import LEAST_BOUND
from manager.loop.tick import ControlLoop
from manager.model.decision import Decision, IdleGoal, WeightGoal
from manager.model.host import CPU_WEIGHT_V2, Quota
from manager.model.knobs import UNLIMITED, Knob
from manager.model.law import Law
from manager.model.limits import EVERYTHING
from manager.model.records import Severity
from manager.model.traffic import AnswerCount
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig
from tests.loop.guarded import HELD_US, PERIOD_US, Guarded, booted


def test_batch_vms_are_held_at_once_and_let_go_when_nobody_waits(guarded: Guarded) -> None:
    host, rig = guarded.rig.host, guarded.rig
    before, journal = host.settings(), dict(rig.journal.entries)
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}
    assert (rig.value("stranger", Knob.IDLE), rig.value("web", Knob.IDLE)) == (0, 0)
    assert guarded.samples("holding") == 1
    guarded.look(*[0.0] * 9)
    assert host.settings() == before
    assert rig.journal.entries.keys() == journal.keys()
    assert guarded.samples("holding") == 0
    assert guarded.tick().records == (), "nothing is left to do"


def test_the_original_is_in_the_journal_before_the_write(guarded: Guarded) -> None:
    seen: list[object] = []
    write = guarded.rig.host.write

    def watched(instance, key, value):
        entry = guarded.rig.journal.entries.get(key)
        seen.append((key.knob, entry.owned.original, entry.owned.intended, value))
        return write(instance, key, value)

    guarded.rig.host.write = watched  # type: ignore[method-assign]
    guarded.look(0.5)
    assert seen == [(Knob.IDLE, 0, 1, 1)] * 2


def test_ticks_leave_what_is_held_and_give_new_batch_vms_the_same(guarded: Guarded) -> None:
    rig = guarded.rig
    guarded.look(0.5)
    writes = len(rig.host.writes)
    assert guarded.tick().records == ()
    assert len(rig.host.writes) == writes
    guarded.look(0.9)
    rig.host.boot("b3")
    rig.register("b3", "batch")
    guarded.tick()
    assert rig.value("b3", Knob.IDLE) == 1
    guarded.look(*[0.0] * 10)
    assert rig.value("b3", Knob.IDLE) == 0
    assert {rig.value(name) for name in ("b1", "b2", "b3")} == {2}, "the kernel forgot their weights"
    assert guarded.tick().records == ()


def test_one_event_tells_length_and_effect(guarded: Guarded) -> None:
    guarded.look(0.5, *[0.1 * LEAST_BOUND] * 10)
    [(severity, kind, text)] = guarded.events
    assert (severity, kind) == (Severity.INFO, "guard")
    assert "web waited 50 % of the time for a pCPU, bound 4 %, then 0 %" in text
    assert "2 batch VMs held for 0.3 s (idle class), 50 ms after the last calm sample; nobody waits any more" in text
    assert guarded.samples("episodes_total", end="calm") == 1
    assert guarded.samples("held_seconds_total") == pytest.approx(0.3, abs=0.06)
    status = guarded.guard.status
    assert (status.acts, status.holding, status.episodes, status.last) == (True, False, 1, text)


def test_late_answers_have_batch_vms_held_although_no_vcpu_waits(guarded: Guarded) -> None:
    before = guarded.rig.host.settings()
    guarded.answer(100, 5)
    assert guarded.values(Knob.IDLE) == {0}
    guarded.answer(100, 60)
    assert guarded.values(Knob.IDLE) == {1}
    for _ in range(5):
        guarded.answer(100, 2)
    assert guarded.rig.host.settings() == before
    [(severity, _, text)] = guarded.events
    assert severity is Severity.INFO
    assert "shop answered 60 % of its requests too late, its SLA allows 5 %, then 2 %: 2 batch VMs held" in text


def test_a_service_that_answers_nothing_at_all_has_batch_vms_held(guarded: Guarded) -> None:
    guarded.answered = guarded.answered._replace(asked=guarded.answered.asked + 20)
    guarded.look(*[0.0] * 4)
    assert guarded.values(Knob.IDLE) == {0}, "they may yet be answered in time"
    guarded.look(*[0.0] * 4)
    assert guarded.values(Knob.IDLE) == {1}
    asked, ended, answers, late = guarded.answered
    guarded.answered = AnswerCount(asked, ended + 20, answers + 20, late + 20)
    guarded.look(0.0, 0.0)
    for _ in range(6):
        guarded.answer(100, 0)
    assert guarded.values(Knob.IDLE) == {0}
    assert "shop answered 100 % of its requests too late" in guarded.events[0][2]


def test_late_answers_that_batch_vms_have_no_part_in_are_told_as_that(guarded: Guarded) -> None:
    for _ in range(30):
        guarded.answer(100, 60)
    [(severity, _, text)] = guarded.events
    assert severity is Severity.WARNING
    assert "it did not help, so batch VMs are not what it waits for" in text
    assert guarded.values(Knob.IDLE) == {0}


def test_what_the_idle_class_does_not_cool_a_quota_of_at_least_the_floor_does(guarded: Guarded) -> None:
    guarded.look(*[0.5] * 5)
    assert guarded.values(Knob.QUOTA) == {HELD_US}
    assert guarded.values(Knob.IDLE) == {0}
    assert guarded.values(Knob.WEIGHT) == {2}
    guarded.tick()
    assert guarded.values(Knob.QUOTA) == {HELD_US}
    guarded.look(*[0.0] * 10)
    assert guarded.values(Knob.QUOTA) == {UNLIMITED}
    guarded.look(0.5)
    assert guarded.values(Knob.QUOTA) == {HELD_US}, "what helped last comes first"


def test_where_batch_is_in_the_idle_class_anyway_the_quota_is_what_acts(guarded: Guarded) -> None:
    guarded.rig.control(batch_idle=True)
    guarded.tick()
    assert guarded.values(Knob.IDLE) == {1}
    guarded.look(0.5)
    assert guarded.values(Knob.QUOTA) == {HELD_US}
    guarded.look(*[0.0] * 10)
    assert guarded.values(Knob.QUOTA) == {UNLIMITED}
    assert guarded.values(Knob.IDLE) == {1}


def test_no_quota_is_widened(guarded: Guarded) -> None:
    """Neither one that was there before, nor a registered one."""
    rig = guarded.rig
    rig.control(batch_idle=True)
    rig.host.vms[domain_uuid("b1")].quota = Quota(1000, PERIOD_US)
    rig.assignment = replace(
        rig.assignment, vms=tuple(replace(vm, max_pcpus=0.02 if vm.name == "b2" else None) for vm in rig.assignment.vms)
    )
    guarded.tick()
    guarded.look(0.5)
    assert (rig.value("b1", Knob.QUOTA), rig.value("b2", Knob.QUOTA)) == (1000, 2000)
    assert guarded.guard.status.holding is False, "there is nothing to do"


def test_a_registered_limit_is_back_after_an_episode(guarded: Guarded) -> None:
    rig = guarded.rig
    rig.control(batch_idle=True)
    rig.assignment = replace(
        rig.assignment, vms=tuple(replace(vm, max_pcpus=1.0 if vm.name == "b2" else None) for vm in rig.assignment.vms)
    )
    guarded.tick()
    guarded.look(0.5)
    assert guarded.values(Knob.QUOTA) == {HELD_US}
    guarded.look(*[0.0] * 10)
    assert (rig.value("b1", Knob.QUOTA), rig.value("b2", Knob.QUOTA)) == (UNLIMITED, PERIOD_US)


def test_vms_with_a_registered_weight_stay_out_of_the_idle_class(guarded: Guarded) -> None:
    rig = guarded.rig
    rig.assignment = replace(
        rig.assignment, vms=tuple(replace(vm, weight=77 if vm.name == "b2" else None) for vm in rig.assignment.vms)
    )
    guarded.tick()
    guarded.look(0.5)
    assert (rig.value("b1", Knob.IDLE), rig.value("b2", Knob.IDLE)) == (1, 0)


def test_batch_vms_below_their_floor_are_let_go(guarded: Guarded) -> None:
    """They wait and get nothing: after a while the tick gives them weight, and the guard does not take that back."""
    rig = guarded.rig
    rig.control(law=Law(batch_floor=0.2, floor_window_s=1.0))
    guarded.look(0.5)
    for _ in range(3):
        for name in ("b1", "b2"):
            rig.host.vms[domain_uuid(name)].delay_ns += 10**9
        guarded.tick()
    assert not rig.loop.batch_has_floor
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {0}
    assert guarded.events[-1][2].endswith("batch VMs got less than their floor")
    guarded.look(*[0.5] * 10)
    assert guarded.values(Knob.IDLE) == {0}


def test_a_policy_that_idles_and_weighs_gets_back_what_it_planned(rig: Rig) -> None:
    class Idling:
        name, summary = "priority", "one in the idle class, one not"

        def decide(self, snapshot, memory):
            del memory, snapshot
            idle = (IdleGoal("b1", True, "why"), IdleGoal("b2", False, "why"))
            return Decision((WeightGoal("b2", 50, "why"),), idle=idle)

    rig.loop = ControlLoop(rig.host, rig.journal, {"priority": Idling()}, rig.loop.settings, rig.clock, EVERYTHING)
    guarded = Guarded(booted(rig))
    guarded.learn()
    before = rig.host.settings()
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}
    guarded.look(*[0.0] * 10)
    assert rig.host.settings() == before
    assert (rig.value("b1", Knob.IDLE), rig.value("b2", Knob.WEIGHT)) == (1, 50)


def test_on_cgroup_v2_it_is_the_same(tmp_path) -> None:
    rig = Rig(tmp_path, FakeHost(scale=CPU_WEIGHT_V2))
    guarded = Guarded(booted(rig))
    guarded.learn()
    before = rig.host.settings()
    guarded.look(*[0.5] * 5)
    assert guarded.values(Knob.QUOTA) == {HELD_US}
    guarded.look(*[0.0] * 10)
    assert rig.host.settings() == before
    rig.journal.close()
