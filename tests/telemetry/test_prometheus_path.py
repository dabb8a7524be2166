"""A registered Prometheus server is asked for queries, whatever its URL ends in: no path of somebody else's choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manager.model.source import PrometheusQuery, SourceState
from tests.telemetry.conftest import Running, Web, shop, until

NO_SERIES = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
SERVERS = {"query": "/admin/delete?x=", "fragment": "/admin/delete#", "path": "/prefix/", "plain": ""}


@pytest.mark.parametrize("end", SERVERS.values(), ids=SERVERS)
def test_nothing_but_queries_is_asked(
    end: str, running: Running, web: Callable[[Callable[[str], tuple[int, bytes]]], Web]
) -> None:
    server = web(lambda _path: (200, NO_SERIES))
    running.configure(shop(PrometheusQuery("server", server.url + end, "up", every_s=1)))
    until(lambda: running.status("server").state is SourceState.FAILING, "it was tried")
    asked = {path.partition("?")[0] for path in server.paths}
    assert asked <= {"/api/v1/query", "/prefix/api/v1/query"}, asked
    assert bool(asked) is not any(sign in end for sign in "?#"), "and the agent asks what it may"
