"""The guard where it must not act, where it is killed, and where others act, too."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from manager.errors import JournalError
from manager.loop import guard as guard_module
from manager.loop.guard import GuardUse
from manager.loop.tick import ControlLoop
from manager.model.knob_spec import Control
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Mode
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig
from tests.loop.guarded import HELD_US, PERIOD_US, Guarded, booted


@pytest.mark.parametrize("where", ["setting", "host", "vms"])
def test_observe_writes_nothing_and_says_what_would_have_been_done(rig: Rig, where: str) -> None:
    guarded = Guarded(booted(rig), GuardUse.OBSERVE if where == "setting" else GuardUse.ON)
    if where == "host":
        rig.control(mode=Mode.OBSERVE)
    if where == "vms":
        vms = (replace(vm, mode=Mode.OBSERVE if vm.name != "web" else None) for vm in rig.assignment.vms)
        rig.assignment = replace(rig.assignment, vms=tuple(vms))
    guarded.learn()
    writes, journal = len(rig.host.writes), dict(rig.journal.entries)
    guarded.look(*[0.5] * 6)
    guarded.tick()
    guarded.look(*[0.0] * 10)
    assert (len(rig.host.writes), dict(rig.journal.entries)) == (writes, journal)
    [(_, _, text)] = guarded.events
    assert "2 batch VMs would have been held (idle class)" in text
    assert guarded.samples("episodes_total", end="observed") == 1
    assert guarded.samples("held_seconds_total") == 0


def test_a_vm_in_observe_is_not_written_while_another_is_held(guarded: Guarded) -> None:
    rig = guarded.rig
    vms = (replace(vm, mode=Mode.OBSERVE if vm.name == "b2" else None) for vm in rig.assignment.vms)
    rig.assignment = replace(rig.assignment, vms=tuple(vms))
    guarded.tick()
    guarded.look(0.5)
    guarded.tick()
    assert (rig.value("b1", Knob.IDLE), rig.value("b2", Knob.IDLE)) == (1, 0)


def test_a_released_host_is_left_alone_and_an_episode_ends_with_the_release(guarded: Guarded) -> None:
    rig = guarded.rig
    guarded.look(0.5)
    rig.control(mode=Mode.RELEASED)
    guarded.tick()
    assert guarded.values(Knob.IDLE) == {0}
    assert not rig.journal.entries
    guarded.look(*[0.5] * 10)
    assert guarded.values(Knob.IDLE) == {0}
    assert not rig.journal.entries
    assert len(guarded.events) == 1
    assert "there is nothing left to hold or to protect" in guarded.events[0][2]


@pytest.mark.parametrize(
    ("denied", "idle", "quota_us"),
    [({Control.IDLE}, 0, HELD_US), ({Control.IDLE, Control.QUOTA}, 0, UNLIMITED), (set(), 1, UNLIMITED)],
)
def test_what_the_agent_must_not_do_is_not_done(rig: Rig, denied: set[Control], idle: int, quota_us: int) -> None:
    limits = replace(EVERYTHING, allowed=EVERYTHING.allowed - denied)
    rig.loop = ControlLoop(rig.host, rig.journal, rig.loop._planner._policies, rig.loop.settings, rig.clock, limits)
    guarded = Guarded(booted(rig))
    guarded.learn()
    guarded.look(0.5)
    assert (guarded.values(Knob.IDLE), guarded.values(Knob.QUOTA)) == ({idle}, {quota_us})


def test_quotas_are_not_below_what_the_agent_limits_vms_to(rig: Rig) -> None:
    limits = replace(EVERYTHING, allowed=EVERYTHING.allowed - {Control.IDLE}, min_pcpus=0.1)
    rig.loop = ControlLoop(rig.host, rig.journal, rig.loop._planner._policies, rig.loop.settings, rig.clock, limits)
    guarded = Guarded(booted(rig))
    guarded.learn()
    guarded.look(0.5)
    assert guarded.values(Knob.QUOTA) == {PERIOD_US // 10}


def test_after_kill_9_in_an_episode_the_next_start_puts_back(guarded: Guarded) -> None:
    rig = guarded.rig
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}
    rig.crash()
    guarded.start()
    guarded.tick()
    assert guarded.values(Knob.IDLE) == {0}
    assert guarded.values(Knob.WEIGHT) == {2}
    guarded.tick()
    assert {entry.owned.external for entry in rig.journal.entries.values()} == {False}
    rig.loop.release("test")
    assert guarded.values(Knob.WEIGHT) == {1024}


def test_after_kill_9_between_journal_and_write_nothing_counts_as_anothers_change(guarded: Guarded) -> None:
    rig = guarded.rig

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    rig.host.write = killed  # type: ignore[method-assign, assignment]
    with pytest.raises(Killed):
        guarded.look(0.5)
    del rig.host.write
    rig.crash()
    guarded.start()
    assert OutcomeKind.EXTERNAL not in {outcome.kind for outcome in guarded.tick().outcomes}
    guarded.tick()
    assert Knob.IDLE not in {key.knob for key in rig.journal.entries}


def test_an_agent_that_stops_in_an_episode_restores_everything(rig: Rig) -> None:
    before = booted(rig).host.settings()
    guarded = Guarded(rig)
    guarded.learn()
    guarded.look(0.5)
    rig.loop.release("agent stopped")
    assert rig.host.settings() == before
    assert not rig.journal.entries


def test_what_another_tool_changed_is_left_alone_and_told_by_the_tick(guarded: Guarded) -> None:
    rig = guarded.rig
    guarded.look(0.5)
    rig.host.change(KnobKey(domain_uuid("b1"), Knob.IDLE), 0)
    rig.host.change(KnobKey(domain_uuid("b1"), Knob.WEIGHT), 555)
    writes = len(rig.host.writes)
    guarded.look(*[0.0] * 10)
    assert all(key.uuid == domain_uuid("b2") for key, _ in rig.host.writes[writes:])
    result = guarded.tick()
    assert "external-change" in {event.kind for event in result.events}
    assert rig.value("b1") == 555


def test_vms_that_vanish_in_an_episode_are_normal(guarded: Guarded) -> None:
    guarded.look(0.5)
    guarded.rig.host.vanish("b1")
    guarded.look(0.5, *[0.0] * 10)
    assert guarded.rig.value("b2", Knob.IDLE) == 0
    guarded.rig.host.vanish("web")
    guarded.look(0.5, 0.5)
    guarded.rig.host.stop("b1")
    guarded.rig.host.stop("web")
    guarded.tick()
    guarded.look(0.5)
    assert guarded.crashes == []


def test_what_is_known_of_a_vm_stays_when_another_comes_or_goes(guarded: Guarded) -> None:
    guarded.rig.host.boot("web-2")
    guarded.rig.register("web-2")
    guarded.tick()
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}
    guarded.look(*[0.0] * 10)
    guarded.rig.host.stop("web-2")
    guarded.tick()
    guarded.look(0.5)
    assert guarded.values(Knob.IDLE) == {1}


def test_a_vcpu_that_was_plugged_is_not_compared_with_nothing(guarded: Guarded) -> None:
    guarded.rig.host.vms[domain_uuid("web")].delay_ns = 10**12
    guarded.look(0.0)
    guarded.look(*[0.0] * 20)
    episodes = len(guarded.events)
    guarded.rig.host.plug_vcpu("web")
    guarded.look(0.0)
    assert len(guarded.events) == episodes
    assert guarded.guard.status.holding is False


def test_without_a_journal_nothing_is_held_and_that_is_told(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise JournalError("the disk is full")

    monkeypatch.setattr(guarded.rig.journal, "update", full)
    writes = len(guarded.rig.host.writes)
    guarded.look(0.5, *[0.0] * 10)
    assert len(guarded.rig.host.writes) == writes
    [(severity, _, text)] = guarded.events
    assert severity is Severity.WARNING
    assert "idle: failed the disk is full" in text


def test_a_mistake_lets_go(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.look(0.5)
    monkeypatch.setattr(guarded.rig.host, "waits", lambda _instances: 1 / 0)
    guarded.guard.start()
    end_s = time.monotonic() + 120
    while not guarded.crashes:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    guarded.guard.stop()
    assert isinstance(guarded.crashes[0], ZeroDivisionError)
    assert guarded.values(Knob.IDLE) == {0}


def test_a_plugged_vcpu_does_not_have_what_is_too_long_become_usual(rig: Rig) -> None:
    guarded = Guarded(booted(rig))
    guarded.learn()
    web = rig.host.vms[domain_uuid("web")]
    web.vcpus.append(web.vcpus[0])
    guarded.tick()
    guarded.look(0.0, 0.25)
    assert guarded.values(Knob.IDLE) == {1}


def test_a_mistake_that_lasts_does_not_end_the_guard(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(booted(rig))
    guarded.learn()

    def broken(*_args: object) -> None:
        raise RuntimeError("a mistake of ours")

    for name in ("look", "let_go"):
        monkeypatch.setattr(guarded.guard, name, broken)
    monkeypatch.setattr(guard_module, "_AFTER_MISTAKE_S", 0.01)
    guarded.guard.start()
    end_s = time.monotonic() + 120
    while len(guarded.crashes) < 4:  # two of the first look
        assert time.monotonic() < end_s
        time.sleep(0.005)
    monkeypatch.undo()
    guarded.guard.stop()
