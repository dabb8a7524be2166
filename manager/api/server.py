"""The manager as a service: an HTTP server that lets requests finish before it ends, and the housekeeping beside it."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from flask import Flask
from waitress import wasyncore
from waitress.server import BaseWSGIServer, create_server

from manager.api.app import MAX_BODY_BYTES, create_app
from manager.api.context import ManagerContext
from manager.errors import SettingsError
from manager.settings import Settings
from manager.store.database import Database
from manager.store.retention import Retention
from policies.registry import InstalledPolicy

_POLL_S = 1.0
_DRAIN_S = 10.0

log = logging.getLogger(__name__)


class HttpServer:
    """Serves an application with waitress. It listens from its creation on, so that a bad address is known at once."""

    def __init__(self, app: Flask, host: str, port: int, threads: int) -> None:
        """Bind to an address; port 0 takes a free one. Raises SettingsError when the address cannot be used."""
        self._sockets: dict[int, Any] = {}
        try:
            server = create_server(
                app,
                map=self._sockets,
                host=host,
                port=port,
                threads=threads,
                ident=None,
                # The app refuses bodies over its limit with a problem; far over it, the connection is cut.
                max_request_body_size=4 * MAX_BODY_BYTES,
            )
        except (OSError, ValueError) as error:
            wasyncore.close_all(self._sockets)
            raise SettingsError(f"cannot listen on {host} port {port}: {error}") from error
        self._dispatcher = server.task_dispatcher
        self._listeners: list[Any] = [one for one in self._sockets.values() if isinstance(one, BaseWSGIServer)]
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        return [(one.effective_host, int(one.effective_port)) for one in self._listeners]

    def start(self) -> None:
        """Begin to serve, in threads of its own."""
        for host, port in self.addresses:
            log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections, answer what was asked (for up to 10 s), and end."""
        self._closing = True
        self._listeners[0].pull_trigger()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            wasyncore.loop(timeout=_POLL_S, map=self._sockets, count=1)
        for listener in self._listeners:
            wasyncore.dispatcher.close(listener)
        deadline_s = time.monotonic() + _DRAIN_S
        wasyncore.loop(timeout=0.0, map=self._sockets, count=1)  # what already arrived counts as asked
        while self._busy() and time.monotonic() < deadline_s:
            wasyncore.loop(timeout=0.05, map=self._sockets, count=1)
        self._dispatcher.shutdown()
        wasyncore.close_all(self._sockets)

    def _busy(self) -> bool:
        channels = [channel for one in self._listeners for channel in one.active_channels.values()]
        return any(channel.requests or channel.request or channel.total_outbufs_len for channel in channels)


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
    context = ManagerContext(database, policies, settings.number("stale_s"), settings.whole("min_samples"))
    http = HttpServer(
        create_app(context), settings.text("listen_host"), settings.whole("listen_port"), settings.whole("api_threads")
    )
    keep = timedelta(days=settings.number("retention_days"))
    return ManagerServer(http, Retention(database, keep, context.clock))
