"""A real Prometheus server that scrapes a real exporter: counts, percentiles and failures as it answers them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from manager.model.source import PrometheusQuery, SourceState
from manager.model.window import Ready, merge
from tests.telemetry.conftest import Running, free_port, shop, until

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
EVERY_S = 0.1
SCRAPE = "200ms"


class Exporter:
    """An instance of the application: it serves what it observed, on a port that stays the same when it starts anew."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        registry = CollectorRegistry()
        self.times = Histogram(
            "http_request_duration_seconds", "Response times", ["app", "node"], buckets=BOUNDS_S, registry=registry
        )
        self.requests = Counter("http_requests", "Requests", ["app"], registry=registry)
        self.p95 = Gauge("response_time_p95_seconds", "A percentile that is ready", ["app"], registry=registry)
        self.rate = Gauge("request_rate", "Requests per second", ["app"], registry=registry)
        self._server, self._thread = start_http_server(self.port, "127.0.0.1", registry)
        self.port = self._server.server_port

    def observe(self, app: str, counts_by_time_s: Mapping[float, int], node: str = "a") -> None:
        for time_s, count in counts_by_time_s.items():
            for _ in range(count):
                self.times.labels(app, node).observe(time_s)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Prometheus:
    """A real Prometheus on loopback, which logs the queries that it answers. It keeps its data when it starts anew."""

    folder: Path
    targets: tuple[Exporter, ...]
    port: int = field(default_factory=free_port)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        # Bounds of node b are written as Go's client library does: 1, where Python's has 1.0.
        bounds = {"source_labels": ["node", "le"], "regex": r"b;1\.0", "target_label": "le", "replacement": "1"}
        job = {
            "job_name": "shop",
            "static_configs": [{"targets": [f"127.0.0.1:{one.port}" for one in self.targets]}],
            "metric_relabel_configs": [bounds],
        }
        times = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "query_log_file": str(self.folder / "queries")}
        (self.folder / "prometheus.yml").write_text(json.dumps({"global": times, "scrape_configs": [job]}))
        command = [
            "prometheus",
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "GOMAXPROCS": "1"})
        until(self._is_ready, "prometheus is ready")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, query: str) -> dict[str, Any]:
        """The server's answer, with an ``error`` where it refuses."""
        return dict(self.client.get(f"{self.url}/api/v1/query", params={"query": query}).json())

    def number(self, query: str) -> float | None:
        """The value of the only series, None where there is none."""
        series = self.ask(query)["data"]["result"]
        assert len(series) <= 1, query
        return float(series[0]["value"][1]) if series else None

    def asked(self, query: str) -> int:
        """How often it has answered a query."""
        lines = (self.folder / "queries").read_text().splitlines(keepends=True)
        return sum(json.loads(line)["params"]["query"] == query for line in lines if line.endswith("\n"))

    def await_polls(self, *specs: PrometheusQuery, more: int = 1) -> None:
        """Wait until sources have asked again, each several times."""
        wanted = {spec.query: self.asked(spec.query) + more for spec in specs}
        until(lambda: all(self.asked(query) >= count for query, count in wanted.items()), "the sources ask again")

    def await_scrape(self, app: str, count: int) -> None:
        """Wait until it knows of so many response times of an application."""
        query = f'sum(http_request_duration_seconds_count{{app="{app}"}})'
        until(lambda: self.number(query) == count, f"{count} of {app} were scraped")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return self.client.get(f"{self.url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def targets() -> Iterator[tuple[Exporter, Exporter]]:
    started = (Exporter(), Exporter())
    yield started
    for one in started:
        one.stop()


@pytest.fixture(scope="module")
def server(targets: tuple[Exporter, Exporter], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One for all tests, each of which has an ``app`` of its own: it scrapes only 5 s after its start."""
    if shutil.which("prometheus") is None:
        pytest.skip("NOT TESTED: prometheus is not installed")
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), targets)
    try:
        made.start()
        until(lambda: made.number("sum(up)") == 2, "both targets were scraped")
        yield made
    finally:
        made.process.kill()  # it may have been left stopped by a signal
        made.process.wait()
        made.client.close()


def documented(server: Prometheus, app: str) -> list[PrometheusQuery]:
    """The sources of docs/how-to/sources.md, for another server and application."""
    text = (Path(__file__).parents[2] / "docs/how-to/sources.md").read_text()
    starts = [place for place in range(len(text)) if text.startswith('{"name": "prom"', place)]
    found = []
    for start in starts:
        fields, _ = json.JSONDecoder().raw_decode(text, start)
        assert fields.pop("type") == "prometheus"
        renamed = {
            name: value.replace('app="shop"', f'app="{app}"') if isinstance(value, str) else value
            for name, value in fields.items()
        }
        found.append(replace(PrometheusQuery(**renamed), url=server.url, every_s=EVERY_S))
    return found


def requests(running: Running, application: str = "shop") -> float:
    return sum(slot.requests or 0.0 for slot in running.sources.slots().get(application, ()))


def test_a_histogram_is_counted_as_it_was_observed(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    exporter.observe("hist", {0.02: 500, 0.2: 3})
    exporter.observe("hist", {2.0: 700}, node="b")
    server.await_scrape("hist", 1203)
    plain, _ = documented(server, "hist")
    summed = replace(plain, query=f"sum by (le) ({plain.query})")
    running.configure(shop(plain), shop(summed, name="summed", vm="summed-web"))
    server.await_polls(plain, summed)
    before_s = server.number("vector(time())")

    # The bucket above each of these is empty: a count that is off by one shows at its rank.
    exporter.observe("hist", {0.02: 600, 0.2: 40})
    exporter.observe("hist", {0.2: 300, 0.8: 50, 9.0: 10}, node="b")
    server.await_scrape("hist", 2203)
    after_s = server.number("vector(time())")  # later scrapes may fail here
    server.await_polls(plain, summed, more=3)
    for application in ("shop", "summed"):
        assert running.status("prom", application).accepted == running.count(application) == 1000, application
        assert requests(running, application) == pytest.approx(1000)
        window = merge(running.sources.slots()[application])
        assert 500 < window.percentile_ms(95) <= 1000 * 1.01, "the bucket that holds the 0.8 s"
        for first, last, low_s, high_s in (
            (1, 600, 0, 0.05),
            (601, 940, 0.1, 0.25),
            (941, 990, 0.5, 1),
            (991, 1000, 2.5, 2.5),
        ):
            assert low_s * 990 <= window.percentile_ms(first / 10), (application, first)
            assert window.percentile_ms(last / 10) <= high_s * 1010, (application, last)
        for percentile in (50, 75, 95, 98, 99.9):
            theirs_s = server.number(
                f"histogram_quantile({percentile / 100}, "
                f"sum by (le) ({plain.query} @ {after_s}) - sum by (le) ({plain.query} @ {before_s}))"
            )
            assert theirs_s is not None
            assert window.percentile_ms(percentile) == pytest.approx(theirs_s * 1000, rel=0.02), percentile


def test_a_ready_percentile_is_taken_as_it_is(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    exporter.p95.labels("ready").set(0.0125)
    exporter.rate.labels("ready").set(40)
    spec = PrometheusQuery(
        "prom",
        server.url,
        'response_time_p95_seconds{app="ready"}',
        percentile=95,
        rate_query='request_rate{app="ready"}',
        every_s=EVERY_S,
    )

    def ready() -> Ready | None:
        slots = running.sources.slots().get("shop")
        return merge(slots).ready if slots else None

    running.configure(shop(spec))
    until(lambda: ready() == Ready(95, 12.5), "the percentile arrives")
    until(lambda: requests(running) >= 4 * 40 * EVERY_S, "so does the rate")
    status = running.status("prom")
    assert (status.state, status.detail, running.count()) == (SourceState.OK, "", 0)
    exporter.p95.labels("ready").set(0.75)
    until(lambda: ready() == Ready(95, 750), "it follows")
    exporter.p95.labels("ready").set(float("nan"))
    until(lambda: str(server.number(spec.query)) == "nan", "that is scraped")
    server.await_polls(spec, more=2)
    accepted = running.status("prom").accepted
    server.await_polls(spec, more=3)
    status = running.status("prom")
    assert (status.state, status.accepted) == (SourceState.OK, accepted), "NaN is no percentile, and no error"


def test_the_documented_percentile_is_that_of_the_last_minute(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    exporter.times.labels("quantile", "a")
    exporter.requests.labels("quantile")
    _, spec = documented(server, "quantile")
    running.configure(shop(spec))
    until(lambda: running.sources.slots().get("shop"), "a rate of 0 makes NaN of the percentile")
    assert (running.status("prom").accepted, requests(running)) == (0, 0)
    exporter.observe("quantile", {0.2: 400})
    exporter.requests.labels("quantile").inc(400)
    until(lambda: running.status("prom").accepted and requests(running), "the percentile and the rate arrive")
    found = merge(running.sources.slots()["shop"]).percentile_ms(95)
    assert found == pytest.approx(100 + 0.95 * 150), "spread between the bounds by the server itself"


def test_the_server_says_why_a_query_cannot_be_used(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    exporter.observe("bad", {0.2: 1})
    exporter.observe("bad", {0.2: 1}, node="b")
    server.await_scrape("bad", 2)
    series = 'http_request_duration_seconds_bucket{app="bad"'
    typo = PrometheusQuery("prom", server.url, series, every_s=EVERY_S)
    pairs = "vector(1) / on () up"
    cases = {
        "typo": (typo, "query: bad_data, status 400"),
        "typo-p95": (replace(typo, percentile=95.0), "query: bad_data, status 400"),
        "typo-rate": (
            replace(typo, query="vector(1)", percentile=95.0, rate_query=series),
            "query: bad_data, status 400",
        ),
        "pairs": (replace(typo, query=pairs), "refuses the query: execution, status 422"),
        "nothing": (replace(typo, query='no_such_bucket{app="bad"}'), "the query answers no series"),
        "range": (replace(typo, query=series + "}[1m]"), "the query answers a matrix, not an instant vector"),
        "text": (replace(typo, query='"p95"'), "the query answers a string, not an instant vector"),
        "no-le": (replace(typo, query="up"), "series without a label le"),
        "many": (replace(typo, query="up", percentile=95.0), "the query answers 2 series"),
        "path": (replace(typo, url=server.url + "/graph"), "status 404 and no JSON"),
    }
    running.configure(*(shop(spec, name=name, vm=f"{name}-web") for name, (spec, _) in cases.items()))
    for name, (spec, reason) in cases.items():
        until(lambda name=name: running.status("prom", name).state is SourceState.FAILING, f"{name} is failing")
        status = running.status("prom", name)
        assert reason in status.detail, name
        assert (status.accepted, status.errors >= 1) == (0, True), name
        if name.startswith("typo"):
            words = server.ask(spec.rate_query or spec.query)["error"]
            assert words not in status.detail, "not the server's own words, which may be anything"


def test_a_series_that_appears_ends_the_failure(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    buckets, ready = documented(server, "late")
    ready = replace(ready, query='response_time_p95_seconds{app="late"}', rate_query=None)
    running.configure(shop(buckets), shop(ready, name="ready", vm="ready-web"))
    until(lambda: running.status("prom").state is SourceState.FAILING, "there is none")
    assert running.status("prom").detail == "the query answers no series"
    until(lambda: running.status("prom", "ready").detail == "the query answers no series", "there is none either")
    # A rate has no series before its second scrape, either: that alone is no failure.
    assert running.status("prom", "ready").state is SourceState.STARTING
    assert running.sources.slots() == {}
    exporter.times.labels("late", "a")
    exporter.p95.labels("late").set(0.5)
    until(lambda: running.status("prom").state is SourceState.STARTING, "it waits for response times")
    exporter.observe("late", {0.02: 3})
    until(lambda: running.status("prom").accepted == 3, "they arrive")
    until(lambda: running.status("prom", "ready").state is SourceState.OK, "the percentile arrives too")
    assert running.status("prom", "ready").detail == ""


def test_a_rate_in_place_of_counters_is_refused(running: Running, server: Prometheus, targets) -> None:
    exporter, _ = targets
    exporter.times.labels("rate", "a")
    server.await_scrape("rate", 0)
    plain, _ = documented(server, "rate")
    wrong = replace(plain, query=f"sum by (le) (rate({plain.query}[1m]))")
    running.configure(shop(wrong))
    exporter.observe("rate", {0.2: 7})
    until(lambda: "not for their rate()" in running.status("prom").detail, "it is refused")
    assert running.status("prom").accepted == 0


def test_an_instance_that_starts_anew_counts_from_there(running: Running, server: Prometheus, targets) -> None:
    first, second = targets
    first.observe("two", {0.02: 400})
    second.observe("two", {0.02: 300})
    server.await_scrape("two", 700)
    spec, _ = documented(server, "two")
    running.configure(shop(spec))
    server.await_polls(spec)
    second.stop()
    until(lambda: server.number("sum(up)") == 1, "it cannot be scraped")
    first.observe("two", {0.2: 10})
    until(lambda: running.status("prom").accepted == 10, "the other one is counted")
    second.start()
    second.observe("two", {0.8: 7})
    server.await_scrape("two", 417)
    server.await_polls(spec, more=3)
    assert (running.status("prom").accepted, running.status("prom").state) == (17, SourceState.OK)
    assert requests(running) == pytest.approx(17)


def test_a_server_that_hangs_or_stops_is_failing_until_it_is_back(
    running: Running, server: Prometheus, targets
) -> None:
    exporter, _ = targets

    def fails_with(reason: str) -> bool:
        status = running.status("prom")
        return status.state is SourceState.FAILING and reason in status.detail

    exporter.observe("back", {0.02: 100})
    server.await_scrape("back", 100)
    spec, _ = documented(server, "back")
    running.configure(shop(replace(spec, timeout_s=0.5)))
    server.await_polls(spec)
    exporter.observe("back", {0.2: 10})
    until(lambda: running.status("prom").accepted == 10, "it works")

    server.stop()
    until(lambda: fails_with("Connection refused"), "its end is noticed")
    exporter.observe("back", {0.8: 25})
    assert running.status("prom").accepted == 10
    server.start()
    until(lambda: running.status("prom").state is SourceState.OK, "its next start is noticed")

    server.process.send_signal(signal.SIGSTOP)
    until(lambda: fails_with("no answer within 0.5 s"), "it is noticed that it hangs")
    server.process.send_signal(signal.SIGCONT)
    until(lambda: running.status("prom").state is SourceState.OK, "it goes on")

    server.await_scrape("back", 135)
    server.await_polls(spec, more=3)
    status = running.status("prom")
    assert (status.state, status.accepted, running.count()) == (SourceState.OK, 35, 35), "none is lost, none twice"
    assert requests(running) == pytest.approx(35)
    assert status.errors >= 2
