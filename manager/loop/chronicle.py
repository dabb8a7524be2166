"""Records of decisions, and events: each once, not at every interval while its reason lasts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from manager.loop.apply import Outcome
from manager.model.host import Discovery
from manager.model.knob_text import knob_name
from manager.model.knobs import Knob, KnobKey
from manager.model.problem import Problem
from manager.model.records import DecisionRecord, Event, News, OutcomeKind, Severity
from manager.model.registration import Mode

_OF_A_TICK = 0xFFFF
"""The lowest bits of the id of a record count those of a tick: ids that differ only there take little room."""
_REPEATED = frozenset({OutcomeKind.OBSERVED, OutcomeKind.FAILED, OutcomeKind.IGNORED})


def new_event(host: str, now_s: float, severity: Severity, kind: str, message: str, vm: str | None = None) -> Event:
    """An event with an id of its own."""
    return Event(str(uuid.uuid4()), now_s, host, severity, kind, message, vm)


class Chronicle:
    """Makes the records and events of a host's ticks, remembering what was reported already."""

    def __init__(self, host_name: str) -> None:
        """``host_name`` is the name the host is registered under."""
        self._host = host_name
        self._reported: dict[tuple[KnobKey, str], tuple[str, ...]] = {}
        self._lasting: frozenset[str] = frozenset()
        self._names: dict[str, str] = {}

    def records(
        self, outcomes: Sequence[Outcome], names: Mapping[str, str | None], policy: str, now_s: float
    ) -> tuple[DecisionRecord, ...]:
        """A record for each outcome, but not again for what keeps being observed or keeps failing alike.

        ``names`` are the registered names by domain UUID, of managed VMs and of those being released; None: the host.
        """
        reported = self._reported
        self._reported = {
            (outcome.key, outcome.group): _content(outcome) for outcome in outcomes if outcome.kind in _REPEATED
        }
        if not outcomes:  # mostly so
            return ()
        first_id = uuid.uuid4().int & ~_OF_A_TICK
        return tuple(
            DecisionRecord(
                record_id=str(uuid.UUID(int=first_id + number % _OF_A_TICK)),
                time_s=now_s,
                host=self._host,
                vm=names.get(outcome.key.uuid),
                knob=outcome.key.knob,
                index=outcome.key.index,
                before=outcome.before,
                after=outcome.after,
                reason=outcome.reason,
                policy=policy,
                mode=Mode.OBSERVE if outcome.kind is OutcomeKind.OBSERVED else Mode.ENFORCE,
                outcome=outcome.kind,
                detail=outcome.detail,
            )
            for number, outcome in enumerate(outcomes)
            if outcome.kind not in _REPEATED or reported.get((outcome.key, outcome.group)) != _content(outcome)
        )

    def comings_and_goings(self, names: Mapping[str, str], unread: Iterable[str], now_s: float) -> tuple[Event, ...]:
        """Events for VMs that were found or went since the last call.

        ``names`` are the registered names of the managed VMs by domain UUID; ``unread`` are the UUIDs of VMs that run
        but could not be read, which did not go.
        """
        before = self._names
        self._names = {domain: before[domain] for domain in unread if domain in before} | dict(names)
        new = [(self._names[domain], "vm-found", "runs here") for domain in sorted(self._names.keys() - before.keys())]
        gone = [
            (before[domain], "vm-gone", "is not managed here any more")
            for domain in sorted(before.keys() - self._names.keys())
        ]
        return tuple(
            new_event(self._host, now_s, Severity.INFO, kind, f"{name} {what}", name) for name, kind, what in new + gone
        )

    def external_changes(
        self, outcomes: Iterable[Outcome], names: Mapping[str, str | None], now_s: float
    ) -> tuple[Event, ...]:
        """A warning for each value, or group of resctrl, that another tool changed."""
        return tuple(
            new_event(
                self._host, now_s, Severity.WARNING, "external-change", _external(outcome), names.get(outcome.key.uuid)
            )
            for outcome in outcomes
            if outcome.kind is OutcomeKind.EXTERNAL
        )

    def lasting(self, problems: Sequence[Problem], notes: Sequence[News], now_s: float) -> tuple[Event, ...]:
        """Events for problems and notes that were not there at the last call."""
        news = [*(News(problem.kind.severity, str(problem.kind), problem.text) for problem in problems), *notes]
        before = self._lasting
        self._lasting = frozenset(each.text for each in news)
        return tuple(new_event(self._host, now_s, *each) for each in news if each.text not in before)


def _content(outcome: Outcome) -> tuple[str, ...]:
    """All that is recorded again when it changes; the reason, which may name a share, is not."""
    return outcome.before, outcome.after, outcome.kind, outcome.detail


def _external(outcome: Outcome) -> str:
    if outcome.key.knob is Knob.CACHE_WAYS:
        now = f", now {outcome.after}" if outcome.after else ""
        return f"{outcome.before}: {outcome.reason}{now}; {outcome.detail}"
    return f"{knob_name(outcome.key.knob, outcome.key.index)}: {outcome.reason}; left alone"


def discovery_news(before: Discovery | None, now: Discovery) -> list[News]:
    """The events of what changed since the last look, None: there was none."""
    hung = before.hanging if before is not None else ()
    news = [
        News(
            Severity.WARNING,
            "domain-hangs",
            f"libvirt does not answer about domain {name}: it is set apart; control goes on with its last known state",
        )
        for name in now.hanging
        if name not in hung
    ]
    news += [
        News(Severity.INFO, "domain-answers", f"libvirt answers about domain {name} again")
        for name in hung
        if name not in now.hanging
    ]
    late_before = before is not None and before.late
    if now.late and not late_before:
        text = f"libvirt has not listed the running domains for {now.age_s:.0f} s"
        consequence = "those that start are found by their files at best; control goes on"
        news.append(News(Severity.ERROR, "discovery-late", f"{text}: {consequence}"))
    if late_before and not now.late:
        news.append(News(Severity.INFO, "discovery-resumed", "libvirt lists the running domains again"))
    return news
