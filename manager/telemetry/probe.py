"""Active probes: requests at random times that do not wait for the answers to earlier ones; the probe of a URL.

A closed loop sends nothing while a server stalls, and so sees one slow answer where clients see many. Here requests
become due in a Poisson process whatever happens to earlier ones. One that finds no free connection waits, and its
response time counts from when it was due.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from manager.model.reach import Reach
from manager.model.source import HttpProbe
from manager.telemetry.connect import HttpClient, http_client
from manager.telemetry.credentials import ReadHeaders
from manager.telemetry.feed import Abuse, Feed, SourceError, reason_of

MAX_SESSIONS = 32
MOST_BYTES = 256 * 1024
"""A longer answer to the probe of a URL is an error: a server must not decide how busy the agent is."""
_MAX_BEHIND_S = 1.0
_FAILURES = 3


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
        self._too_late = f"no answer within {timeout_s:g} s"
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
                    # Sleeping ends up to a millisecond late, and later where the agent itself waits for a CPU. The
                    # server does not cause that, and cannot delay this loop: so time counts from here.
                    now_s = loop.time()
                    self._arrive(group, now_s)
                    if now_s - due_s > _MAX_BEHIND_S:  # the machine was suspended: do not make up for it
                        due_s = now_s
                    due_s += self._gap_s(self._rate_rps)
        finally:
            for session in self._sessions:
                session.close()

    def _arrive(self, group: asyncio.TaskGroup, due_s: float) -> None:
        self._fail_overdue(due_s)
        if not self._idle and len(self._sessions) < self._max_sessions:
            self._sessions.append(self._connect())
            self._idle.append(self._sessions[-1])
        if self._idle:
            group.create_task(self._serve(self._idle.pop(), due_s))
        else:
            self._waiting.append(due_s)

    def _fail_overdue(self, now_s: float) -> None:
        while self._waiting and self._waiting[0] + self._timeout_s <= now_s:
            self._waiting.popleft()
            self._report(self._timeout_s, self._too_late)

    async def _serve(self, session: Session, due_s: float) -> None:
        """Serve one request and those that wait by then."""
        while True:
            await self._request(session, due_s)
            self._fail_overdue(asyncio.get_running_loop().time())
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
            self._report(self._timeout_s, self._too_late)
        except (SourceError, OSError) as error:
            session.close()
            self._report(self._timeout_s, reason_of(error))
            if isinstance(error, Abuse):
                raise
        else:
            self._report(asyncio.get_running_loop().time() - due_s, "")


class ProbeReport:
    """Takes the results of an open loop. Three failures in a row make the source ``failing``, a success ends that."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._in_a_row = 0

    def __call__(self, time_s: float, problem: str) -> None:
        """One request: its response time, and what went wrong, or nothing."""
        self._feed.take(self._feed.clock(), (time_s * 1e6,))
        if not problem:
            self._feed.working()
            self._in_a_row = 0
            return
        self._feed.error(problem)
        self._in_a_row += 1
        if self._in_a_row >= _FAILURES:
            self._feed.failing(problem)


class _GetUrl:
    """A GET of one URL with its whole body; redirects are answers like any other."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client = client
        self._url = url

    async def request(self) -> None:
        answer = await self._client.get(self._url, keep_body=False)
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ProbeError(f"status {answer.status}")

    def close(self) -> None:
        """Nothing: the client keeps the connections, and drops those that broke."""


async def probe_url(spec: HttpProbe, feed: Feed, reach: Reach, headers: ReadHeaders) -> None:
    """Probe a URL until cancelled. Raises CredentialError."""
    # The open loop bounds the time of the whole request.
    async with http_client(reach, MOST_BYTES, MAX_SESSIONS, headers()) as client:
        await OpenLoop(spec.rate_rps, spec.timeout_s, lambda: _GetUrl(client, spec.url), ProbeReport(feed)).run()
