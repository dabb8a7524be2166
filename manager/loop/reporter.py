"""Exchanges with the manager: what is new is reported, and assignments are fetched.

There are two planes. A *live* report says what is so now: the last tick, and the newest response times. It is due a few
times a minute, and at once where something cannot wait. *History*, what waits in the outbox and how VMs changed, comes
with one report a minute. Where somebody looks at the host, and in a small fleet, each report has all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from manager.errors import JournalError, ManagerUnavailable
from manager.loop.assigned import Assigned
from manager.loop.link import ManagerLink, Report
from manager.loop.migrations import Migrations
from manager.loop.observer import system_clock
from manager.loop.outgoing import Outgoing
from manager.loop.pace import Pace, Waits
from manager.loop.schedule import AFTER_SLOT_S
from manager.loop.tick import ControlLoop
from manager.loop.watches import Background, FindingsWatch, Oversight
from manager.model.finding import Findings
from manager.model.host import Capabilities, VmInstance
from manager.model.source import SourceStatus
from manager.model.traffic import HostServices
from manager.model.window import Window
from manager.protocol.report import TickStatus, VmStatus
from manager.steady import next_boundary_s
from manager.telemetry.telemetry_port import Telemetry

_REPORT_AT, _FETCH_AT = 0.1, 0.6
"""When a report is sent, and the manager asked, in parts of the time between two exchanges, from when a tick is due:
what one host's agent reports of a slot is known to all others before the next tick."""
_ALONE_FROM, _ALONE_TO = 0.2, 0.9
"""Where no other waits for it, both are one request, between these times: of each host at another one."""
_LIVE_SLOTS = 2
"""The present state of an application is in so many slots, see ``manager.store.windows``."""
_REPEAT_S = 60.0
"""What did not change of the host is reported again so often, for a manager that has forgotten the host."""
_SPARING_REPEAT_S = 300.0
"""The same where the manager asks for few reports."""
_SERVICES_S = 10.0
"""Figures of services are reported so often at most: they change all the time."""
_UNANSWERED_S = 10.0
"""The manager counts as up for so long, and three exchanges, after it answered."""
_EASY_S = 1.0
"""A manager that takes longer for a part of what waits has enough to do: the rest comes later, see ``Pace``."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Latest:
    """What the last tick left for the next report.

    ``tick`` makes its status, ``revision`` is that of the assignment it acted on, ``violated`` are the applications
    that violate their SLA, and ``capabilities`` what the host offered: to look at that again takes as long as reading
    twenty VMs.
    """

    tick: Callable[[], TickStatus]
    vms: list[VmStatus]
    revision: int | None
    violated: frozenset[str]
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class _HostFacts:
    """What is reported of the host itself, which seldom changes."""

    capabilities: Capabilities
    domains: Mapping[str, VmInstance]
    findings: Findings | None


class Reporter(Background):
    """Exchanges with the manager, at most every ``sync_s``, in a thread of its own: no tick waits for it.

    A report follows each tick, and a question half an interval later: one host's response times are at all others by
    then.
    """

    def __init__(
        self,
        loop: ControlLoop,
        link: ManagerLink,
        outgoing: Outgoing,
        oversight: Oversight,
        *,
        telemetry: Telemetry,
        findings: FindingsWatch,
        migrations: Migrations,
        sync_s: float,
        crashed: Callable[[str, BaseException], None],
    ) -> None:
        """``crashed`` takes mistakes of ours. Nothing runs before ``start``."""
        super().__init__("reporter")  # a loop of its own: a job of a scheduler costs as much as half an exchange
        self._loop, self._link, self._oversight = loop, link, oversight
        self._telemetry, self._findings, self._outgoing = telemetry, findings, outgoing
        self._migrations = migrations
        self._sync_s = sync_s
        self._crashed = crashed
        self._pace = Pace(loop.settings.host_name)
        self.assigned = Assigned()
        self.latest: Latest | None = None
        self._reported: Latest | None = None
        self._reported_vms: list[VmStatus] = []
        self._reported_sources: tuple[SourceStatus, ...] | None = None
        self._reported_facts: tuple[_HostFacts, float] | None = None
        self._reported_services: tuple[HostServices, float] | None = None
        self._reported_stalled = False
        self._manager_answers: bool | None = None
        self._answered_s = float("-inf")
        outgoing.metrics.manager_up.set_function(self._manager_up)

    def sync(self, waits: Waits = Waits.ALL) -> None:
        """One exchange with the manager."""
        if self.report(waits):
            self.fetch()

    def begin(self) -> None:
        """The first exchange."""
        now = system_clock()
        self._pace.begin(self._outgoing.waited_s(now.epoch_s))
        self.sync(self._pace.waits_due(now.monotonic_s))

    def end(self) -> None:
        """The last one. What is too much for it stays in the outbox for the next start, but for events."""
        self.sync(Waits.EVENTS if self._outgoing.is_much else Waits.ALL)

    def turn(self) -> None:
        """An exchange, if one is due by the manager's cadence, or something cannot wait."""
        now_s = system_clock().monotonic_s
        if not self._pace.asks(now_s):
            return
        waits = self._pace.waits_due(now_s, urgent=self._outgoing.urgent)
        due = waits is not Waits.NOTHING or self._pace.live_due(now_s)
        if due or self._link.shared or self._is_urgent():
            self.exchange(waits)

    def exchange(self, waits: Waits = Waits.ALL) -> None:
        """One exchange. Where other hosts wait for the report, it comes first, and the question after a pause.

        Else it is one request, because each has its cost. ``waits``: with so much of what waits in the outbox.
        """
        if not self._link.shared:
            self.report(waits, ask=True)
            return
        begin_s = system_clock().monotonic_s
        self.report(waits)
        rest_s = begin_s + (_FETCH_AT - _REPORT_AT) * self._sync_s - system_clock().monotonic_s
        if not self._stopping.wait(max(rest_s, 0.0)):
            self.fetch()

    def report(self, waits: Waits = Waits.ALL, *, ask: bool = False) -> bool:
        """Report what is new, and with ``ask`` take the assignment. False: the manager does not answer."""
        latest, stalled = self.latest, self._stalled
        urgent = self._outgoing.urgent
        if waits is not Waits.NOTHING:
            self._outgoing.urgent = False
        sources, services = self._telemetry.statuses(), self._telemetry.services()
        facts = self._facts()
        news = self._is_news(facts, history=waits is Waits.ALL)
        told = waits is not Waits.NOTHING or news or self._link.shared or self._is_urgent()
        services_due = told and self._are_due(services)  # with them a live report is none that one statement stores
        migrations = tuple(self._migrations.reports())
        self._outgoing.metrics.observe_sources(sources)
        try:
            vms, changed_only = self._vms(latest, afresh=news) if told else (None, False)
            report = Report(
                tick=self._tick_news(latest),
                vms=vms,
                vms_changed_only=changed_only,
                live=not told and self._pace.cadence is not None,
                sources=sources if sources != self._reported_sources else None,
                windows=self._live_windows(),
                services=services if services_due else None,
                migrations=migrations,
            )
            if news:
                report = replace(
                    report,
                    capabilities=replace(facts.capabilities, limits=tuple(self._loop.limits.in_words())),
                    domains=tuple(facts.domains.values()),
                    findings=facts.findings,
                )
            in_turns = self._pace.cadence is not None and not self._stopping.is_set()
            assigned = self._link.send(report, waits, ask=ask, easy_s=_EASY_S if in_turns else math.inf)
        except (ManagerUnavailable, JournalError) as error:
            self._outgoing.urgent = urgent or self._outgoing.urgent
            self._pace.failed(system_clock().monotonic_s)
            return self._without_manager(error)
        self._migrations.reported(migrations)
        self._migrations.obey(self._link.orders)
        slow_part_s = self._link.slow_part_s if waits is Waits.ALL else None
        self._pace.reported(system_clock().monotonic_s, self._link.cadence, waits, slow_part_s=slow_part_s)
        if news:
            self._reported_facts = facts, system_clock().monotonic_s
        if services_due:
            self._reported_services = services, system_clock().monotonic_s
        self._reported, self._reported_sources, self._reported_stalled = latest, sources, stalled
        if told and latest is not None:
            self._reported_vms = latest.vms
        return self._obey(assigned) if ask else True

    def _is_urgent(self) -> bool:
        """Whether a report cannot wait until it is due: what runs here changed, an SLA is or was violated, ticks stand
        still or go on again, a VM migrates or a migration ended, or a new assignment was acted on for the first time.
        """
        latest, reported = self.latest, self._reported
        if latest is None or reported is None or self._reported_facts is None:
            return True
        facts = self._facts()
        return (
            facts != self._reported_facts[0]
            or bool(latest.violated or reported.violated)
            or any(vm.migrating for vm in latest.vms)
            or self._migrations.untold
            or self._stalled is not self._reported_stalled
            or latest.revision != reported.revision
        )

    @property
    def _stalled(self) -> bool:
        """Whether ticks stand still."""
        return self._oversight.stalled_s is not None

    def _live_windows(self) -> tuple[Window, ...]:
        """The slots that may still grow; only the newest of each application, where older ones come with history."""
        windows = self._telemetry.recent()
        if self._link.shared or self._pace.cadence is None:
            return windows
        newest: dict[str, list[Window]] = {}
        for window in windows:  # the oldest first
            newest.setdefault(window.application, []).append(window)
        return tuple(window for slots in newest.values() for window in slots[-_LIVE_SLOTS:])

    def _facts(self) -> _HostFacts:
        host, latest = self._loop.host, self.latest
        capabilities = host.capabilities if latest is None else latest.capabilities
        return _HostFacts(capabilities, dict(host.running()), self._findings.latest)

    def _tick_news(self, latest: Latest | None) -> TickStatus | None:
        """The last tick where it is new; and while none comes, the same again with for how long."""
        stalled_s = self._oversight.stalled_s
        if latest is not None and stalled_s is not None:
            return latest.tick().model_copy(update={"stalled_s": stalled_s})
        return latest.tick() if latest is not None and latest is not self._reported else None

    def _vms(self, latest: Latest | None, *, afresh: bool) -> tuple[list[VmStatus] | None, bool]:
        """All VMs; or, where the same ones were reported before, those that changed since, None: none did.

        And whether these are not all.
        """
        if latest is None:
            return None, False
        before = self._reported_vms
        if before is latest.vms and before and not afresh:  # mostly so
            return None, True
        if not before or afresh or [vm.vm for vm in before] != [vm.vm for vm in latest.vms]:
            return latest.vms, False
        return [now for now, then in zip(latest.vms, before, strict=True) if now is not then] or None, True

    def fetch(self) -> bool:
        """Ask the manager for the assignment. False: it does not answer."""
        try:
            return self._obey(self._link.fetch())
        except (ManagerUnavailable, JournalError) as error:
            return self._without_manager(error)

    def _obey(self, assigned: Assigned) -> bool:
        self.assigned = assigned
        if self._manager_answers is not True:
            log.info("the manager answers")
        self._manager_answers = True
        self._outgoing.answered()
        self._answered_s = system_clock().monotonic_s
        if self._link.clock_ahead_s is not None:
            self._outgoing.metrics.clock_ahead.set(self._link.clock_ahead_s)
        return True

    def _without_manager(self, error: Exception) -> bool:
        if self._manager_answers is not False:
            log.warning("%s; control goes on with the last assignment", error)
        self._manager_answers = False
        self._outgoing.unanswered(error)
        return False

    def _manager_up(self) -> float:
        """1 where the manager answered last time, and that was not long ago: nobody may have asked it since."""
        recently = system_clock().monotonic_s - self._answered_s <= 3 * self._sync_s + _UNANSWERED_S
        return float(self._manager_answers is True and recently)

    def _is_news(self, facts: _HostFacts, *, history: bool) -> bool:
        """Whether they are to be reported: they may be long, and are repeated now and then at most, with history, to a
        manager that answers.
        """
        if self._reported_facts is None:
            return True
        reported, reported_s = self._reported_facts
        repeats = history and self._manager_answers is not False
        repeated = repeats and system_clock().monotonic_s - reported_s > self._repeat_s
        return reported != facts or self._link.vms_missing or repeated

    def _are_due(self, services: HostServices) -> bool:
        """Whether the services of the domains are to be reported; also now and then where they did not change."""
        if self._reported_services is None:
            return True
        reported, reported_s = self._reported_services
        age_s = system_clock().monotonic_s - reported_s
        return age_s > (self._repeat_s if reported == services else _SERVICES_S)

    @property
    def _repeat_s(self) -> float:
        return _REPEAT_S if self._pace.cadence is None else _SPARING_REPEAT_S

    def _run(self) -> None:
        """A turn in every ``sync_s``, until it is stopped."""
        while True:
            now_s = system_clock().epoch_s
            alone_at = _ALONE_FROM + (_ALONE_TO - _ALONE_FROM) * self._pace.phase
            due = _REPORT_AT if self._link.shared else alone_at
            due_s = next_boundary_s(now_s, self._sync_s, AFTER_SLOT_S) + due * self._sync_s
            if self._stopping.wait(due_s - now_s):
                return
            try:
                self.turn()
            except Exception as error:  # noqa: BLE001 - a mistake must not end the exchanges
                self._crashed("the exchange with the manager", error)
