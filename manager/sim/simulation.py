"""Runs the real control loop over a simulated host, as fast as it goes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from manager.loop.journal import Journal
from manager.loop.observer import Clock, LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.knobs import Knob
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.sim.results import AppResult, GroupResult, RunResult, VmResult, alone_cores, app_interval, app_result
from manager.sim.scenario import HOST_NAME, FaultKind, Scenario, tier_vms
from manager.sim.services import AppSlot, joined
from manager.sim.sim_host import SimHost
from manager.sim.telemetry import SimTelemetry
from manager.sim.world import World
from policies.base import Policy

EPOCH_S = 1_200_000_000.0
"""When a simulation begins: some moment that every usual interval divides."""

SHORTEST_TICK_S = 0.05
_JUST_LESS = 1 - 1e-5
"""A slot shorter than the interval is asked for with this factor: times since the epoch are exact to 0.2 us only."""

STALE_S, MIN_SAMPLES = 30.0, 20
"""The defaults of the settings stale_s and min_samples."""

_WRITTEN = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED})
_IN_MEMORY = Path(":memory:")


def ticks_per_interval(interval_s: float, tick_s: float | None) -> int:
    """How many ticks of about ``tick_s`` make an interval; none is shorter than SHORTEST_TICK_S. None: one."""
    if tick_s is None:
        return 1
    return max(1, min(round(interval_s / tick_s), math.floor(interval_s / SHORTEST_TICK_S + 1e-9)))


class Simulation:
    """A scenario under one policy. Ticks come exactly when slots end."""

    def __init__(
        self,
        scenario: Scenario,
        policies: Mapping[str, Policy],
        policy: str,
        *,
        published: bool = False,
        seed: int | None = None,
        tick_s: float | None = None,
    ) -> None:
        """``published`` takes the law as printed. ``seed`` None: the scenario's.

        ``tick_s``: ticks come, and slots of telemetry end, about so often; None: when an interval ends. SLAs are judged
        by interval in any case.
        """
        self._ticks_per_interval = ticks_per_interval(scenario.interval_s, tick_s)
        self.tick_s = scenario.interval_s / self._ticks_per_interval
        self.scenario = scenario
        self.world = World(scenario, seed)
        self.host = SimHost(self.world)
        self.telemetry = SimTelemetry(self.world, keep_s=max(60.0, scenario.law.max_age_s + scenario.interval_s))
        self.assignment = scenario.assignment(policy, published)
        if self._ticks_per_interval > 1:
            self.assignment = replace(self.assignment, slot_s=self.tick_s * _JUST_LESS)
        self.ticks: list[TickResult] = []
        self._label = f"{policy}:published" if published else policy
        self._policies = policies
        self._journal = Journal(_IN_MEMORY, self.host.boot_id)
        self._loop = self._new_loop()
        self._agent_runs = True
        self._advanced = 0  # so many times tick_s
        self._open: dict[str, AppSlot] = {}  # of the interval that is not over
        self._slots: dict[str, list[AppSlot]] = {app.name: [] for app in scenario.applications}
        self._weights: dict[str, list[int]] = {name: [] for name in self.world.vms}
        self._changes = dict.fromkeys(self.world.vms, 0)
        self._all_changes = 0
        self._groups: list[Mapping[str, tuple[int, int]]] = []
        self._host_share: list[float] = []
        self._notes: dict[str, None] = {}
        self._busy_s = 0.0

    @staticmethod
    def count_intervals(scenario: Scenario) -> int:
        """How many whole intervals a scenario has, at least one."""
        return max(1, math.floor(scenario.duration_s / scenario.interval_s + 1e-9))

    def clock(self) -> Clock:
        """The simulated time."""
        return Clock(EPOCH_S + self.world.now_s, self.world.now_s)

    @property
    def intervals(self) -> int:
        """How many are over."""
        return self._advanced // self._ticks_per_interval

    def step(self) -> TickResult | None:
        """Advance to the next tick, and carry it out; None while the agent is down."""
        if not self._advanced:
            self.tick()
        self.advance()
        return self.tick()

    def advance(self) -> None:
        """Let ``tick_s`` pass, without the tick at its end."""
        if self._advanced % self._ticks_per_interval == 0:
            self._begin_interval()
        start_s = self._advanced * self.scenario.interval_s / self._ticks_per_interval
        self._advanced += 1
        end_s = self._advanced * self.scenario.interval_s / self._ticks_per_interval
        self.world.run_until(end_s)
        slots = self.world.close_slot()
        self._open = {name: joined(self._open[name], slot) for name, slot in slots.items()} if self._open else slots
        if self._advanced % self._ticks_per_interval == 0:
            self._end_interval()
        self.telemetry.add(slots, EPOCH_S + start_s, EPOCH_S + end_s)

    def _begin_interval(self) -> None:
        for name, vm in self.world.vms.items():
            self._weights[name].append(vm.weight)
        if self.world.memory:
            self._groups.append(self.world.memory.settings())

    def _end_interval(self) -> None:
        for name, slot in self._open.items():
            self._slots[name].append(slot)
        self._open = {}
        busy_s = self.world.busy_s()
        self._host_share.append((busy_s - self._busy_s) / (self.scenario.interval_s * self.scenario.pcpus))
        self._busy_s = busy_s

    @property
    def slots(self) -> Mapping[str, Sequence[AppSlot]]:
        """What happened to each application in each whole interval."""
        return self._slots

    def excesses(self) -> tuple[float, ...]:
        """By how much each application violated its SLA in the last whole interval; 0 where it met it."""
        return tuple(
            app_interval(self._slots[app.name][-1], app.sla, self.scenario.interval_s).excess
            for app in self.scenario.applications
        )

    def run(self, on_step: Callable[[], None] = lambda: None) -> RunResult:
        """All intervals; ``on_step`` is called after each."""
        total = self.count_intervals(self.scenario)
        while (before := self.intervals) < total:
            self.step()
            if self.intervals > before:
                on_step()
        return self.result()

    def release(self) -> TickResult:
        """Restore everything, as an agent does that is stopped."""
        return self._loop.release("agent stopped")

    def result(self) -> RunResult:
        """What the intervals so far came to."""
        scenario, elapsed_s = self.scenario, self.world.now_s
        apps: list[AppResult] = [
            replace(
                app_result(app.name, app.sla, self._slots[app.name], scenario.interval_s),
                vms=tuple(vm for tier in app.tiers for vm in tier_vms(app, tier)),
            )
            for app in scenario.applications
        ]
        alone = alone_cores([group for group in scenario.batch if not group.critical], scenario.pcpus)
        settled_h = max(elapsed_s - scenario.settle_s, scenario.interval_s) / 3600
        vms: list[VmResult] = []
        got_s = wanted_s = 0.0
        for name, vm in self.world.vms.items():
            cpu_s = vm.past_cpu_s + (self.world.vm_cpu_s(vm) if vm.alive else 0.0)
            progress = None
            if vm.batch and not vm.batch.critical:
                due_s = alone[vm.batch.name] * elapsed_s
                progress = cpu_s / due_s if due_s else None
                got_s, wanted_s = got_s + cpu_s, wanted_s + due_s
            vms.append(
                VmResult(
                    name,
                    vm.batch is None or vm.batch.critical,
                    cpu_s / (elapsed_s * scenario.pcpus),
                    progress,
                    self._changes[name] / settled_h,
                    tuple(self._weights[name]),
                    self.world.memory.slower(vm) if self.world.memory else 1.0,
                )
            )
        return RunResult(
            scenario=scenario.name,
            policy=self._label,
            seed=self.world.seed,
            interval_s=scenario.interval_s,
            duration_s=elapsed_s,
            applications=tuple(apps),
            vms=tuple(vms),
            batch_progress=got_s / wanted_s if wanted_s else None,
            batch_share=got_s / (elapsed_s * scenario.pcpus),
            weight_changes_per_hour=sum(self._changes.values()) / settled_h,
            host_cpu_share=tuple(self._host_share),
            notes=tuple(self._notes),
            changes_per_hour=self._all_changes / settled_h,
            groups=tuple(self._group(name, settled_h) for name in sorted(set().union(*self._groups))),
        )

    def _group(self, name: str, settled_h: float) -> GroupResult:
        course = [group.get(name, (0, 0)) for group in self._groups]
        first = round(self.scenario.settle_s / self.scenario.interval_s)
        changes = sum(before != after for before, after in itertools.pairwise(course[first:]))
        ways, bandwidth = zip(*course, strict=True)
        return GroupResult(name, ways, bandwidth, changes / settled_h)

    def _new_loop(self) -> ControlLoop:
        settings = LoopSettings(HOST_NAME, self.tick_s, STALE_S, MIN_SAMPLES)
        return ControlLoop(self.host, self._journal, self._policies, settings, self.clock, EVERYTHING)

    def tick(self) -> TickResult | None:
        """One tick, now; None while the agent is down."""
        if (FaultKind.AGENT_RESTART, "") in self.world.faults:
            self._agent_runs = False
            return None
        if not self._agent_runs:  # it starts with nothing but its journal
            self._loop, self._agent_runs = self._new_loop(), True
        result = self._loop.tick(self.assignment, self.telemetry.slots())
        self._notes.update(dict.fromkeys(problem.text for problem in result.problems))
        if self.world.now_s > self.scenario.settle_s:
            self._all_changes += sum(outcome.kind in _WRITTEN for outcome in (*result.outcomes, *result.cache.outcomes))
            for outcome in result.outcomes:
                if outcome.key.knob is Knob.WEIGHT and outcome.kind in _WRITTEN:
                    self._changes[result.specs[outcome.key.uuid].name] += 1
        return result
