"""Requests of ASGI as a WSGI application wants them, and what it answers. PEP 3333."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from manager.serving.exchange import EXCHANGE, Environ, Exchange, OpenedBody, WsgiApp

Scope = Any
"""Of ASGI: https://asgi.readthedocs.io/en/stable/specs/www.html"""

PIECE_BYTES = 64 * 1024

_SCHEMES = {"http", "https"}
_OF_PROXIES = ("x-forwarded-", "forwarded")
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


class FileBody:
    """``wsgi.file_wrapper``: what is sent from a file, of which no more than a piece is in memory."""

    def __init__(self, file: IO[bytes], _block_bytes: int = PIECE_BYTES) -> None:
        self._file = file
        self.close = file.close

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._file.read(PIECE_BYTES):
            yield piece


@dataclass(slots=True)
class WsgiAnswer:
    """Status and headers, and the body: ``pieces`` come from memory or a file, or are made as they are sent.

    ``rest`` makes what follows them, None: nothing does.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    pieces: Iterable[bytes]
    close: Callable[[], None]
    rest: Callable[[], bytes] | None = None


def environ_of(scope: Scope, exchange: Exchange, trusted_proxy: str) -> Environ:
    """The environment of a request, with an empty body.

    What ``X-Forwarded-For`` and ``-Proto`` say counts from ``trusted_proxy`` alone; no such header is passed on.
    """
    address, port = scope["client"] or ("", 0)
    server_host, server_port = scope["server"] or ("", 0)
    path = _path(scope["raw_path"])
    environ: Environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": server_host,
        "SERVER_PORT": str(server_port or 0),
        "REMOTE_ADDR": address,
        "REMOTE_PORT": str(port),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileBody,
        EXCHANGE: exchange,
    }
    forwarded: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name.startswith(_OF_PROXIES):
            forwarded[name] = value
        elif name in {"content-type", "content-length"}:
            environ[name.upper().replace("-", "_")] = value
        elif "_" not in name:  # else X_Y could pretend to be X-Y
            variable = "HTTP_" + name.upper().replace("-", "_")
            separator = "; " if name == "cookie" else ","
            environ[variable] = f"{environ[variable]}{separator}{value}" if variable in environ else value
    if trusted_proxy and address == trusted_proxy:
        _believe(environ, forwarded)
    return environ


def run(app: WsgiApp, environ: Environ, *, streams: bool) -> WsgiAnswer:
    """Call an application. The answer's body is in memory then, but for files, and what is made on the way.

    ``streams``: a body of unknown length is made as it is sent. Without it an ``OpenedBody`` is sent in its two parts,
    to who reads a body of unknown length (HTTP/1.1).
    """
    began: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> Callable[[bytes], None]:
        began[:] = [(status, headers)]
        return written.append

    result = app(environ, start_response)
    close: Callable[[], None] = getattr(result, "close", lambda: None)
    rest: Callable[[], bytes] | None = None
    try:
        pieces: Iterable[bytes] = result
        if environ["REQUEST_METHOD"] == "HEAD":
            pieces = ()
        elif began and isinstance(result, OpenedBody) and environ["SERVER_PROTOCOL"] == "HTTP/1.1":
            pieces, rest = (result.opening,), result.rest
        elif not began or not isinstance(result, FileBody):
            pieces = iter(result)
            known = bool(began) and any(name.lower() == "content-length" for name, _ in began[-1][1])
            if not streams or not began or known:
                whole = b"".join((*written, *pieces))
                pieces = [whole]
                if whole and not known:
                    began[-1][1].append(("Content-Length", str(len(whole))))
    except BaseException:
        close()
        raise
    status, headers = began[-1]
    end_to_end = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers
        if name.lower() not in _HOP_BY_HOP
    ]
    return WsgiAnswer(int(status[:3]), end_to_end, pieces, close, rest)


def _path(raw_path: bytes) -> bytes:
    """Without scheme and host, which a request to a proxy has."""
    if raw_path.startswith(b"/"):
        return raw_path
    _, separator, rest = raw_path.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if separator else b"/" + raw_path


def _believe(environ: Environ, forwarded: dict[str, str]) -> None:
    """Take what a trusted proxy says. The last address is the one it was asked from; those before are hearsay."""
    address = forwarded.get("x-forwarded-for", "").rpartition(",")[2].strip()
    with contextlib.suppress(ValueError):  # then it stays the proxy's
        environ["REMOTE_ADDR"] = str(ipaddress.ip_address(address))
    scheme = forwarded.get("x-forwarded-proto", "").strip().lower()
    if scheme in _SCHEMES:
        environ["wsgi.url_scheme"] = scheme
