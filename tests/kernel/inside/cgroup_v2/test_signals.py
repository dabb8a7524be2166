"""Pressure and memory of groups of v2: while VMs wait for a pCPU or for memory, and where it is switched off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from manager.control.resource_rates import CountedVm, Round, resource_use
from manager.host.kernel_host import KernelHost
from manager.model.resource_use import VmCounters, VmResources
from tests.host.conftest import until
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, SLICE, Vm, open_host

MIB = 1 << 20
HELD_MIB = 8
MEMORY = CGROUPS / "cgroup.subtree_control", SLICE / "cgroup.subtree_control"


@pytest.fixture
def memory() -> Iterator[None]:
    """VMs have the memory controller."""
    for file in MEMORY:
        file.write_text("+memory")
    yield
    for file in reversed(MEMORY):
        file.write_text("-memory")


@pytest.fixture
def host(web: Vm, batch: Vm) -> Iterator[KernelHost]:
    opened = open_host(web, batch)
    yield opened
    opened.resources.forget(())


def used(host: KernelHost, vm: Vm, meanwhile: Callable[[], object]) -> VmResources:
    def counted() -> Round:
        return Round({vm.name: CountedVm(vm.instance, host.resources.vm(vm.instance))}, {}, host.resources.host(()))

    before = counted()
    meanwhile()
    [use] = resource_use(counted(), before).vms
    return use


def test_a_vm_that_waits_for_a_pcpu_shows_pressure_of_its_own(host: KernelHost, web: Vm, batch: Vm) -> None:
    for vm in (web, batch):
        vm.process.tell("spin")
    use = used(host, web, lambda: time.sleep(0.5))
    assert use.cpu_pressure is not None and use.cpu_pressure > 0.2, use
    assert use.memory_pressure == use.io_pressure == 0.0
    for vm in (web, batch):
        vm.process.tell("rest")

    def rests() -> bool:
        part = used(host, web, lambda: time.sleep(0.2)).cpu_pressure
        return part is not None and part < 0.2

    until(rests, "it waits no more, once all has come to rest")


def test_without_a_memory_controller_faults_are_those_of_the_process(host: KernelHost, web: Vm) -> None:
    counters = host.resources.vm(web.instance)
    assert counters.refaults is None
    assert counters.major_faults is not None and (counters.resident_bytes or 0) > MIB


def test_a_vm_held_below_what_it_needs_waits_for_memory(host: KernelHost, web: Vm, memory: None) -> None:
    high = web.scope / "memory.high"
    roomy = used(host, web, lambda: web.process.tell(f"hold {HELD_MIB}"))
    assert roomy.memory_pressure == 0.0
    assert roomy.refaults_per_s is not None
    web.process.tell("hold 0")
    high.write_text(str(int((web.scope / "memory.current").read_text()) + MIB))
    try:
        tight = used(host, web, lambda: web.process.tell("hold 2"))
    finally:
        high.write_text("max")
        web.process.tell("hold 0")
    assert tight.memory_pressure is not None and tight.memory_pressure > 0.1, tight
    assert (tight.growth_bytes_per_s or 0.0) > 0


def test_pressure_that_is_switched_off_for_a_group_is_missing_until_it_is_on_again(host: KernelHost, web: Vm) -> None:
    def counters() -> VmCounters:
        return host.resources.vm(web.instance)

    switch = web.scope / "cgroup.pressure"
    if not switch.exists():
        pytest.skip("NOT TESTED: this kernel cannot switch pressure off for a group (before Linux 6.1)")
    assert None not in counters().pressures
    switch.write_text("0")
    try:
        assert set(counters().pressures) == {None}
    finally:
        switch.write_text("1")
    assert None not in counters().pressures
