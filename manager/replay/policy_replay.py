"""What another policy would have decided on recorded data.

Open loop: the policy sees the response times and the CPU use that were recorded under other weights, which do not react
to what it decides. So what it decides is an estimate, and the less its weights are like the recorded ones, the rougher.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from manager.control.batch import BatchMemory, guard_batch
from manager.control.judged_windows import latest
from manager.control.resolve import validate
from manager.control.sla import sla_state
from manager.model.decision import ApplicationView, Decision, Memory, Snapshot, VmView
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
    """A VM after one tick: the weight it had as recorded, and the one the policy wants, with its reason.

    Both are None where the VM has no weight. ``decided`` is False where nothing was decided at that tick.
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
    """The policy wants another weight than at the tick before; ``recorded`` is the one the VM had after the tick."""

    time_s: float
    vm: str
    recorded: int | None
    before: int | None
    after: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class AppSummary:
    """An application over the recording: ticks with a known SLA state, those with a missed one, and ranges of weights.

    The ranges are those of all its VMs; None without any.
    """

    application: str
    judged: int
    missed: int
    recorded: tuple[int, int] | None
    replayed: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Replay:
    """What a policy would have decided. ``left_out`` are VMs that ticks tell of, but that are not registered now."""

    policy: str
    law: Law
    interval_s: float
    steps: tuple[ReplayStep, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def replay(recording: Recording, policy: Policy, law: Law, stale_s: float, min_samples: int) -> Replay:
    """Let ``policy`` with ``law`` decide at each recorded tick, with the memory of its decision before.

    It sees VMs with the weights that it would have set at the tick before. ``stale_s`` and ``min_samples`` judge the
    SLAs as the settings of the same names do.
    """
    run = _Run(recording, policy, law, stale_s, min_samples)
    steps = tuple(run.step(tick) for tick in recording.ticks)
    return Replay(policy.name, law, run.interval_s, steps, tuple(sorted(run.left_out)), tuple(run.notes))


def changes(found: Replay) -> tuple[WeightChange, ...]:
    """All changes of weights that the policy would have made, in order of time and VM; the first weights are some."""
    result: list[WeightChange] = []
    before: dict[str, int | None] = {}
    for step in found.steps:
        for vm in step.vms:
            if vm.decided and vm.replayed is not None and before.get(vm.vm) != vm.replayed:
                change = WeightChange(step.time_s, vm.vm, vm.recorded, before.get(vm.vm), vm.replayed, vm.reason)
                result.append(change)
            before[vm.vm] = vm.replayed
    return tuple(result)


def summaries(found: Replay, recording: Recording) -> tuple[AppSummary, ...]:
    """One for each registered application."""
    result: list[AppSummary] = []
    for application in recording.assignment.applications:
        states = [step.sla[application.name] for step in found.steps]
        vms = [vm for step in found.steps for vm in step.vms if vm.vm in application.vms]
        result.append(
            AppSummary(
                application.name,
                sum(state is not SlaState.NO_DATA for state in states),
                sum(state is SlaState.MISSED for state in states),
                _range([vm.recorded for vm in vms]),
                _range([vm.replayed for vm in vms]),
            )
        )
    return tuple(result)


class _Run:
    """The state from tick to tick: the policy's memory, and the weights it has set."""

    def __init__(self, recording: Recording, policy: Policy, law: Law, stale_s: float, min_samples: int) -> None:
        self._recording = recording
        self._policy = policy
        self._law = law
        self._stale_s = stale_s
        self._min_samples = min_samples
        self._specs = {spec.name: spec for spec in recording.assignment.vms}
        self._known = {vm.vm: vm for vm in recording.vms}
        self._serving = {
            vm: (application.name, tier.name)
            for application in recording.assignment.applications
            for tier in application.tiers
            for vm in tier.vms
        }
        self._windows: dict[str, list[Window]] = {}
        for window in recording.windows:
            self._windows.setdefault(window.application, []).append(window)
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
            was = recorded[view.name]
            held = self._written.get((tick.time_s, view.name), was.weight)
            steps.append(VmStep(view.name, held, weight, reason, decision is not None))
            if was.mode == Mode.ENFORCE:  # otherwise nothing is written, so it keeps the weight it has
                weights[view.name] = weight
        self._weights = weights
        return ReplayStep(
            tick.time_s,
            tuple(steps),
            {application.application.name: application.sla_state for application in snapshot.applications},
            problem,
        )

    def _decide(self, snapshot: Snapshot) -> tuple[Decision | None, str]:
        """What the policy decides, or None and why nothing is changed; checked as the control loop does."""
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
        known = self._known.get(vm.vm)
        application, tier = self._serving.get(vm.vm, (None, None))
        weight = self._weights.get(vm.vm, vm.weight)
        return VmView(
            spec,
            vcpus=known.vcpus if known else 0,
            cpu_share=vm.cpu_share,
            run_delay_share=vm.run_delay_share,
            mode=Mode(vm.mode),
            weight=None if vm.weight is None else weight,
            application=application,
            tier=tier,
        )

    def _slots(self, application: str, now_s: float) -> tuple[Window, ...]:
        """The windows that had ended by then, as far back as agents remember, oldest first."""
        windows = self._windows.get(application, [])
        last = bisect_right(windows, now_s + _CLOCK_S, key=lambda window: window.end_s)
        first = bisect_right(windows, now_s - LOOK_BACK_S, hi=last, key=lambda window: window.end_s)
        return tuple(windows[first:last])

    def _original(self, vm: str, scale: WeightScale) -> int:
        known = self._known.get(vm)
        return scale.default if known is None or known.original_weight is None else known.original_weight


def _interval_s(ticks: Sequence[TickRecord], slot_s: float) -> float:
    """The usual time between ticks, which is not recorded as such; that of a slot with a single tick."""
    gaps = [after.time_s - before.time_s for before, after in pairwise(ticks)]
    return max(round(median(gaps), 2), 0.01) if gaps else slot_s


def _range(weights: Sequence[int | None]) -> tuple[int, int] | None:
    known = [weight for weight in weights if weight is not None]
    return (min(known), max(known)) if known else None
