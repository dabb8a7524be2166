"""`equipoise manager`."""

from __future__ import annotations

import logging

import click

from manager.api.manager_server import make_server
from manager.cli.admin_commands import open_store, upgrade_store
from manager.cli.options import OnePage, start_logging, with_settings
from manager.cli.signals import stop_signal, wait
from manager.host.boot import boot_name
from manager.notify import Notifier, Watchdog
from manager.settings import Settings
from policies.installed import load_policies
from webui.dashboard import install_dashboard

_MANAGER_SETTINGS = (
    "state_dir",
    "database_url",
    "listen_host",
    "listen_port",
    "api_threads",
    "live_streams",
    "requests_per_s",
    "samples_per_s",
    "tls_certificate",
    "tls_key",
    "trusted_proxy",
    "secure_cookies",
    "session_hours",
    "session_idle_min",
    "interval_s",
    "stale_s",
    "min_samples",
    "retention_days",
    "raw_days",
    "minutes_days",
    "hours_days",
    "audit_days",
    "silent_intervals",
    "clock_bound_s",
    "log_level",
    "log_format",
)
log = logging.getLogger(__name__)

_MANAGER_EPILOG = """
WHAT IT DOES
  Upgrades the database's tables, then serves the dashboard at /, /api/v1 (documentation at /api/v1/docs) and /metrics
  until SIGTERM.
  It needs no privileges and keeps nothing outside the database, so several may run behind a proxy. Put a proxy with
  TLS in front of it before listening on anything but the loopback address.

EXAMPLES
  equipoise manager --listen-host 127.0.0.1 --database-url postgresql://equipoise@db/equipoise
  equipoise token create --role admin --name me
"""


@click.command(cls=OnePage, epilog=_MANAGER_EPILOG)
@with_settings(*_MANAGER_SETTINGS)
def manager(settings: Settings) -> None:
    """Serve the REST interface and keep the database."""
    start_logging(settings)
    database = open_store(settings, settings.whole("api_threads"))
    upgrade_store(database)
    with stop_signal() as stop:
        server = make_server(settings, database, load_policies(on_error=log.error), install_dashboard, boot_name())
        server.start()
        notifier = Notifier()
        watchdog = Watchdog(notifier, server.hanging)
        watchdog.start()
        notifier.ready("serving")
        wait(stop)
        notifier.stopping("answering what was asked")
        server.close()
        watchdog.close()
    database.close()
    log.info("manager stopped")
