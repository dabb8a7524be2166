"""Between the server and a WSGI application: bodies are read once it allows them, under deadlines and limits.

What the server answers by itself are problems (RFC 9457), like those of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from manager.serving.door import Guests
from manager.serving.exchange import MAX_BODY_BYTES, Environ, Exchange, Lane, WsgiApp
from manager.serving.http_protocol import UNSENT_BYTES
from manager.serving.pool import Pool
from manager.serving.wsgi import PIECE_BYTES, Scope, WsgiAnswer, environ_of, run

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
LaneOf = Callable[[str], Lane]

SMALL_BYTES = 16 * 1024
"""With any head below the 64 KiB from which on asyncio lets a sender wait (``set_write_buffer_limits``)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """``body_s``, ``answer_s``: how long a body may take to come, and an answer, or a part of a stream, to be taken.

    ``at_once_bytes``: a body up to this size is read before the application is asked, by a connection whose sender is
    known. ``held_bytes``: bodies in memory, together. ``linger_s``: for how long the rest of a refused body is passed
    over, so that who sends it reads the answer, and ``lingering`` how many such bodies at once; others are cut off.
    """

    body_s: float = 30.0
    answer_s: float = 60.0
    at_once_bytes: int = 128 * 1024
    held_bytes: int = 64 * 1024 * 1024
    linger_s: float = 1.0
    lingering: int = 16

    def shared_by(self, processes: int) -> EdgeLimits:
        """Those of each process of several, which holds one body of any size in any case."""
        held_bytes = max(self.held_bytes // processes, MAX_BODY_BYTES)
        return replace(self, held_bytes=held_bytes, lingering=-(-self.lingering // processes))


class _Refused(Exception):
    """The server itself answers."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Gone(Exception):
    """Nobody waits for an answer."""


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
        """``lane_of`` says by the path in which of the pools a request is answered."""
        self.app = app
        self.pools = pools
        self.lane_of = lane_of
        self.guests = guests
        self.trusted_proxy = trusted_proxy
        self.limits = limits
        self.held_bytes = 0
        self.lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await _ServedRequest(self, scope, receive, send).run()


class _ServedRequest:
    """One request to an edge, and the connection it came by."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self._edge, self._limits = edge, edge.limits
        self._scope, self._receive, self._send = scope, receive, send
        self._guest = edge.guests.find(scope["client"])
        self._has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")
            for name, value in scope["headers"]
        )
        self._exchange = Exchange(self._has_body, trusted=self._guest is not None and self._guest.trusted)
        self._held_bytes = 0

    async def run(self) -> None:
        """Answer it."""
        guest, whole = self._guest, False
        if guest is not None:
            self._edge.guests.begin(guest)
        try:
            await self._answer()
            whole = True
        except (_Gone, TimeoutError):
            log.debug("nobody takes the answer to %s %s", self._scope["method"], self._scope["raw_path"])
        except Exception:
            log.exception("%s %s", self._scope["method"], self._scope["raw_path"])
        finally:
            self._exchange.gone = True
            if guest is not None:
                self._edge.guests.end(guest)
                if not whole:
                    guest.cut()
        if not whole:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s):  # the server notices before this ends
                    await self._until_gone()

    async def _answer(self) -> None:
        exchange, app = self._exchange, self._edge.app
        try:
            environ = environ_of(self._scope, exchange, self._edge.trusted_proxy)
            lane = self._edge.lane_of(environ["PATH_INFO"])
            pool = self._edge.pools[lane]
            if pool.full:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait already, try again")
            if exchange.undecided and self._is_let_in():
                exchange.undecided = False
                await self._take_body(environ, self._limits.at_once_bytes)
            if exchange.undecided:
                refusal = await pool.run(lambda: run(app, dict(environ), streams=False))
                self._learn()
                if exchange.limit_bytes is None:
                    await self._refuse(refusal)
                    return
                refusal.close()
                exchange.undecided = False
                await self._take_body(environ, exchange.limit_bytes)
            if lane is Lane.STREAM:
                await self._stream(pool, environ)
                return
            answer = await pool.run(lambda: run(app, environ, streams=False))
            self._learn()
        except _Refused as refused:
            await self._refuse(_problem(refused))
            return
        finally:
            self._edge.held_bytes -= self._held_bytes
        await self._deliver(answer, end=answer.rest is None)
        if answer.rest is not None:
            rest = await pool.run(answer.rest)
            await self._within(self._send_parts([rest], end=True))

    def _is_let_in(self) -> bool:
        """Whether the body may be read before the application was asked: being asked once costs half as much."""
        if self._guest is None or not self._guest.trusted:
            return False
        headers = dict(self._scope["headers"])
        length = headers.get(b"content-length", b"")
        return b"expect" not in headers and length.isdigit() and int(length) <= self._limits.at_once_bytes

    def _learn(self) -> None:
        if self._guest is not None and self._exchange.trusted:
            self._edge.guests.trust(self._guest)

    async def _take_body(self, environ: Environ, limit_bytes: int) -> None:
        """The body into the environment; where it is too large nothing but its size, and the application says so."""
        body = io.BytesIO()
        try:
            async with asyncio.timeout(self._limits.body_s):
                size = await self._read(body, limit_bytes)
        except TimeoutError:
            detail = f"the body did not come within {self._limits.body_s:g} s"
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, detail) from None
        environ["wsgi.input"] = body if size <= limit_bytes else io.BytesIO()
        environ["CONTENT_LENGTH"] = str(size)
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        body.seek(0)

    async def _read(self, body: io.BytesIO, limit_bytes: int) -> int:
        """Read the body; the size of it, or of what came until it was too large."""
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                return limit_bytes + 1
            if self._edge.held_bytes + len(part) > self._limits.held_bytes:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are under way, try again")
            self._edge.held_bytes += len(part)
            self._held_bytes += len(part)
            body.write(part)
            more = message.get("more_body", False)
        return size

    async def _stream(self, pool: Pool, environ: Environ) -> None:
        """Have a thread make the parts of an answer, each when the one before was taken."""
        loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._until_gone())

        def push(message: Any) -> None:
            """Called in the thread. Raises TimeoutError, _Gone."""
            sending = asyncio.run_coroutine_threadsafe(self._within(self._send(message)), loop)
            sending.result(2 * self._limits.answer_s)
            if self._exchange.gone:
                raise _Gone

        def work() -> None:
            answer = run(self._edge.app, environ, streams=True)
            try:
                loop.call_soon_threadsafe(self._learn)
                push(_start(answer))
                for piece in answer.pieces:
                    push(_part(piece, more=True))
                push(_part(b""))
            finally:
                answer.close()

        try:
            await pool.run(work)
        finally:
            watch.cancel()

    async def _within(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._limits.answer_s):
            await sending

    async def _deliver(self, answer: WsgiAnswer, *, end: bool = True) -> None:
        try:
            if self._is_small(answer):  # then nothing waits for who reads it, and a timer would cost as much as sending
                await self._send_whole(answer, end=end)
            else:
                await self._within(self._send_whole(answer, end=end))
        finally:
            answer.close()

    def _is_small(self, answer: WsgiAnswer) -> bool:
        """Whether an answer goes into the connection's buffer whole, below where that makes senders wait."""
        unsent_bytes = self._scope.get("state", {}).get(UNSENT_BYTES)
        if unsent_bytes is None or not isinstance(answer.pieces, list | tuple):
            return False
        return unsent_bytes() == 0 and sum(map(len, answer.pieces)) <= SMALL_BYTES

    async def _send_whole(self, answer: WsgiAnswer, *, end: bool) -> None:
        await self._send(_start(answer))
        await self._send_parts(answer.pieces, end=end)

    async def _send_parts(self, pieces: Iterable[bytes], *, end: bool) -> None:
        for whole in pieces:
            for begin in range(0, len(whole), PIECE_BYTES):
                await self._send(_part(whole[begin : begin + PIECE_BYTES], more=True))
        if end:
            await self._send(_part(b""))

    async def _refuse(self, answer: WsgiAnswer) -> None:
        """Answer without the body, of which a little is passed over."""
        if not self._has_body:
            await self._deliver(answer)
            return
        closing = replace(answer, headers=[*answer.headers, (b"connection", b"close")])
        await self._deliver(closing, end=False)
        waits = any(
            name == b"expect" for name, _ in self._scope["headers"]
        )  # for leave to send it, which it never gets
        if not waits and self._edge.lingering < self._limits.lingering:
            self._edge.lingering += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.linger_s):
                        while (await self._receive()).get("more_body", False):
                            pass
            finally:
                self._edge.lingering -= 1
        await self._send(_part(b""))

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._exchange.gone = True


def _start(answer: WsgiAnswer) -> dict[str, Any]:
    return {"type": "http.response.start", "status": answer.status, "headers": answer.headers}


def _part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


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
