"""Applications and VMs as they run: who serves which request."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.histogram import bucket_of
from manager.model.host import VmInstance
from manager.sim.cpu_sharing import INFINITE, Request, SchedulingGroup, SimCpus, Vcpu
from manager.sim.loads import arrivals, random_stream, request_maker
from manager.sim.scenario import AppSpec, BatchSpec, MemoryUse


class App:
    """An application as it runs. ``counts`` are the response times of the current slot, by bucket."""

    __slots__ = ("answered", "arrivals", "counts", "failed", "make", "spec", "tiers", "timed_out", "timeout_s", "turns")

    def __init__(self, spec: AppSpec, seed: int) -> None:
        """The VMs of each tier are added later. Arrivals and service times depend on nothing but name and seed."""
        self.spec = spec
        self.arrivals = arrivals(spec.load, random_stream(f"{seed}/{spec.name}/arrivals"))
        self.make = request_maker([tier.service for tier in spec.tiers], random_stream(f"{seed}/{spec.name}/service"))
        self.tiers: list[list[SimVm]] = [[] for _ in spec.tiers]
        self.turns = [0] * len(spec.tiers)
        self.timeout_s = spec.timeout_s
        self.counts: dict[int, int] = {}
        self.answered = self.timed_out = self.failed = 0

    def record(self, time_s: float) -> None:
        """Count a response time."""
        bucket = bucket_of(time_s * 1e6)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def oldest_s(self) -> float:
        """When the request came that has waited longest for its answer; infinite where none waits."""
        starts = [INFINITE]
        for tier in self.tiers:
            for vm in tier:
                starts += [vcpu.request[0] for vcpu in vm.vcpus if vcpu.request]
                starts += [request[0] for request in vm.queue]
        return min(starts)


class SimVm(SchedulingGroup):
    """A VM as it runs, or as it did when ``alive`` is false. ``idle`` are its sleeping vCPUs.

    Requests take ``slower`` times their CPU time, for what the VM has of cache and memory.
    """

    __slots__ = (
        "alive",
        "app",
        "batch",
        "emulator",
        "forward",
        "idle",
        "instance",
        "name",
        "past_cpu_s",
        "queue",
        "slower",
        "tier",
        "wave",
    )

    def __init__(
        self,
        name: str,
        instance: VmInstance,
        weight: int,
        vcpus: int,
        cpus: SimCpus,
        forward: list[tuple[Request, App, int]],
    ) -> None:
        """A VM without work. Requests that go on to tier n of their application are put into ``forward``."""
        super().__init__(weight, vcpus, cpus.pcpus)
        self.name = name
        self.instance = instance
        self.alive = True
        self.emulator = frozenset(range(len(cpus.pcpus)))
        self.past_cpu_s = 0.0
        self.app: App | None = None
        self.tier = 0
        self.batch: BatchSpec | None = None
        self.forward = forward
        self.idle = list(reversed(self.vcpus))
        self.queue: deque[Request] = deque()
        self.wave = 0
        self.slower = 1.0

    @property
    def memory(self) -> MemoryUse | None:
        """What it does with cache and memory; None: nothing."""
        if self.app is not None:
            return self.app.spec.tiers[self.tier].memory
        return self.batch.memory if self.batch else None

    def next_work(self, vcpu: Vcpu, now_s: float) -> float:
        """Finish the vCPU's request, and take the next one that has not waited too long."""
        app, tier, request = self.app, self.tier, vcpu.request
        if app is None:
            return 0.0
        if request is not None:
            if tier + 1 < len(app.tiers):
                self.forward.append((request, app, tier + 1))
            else:
                app.record(now_s - request[0])
                app.answered += 1
        queue = self.queue
        while queue:
            request = queue.popleft()
            if now_s - request[0] <= app.timeout_s:
                vcpu.request = request
                return request[1][tier] * self.slower
            app.record(app.timeout_s)
            app.timed_out += 1
        vcpu.request = None
        self.idle.append(vcpu)
        return 0.0


@dataclass(frozen=True, slots=True)
class AppSlot:
    """What happened to an application in one slot.

    ``counts`` are response times by bucket; ``answered`` and ``timed_out`` requests are in it, ``failed`` ones (no VM
    to serve them) are not. ``waiting_s``: how long the oldest request without an answer has waited at the end.
    """

    counts: Mapping[int, int]
    answered: int
    timed_out: int
    failed: int
    waiting_s: float
