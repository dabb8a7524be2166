"""Connections of sources, only to addresses that the agent's settings allow, and GET requests over them.

A name is looked up here, its addresses are checked, and one of those is connected to: between check and connection the
name cannot change its meaning. Answers have a bounded size, and errors are shown in our own words. Redirects are not
followed, compressed answers not requested, and proxies of the environment not used.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import httpcore

from manager.model.reach import Reach
from manager.telemetry.feed import Abuse, SourceError, os_reason, reason_of

KEEP_S = 30.0
"""For so long the result of a look-up is used."""
_AGAIN_S = 1.0
_ATTEMPT_S = 0.25
"""Beside an address that does not answer within it the next one is tried, too, as in RFC 8305, 5."""
_NOT_CONNECTED = OSError, httpcore.ConnectError, httpcore.ConnectTimeout
_MOST_ADDRESSES = 8
_HEAD_BYTES = 16 * 1024
"""How much may come before a body: status, headers, and interim answers, of which there need be no end."""
_HEAD_PART_BYTES = 4 * 1024
_PART_BYTES = 512
"""What a part of a body costs besides its bytes: a server may send them one by one."""
_IN_TARGET = "!#$%&'()*+,/:;=?@[]~"
LookUp = Callable[[str], Awaitable[list[str]]]
Opened = TypeVar("Opened")


class Unreachable(SourceError):
    """A name has no address, or only addresses that must not be connected to."""


class TooMuch(Abuse):
    """An answer has more bytes than are taken."""


class NoAnswer(SourceError):
    """There was no answer, or none of an HTTP server."""


async def look_up(host: str) -> list[str]:
    """The addresses of a host name, in the order in which they are to be tried. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in addresses]


class Names:
    """The addresses of the names that a source connects to. Belongs to one asyncio loop.

    There is one look-up at a time, also after those who waited for it timed out: each holds a thread.
    """

    def __init__(self, reach: Reach, look_up: LookUp = look_up) -> None:
        self._reach = reach
        self._look_up = look_up
        self._results: dict[str, tuple[float, list[str] | Unreachable]] = {}
        self._pending: asyncio.Task[None] | None = None
        self._answered = ""  # the address that did last, which is tried first

    async def connect(
        self,
        host: str,
        connect: Callable[[str], Awaitable[Opened]],
        close: Callable[[Opened], Awaitable[None]],
    ) -> Opened:
        """What ``connect`` returns for the first address that answers. Raises Unreachable, or as ``connect`` does.

        An address that is slow is still waited for beside the next one; ``close`` ends what is not needed then.
        """
        left = deque(sorted(await self.addresses(host), key=lambda address: address != self._answered))
        if len(left) == 1:
            return await connect(left[0])
        attempts: dict[asyncio.Future[Opened], str] = {}
        try:
            while True:
                if left:
                    address = left.popleft()
                    attempts[asyncio.ensure_future(connect(address))] = address
                most_s = _ATTEMPT_S if left else None
                done, _ = await asyncio.wait(attempts, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    failure = attempt.exception()
                    address = attempts[attempt]
                    if failure is None:
                        self._answered = address
                        del attempts[attempt]
                        return attempt.result()
                    if not isinstance(failure, _NOT_CONNECTED):
                        raise failure
                    del attempts[attempt]
                    if not attempts and not left:
                        raise failure
        finally:
            await _end(attempts, close)

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a host, each of which may be connected to, at least one. Raises Unreachable."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            addresses = await self._looked_up(host)
        else:
            addresses = [host]
        allowed = [address for address in addresses if not self._reach.refusal(address)]
        if not allowed:
            raise Unreachable(self._reach.refusal(addresses[0]))
        return allowed

    async def _looked_up(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        while host not in self._results or self._results[host][0] <= loop.time():
            if self._pending is None:
                self._pending = loop.create_task(self._renew(host))
            await asyncio.shield(self._pending)
        result = self._results[host][1]
        if isinstance(result, Unreachable):
            raise Unreachable(*result.args)
        return result

    async def _renew(self, host: str) -> None:
        result: list[str] | Unreachable
        try:
            addresses = (await self._look_up(host))[:_MOST_ADDRESSES]
            result = list(dict.fromkeys(addresses)) or Unreachable("the host name has no address")
        except (OSError, UnicodeError) as error:
            result = Unreachable(reason_of(error))
        finally:
            self._pending = None
        keep_s = _AGAIN_S if isinstance(result, Unreachable) else KEEP_S
        self._results = {host: (asyncio.get_running_loop().time() + keep_s, result)}


async def _end(attempts: Collection[asyncio.Future[Opened]], close: Callable[[Opened], Awaitable[None]]) -> None:
    """Connect no more, and close what was connected to."""
    for attempt in attempts:
        attempt.cancel()
    if attempts:
        await asyncio.wait(attempts)
    for attempt in attempts:
        if not attempt.cancelled() and attempt.exception() is None:
            await close(attempt.result())


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, its body as it came, empty where it was not to be kept."""

    status: int
    body: bytes


class HttpClient:
    """Requests of one source. Belongs to one asyncio loop; the caller bounds the time."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, most_bytes: int, headers: Mapping[str, str]) -> None:
        self._pool = pool
        self._headers = headers
        self._most_bytes = most_bytes

    async def get(self, url: str, *, keep_body: bool = True) -> HttpAnswer:
        """The answer to a GET, whatever its status. Raises SourceError, OSError."""
        target, usual = _request(url)
        replaced = {name.lower() for name in self._headers}
        headers = {name: value for name, value in usual.items() if name.lower() not in replaced} | {**self._headers}
        encoded = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        body = bytearray()
        count = 0
        try:
            async with self._pool.stream("GET", target, headers=encoded) as response:
                stream = response.extensions.get("network_stream")
                if isinstance(stream, _Bounded):
                    stream.begin_body()
                async for part in response.aiter_stream():
                    count += len(part) + _PART_BYTES * bool(count)
                    if count > self._most_bytes:
                        raise _TooLong
                    if keep_body:
                        body += part
        except _TooLong:
            raise TooMuch(f"the answer has more than {self._most_bytes} bytes") from None
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise NoAnswer(os_reason(error) or "no connection, or it broke") from error
        except httpcore.ProtocolError as error:  # its text quotes the server
            raise NoAnswer("the server hung up, or does not answer as HTTP servers do") from error
        return HttpAnswer(response.status, bytes(body))


@contextlib.asynccontextmanager
async def http_client(
    reach: Reach, most_bytes: int, connections: int, headers: Mapping[str, str]
) -> AsyncIterator[HttpClient]:
    """A client, closed at the end. ``most_bytes`` of a body are taken; each request carries the ``headers``."""
    backend = _Backend(Names(reach), 2 * most_bytes)
    async with httpcore.AsyncConnectionPool(
        ssl_context=_tls_context(), max_connections=connections, network_backend=backend
    ) as pool:
        yield HttpClient(pool, most_bytes, headers)


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    """Trusts what the operating system trusts. Shared, as making one takes long and some memory."""
    return ssl.create_default_context()


def _request(url: str) -> tuple[httpcore.URL, dict[str, str]]:
    """The request target of a URL, and the headers that follow from it. Raises NoAnswer."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise NoAnswer("the URL cannot be used") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise NoAnswer("the URL should begin with http:// or https:// and a host")
    path = quote(parts.path or "/", safe=_IN_TARGET) + ("?" + quote(parts.query, safe=_IN_TARGET)) * bool(parts.query)
    user, at, address = parts.netloc.rpartition("@")
    headers = {"Host": address, "User-Agent": "equipoise", "Accept": "*/*", "Accept-Encoding": "identity"}
    if at:
        name, _, password = user.partition(":")
        secret = f"{unquote(name)}:{unquote(password)}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(secret).decode()
    return httpcore.URL(scheme=parts.scheme, host=parts.hostname, port=port, target=path), headers


class _TooLong(Exception):
    """More came over a connection in answer to a request than any answer needs."""


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to the allowed addresses of a name; a TLS certificate still has to be that of the name."""

    def __init__(self, names: Names, most_bytes: int) -> None:
        self._names = names
        self._most_bytes = most_bytes
        self._real = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        def connect(address: str) -> Awaitable[httpcore.AsyncNetworkStream]:
            return self._real.connect_tcp(address, port, timeout, local_address, socket_options)

        return _Bounded(await self._names.connect(host, connect, _close), self._most_bytes)

    async def sleep(self, seconds: float) -> None:
        await self._real.sleep(seconds)


async def _close(stream: httpcore.AsyncNetworkStream) -> None:
    await stream.aclose()


class _Bounded(httpcore.AsyncNetworkStream):
    """Reads so much after a request, and no more, first of headers and then of the body with its frames."""

    def __init__(self, real: httpcore.AsyncNetworkStream, most_bytes: int) -> None:
        self._real = real
        self._most_bytes = most_bytes
        self._left, self._at_once = _HEAD_BYTES, _HEAD_PART_BYTES

    def begin_body(self) -> None:
        """The headers have come."""
        self._left = self._at_once = self._most_bytes

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._real.read(min(max_bytes, self._at_once), timeout)
        self._left -= len(data)
        if self._left < 0:
            raise _TooLong
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._left, self._at_once = _HEAD_BYTES, _HEAD_PART_BYTES
        await self._real.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._real.aclose()

    async def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Bounded(await self._real.start_tls(ssl_context, server_hostname, timeout), self._most_bytes)
        except BaseException:  # cancelled, too, where httpcore leaves the socket to the garbage collector
            await self._real.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._real.get_extra_info(info)
