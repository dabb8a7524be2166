"""Protection and ceilings of memory from measurements to what the host holds, over many ticks and lives of an agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from manager.control.diff import HostValues, diff
from manager.loop.tick import TickResult
from manager.model.decision import Action, Goal, Owned, Plan
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, MEMORIES, UNLIMITED, Knob, KnobKey
from manager.model.problem import ProblemKind
from manager.model.records import OutcomeKind
from manager.model.registration import Mode
from manager.model.resource_use import HostCounters, Pressures, VmCounters
from manager.model.rules import MemoryRules
from tests.fakes.host import MACHINE_MEMORY, FakeHost
from tests.fakes.resources import FakeResources
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

MIB = 1 << 20
OWN = KnobKey(domain_uuid("web"), Knob.MEMORY_PROTECTION)
CEILING = KnobKey(domain_uuid("hog"), Knob.MEMORY_CEILING)
SWAPPED = KnobKey(domain_uuid("web"), Knob.SWAPPINESS)
ROUND_S = 5


class MemoryRig(Rig):
    """A host with 1 GiB, a critical VM of 100 MiB and a batch VM of 50 MiB. ``see``: what they use from now on."""

    def __init__(self, folder: Path, version: int) -> None:
        host = FakeHost(memory_version=version)
        self.resources = host.resources = FakeResources(host)
        self.resources.own = HostCounters(0.0, Pressures(0, 0, 0), memory_bytes=1024 * MIB)
        for name in ("web", "hog"):
            host.boot(name)
        super().__init__(folder, host)
        self.register("web")
        self.register("hog", "batch")
        self.control(policy="equal", pinning=False, memory=MemoryRules(protect=True, ceilings=True))
        self.see(web=100, hog=50)

    def see(self, refaults: int = 0, **mebibytes: float) -> None:
        for name, size in mebibytes.items():
            counters = VmCounters(0.0, Pressures(0, 0, 0), 0, refaults, round(size * MIB))
            self.resources.counters[domain_uuid(name)] = counters

    def tick(self) -> TickResult:
        result = super().tick()
        self.resources.now_s = self.now_s
        self.loop.look_at_resources(result)
        return result

    def ticks(self, count: int) -> list[TickResult]:
        return [self.tick() for _ in range(count)]

    def held(self) -> dict[KnobKey, KnobValue]:
        """What is not as usual."""
        known = {**self.host.settings()}
        return {
            key: value for key, value in known.items() if key.knob in MEMORIES and value != key.knob.spec.value.usual
        }


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., MemoryRig]:
    return lambda version=2: MemoryRig(tmp_path, version)


def protected(mebibytes: int) -> dict[KnobKey, KnobValue]:
    inner = KnobKey(domain_uuid("web"), Knob.MEMORY_PROTECTION, 1)
    return dict.fromkeys((OWN, inner, MACHINE_MEMORY), mebibytes * MIB)


def test_it_is_measured_protected_and_not_written_again(make: Callable[..., MemoryRig]) -> None:
    rig = make()
    rig.ticks(2 * ROUND_S + 1)
    assert rig.held() == protected(110)
    writes = list(rig.host.writes)
    rig.see(web=101)
    later = rig.ticks(4 * ROUND_S)
    assert rig.host.writes == writes
    assert not [record for result in later for record in result.records]


def test_a_decision_is_told_with_its_reason(make: Callable[..., MemoryRig]) -> None:
    records = [record for result in make().ticks(2 * ROUND_S + 1) for record in result.records]
    assert {(record.vm, record.knob, record.index, record.after, record.reason) for record in records} == {
        ("web", Knob.MEMORY_PROTECTION, 0, str(110 * MIB), "100 MiB resident, and 10 % of that"),
        ("web", Knob.MEMORY_PROTECTION, 1, str(110 * MIB), "100 MiB resident, and 10 % of that"),
        (None, Knob.MEMORY_PROTECTION, 17, str(110 * MIB), "what is protected of the critical VMs below it"),
    }


@pytest.mark.parametrize("most_protected", [0.5, 0.05])
def test_v1_protects_as_a_whole_or_not(make: Callable[..., MemoryRig], most_protected: float) -> None:
    rig = make(version=1)
    rig.control(memory=MemoryRules(protect=True, most_protected=most_protected))
    problems = rig.ticks(2 * ROUND_S + 1)[-1].problems
    fits = most_protected == 0.5
    assert rig.held() == ({SWAPPED: 0} if fits else {})
    assert [problem.text[:41] for problem in problems] == [
        "memory of critical VMs is not protected, and cgroup v1"[:41]
    ] * (not fits)
    rig.loop.release("test")
    assert rig.held() == {}


def test_v1_goes_on_with_what_an_agent_before_set(make: Callable[..., MemoryRig]) -> None:
    rig = make(version=1)
    rig.ticks(2 * ROUND_S)
    assert rig.held() == {SWAPPED: 0}
    writes = list(rig.host.writes)
    rig.crash()
    rig.ticks(2 * ROUND_S + 1)
    assert (rig.held(), rig.host.writes) == ({SWAPPED: 0}, writes)
    rig.host.vms[domain_uuid("web")].memories[Knob.SWAPPINESS, 0] = 30
    rig.tick()
    assert rig.held() == {SWAPPED: 30}, "another tool's value stays"
    assert rig.journal.entries[SWAPPED].owned.external


@pytest.mark.parametrize("version", [1, 2])
def test_one_that_grows_while_a_critical_vm_is_short(make: Callable[..., MemoryRig], version: int) -> None:
    rig = make(version)
    rig.ticks(2 * ROUND_S)
    rig.see(web=90, hog=80, refaults=10_000)
    rig.ticks(ROUND_S + 1)
    assert rig.held()[CEILING] == 88 * MIB
    if version == 1:
        assert rig.held() == {CEILING: 88 * MIB, SWAPPED: 0}
    rig.control(memory=MemoryRules())
    rig.tick()
    assert rig.held() == {}
    assert not rig.journal.entries


def test_a_new_agent_goes_on_with_what_it_finds(make: Callable[..., MemoryRig]) -> None:
    rig = make()
    rig.ticks(2 * ROUND_S)
    rig.see(web=90, hog=80, refaults=10_000)
    rig.ticks(ROUND_S + 1)
    before, writes = rig.held(), list(rig.host.writes)
    rig.crash()
    rig.ticks(2 * ROUND_S + 1)
    assert (rig.held(), rig.host.writes) == (before, writes)
    rig.crash()
    rig.loop.release("test")
    assert rig.held() == {}


def test_modes_and_the_last_vm_that_ends(make: Callable[..., MemoryRig]) -> None:
    rig = make()
    rig.control(mode=Mode.OBSERVE)
    observed = [outcome for result in rig.ticks(2 * ROUND_S + 1) for outcome in result.outcomes]
    assert {outcome.kind for outcome in observed} == {OutcomeKind.OBSERVED}
    assert OWN in {outcome.key for outcome in observed}
    assert rig.held() == {}
    rig.control(mode=Mode.ENFORCE)
    rig.tick()
    assert rig.held() == protected(110)
    rig.host.stop("web")
    rig.tick()
    assert rig.held() == {}
    assert MACHINE_MEMORY not in rig.journal.entries


def test_a_host_with_too_little_is_told(make: Callable[..., MemoryRig]) -> None:
    rig = make()
    rig.control(memory=MemoryRules(protect=True, most_protected=0.05))
    problems = rig.ticks(2 * ROUND_S + 1)[-1].problems
    assert [(problem.kind, problem.text[:44]) for problem in problems] == [
        (ProblemKind.MEMORY, "memory of critical VMs is protected to 47 %:")
    ]
    assert rig.held() == protected(51)


def test_a_preview_shows_it_and_writes_nothing(make: Callable[..., MemoryRig]) -> None:
    rig = make()
    rig.loop.preview(rig.assignment, {})
    rig.now_s += 1.0
    rig.resources.now_s += 1.0
    preview = rig.loop.preview(rig.assignment, {})
    assert {change.key: change.after for change in preview.changes} == protected(110)
    assert rig.held() == {}


@pytest.mark.parametrize("key", [OWN, MACHINE_MEMORY, CEILING])
@pytest.mark.parametrize("scopes", [frozenset({OWN.uuid, CEILING.uuid}), frozenset[str]()])
def test_what_systemd_sets_back_is_set_again(key: KnobKey, scopes: frozenset[str]) -> None:
    original, wanted = UNLIMITED if key == CEILING else 0, 64 * MIB
    host = HostValues({key: original}, frozenset({0}), scopes=scopes, own_read=True)
    goal = Goal(key, wanted, "why", Mode.ENFORCE)
    changes = diff(Plan((goal,)), host, {key: Owned(original, original, wanted, settled=True)})
    assert [change.action for change in changes] == [Action.WRITE if scopes else Action.LEAVE]


@pytest.mark.parametrize(("own_read", "forgotten"), [(True, True), (False, False)])
def test_a_slice_that_is_gone_is_forgotten_once_the_host_was_read(own_read: bool, forgotten: bool) -> None:
    key = KnobKey(HOST_UUID, Knob.MEMORY_PROTECTION, 99)
    host = HostValues({}, frozenset({0}), own_read=own_read)
    changes = diff(Plan(), host, {key: Owned(0, 0, 64 * MIB, settled=True)})
    assert [change.action for change in changes] == ([Action.FORGET] if forgotten else [])
