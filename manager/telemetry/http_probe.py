"""Active probe of a URL."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from manager.model.source import HttpProbe
from manager.telemetry.feed import Feed
from manager.telemetry.open_loop import MAX_SESSIONS, OpenLoop, ProbeError
from manager.telemetry.probe import ProbeReport, tls_context


class GetUrl:
    """A GET of one URL with its whole body; redirects are answers like any other."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def request(self) -> None:
        """One GET. Raises ProbeError for a status of 500 and more, and when there is no answer."""
        try:
            async with self._client.stream("GET", self._url) as response:
                async for _ in response.aiter_raw():
                    pass
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProbeError(str(error) or type(error).__name__) from error
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise ProbeError(f"status {response.status_code}")

    def close(self) -> None:
        """Nothing: the client keeps the connections, and drops those that broke."""


class HttpSource:
    """The probe of one URL."""

    def __init__(self, spec: HttpProbe, feed: Feed, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds since the epoch."""
        self._spec = spec
        self._feed = feed
        self._clock = clock

    async def run(self) -> None:
        """Probe until cancelled."""
        spec = self._spec
        limits = httpx.Limits(max_connections=MAX_SESSIONS, max_keepalive_connections=MAX_SESSIONS)
        # The open loop bounds the time of the whole request; proxies of the environment are not meant for VMs.
        async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False, verify=tls_context()) as client:  # noqa: S113
            report = ProbeReport(self._feed, self._clock)
            await OpenLoop(spec.rate_rps, spec.timeout_s, lambda: GetUrl(client, spec.url), report).run()
