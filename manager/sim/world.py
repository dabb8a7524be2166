"""The simulated host with its VMs, the requests they serve, and what goes wrong: advances from event to event."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, VmInstance, WeightScale
from manager.sim.cpu_quota import CpuQuotas
from manager.sim.cpu_sharing import ASLEEP, INFINITE, Request, SimCpus, Vcpu
from manager.sim.memory_bus import STEP_S, SimMemory
from manager.sim.scenario import Fault, FaultKind, Noise, SampleRoute, Scenario, batch_vms, tier_vms
from manager.sim.services import App, AppSlot, SimVm, random_stream

_FIRST_PID = 1000


class _OfWorld(Protocol):
    world: World


Part = TypeVar("Part", bound=_OfWorld)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_step(method: Callable[Concatenate[Part, Arguments], Result]) -> Callable[Concatenate[Part, Arguments], Result]:
    """A method that sees the world as of now, and undisturbed."""

    @wraps(method)
    def current(part: Part, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with part.world.look():
            return method(part, *args, **kwargs)

    return current


class World:
    """Everything that happens. Time is in seconds from 0; nothing depends on anything but scenario and seed."""

    def __init__(self, scenario: Scenario, seed: int | None = None) -> None:
        """``seed`` None: the scenario's."""
        self.scenario = scenario
        self.seed = scenario.seed if seed is None else seed
        self.now_s = 0.0
        self.look: Callable[[], AbstractContextManager[object]] = nullcontext
        """Brings the world up to now where time passes by itself, and keeps other threads out; see ``in_step``."""
        self.faults: set[tuple[FaultKind, str]] = set()
        self._faults_begun: Counter[tuple[FaultKind, str]] = Counter()
        self.noise_s = 0.0
        self._noise_since_s = 0.0
        self._noise_random = random_stream(f"{self.seed}/noise")
        self._wave_random = random_stream(f"{self.seed}/waves")
        self._when: list[float] = []
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_number = 0
        self._forward: list[tuple[Request, App, int]] = []
        self._pid = _FIRST_PID
        self.cpus = SimCpus(scenario.pcpus, scenario.scheduler, random_stream(f"{self.seed}/scheduler"), self._when)
        self.quotas = CpuQuotas(self.cpus, self._schedule, scenario.scheduler.quota_ms / 1000)
        self.apps = {spec.name: App(spec, self.seed) for spec in scenario.applications}
        self._apps = tuple(self.apps.values())
        self.vms: dict[str, SimVm] = {}
        for app in self._apps:
            for number, tier in enumerate(app.spec.tiers):
                for name in tier_vms(app.spec, tier):
                    vm = self._new_vm(name, tier.vcpus)
                    vm.app, vm.tier = app, number
                    app.tiers[number].append(vm)
        self._when += [next(app.arrivals, INFINITE) for app in self._apps]
        self._when.append(INFINITE)
        for group in scenario.batch:
            for name in batch_vms(group):
                vm = self._new_vm(name, group.vcpus)
                vm.batch = group
                self._begin_batch(vm, 0.0)
        self.memory = SimMemory(scenario.cache, scenario.pcpus) if scenario.cache else None
        self._remember(0.0)
        self._schedule(scenario.scheduler.balance_ms / 1000, self._balance)
        if scenario.noise:
            first_s = self._noise_random.expovariate(1000 / scenario.noise.off_ms)
            self._schedule(first_s, partial(self._switch_noise, scenario.noise, on=True))
        for fault in scenario.faults:
            self._schedule(fault.at_s, partial(self._begin_fault, fault))

    @property
    def scale(self) -> WeightScale:
        """The weights of the host's cgroup version."""
        return CPU_SHARES_V1 if self.scenario.cgroup == 1 else CPU_WEIGHT_V2

    def run_until(self, end_s: float) -> None:
        """Let everything happen that happens up to and at ``end_s``."""
        when, cpus, apps, forward = self._when, self.cpus, self._apps, self._forward
        pcpus, timers = len(cpus.pcpus), len(when) - 1
        while True:
            now_s = min(when)
            if now_s > end_s:
                break
            source = when.index(now_s)
            if source < pcpus:
                cpus.fire(source, now_s)
                if forward:
                    request, app, tier = forward.pop()
                    self._deliver(request, app, tier, now_s)
            elif source < timers:
                app = apps[source - pcpus]
                when[source] = next(app.arrivals, INFINITE)
                self._deliver((now_s, app.make()), app, 0, now_s)
            else:
                _, _, action = heapq.heappop(self._timers)
                when[timers] = self._timers[0][0] if self._timers else INFINITE
                action(now_s)
        self.now_s = max(self.now_s, end_s)

    def close_slot(self) -> dict[str, AppSlot]:
        """What happened to each application since the last call."""
        slots: dict[str, AppSlot] = {}
        for app in self._apps:
            waiting_s = max(0.0, self.now_s - app.oldest_s())
            slots[app.spec.name] = AppSlot(app.counts, app.answered, app.timed_out, app.failed, waiting_s)
            app.counts = {}
            app.answered = app.timed_out = app.failed = 0
        return slots

    def source_works(self, app: str) -> bool:
        """Whether the response times of an application reach the agent now."""
        by_manager = self.apps[app].spec.route is SampleRoute.MANAGER
        away = by_manager and (FaultKind.MANAGER_AWAY, "") in self.faults
        return not away and (FaultKind.SOURCE_SILENT, app) not in self.faults

    def vm_cpu_s(self, vm: SimVm) -> float:
        """CPU time of a VM since it started."""
        return math.fsum([self.cpus.cpu_s(vcpu, self.now_s) for vcpu in vm.vcpus])

    def busy_s(self) -> float:
        """CPU time of all pCPUs that was not idle, noise included."""
        return self.scenario.pcpus * self.now_s - self.cpus.idle_s(self.now_s)

    def noise_cpu_s(self, now_s: float | None = None) -> float:
        """CPU time that went to what is outside the VMs until now, or until ``now_s``."""
        since_s = (self.now_s if now_s is None else now_s) - self._noise_since_s
        return self.noise_s + since_s * (1 - self.cpus.speed) * self.scenario.pcpus

    def _deliver(self, request: Request, app: App, tier: int, now_s: float) -> None:
        vms = app.tiers[tier]
        vm = vms[0]
        if len(vms) > 1:
            for _ in vms:
                app.turns[tier] = turn = (app.turns[tier] + 1) % len(vms)
                vm = vms[turn]
                if vm.alive:
                    break
        if not vm.alive:
            app.failed += 1
        elif vm.idle:
            vcpu = vm.idle.pop()
            vcpu.request = request
            self.cpus.wake(vcpu, request[1][tier] * vm.slower, now_s)
        else:
            vm.queue.append(request)

    def _new_vm(self, name: str, vcpus: int) -> SimVm:
        instance = self._new_instance(f"5e000000-0000-4000-8000-{len(self.vms):012x}", name)
        weight = self.scenario.settings_of(name).initial_weight or self.scale.default
        vm = SimVm(name, instance, self.scale.clamp(weight), vcpus, self.cpus, self._forward)
        self.vms[name] = vm
        return vm

    def _new_instance(self, uuid: str, name: str) -> VmInstance:
        self._pid += 1
        return VmInstance(uuid, name, self._pid, 100 * self._pid)

    def _schedule(self, at_s: float, action: Callable[[float], None]) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (at_s, self._timer_number, action))
        self._when[-1] = self._timers[0][0]

    def _balance(self, now_s: float) -> None:
        self.cpus.balance(now_s)
        self._schedule(now_s + self.scenario.scheduler.balance_ms / 1000, self._balance)

    def _remember(self, now_s: float) -> None:
        if self.memory is not None:
            self.memory.advance(self.vms.values(), self.cpus, now_s)
            self._schedule(now_s + STEP_S, self._remember)

    def _begin_batch(self, vm: SimVm, now_s: float) -> None:
        vm.wave += 1
        for vcpu in vm.vcpus:
            if vm.batch and vm.batch.phases:
                first_s = now_s + self._wave_random.random() * vm.batch.period_ms / 1000
                self._schedule(first_s, partial(self._phase, vm, vm.wave, vcpu))
            elif vm.batch and vm.batch.on_ms is not None:
                phase_s = self._wave_random.random() * (vm.batch.on_ms + vm.batch.off_ms) / 1000
                self._schedule(now_s + phase_s, partial(self._wave, vm, vm.wave, vcpu))
            else:
                self.cpus.wake(vcpu, INFINITE, now_s)

    def _phase(self, vm: SimVm, wave: int, vcpu: Vcpu, now_s: float) -> None:
        """A period begins: run for a part of it, or to the end of a phase that is all the one or the other."""
        if vm.wave != wave or vm.batch is None:  # it was restarted since
            return
        duty, left_s = vm.batch.duty_at(now_s)
        on = vcpu.state != ASLEEP
        if duty > 0 and not on:
            self.cpus.wake(vcpu, INFINITE, now_s)
        elif duty == 0 and on:
            self.cpus.sleep(vcpu, now_s)
        period_s = vm.batch.period_ms / 1000
        if duty in (0.0, 1.0):
            period_s = left_s + self._wave_random.random() * period_s
        else:
            self._schedule(now_s + duty * period_s, partial(self._rest, vm, wave, vcpu))
        self._schedule(now_s + period_s, partial(self._phase, vm, wave, vcpu))

    def _rest(self, vm: SimVm, wave: int, vcpu: Vcpu, now_s: float) -> None:
        if vm.wave == wave and vcpu.state != ASLEEP:
            self.cpus.sleep(vcpu, now_s)

    def _wave(self, vm: SimVm, wave: int, vcpu: Vcpu, now_s: float) -> None:
        if vm.wave != wave or vm.batch is None or vm.batch.on_ms is None:  # it was restarted since
            return
        if vcpu.state == ASLEEP:
            self.cpus.wake(vcpu, INFINITE, now_s)
            lasts_ms = vm.batch.on_ms
        else:
            self.cpus.sleep(vcpu, now_s)
            lasts_ms = vm.batch.off_ms
        self._schedule(now_s + lasts_ms / 1000, partial(self._wave, vm, wave, vcpu))

    def _switch_noise(self, noise: Noise, now_s: float, *, on: bool) -> None:
        self.noise_s = self.noise_cpu_s(now_s)
        self._noise_since_s = now_s
        self.cpus.set_speed(1 - noise.share if on else 1.0, now_s)
        lasts_s = self._noise_random.expovariate(1000 / (noise.on_ms if on else noise.off_ms))
        self._schedule(now_s + lasts_s, partial(self._switch_noise, noise, on=not on))

    def _begin_fault(self, fault: Fault, now_s: float) -> None:
        """Of several at a time that are alike only the first begins something, and only the last to end ends it."""
        self._schedule(now_s + fault.for_s, partial(self._end_fault, fault))
        what = (fault.kind, fault.target)
        self._faults_begun[what] += 1
        if what in self.faults:
            return
        self.faults.add(what)
        if fault.kind is FaultKind.VM_RESTART:
            self._stop_vm(self.vms[fault.target], now_s)

    def _end_fault(self, fault: Fault, now_s: float) -> None:
        what = (fault.kind, fault.target)
        self._faults_begun[what] -= 1
        if self._faults_begun[what]:
            return
        self.faults.discard(what)
        if fault.kind is FaultKind.VM_RESTART:
            self._start_vm(self.vms[fault.target], now_s)

    def _stop_vm(self, vm: SimVm, now_s: float) -> None:
        """The process ends, and with it all it was doing."""
        vm.alive = False
        self.quotas.set(vm, None, now_s)
        for vcpu in vm.vcpus:
            if vcpu.state != ASLEEP:
                self.cpus.sleep(vcpu, now_s)
            vm.past_cpu_s += vcpu.cpu_s
            if vm.app and vcpu.request:
                vm.app.failed += 1
                vcpu.request = None
        if vm.app:
            vm.app.failed += len(vm.queue)
        vm.queue.clear()
        vm.wave += 1

    def _start_vm(self, vm: SimVm, now_s: float) -> None:
        """Another process: settings and counters are new."""
        fresh = SimVm(
            vm.name,
            self._new_instance(vm.instance.uuid, vm.name),
            self.scale.default,
            len(vm.vcpus),
            self.cpus,
            self._forward,
        )
        fresh.app, fresh.tier, fresh.batch, fresh.past_cpu_s = vm.app, vm.tier, vm.batch, vm.past_cpu_s
        self.vms[vm.name] = fresh
        if vm.app:
            tier = vm.app.tiers[vm.tier]
            tier[tier.index(vm)] = fresh
        elif vm.batch:
            self._begin_batch(fresh, now_s)
