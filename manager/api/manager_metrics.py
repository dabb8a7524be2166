"""What Prometheus reads from the manager.

Labels are routes, methods, statuses, and registered names: nothing a stranger sends becomes one. Hosts and applications
are read from the database at each scrape, so every manager of a fleet tells the same.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, Summary, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.api.acceptance import LISTS, PARTS
from manager.api.context import ManagerContext
from manager.control.claim_rules import Foul
from manager.control.error_budget import PERIOD_S, WINDOWS_S
from manager.control.sla import sla_state, watched_percentile
from manager.errors import DatabaseUnavailable
from manager.model.window import SlaState
from manager.protocol.report import TickStatus
from manager.store.applications import sla_of
from manager.store.arrivals import clock_ahead_s
from manager.store.jobs import JobEnd, JobResult
from manager.store.models import ApplicationRow, HostRow
from manager.store.windows import latest_windows

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
_STARTED = "equipoise.started_s"
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "PATCH", "POST", "DELETE"})

log = logging.getLogger(__name__)


class Metrics:
    """The metrics of one app, in a registry of their own."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, context: ManagerContext) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._fleet = _Fleet(context)
        self._registry.register(self._fleet)
        self._requests = Counter(
            "equipoise_api_requests", "REST requests answered", ["method", "route", "status"], registry=self._registry
        )
        self._durations = Histogram(
            "equipoise_api_request_duration_seconds",
            "Time from reading a request to its answer",
            ["method", "route"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._errors = Counter(
            "equipoise_api_errors", "REST requests answered with an error", ["kind"], registry=self._registry
        )
        self._records = Counter(
            "equipoise_records_stored", "Decisions, events and ticks stored", ["kind"], registry=self._registry
        )
        self._windows = Counter(
            "equipoise_windows", "Windows that agents reported", ["result"], registry=self._registry
        )
        self._refused = Counter(
            "equipoise_report_items_refused", "Items of reports that were left out", ["field"], registry=self._registry
        )
        for name in (*LISTS, *PARTS):
            self._refused.labels(name)
        self._second = Counter(
            "equipoise_second_agent_reports", "Reports of agents that do not serve their host", registry=self._registry
        )
        self._claims = Counter(
            "equipoise_vm_claims_refused",
            "VMs reported by a host that does not have them",
            ["why"],
            registry=self._registry,
        )
        self._jobs = Counter(
            "equipoise_jobs", "Scheduled jobs that this manager asked for", ["job", "result"], registry=self._registry
        )
        self._job_seconds = Summary(
            "equipoise_job_duration_seconds", "Length of the runs of scheduled jobs", ["job"], registry=self._registry
        )
        self.records_stored(0, 0, 0)
        for why in Foul:
            self._claims.labels(why)
        for result in ("stored", "unknown", "future"):
            self.windows_taken(result, 0)

    def text(self) -> bytes:
        """The metrics page."""
        return generate_latest(self._registry)

    def records_stored(self, decisions: int, events: int, ticks: int) -> None:
        """Count stored records."""
        self._records.labels("decision").inc(decisions)
        self._records.labels("event").inc(events)
        self._records.labels("tick").inc(ticks)

    def windows_taken(self, result: str, count: int) -> None:
        """Count reported windows: stored, unknown (of an application without a VM or source there), or future."""
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

    def install(self, app: Flask) -> None:
        """Count and time every request."""

        def started() -> None:
            # Not in g, which a page shares with the requests it makes within the process.
            request.environ[_STARTED] = time.perf_counter()

        def finished(response: Response) -> Response:
            method = request.method if request.method in _METHODS else "other"
            route = request.url_rule.rule if request.url_rule else "none"
            self._requests.labels(method, route, str(response.status_code)).inc()
            self._durations.labels(method, route).observe(time.perf_counter() - request.environ[_STARTED])
            if response.status_code >= 400:
                self._errors.labels(HTTPStatus(response.status_code).phrase.lower().replace(" ", "_")).inc()
            return response

        app.before_request(started)
        app.after_request(finished)


class _Fleet(Collector):
    """Hosts and applications as they are when asked."""

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self.job_ages_s: Callable[[], Mapping[str, float]] = dict

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise registering would ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics; without a database only that it is down."""
        up = GaugeMetricFamily("equipoise_database_up", "Whether the manager's database answers")
        try:
            with self._context.database.reading() as session:
                found = [
                    *self._hosts(session),
                    *self._applications(session),
                    *self._error_budgets(session),
                    self._jobs(),
                    self._clock(session),
                ]
        except DatabaseUnavailable as error:
            log.error("scraped without a database: %s", error)
            found = []
        up.add_metric([], 1.0 if found else 0.0)
        yield up
        yield from found

    def _hosts(self, session: Session) -> list[Metric]:
        label = ["host"]
        age = GaugeMetricFamily(
            "equipoise_host_last_seen_age_seconds", "Time since an agent's last report", None, label
        )
        duration = GaugeMetricFamily("equipoise_host_tick_duration_seconds", "Length of the last tick", None, label)
        overruns = CounterMetricFamily(
            "equipoise_host_tick_overruns", "Ticks not begun because the one before took too long", None, label
        )
        errors = GaugeMetricFamily("equipoise_host_tick_errors", "Errors in the last tick", None, label)
        silent = GaugeMetricFamily("equipoise_host_silent", "1 while a host does not report", None, label)
        ahead = GaugeMetricFamily("equipoise_host_clock_ahead_seconds", "How far its clock is ahead", None, label)
        for row in session.scalars(select(HostRow).order_by(HostRow.name)):
            silent.add_metric([row.name], row.silent)
            if row.clock_ahead_s is not None:
                ahead.add_metric([row.name], row.clock_ahead_s)
            if row.last_seen_at is not None:
                age.add_metric([row.name], max(0.0, self._context.clock() - row.last_seen_at.timestamp()))
            if row.tick is not None:
                tick = TickStatus.model_validate(row.tick)
                duration.add_metric([row.name], tick.duration_ms / 1000)
                overruns.add_metric([row.name], tick.overruns)
                errors.add_metric([row.name], tick.errors)
        return [age, duration, overruns, errors, silent, ahead]

    def _clock(self, session: Session) -> Metric:
        text = "How far the time of day went ahead of uptime, compared with most of the last time"
        ahead = GaugeMetricFamily("equipoise_retention_clock_ahead_seconds", text)
        ahead.add_metric([], clock_ahead_s(session, self._context.boot(), self._context.clock()))
        return ahead

    def _jobs(self) -> Metric:
        age = GaugeMetricFamily(
            "equipoise_job_age_seconds", "Time since the last run in the fleet began", None, ["job"]
        )
        for name, age_s in sorted(self.job_ages_s().items()):
            age.add_metric([name], age_s)
        return age

    def _applications(self, session: Session) -> list[Metric]:
        label = ["application"]
        measured = GaugeMetricFamily(
            "equipoise_application_response_time_seconds",
            "The SLA's percentile in the latest window, 95 without an SLA",
            None,
            ["application", "percentile"],
        )
        target = GaugeMetricFamily("equipoise_application_sla_seconds", "Target of the SLA", None, label)
        rate = GaugeMetricFamily(
            "equipoise_application_rate_rps", "Requests per second of the latest window", None, label
        )
        count = GaugeMetricFamily(
            "equipoise_application_window_samples", "Response times in the latest window", None, label
        )
        state = GaugeMetricFamily(
            "equipoise_application_sla_state", "1 for the state the SLA is in", None, ["application", "state"]
        )
        rows = session.scalars(select(ApplicationRow).order_by(ApplicationRow.name)).all()
        windows = latest_windows(session, rows, self._context.slot_length, self._context.latest)
        now_s = self._context.clock()
        for row in rows:
            window = windows.get(row.name)
            sla = sla_of(row)
            if sla is not None:
                target.add_metric([row.name], sla.response_time_ms / 1000)
            if window is not None:
                if window.rate_rps is not None:
                    rate.add_metric([row.name], window.rate_rps)
                count.add_metric([row.name], window.histogram.count)
                percentile = watched_percentile(sla)
                measured_ms = window.percentile_ms(percentile)
                if measured_ms is not None:
                    measured.add_metric([row.name, f"{percentile:g}"], measured_ms / 1000)
            current = sla_state(window, sla, now_s, self._context.stale_s, self._context.min_samples)
            for possible in SlaState:
                state.add_metric([row.name, possible], 1.0 if possible is current else 0.0)
        return [measured, target, rate, count, state]

    def _error_budgets(self, session: Session) -> list[Metric]:
        label = ["application"]
        attainment = GaugeMetricFamily(
            "equipoise_application_sla_attainment_ratio",
            "Share of intervals of 30 days in which the SLA held",
            None,
            label,
        )
        remaining = GaugeMetricFamily(
            "equipoise_application_error_budget_remaining_ratio", "Error budget of 30 days that is left", None, label
        )
        burn_rate = GaugeMetricFamily(
            "equipoise_application_burn_rate",
            "Violated intervals of the window as a multiple of what the attainment target allows",
            None,
            ["application", "window"],
        )
        names = {
            row.id: row.name
            for row in session.scalars(select(ApplicationRow).order_by(ApplicationRow.name))
            if sla_of(row)
        }
        target = self._context.attainment_target
        for number, rolled in self._context.budgets.of(session, names, self._context.now()).items():
            month = rolled.windows[PERIOD_S]
            if month.attainment is not None:
                attainment.add_metric([names[number]], month.attainment)
                remaining.add_metric([names[number]], month.budget_remaining(target) or 0.0)
            for length_s in WINDOWS_S:
                rate = rolled.windows[length_s].burn_rate(target)
                if rate is not None:
                    burn_rate.add_metric([names[number], _WINDOW_NAMES[length_s]], rate)
        return [attainment, remaining, burn_rate]


def duration(length_s: float) -> str:
    """As Prometheus writes it, such as 5m, 6h or 30d."""
    unit, name = next(each for each in ((86_400, "d"), (3600, "h"), (60, "m")) if length_s >= each[0])
    return f"{length_s / unit:g}{name}"


_WINDOW_NAMES = {length_s: duration(length_s) for length_s in WINDOWS_S}
