"""The manager as a service: an HTTP server that lets requests finish before it ends, and the housekeeping beside it."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from datetime import timedelta

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.serving import HttpServer
from manager.settings import Settings
from manager.store.database import Database
from manager.store.retention import Retention
from policies.registry import InstalledPolicy


class ManagerServer:
    """The REST interface, served, and the retention of its records."""

    def __init__(self, http: HttpServer, retention: Retention) -> None:
        self._http = http
        self._retention = retention

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        return self._http.addresses

    def start(self) -> None:
        """Begin; returns at once."""
        # What exists by now stays until the end. Exempt from garbage collection, it is not walked in the middle of some
        # request: that took up to 60 ms.
        gc.collect()
        gc.freeze()
        self._retention.start()
        self._http.start()

    def close(self) -> None:
        """End, requests being answered first; returns when all is done."""
        self._http.close()
        self._retention.close()


def make_server(settings: Settings, database: Database, policies: Mapping[str, InstalledPolicy]) -> ManagerServer:
    """The manager for a migrated database, listening but not serving yet.

    Raises SettingsError when the address cannot be listened on.
    """
    context = ManagerContext(
        database,
        policies,
        settings.number("stale_s"),
        settings.whole("min_samples"),
        slot_s=settings.number("interval_s"),
    )
    http = HttpServer(
        create_app(context), settings.text("listen_host"), settings.whole("listen_port"), settings.whole("api_threads")
    )
    keep = timedelta(days=settings.number("retention_days"))
    return ManagerServer(http, Retention(database, keep, context.clock))
