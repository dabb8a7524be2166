"""The most that an agent does: its own settings bound what any manager can have it do, and never what is put back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from manager.control.limit_assignment import limit_assignment
from manager.errors import SettingsError
from manager.loop.apply import Target, apply
from manager.loop.journal import Journal
from manager.loop.status import tick_status
from manager.model.cpus import parse_cpus
from manager.model.decision import Action, Change
from manager.model.knob_spec import Control, KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.limits import DEFAULT_LIMITS, EVERYTHING, RISKY, AgentLimits
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, CacheControl, HostSpec, Mode, VmClass, VmSpec
from manager.model.rules import BatchPlacement, DiskRules, IrqSteering, MemoryRules, NetworkRules, PlacementRules
from manager.model.scheduling import FIFO, OTHER, Scheduling, SchedulingPolicy, joined
from manager.model.warp import WarpUse
from manager.settings import load_settings
from tests.loop.conftest import Rig

VALUES: dict[Knob, KnobValue] = {
    Knob.IDLE: 1,
    Knob.QUOTA: 1000,
    Knob.WEIGHT: 2,
    Knob.VCPU_PIN: frozenset({0}),
    Knob.EMULATOR_PIN: frozenset({0}),
    Knob.IOTHREAD_PIN: frozenset({0}),
    Knob.IRQ_AFFINITY: frozenset({0}),
    Knob.SCHEDULING: joined(FIFO, 1),
}
COMPROMISED = Assignment(
    HostSpec(
        "h1",
        batch_idle=True,
        placement=PlacementRules(irqs=IrqSteering.SERVING, batch=BatchPlacement.SINGLE),
        warp=WarpUse.SCHED_EXT,
        cache=CacheControl.ON,
        cache_mount=True,
        memory=MemoryRules(protect=True, ceilings=True),
        disk=DiskRules(weights=True),
        network=NetworkRules(shares=True),
    ),
    (
        VmSpec("web", VmClass.CRITICAL, scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.9), pin=True),
        VmSpec("hog", VmClass.BATCH, max_pcpus=0.01, cpus=parse_cpus("0")),
        VmSpec("nice", VmClass.CRITICAL, scheduling=Scheduling(SchedulingPolicy.OTHER, nice=-20)),
    ),
)


@pytest.mark.parametrize("knob", Knob)
def test_every_knob_is_bound_by_a_setting(knob: Knob) -> None:
    key, value = KnobKey("u", knob), VALUES.get(knob, 1)
    assert EVERYTHING.refusal(key, value) == ""
    assert AgentLimits(allowed=frozenset()).refusal(key, value).startswith("limited by this agent's settings: ")
    assert AgentLimits(max_mode=Mode.OBSERVE).refusal(key, value) == (
        "limited by this agent's settings: max_mode = observe"
    )


def test_by_default_nothing_beyond_registered_vms_is_touched() -> None:
    refused = {knob for knob in Knob if DEFAULT_LIMITS.refusal(KnobKey(HOST_UUID, knob), VALUES.get(knob, 1))}
    assert refused == {
        *(Knob.IRQ_AFFINITY, Knob.SCHEDULER, Knob.SCHEDULING, Knob.RT_RUNTIME, Knob.VCPU_RT_RUNTIME),
        *(Knob.RESUME_LATENCY, Knob.GOVERNOR),
    }
    assert DEFAULT_LIMITS.refusal(KnobKey("u", Knob.SCHEDULING), joined(OTHER, -5)) == "", "a nice value"


def test_what_a_compromised_manager_assigns_is_taken_out_of_it_by_default_and_told() -> None:
    found = limit_assignment(COMPROMISED, DEFAULT_LIMITS)
    host, (web, hog, nice) = found.assignment.host, found.assignment.vms
    assert (host.placement.irqs, host.warp, host.cache_mount) == (IrqSteering.OFF, WarpUse.ON, False)
    assert (web.scheduling, hog.max_pcpus) == (None, 0.1)
    assert nice == COMPROMISED.vms[2]
    assert set(found.told) == {
        "steering of interrupts: allow has no interrupts",
        "loading our sched_ext scheduler: allow has no scheduler",
        "mounting resctrl: allow has no mount",
        "real-time scheduling of web: allow has no real-time",
        "hog limited to 0.01 pCPUs: min_pcpus = 0.1",
    }
    assert limit_assignment(COMPROMISED, EVERYTHING).assignment is COMPROMISED


def test_all_that_can_be_denied_is() -> None:
    limits = AgentLimits(allowed=frozenset(), max_mode=Mode.OBSERVE)
    found = limit_assignment(COMPROMISED, limits)
    host, (_, hog, nice) = found.assignment.host, found.assignment.vms
    assert (host.mode, host.pinning, host.batch_idle, host.warp) == (Mode.OBSERVE, False, False, WarpUse.OFF)
    assert (host.cache, host.placement.batch) == (CacheControl.OFF, BatchPlacement.FLOAT)
    assert not host.memory.in_use and not host.disk.weights and not host.network.shares
    assert (hog.max_pcpus, hog.cpus, nice.scheduling) == (None, None, None)
    for text in ("mode enforce: max_mode = observe", "pins: deny has pin", "the limit of hog: deny has quota"):
        assert text in found.told
    released = replace(COMPROMISED, host=replace(COMPROMISED.host, mode=Mode.RELEASED))
    assert limit_assignment(released, limits).told == (), "nothing is done, so nothing is taken"


def test_a_limit_is_told_once_as_an_event_and_shown_in_the_status(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web", scheduling=Scheduling(SchedulingPolicy.FIFO, limit=0.3))
    rig.loop._observer.limits = DEFAULT_LIMITS
    first, second = rig.tick(), rig.tick()
    [event] = [one for one in first.events if one.kind == "limited"]
    assert event.message == "real-time scheduling of web: allow has no real-time"
    assert not [one for one in second.events if one.kind == "limited"]
    status = tick_status(second, 0, 0, True)
    assert (status.limited, status.errors) == ([event.message], 0)


def test_an_agent_that_only_observes_writes_nothing_whatever_it_is_told(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.loop._observer.limits = AgentLimits(max_mode=Mode.OBSERVE)
    result = rig.tick()
    assert result.written == {}
    assert {one.kind for one in result.outcomes} <= {OutcomeKind.OBSERVED}
    assert result.snapshot.host.mode is Mode.OBSERVE


def test_lowering_the_most_puts_back_what_was_changed(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    assert rig.tick().written
    rig.loop._observer.limits = AgentLimits(max_mode=Mode.OBSERVE)
    rig.assignment = replace(rig.assignment)
    kinds = {one.kind for one in rig.tick().outcomes}
    assert OutcomeKind.RESTORED in kinds


@pytest.mark.parametrize(
    ("control", "knob", "vm", "told"),
    [
        (Control.WEIGHT, Knob.WEIGHT, "web", "weights: deny has weight"),
        (Control.IDLE, Knob.IDLE, "hog", "the idle class: deny has idle"),
    ],
)
def test_denying_what_is_in_force_puts_it_back_and_is_told(
    rig: Rig, control: Control, knob: Knob, vm: str, told: str
) -> None:
    """As after a crash, with other settings; and nothing is tried, and fails, in each tick from then on."""
    rig.host.needs_batch_group = True  # so that a lone batch VM is idle
    rig.host.boot("web")
    rig.host.boot("hog")
    rig.register("web")
    rig.register("hog", "batch")
    before = rig.value(vm, knob)
    rig.tick()
    assert rig.value(vm, knob) != before
    rig.crash()
    rig.loop._observer.limits = rig.loop._planner._limits = replace(EVERYTHING, allowed=EVERYTHING.allowed - {control})
    first, second = rig.tick(), rig.tick()
    assert rig.value(vm, knob) == before
    assert [one.message for one in first.events if one.kind == "limited"] == [told]
    assert not second.outcomes


class _NoHost:
    def write(self, *_: object) -> KnobValue:
        raise AssertionError("it was written")


def test_the_last_word_is_said_where_it_is_written(tmp_path: Path, rig: Rig) -> None:
    """Whoever planned it: a policy of a third party, or a fault of ours."""
    rig.host.boot("web")
    instance = next(iter(rig.host.running().values()))
    key = KnobKey(instance.uuid, Knob.SCHEDULING)
    journal = Journal(tmp_path / "other.db", rig.host.boot_id)
    change = Change(Action.WRITE, key, joined(OTHER, 0), joined(FIFO, 99), "by mistake")
    applied = apply([change], {instance.uuid: Target(instance, "web")}, _NoHost(), journal)  # type: ignore[arg-type]
    [outcome] = applied.outcomes
    assert (outcome.kind, outcome.detail) == (
        OutcomeKind.FAILED,
        "limited by this agent's settings: allow has no real-time",
    )
    assert not journal.entries
    journal.close()


def test_settings() -> None:
    limits = load_settings(None, {}, {}).limits
    assert limits == DEFAULT_LIMITS
    assert not limits.allowed & RISKY
    flags = {"allow": "real-time, mount", "deny": "idle,pin", "max_mode": "observe", "min_pcpus": "0.5"}
    limits = load_settings(None, {}, flags).limits
    assert {Control.REAL_TIME, Control.MOUNT} <= limits.allowed
    assert not {Control.IDLE, Control.PIN, Control.SCHEDULER} & limits.allowed
    assert (limits.max_mode, limits.min_pcpus) == (Mode.OBSERVE, 0.5)
    assert limits.in_words() == (
        "mode at most observe",
        "not allowed: pin, idle, scheduler, interrupts, power, migrate",
        "VMs limited to 0.5 pCPUs or more",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("allow", "realtime"), ("allow", "weight"), ("deny", "all"), ("max_mode", "off"), ("min_pcpus", "-1")],
)
def test_a_limit_that_is_none_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"setting {name}"):
        load_settings(None, {}, {name: value})
