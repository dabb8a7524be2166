"""One control interval, with everything it needs injected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from manager.control.diff import diff
from manager.control.placement import PlacementRequest, place
from manager.control.resolve import resolve, validate
from manager.errors import JournalError
from manager.host.port import HostPort
from manager.loop.apply import Applied, Outcome, Target, apply
from manager.loop.collect import HostUse, Reading, build_snapshot, host_use, match, read_host
from manager.loop.journal import Journal
from manager.loop.records import Chronicle
from manager.model.decision import Memory, Note, Placement, Plan, Snapshot
from manager.model.host import KnobKey, KnobValue, VmInstance, VmState
from manager.model.records import DecisionRecord, Event, Knob, OutcomeKind, Severity
from manager.model.registration import Assignment, HostSpec, Mode, VmSpec
from manager.model.window import Window
from policies.base import Policy

_WRITTEN = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED, OutcomeKind.IGNORED})


@dataclass(frozen=True, slots=True)
class Clock:
    """The two times of a tick: seconds since the epoch, and a monotonic one for rates."""

    epoch_s: float
    monotonic_s: float


def system_clock() -> Clock:
    """The time now."""
    return Clock(time.time(), time.monotonic())


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Bounds of the loop: see the settings of the same names."""

    host_name: str
    interval_s: float
    stale_s: float
    min_samples: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something could not be done: ``kind`` is read, policy, placement or journal."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick saw and did. ``specs`` are the managed VMs by domain UUID."""

    number: int
    at_s: float
    duration_s: float
    snapshot: Snapshot
    reading: Reading
    specs: Mapping[str, VmSpec]
    use: HostUse
    outcomes: tuple[Outcome, ...]
    records: tuple[DecisionRecord, ...]
    events: tuple[Event, ...]
    troubles: tuple[Trouble, ...]

    def knobs(self, domain: str) -> dict[KnobKey, KnobValue]:
        """The knobs of a managed VM as read, with what this tick wrote since."""
        written = {one.change.key: one.change.after for one in self.outcomes if one.kind in _WRITTEN}
        return {key: written.get(key, value) for key, value in self.reading.states[domain].knobs().items()}


class ControlLoop:
    """Runs ticks over a host. Not thread-safe: ticks never overlap."""

    def __init__(
        self,
        host: HostPort,
        journal: Journal,
        policies: Mapping[str, Policy],
        settings: LoopSettings,
        clock: Callable[[], Clock] = system_clock,
    ) -> None:
        """``policies`` are the installed ones by name."""
        self._host = host
        self._journal = journal
        self._policies = policies
        self._settings = settings
        self._clock = clock
        self._chronicle = Chronicle(settings.host_name)
        self._memory: tuple[str, Memory] = ("", None)
        self._notes: tuple[Note, ...] = ()
        self._before: Reading | None = None
        self._number = 0

    def tick(
        self, assignment: Assignment | None, slots: Mapping[str, Sequence[Window]], undo_reason: str = "host released"
    ) -> TickResult:
        """Collect, decide, resolve, diff, apply. ``slots`` are the recent slots of response times by application.

        ``assignment`` None, or a released host, undoes everything, with ``undo_reason`` in the records.
        """
        started = self._clock()
        self._number += 1
        wanted = assignment or Assignment(HostSpec(self._settings.host_name, mode=Mode.RELEASED))
        troubles: list[Trouble] = []
        self._drop_ended(troubles)
        running = self._running()
        matched = match(wanted.vms, running)
        names = {key.uuid: entry.vm for key, entry in self._journal.entries.items()}
        names |= {domain: spec.name for domain, spec in matched.items()}
        reading = read_host(self._host, {domain: running[domain] for domain in names}, started.monotonic_s)
        troubles.extend(
            Trouble("read", f"{names.get(domain, domain)}: {why}") for domain, why in reading.errors.items()
        )
        specs = {domain: spec for domain, spec in matched.items() if domain in reading.states}
        snapshot = build_snapshot(
            wanted,
            slots,
            specs,
            self._host.capabilities,
            reading,
            self._before,
            epoch_s=started.epoch_s,
            interval_s=self._settings.interval_s,
            stale_s=self._settings.stale_s,
            min_samples=self._settings.min_samples,
        )
        if snapshot.host.mode is Mode.RELEASED:
            plan: Plan | None = Plan(undo_reason=undo_reason)
            self._notes = ()
        else:
            plan = self._plan(snapshot, specs, reading, troubles)
        applied = Applied(()) if plan is None else self._apply(plan, reading, names)
        if applied.journal_error:
            troubles.append(Trouble("journal", applied.journal_error))
        use = host_use(reading, self._before, min(sum(vm.cpu_share for vm in snapshot.vms), 1.0))
        self._before = reading
        self._host.forget(frozenset(state.instance for state in reading.states.values()))
        return TickResult(
            number=self._number,
            at_s=started.epoch_s,
            duration_s=self._clock().monotonic_s - started.monotonic_s,
            snapshot=snapshot,
            reading=reading,
            specs=specs,
            use=use,
            outcomes=applied.outcomes,
            records=self._chronicle.records(applied.outcomes, names, wanted.host.policy, started.epoch_s),
            events=self._events(specs, reading, applied.outcomes, names, troubles, self._notes, started.epoch_s),
            troubles=tuple(troubles),
        )

    def release(self, reason: str) -> TickResult:
        """Put everything back that still is as we left it."""
        return self.tick(None, {}, reason)

    def _running(self) -> dict[str, VmInstance]:
        """The listed domains, and those of the journal, which are known to be alive also while libvirtd is away."""
        journalled = {key.uuid: entry.instance for key, entry in self._journal.entries.items()}
        return journalled | dict(self._host.running())

    def _drop_ended(self, troubles: list[Trouble]) -> None:
        """Forget knobs of processes that ended: the settings ended with them."""
        instances = {entry.instance for entry in self._journal.entries.values()}
        ended = {instance for instance in instances if not self._host.is_alive(instance)}
        try:
            self._journal.update({}, [key for key, entry in self._journal.entries.items() if entry.instance in ended])
        except JournalError as error:
            troubles.append(Trouble("journal", str(error)))

    def _plan(
        self, snapshot: Snapshot, specs: Mapping[str, VmSpec], reading: Reading, troubles: list[Trouble]
    ) -> Plan | None:
        """What is wanted, or None when the policy fails: then everything stays as it is."""
        name = snapshot.host.policy
        policy = self._policies.get(name)
        if policy is None:
            troubles.append(Trouble("policy", f"policy {name!r} is not installed here; everything stays as it is"))
            return None
        try:
            decision = policy.decide(snapshot, self._memory[1] if self._memory[0] == name else None)
        except Exception as error:  # noqa: BLE001 - a third party's policy may raise anything; it must not stop the loop
            text = f"policy {name!r} failed: {type(error).__name__}: {error}; everything stays as it is"
            troubles.append(Trouble("policy", text))
            return None
        objection = validate(decision, snapshot)
        if objection:
            troubles.append(Trouble("policy", f"policy {name!r} {objection}; everything stays as it is"))
            return None
        self._memory = (name, decision.memory)
        self._notes = decision.notes
        placement = self._place(snapshot, specs, reading)
        troubles.extend(Trouble("placement", f"{vm} {reason}") for vm, reason in placement.floating)
        return resolve(decision, placement, snapshot, {spec.name: domain for domain, spec in specs.items()})

    def _place(self, snapshot: Snapshot, specs: Mapping[str, VmSpec], reading: Reading) -> Placement:
        """Pins for the VMs that want them. Those pinned before keep their pCPUs, also while they cannot be read."""
        requests = [
            PlacementRequest(vm.name, vm.vcpus)
            for vm in snapshot.vms
            if vm.vcpus
            and vm.mode is not Mode.RELEASED
            and (vm.critical and snapshot.host.pinning if vm.spec.pin is None else vm.spec.pin)
        ]
        previous = {spec.name: self._own_pcpus(reading.states[domain]) for domain, spec in specs.items()}
        taken: set[int] = set()
        for key, entry in self._journal.entries.items():
            pinned = entry.owned.intended
            if key.knob is Knob.VCPU_PIN and key.uuid in reading.errors and isinstance(pinned, frozenset):
                taken |= pinned
        return place(requests, snapshot.capabilities.managed_cpus - taken, previous)

    def _own_pcpus(self, state: VmState) -> tuple[int, ...]:
        """The pCPU that each vCPU is pinned to, by whomever, or was to be when that failed; empty when one floats."""
        pcpus: list[int] = []
        for vcpu in state.vcpus:
            pinned: KnobValue = vcpu.cpus
            entry = self._journal.entries.get(KnobKey(state.instance.uuid, Knob.VCPU_PIN, vcpu.index))
            if len(vcpu.cpus) != 1 and entry and entry.instance == state.instance and not entry.owned.foreign:
                pinned = entry.owned.intended
            if isinstance(pinned, int) or len(pinned) != 1:
                return ()
            pcpus += pinned
        return tuple(pcpus)

    def _apply(self, plan: Plan, reading: Reading, names: Mapping[str, str]) -> Applied:
        actual: dict[KnobKey, KnobValue] = {}
        targets: dict[str, Target] = {}
        for domain, state in reading.states.items():
            actual |= state.knobs()
            targets[domain] = Target(state.instance, names[domain])
        ledger = {
            key: entry.owned
            for key, entry in self._journal.entries.items()
            if key.uuid in targets and entry.instance == targets[key.uuid].instance
        }
        changes = diff(plan, actual, ledger)
        applied = apply(changes, targets, self._host, self._journal)
        self._journal.settle(ledger.keys() - {change.key for change in changes})
        return applied

    def _events(
        self,
        specs: Mapping[str, VmSpec],
        reading: Reading,
        outcomes: tuple[Outcome, ...],
        names: Mapping[str, str],
        troubles: list[Trouble],
        notes: tuple[Note, ...],
        now_s: float,
    ) -> tuple[Event, ...]:
        managed = {domain: spec.name for domain, spec in specs.items()}
        severities = [
            (Severity.WARNING if trouble.kind == "placement" else Severity.ERROR, trouble.kind, trouble.text)
            for trouble in troubles
        ]
        severities += [(Severity.WARNING, "response-times", f"{note.application}: {note.text}") for note in notes]
        return (
            *self._chronicle.comings_and_goings(managed, reading.errors, now_s),
            *self._chronicle.foreign_changes(outcomes, names, now_s),
            *self._chronicle.troubles(severities, now_s),
        )
