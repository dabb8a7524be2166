"""`equipoise manager`."""

from __future__ import annotations

import logging
import os
import threading

import click

from manager.api.manager_server import ManagerServer, make_server
from manager.cli.admin_commands import open_store, upgrade_store
from manager.cli.manager_workers import on_hangup, run_workers, workers_of
from manager.cli.options import ManPage, start_logging, stop_signal, wait, with_settings
from manager.errors import SettingsError
from manager.host.registry import boot_name
from manager.notify import Notifier, Watchdog
from manager.settings import MANAGER_SETTINGS, SHARED_SETTINGS, Settings
from manager.store.database import Database
from policies.installed import load_policies
from webui.dashboard import install_dashboard

log = logging.getLogger(__name__)

_MANAGER_EPILOG = """
WHAT IT DOES
  Upgrades the database's tables, then serves the dashboard at /, /api/v1 (documentation at /api/v1/docs) and /metrics
  until SIGTERM. It needs no privileges and keeps its state in the database, so several may run behind a proxy. Before
  listening beyond the loopback address, put a proxy with TLS in front of it, or set tls_certificate.

  With PostgreSQL it uses all CPUs, by a worker process for each (up to 8; --workers). A worker that ends or hangs is
  replaced. SIGHUP replaces them one by one, without a pause: they read the certificate again. So does a single process.

EXAMPLES
  equipoise manager --listen-host 127.0.0.1 --database-url postgresql://equipoise@db/equipoise
  equipoise token create --role admin --name me
"""


@click.command(cls=ManPage, epilog=_MANAGER_EPILOG)
@with_settings(*(setting.name for setting in (*SHARED_SETTINGS, *MANAGER_SETTINGS)))
def manager(settings: Settings) -> None:
    """Serve the REST interface and keep the database."""
    start_logging(settings)
    count = workers_of(settings, len(os.sched_getaffinity(0)))
    with on_hangup(lambda: None):  # nothing is to be read again yet
        database = open_store(settings, settings.whole("api_threads"))
        upgrade_store(database)
        notifier = Notifier()
        with stop_signal() as stop:
            if count > 1:
                database.close()
                run_workers(settings, count, notifier, stop)
            else:
                _serve(settings, database, notifier, stop)
                database.close()
    log.info("manager stopped")


def _serve(settings: Settings, database: Database, notifier: Notifier, stop: threading.Event) -> None:
    """Serve in this process until ``stop`` is set."""
    server = make_server(settings, database, load_policies(on_error=log.error), install_dashboard, boot_name())
    server.start()
    watchdog = Watchdog(notifier, server.hanging)
    watchdog.start()
    notifier.ready("serving")
    with on_hangup(lambda: _read_certificate(server)):
        wait(stop)
    notifier.stopping("answering open requests")
    server.close()
    watchdog.close()


def _read_certificate(server: ManagerServer) -> None:
    """Read it again; one that cannot be used is logged, and the one before stays."""
    try:
        server.renew_certificate()
    except SettingsError as error:
        log.error("the certificate stays as it is: %s", error)
