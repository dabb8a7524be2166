"""The manager as a service: an HTTP server that lets requests finish before it stops, and scheduled jobs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta

from flask import Flask

from manager.api.app import create_app
from manager.api.auth import PROBES
from manager.api.context import ManagerContext, least_report_s
from manager.api.manager_jobs import make_jobs
from manager.api.manager_metrics import Metrics
from manager.api.worker_share import WorkerShare, serving_limits
from manager.serving.exchange import Lane
from manager.serving.garbage import GarbageRounds
from manager.serving.server import HttpServer, Lanes
from manager.settings import Settings
from manager.store.arrivals import boot_clock
from manager.store.change_feed import Changes
from manager.store.database import Database
from manager.store.jobs import Jobs
from manager.store.manager_clock import ClockWatch
from manager.store.sessions import SessionLimits
from manager.tls import renew_certificate, server_context
from policies.installed import InstalledPolicy

STREAM = "/live"
"""Path of the change stream for pages; each stream occupies a thread."""

_REFUSED_STREAMS = 4  # threads that refuse streams above the limit

log = logging.getLogger(__name__)

Pages = Callable[[Flask, ManagerContext, Changes], None]
"""Adds the dashboard's pages to the application."""


class ManagerServer:
    """The HTTP server of the REST interface, and the manager's jobs."""

    def __init__(
        self,
        http: HttpServer,
        jobs: Jobs,
        changes: Changes,
        clock: ClockWatch | None,
        metrics: Metrics,
        renew_certificate: Callable[[], None],
    ) -> None:
        """``clock`` None: another process of this machine watches it.

        ``renew_certificate`` reads the certificate again, where there is one, for connections that begin afterwards. It
        raises SettingsError for one that cannot be used; the one before stays then.
        """
        self.renew_certificate = renew_certificate
        self._http = http
        self._changes = changes
        self._jobs = jobs
        self._clock = clock
        self._metrics = metrics
        self._garbage = GarbageRounds()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses it listens on."""
        return self._http.addresses

    def hanging(self) -> str:
        """What hangs; empty: nothing."""
        return self._http.hanging()

    def measure(self) -> None:
        """Note what this process uses, for metrics that several share."""
        self._metrics.measure_process()

    def start(self) -> None:
        """Start; returns at once."""
        self._garbage.start()
        self._jobs.start()
        if self._clock is not None:
            self._clock.start()
        self._http.start()

    def close(self) -> None:
        """Stop after running requests are answered; returns when all is done."""
        self._changes.close()  # open streams would keep the HTTP server from stopping
        self._http.close()
        if self._clock is not None:
            self._clock.close()
        self._jobs.close()
        self._garbage.close()


def lane_of(path: str) -> Lane:
    """The lane of threads for a request."""
    if path in PROBES:
        return Lane.PROBE
    return Lane.STREAM if path == STREAM else Lane.WORK


def make_server(
    settings: Settings,
    database: Database,
    policies: Mapping[str, InstalledPolicy],
    add_pages: Pages = lambda _app, _context, _changes: None,
    boot: str = "",
    share: WorkerShare | None = None,
) -> ManagerServer:
    """The manager for a migrated database, listening but not serving yet. ``boot``: see ``boot_clock``.

    ``share``: it is one of several processes, and has that part. Raises SettingsError when the address cannot be
    listened on.
    """
    limits = serving_limits(settings, share)
    context = ManagerContext(
        database,
        policies,
        settings.number("stale_s"),
        settings.whole("min_samples"),
        attainment_target=settings.number("attainment_target"),
        slot_s=settings.number("interval_s"),
        sessions=SessionLimits(
            timedelta(hours=settings.whole("session_hours")), timedelta(minutes=settings.whole("session_idle_min"))
        ),
        secure_cookies=settings.text("secure_cookies") == "always",
        keep_slots=timedelta(days=settings.number("raw_days")),
        keep_minutes=timedelta(days=settings.number("minutes_days")),
        clock_bound_s=settings.number("clock_bound_s"),
        silent=timedelta(seconds=least_report_s(settings.number("interval_s"))) * settings.whole("silent_intervals"),
        small_fleet=settings.whole("small_fleet"),
        boot=boot_clock(boot),
        requests=limits.requests,
        samples=limits.samples,
        tries=limits.tries,
        turns=limits.turns,
    )
    metrics = Metrics(context, share.folder if share else None)
    app = create_app(context, metrics)
    changes = Changes(database, limits.streams, clock=context.clock)
    add_pages(app, context, changes)
    certificate, key = settings.text("tls_certificate"), settings.text("tls_key")
    tls = server_context(certificate, key)
    http = HttpServer(
        app,
        settings.text("listen_host"),
        settings.whole("listen_port"),
        Lanes(limits.threads, limits.streams + _REFUSED_STREAMS, lane_of),
        settings.trusted_proxy,
        tls,
        inherited=share.sockets if share else (),
        limits=limits.server,
    )
    jobs = Jobs(database, make_jobs(settings, context), context.clock, metrics.job_ended)
    metrics.follow_jobs(jobs.ages_s)
    watches = share is None or share.number == 0
    clock = ClockWatch(database, socket.gethostname()) if watches else None

    def renew() -> None:
        if tls is not None:
            renew_certificate(tls, certificate, key)
            log.info("the certificate %s was read again", certificate)

    return ManagerServer(http, jobs, changes, clock, metrics, renew)
