"""By which settings batch VMs are held at once; that they are written is in tests/loop/test_guard.py."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from manager.control.hold import held, hold_ways
from manager.model.decision import Goal, Plan, Snapshot, VmView
from manager.model.host import CPU_SHARES_V1, Capabilities
from manager.model.knobs import INSIDE, LEAST_QUOTA_US, OUTSIDE, UNLIMITED, Knob, KnobKey
from manager.model.law import Law
from manager.model.limits import EVERYTHING
from manager.model.registration import HostSpec, Mode, VmClass, VmSpec

CPUS = frozenset(range(8))
PERIOD_US = 100_000


def view(name: str, vm_class: VmClass = VmClass.BATCH, mode: Mode = Mode.ENFORCE) -> VmView:
    return VmView(VmSpec(name, vm_class), 2, 0.1, 0.0, mode, 2, idle=False, quota_period_us=PERIOD_US)


def snapshot(*vms: VmView, floor: float = 0.01) -> Snapshot:
    capabilities = Capabilities("6.1", "9.0.0", 1, CPU_SHARES_V1, CPUS, CPUS, True)
    return Snapshot(0.0, 1.0, HostSpec("h1", law=Law(batch_floor=floor)), capabilities, vms)


def ways(seen: Snapshot, idle: int = 0, quota_us: int = UNLIMITED) -> list[dict[str, object]]:
    """The values by VM of each way."""
    uuids = {vm.name: vm.name for vm in seen.vms}
    otherwise = {KnobKey(name, Knob.IDLE): idle for name in uuids} | {
        KnobKey(name, Knob.QUOTA): quota_us for name in uuids
    }
    return [{goal.key.uuid: goal.value for goal in way} for way in hold_ways(seen, uuids, otherwise, EVERYTHING)]


def test_only_batch_vms_that_are_not_released_are_held() -> None:
    seen = snapshot(view("b"), view("web", VmClass.CRITICAL), view("gone", mode=Mode.RELEASED))
    assert [way.keys() for way in ways(seen)] == [{"b"}, {"b"}]
    assert ways(snapshot(view("web", VmClass.CRITICAL))) == []


def test_vms_in_the_batch_group_are_held_by_quota_alone() -> None:
    seen = snapshot(replace(view("b"), batch_group=INSIDE), replace(view("c"), batch_group=OUTSIDE))
    assert [way.keys() for way in ways(seen)] == [{"c"}, {"b", "c"}]


def test_without_idle_class_and_quota_there_is_no_way() -> None:
    bare = replace(view("b"), idle=None, quota_period_us=None)
    assert hold_ways(snapshot(bare), {"b": "b"}, {}, EVERYTHING) == ()


@given(st.floats(0, 0.5), st.integers(1, 40), st.one_of(st.just(UNLIMITED), st.integers(LEAST_QUOTA_US, 800_000)))
def test_quotas_leave_batch_vms_their_floor_and_are_never_above_what_there_was(
    floor: float, count: int, without_us: int
) -> None:
    seen = snapshot(*(view(f"b{number}") for number in range(count)), floor=floor)
    for way in ways(seen, idle=1, quota_us=without_us):
        for quota_us in way.values():
            assert isinstance(quota_us, int)
            assert quota_us >= LEAST_QUOTA_US
            assert without_us in {UNLIMITED} or quota_us < without_us
        total = sum(value for value in way.values() if isinstance(value, int)) / PERIOD_US
        assert total >= floor * len(CPUS), "if each gets the same, together they have it"


def test_what_is_held_takes_the_place_of_what_was_planned() -> None:
    idle, weight = KnobKey("b", Knob.IDLE), KnobKey("b", Knob.WEIGHT)
    plan = Plan((Goal(idle, 0, "policy", Mode.ENFORCE), Goal(weight, 2, "policy", Mode.ENFORCE)), "undone")
    hold = Goal(idle, 1, "guard", Mode.ENFORCE)
    assert held(plan, [hold]) == Plan((hold, plan.goals[1]), "undone")
    assert held(plan, ()) is plan
