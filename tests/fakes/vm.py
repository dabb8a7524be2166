"""A running VM in memory, with the kernel's rules for its CPU group and its real-time limits. For unit tests only."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field

from manager.errors import HostError, VmVanished
from manager.model.cpus import CpuSet
from manager.model.host import Quota, VmInstance, WeightScale
from manager.model.knob_spec import KnobValue
from manager.model.knobs import LEAST_QUOTA_US, OUTSIDE, UNLIMITED, Knob, KnobKey
from manager.model.scheduling import MOST_LIMIT_US, is_real_time


def domain_uuid(name: str) -> str:
    """A UUID that is always the same for a name."""
    return f"00000000-0000-4000-8000-{abs(sum(ord(c) * 257**i for i, c in enumerate(name))) % 16**12:012x}"


@dataclass
class FakeVm:
    """A running QEMU process as the kernel shows it."""

    instance: VmInstance
    weight: int | None
    vcpus: list[CpuSet]
    emulator: CpuSet
    cpu_ns: int = 0
    delay_ns: int = 0
    run_ns: dict[int, int] = field(default_factory=dict)
    idle: bool = False
    quota: Quota = field(default_factory=lambda: Quota(UNLIMITED, 100_000))
    iothreads: dict[int, CpuSet] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()
    slices: dict[int, int] = field(default_factory=dict)
    warps: dict[Knob, int] = field(default_factory=dict)
    schedulings: dict[int, int] = field(default_factory=dict)
    runtimes: dict[tuple[Knob, int], int] = field(default_factory=dict)
    place: int = OUTSIDE
    memories: dict[tuple[Knob, int], int] = field(default_factory=dict)
    disks: dict[tuple[Knob, int], int] = field(default_factory=dict)
    egress: dict[int, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    tap_limits: dict[int, int] = field(default_factory=dict)

    def set_cpu(self, scale: WeightScale | None, knob: Knob, value: int) -> None:
        """Weight, idle class or quota, by the rules of a cgroup version's weights."""
        if scale is None:
            raise HostError("no such file", errno.ENOENT)
        if knob is Knob.IDLE:
            if value not in {0, 1}:
                raise HostError("write: Invalid argument", errno.EINVAL)
            if self.idle != bool(value):  # kernel/sched/fair.c, sched_group_set_idle: the weight before is lost
                self.idle, self.weight = bool(value), scale.default
        elif knob is Knob.QUOTA:
            if value != UNLIMITED and value < LEAST_QUOTA_US:
                raise HostError("write: Invalid argument", errno.EINVAL)
            self.quota = Quota(value, self.quota.period_us)
        elif self.idle:
            raise HostError("write: Invalid argument", errno.EINVAL)
        elif not scale.minimum <= value <= scale.maximum:
            raise HostError("write: Numerical result out of range", errno.ERANGE)
        else:
            self.weight = value

    def real_time_knobs(self, limits: bool) -> dict[KnobKey, KnobValue]:
        """Classes of the vCPUs, and with ``limits`` the real-time budgets of the groups they are in."""
        uuid, vcpus = self.instance.uuid, range(len(self.vcpus))
        knobs: dict[KnobKey, KnobValue] = {
            KnobKey(uuid, Knob.SCHEDULING, index): self.schedulings.get(index, 0) for index in vcpus
        }
        if limits:
            groups = [(Knob.RT_RUNTIME, 0), (Knob.RT_RUNTIME, 1), *((Knob.VCPU_RT_RUNTIME, index) for index in vcpus)]
            knobs |= {KnobKey(uuid, *group): self.runtimes.get(group, 0) for group in groups}
        return knobs

    def set_real_time(self, key: KnobKey, value: int, limits: bool, others_us: int, machine_us: int) -> None:
        """Set one of them, where the groups of other VMs have ``others_us`` of ``machine_us``."""
        if key not in self.real_time_knobs(limits):
            raise VmVanished(f"no {key.knob}", errno.ENOENT)
        if key.knob is Knob.SCHEDULING:
            if is_real_time(value) and not self.runtimes.get((Knob.VCPU_RT_RUNTIME, key.index)):
                raise HostError("sched_setattr: Operation not permitted", errno.EPERM)
            self.schedulings[key.index] = value
            return
        outer, inner = (self.runtimes.get((Knob.RT_RUNTIME, index), 0) for index in (0, 1))
        vcpus = {index: self.runtimes.get((Knob.VCPU_RT_RUNTIME, index), 0) for index in range(len(self.vcpus))}
        if key.knob is Knob.VCPU_RT_RUNTIME:
            if not value and is_real_time(self.schedulings.get(key.index, 0)):
                raise HostError("write: Device or resource busy", errno.EBUSY)
            within_limit(sum((vcpus | {key.index: value}).values()), 0, (), inner)
        elif key.index == 1:
            within_limit(value, 0, vcpus.values(), outer)
        else:
            within_limit(value, others_us, (inner,), machine_us)
        self.runtimes[key.knob, key.index] = value


def within_limit(value: int, beside: int, inside: Iterable[int], around: int = MOST_LIMIT_US) -> None:
    """kernel/sched/rt.c, tg_rt_schedulable: no group has less than those inside it together."""
    if sum(inside) > value or value + beside > around:
        raise HostError("write: Invalid argument", errno.EINVAL)
