"""The manager's metrics for Prometheus.

Labels are routes, methods, statuses and registered names: nothing that a client sends becomes one. Hosts and
applications are read from the database at each scrape, so every manager of a fleet reports the same.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, Summary, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import BigInteger, Double, column, select
from sqlalchemy.orm import Session

from manager.api.acceptance import LISTS, PARTS
from manager.api.context import ManagerContext
from manager.control.claim_rules import Foul
from manager.control.error_budget import PERIOD_S, WINDOWS_S
from manager.control.sla import sla_state, watched_percentile
from manager.errors import DatabaseUnavailable
from manager.model.window import SlaState
from manager.serving.exchange import OpenedBody
from manager.store.arrivals import clock_ahead_s
from manager.store.jobs import JobEnd, JobResult
from manager.store.last_ticks import with_tick
from manager.store.latest_glances import latest_glances
from manager.store.models import ApplicationRow, HostRow

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
_STARTED = "equipoise.started_s"
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "PATCH", "POST", "DELETE"})

_HOST = HostRow.name, HostRow.silent, HostRow.clock_ahead_s, HostRow.last_seen_at
_TICKED = column("duration_ms", Double), column("overruns", BigInteger), column("errors", BigInteger)

_OVERRUNS = "equipoise_host_tick_overruns"
_FAMILIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("equipoise_host_last_seen_age_seconds", ("host",), "Time since an agent's last report"),
    ("equipoise_host_tick_duration_seconds", ("host",), "Duration of the last tick"),
    (_OVERRUNS, ("host",), "Ticks skipped because the previous one took too long"),
    ("equipoise_host_tick_errors", ("host",), "Errors in the last tick"),
    ("equipoise_host_silent", ("host",), "1 while a host does not report"),
    ("equipoise_host_clock_ahead_seconds", ("host",), "How far its clock is ahead"),
    (
        "equipoise_application_response_time_seconds",
        ("application", "percentile"),
        "The SLA's percentile in the latest window, 95 without an SLA",
    ),
    ("equipoise_application_sla_seconds", ("application",), "Target of the SLA"),
    ("equipoise_application_rate_rps", ("application",), "Requests per second of the latest window"),
    ("equipoise_application_window_samples", ("application",), "Response times in the latest window"),
    ("equipoise_application_window_age_seconds", ("application",), "Time since the latest window ended"),
    ("equipoise_application_sla_state", ("application", "state"), "1 for the state the SLA is in"),
    (
        "equipoise_application_sla_attainment_ratio",
        ("application",),
        "Share of intervals of 30 days in which the SLA held",
    ),
    ("equipoise_application_error_budget_remaining_ratio", ("application",), "Remaining error budget of 30 days"),
    (
        "equipoise_application_burn_rate",
        ("application", "window"),
        "Violated intervals of the window as a multiple of what the attainment target allows",
    ),
    ("equipoise_job_age_seconds", ("job",), "Time since the last run in the fleet began"),
    (
        "equipoise_retention_clock_ahead_seconds",
        (),
        "How far the time of day is ahead of uptime, compared with its usual lead",
    ),
)
"""What is read from the database: name, labels, and help."""

_Sample = tuple[str, list[str], float | None]
"""Name of a family, values of its labels, and the value; None: there is none."""

log = logging.getLogger(__name__)


class Metrics:
    """The metrics of one app, in a registry of their own."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, context: ManagerContext, folder: Path | None = None) -> None:
        """``folder``: where all processes of this manager keep their values, as PROMETHEUS_MULTIPROC_DIR says.

        None: there is one process.
        """
        self._folder = folder
        self._registry = CollectorRegistry()
        self._fleet = _Fleet(context)
        self._process = None if folder is None else _ProcessUse(self._registry)
        if folder is None:
            ProcessCollector(registry=self._registry)
            self._registry.register(self._fleet)
        counter = partial(Counter, registry=self._registry)
        self._requests = counter("equipoise_api_requests", "REST requests answered", ["method", "route", "status"])
        self._durations = Histogram(
            "equipoise_api_request_duration_seconds",
            "Time from reading a request to its answer",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._errors = counter("equipoise_api_errors", "REST requests answered with an error", ["kind"])
        self._records = counter("equipoise_records_stored", "Decisions, events and ticks stored", ["kind"])
        self._windows = counter("equipoise_windows", "Windows that agents reported", ["result"])
        self._refused = counter("equipoise_report_items_refused", "Refused items of reports", ["field"])
        self._second = counter("equipoise_second_agent_reports", "Reports of agents that do not serve their host")
        self._claims = counter("equipoise_vm_claims_refused", "VMs reported by a host that does not run them", ["why"])
        self._workers = Gauge(
            "equipoise_workers",
            "Processes of the manager that serve",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._workers.set(1)
        self._jobs = counter("equipoise_jobs", "Scheduled jobs that this manager requested", ["job", "result"])
        self._job_seconds = Summary(
            "equipoise_job_duration_seconds", "Duration of scheduled jobs", ["job"], registry=self._registry
        )
        for name in (*LISTS, *PARTS):
            self._refused.labels(name)
        for kind in ("decision", "event", "tick"):
            self._records.labels(kind)
        for why in Foul:
            self._claims.labels(why)
        for result in ("stored", "unknown", "future"):
            self._windows.labels(result)

    def text(self) -> bytes:
        """The metrics page."""
        if self._folder is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        registry.register(self._fleet)
        return generate_latest(registry)

    def measure_process(self) -> None:
        """Note what this process uses, where several add that up."""
        if self._process is not None:
            self._process.measure()

    def records_stored(self, decisions: int, events: int, ticks: int) -> None:
        """Count stored records."""
        for kind, count in (("decision", decisions), ("event", events), ("tick", ticks)):
            if count:
                self._records.labels(kind).inc(count)

    def windows_taken(self, result: str, count: int) -> None:
        """Count reported windows: stored, unknown (of an application without a VM or source there), or future."""
        if count:
            self._windows.labels(result).inc(count)

    def follow_jobs(self, ages_s: Callable[[], Mapping[str, float]]) -> None:
        """Ask from now on how long ago each job began: not the dates in the database, as clocks are set."""
        self._fleet.job_ages_s = ages_s

    def items_refused(self, fields: Iterable[str]) -> None:
        """Count items of reports that were left out, by fields such as decisions[3].host."""
        for field in fields:
            self._refused.labels(re.split(r"[.\[]", field, maxsplit=1)[0]).inc()

    def agent_refused(self) -> None:
        """Count a report of an agent that is not the one which serves its host."""
        self._second.inc()

    def claims_refused(self, reasons: Iterable[Foul]) -> None:
        """Count VMs whose statuses were not taken."""
        for why in reasons:
            self._claims.labels(why).inc()

    def job_ended(self, end: JobEnd) -> None:
        """Count that a scheduled job was asked for, and time it if it was done."""
        self._jobs.labels(end.job, end.result).inc()
        if end.result is JobResult.DONE:
            self._job_seconds.labels(end.job).observe(end.took_s)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a request and how long it took, by route as it is registered."""
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(took_s)
        if status >= 400:
            self._errors.labels(HTTPStatus(status).phrase.lower().replace(" ", "_")).inc()

    def install(self, app: Flask) -> None:
        """Count and time every request."""

        def started() -> None:
            # Not in g, which a page shares with the requests it makes within the process.
            request.environ[_STARTED] = time.perf_counter()

        def finished(response: Response) -> Response:
            method = request.method if request.method in _METHODS else "other"
            route = request.url_rule.rule if request.url_rule else "none"
            status, started_s = response.status_code, request.environ[_STARTED]

            def note() -> None:
                self.answered(method, route, status, time.perf_counter() - started_s)

            if isinstance(response.response, OpenedBody):
                response.response = response.response.followed_by(note)
            else:
                note()
            return response

        app.before_request(started)
        app.after_request(finished)


class _ProcessUse:
    """CPU time and memory of this process, which those of one manager add up; the time of those that ended stays."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._cpu = Counter("process_cpu_seconds", "CPU time of all processes of the manager", registry=registry)
        self._memory = Gauge(
            "process_resident_memory_bytes",
            "Memory of all processes of the manager; what they share counts for each",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._read = ProcessCollector(registry=None)
        self._counted_s = 0.0

    def measure(self) -> None:
        """Count what was used since the last call."""
        used = {family.name: family.samples[0].value for family in self._read.collect()}
        used_s = used.get("process_cpu_seconds", self._counted_s)
        self._cpu.inc(used_s - self._counted_s)
        self._counted_s = used_s
        self._memory.set(used.get("process_resident_memory_bytes", 0.0))


class _Fleet(Collector):
    """Hosts and applications as they are when asked."""

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self.job_ages_s: Callable[[], Mapping[str, float]] = dict

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise registering would query the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics; without a database only that it is down."""
        up = GaugeMetricFamily("equipoise_database_up", "Whether the manager's database answers")
        families = {name: _family(name, help_text, labels) for name, labels, help_text in _FAMILIES}
        try:
            with self._context.database.reading() as session:
                for name, labels, value in self._samples(session):
                    if value is not None:
                        families[name].add_metric(labels, value)
        except DatabaseUnavailable as error:
            log.error("scraped without a database: %s", error)
            families = {}
        up.add_metric([], 1.0 if families else 0.0)
        yield up
        yield from families.values()

    def _samples(self, session: Session) -> Iterator[_Sample]:
        yield from self._hosts(session)
        applications = session.scalars(select(ApplicationRow).order_by(ApplicationRow.name)).all()
        yield from self._applications(session, applications)
        yield from self._error_budgets(session, {row.id: row.name for row in applications if row.sla})
        for job, age_s in sorted(self.job_ages_s().items()):
            yield "equipoise_job_age_seconds", [job], age_s
        ahead_s = clock_ahead_s(session, self._context.boot(), self._context.clock())
        yield "equipoise_retention_clock_ahead_seconds", [], ahead_s

    def _hosts(self, session: Session) -> Iterator[_Sample]:
        query = with_tick(session, select(*_HOST).order_by(HostRow.name), *_TICKED)
        for name, silent, ahead_s, last_seen_at, duration_ms, overruns, errors in session.execute(query):
            labels = [name]
            yield "equipoise_host_silent", labels, silent
            yield "equipoise_host_clock_ahead_seconds", labels, ahead_s
            if last_seen_at is not None:
                age_s = max(0.0, self._context.clock() - last_seen_at.timestamp())
                yield "equipoise_host_last_seen_age_seconds", labels, age_s
            if duration_ms is not None:
                yield "equipoise_host_tick_duration_seconds", labels, duration_ms / 1000
                yield _OVERRUNS, labels, overruns
                yield "equipoise_host_tick_errors", labels, errors

    def _applications(self, session: Session, rows: Sequence[ApplicationRow]) -> Iterator[_Sample]:
        percentiles = {row.id: watched_percentile(row.sla) for row in rows}
        windows = latest_glances(session, percentiles, self._context.slot_length, self._context.latest)
        now_s = self._context.clock()
        for row in rows:
            labels, window, sla = [row.name], windows.get(row.id), row.sla
            if sla is not None:
                yield "equipoise_application_sla_seconds", labels, sla.response_time_ms / 1000
            if window is not None:
                yield "equipoise_application_rate_rps", labels, window.rate_rps
                yield "equipoise_application_window_samples", labels, window.samples
                yield "equipoise_application_window_age_seconds", labels, window.age_s(now_s)
                if window.value_ms is not None:
                    measured_labels = [row.name, f"{window.percentile:g}"]
                    yield "equipoise_application_response_time_seconds", measured_labels, window.value_ms / 1000
            current = sla_state(window, sla, now_s, self._context.stale_s, self._context.min_samples)
            for state in SlaState:
                yield "equipoise_application_sla_state", [row.name, state], state is current

    def _error_budgets(self, session: Session, names: Mapping[int, str]) -> Iterator[_Sample]:
        target = self._context.attainment_target
        for number, rolled in self._context.budgets.of(session, names, self._context.now()).items():
            labels, month = [names[number]], rolled.windows[PERIOD_S]
            yield "equipoise_application_sla_attainment_ratio", labels, month.attainment
            yield "equipoise_application_error_budget_remaining_ratio", labels, month.budget_remaining(target)
            for length_s in WINDOWS_S:
                burn_rate = rolled.windows[length_s].burn_rate(target)
                yield "equipoise_application_burn_rate", [names[number], duration(length_s)], burn_rate


def _family(name: str, help_text: str, labels: Sequence[str]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if name == _OVERRUNS else GaugeMetricFamily
    return kind(name, help_text, None, labels)


def duration(length_s: float) -> str:
    """As Prometheus writes it, such as 5m, 6h or 30d."""
    unit, name = next(each for each in ((86_400, "d"), (3600, "h"), (60, "m")) if length_s >= each[0])
    return f"{length_s / unit:g}{name}"
