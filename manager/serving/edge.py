"""Between the server and a WSGI application: bodies are read once it allows them, under deadlines and limits.

What the server answers by itself are problems (RFC 9457), like those of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from manager.serving.door import DoorSocket, Guests
from manager.serving.exchange import Environ, Exchange, Lane, WsgiApp
from manager.serving.pool import Pool
from manager.serving.wsgi import PIECE_BYTES, Scope, WsgiAnswer, environ_of, run

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
LaneOf = Callable[[str], Lane]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """``body_s``, ``answer_s``: how long a body may take to come, and an answer, or a part of a stream, to be taken.

    ``held_bytes``: bodies in memory, together. ``linger_s``: for how long the rest of a refused body is passed over, so
    that who sends it reads the answer, and ``lingering`` how many such bodies at once; others are cut off.
    """

    body_s: float = 30.0
    answer_s: float = 60.0
    held_bytes: int = 64 * 1024 * 1024
    linger_s: float = 1.0
    lingering: int = 16


class _Refused(Exception):
    """The server itself answers."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Gone(Exception):
    """Nobody waits for an answer."""


class _TooLarge(Exception):
    """A body is larger than what was allowed."""


class Edge:
    """The ASGI application. Used by the thread of the server's loop alone."""

    def __init__(
        self,
        app: WsgiApp,
        pools: Mapping[Lane, Pool],
        lane_of: LaneOf,
        guests: Guests,
        trusted_proxy: str,
        limits: EdgeLimits,
    ) -> None:
        """``lane_of`` tells by the path in which of the pools a request is answered."""
        self._app = app
        self._pools = pools
        self._lane_of = lane_of
        self._guests = guests
        self._trusted_proxy = trusted_proxy
        self._limits = limits
        self._held_bytes = 0
        self._lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(_has_body(scope))
        guest = self._guests.find(scope["client"])
        if guest is not None:
            self._guests.begin(guest)
            if guest.trusted:
                exchange.trust()
        whole = False
        try:
            await self._answer(scope, receive, send, exchange, guest)
            whole = True
        except (_Gone, TimeoutError):
            log.debug("nobody takes the answer to %s %s", scope["method"], scope["raw_path"])
        except Exception:
            log.exception("%s %s", scope["method"], scope["raw_path"])
        finally:
            exchange.leave()
            if guest is not None:
                self._guests.end(guest)
                if not whole:
                    guest.cut()
        if not whole:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s):  # the server hears of it before this ends
                    while (await receive())["type"] != "http.disconnect":
                        pass

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, exchange: Exchange, guest: DoorSocket | None
    ) -> None:
        held = _Held(self)
        try:
            environ = environ_of(scope, exchange, self._trusted_proxy)
            lane = self._lane_of(environ["PATH_INFO"])
            pool = self._pools[lane]
            if pool.full:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait already, try again")
            if exchange.undecided:
                refusal = await pool.run(lambda: run(self._app, dict(environ), streams=False))
                self._learn(exchange, guest)
                if exchange.limit_bytes is None:
                    await self._refuse(scope, receive, send, refusal)
                    return
                refusal.close()
                exchange.undecided = False
                await self._take_body(environ, receive, exchange.limit_bytes, held)
            if lane is Lane.STREAM:
                await self._stream(pool, environ, receive, send, exchange, guest)
                return
            answer = await pool.run(lambda: run(self._app, environ, streams=False))
            self._learn(exchange, guest)
        except _Refused as refused:
            await self._refuse(scope, receive, send, _problem(refused))
            return
        finally:
            held.release()
        await self._send(send, answer)

    def _learn(self, exchange: Exchange, guest: DoorSocket | None) -> None:
        if guest is not None and exchange.trusted:
            self._guests.trust(guest)

    async def _take_body(self, environ: Environ, receive: Receive, limit_bytes: int, held: _Held) -> None:
        body = environ["wsgi.input"]
        try:
            async with asyncio.timeout(self._limits.body_s):
                size = await _read(receive, body, limit_bytes, held)
        except TimeoutError:
            detail = f"the body did not come within {self._limits.body_s:g} s"
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, detail) from None
        except _TooLarge:
            environ["wsgi.input"], size = io.BytesIO(), limit_bytes + 1  # the application says so
        environ["CONTENT_LENGTH"] = str(size)
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        body.seek(0)

    async def _stream(
        self, pool: Pool, environ: Environ, receive: Receive, send: Send, exchange: Exchange, guest: DoorSocket | None
    ) -> None:
        """Have a thread make the parts of an answer, each when the one before was taken."""
        loop = asyncio.get_running_loop()
        watch = asyncio.create_task(_until_gone(receive, exchange))

        def push(message: Any) -> None:
            """Called in the thread. Raises TimeoutError, _Gone."""
            sending = asyncio.run_coroutine_threadsafe(self._within(send(message)), loop)
            sending.result(2 * self._limits.answer_s)
            if exchange.gone:
                raise _Gone

        def work() -> None:
            answer = run(self._app, environ, streams=True)
            try:
                loop.call_soon_threadsafe(self._learn, exchange, guest)
                push(_start(answer))
                for piece in answer.pieces:
                    push({"type": "http.response.body", "body": piece, "more_body": True})
                push({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                answer.close()

        try:
            await pool.run(work)
        finally:
            watch.cancel()

    async def _within(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._limits.answer_s):
            await sending

    async def _send(self, send: Send, answer: WsgiAnswer, *, end: bool = True) -> None:
        try:
            async with asyncio.timeout(self._limits.answer_s):
                await send(_start(answer))
                for whole in answer.pieces:
                    for begin in range(0, len(whole), PIECE_BYTES):
                        piece = whole[begin : begin + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                if end:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            answer.close()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, answer: WsgiAnswer) -> None:
        """Answer without the body, of which a little is passed over."""
        if not _has_body(scope):
            await self._send(send, answer)
            return
        closing = replace(answer, headers=[*answer.headers, (b"connection", b"close")])
        await self._send(send, closing, end=False)
        waits = any(name == b"expect" for name, _ in scope["headers"])  # for leave to send it, which it does not get
        if not waits and self._lingering < self._limits.lingering:
            self._lingering += 1
            try:
                with contextlib.suppress(TimeoutError, _Gone):
                    async with asyncio.timeout(self._limits.linger_s):
                        await _pass_over(receive)
            finally:
                self._lingering -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def hold(self, size: int) -> None:
        """Count bytes in memory. Raises _Refused where they are too many."""
        if self._held_bytes + size > self._limits.held_bytes:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are under way, try again")
        self._held_bytes += size

    def release(self, size: int) -> None:
        """They are in memory no more."""
        self._held_bytes -= size


class _Held:
    """What one request has of the bytes that bodies may take."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._bytes = 0

    def add(self, size: int) -> None:
        """Raises _Refused."""
        self._edge.hold(size)
        self._bytes += size

    def release(self) -> None:
        self._edge.release(self._bytes)
        self._bytes = 0


async def _read(receive: Receive, body: io.BytesIO, limit_bytes: int, held: _Held) -> int:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise _TooLarge
        held.add(len(part))
        body.write(part)
        if not message.get("more_body", False):
            return size


async def _pass_over(receive: Receive) -> None:
    while (message := await receive())["type"] != "http.disconnect" and message.get("more_body", False):
        pass


async def _until_gone(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")
        for name, value in scope["headers"]
    )


def _start(answer: WsgiAnswer) -> dict[str, Any]:
    return {"type": "http.response.start", "status": answer.status, "headers": answer.headers}


def _problem(refused: _Refused) -> WsgiAnswer:
    problem = {
        "type": "about:blank",
        "title": refused.status.phrase,
        "status": refused.status,
        "detail": str(refused),
        "errors": [],
    }
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if refused.status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    return WsgiAnswer(int(refused.status), headers, (body,), lambda: None)
