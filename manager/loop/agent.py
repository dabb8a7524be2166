"""The agent: the control loop on its schedule, and its reports, until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_

from manager.host.port import MigrationPort
from manager.logs import TICK_NUMBER, within
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.assigned import Assigned
from manager.loop.chronicle import discovery_news
from manager.loop.guard import Guard, GuardSettings, GuardUse
from manager.loop.link import ManagerLink, dated_here, joined
from manager.loop.migrations import Migrations
from manager.loop.observer import system_clock
from manager.loop.outbox import Outbox
from manager.loop.outgoing import Outgoing
from manager.loop.planner import SCHEDULER
from manager.loop.reporter import Latest, Reporter
from manager.loop.schedule import Schedule
from manager.loop.status import VmStatuses, power_controls, tick_record, tick_status
from manager.loop.tick import ControlLoop, TickResult
from manager.loop.watches import FindingsWatch, Oversight
from manager.model.host import Discovery
from manager.model.knob_spec import Family
from manager.model.knob_text import knob_name
from manager.model.records import Severity
from manager.model.registration import Application, Assignment
from manager.model.warp import EJECTED, UNLOADED, Mechanism
from manager.model.window import SlaState
from manager.telemetry.telemetry_port import Telemetry

_SLOW_S = 10.0
"""A tick that has not ended so long after several of them were due hangs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sources:
    """How the sources of response times were last configured."""

    applications: Sequence[Application]
    slot_s: float
    addresses: Mapping[str, frozenset[str]]
    taps: Mapping[str, frozenset[int]]
    domain_taps: Mapping[str, frozenset[int]]


class Agent:
    """Gives the loop assignment and response times at each tick, and the reporter the result."""

    def __init__(
        self,
        loop: ControlLoop,
        outbox: Outbox,
        link: ManagerLink,
        metrics: AgentMetrics,
        *,
        telemetry: Telemetry,
        findings: FindingsWatch,
        sync_s: float,
        migrator: MigrationPort | None = None,
        guard: GuardSettings = GuardSettings(),  # noqa: B008 - immutable
    ) -> None:
        """Everything is injected; nothing runs before ``start``. ``migrator`` None: no VM can be migrated from here."""
        self._loop, self._link, self._metrics = loop, link, metrics
        self._host, self._journal = loop.host, loop.journal
        self._telemetry, self._findings = telemetry, findings
        self._interval_s = loop.settings.interval_s
        self._outgoing = Outgoing(loop.settings.host_name, outbox, metrics)
        self.say = self._outgoing.say
        self._oversight = Oversight(self._interval_s, self.say, metrics.clock_jumps.inc)
        metrics.tick_age.set_function(lambda: self._oversight.age_s)
        metrics.stalled.set_function(lambda: float(self._oversight.stalled_s is not None))
        self._discovery: Discovery | None = None
        self._schedule = Schedule(self.tick, self._interval_s, metrics)
        self.tick_now = self._schedule.tick_now
        self.migrations = Migrations(self._host, migrator, loop.limits)
        self.reporter = Reporter(
            loop,
            link,
            self._outgoing,
            self._oversight,
            telemetry=telemetry,
            findings=findings,
            migrations=self.migrations,
            sync_s=min(sync_s, self._interval_s),
            crashed=self._schedule.crashed,
        )
        self._turn = threading.RLock()  # of ticks and the guard
        self._guard = (
            Guard(
                loop,
                guard,
                self._turn,
                say=self.say,
                crashed=self._schedule.crashed,
                metrics=metrics,
                answered=telemetry.answered,
            )
            if guard.use is not GuardUse.OFF
            else None
        )
        self._statuses = VmStatuses()
        self._sources: _Sources | None = None
        self._configured_for: tuple[object, ...] = (None,) * 4
        self._policy: str | None = None
        self._decides = False

    def start(self) -> None:
        """Begin with the cached assignment if the manager does not answer."""
        self.reporter.assigned = self._link.cached()
        self.say(Severity.INFO, "agent-started", f"agent started, {len(self._journal.entries)} settings in the journal")
        self.reporter.begin()
        self.tick()
        loadable = any(
            offer.mechanism is Mechanism.SCHED_EXT and offer.available for offer in self._host.capabilities.warps
        )
        self._oversight.ticked()
        self._oversight.start()
        self._schedule.start(self.watch if loadable else None)
        self.reporter.start()
        self._findings.start()
        if self._guard:
            self._guard.start()

    def tick(self) -> None:
        """One control interval."""
        with within(TICK_NUMBER, str(self._loop.number + 1)):
            with self._turn:
                result = self._tick()
            self._loop.look_at_resources(result)  # the guard need not wait for it

    def _tick(self) -> TickResult:
        assigned = self.reporter.assigned
        slots = self._telemetry.slots()
        if assigned.assignment is not None:
            self._note_policy(assigned.assignment.host.policy)
            slot_s = assigned.assignment.slot_s
            now_s, ahead_s = self._loop.clock().epoch_s, self._link.clock_ahead_s
            slots = joined(slots, dated_here(assigned.slots, now_s, ahead_s, slot_s), slot_s)
        result = self._loop.tick(assigned.assignment, slots)
        if assigned.assignment is not None:
            self._configure(assigned.assignment, result)
        self._finish(result, assigned)
        if self._guard:
            self._guard.ticked()
        self._oversight.ticked()
        return result

    def hanging(self) -> str:
        """What hangs, empty for nothing: no tick has ended for longer than slow ones take."""
        late_s = self._oversight.age_s
        return f"no tick has ended for {late_s:.0f} s" if late_s > 3 * self._interval_s + _SLOW_S else ""

    def watch(self) -> None:
        """Do not wait for the next interval when our scheduler does not decide any more: plan again, and report it."""
        if self._decides and self._host.knobs(self._host.itself, Family.SCHEDULER)[SCHEDULER] in {EJECTED, UNLOADED}:
            self.tick()

    def stop(self) -> int:
        """End the schedule, restore everything, report it. Returns how many settings could not be restored."""
        self._oversight.stop()
        if self._guard:
            self._guard.stop()
        self._schedule.stop()
        self.reporter.stop()
        self._findings.stop()
        result = self._loop.release("agent stopped")
        self._finish(result, self.reporter.assigned)
        self._outgoing.keep(self._telemetry.recent())  # nothing more will come, also if the manager is away now
        left = [entry for entry in self._journal.entries.values() if not entry.owned.external]
        count = len(left) + result.cache.owned
        text = "everything is as it was" if not count else f"{count} settings could not be restored"
        self.say(Severity.ERROR if count else Severity.INFO, "agent-stopped", f"agent stopped, {text}")
        self.reporter.end()
        return count

    def _finish(self, result: TickResult, assigned: Assigned) -> None:
        owned = self._journal.runs.differing + result.cache.owned
        connected = self._host.connected
        self._metrics.observe(result, owned, connected)
        for record in result.records:
            change = f"{record.vm} {knob_name(record.knob, record.index)}: {record.before} to {record.after}"
            log.info("%s %s (%s) %s", record.outcome, change, record.reason, record.detail)
        for event in result.events:
            _log(event.severity, event.message)
        seen = [tick_record(result)] if result.busy is not None else []
        self._outgoing.keep([*result.records, *result.events, *seen, *self._telemetry.closed()])
        self._report_damages()
        self._decides = result.warp.mechanism is Mechanism.SCHED_EXT
        discovery = self._look_at_discovery()
        guard = self._guard.status if self._guard else None
        status = partial(  # made when it is reported, which not each is
            tick_status,
            result,
            self._schedule.overruns,
            owned,
            connected,
            assigned.revision,
            discovery.age_s,
            guard,
            power_controls(self._journal),
        )
        violated = frozenset(
            view.application.name for view in result.snapshot.applications if view.sla_state is SlaState.VIOLATED
        )
        statuses = self._statuses.of(result, self._journal, self._host.migrating())
        capabilities = result.snapshot.capabilities
        self.reporter.latest = Latest(status, statuses, assigned.revision, violated, capabilities)

    def _look_at_discovery(self) -> Discovery:
        """Report what changed of the discovery of domains since the last tick."""
        before, now = self._discovery, self._host.discovery
        self._discovery = now
        self._metrics.observe_discovery(now)
        for news in discovery_news(before, now):
            _log(news.severity, news.text)
            self.say(news.severity, news.kind, news.text)
        return now

    def _report_damages(self) -> None:
        """Report what the manager did not accept; and once each file that was damaged and set aside."""
        self._outgoing.reject(self._link.take_rejected(), system_clock().monotonic_s)
        for damage in (
            *self._journal.take_damages(),
            *self._outgoing.outbox.take_damages(),
            *self._link.take_damages(),
        ):
            self._metrics.errors.labels("damage").inc()
            self.say(Severity.ERROR, "file-damaged", damage.text)

    def _note_policy(self, policy: str) -> None:
        before, self._policy = self._policy, policy
        if before is not None and before != policy:
            self.say(Severity.INFO, "policy-changed", f"policy {policy} instead of {before}")

    def _configure(self, assignment: Assignment, result: TickResult) -> None:
        """Let the sources be those of the assignment, believing the VMs that run here."""
        addresses_of, taps_of = self._host.addresses(), self._host.taps()
        given = assignment, result.specs, addresses_of, taps_of
        if all(map(is_, given, self._configured_for)):  # mostly the same objects
            return
        self._configured_for = given
        addresses = {spec.name: addresses_of.get(domain, frozenset()) for domain, spec in result.specs.items()}
        taps = {spec.name: taps_of.get(domain, frozenset()) for domain, spec in result.specs.items()}
        wanted = _Sources(assignment.applications, assignment.slot_s, addresses, taps, dict(taps_of))
        if wanted != self._sources:
            self._telemetry.configure(wanted.applications, wanted.slot_s, wanted.addresses, wanted.taps)
            self._telemetry.find_services(wanted.domain_taps)
            self._sources = wanted


def _log(severity: Severity, message: str) -> None:
    log.log(logging.INFO if severity is Severity.INFO else logging.WARNING, "%s", message)
