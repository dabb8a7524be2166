"""What a server and its application exchange about one request, beside WSGI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(slots=True)
class Exchange:
    """One request, used by the server's loop and by the thread that answers it.

    An application is called twice for a request with a body: first while ``undecided``, with an empty body, when it
    answers with an error or sets ``limit_bytes``; then, if it did, with the body, and answers a larger one with 413.
    A small body that comes by a connection whose sender is known is there at the first and only call.
    What it keeps in ``kept`` at the first call is there at the second. It sets ``trusted`` where it knows the sender:
    the connection gives way to no other then and may be idle for longer. ``gone``: nobody reads the answer any more.
    """

    undecided: bool
    limit_bytes: int | None = None
    kept: Any = None
    trusted: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class OpenedBody:
    """A body of which ``opening`` is sent at once, before ``rest`` is made, in a thread of the request's lane.

    What goes wrong in ``rest`` cuts the connection: the status has been sent.
    """

    opening: bytes
    rest: Callable[[], bytes]

    def __iter__(self) -> Iterator[bytes]:
        yield self.opening
        yield self.rest()

    def followed_by(self, done: Callable[[], None]) -> OpenedBody:
        """The same body; ``done`` is called once its rest is made, or cannot be."""

        def rest() -> bytes:
            try:
                return self.rest()
            finally:
                done()

        return OpenedBody(self.opening, rest)
