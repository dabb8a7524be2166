"""Requests at random times that do not wait for the answers to earlier ones.

A closed loop sends nothing while a server stalls, and so sees one slow answer where clients see many. Here requests
become due in a Poisson process whatever happens to earlier ones. One that finds no free connection waits, and its
response time counts from when it was due.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from manager.telemetry.feed import Abuse, SourceError, reason_of

MAX_SESSIONS = 32
_MAX_BEHIND_S = 1.0


class ProbeError(SourceError):
    """The server answered, but not as it should."""


class Session(Protocol):
    """A connection that serves one request at a time. It connects when it must."""

    async def request(self) -> None:
        """Send a request and wait for all of its answer. Raises SourceError, OSError."""
        ...

    def close(self) -> None:
        """Let go of the connection; the next request makes a new one."""
        ...


class OpenLoop:
    """Sends requests at ``rate_rps`` on average. Belongs to one asyncio loop."""

    def __init__(
        self,
        rate_rps: float,
        timeout_s: float,
        connect: Callable[[], Session],
        report: Callable[[float, str], None],
        *,
        max_sessions: int = MAX_SESSIONS,
        gap_s: Callable[[float], float] = random.expovariate,
    ) -> None:
        """``report`` gets each response time in seconds, and what went wrong, or nothing.

        A request that fails, or is not answered ``timeout_s`` after it was due, is reported as having taken
        ``timeout_s``. ``gap_s`` makes the time between two requests from the rate.
        """
        self._rate_rps = rate_rps
        self._timeout_s = timeout_s
        self._connect = connect
        self._report = report
        self._max_sessions = max_sessions
        self._gap_s = gap_s
        self._sessions: list[Session] = []
        self._idle: list[Session] = []
        self._waiting: deque[float] = deque()  # when each was due, oldest first

    async def run(self) -> None:
        """Send until cancelled, or until an answer is ``Abuse``, which is reported and then raised in a group."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._gap_s(self._rate_rps)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await asyncio.sleep(due_s - loop.time())
                    # Sleeping ends up to a millisecond late, and later where the agent itself waits for a CPU. That
                    # is no fault of the server's, and nothing it does delays this loop: so time counts from here.
                    now_s = loop.time()
                    self._arrive(group, now_s)
                    if now_s - due_s > _MAX_BEHIND_S:  # the machine was suspended: do not make up for it
                        due_s = now_s
                    due_s += self._gap_s(self._rate_rps)
        finally:
            for session in self._sessions:
                session.close()

    def _arrive(self, group: asyncio.TaskGroup, due_s: float) -> None:
        self._give_up_overdue(due_s)
        if not self._idle and len(self._sessions) < self._max_sessions:
            self._sessions.append(self._connect())
            self._idle.append(self._sessions[-1])
        if self._idle:
            group.create_task(self._serve(self._idle.pop(), due_s))
        else:
            self._waiting.append(due_s)

    def _give_up_overdue(self, now_s: float) -> None:
        while self._waiting and self._waiting[0] + self._timeout_s <= now_s:
            self._waiting.popleft()
            self._report(self._timeout_s, self._too_late())

    async def _serve(self, session: Session, due_s: float) -> None:
        """Serve one request and those that wait by then."""
        while True:
            await self._request(session, due_s)
            self._give_up_overdue(asyncio.get_running_loop().time())
            if not self._waiting:
                break
            due_s = self._waiting.popleft()
        self._idle.append(session)

    async def _request(self, session: Session, due_s: float) -> None:
        try:
            async with asyncio.timeout_at(due_s + self._timeout_s):
                await session.request()
        except TimeoutError:
            session.close()
            self._report(self._timeout_s, self._too_late())
        except (SourceError, OSError) as error:
            session.close()
            self._report(self._timeout_s, reason_of(error))
            if isinstance(error, Abuse):
                raise
        else:
            self._report(asyncio.get_running_loop().time() - due_s, "")

    def _too_late(self) -> str:
        return f"no answer within {self._timeout_s:g} s"
