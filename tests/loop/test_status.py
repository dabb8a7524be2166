"""What the agent reports of a tick, compared with files in ``golden``.

EQUIPOISE_REGENERATE_GOLDEN=1 writes them anew; read the diff.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from manager.loop.agent_metrics import AgentMetrics
from manager.loop.status import VmStatuses, power_controls, tick_record, tick_status
from manager.loop.tick import TickResult
from manager.model.host import PcpuTimes
from manager.model.knobs import Knob, KnobKey
from manager.model.law import Law
from manager.model.power import ANY_LATENCY, ClockDomain
from manager.model.records import VcpuTick
from manager.model.registration import Mode
from manager.model.rules import IrqSteering, PlacementRules
from manager.model.topology import NicQueue, Topology
from manager.protocol.report import PowerControlStatus, ReportIn, VmStatus
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

GOLDEN = Path(__file__).parent / "golden"


def compare(rig: Rig, result: TickResult, name: str) -> None:
    owned = sum(not one.owned.external for one in rig.journal.entries.values())
    report = {
        "tick": tick_status(result, 2, owned, rig.host.connected).model_dump(mode="json"),
        "vms": [one.model_dump(mode="json") for one in VmStatuses().of(result, rig.journal)],
    }
    text = json.dumps(report, indent=1) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("EQUIPOISE_REGENERATE_GOLDEN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.fixture
def busy(rig: Rig) -> Rig:
    """Two VMs registered, a third not, after one interval in which they ran."""
    for name, vcpus in (("web", 2), ("hog", 1), ("stranger", 1)):
        rig.host.boot(name, vcpus)
    rig.register("web")
    rig.register("hog", "batch")
    rig.tick()
    rig.host.vms[domain_uuid("web")].cpu_ns += 500_000_000
    rig.host.vms[domain_uuid("web")].delay_ns += 50_000_000
    rig.host.vms[domain_uuid("hog")].cpu_ns += 3_000_000_000
    return rig


def test_power_controls_in_force_are_counted_and_those_of_another_tool_are_not(rig: Rig) -> None:
    assert power_controls(rig.journal) is None
    rig.host.boot("web", 2)
    rig.host.powers = {(Knob.RESUME_LATENCY, cpu): ANY_LATENCY for cpu in range(4)} | {(Knob.GOVERNOR, 0): 2}
    rig.host.clock_domains = {0: ClockDomain(frozenset(range(4)), True)}
    rig.register("web")
    rig.control(placement=PlacementRules(resume_latency_us=20, performance_governor=True))
    for _ in range(3):
        rig.tick()
    assert power_controls(rig.journal) == PowerControlStatus(pcpus=2, clocks=1)
    [first, _] = [key for key in rig.journal.entries if key.knob is Knob.RESUME_LATENCY]
    rig.host.powers[first.knob, first.index] = 50
    rig.tick()
    assert power_controls(rig.journal) == PowerControlStatus(pcpus=1, clocks=1)
    rig.loop.release("test")
    assert power_controls(rig.journal) is None


def test_enforced(busy: Rig) -> None:
    compare(busy, busy.tick(), "enforced")


def test_values_are_those_that_the_tick_left(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    compare(rig, rig.tick(), "first-tick")


def test_a_foreign_value_is_shown_as_such(busy: Rig) -> None:
    busy.host.change(KnobKey(domain_uuid("web"), Knob.WEIGHT), 777)
    compare(busy, busy.tick(), "external")


def test_released(busy: Rig) -> None:
    busy.control(mode=Mode.RELEASED)
    busy.host.connected = False
    compare(busy, busy.tick(), "released")


def test_observed(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.control(mode=Mode.OBSERVE, policy="equal")
    compare(rig, rig.tick(), "observed")


def test_each_managed_pcpu_that_was_online_is_reported_as_busy_as_it_was(busy: Rig) -> None:
    def report(*times: tuple[int, int]) -> dict[str, float]:
        busy.host.pcpu_times = {number: PcpuTimes(*one) for number, one in enumerate(times)}
        return tick_status(busy.tick(), 0, 0, True).busy_pcpus

    managed = len(busy.host.capabilities.managed_cpus)
    assert report((100, 50), (100, 0)) == {}, "nothing is known of the interval before"
    assert report((1100, 300), (1100, 1000), (1000, 1000)) == {"0": 0.25, "1": 1.0}
    assert report((1100, 300), (2100, 900)) == {"1": 0.0}, "the first did not go on, and the last went offline"
    report(*[(0, 0)] * (managed + 1))
    assert list(report(*[(10, 5)] * (managed + 1))) == [str(number) for number in range(managed)]


def test_time_on_interrupts_is_a_share_of_the_interval(busy: Rig) -> None:
    def measured(**times: tuple[int, int, int]) -> dict[int, float]:
        busy.host.pcpu_times = {int(name[1:]): PcpuTimes(*one) for name, one in times.items()}
        return dict(busy.tick().snapshot.interrupts)

    assert measured(p0=(1000, 0, 0), p1=(1000, 500, 400)) == {}, "nothing is known of the interval before"
    assert measured(p0=(2000, 600, 250), p1=(2000, 500, 400)) == {0: 0.25, 1: 0.0}
    assert measured(p1=(3000, 1500, 1400)) == {1: 1.0}, "the other one went offline"
    assert measured(p1=(3000, 1500, 1400)) == {}, "no time went by"


def test_troubles_are_counted_and_unreadable_vms_left_out(busy: Rig) -> None:
    busy.host.unreadable.add(domain_uuid("web"))
    result = busy.tick()
    assert tick_status(result, 0, 0, True).errors == len(result.problems) == 1
    assert [one.vm for one in VmStatuses().of(result, busy.journal)] == ["hog"]


def besides_shares(vm: VmStatus) -> dict[str, object]:
    return vm.model_dump(exclude={"cpu_share", "run_delay_share"})


def test_what_is_kept_from_tick_to_tick_is_told_as_it_is(busy: Rig) -> None:
    known = VmStatuses()

    def kept() -> list[VmStatus]:
        result = busy.tick()
        told = known.of(result, busy.journal)
        afresh = VmStatuses().of(result, busy.journal)
        assert [besides_shares(vm) for vm in told] == [besides_shares(vm) for vm in afresh]
        return told

    kept()
    settled = kept()
    busy.host.vms[domain_uuid("web")].cpu_ns += 300_000_000
    assert all(now is then for now, then in zip(kept(), settled, strict=True)), "nothing changed but shares"
    busy.host.vms[domain_uuid("web")].weight = 77
    [external] = [one for vm in kept() if vm.vm == "web" for one in vm.knobs if one.knob == Knob.WEIGHT]
    assert (external.value, external.external) == ("77", True)
    busy.control(mode=Mode.RELEASED)
    kept()
    assert not any(one.owned for vm in kept() for one in vm.knobs)


def test_a_vm_that_migrates_is_told_of_when_that_begins_and_when_it_ends(busy: Rig) -> None:
    known, web = VmStatuses(), domain_uuid("web")
    busy.tick()
    for migrating in ([], [web], [web], []):
        statuses = known.of(busy.tick(), busy.journal, migrating)
        assert {vm.vm: vm.migrating for vm in statuses} == {"hog": False, "web": bool(migrating)}


def test_batch_vms_below_their_floor_are_told_of(rig: Rig) -> None:
    rig.host.boot("web")
    rig.host.boot("hog")
    rig.register("web")
    rig.register("hog", "batch")
    rig.control(law=Law(batch_floor=0.4, floor_window_s=1.0))
    first = tick_status(rig.tick(), 0, 0, True)
    assert (first.batch_cpu_share, first.critical_cpu_share) == (None, None), "there is nothing to compare with"
    for _ in range(2):
        rig.host.vms[domain_uuid("hog")].cpu_ns += 400_000_000
        rig.host.vms[domain_uuid("hog")].delay_ns += 500_000_000
        status = tick_status(rig.tick(), 0, 0, True, assignment_revision=5)
    assert status.batch is not None
    assert status.batch.cpu_share == pytest.approx(0.1)
    assert (status.batch.floor, status.batch.window_s, status.batch.raised) == (0.4, 1.0, True)
    assert (status.batch_cpu_share, status.critical_cpu_share, status.assignment_revision) == (
        pytest.approx(0.1),
        0.0,
        5,
    )
    rig.control(mode=Mode.RELEASED)
    assert tick_status(rig.tick(), 0, 0, True).batch is None, "nothing is decided any more"


def test_what_is_observed_is_told_at_every_tick(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.host.irqs = {40: frozenset({1, 2})}
    rules = PlacementRules(irqs=IrqSteering.RESERVED, reserved_cpus=frozenset({0}))
    rig.host.topology = replace(Topology.flat(range(4)), queues=(NicQueue("eth0", 40, *[frozenset({1, 2})] * 2),))
    rig.control(mode=Mode.OBSERVE, placement=rules)
    for _ in range(2):
        result = rig.tick()
        [vm] = VmStatuses().of(result, rig.journal)
        [weight] = [one for one in vm.observed if one.knob is Knob.WEIGHT]
        assert (vm.mode, weight.current, weight.planned) == (Mode.OBSERVE, "1024", "10000")
        [irq] = tick_status(result, 0, 0, True).observed
        assert (irq.knob, irq.index, irq.current, irq.planned) == (Knob.IRQ_AFFINITY, 40, "1-2", "0")
    rig.control(mode=Mode.ENFORCE)
    [vm] = VmStatuses().of(rig.tick(), rig.journal)
    assert (vm.mode, vm.observed) == (Mode.ENFORCE, [])


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda file: file.stem)
def test_what_is_reported_is_what_the_interface_takes(file: Path) -> None:
    about = {"agent_version": "0.1.0", "capabilities": FakeHost().capabilities}
    report = json.loads(file.read_text())
    taken = ReportIn.model_validate(about | report).model_dump(mode="json")
    assert {name: taken[name] for name in report} == report


def test_a_full_vcpu_is_told_of_where_the_average_is_low(rig: Rig) -> None:
    """In the tick's status with the others of its VM, in the history, and as gauges."""
    for name in ("web", "idle"):
        rig.host.boot(name, 4)
        rig.register(name)
        rig.host.vms[domain_uuid(name)].run_ns = dict.fromkeys(range(4), 0)
    rig.tick()
    vm = rig.host.vms[domain_uuid("web")]
    vm.run_ns = {0: 20_000_000, 1: 0, 2: 930_000_000, 3: 0}
    vm.cpu_ns += 950_000_000
    vm.delay_ns += 40_000_000  # of each of them
    result = rig.tick()
    [told] = tick_status(result, 0, 0, True).busy_vcpus
    assert (told.vm, told.used, told.waited) == ("web", [0.02, 0.0, 0.93, 0.0], [0.04] * 4)
    assert {one.vm: one.vcpu for one in tick_record(result).vms} == {"web": VcpuTick(2, 0.93, 0.04, 1), "idle": None}
    metrics = AgentMetrics()
    metrics.observe(result, 0, True)

    def gauge(name: str, of: str) -> float | None:
        return metrics.registry.get_sample_value(f"equipoise_vm_vcpu_{name}_max", {"vm": of})

    assert (gauge("use", "web"), gauge("wait", "web")) == (pytest.approx(0.93), pytest.approx(0.04))
    assert (gauge("use", "idle"), gauge("wait", "idle")) == (0.0, 0.0)
