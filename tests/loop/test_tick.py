"""Ticks on a fake host: what is written, what is left alone, what is undone, what is told."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace

import pytest

from manager.errors import JournalError
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.decision import Decision, WeightGoal
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Application, Mode, Tier
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig


def kinds(result) -> list[str]:
    return [str(record.outcome) for record in result.records]


def event_kinds(result) -> list[str]:
    return [event.kind for event in result.events]


def test_priority_sets_weights_and_pins_and_touches_nobody_else(rig: Rig) -> None:
    for name in ("web", "batch", "stranger"):
        rig.host.boot(name)
    rig.register("web")
    rig.register("batch", "batch")
    before = rig.host.settings()
    result = rig.tick()
    assert (rig.value("web"), rig.value("batch"), rig.value("stranger")) == (10_000, 2, 1024)
    assert rig.value("web", Knob.VCPU_PIN) == frozenset({0})
    assert rig.value("web", Knob.EMULATOR_PIN) == frozenset({0})
    assert rig.value("batch", Knob.VCPU_PIN) == rig.host.online
    assert {record.reason for record in result.records} >= {"priority: critical VM", "priority: batch VM"}
    assert kinds(result) == ["applied"] * 4
    assert rig.tick().records == ()  # nothing differs any more, so nothing is written
    result = rig.loop.release("test")
    assert rig.host.settings() == before
    assert kinds(result) == ["restored"] * 4
    assert not rig.journal.entries


def test_cgroup_v2_uses_its_own_values_and_clamps_to_its_range(tmp_path) -> None:
    rig = Rig(tmp_path, FakeHost(scale=CPU_WEIGHT_V2))
    for name in ("web", "own", "batch"):
        rig.host.boot(name)
    rig.register("web")
    rig.register("own", weight=262_144)
    rig.register("batch", "batch")
    result = rig.tick()
    assert (rig.value("web"), rig.value("own"), rig.value("batch")) == (10_000, 10_000, 1)
    reasons = {record.vm: record.reason for record in result.records if record.knob is Knob.WEIGHT}
    assert "262144 clamped to 10000" in reasons["own"]
    rig.journal.close()


def test_equal_is_the_kernel_default(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.control(policy="equal", pinning=False)
    result = rig.tick()
    assert rig.value("web") == 1024
    assert rig.value("web", Knob.VCPU_PIN) == rig.host.online
    rig.tick()
    assert not rig.journal.entries, "what holds its original again is not owned"
    assert "restored" in kinds(result)


def test_observe_writes_nothing_and_records_once_the_same(rig: Rig) -> None:
    rig.host.boot("web")
    rig.host.boot("batch")
    rig.register("web")
    rig.register("batch", "batch")
    rig.control(mode=Mode.OBSERVE)
    observed = rig.tick()
    assert not rig.host.writes
    assert kinds(observed) == ["observed"] * 4
    assert rig.tick().records == ()
    rig.control(mode=Mode.ENFORCE)
    enforced = rig.tick()

    def content(result):
        return [(r.vm, r.knob, r.index, r.before, r.after, r.reason) for r in result.records]

    assert content(enforced) == content(observed)


def test_from_enforce_to_observe_puts_everything_back_first(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    before = rig.host.settings()
    rig.tick()
    rig.control(mode=Mode.OBSERVE)
    result = rig.tick()
    assert rig.host.settings() == before
    assert kinds(result).count("restored") == 3
    writes = len(rig.host.writes)
    rig.tick()
    assert len(rig.host.writes) == writes


def test_an_application_may_be_more_cautious_than_its_host(rig: Rig) -> None:
    for name in ("web", "shop"):
        rig.host.boot(name)
        rig.register(name)
    application = Application("shop", (Tier("web", ("shop",)),), mode=Mode.OBSERVE)
    rig.assignment = replace(rig.assignment, applications=(application,))
    rig.tick()
    assert (rig.value("web"), rig.value("shop")) == (10_000, 1024)
    rig.control(mode=Mode.OBSERVE)
    rig.assignment = replace(rig.assignment, applications=(replace(application, mode=Mode.ENFORCE),))
    rig.tick()
    assert rig.value("shop") == 1024, "an application cannot enforce on a host that only observes"


def test_unregistering_and_stopping(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    assert "vm-found" in event_kinds(rig.tick())
    vms, rig.assignment = rig.assignment.vms, replace(rig.assignment, vms=())
    assert "vm-gone" in event_kinds(rig.tick())
    assert rig.value("web") == 1024
    rig.assignment = replace(rig.assignment, vms=vms)
    rig.tick()
    rig.host.stop("web")
    result = rig.tick()
    assert event_kinds(result) == ["vm-gone"]
    assert not result.problems
    assert not rig.journal.entries
    rig.host.boot("web")  # the same domain again, with fresh settings
    rig.tick()
    assert rig.value("web") == 10_000
    rig.loop.release("test")
    assert rig.value("web") == 1024


def test_a_vm_that_vanishes_mid_tick_is_no_trouble(rig: Rig) -> None:
    rig.host.boot("web")
    rig.host.boot("other")
    rig.register("web")
    rig.register("other")
    rig.tick()
    rig.host.vanish("web")
    result = rig.tick()
    assert not result.problems
    assert rig.value("other") == 10_000


def test_one_unreadable_vm_does_not_stop_the_others_and_keeps_its_pcpu(rig: Rig) -> None:
    rig.host.boot("aaa")
    rig.register("aaa")
    rig.tick()
    rig.host.unreadable.add(domain_uuid("aaa"))
    rig.host.boot("bbb")
    rig.register("bbb")
    result = rig.tick()
    assert [problem.kind for problem in result.problems] == ["read"]
    assert rig.value("bbb") == 10_000
    assert rig.value("bbb", Knob.VCPU_PIN) == frozenset({1})
    assert "read" in event_kinds(result)
    assert rig.tick().events == (), "told once while it lasts"


def test_a_failed_write_is_told_once_and_tried_again(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.control(pinning=False)
    rig.host.fail_next = [errno.EIO, errno.EIO]
    first, second = rig.tick(), rig.tick()
    assert kinds(first) == ["failed"]
    assert kinds(second) == []
    assert kinds(rig.tick()) == ["applied"]
    rig.loop.release("test")
    assert rig.value("web") == 1024


def test_a_knob_the_kernel_ignores_is_reported_as_ignored(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.control(pinning=False)
    rig.host.ignore.add(Knob.WEIGHT)
    result = rig.tick()
    assert kinds(result) == ["ignored"]
    assert result.records[0].detail == "the kernel keeps 1024"
    assert rig.tick().records == ()
    rig.loop.release("test")
    assert not rig.journal.entries


def test_a_foreign_change_is_given_up_and_never_written_again(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.host.change(KnobKey(domain_uuid("web"), Knob.WEIGHT), 777)
    result = rig.tick()
    assert kinds(result) == ["external"]
    assert "external-change" in event_kinds(result)
    rig.crash()
    rig.tick()
    assert rig.value("web") == 777
    rig.loop.release("test")
    assert rig.value("web") == 777
    assert rig.value("web", Knob.VCPU_PIN) == rig.host.online, "what is still ours is put back"


def test_a_full_disk_means_no_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.host.boot("web")
    rig.register("web")

    def refuse(*_args: object) -> None:
        raise JournalError("database or disk is full")

    monkeypatch.setattr(rig.journal, "update", refuse)
    result = rig.tick()
    assert not rig.host.writes
    assert set(kinds(result)) == {"failed"}
    assert "journal" in {problem.kind for problem in result.problems}


def test_resumes_after_a_crash_without_touching_what_is_right(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.crash()
    writes = len(rig.host.writes)
    assert rig.tick().records == ()
    assert len(rig.host.writes) == writes
    rig.loop.release("test")
    assert rig.value("web") == 1024


def test_restores_after_a_crash_also_when_nothing_is_known_of_the_manager_or_libvirt(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    before = rig.host.settings()
    rig.tick()
    rig.crash()
    rig.host.listed.clear()  # libvirtd is away
    rig.loop.tick(None, {})
    assert rig.host.settings() == before


def test_control_goes_on_while_libvirtd_is_away_at_start(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.crash()
    rig.host.listed.clear()
    rig.control(policy="equal")
    rig.tick()
    assert rig.value("web") == 1024
    assert rig.value("web", Knob.VCPU_PIN) == frozenset({0})


def test_after_a_reboot_the_journal_is_empty(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.host.boot_id = "boot-2"
    rig.crash()
    assert not rig.journal.entries


def test_more_critical_vcpus_than_pcpus_share_them(rig: Rig) -> None:
    rig.host.boot("big", 3)
    rig.host.boot("small", 2)
    rig.register("big")
    rig.register("small")
    assert not rig.tick().problems
    pins = {
        name: {rig.value(name, Knob.VCPU_PIN, index) for index in range(vcpus)}
        for name, vcpus in (("big", 3), ("small", 2))
    }
    assert (len(pins["big"]), len(pins["small"])) == (3, 2), "none is stacked on itself"
    assert all(len(cpus) == 1 for cpus in pins["big"] | pins["small"])
    assert pins["big"] | pins["small"] == {frozenset({cpu}) for cpu in rig.host.online}


def test_a_vm_with_more_vcpus_than_pcpus_floats_and_says_so(rig: Rig) -> None:
    rig.host.boot("huge", 5)
    rig.register("huge")
    result = rig.tick()
    assert rig.value("huge", Knob.VCPU_PIN) == rig.host.online
    [problem] = result.problems
    assert problem.kind == "placement"
    assert "5" in problem.text
    assert "4" in problem.text


def test_a_placed_vm_keeps_its_pcpus_when_others_come_and_go(rig: Rig) -> None:
    for name in ("b", "c"):
        rig.host.boot(name)
        rig.register(name)
    rig.tick()
    rig.host.boot("a")
    rig.register("a")
    rig.tick()
    pins = {name: rig.value(name, Knob.VCPU_PIN) for name in "abc"}
    assert pins == {"b": frozenset({0}), "c": frozenset({1}), "a": frozenset({2})}


@dataclass(frozen=True)
class Odd:
    """A third party's policy gone wrong."""

    decision: Decision | Exception
    name: str = "odd"
    summary: str = ""

    def decide(self, snapshot, memory):
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        (Decision((WeightGoal("ghost", 5, ""),)), "'ghost', which is not a managed VM"),
        (Decision((WeightGoal("web", 5, ""), WeightGoal("web", 6, ""))), "two weights"),
        (Decision((WeightGoal("web", 0, ""),)), "the weight 0"),
        (RuntimeError("boom"), "RuntimeError: boom"),
    ],
)
def test_a_broken_policy_changes_nothing(rig: Rig, decision: Decision | Exception, says: str) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    after_priority = rig.host.settings()
    rig.loop = ControlLoop(
        rig.host, rig.journal, {"odd": Odd(decision)}, LoopSettings("h1", 1.0, 30.0, 20), rig.clock, limits=EVERYTHING
    )
    rig.control(policy="odd")
    result = rig.tick()
    assert says in result.problems[0].text
    assert rig.host.settings() == after_priority
    rig.control(policy="missing")
    assert "not installed" in rig.tick().problems[0].text
    assert rig.host.settings() == after_priority


def test_rates_come_from_two_readings(rig: Rig) -> None:
    uuid = rig.host.boot("web", 2)
    rig.register("web")
    assert rig.tick().snapshot.vms[0].cpu_share == 0.0
    rig.host.vms[uuid].cpu_ns += 2_000_000_000  # two seconds in one second, on four pCPUs
    rig.host.vms[uuid].delay_ns += 100_000_000
    view = rig.tick().snapshot.vms[0]
    assert view.cpu_share == pytest.approx(0.5)
    assert view.run_delay_share == pytest.approx(0.2)


def test_without_a_cpu_controller_only_pins_are_set(tmp_path) -> None:
    rig = Rig(tmp_path, FakeHost(scale=None))
    rig.host.boot("web")
    rig.register("web")
    assert {record.knob for record in rig.tick().records} == {Knob.VCPU_PIN, Knob.EMULATOR_PIN}
    rig.journal.close()


def test_outcomes_of_vanishing_between_read_and_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.host.boot("web")
    rig.register("web")
    real = rig.host.write

    def write(instance, key, value):
        rig.host.vanish("web")
        return real(instance, key, value)

    monkeypatch.setattr(rig.host, "write", write)
    result = rig.tick()
    assert {record.outcome for record in result.records} == {OutcomeKind.VANISHED}
    assert not result.problems
    rig.tick()
    assert not rig.journal.entries


def test_a_vm_pinned_by_others_keeps_its_pcpu_when_one_before_it_comes(rig: Rig) -> None:
    rig.host.boot("zoo", pinned=frozenset({0}))  # just where it would be pinned anyway, so nothing is journalled
    rig.register("zoo")
    rig.tick()
    rig.host.boot("ape")
    rig.register("ape")
    rig.tick()
    assert rig.value("zoo", Knob.VCPU_PIN) == frozenset({0})
    assert rig.value("ape", Knob.VCPU_PIN) == frozenset({1})


def test_a_vcpu_that_somebody_moved_is_not_joined_by_another(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.host.change(KnobKey(domain_uuid("web"), Knob.VCPU_PIN, 0), frozenset({1}))
    rig.tick()
    rig.host.boot("db")
    rig.register("db")
    rig.tick()
    assert rig.value("web", Knob.VCPU_PIN) == frozenset({1})
    assert rig.value("db", Knob.VCPU_PIN) == frozenset({0})


def test_release_ends_also_when_a_pcpu_went_offline_meanwhile(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.host.cpus = 3
    assert set(kinds(rig.loop.release("test"))) == {"restored"}
    assert not rig.journal.entries


def test_pins_that_the_kernel_undoes_when_a_pcpu_comes_back_are_no_external_change(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    before = rig.host.settings()
    rig.host.unplug_cpu(1)
    rig.tick()
    rig.host.replug_cpu(1)
    assert rig.value("web", Knob.VCPU_PIN) == rig.host.online
    assert set(kinds(rig.tick())) == {"applied"}
    assert rig.host.settings() == before
    for _ in range(3):
        rig.tick()
    rig.host.change(KnobKey(domain_uuid("web"), Knob.VCPU_PIN), rig.host.online)
    assert set(kinds(rig.tick())) == {"external"}, "that was another tool"
    rig.loop.release("test")
    assert not rig.journal.entries


def test_a_pcpu_that_goes_and_comes_back_between_two_ticks_is_no_external_change(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    before = rig.host.settings()
    rig.host.unplug_cpu(1)
    rig.host.replug_cpu(1)
    assert rig.value("web", Knob.VCPU_PIN) == rig.host.online
    assert set(kinds(rig.tick())) == {"applied"}
    assert rig.host.settings() == before
    rig.loop.release("test")
    assert not rig.journal.entries


def test_a_domain_started_again_while_its_last_process_is_still_ending(rig: Rig) -> None:
    uuid = rig.host.boot("web")
    rig.register("web")
    rig.tick()
    ending = rig.host.vms[uuid].instance
    rig.host.boot("web")
    real = rig.host.is_alive
    rig.host.is_alive = lambda instance: instance == ending or real(instance)  # type: ignore[method-assign]
    result = rig.tick()
    assert set(kinds(result)) == {"applied"}
    assert {entry.owned.original for key, entry in rig.journal.entries.items() if key.knob is Knob.WEIGHT} == {1024}
    rig.loop.release("test")
    assert rig.value("web") == 1024
