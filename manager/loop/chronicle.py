"""What is told of a tick: a record for each decision, and events. Both once, not once an interval while they last."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from manager.loop.apply import Outcome
from manager.loop.cache_reading import CacheOutcome
from manager.model.decision import Action
from manager.model.knobs import KnobKey, knob_name, knob_text
from manager.model.problem import Problem
from manager.model.records import DecisionRecord, Event, OutcomeKind, Severity
from manager.model.registration import Mode

_REPEATED = frozenset({OutcomeKind.OBSERVED, OutcomeKind.FAILED, OutcomeKind.IGNORED})


def new_event(host: str, now_s: float, severity: Severity, kind: str, message: str, vm: str | None = None) -> Event:
    """An event with an id of its own."""
    return Event(str(uuid.uuid4()), now_s, host, severity, kind, message, vm)


class Chronicle:
    """Makes the records and events of a host's ticks, remembering what was told already."""

    def __init__(self, host_name: str) -> None:
        """``host_name`` is the name the host is registered under."""
        self._host = host_name
        self._reported: dict[KnobKey, tuple[object, ...]] = {}
        self._groups: dict[tuple[object, ...], CacheOutcome] = {}
        self._lasting: frozenset[str] = frozenset()
        self._names: dict[str, str] = {}

    def records(
        self, outcomes: Sequence[Outcome], names: Mapping[str, str | None], policy: str, now_s: float
    ) -> tuple[DecisionRecord, ...]:
        """A record for each outcome, but not again for what keeps being observed or keeps failing alike.

        ``names`` are the registered names by domain UUID, of managed VMs and of those being let go; None: the host.
        """
        records: list[DecisionRecord] = []
        lasting: dict[KnobKey, tuple[object, ...]] = {}
        for outcome in outcomes:
            change = outcome.change
            content = (change.before, change.after, outcome.kind, outcome.detail)
            if outcome.kind in _REPEATED:
                lasting[change.key] = content
                if self._reported.get(change.key) == content:
                    continue
            records.append(
                DecisionRecord(
                    record_id=str(uuid.uuid4()),
                    time_s=now_s,
                    host=self._host,
                    vm=names[change.key.uuid],
                    knob=change.key.knob,
                    index=change.key.index,
                    before=knob_text(change.before),
                    after=knob_text(change.after),
                    reason=change.reason,
                    policy=policy,
                    mode=Mode.OBSERVE if change.action is Action.OBSERVE else Mode.ENFORCE,
                    outcome=outcome.kind,
                    detail=outcome.detail,
                )
            )
        self._reported = lasting
        return tuple(records)

    def cache_records(
        self, outcomes: Sequence[CacheOutcome], names: Mapping[str, str | None], policy: str, now_s: float
    ) -> tuple[DecisionRecord, ...]:
        """A record for each step of the cache's, but not again for what keeps being observed or keeps failing alike."""
        before = self._groups
        lasting = [outcome for outcome in outcomes if outcome.kind in _REPEATED]
        self._groups = {(one.knob, one.group, one.vm): one for one in lasting}
        return tuple(
            DecisionRecord(
                record_id=str(uuid.uuid4()),
                time_s=now_s,
                host=self._host,
                vm=None if outcome.vm is None else names.get(outcome.vm),
                knob=outcome.knob,
                index=0,
                before=outcome.before,
                after=outcome.after,
                reason=outcome.reason,
                policy=policy,
                mode=Mode.OBSERVE if outcome.kind is OutcomeKind.OBSERVED else Mode.ENFORCE,
                outcome=outcome.kind,
                detail=outcome.detail,
            )
            for outcome in outcomes
            if outcome.kind not in _REPEATED or before.get((outcome.knob, outcome.group, outcome.vm)) != outcome
        )

    def comings_and_goings(self, names: Mapping[str, str], unread: Iterable[str], now_s: float) -> tuple[Event, ...]:
        """Events for VMs that were found or went since the last call.

        ``names`` are the registered names of the managed VMs by domain UUID; ``unread`` are the UUIDs of VMs that run
        but could not be read, which did not go.
        """
        staying = {domain: self._names[domain] for domain in unread if domain in self._names}
        now = staying | dict(names)
        found = [(name, "vm-found", "runs here") for domain, name in sorted(now.items()) if domain not in self._names]
        gone = [
            (name, "vm-gone", "is not managed here any more")
            for domain, name in sorted(self._names.items())
            if domain not in now
        ]
        self._names = now
        return tuple(
            new_event(self._host, now_s, Severity.INFO, kind, f"{name} {what}", name)
            for name, kind, what in found + gone
        )

    def external_changes(
        self, outcomes: Iterable[Outcome], names: Mapping[str, str | None], now_s: float
    ) -> tuple[Event, ...]:
        """A warning for each value that another tool changed."""
        return tuple(
            new_event(
                self._host,
                now_s,
                Severity.WARNING,
                "external-change",
                f"{knob_name(outcome.change.key.knob, outcome.change.key.index)}: {outcome.change.reason}; left alone",
                names[outcome.change.key.uuid],
            )
            for outcome in outcomes
            if outcome.kind is OutcomeKind.EXTERNAL
        )

    def external_groups(self, outcomes: Iterable[CacheOutcome], now_s: float) -> tuple[Event, ...]:
        """A warning for each group of resctrl that another tool changed."""
        return tuple(
            new_event(
                self._host,
                now_s,
                Severity.WARNING,
                "external-change",
                f"{outcome.before}: {outcome.reason}{', now ' if outcome.after else ''}{outcome.after};"
                f" {outcome.detail}",
            )
            for outcome in outcomes
            if outcome.kind is OutcomeKind.EXTERNAL
        )

    def lasting(
        self, problems: Sequence[Problem], notes: Sequence[tuple[Severity, str, str]], now_s: float
    ) -> tuple[Event, ...]:
        """Events for problems and notes (severity, kind, text) that were not there at the last call."""
        news = [
            (problem.kind.severity, str(problem.kind), problem.text)
            for problem in problems
            if problem.text not in self._lasting
        ]
        news += [note for note in notes if note[2] not in self._lasting]
        self._lasting = frozenset([problem.text for problem in problems] + [text for _, _, text in notes])
        return tuple(new_event(self._host, now_s, *event) for event in news)
