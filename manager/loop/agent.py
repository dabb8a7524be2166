"""The agent: the control loop and the talk with the manager, each on its own schedule, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from manager.errors import JournalError, ManagerUnavailable
from manager.host.port import HostPort
from manager.logs import TICK_NUMBER, within
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.chronicle import new_event
from manager.loop.discovery import DiscoveryWatch
from manager.loop.findings import FindingsWatch
from manager.loop.garbage import COLLECT_S, collect_as_usual, collect_garbage, postpone_garbage
from manager.loop.journal import Journal
from manager.loop.link import ManagerLink, Orders, Report, dated_here, joined
from manager.loop.observer import system_clock
from manager.loop.outbox import Item, Outbox
from manager.loop.oversight import Oversight
from manager.loop.planner import SCHEDULER
from manager.loop.rejections import Rejections
from manager.loop.status import VmStatuses, tick_record, tick_status
from manager.loop.tick import ControlLoop, TickResult
from manager.model.finding import Findings
from manager.model.host import Capabilities, VmInstance
from manager.model.knobs import Family, knob_name
from manager.model.records import Severity
from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.warp import EJECTED, UNLOADED, Mechanism
from manager.protocol.report import TickStatus, VmStatus
from manager.steady import AfterBoundaries, Every, SteadyScheduler, next_boundary_s
from manager.telemetry.telemetry_port import Telemetry

TICK, TIDY, WATCH = "tick", "tidy", "watch"
_REPORT_AT, _FETCH_AT = 0.1, 0.6
"""When the manager is told and asked, in parts of the time between two exchanges, from when a tick is due: what one
host's agent tells of a slot is known to all others before the next tick. Where no other waits for it, both are one
request, at the later time."""
_REPEAT_S = 60.0
"""What did not change of the host is told again so often, for a manager that has forgotten the host."""
_WATCH_S = 0.5
"""Where there may be our sched_ext scheduler, it is looked at so often whether it still decides."""
_SLOW_S = 10.0
"""A tick that has not ended so long after several of them were due hangs."""
_AFTER_SLOT_S = 0.03
"""A tick comes so long after a slot of response times has ended: what ended in it has been counted by then."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Latest:
    """What the last tick left for the next report."""

    tick: TickStatus
    vms: list[VmStatus]


@dataclass(frozen=True, slots=True)
class _About:
    """What there is to be told of the host itself, which seldom changes."""

    capabilities: Capabilities
    domains: Mapping[str, VmInstance]
    findings: Findings | None


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the sources of response times were last told to be."""

    applications: Sequence[Application]
    slot_s: float
    addresses: Mapping[str, frozenset[str]]


class Agent:
    """Runs ticks every ``interval_s`` and exchanges with the manager every ``sync_s``; neither waits for the other.

    Ticks come just after multiples of ``interval_s`` since the epoch, when slots of response times have just ended. The
    manager is told after each, and asked half an interval later: one host's response times are at all others by then.
    """

    def __init__(
        self,
        host: HostPort,
        loop: ControlLoop,
        journal: Journal,
        outbox: Outbox,
        link: ManagerLink,
        metrics: AgentMetrics,
        *,
        telemetry: Telemetry,
        findings: FindingsWatch,
        host_name: str,
        interval_s: float,
        sync_s: float,
    ) -> None:
        """Everything is injected; nothing runs before ``start``."""
        self._host, self._loop, self._journal = host, loop, journal
        self._outbox, self._link, self._metrics = outbox, link, metrics
        self._telemetry = telemetry
        self._findings = findings
        self._host_name = host_name
        self._interval_s = interval_s
        self._sync_s = min(sync_s, interval_s)
        self._orders = Orders()
        self._latest: Latest | None = None
        self._reported: Latest | None = None
        self._statuses = VmStatuses()
        self._reported_sources: tuple[SourceStatus, ...] | None = None
        self._reported_about: tuple[_About, float] | None = None
        self._sources: _Sources | None = None
        self._policy: str | None = None
        self._decides = False
        self._overruns = 0
        self._unkept = False
        self._rejections = Rejections(metrics, self.say)
        self._oversight = Oversight(interval_s, self.say, metrics.clock_jumps.inc)
        metrics.tick_age.set_function(lambda: self._oversight.age_s)
        metrics.stalled.set_function(lambda: float(self._oversight.stalled_s is not None))
        metrics.manager_up.set_function(self._manager_up)
        self._discovery = DiscoveryWatch(self.say, metrics.observe_discovery)
        self._stopping = threading.Event()
        self._manager_answers: bool | None = None
        self._answered_s = float("-inf")
        self._scheduler = SteadyScheduler({TICK: 1}, on_overrun=self._overran, on_crash=self._crashed)
        # A loop of its own: a job costs as much as half an exchange.
        self._talking = threading.Thread(target=self._talk, name="talk", daemon=True)

    def start(self) -> None:
        """Begin with what is known of the manager's orders, cached if it does not answer."""
        self._orders = self._link.cached_orders()
        self.say(Severity.INFO, "agent-started", f"agent started, {len(self._journal.entries)} settings in the journal")
        self.sync()
        self.tick()
        self._scheduler.add(TICK, self.tick, AfterBoundaries(self._interval_s, _AFTER_SLOT_S), TICK)
        between_s = _AFTER_SLOT_S + self._interval_s / 2
        self._scheduler.add(TIDY, collect_garbage, AfterBoundaries(COLLECT_S, between_s), TICK)
        if any(offer.mechanism is Mechanism.SCHED_EXT and offer.there for offer in self._host.capabilities.warps):
            self._scheduler.add(WATCH, self.watch, Every(_WATCH_S), TICK)
        postpone_garbage()
        self._oversight.ticked()
        self._oversight.start()
        self._scheduler.start()
        self._talking.start()
        self._findings.start()

    def tick(self) -> None:
        """One control interval."""
        with within(TICK_NUMBER, str(self._loop.number + 1)):
            self._tick()

    def _tick(self) -> None:
        orders = self._orders
        self._note_policy(orders)
        slots = self._telemetry.slots()
        if orders.assignment is not None:
            slot_s = orders.assignment.slot_s
            now_s, ahead_s = self._loop.clock().epoch_s, self._link.clock_ahead_s
            slots = joined(slots, dated_here(orders.slots, now_s, ahead_s, slot_s), slot_s)
        result = self._loop.tick(orders.assignment, slots)
        self._configure(orders, result)
        self._finish(result, orders)
        self._oversight.ticked()

    def trouble(self) -> str:
        """What hangs, empty for nothing: no tick has ended for longer than slow ones take."""
        late_s = self._oversight.age_s
        return f"no tick has ended for {late_s:.0f} s" if late_s > 3 * self._interval_s + _SLOW_S else ""

    def watch(self) -> None:
        """Do not wait for the next interval when our scheduler does not decide any more: plan again, and say so."""
        if self._decides and self._host.knobs(self._host.itself, Family.SCHEDULER)[SCHEDULER] in {EJECTED, UNLOADED}:
            self.tick()

    def tick_now(self) -> threading.Event:
        """Do not wait for the next interval, as a VM has come. Set once such a tick has ended, or none will be made."""
        ended = threading.Event()
        if self._stopping.is_set():
            ended.set()
        else:
            self._scheduler.soon(self._tick_for, (ended,), TICK)
        return ended

    def _tick_for(self, ended: threading.Event) -> None:
        try:
            self.tick()
        finally:
            ended.set()

    def sync(self) -> None:
        """One exchange with the manager."""
        if self.report():
            self.fetch()

    def _talk(self) -> None:
        """An exchange in every ``sync_s``, until told to stop."""
        while True:
            now_s = system_clock().epoch_s
            due = _REPORT_AT if self._link.shared else _FETCH_AT
            due_s = next_boundary_s(now_s, self._sync_s, _AFTER_SLOT_S) + due * self._sync_s
            if self._stopping.wait(due_s - now_s):
                return
            try:
                self.exchange()
            except Exception as error:  # noqa: BLE001 - a mistake must not end the talk
                self._crashed("talk", error)

    def exchange(self) -> None:
        """One exchange. Where other hosts wait for what is told here, it is told first, and asked after a pause.

        Else it is one request, because each has its cost.
        """
        if not self._link.shared:
            self.report(ask=True)
            return
        begin_s = system_clock().monotonic_s
        self.report()
        rest_s = begin_s + (_FETCH_AT - _REPORT_AT) * self._sync_s - system_clock().monotonic_s
        if not self._stopping.wait(max(rest_s, 0.0)):
            self.fetch()

    def report(self, *, ask: bool = False) -> bool:
        """Tell the manager what is new, and with ``ask`` take its orders. False: it does not answer."""
        latest = self._latest
        sources = self._telemetry.statuses()
        about = _About(self._host.capabilities, dict(self._host.running()), self._findings.latest)
        untold = self._untold(about)
        self._metrics.observe_sources(sources)
        try:
            vms, changed_only = self._vms(latest, afresh=untold)
            orders = self._link.send(
                Report(
                    replace(about.capabilities, limits=tuple(self._loop.limits.in_words())) if untold else None,
                    self._tick_to_tell(latest),
                    vms,
                    changed_only,
                    sources if sources != self._reported_sources else None,
                    self._telemetry.recent(),
                    tuple(about.domains.values()) if untold else None,
                    about.findings if untold else None,
                ),
                ask=ask,
            )
        except (ManagerUnavailable, JournalError) as error:
            return self._without_manager(error)
        if untold:
            self._reported_about = about, system_clock().monotonic_s
        self._reported, self._reported_sources = latest, sources
        return self._obey(orders) if ask else True

    def _tick_to_tell(self, latest: Latest | None) -> TickStatus | None:
        """The last tick where it is new; and while none comes, the same again with for how long."""
        stalled_s = self._oversight.stalled_s
        if latest is not None and stalled_s is not None:
            return latest.tick.model_copy(update={"stalled_s": stalled_s})
        return latest.tick if latest is not None and latest is not self._reported else None

    def _vms(self, latest: Latest | None, *, afresh: bool) -> tuple[list[VmStatus] | None, bool]:
        """All VMs; or, where the manager was told of the same ones before, those that changed since, None: none did.

        And whether these are not all.
        """
        if latest is None:
            return None, False
        before = self._reported.vms if self._reported is not None else []
        if not before or afresh or self._link.vms_missing or [vm.vm for vm in before] != [vm.vm for vm in latest.vms]:
            return latest.vms, False
        return [now for now, then in zip(latest.vms, before, strict=True) if now is not then] or None, True

    def fetch(self) -> bool:
        """Ask the manager for orders. False: it does not answer."""
        try:
            return self._obey(self._link.fetch())
        except (ManagerUnavailable, JournalError) as error:
            return self._without_manager(error)

    def _obey(self, orders: Orders) -> bool:
        self._orders = orders
        if self._manager_answers is not True:
            log.info("the manager answers")
        self._manager_answers = True
        self._rejections.answered()
        self._answered_s = system_clock().monotonic_s
        if self._link.clock_ahead_s is not None:
            self._metrics.clock_ahead.set(self._link.clock_ahead_s)
        return True

    def _without_manager(self, error: Exception) -> bool:
        if self._manager_answers is not False:
            log.warning("%s; control goes on with what is known", error)
        self._manager_answers = False
        self._rejections.unanswered(error)
        return False

    def _manager_up(self) -> float:
        """1 where the manager answered last time, and that was not long ago: nobody may have asked it since."""
        recently = system_clock().monotonic_s - self._answered_s <= 3 * self._sync_s + _SLOW_S
        return float(self._manager_answers is True and recently)

    def _untold(self, about: _About) -> bool:
        """Whether the manager is to be told of it: it may be long, and is repeated now and then at most."""
        told = self._reported_about
        return told is None or told[0] != about or system_clock().monotonic_s - told[1] > _REPEAT_S

    def stop(self) -> int:
        """End the schedule, put everything back, tell the manager. Returns how many settings could not be put back."""
        self._stopping.set()
        self._oversight.stop()
        if self._scheduler.running:
            self._scheduler.stop()
            self._talking.join()
            collect_as_usual()
        self._findings.stop()
        result = self._loop.release("agent stopped")
        self._finish(result, self._orders)
        self._keep(self._telemetry.recent())  # nothing more will come, also if the manager is away now
        left = [entry for entry in self._journal.entries.values() if not entry.owned.external]
        count = len(left) + result.cache.owned
        text = "everything is as it was" if not count else f"{count} settings could not be put back"
        self.say(Severity.ERROR if count else Severity.INFO, "agent-stopped", f"agent stopped, {text}")
        self.sync()
        return count

    def say(self, severity: Severity, kind: str, message: str) -> None:
        """Tell the operator of something that is not part of a tick."""
        self._keep([new_event(self._host_name, system_clock().epoch_s, severity, kind, message)])

    def _finish(self, result: TickResult, orders: Orders) -> None:
        owned = sum(entry.owned.differs for entry in self._journal.entries.values()) + result.cache.owned
        connected = self._host.connected
        self._metrics.observe(result, owned, connected)
        for record in result.records:
            change = f"{record.vm} {knob_name(record.knob, record.index)}: {record.before} to {record.after}"
            log.info("%s %s (%s) %s", record.outcome, change, record.reason, record.detail)
        for event in result.events:
            log.log(logging.INFO if event.severity is Severity.INFO else logging.WARNING, "%s", event.message)
        self._keep([*result.records, *result.events, tick_record(result), *self._telemetry.closed()])
        self._tell_damages()
        self._decides = result.warp.mechanism is Mechanism.SCHED_EXT
        status = tick_status(
            result, self._overruns, owned, connected, orders.number, self._discovery.look(self._host.discovery)
        )
        self._latest = Latest(status, self._statuses.of(result, self._journal))

    def _tell_damages(self) -> None:
        """What the manager did not accept; and once each file that was damaged and set aside."""
        self._rejections.tell(self._link.take_rejected(), system_clock().monotonic_s)
        for damage in (*self._journal.take_damages(), *self._outbox.take_damages(), *self._link.take_damages()):
            self._metrics.errors.labels("damage").inc()
            self.say(Severity.ERROR, "file-damaged", damage.text)

    def _note_policy(self, orders: Orders) -> None:
        if orders.assignment is None:
            return
        policy, before = orders.assignment.host.policy, self._policy
        self._policy = policy
        if before is not None and before != policy:
            self.say(Severity.INFO, "policy-changed", f"policy {policy} instead of {before}")

    def _configure(self, orders: Orders, result: TickResult) -> None:
        """Let the sources be those of the assignment, believing the VMs that run here."""
        if orders.assignment is None:
            return
        known = self._host.addresses()
        addresses = {spec.name: known.get(domain, frozenset()) for domain, spec in result.specs.items()}
        wanted = _Sources(orders.assignment.applications, orders.assignment.slot_s, addresses)
        if wanted != self._sources:
            self._telemetry.configure(wanted.applications, wanted.slot_s, wanted.addresses)
            self._sources = wanted

    def _keep(self, items: Iterable[Item]) -> None:
        """Keep for the manager. What the disk refuses waits in memory, which is said once: control goes on."""
        try:
            written, trouble = self._outbox.put(items), ""
        except JournalError as error:
            written, trouble = True, str(error)
            self._metrics.errors.labels("outbox").inc()
        if written and bool(trouble) is not self._unkept:
            self._unkept = bool(trouble)
            severity = Severity.ERROR if trouble else Severity.INFO
            log.log(logging.ERROR if trouble else logging.INFO, "%s", trouble or "the outbox can be written again")
            waits = f"{trouble}; what is to be told waits in memory, and is lost if the agent ends"
            self.say(severity, "outbox", waits if trouble else "the outbox can be written again")

    def _overran(self, name: str) -> None:
        if name == TICK:
            self._overruns += 1
            self._metrics.overruns.inc()
            log.warning("a tick took longer than the interval of %g s; the next one is left out", self._interval_s)

    def _crashed(self, what: str, error: BaseException) -> None:
        self._metrics.errors.labels("bug").inc()
        log.error("%s failed: %r", what, error, exc_info=error)
