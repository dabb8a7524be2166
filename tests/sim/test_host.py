"""The simulated host answers as the kernel does."""

from __future__ import annotations

import errno

import pytest

from manager.errors import HostError, VmVanished
from manager.host.port import HostPort
from manager.loop.rates import rates
from manager.loop.reading import read_host
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.sim.scenario import BatchSpec, Fault, FaultKind
from manager.sim.sim_host import SimHost
from manager.sim.world import World
from tests.sim.build import app, scenario

FAULTS = (
    Fault(FaultKind.VM_RESTART, 100, 10, "shop-web"),
    Fault(FaultKind.READ_ERROR, 200, 10, "shop-web"),
    Fault(FaultKind.WRITE_ERROR, 300, 10, "shop-web"),
    Fault(FaultKind.LIBVIRT_AWAY, 395, 20),
    Fault(FaultKind.VM_RESTART, 400, 10, "shop-web"),
)


def made(cgroup: int = 2) -> tuple[World, HostPort]:
    world = World(scenario(app(vcpus=2), batch=(BatchSpec("batch", 2),), cgroup=cgroup, faults=FAULTS))
    return world, SimHost(world)


def instance(host: HostPort, name: str = "shop-web") -> VmInstance:
    return next(one for one in host.running().values() if one.libvirt_name == name)


def write(host: HostPort, knob: Knob, value: KnobValue, index: int = 0) -> KnobValue:
    vm = instance(host)
    return host.write(vm, KnobKey(vm.uuid, knob, index), value)


def test_what_it_says_of_itself() -> None:
    _, host = made()
    found = host.capabilities
    assert (found.cgroup_version, found.weights) == (2, CPU_WEIGHT_V2)
    assert found.online_cpus == found.managed_cpus == {0, 1}
    assert "simulated" in found.warnings[0]
    assert made(1)[1].capabilities.weights == CPU_SHARES_V1
    assert host.connected
    assert sorted(one.libvirt_name for one in host.running().values()) == ["batch-1", "batch-2", "shop-web"]
    assert all(uuid == one.uuid for uuid, one in host.running().items())


def test_waits_are_those_of_a_reading_and_none_of_a_vm_that_is_gone() -> None:
    world, host = made()
    vm, batch = instance(host), instance(host, "batch-1")
    world.run_until(50.0)
    assert host.waits([vm, batch]) == [tuple(vcpu.run_delay_ns for vcpu in host.read(one).vcpus) for one in (vm, batch)]
    assert max(*host.waits([batch])) > 0
    world.run_until(105.0)
    assert host.waits([batch, vm])[1] == ()


@pytest.mark.parametrize("cgroup", [1, 2])
def test_settings_are_read_back_as_written(cgroup: int) -> None:
    _, host = made(cgroup)
    state = host.read(instance(host))
    scale = host.capabilities.weights
    assert scale is not None
    assert state.weight == scale.default
    assert [vcpu.cpus for vcpu in state.vcpus] == [{0, 1}, {0, 1}]
    assert write(host, Knob.WEIGHT, scale.maximum) == scale.maximum
    assert write(host, Knob.VCPU_PIN, frozenset({1}), 1) == {1}
    assert write(host, Knob.EMULATOR_PIN, frozenset({0, 7})) == {0}  # there is no pCPU 7
    state = host.read(instance(host))
    assert state.weight == scale.maximum
    assert [vcpu.cpus for vcpu in state.vcpus] == [{0, 1}, {1}]
    assert state.emulator_cpus == {0}


@pytest.mark.parametrize(
    ("knob", "value", "index", "number"),
    [
        (Knob.WEIGHT, 0, 0, errno.ERANGE),
        (Knob.WEIGHT, 10_001, 0, errno.ERANGE),
        (Knob.WEIGHT, frozenset({1}), 0, errno.EINVAL),
        (Knob.VCPU_PIN, frozenset({2, 9}), 0, errno.EINVAL),
        (Knob.VCPU_PIN, 5, 0, errno.EINVAL),
        (Knob.EMULATOR_PIN, frozenset(), 0, errno.EINVAL),
        (Knob.VCPU_PIN, frozenset({0}), 2, errno.ESRCH),
    ],
)
def test_what_the_kernel_refuses_is_refused_and_changes_nothing(
    knob: Knob, value: KnobValue, index: int, number: int
) -> None:
    _, host = made()
    before = host.read(instance(host)).knobs()
    with pytest.raises(HostError) as refused:
        write(host, knob, value, index)
    assert refused.value.errno == number
    assert host.read(instance(host)).knobs() == before


@pytest.mark.parametrize(("weight", "held"), [(0, 2), (1, 2), (2, 2), (262_144, 262_144), (300_000, 262_144)])
def test_cgroup_v1_takes_any_weight_into_its_range(weight: int, held: int) -> None:
    _, host = made(1)
    assert write(host, Knob.WEIGHT, weight) == held


def test_a_vm_that_went_away_is_gone_for_good() -> None:
    world, host = made()
    vm = instance(host)
    world.run_until(105.0)
    assert not host.is_alive(vm)
    assert vm.uuid not in host.running()
    key = KnobKey(vm.uuid, Knob.WEIGHT)
    for _ in range(2):  # while it is down, and when another process runs
        with pytest.raises(VmVanished):
            host.read(vm)
        with pytest.raises(VmVanished):
            host.write(vm, key, 500)
        world.run_until(120.0)
    again = instance(host)
    assert again.uuid == vm.uuid
    assert again != vm
    assert host.read(again).cpu_ns < 11e9


def test_errors_of_the_kernel_come_and_go() -> None:
    world, host = made()
    world.run_until(205.0)
    with pytest.raises(HostError) as refused:
        host.read(instance(host))
    assert refused.value.errno == errno.EIO
    world.run_until(305.0)
    host.read(instance(host))
    with pytest.raises(HostError) as refused:
        write(host, Knob.WEIGHT, 200)
    assert refused.value.errno == errno.EIO
    world.run_until(320.0)
    assert write(host, Knob.WEIGHT, 200) == 200


def test_while_libvirtd_is_away_the_list_is_old() -> None:
    world, host = made()
    vm = instance(host)
    world.run_until(390.0)
    vm = instance(host)
    world.run_until(405.0)
    assert not host.connected
    assert host.running()[vm.uuid] == vm
    assert not host.is_alive(vm)
    world.run_until(420.0)
    assert host.connected
    assert host.running()[vm.uuid] != vm


def test_the_loop_reads_shares_and_delays_from_its_counters() -> None:
    world, host = made()
    before = read_host(host, host.running(), world.now_s)
    world.run_until(50.0)
    now = read_host(host, host.running(), world.now_s)
    shares = {state.instance.libvirt_name: rates(uuid, now, before, 2).cpu_share for uuid, state in now.states.items()}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    assert shares["shop-web"] == pytest.approx(0.25, abs=0.03)  # 50 req/s of 10 ms on two pCPUs
    delays = [rates(uuid, now, before, 2).run_delay_share for uuid in now.states]
    assert all(0 < delay < 2 for delay in delays)
    assert now.times is not None
    assert now.times.busy_ns == now.times.total_ns == 100 * 10**9
