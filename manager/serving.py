"""An HTTP server that lets requests finish before it ends: of the manager, and of an agent's few pages."""

from __future__ import annotations

import contextlib
import functools
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import BaseWSGIServer, create_server

from manager.errors import SettingsError

WsgiApp = Callable[..., Iterable[bytes]]
MAX_BODY_BYTES = 8 * 1024 * 1024
"""What applications take of a body; served are somewhat larger ones, so that they can say so."""

_POLL_S = 1.0
_MOST_CONNECTIONS = 500  # a browser opens six; select() ends at 1,024 descriptors
_DRAIN_S = 10.0
_HUNG_S = 30.0
_TLS_RECORD = 16 * 1024

log = logging.getLogger(__name__)


class _Probe:
    """What a thread does as it would a request."""

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.done = False

    def service(self) -> None:
        """A thread is free for it."""
        self.done = True

    def cancel(self) -> None:
        """The server ends."""
        self.done = True

    defer = cancel


class HttpServer:
    """Serves an application with waitress. It listens from its creation on, so that a bad address is known at once."""

    def __init__(
        self,
        app: WsgiApp,
        host: str,
        port: int,
        threads: int,
        trusted_proxy: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind to an address; port 0 takes a free one. Raises SettingsError when the address cannot be used.

        ``tls``: by https alone, with that context's certificate.

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
                url_scheme="https" if tls else "http",
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
        if tls is not None:
            for listener in self._listeners:
                listener.channel_class = functools.partial(_tls_channel, tls)
        self._scheme = "https" if tls else "http"
        self._closing = False
        self._turned_s = time.monotonic()
        self._probe: _Probe | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        return [(one.effective_host, int(one.effective_port)) for one in self._listeners]

    def trouble(self) -> str:
        """What hangs, empty for nothing: the loop that takes requests, or all threads that answer them."""
        now_s = time.monotonic()
        if now_s - self._turned_s > _HUNG_S:
            return f"the loop of the HTTP server has not turned for {now_s - self._turned_s:.0f} s"
        if self._probe is None or self._probe.done:
            self._probe = _Probe(now_s)
            self._dispatcher.add_task(self._probe)  # type: ignore[arg-type]  # it has all that is asked of one
        elif now_s - self._probe.begun_s > _HUNG_S:
            return f"no thread of the HTTP server was free for {now_s - self._probe.begun_s:.0f} s"
        return ""

    def start(self) -> None:
        """Begin to serve, in threads of its own."""
        self._turned_s = time.monotonic()
        for host, port in self.addresses:
            log.info("listening on %s://%s:%d", self._scheme, f"[{host}]" if ":" in host else host, port)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections, answer what was asked (for up to 10 s), and end."""
        self._closing = True
        self._listeners[0].pull_trigger()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._turned_s = time.monotonic()
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


class _TlsChannel(HTTPChannel):
    """A connection by TLS, of which waitress itself knows nothing.

    The handshake is made by the first reads, so a client that stops in the middle of it holds up nobody.
    """

    def __init__(self, server: Any, connection: ssl.SSLSocket, *arguments: Any, **named: Any) -> None:
        # Requests are answered in other threads than they are read in, and OpenSSL allows one at a time.
        self._one = threading.Lock()
        self._tls = connection
        super().__init__(server, connection, *arguments, **named)

    def handle_read(self) -> None:
        """Read what came, to the end of what is decrypted: of that no poll would tell any more."""
        data = b""
        try:
            with self._one:
                part = self._tls.recv(_TLS_RECORD)
                data = part
                while part and self._tls.pending():
                    part = self._tls.recv(_TLS_RECORD)
                    data += part
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not data:
                return
        except OSError as error:
            log.debug("a connection from %s ends: %s", self.addr, error)
            data = b""
        if data:
            self.last_activity = time.time()
            self.received(data)
        else:
            self.handle_close()

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send some of it, and tell how much that was."""
        try:
            with self._one:
                return int(self._tls.send(data))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError:
            if do_close:
                self.handle_close()
            return 0

    def close(self) -> None:
        """Say that this is the end, without waiting for an answer, and close."""
        with self._one, contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        super().close()


def _tls_channel(context: ssl.SSLContext, server: Any, connection: Any, *arguments: Any, **named: Any) -> None:
    """A connection that was accepted, by TLS. One that has ended already is forgotten."""
    connection.setblocking(False)
    try:
        wrapped = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    except OSError:
        connection.close()
        return
    _TlsChannel(server, wrapped, *arguments, **named)
