"""GET requests of sources: to addresses that may be reached, with answers of a bounded size, shown in our own words.

Redirects are not followed, compressed answers are not asked for, and proxies of the environment are not meant for VMs.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpcore

from manager.model.reach import Reach
from manager.telemetry.connect import Names
from manager.telemetry.feed import Abuse, SourceError, os_reason
from manager.telemetry.probe import tls_context

_HEAD_BYTES = 16 * 1024
"""How much may come before a body: status, headers, and interim answers, of which there need be no end."""
_HEAD_PART_BYTES = 4 * 1024
_PART_BYTES = 512
"""What a part of a body costs besides its bytes: a server may send them one by one."""
_IN_TARGET = "!#$%&'()*+,/:;=?@[]~"
Headers = Sequence[tuple[str, str]]
_NOTHING: Mapping[str, str] = MappingProxyType({})


class TooMuch(Abuse):
    """An answer has more bytes than are taken."""


class NoAnswer(SourceError):
    """There was no answer, or none of an HTTP server."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, its body as it came, empty where it was not to be kept."""

    status: int
    body: bytes


class HttpClient:
    """Requests of one source. Belongs to one asyncio loop; whoever asks bounds the time."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, most_bytes: int, carried: Mapping[str, str]) -> None:
        self._pool = pool
        self._carried = carried
        self._most_bytes = most_bytes

    async def get(self, url: str, *, keep_body: bool = True) -> HttpAnswer:
        """The answer to a GET, whatever its status. Raises SourceError, OSError."""
        target, usual = _request(url)
        taken = {name.lower() for name in self._carried}
        headers = [*((name, value) for name, value in usual if name.lower() not in taken), *self._carried.items()]
        body = bytearray()
        count = 0
        try:
            async with self._pool.stream("GET", target, headers=_encoded(headers)) as response:
                stream = response.extensions.get("network_stream")
                if isinstance(stream, _Bounded):
                    stream.begin_body()
                async for part in response.aiter_stream():
                    count += len(part) + _PART_BYTES * bool(count)
                    if count > self._most_bytes:
                        raise self._too_much()
                    if keep_body:
                        body += part
        except _TooLong:
            raise self._too_much() from None
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise NoAnswer(os_reason(error) or "no connection, or it broke") from error
        except httpcore.ProtocolError as error:  # its text quotes the server
            raise NoAnswer("the server hung up, or does not answer as HTTP servers do") from error
        return HttpAnswer(response.status, bytes(body))

    def _too_much(self) -> TooMuch:
        return TooMuch(f"the answer has more than {self._most_bytes} bytes")


@asynccontextmanager
async def http_client(
    reach: Reach, most_bytes: int, connections: int, carried: Mapping[str, str] = _NOTHING
) -> AsyncIterator[HttpClient]:
    """A client, closed at the end. ``most_bytes`` of a body are taken; each request has the headers ``carried``."""
    backend = _Backend(Names(reach), 2 * most_bytes)
    async with httpcore.AsyncConnectionPool(
        ssl_context=tls_context(), max_connections=connections, network_backend=backend
    ) as pool:
        yield HttpClient(pool, most_bytes, carried)


def _request(url: str) -> tuple[httpcore.URL, Headers]:
    """What is asked of whom, and the headers that follow from it. Raises NoAnswer."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise NoAnswer("the URL cannot be used") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise NoAnswer("the URL should begin with http:// or https:// and a host")
    path = quote(parts.path or "/", safe=_IN_TARGET) + ("?" + quote(parts.query, safe=_IN_TARGET)) * bool(parts.query)
    user, at, address = parts.netloc.rpartition("@")
    headers = [("Host", address), ("User-Agent", "equipoise"), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
    if at:
        name, _, password = user.partition(":")
        secret = f"{unquote(name)}:{unquote(password)}".encode()
        headers.append(("Authorization", "Basic " + base64.b64encode(secret).decode()))
    return httpcore.URL(scheme=parts.scheme, host=parts.hostname, port=port, target=path), headers


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers]


class _TooLong(Exception):
    """More came over a connection in answer to a request than any answer needs."""


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to what names mean here; a TLS certificate still has to be that of the name."""

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
        addresses = await self._names.addresses(host)
        for address in addresses[:-1]:
            try:
                stream = await self._real.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
            return _Bounded(stream, self._most_bytes)
        stream = await self._real.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)
        return _Bounded(stream, self._most_bytes)

    async def sleep(self, seconds: float) -> None:
        await self._real.sleep(seconds)


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
        return _Bounded(await self._real.start_tls(ssl_context, server_hostname, timeout), self._most_bytes)

    def get_extra_info(self, info: str) -> Any:
        return self._real.get_extra_info(info)
