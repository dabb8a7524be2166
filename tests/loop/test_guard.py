"""The guard between ticks: what it writes, what ticks make of that, and what comes back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manager.control.guard_law import LEARNT_SAMPLES, LEAST_BOUND
from manager.errors import JournalError
from manager.loop import guard as guard_module
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.guard import Guard, GuardSettings, GuardUse
from manager.loop.tick import ControlLoop, TickResult
from manager.model.decision import Decision, IdleGoal, WeightGoal
from manager.model.host import CPU_WEIGHT_V2, Quota
from manager.model.knob_spec import Control
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.model.law import Law
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Mode
from manager.model.traffic import AnswerCount, Answered, JudgedService
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid
from tests.fakes.wait_alarm import FakeWaitAlarm
from tests.loop.conftest import Rig

STEP_S = 0.05
SHOP = JudgedService("shop", (1, 80), 0.05, 0.25)
NOTHING = AnswerCount(0, 0, 0, 0)
PERIOD_US = 100_000
HELD_US = round(0.01 * 1.5 * 4 / 2 * PERIOD_US)
"""What two batch VMs have of four pCPUs by a quota: their floor of 1 %, and half as much again."""


@dataclass
class Guarded:
    """A guard beside a rig's loop, whose samples are taken when told."""

    rig: Rig
    use: GuardUse = GuardUse.ON
    events: list[tuple[Severity, str, str]] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)
    answered: AnswerCount = field(default=NOTHING)

    def __post_init__(self) -> None:
        self.metrics = AgentMetrics()
        self.start()

    def start(self) -> None:
        self.guard = Guard(
            self.rig.loop,
            GuardSettings(self.use, STEP_S),
            threading.RLock(),
            say=lambda *event: self.events.append(event),
            crashed=lambda _what, error: self.crashes.append(error),
            metrics=self.metrics,
            answered=self.answers,
        )

    def answers(self) -> Answered:
        return Answered((SHOP,), [self.answered])

    def tick(self) -> TickResult:
        """A tick, a second after the last, and a sample: none was taken meanwhile."""
        result = self.rig.tick()
        self.guard.ticked()
        self.sample()
        return result

    def sample(self) -> None:
        """The guard takes one, or the kernel does and it looks at that."""
        alarm = self.rig.host.wait_alarm
        rings = False
        if isinstance(alarm, FakeWaitAlarm):
            alarm.sample(self.rig.now_s)
            rings = alarm.rings
        self.guard.look(rings)

    def look(self, *waits: float, vm: str = "web") -> None:
        """Samples in which a VM's vCPUs wait so much of the time."""
        for wait in waits:
            self.rig.now_s += STEP_S
            if domain_uuid(vm) in self.rig.host.vms:
                self.rig.host.vms[domain_uuid(vm)].delay_ns += round(wait * STEP_S * 1e9)
            self.sample()

    def answer(self, answers: int, late: int) -> None:
        """The application answers so many, and so many of them late; two samples later that is known."""
        asked, ended, before, late_before = self.answered
        self.answered = AnswerCount(asked + answers, ended + answers, before + answers, late_before + late)
        self.look(0.0, 0.0)

    def learn(self) -> None:
        self.tick()
        self.look(*[0.0] * (LEARNT_SAMPLES + 1))

    def samples(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"equipoise_agent_guard_{name}", labels)

    def values(self, knob: Knob) -> set[object]:
        return {self.rig.value(name, knob) for name in ("b1", "b2")}


def booted(rig: Rig) -> Rig:
    for name in ("web", "b1", "b2", "stranger"):
        rig.host.boot(name)
    rig.register("web")
    rig.register("b1", "batch")
    rig.register("b2", "batch")
    return rig


@pytest.fixture(params=["by the guard", "waits by the kernel", "by the kernel"])
def guarded(rig: Rig, request: pytest.FixtureRequest) -> Guarded:
    """A critical VM that is known to be calm, two batch VMs, and one of somebody else; who samples."""
    alarm = FakeWaitAlarm(rig.host)
    if request.param != "by the guard":
        rig.host.wait_alarm = alarm
    made = Guarded(booted(rig))
    if request.param == "by the kernel":
        alarm.answering = made.answers
    made.learn()
    return made


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
    for _ in range(200):
        if guarded.crashes:
            break
        threading.Event().wait(0.02)
    guarded.guard.stop()
    assert isinstance(guarded.crashes[0], ZeroDivisionError)
    assert guarded.values(Knob.IDLE) == {0}


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
    end_s = time.monotonic() + 20
    while len(guarded.crashes) < 4:  # two of the first look
        assert time.monotonic() < end_s
        time.sleep(0.005)
    monkeypatch.undo()
    guarded.guard.stop()
