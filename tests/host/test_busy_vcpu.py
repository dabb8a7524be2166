"""One busy thread of a VM with four vCPUs, on this kernel: it is seen although the VM's average is low."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from manager.control.tick_means import busiest_vcpu
from manager.host.kernel_host import KernelHost
from manager.loop.rates import rates
from manager.loop.reading import Reading, read_host
from manager.model.decision import VmView
from manager.model.registration import Mode, VmClass, VmSpec
from tests.host.conftest import REAL, QemuLike, until

VCPUS = 4


def test_one_busy_thread_fills_its_vcpu_alone(start: Callable[..., QemuLike]) -> None:
    vm = start(*(f"CPU {number}/KVM" for number in range(VCPUS)))
    host = KernelHost(REAL, None)
    before = read_host(host, {vm.uuid: vm.instance}, time.monotonic())
    vm.tell("spin CPU 2/KVM")
    view = VmView(VmSpec("web", VmClass.CRITICAL), VCPUS, 0.0, 0.0, Mode.ENFORCE, None)

    def seen() -> VmView:
        nonlocal before
        earlier, before = before, read_host(host, {vm.uuid: vm.instance}, time.monotonic())
        return interval(earlier, before)

    def interval(earlier: Reading, now: Reading) -> VmView:
        found = rates(vm.uuid, now, earlier, VCPUS)
        return replace(view, vcpu_pcpus=found.vcpu_pcpus, vcpu_waits=found.vcpu_waits)

    def alone() -> bool:
        time.sleep(0.3)  # an interval
        now = seen()
        busy = busiest_vcpu(now)
        return busy is not None and (busy.index, busy.full) == (2, 1) and sum(now.vcpu_pcpus) < VCPUS * 0.5

    until(alone, "vCPU 2, and no other, is full, running or waiting")
    host.forget(frozenset())
