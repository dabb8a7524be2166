"""Weights and idleness act: two VMs that want one pCPU. Of amounts only the order of magnitude is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from manager.host.kernel_host import KernelHost
from manager.model.knobs import Knob, KnobKey
from tests.host.conftest import until
from tests.kernel.inside.cgroup_v2.conftest import Vm, open_host

MEASURED_NS = 1_000_000_000


@pytest.fixture
def host(web: Vm, batch: Vm) -> Iterator[KernelHost]:
    """With all threads that use CPU time on pCPU 0."""
    opened = open_host(web, batch)
    for vm in (web, batch):
        for index in range(2):
            opened.write(vm.instance, KnobKey(vm.process.uuid, Knob.VCPU_PIN, index), frozenset({0}))
        os.sched_setaffinity(vm.process.tids["worker"], {0})
    yield opened
    opened.forget(frozenset())


def weigh(host: KernelHost, vm: Vm, weight: int) -> None:
    assert host.write(vm.instance, KnobKey(vm.process.uuid, Knob.WEIGHT), weight) == weight


def idle(host: KernelHost, vm: Vm, value: int) -> None:
    assert host.write(vm.instance, KnobKey(vm.process.uuid, Knob.IDLE), value) == value


def used_ns(host: KernelHost, vms: tuple[Vm, ...]) -> list[int]:
    return [host.read(vm.instance).cpu_ns for vm in vms]


def spin(web: Vm, batch: Vm) -> None:
    """Make both busy; ``batch`` first, as it could not hear of it when ``web`` starves it."""
    batch.process.tell("spin")
    web.process.tell("spin")


def part_of_first(host: KernelHost, first: Vm, second: Vm) -> float:
    """The part of the pCPU that the first of two busy VMs gets for a while, 0 .. 1."""
    vms = (first, second)
    begin = used_ns(host, vms)
    until(lambda: sum(used_ns(host, vms)) > sum(begin) + MEASURED_NS, "they ran")
    mine, theirs = (end - start for end, start in zip(used_ns(host, vms), begin, strict=True))
    return mine / (mine + theirs)


def settles(host: KernelHost, first: Vm, second: Vm, low: float, high: float) -> None:
    """The first VM's part gets between two bounds.

    Not at once: who ran at a small weight, or idle, has virtual time to pay for. A tick of 4 ms in an idle group costs
    4 ms * 1024/3 = 1.4 s, which a competitor at the default weight runs before it is that group's turn again, and one
    at weight 10000 a hundred times as long.
    """
    until(lambda: low < part_of_first(host, first, second) < high, f"the part is between {low:g} and {high:g}")


def test_equal_weights_halve(host: KernelHost, web: Vm, batch: Vm) -> None:
    spin(web, batch)
    settles(host, web, batch, 0.35, 0.65)


def test_the_extremes_leave_almost_nothing(host: KernelHost, web: Vm, batch: Vm) -> None:
    weigh(host, web, 10_000)
    weigh(host, batch, 1)
    spin(web, batch)
    settles(host, web, batch, 0.95, 1.01)


def test_a_ratio_in_between(host: KernelHost, web: Vm, batch: Vm) -> None:
    weigh(host, web, 400)
    spin(web, batch)
    settles(host, web, batch, 0.65, 0.92)


def test_an_idle_vm_gets_almost_nothing_beside_one_at_the_default(host: KernelHost, web: Vm, batch: Vm) -> None:
    idle(host, batch, 1)
    spin(web, batch)
    settles(host, web, batch, 0.95, 1.01)


def test_an_idle_vm_gets_what_nobody_wants(host: KernelHost, web: Vm, batch: Vm) -> None:
    idle(host, batch, 1)
    batch.process.tell("spin")
    begin = host.read(batch.instance).cpu_ns
    until(lambda: host.read(batch.instance).cpu_ns > begin + MEASURED_NS, "it ran")


@pytest.mark.parametrize("knob", ["weight", "idle"])
def test_after_undoing_the_halves_are_back(host: KernelHost, web: Vm, batch: Vm, knob: str) -> None:
    """Also while both run all the time. One knob at a time: after both, 6.1 took seconds and 7.3 more than 20."""
    spin(web, batch)
    if knob == "weight":
        weigh(host, web, 10_000)
    else:
        idle(host, batch, 1)
    settles(host, web, batch, 0.95, 1.01)
    weigh(host, web, 100)
    idle(host, batch, 0)
    settles(host, web, batch, 0.3, 0.7)
