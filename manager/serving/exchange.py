"""What a server and its application tell each other about one request, beside WSGI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

WsgiApp = Callable[..., Iterable[bytes]]
Environ = dict[str, Any]

EXCHANGE = "equipoise.exchange"
"""Key of the WSGI environment; no header can set it. Absent where no server but a test calls the application."""

UNIX = "unix"
"""REMOTE_ADDR of whoever asks by a Unix socket."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""What the manager takes of the body of a request whose sender it knows."""

OPEN_BODY_BYTES = 16 * 1024
"""What it accepts from unknown senders: a token to join with, a name and a password."""


class Lane(StrEnum):
    """Threads that requests are answered in. One kind never waits for those of another."""

    WORK = "work"
    PROBE = "probe"
    STREAM = "stream"


class Exchange:
    """One request. Thread-safe.

    An application is called twice for a request with a body: first while ``undecided``, with an empty body, when it
    answers with an error or calls ``allow_body``; then, if it did, with the body. What it keeps in ``kept`` at the
    first call is there at the second.
    """

    def __init__(self, has_body: bool) -> None:
        self.undecided = has_body
        self.limit_bytes: int | None = None
        self.kept: Any = None
        self._trusted = False
        self._gone = threading.Event()

    @property
    def trusted(self) -> bool:
        """Whether the application knows who asks."""
        return self._trusted

    def trust(self) -> None:
        """The application knows who asks: the connection gives way to no other and may be idle for longer."""
        self._trusted = True

    def allow_body(self, limit_bytes: int) -> None:
        """Read the body, up to a limit, and call the application again. A larger body gets 413 from that call."""
        self.limit_bytes = limit_bytes

    @property
    def gone(self) -> bool:
        """Whether nobody reads the answer any more."""
        return self._gone.is_set()

    def leave(self) -> None:
        """Nobody reads the answer any more."""
        self._gone.set()
