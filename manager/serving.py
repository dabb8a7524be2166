"""An HTTP server that lets requests finish before it ends: of the manager, and of an agent's few pages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from waitress import wasyncore
from waitress.server import BaseWSGIServer, create_server

from manager.errors import SettingsError

WsgiApp = Callable[..., Iterable[bytes]]
MAX_BODY_BYTES = 8 * 1024 * 1024
"""What applications take of a body; served are somewhat larger ones, so that they can say so."""

_POLL_S = 1.0
_MOST_CONNECTIONS = 500  # a browser opens six; select() ends at 1,024 descriptors
_DRAIN_S = 10.0

log = logging.getLogger(__name__)


class HttpServer:
    """Serves an application with waitress. It listens from its creation on, so that a bad address is known at once."""

    def __init__(self, app: WsgiApp, host: str, port: int, threads: int, trusted_proxy: str = "") -> None:
        """Bind to an address; port 0 takes a free one. Raises SettingsError when the address cannot be used.

        Requests from the address ``trusted_proxy`` come from where, and by the scheme that, its headers
        X-Forwarded-For and X-Forwarded-Proto say. Those of others are dropped.
        """
        self._sockets: dict[int, Any] = {}
        try:
            server = create_server(
                app,
                map=self._sockets,
                host=host,
                port=port,
                threads=threads,
                ident=None,
                connection_limit=_MOST_CONNECTIONS,
                # Lets an answer that goes on know when nobody reads it any more.
                channel_request_lookahead=1,
                trusted_proxy=trusted_proxy or None,
                trusted_proxy_headers={"x-forwarded-for", "x-forwarded-proto"} if trusted_proxy else set(),
                # Applications refuse bodies over the limit with a problem; far over it, the connection is cut.
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
