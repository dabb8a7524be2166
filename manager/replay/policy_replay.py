"""What another policy would have decided on recorded data.

Open loop: recorded response times and CPU use do not react to what the policy decides. So its decisions are an
estimate, and the less its weights are like the recorded ones, the rougher.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Annotated, ClassVar

from pydantic import Field

from manager.control.batch import BatchMemory, guard_batch
from manager.control.judged_windows import latest
from manager.control.resolve import validate
from manager.control.sla import sla_state
from manager.model.decision import ApplicationView, Decision, Memory, Snapshot, VmView
from manager.model.fields import WIRE, EpochS, Name
from manager.model.host import WeightScale
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.records import OutcomeKind, TickRecord, VmTick
from manager.model.registration import HostSpec, Mode, VmSpec
from manager.model.window import SlaState, Window
from manager.replay.recording import Recording
from policies.base import Policy

LOOK_BACK_S = 300.0
"""How long slots of response times are remembered, as agents do."""

_HELD = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED, OutcomeKind.IGNORED})
_CLOCK_S = 1e-6  # times in files have microseconds


@dataclass(frozen=True, slots=True)
class VmStep:
    """A VM after one tick: its recorded weight, and the policy's with its reason; None for a VM without a weight.

    ``decided`` is False where nothing was decided at that tick.
    """

    vm: str
    recorded: int | None
    replayed: int | None
    reason: str
    decided: bool


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One tick. ``sla`` are the states as recorded, by application; ``problem`` says why nothing was decided."""

    time_s: float
    vms: tuple[VmStep, ...]
    sla: Mapping[str, SlaState]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """Another weight than at the tick before; ``recorded`` is the VM's after the tick."""

    time_s: Annotated[EpochS, Field(alias="at")]
    vm: Name
    recorded: int | None
    before: int | None
    after: int | None
    reason: str
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class AppSummary:
    """An application's ticks with a known SLA state, those in violation, and ranges of its VMs' weights, if any."""

    application: str
    judged: int
    violated: int
    recorded: tuple[int, int] | None
    replayed: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Replay:
    """What a policy would have decided. ``left_out``: recorded VMs that are not registered now."""

    policy: str
    law: Law
    interval_s: float
    steps: tuple[ReplayStep, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """Why nothing was decided, each with the number of ticks."""
        counts = Counter(step.problem for step in self.steps if step.problem)
        return [f"{count} of {len(self.steps)} ticks: {problem}" for problem, count in counts.items()]


def replay(recording: Recording, policy: Policy, law: Law, stale_s: float, min_samples: int) -> Replay:
    """Let ``policy`` with ``law`` decide at each recorded tick, with its memory and weights of the tick before.

    ``stale_s`` and ``min_samples`` judge the SLAs as the settings of the same names do.
    """
    run = _Run(recording, policy, law, stale_s, min_samples)
    steps = tuple(run.step(tick) for tick in recording.ticks)
    return Replay(policy.name, law, run.interval_s, steps, tuple(sorted(run.left_out)), tuple(run.notes))


def changes(replayed: Replay) -> tuple[WeightChange, ...]:
    """All changes of weights by the policy, by time and VM; the first weights count as changes."""
    result: list[WeightChange] = []
    before: dict[str, int | None] = {}
    for step in replayed.steps:
        for vm in step.vms:
            if vm.decided and vm.replayed is not None and before.get(vm.vm) != vm.replayed:
                change = WeightChange(step.time_s, vm.vm, vm.recorded, before.get(vm.vm), vm.replayed, vm.reason)
                result.append(change)
            before[vm.vm] = vm.replayed
    return tuple(result)


def summaries(replayed: Replay, recording: Recording) -> tuple[AppSummary, ...]:
    """One for each registered application."""
    result: list[AppSummary] = []
    for application in recording.assignment.applications:
        states = [step.sla[application.name] for step in replayed.steps]
        vms = [vm for step in replayed.steps for vm in step.vms if vm.vm in application.vms]
        result.append(
            AppSummary(
                application.name,
                len(states) - states.count(SlaState.NO_DATA),
                states.count(SlaState.VIOLATED),
                _range([vm.recorded for vm in vms]),
                _range([vm.replayed for vm in vms]),
            )
        )
    return tuple(result)


class _Run:
    """State from tick to tick: the policy's memory, and its weights."""

    def __init__(self, recording: Recording, policy: Policy, law: Law, stale_s: float, min_samples: int) -> None:
        self._recording = recording
        self._policy = policy
        self._law = law
        self._stale_s = stale_s
        self._min_samples = min_samples
        self._specs = {spec.name: spec for spec in recording.assignment.vms}
        self._recorded = {vm.vm: vm for vm in recording.vms}
        self._serving = {
            vm: (application.name, tier.name)
            for application in recording.assignment.applications
            for tier in application.tiers
            for vm in tier.vms
        }
        self._windows: defaultdict[str, list[Window]] = defaultdict(list)
        for window in recording.windows:
            self._windows[window.application].append(window)
        self._written = {
            (record.time_s, record.vm): int(record.after)
            for record in recording.decisions
            if record.knob is Knob.WEIGHT and record.outcome in _HELD and record.after.isdecimal()
        }
        self._weights: dict[str, int | None] = {}
        self._memory: Memory = None
        self._batch = BatchMemory()
        self.interval_s = _interval_s(recording.ticks, recording.assignment.slot_s)
        self.left_out: set[str] = set()
        self.notes: dict[str, None] = {}

    def step(self, tick: TickRecord) -> ReplayStep:
        snapshot = self._snapshot(tick)
        decision, problem = self._decide(snapshot)
        goals = {} if decision is None else {goal.vm: goal for goal in decision.weights}
        scale = snapshot.capabilities.weights
        recorded = {vm.vm: vm for vm in tick.vms}
        steps: list[VmStep] = []
        weights: dict[str, int | None] = {}
        for view in snapshot.vms:
            goal = goals.get(view.name)
            weight, reason = view.weight, problem
            if view.weight is not None and scale is not None and decision is not None:
                if goal is None:
                    weight, reason = self._original(view.name, scale), f"{self._policy.name}: not named"
                else:
                    weight, reason = scale.clamp(goal.weight), goal.reason
            vm = recorded[view.name]
            recorded_weight = self._written.get((tick.time_s, view.name), vm.weight)
            steps.append(VmStep(view.name, recorded_weight, weight, reason, decision is not None))
            if vm.mode == Mode.ENFORCE:  # else nothing is written, and it keeps its weight
                weights[view.name] = weight
        self._weights = weights
        return ReplayStep(
            tick.time_s,
            tuple(steps),
            {application.application.name: application.sla_state for application in snapshot.applications},
            problem,
        )

    def _decide(self, snapshot: Snapshot) -> tuple[Decision | None, str]:
        """What the policy decides, or None and why nothing is; checked as in the control loop."""
        if snapshot.host.mode is Mode.RELEASED:
            return None, "the host was released"
        try:
            decision = self._policy.decide(snapshot, self._memory)
        except Exception as error:  # noqa: BLE001 - a third party's policy may raise anything
            return None, f"policy {self._policy.name!r} failed: {type(error).__name__}: {error}"
        objection = validate(decision, snapshot)
        if objection:
            return None, f"policy {self._policy.name!r} {objection}"
        self._memory = decision.memory
        self.notes.update((f"{note.application}: {note.text}", None) for note in decision.notes)
        decision, self._batch = guard_batch(decision, snapshot, self._batch)
        return decision, ""

    def _snapshot(self, tick: TickRecord) -> Snapshot:
        assignment = self._recording.assignment
        self.left_out |= {vm.vm for vm in tick.vms} - self._specs.keys()
        views = [self._view(vm, self._specs[vm.vm]) for vm in tick.vms if vm.vm in self._specs]
        applications: list[ApplicationView] = []
        for application in assignment.applications:
            slots = self._slots(application.name, tick.time_s)
            window = latest(slots, tick.time_s, assignment.slot_s)
            state = sla_state(window, application.sla, tick.time_s, self._stale_s, self._min_samples)
            applications.append(ApplicationView(application, window, state, slots))
        host: HostSpec = replace(assignment.host, mode=Mode(tick.mode), policy=self._policy.name, law=self._law)
        return Snapshot(
            now_s=tick.time_s,
            interval_s=self.interval_s,
            host=host,
            capabilities=self._recording.capabilities,
            vms=tuple(sorted(views, key=lambda view: view.name)),
            applications=tuple(sorted(applications, key=lambda view: view.application.name)),
        )

    def _view(self, vm: VmTick, spec: VmSpec) -> VmView:
        recorded = self._recorded.get(vm.vm)
        application, tier = self._serving.get(vm.vm, (None, None))
        weight = self._weights.get(vm.vm, vm.weight)
        return VmView(
            spec,
            vcpus=recorded.vcpus if recorded else 0,
            cpu_share=vm.cpu_share,
            run_delay_share=vm.run_delay_share,
            mode=Mode(vm.mode),
            weight=None if vm.weight is None else weight,
            application=application,
            tier=tier,
        )

    def _slots(self, application: str, now_s: float) -> tuple[Window, ...]:
        """The windows that had ended, as far back as agents remember, oldest first."""
        windows = self._windows[application]
        last = bisect_right(windows, now_s + _CLOCK_S, key=lambda window: window.end_s)
        first = bisect_right(windows, now_s - LOOK_BACK_S, hi=last, key=lambda window: window.end_s)
        return tuple(windows[first:last])

    def _original(self, vm: str, scale: WeightScale) -> int:
        recorded = self._recorded.get(vm)
        return scale.default if recorded is None or recorded.original_weight is None else recorded.original_weight


def _interval_s(ticks: Sequence[TickRecord], slot_s: float) -> float:
    """The median time between ticks; for a single one the length of a slot."""
    gaps = [after.time_s - before.time_s for before, after in pairwise(ticks)]
    return max(round(median(gaps), 2), 0.01) if gaps else slot_s


def _range(weights: Sequence[int | None]) -> tuple[int, int] | None:
    present = [weight for weight in weights if weight is not None]
    return (min(present), max(present)) if present else None
