"""Active probe of a URL."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from manager.model.reach import DEFAULT_REACH, Reach
from manager.model.source import HttpProbe
from manager.telemetry.credentials import Carried
from manager.telemetry.feed import Feed
from manager.telemetry.http_client import HttpClient, http_client
from manager.telemetry.open_loop import MAX_SESSIONS, OpenLoop, ProbeError
from manager.telemetry.probe import ProbeReport

MOST_BYTES = 256 * 1024
"""An answer with more is an error: whoever is asked must not decide how busy the agent is."""


class GetUrl:
    """A GET of one URL with its whole body; redirects are answers like any other."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client = client
        self._url = url

    async def request(self) -> None:
        """One GET. Raises SourceError for a status of 500 and more, and when there is no answer."""
        answer = await self._client.get(self._url, keep_body=False)
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ProbeError(f"status {answer.status}")

    def close(self) -> None:
        """Nothing: the client keeps the connections, and drops those that broke."""


class HttpSource:
    """The probe of one URL."""

    def __init__(
        self,
        spec: HttpProbe,
        feed: Feed,
        clock: Callable[[], float],
        reach: Reach = DEFAULT_REACH,
        headers: Carried = dict,
    ) -> None:
        """``clock`` tells seconds since the epoch, ``headers`` what requests carry, and raises CredentialError."""
        self._spec = spec
        self._feed = feed
        self._clock = clock
        self._reach = reach
        self._headers = headers

    async def run(self) -> None:
        """Probe until cancelled. Raises CredentialError."""
        spec = self._spec
        # The open loop bounds the time of the whole request.
        async with http_client(self._reach, MOST_BYTES, MAX_SESSIONS, self._headers()) as client:
            report = ProbeReport(self._feed, self._clock)
            await OpenLoop(spec.rate_rps, spec.timeout_s, lambda: GetUrl(client, spec.url), report).run()
