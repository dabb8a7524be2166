"""A simulated host in step with a clock."""

from __future__ import annotations

import pytest

from manager.control.judged_windows import slot_number
from manager.host.port import HostPort
from manager.model.fields import adapter_of
from manager.model.histogram import Histogram
from manager.model.registration import ApplicationIn, HostIn, Mode, VmIn
from manager.model.rules import PlacementRules
from manager.model.source import SourceKind, SourceState
from manager.model.traffic import HostServices
from manager.sim.live import LiveSimulation, registrations
from manager.sim.scenario import BatchSpec, Constant, Fault, FaultKind, VmSettings
from manager.sim.scenario_files import load_scenario
from manager.telemetry.telemetry_port import Telemetry
from tests.sim.build import app, scenario

BEGIN_S = 1_700_000_002.0


class Clock:
    def __init__(self) -> None:
        self.now_s = BEGIN_S

    def __call__(self) -> float:
        return self.now_s


def made(speed: float = 1.0, **fields: object) -> tuple[LiveSimulation, Clock]:
    clock = Clock()
    shop = app("shop", Constant(40.0), vcpus=2)
    return LiveSimulation(scenario(shop, batch=(BatchSpec("batch", 2),), **fields), speed, clock), clock


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_counters_follow_the_clock(speed: float) -> None:
    live, clock = made(speed)
    host: HostPort = live.host
    before = host.cpu_times()
    for _ in range(10):
        clock.now_s += 3.0
        after = host.cpu_times()
    assert after.total_ns - before.total_ns == pytest.approx(2 * 30e9, rel=1e-6)
    used_ns = sum(host.read(vm).cpu_ns for vm in host.running().values())
    assert used_ns == pytest.approx(after.busy_ns, rel=1e-6)
    shop = next(vm for vm in host.running().values() if vm.libvirt_name == "shop-web")
    assert host.read(shop).cpu_ns / 30e9 == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_slots_lie_where_those_of_real_sources_do(speed: float) -> None:
    live, clock = made(speed)
    telemetry: Telemetry = live.telemetry
    clock.now_s += 12.0
    [*whole, newest] = telemetry.slots()["shop"]
    assert [(one.start_s, one.end_s) for one in whole] == [(BEGIN_S, BEGIN_S + 3), (BEGIN_S + 3, BEGIN_S + 8)]
    assert (newest.start_s, newest.end_s) == (BEGIN_S + 8, BEGIN_S + 12)
    numbers = [slot_number(one.end_s, 5.0) for one in (*whole, newest)]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert telemetry.recent() == (newest,)
    assert telemetry.closed() == tuple(whole)
    assert telemetry.closed() == ()
    clock.now_s += 100.0 / 2
    rates = [one.rate_rps or 0 for one in telemetry.slots()["shop"][1:]]
    assert sum(rates) / len(rates) == pytest.approx(40, rel=0.15)
    assert telemetry.slots()["shop"][0] == whole[0]


def test_slots_have_the_managers_length_from_then_on() -> None:
    live, clock = made()
    clock.now_s += 10.0
    live.telemetry.configure((), 2.0, {}, {})
    assert live.telemetry.slots() == {}
    live.telemetry.configure(live.scenario.assignment("equal").applications, 2.0, {}, {})
    clock.now_s += 8.0
    ends = [one.end_s - BEGIN_S for one in live.telemetry.slots()["shop"]]
    assert ends == [3, 8, 10, 12, 14, 16, 18]


def test_the_world_stands_still_while_nobody_looked_for_long() -> None:
    live, clock = made()
    clock.now_s += 10.0
    before = live.host.cpu_times()
    clock.now_s += 3600.0
    assert live.host.cpu_times() == before
    clock.now_s += 2.0
    assert live.host.cpu_times().total_ns == pytest.approx(before.total_ns + 4e9)
    assert all(one.end_s <= clock.now_s for one in live.telemetry.slots()["shop"])


def test_sources_have_a_state() -> None:
    live, clock = made(faults=(Fault(FaultKind.SOURCE_SILENT, 20, 20, "shop"),))
    states = []
    for _ in range(6):
        [status] = live.telemetry.statuses()
        states.append(status.state)
        clock.now_s += 10.0
    ok, silent = SourceState.OK, SourceState.SILENT
    assert states == [SourceState.STARTING, ok, ok, silent, silent, ok]
    assert (status.application, status.kind) == ("shop", SourceKind.TAP)
    assert status.accepted > 500


def test_each_simulation_is_another_boot() -> None:
    assert made()[0].host.boot_id != made()[0].host.boot_id


def test_a_speed_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use 0\.1 to 100"):
        LiveSimulation(scenario(), 0.0)


def test_a_cache_is_registered_with_what_is_asked_of_it() -> None:
    found = dict(registrations(load_scenario("cache-thrash"), "here", "fair"))
    assert found["/hosts/here"]["cache"] == "on"
    assert found["/applications/shop"]["cache"] == "auto"
    adapter_of(ApplicationIn).validate_python(found["/applications/shop"])
    adapter_of(HostIn).validate_python(found["/hosts/here"])


def test_what_is_registered_is_what_the_interface_takes() -> None:
    found = registrations(load_scenario("spike"), "here", "fair")
    paths = [path for path, _ in found]
    assert paths[0] == "/vms/calm-web"
    assert paths[-3:] == ["/applications/calm", "/applications/spiking", "/hosts/here"]
    shapes = {"vms": VmIn, "applications": ApplicationIn, "hosts": HostIn}
    for path, body in found:
        adapter_of(shapes[path.split("/")[1]]).validate_python(body)


def test_vms_and_host_are_registered_as_the_scenario_has_them() -> None:
    own = VmSettings("batch", 50, True, frozenset({0, 1}), 0.5, Mode.OBSERVE, initial_weight=7)
    placement = PlacementRules(reserved_cpus=frozenset({1}))
    told = scenario(
        batch=(BatchSpec("batch"),), settings=(own,), mode=Mode.OBSERVE, batch_idle=True, placement=placement
    )
    found = dict(registrations(told, "here", "fair"))
    vm = adapter_of(VmIn).validate_python(found["/vms/batch"])
    assert (vm.weight, vm.pin, vm.cpus, vm.max_pcpus, vm.mode) == (50, True, {0, 1}, 0.5, Mode.OBSERVE)
    host = adapter_of(HostIn).validate_python(found["/hosts/here"])
    assert (host.mode, host.batch_idle, host.placement) == (Mode.OBSERVE, True, placement)


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_services_are_those_of_the_applications_registered_or_not(speed: float) -> None:
    live, clock = made(speed)
    telemetry: Telemetry = live.telemetry
    telemetry.configure((), 5.0, {}, {})
    assert telemetry.services() == HostServices(simulated=True)
    clock.now_s += 59.0
    found = telemetry.services()
    assert (found.simulated, found.problem) == (True, "")
    [service] = found.services
    [shop] = [vm for vm in live.host.running().values() if vm.libvirt_name == "shop-web"]
    assert (service.libvirt_uuid, service.port, service.protocol) == (shop.uuid, 80, "http")
    assert service.rate_rps == pytest.approx(40, rel=0.15)
    assert service.error_share == 0
    assert service.since_s == BEGIN_S
    clock.now_s += 30.0
    [service] = telemetry.services().services
    assert service.window_s == pytest.approx(60, abs=5)
    live.telemetry.configure(live.scenario.assignment("equal").applications, 5.0, {}, {})
    windows = telemetry.slots()["shop"][:-1]
    p95_us = Histogram().merge(*(one.histogram for one in windows[-12:])).percentile_us(95)
    assert p95_us is not None
    assert service.p95_ms == pytest.approx(p95_us / 1000, rel=0.02)


def test_services_of_a_vm_that_fails() -> None:
    """What is not answered is an error; while the VM is gone it has no service."""
    live, clock = made(faults=(Fault(FaultKind.VM_RESTART, 20.0, 10.0, "shop-web"),))
    clock.now_s += 25.0
    assert live.telemetry.services().services == ()
    clock.now_s += 15.0
    [service] = live.telemetry.services().services
    assert service.error_share == pytest.approx(10 / 35, abs=0.1)
