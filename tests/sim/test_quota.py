"""Limits of CPU time in the simulated host: who is limited gets its quota, and others what that leaves."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import HostError
from manager.model.decision import CpusGoal, Decision, QuotaGoal, Snapshot
from manager.model.host import Quota
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.sim.scenario import BatchSpec, Constant, Fault, FaultKind, Noise
from manager.sim.services import SimVm
from manager.sim.sim_host import PERIOD_US, SimExaminer, SimHost
from manager.sim.simulation import Simulation
from manager.sim.world import World
from tests.sim.build import AT_ONCE, app, scenario

NOBODY = app("shop", Constant(0.0))


class Hogs:
    """A host whose VMs always want all they can get; each has so many vCPUs."""

    def __init__(self, pcpus: int, *vcpus: int, noise: Noise | None = None, faults: tuple[Fault, ...] = ()) -> None:
        batch = tuple(BatchSpec(f"b{number}", 1, each) for number, each in enumerate(vcpus))
        self.world = World(scenario(NOBODY, pcpus=pcpus, batch=batch, scheduler=AT_ONCE, noise=noise, faults=faults))
        self.host = SimHost(self.world)

    def vm(self, number: int) -> SimVm:
        return self.world.vms[f"b{number}"]

    def limit(self, number: int, pcpus: float | None) -> None:
        instance = self.vm(number).instance
        quota_us = UNLIMITED if pcpus is None else round(pcpus * PERIOD_US)
        assert self.host.write(instance, KnobKey(instance.uuid, Knob.QUOTA), quota_us) == quota_us
        assert self.host.read(instance).knobs()[KnobKey(instance.uuid, Knob.QUOTA)] == quota_us

    def used(self, seconds: float) -> list[float]:
        """The pCPUs that each VM uses in the time to come."""
        vms = [vm for name, vm in self.world.vms.items() if name.startswith("b")]
        before = [self.world.vm_cpu_s(vm) for vm in vms]
        self.world.run_until(self.world.now_s + seconds)
        return [(self.world.vm_cpu_s(vm) - then) / seconds for vm, then in zip(vms, before, strict=True)]


@pytest.mark.parametrize(
    ("pcpus", "vcpus", "limits", "expected"),
    [
        (1, [1], [0.3], [0.3]),
        (1, [1, 1], [0.2, None], [0.2, 0.8]),
        (1, [1, 1], [0.7, None], [0.5, 0.5]),  # a limit above its share is none
        (1, [1, 1, 1], [0.1, 0.2, None], [0.1, 0.2, 0.7]),
        (4, [4], [1.5], [1.5]),
        (4, [4], [4.0], [4.0]),
        (4, [4, 4], [0.5, None], [0.5, 3.5]),
        (2, [2, 1], [1.25, 0.25], [1.25, 0.25]),
        (1, [8], [0.01], [0.01]),
    ],
)
def test_who_is_limited_gets_its_quota_and_others_the_rest(
    pcpus: int, vcpus: list[int], limits: list[float | None], expected: list[float]
) -> None:
    """Over whole periods, to within what a check is late at most (0.1 ms a vCPU), which does not add up."""
    hogs = Hogs(pcpus, *vcpus)
    for number, limit in enumerate(limits):
        hogs.limit(number, limit)
    assert hogs.used(20.0) == pytest.approx(expected, abs=8e-4 / 20 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 3), st.floats(0.01, 3)), min_size=1, max_size=4),
    st.booleans(),
)
def test_nobody_gets_more_than_its_quota_and_nothing_is_lost(
    pcpus: int, drawn: list[tuple[int, float]], noisy: bool
) -> None:
    hogs = Hogs(pcpus, *(vcpus for vcpus, _ in drawn), 3, noise=Noise(0.3, 20.0, 20.0) if noisy else None)
    for number, (_, limit) in enumerate(drawn):
        hogs.limit(number, limit)
    *limited, unlimited = hogs.used(5.0)
    for used, (vcpus, limit) in zip(limited, drawn, strict=True):
        assert used <= min(limit, vcpus) + 1e-4 * vcpus / 5 + 1e-5
    outside = hogs.world.noise_cpu_s() / 5
    assert sum(limited) + unlimited == pytest.approx(pcpus - outside, abs=1e-6), "there is one who takes the rest"


def test_the_budget_comes_first_in_each_period_and_then_the_vm_waits() -> None:
    hogs = Hogs(1, 1)
    hogs.limit(0, 0.3)
    assert [round(hogs.used(0.01)[0], 6) for _ in range(20)] == ([1.0] * 3 + [0.0] * 7) * 2
    [vcpu] = hogs.vm(0).vcpus
    assert hogs.world.cpus.delay_s(vcpu, 0.2) == pytest.approx(0.14), "as in schedstat, that is waiting"
    assert hogs.world.cpus.idle_s(0.2) == pytest.approx(0.14)


def test_a_limit_acts_from_when_it_is_set_until_it_is_taken_away() -> None:
    hogs = Hogs(1, 1)
    assert hogs.used(1.05) == pytest.approx([1.0])
    hogs.limit(0, 0.25)
    assert hogs.used(2.0) == pytest.approx([0.25])
    hogs.world.run_until(hogs.world.now_s + 0.05)  # throttled
    hogs.limit(0, 0.5)
    assert hogs.used(1.0) == pytest.approx([0.5])
    hogs.world.run_until(hogs.world.now_s + 0.08)
    hogs.limit(0, None)
    assert hogs.used(1.0) == pytest.approx([1.0])


def test_pins_and_weights_of_a_throttled_vm_hold_when_it_runs_again() -> None:
    hogs = Hogs(2, 1, 1)
    hogs.limit(0, 0.1)
    hogs.world.run_until(0.05)
    vm = hogs.vm(0)
    for number in (0, 1):
        instance = hogs.vm(number).instance
        hogs.host.write(instance, KnobKey(instance.uuid, Knob.VCPU_PIN), frozenset({1}))
        hogs.host.write(instance, KnobKey(instance.uuid, Knob.WEIGHT), (300, 100)[number])
    hogs.limit(0, None)
    assert [vcpu.pcpu.index for vcpu in vm.vcpus] == [1]
    assert hogs.used(1.0) == pytest.approx([0.75, 0.25])


def test_a_limit_ends_with_the_vm() -> None:
    hogs = Hogs(1, 1, faults=(Fault(FaultKind.VM_RESTART, 1.05, 1, "b0"),))
    hogs.limit(0, 0.2)
    hogs.world.run_until(3.0)
    assert hogs.host.read(hogs.vm(0).instance).quota == Quota(UNLIMITED, PERIOD_US)
    assert hogs.used(1.0) == pytest.approx([1.0])


@pytest.mark.parametrize("quota_us", [0, 999, -2])
def test_too_little_is_refused_as_by_the_kernel(quota_us: int) -> None:
    hogs = Hogs(1, 1)
    instance = hogs.vm(0).instance
    with pytest.raises(HostError) as raised:
        hogs.host.write(instance, KnobKey(instance.uuid, Knob.QUOTA), quota_us)
    assert raised.value.errno == errno.EINVAL
    assert hogs.used(1.0) == pytest.approx([1.0])


@pytest.mark.parametrize(("limit", "answered"), [(0.5, 0.5), (0.2, 0.4)])
def test_a_service_that_wants_less_than_its_limit_is_served_and_one_that_wants_more_gets_it(
    limit: float, answered: float
) -> None:
    """50 requests a second of 10 ms: half a pCPU, of which it can have ``limit``, so that ``answered`` of them are."""
    world = World(scenario(app("shop", Constant(50.0), vcpus=2, timeout_s=1.0), pcpus=2))
    host, vm = SimHost(world), world.vms["shop-web"]
    pcpus = limit * (1.5 if limit == answered else 1)
    host.write(vm.instance, KnobKey(vm.instance.uuid, Knob.QUOTA), round(pcpus * PERIOD_US))
    world.run_until(200.0)
    slot = world.close_slot()["shop"]
    share = slot.answered / (slot.answered + slot.timed_out)
    assert share == pytest.approx(1.0 if limit == answered else answered, rel=0.05)


@dataclass(frozen=True)
class Limiting:
    """Half a pCPU for the one batch VM, and pCPU 1 for the other."""

    name: str = "limiting"
    summary: str = "As the test says."

    def decide(self, snapshot: Snapshot, memory: object) -> Decision:
        goal = CpusGoal("b1", frozenset({1}), "why")
        return Decision(cpus=(goal,), quotas=(QuotaGoal("b0", 0.5, "why"),), pinning=False)


def test_what_a_policy_limits_is_limited_in_a_simulation_and_restored() -> None:
    batch = (BatchSpec("b0"), BatchSpec("b1", 1, 2))
    simulation = Simulation(
        scenario(NOBODY, pcpus=2, batch=batch, duration_s=100.0, settle_s=5.0), {"limiting": Limiting()}, "limiting"
    )
    result = simulation.run()
    used = {vm.name: vm.cpu_share * 2 for vm in result.vms}
    assert used == pytest.approx({"shop-web": 0.0, "b0": 0.5, "b1": 1.0}, abs=0.01)
    vm = simulation.world.vms["b0"]
    assert simulation.host.read(vm.instance).quota == Quota(PERIOD_US // 2, PERIOD_US)
    simulation.release()
    assert simulation.host.read(vm.instance).quota == Quota(UNLIMITED, PERIOD_US)
    assert {vcpu.pcpu.index for vcpu in simulation.world.vms["b1"].vcpus} <= {0, 1}
    assert {len(vcpu.allowed) for vcpu in simulation.world.vms["b1"].vcpus} == {2}


def test_the_doctor_says_so() -> None:
    [finding] = [finding for finding in SimExaminer(scenario()).look() if finding.id == "cpu-quota"]
    assert str(finding.status) == "works"
