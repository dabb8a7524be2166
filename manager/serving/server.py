"""An HTTP server that lets requests finish before it ends: of the manager, and of an agent's few pages."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import ssl
import threading
import time
from asyncio import sslproto
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from manager.errors import SettingsError
from manager.serving.door import BACKLOG, TLS_LIMITS, Door, GuestLimits, Guests, inherited_doors, tcp_doors, unix_door
from manager.serving.edge import Edge, EdgeLimits, LaneOf
from manager.serving.exchange import Lane, WsgiApp
from manager.serving.http_protocol import HttpProtocol
from manager.serving.pool import Pool

_DRAIN_S = 10
_HUNG_S = 30.0
_TLS_BYTES = 32 * 1024
_TURN_S = 0.5
_IDLE_TURN_S = 10.0
_PROBE_THREADS = 2
_MOST_WAITING = 1024
_MOST_PROBES = 64

log = logging.getLogger(__name__)


def work_only(_path: str) -> Lane:
    """Every request is answered by the same threads."""
    return Lane.WORK


@dataclass(frozen=True, slots=True)
class Lanes:
    """Threads for each kind of request, and what is of which kind."""

    threads: int
    streams: int = 0
    of: LaneOf = work_only


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Who may stay connected, and what of bodies and answers."""

    guests: GuestLimits = field(default_factory=GuestLimits)
    edge: EdgeLimits = field(default_factory=EdgeLimits)


class _Server(uvicorn.Server):
    """Turns twice a second while there are connections, else when one comes: an idle agent sleeps."""

    def __init__(self, config: uvicorn.Config, guests: Guests, turned: Callable[[], None]) -> None:
        super().__init__(config)
        self._guests, self._turned = guests, turned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        guests.on_first = self._woken.set

    async def main_loop(self) -> None:
        """Until it should exit."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            self._turned()
            if self._guests.present:
                await asyncio.sleep(_TURN_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_TURN_S):
                        await self._woken.wait()
            self._woken.clear()
        self._turned()

    def stop(self) -> None:
        """Exit soon. Called in any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has exited already
                self._loop.call_soon_threadsafe(self._woken.set)


class HttpServer:
    """Serves an application with uvicorn. It listens from its creation on, so that a bad address is known at once.

    ``addresses`` are where it listens.
    """

    def __init__(
        self,
        app: WsgiApp,
        host: str,
        port: int | None,
        lanes: Lanes,
        trusted_proxy: str = "",
        tls: ssl.SSLContext | None = None,
        *,
        unix: Path | None = None,
        inherited: Sequence[int] = (),
        limits: ServerLimits | None = None,
    ) -> None:
        """Bind to an address; port 0 takes a free one, None means none. Raises SettingsError when it cannot be used.

        ``unix``: also at a Unix socket, see ``unix_door``. ``inherited``: at these sockets (file descriptors), which
        are bound already, instead of host and port; it listens at them from ``start`` on.

        ``tls``: by https alone, with that context's certificate.

        Requests from the address ``trusted_proxy`` come from where, and by the scheme that, its headers
        X-Forwarded-For and X-Forwarded-Proto say. Those of others are dropped.
        """
        try:
            bound = [] if port is None or inherited else tcp_doors(host, port)
            self._doors: list[Door] = [*bound, *inherited_doors(inherited)]
        except (OSError, ValueError, OverflowError) as error:
            raise SettingsError(f"cannot listen on {host} port {port}: {error}") from error
        self._unix = unix
        if unix is not None:
            try:
                self._doors.append(unix_door(unix))
            except OSError as error:
                for door in self._doors:
                    door.close()
                raise SettingsError(f"cannot listen at {unix}: {error}") from error
        limits = limits or ServerLimits(TLS_LIMITS if tls else GuestLimits())
        self._guests = Guests(limits.guests, frozenset({trusted_proxy} - {""}))
        for door in self._doors:
            door.guests = self._guests
        tcp = (door.getsockname() for door in self._doors if door.family != socket.AF_UNIX)
        self.addresses = [(str(name[0]), int(name[1])) for name in tcp]
        self._pools = {
            Lane.WORK: Pool("http", lanes.threads, _MOST_WAITING),
            Lane.PROBE: Pool("probe", _PROBE_THREADS, _MOST_PROBES),
            Lane.STREAM: Pool("stream", lanes.streams, 0),
        }
        application = Edge(app, self._pools, lanes.of, self._guests, trusted_proxy, limits.edge)
        self._server = _Server(_config(application, tls), self._guests, self._turn)
        self._scheme = "https" if tls else "http"
        self._turned_s = time.monotonic()
        self._probe: tuple[float, concurrent.futures.Future[None]] | None = None
        if tls is not None:
            _shrink_tls_buffers()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def hanging(self) -> str:
        """What hangs, empty for nothing: the loop that takes requests, or all threads that answer them."""
        now_s = time.monotonic()
        if now_s - self._turned_s > _HUNG_S:
            return f"the loop of the HTTP server has not turned for {now_s - self._turned_s:.0f} s"
        if self._probe is None or self._probe[1].done():
            self._probe = (now_s, self._pools[Lane.WORK].submit(lambda: None))
        elif now_s - self._probe[0] > _HUNG_S:
            return f"no thread of the HTTP server was free for {now_s - self._probe[0]:.0f} s"
        return ""

    def start(self) -> None:
        """Begin to serve, in threads of its own."""
        self._turned_s = time.monotonic()
        for host, port in self.addresses:
            log.info("listening on %s://%s:%d", self._scheme, f"[{host}]" if ":" in host else host, port)
        if self._unix is not None:
            log.info("listening at %s", self._unix)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections, answer what was asked (for up to 10 s), and end."""
        self._server.stop()
        if self._thread.is_alive():
            self._thread.join()
        for door in self._doors:
            door.close()
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)
        for pool in self._pools.values():
            pool.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=list(self._doors)))

    def _turn(self) -> None:
        self._turned_s = time.monotonic()
        self._guests.sweep()
        if self._server.should_exit:
            self._guests.leave_all()


def _shrink_tls_buffers() -> None:
    """Let asyncio have 32 KiB for each connection by TLS, not 256 KiB: a flood of handshakes costs as many.

    It has no setting for it, so this is for the whole process; one that serves by TLS has no other use of it. A Python
    without that attribute (it is in 3.11 to 3.13) goes on with what it has.
    """
    if hasattr(sslproto.SSLProtocol, "max_size"):
        sslproto.SSLProtocol.max_size = _TLS_BYTES


def _config(application: Edge, tls: ssl.SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        loop="asyncio",
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=BACKLOG,
        timeout_keep_alive=600,  # the guests' limits are shorter
        timeout_graceful_shutdown=_DRAIN_S,
        ssl_context_factory=(lambda _config, _default: tls) if tls else None,
    )
