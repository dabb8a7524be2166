"""What the event loop asks of a protocol: a request to send, and whether the bytes received complete the answer."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

Verdict = str | None
"""None: the answer is not complete yet. GOOD: complete. Any other text: complete, and an error of that kind."""

GOOD = ""


class BadAnswer(Exception):
    """The bytes received are not an answer of this protocol; the connection cannot be used further."""


class AnswerParser(Protocol):
    """Reads one connection's answers, one after the other, however their bytes are cut into pieces."""

    must_close: bool
    """After a complete answer: the server will take no further request on this connection."""

    rest: bytes
    """After a complete answer: the bytes that came with it and belong to the next one."""

    def feed(self, data: bytes) -> Verdict:
        """Take the next bytes of the answer to the oldest request outstanding. Raises BadAnswer."""

    def end(self) -> Verdict:
        """The server closed the connection: None if that cut the answer off, else the verdict on it."""


class WireProtocol(Protocol):
    """A protocol whose answers come in the order of the requests on a connection."""

    events: Counter[str]
    """Things worth counting that are no errors, such as cache misses."""

    def prepare(self, connection: socket.socket, stopped: Callable[[], bool]) -> None:
        """Do what must come before the load, on a blocking connection. Raises LoadError or OSError."""

    def next_request(self) -> bytes:
        """The bytes of the next request."""

    def new_parser(self) -> AnswerParser:
        """A parser for a new connection."""
