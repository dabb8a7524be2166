"""Applications and VMs as they run: who serves which request.

Arrivals and service times come from generators of their own, so that every policy meets the same requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from manager.model.histogram import bucket_of
from manager.model.host import VmInstance
from manager.sim.cpu_sharing import INFINITE, Request, SchedulingGroup, SimCpus, Vcpu
from manager.sim.scenario import AppSpec, BatchSpec, Constant, MemoryUse, Segment, ServiceTime, Shape

SHORTEST_S = 1e-9
"""No request takes no CPU time at all."""


def random_stream(name: str) -> Random:
    """Random numbers that are always the same for a name, on any machine."""
    return Random(name)  # noqa: S311 - nothing secret


def arrivals(load: Sequence[Segment], random: Random) -> Iterator[float]:
    """Times in seconds, ascending, of a Poisson process whose rate follows ``load``, again and again.

    Varying rates are made by thinning (Lewis and Shedler 1979). Ends when no further request will come.
    """
    uniform, log = random.random, math.log
    begin_s = 0.0
    while any(segment.peak_rps > 0 for segment in load):
        for segment in load:
            end_s = begin_s + segment.for_s
            peak_rps = segment.peak_rps
            constant = isinstance(segment, Constant)
            at_s = begin_s if peak_rps > 0 else math.inf
            while True:
                at_s -= log(1.0 - uniform()) / peak_rps if peak_rps > 0 else 0.0
                if at_s >= end_s:
                    break
                if constant or uniform() * peak_rps < segment.rate_at(at_s - begin_s):
                    yield at_s
            begin_s = end_s
        if math.isinf(begin_s):
            return


def service_times(service: ServiceTime, random: Random) -> Callable[[], float]:
    """A function that draws CPU times in seconds."""
    mean_s = service.mean_ms / 1000
    if service.shape is Shape.DETERMINISTIC or (service.shape is Shape.LOGNORMAL and service.cv == 0):
        return lambda: mean_s
    uniform, log, exp, gauss = random.random, math.log, math.exp, random.gauss
    if service.shape is Shape.EXPONENTIAL:
        return lambda: SHORTEST_S - log(1.0 - uniform()) * mean_s
    sigma = math.sqrt(log(1 + service.cv**2))
    mu = log(mean_s) - sigma**2 / 2
    return lambda: SHORTEST_S + exp(gauss(mu, sigma))


def request_maker(services: Sequence[ServiceTime], random: Random) -> Callable[[], tuple[float, ...]]:
    """A function that draws the CPU times of a request in all tiers, in seconds."""
    draws = [service_times(service, random) for service in services]
    if len(draws) == 1:
        [draw] = draws
        return lambda: (draw(),)
    return lambda: tuple([draw() for draw in draws])


class App:
    """An application as it runs. ``counts`` are the response times of the current slot, by bucket."""

    def __init__(self, spec: AppSpec, seed: int) -> None:
        """The VMs of each tier are added later. Arrivals and service times depend on nothing but name and seed."""
        self.spec = spec
        self.arrivals = arrivals(spec.load, random_stream(f"{seed}/{spec.name}/arrivals"))
        self.make = request_maker([tier.service for tier in spec.tiers], random_stream(f"{seed}/{spec.name}/service"))
        self.tiers: list[list[SimVm]] = [[] for _ in spec.tiers]
        self.turns = [0] * len(spec.tiers)
        self.timeout_s = spec.timeout_s
        self.outside_s = spec.outside_ms / 1000
        self.counts: dict[int, int] = {}
        self.answered = self.timed_out = self.failed = 0

    def record(self, time_s: float) -> None:
        """Count a response time, but for what passes outside the VMs."""
        bucket = bucket_of((time_s + self.outside_s) * 1e6)
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


def joined(first: AppSlot, then: AppSlot) -> AppSlot:
    """Two slots, one after the other, as one."""
    counts = dict(first.counts)
    for bucket, count in then.counts.items():
        counts[bucket] = counts.get(bucket, 0) + count
    return AppSlot(
        counts,
        first.answered + then.answered,
        first.timed_out + then.timed_out,
        first.failed + then.failed,
        then.waiting_s,
    )
