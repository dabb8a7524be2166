"""Rounds of readings of memory, disks and network: spread over ticks, beside them, and none spoils another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from manager.loop.agent_metrics import AgentMetrics
from manager.loop.resource_keeper import CALM_EVERY_S, EVERY_S, NO_RESOURCES
from manager.loop.status import tick_record, tick_status
from manager.loop.tick import TickResult
from manager.model.energy import EnergyCounter, EnergyPart, HostPower
from manager.model.host import VmInstance
from manager.model.registration import VmClass
from manager.model.resource_use import (
    DeviceCounters,
    DiskCounters,
    HostCounters,
    LinkCounters,
    PcpuPower,
    Pressures,
    Signal,
    Uplink,
    VmCounters,
)
from tests.fakes.host import FakeHost
from tests.fakes.resources import FakeResources
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

ROUND, CALM_ROUND = round(EVERY_S), round(CALM_EVERY_S)
VMS = [f"vm{number}" for number in range(2 * ROUND)]
DISK = {"vda": DiskCounters(0, 0, 0)}


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Rig, FakeResources]:
    """Ten managed VMs on a host with a tick each second."""
    host = FakeHost()
    resources = host.resources = FakeResources(host)
    for name in VMS:
        host.boot(name)
        resources.counters[domain_uuid(name)] = VmCounters(0.0, Pressures(0, 0, 0), 0, 0, 1 << 20, DISK)
    host.interfaces = {domain_uuid("vm0"): frozenset({7})}
    resources.own = HostCounters(
        0.0,
        Pressures(0, 0, 0),
        {"vda": DeviceCounters(0, 0, 0, 0)},
        {7: LinkCounters(0, 0, 0, 0, 0)},
        {},
        (Uplink(2, None),),
    )
    rig = Rig(tmp_path, host)
    for name in VMS:
        rig.register(name)
    return rig, resources


def tick(rig: Rig, resources: FakeResources, seconds: int = 1) -> TickResult:
    """That many, each with what comes after it. In each second, vm0 writes 2 MB and sends 1 MB."""
    for _ in range(seconds):
        result = rig.tick()
        resources.now_s = rig.now_s
        uuid = domain_uuid("vm0")
        if uuid in resources.counters:
            disks = {"vda": DiskCounters(0, round(rig.now_s) * 2_000_000, round(rig.now_s) * 10)}
            resources.counters[uuid] = resources.counters[uuid]._replace(disks=disks)
        sent = round(rig.now_s) * 1_000_000
        resources.own = resources.own._replace(links={7: LinkCounters(sent, 0, sent // 1000, 0, 0)})
        rig.loop.look_at_resources(result)
    return result


def test_a_round_is_spread_over_ticks(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    for number in range(1, ROUND + 1):
        tick(rig, resources)
        assert resources.reads == sorted(VMS)[: 2 * number]
    tick(rig, resources, ROUND)
    assert resources.reads == sorted(VMS) * 2


def test_while_every_sla_is_met_rounds_take_twice_as_long(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    tick(rig, resources, 2 * ROUND)  # the first rates do not wait
    resources.reads.clear()
    for number in range(1, CALM_ROUND + 1):
        tick(rig, resources)
        assert resources.reads == sorted(VMS)[:number]


def test_rates_are_seen_by_the_ticks_after_a_round(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    assert tick(rig, resources, 2 * ROUND).snapshot.resources == NO_RESOURCES
    result = tick(rig, resources)
    vm0 = result.snapshot.resources.of("vm0")
    assert vm0 is not None
    assert (vm0.disks[0].written_bytes_per_s, vm0.disks[0].requests_per_s) == (2_000_000, 10)
    assert [(link.interface, link.sent_bytes_per_s) for link in vm0.interfaces] == [("vnet7", 1_000_000)]
    assert [vm.vm for vm in result.snapshot.resources.vms] == sorted(VMS)


def test_a_record_has_them_once_a_round_and_only_what_is_notable(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    tick(rig, resources, 2 * ROUND)
    records = [tick_record(tick(rig, resources)) for _ in range(3 * ROUND)]
    told = [number for number, record in enumerate(records) if record.resources is not None]
    assert told == [0, CALM_ROUND]
    first = records[0].resources
    assert first is not None
    assert [vm.vm for vm in first.vms] == ["vm0"]
    assert first.missing == ()


def test_a_vm_that_restarts_amid_a_round_has_no_rates_of_its_past(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    tick(rig, resources, ROUND + 1)
    rig.host.stop("vm0")
    rig.host.boot("vm0")
    result = tick(rig, resources, ROUND)
    assert result.snapshot.resources.of("vm0") is None
    assert [vm.vm for vm in rig.loop._resources.latest.vms] == sorted(VMS)[1:]
    assert tick(rig, resources, 2 * CALM_ROUND).snapshot.resources.of("vm0") is not None


@pytest.mark.parametrize("what", ["vanishes", "unreadable", "stops"])
def test_one_vm_does_not_stop_the_others(counted: tuple[Rig, FakeResources], what: str) -> None:
    rig, resources = counted
    tick(rig, resources, ROUND + 1)
    if what == "unreadable":
        resources.unreadable.add("vm3")
    elif what == "vanishes":
        rig.host.vanish("vm3")
    else:
        rig.host.stop("vm3")
    result = tick(rig, resources, 2 * ROUND)
    assert [vm.vm for vm in result.snapshot.resources.vms] == [name for name in sorted(VMS) if name != "vm3"]
    resources.unreadable.clear()


def test_a_host_that_cannot_be_read_gives_no_rates_until_it_can(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    tick(rig, resources, 2 * ROUND)
    resources.failing = True
    use = tick(rig, resources, CALM_ROUND + 1).snapshot.resources
    assert (use.disks, use.uplinks) == ((), ())
    assert set(use.missing) == {Signal.DISK_LATENCY, Signal.NETWORK}
    assert use.of("vm0") is not None, "VMs are read for themselves"
    resources.failing = False
    use = tick(rig, resources, 2 * CALM_ROUND).snapshot.resources
    assert use.missing == () and use.disks


def test_files_of_vms_that_are_gone_are_let_go_of(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    tick(rig, resources, ROUND)
    assert len(resources.held) == len(VMS)
    for name in VMS[1:]:
        rig.host.stop(name)
    tick(rig, resources, 2 * ROUND)
    assert {instance.libvirt_name for instance in resources.held} == {"vm0"}


def test_no_reading_is_part_of_a_tick(counted: tuple[Rig, FakeResources], monkeypatch: pytest.MonkeyPatch) -> None:
    rig, resources = counted

    def never(_instance: VmInstance) -> VmCounters:
        raise AssertionError("read within a tick")

    monkeypatch.setattr(resources, "vm", never)
    rig.tick()
    rig.loop.release("agent stopped")


def test_a_host_without_counters_is_controlled_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.host.boot("web")
    rig.register("web")
    result = rig.tick()
    rig.loop.look_at_resources(result)
    assert rig.tick().snapshot.resources == NO_RESOURCES
    assert tick_record(result).resources is None


def test_the_clock_of_pcpus_is_read_where_critical_vms_are_pinned(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    powers = {cpu: PcpuPower(None, 0, 1_000_000 * (cpu + 1), 4_000_000) for cpu in range(4)}
    resources.own = resources.own._replace(pcpus=powers)
    batch = (replace(vm, vm_class=VmClass.BATCH) if vm.name == "vm9" else vm for vm in rig.assignment.vms)
    rig.assignment = replace(rig.assignment, vms=tuple(batch))
    result = tick(rig, resources, 3 * ROUND + 1)
    uses = result.snapshot.resources.vms
    for view in result.snapshot.vms:
        [use] = [use for use in uses if use.vm == view.name]
        expected = [powers[cpu].clock_khz / 4_000_000 for cpu in view.pinned]  # type: ignore[operator]
        assert use.clock_part == (pytest.approx(sum(expected) / len(expected)) if expected else None)
    assert {bool(view.pinned) for view in result.snapshot.vms} == {True, False}, "batch VMs float"
    metrics = AgentMetrics()
    metrics.observe(result, 0, True)
    page = generate_latest(metrics.registry).decode()
    assert page.count("equipoise_vm_clock_ratio{") == len(VMS) - 1
    assert "equipoise_vm_resume_seconds{" not in page


def test_metrics_have_all_vms(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    metrics = AgentMetrics()
    metrics.observe(tick(rig, resources, 2 * ROUND + 1), 0, True)
    page = generate_latest(metrics.registry).decode()
    assert 'equipoise_vm_disk_bytes_per_second{device="vda",direction="write",vm="vm0"} 2e+06' in page
    assert 'equipoise_vm_disk_bytes_per_second{device="vda",direction="write",vm="vm9"} 0.0' in page
    assert 'equipoise_vm_pressure_ratio{resource="memory",vm="vm1"} 0.0' in page
    assert 'equipoise_vm_network_bytes_per_second{direction="sent",interface="vnet7",vm="vm0"} 1e+06' in page
    assert 'equipoise_host_disk_busy_ratio{device="vda"} 0.0' in page
    assert "equipoise_vm_vhost_pcpus{" not in page


def energy(package_j: float, dram_j: float) -> dict[str, EnergyCounter]:
    joules = {EnergyPart.PACKAGE: package_j, EnergyPart.DRAM: dram_j}
    return {part: EnergyCounter(part, round(value * 1e6), 262_000_000_000) for part, value in joules.items()}


def test_the_power_of_the_host_is_in_each_tick_and_its_energy_is_counted(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted

    def second() -> TickResult:
        resources.own = resources.own._replace(energy=energy(100.0 * rig.now_s, 20.0 * rig.now_s))
        return tick(rig, resources)

    results = [second() for _ in range(3 * ROUND)]
    watts = [tick_record(result).power_watts for result in results]
    assert watts[: 2 * ROUND] == [None] * 2 * ROUND, "two readings make a difference"
    assert watts[2 * ROUND :] == pytest.approx([120.0] * ROUND)
    last = results[-1]
    assert last.power == HostPower(pytest.approx(100.0), pytest.approx(20.0))
    assert last.energy_j == pytest.approx({"package": 100.0 * ROUND, "dram": 20.0 * ROUND})
    assert tick_status(last, 0, 0, connected=True).power == last.power

    resources.own = resources.own._replace(energy={})  # as where the files can no longer be read
    later = tick(rig, resources, 2 * ROUND)
    assert later.power is None
    assert later.energy_j.keys() == {"package", "dram"}, "what was counted stays"


def test_metrics_have_the_energy_of_the_host_and_the_power_of_vms(counted: tuple[Rig, FakeResources]) -> None:
    rig, resources = counted
    for _ in range(2 * ROUND + 1):
        resources.own = resources.own._replace(energy=energy(100.0 * rig.now_s, 20.0 * rig.now_s))
        result = tick(rig, resources)
    view = result.snapshot.vms[0]
    vms = (replace(view, cpu_share=0.4), *result.snapshot.vms[1:])
    result = replace(result, busy=0.8, snapshot=replace(result.snapshot, vms=vms))
    metrics = AgentMetrics()
    metrics.observe(result, 0, connected=True)
    page = generate_latest(metrics.registry).decode()
    assert f'equipoise_host_energy_joules_total{{domain="package"}} {100.0 * ROUND}' in page
    assert f'equipoise_host_energy_joules_total{{domain="dram"}} {20.0 * ROUND}' in page
    [line] = [line for line in page.splitlines() if line.startswith(f'equipoise_vm_power_watts{{vm="{view.name}"}}')]
    assert float(line.split()[1]) == pytest.approx((120.0 - 120.0 * 0.5 / 0.9) / 2), "half of what is not idle"
