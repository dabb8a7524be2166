"""Registering sources of response times: what is taken, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from manager.model.fields import adapter_of
from manager.model.registration import ApplicationIn
from manager.model.source import (
    HttpProbe,
    MemcachedProbe,
    NginxFile,
    NginxSyslog,
    PrometheusQuery,
    Push,
    SourceKind,
    TimeField,
)
from manager.store.silent_hosts import SilenceWatch
from manager.store.windows import POSTED_LATELY
from tests.api.conftest import HOST, START, Api, report

LEAST: dict[str, dict[str, Any]] = {
    "nginx_syslog": {},
    "nginx_file": {"path": "/var/log/nginx/access.log"},
    "memcached_probe": {"address": "10.0.0.1"},
    "http_probe": {"url": "http://10.0.0.1:8080/health"},
    "prometheus": {"url": "https://prometheus.example.org", "query": "sum by (le) (rate(http_seconds_bucket[5s]))"},
    "push": {},
    "tap": {"port": 11211},
}
"""What a source of each kind needs besides its name."""


def source(kind: str, name: str = "one", **changes: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **LEAST[kind], **changes}


def test_every_kind_has_a_body() -> None:
    assert set(LEAST) == set(SourceKind)


def test_sources_are_kept_as_registered(shop: Api) -> None:
    sources = [
        source("nginx_syslog", "a", tag="shop_1", time="upstream_response_time"),
        source("nginx_file", "b", host="kvm7"),
        source("memcached_probe", "c", address="cache.example.org", port=11212, rate_rps=0.1, timeout_s=60),
        source("http_probe", "d", url="https://[fd00::1]/x?y=1", rate_rps=1000, timeout_s=0.05),
        source("prometheus", "e", every_s=300),
        source("push", "f", allow=["10.0.0.0/8", "fd00::/64", "192.0.2.1"]),
    ]
    answered = shop.ok("PUT", "/applications/shop", {"sources": sources, "sharing": "isolation"})
    assert answered["sharing"] == "isolation"
    for given, kept in zip(sources, answered["sources"], strict=True):
        assert given.items() <= kept.items()
    etag = shop.call("GET", "/applications/shop").headers["ETag"]
    assert shop.call("PUT", "/applications/shop", {"sources": sources, "sharing": "isolation"}).headers["ETag"] == etag
    body = adapter_of(ApplicationIn).validate_python({"sources": answered["sources"]})
    assert body.sources == (
        NginxSyslog("a", "shop_1", TimeField.UPSTREAM),
        NginxFile("b", "/var/log/nginx/access.log", host="kvm7"),
        MemcachedProbe("c", "cache.example.org", 11212, 0.1, 60),
        HttpProbe("d", "https://[fd00::1]/x?y=1", 1000, 0.05),
        PrometheusQuery("e", LEAST["prometheus"]["url"], LEAST["prometheus"]["query"], every_s=300),
        Push("f", ("10.0.0.0/8", "fd00::/64", "192.0.2.1")),
    )


@pytest.mark.parametrize("kind", LEAST)
def test_defaults_are_those_of_the_model(shop: Api, kind: str) -> None:
    [answered] = shop.ok("PUT", "/applications/shop", {"sources": [source(kind)]})["sources"]
    [parsed] = adapter_of(ApplicationIn).validate_python({"sources": [source(kind)]}).sources
    assert parsed == type(parsed)(name="one", **LEAST[kind])
    assert answered["type"] == parsed.kind


READY = source("prometheus", percentile=99)


@pytest.mark.parametrize(
    ("sources", "field", "words"),
    [
        ([{"name": "a"}], "sources[0].type", ["is required", "allowed: http_probe, memcached_probe"]),
        ([{"name": "a", "type": "guess"}], "sources[0].type", ['"guess"', "allowed: http_probe, memcached_probe"]),
        ([5], "sources[0]", ["5"]),
        ([{"type": "push"}], "sources[0].name", ["is required", "1 to 63"]),
        ([source("push", "a b")], "sources[0].name", ['"a b"', "1 to 63"]),
        ([source("push", url="http://x")], "sources[0].url", ["known: allow, host, name, type"]),
        (
            [source("push"), source("http_probe", rate_rps=0.09)],
            "sources[1].rate_rps",
            ["at least 0.1 and at most 1000"],
        ),
        ([source("http_probe", rate_rps=1001)], "sources[0].rate_rps", ["at least 0.1 and at most 1000"]),
        ([source("http_probe", timeout_s=0.04)], "sources[0].timeout_s", ["at least 0.05 and at most 60"]),
        ([source("http_probe", url="ftp://x/")], "sources[0].url", ["ftp://x/", "http:// or https://"]),
        ([source("http_probe", url="http:///path")], "sources[0].url", ["http:// or https:// URL with a host"]),
        ([source("http_probe", url="http://a:70000/")], "sources[0].url", ["http://a:70000/"]),
        ([source("http_probe", url="http://[::1/")], "sources[0].url", ["http://[::1/"]),
        ([source("http_probe", url="http://a b/")], "sources[0].url", ["http://a b/"]),
        ([source("memcached_probe", address="300.1.1.1")], "sources[0].address", ["an IP address or a host name"]),
        ([source("memcached_probe", address="a/b")], "sources[0].address", ["an IP address or a host name"]),
        ([source("memcached_probe", port=0)], "sources[0].port", ["at least 1 and at most 65535"]),
        ([source("memcached_probe", port=65536)], "sources[0].port", ["at least 1 and at most 65535"]),
        ([source("tap", port=0)], "sources[0].port", ["at least 1 and at most 65535"]),
        ([source("tap", "a"), source("tap", "b", port=None)], "sources[1].port", ["null", "give each its port"]),
        ([source("tap", "a", port=None), source("tap", "b")], "sources[1].port", ["11211", "give each its port"]),
        ([source("nginx_file", path="access.log")], "sources[0].path", ["an absolute path"]),
        ([source("nginx_file", path="/a\0")], "sources[0].path", ["an absolute path"]),
        ([source("nginx_file", time="time")], "sources[0].time", ["request_time, upstream_response_time"]),
        ([source("nginx_syslog", tag="a-b")], "sources[0].tag", ["1 to 32 letters, digits, underscores"]),
        ([source("nginx_syslog", tag="a" * 33)], "sources[0].tag", ["1 to 32 letters, digits, underscores"]),
        ([source("prometheus", every_s=0.9)], "sources[0].every_s", ["at least 1 and at most 300"]),
        ([source("prometheus", query="")], "sources[0].query", ["PromQL"]),
        ([source("prometheus", url="http://p:9090/?x=")], "sources[0].url", ["query or a fragment", "HOST:PORT"]),
        ([source("prometheus", percentile=100)], "sources[0].percentile", ["less than 100"]),
        ([source("push", allow=["10.0.0.1/8"])], "sources[0].allow[0]", ["10.0.0.1/8", "a network such as"]),
        ([source("push", allow=["lan"])], "sources[0].allow[0]", ['"lan"', "a network such as"]),
        ([source("push"), source("http_probe")], "sources[1].name", ["'one' names an earlier source"]),
        ([source("nginx_syslog", "a", tag="x"), source("nginx_syslog", "b", tag="x")], "sources[1].tag", ["'x'"]),
        ([source("nginx_syslog", "a", tag="x"), source("nginx_syslog", "b")], "sources[1].tag", ["a tag of its own"]),
        ([source("tap", "a"), source("tap", "b")], "sources[1].port", ["11211", "would count twice"]),
        ([source("memcached_probe", "a"), source("tap", "b")], "sources[1].type", ["beside memcached_probe"]),
        ([source("tap", "a"), source("nginx_file", "b")], "sources[0].type", ["beside nginx_file", "keep one"]),
        ([READY], "sources[0].percentile", ["99 is refused", "the SLA's percentile, 95"]),
        ([source("prometheus", percentile=95), source("push", "b")], "sources[0].percentile", ["no other source"]),
        ([source("push", f"n{number}") for number in range(51)], "sources", ["at most 50"]),
    ],
)
def test_a_bad_source_is_refused(shop: Api, sources: list[Any], field: str, words: list[str]) -> None:
    before = shop.ok("GET", "/applications/shop")
    body = {"sla": {"response_time_ms": 10}, "sources": sources}
    error = shop.refused(422, "PUT", "/applications/shop", body)["errors"][0]
    assert error["field"] == field
    assert all(word in error["message"] for word in words), error
    assert shop.ok("GET", "/applications/shop") == before


def test_a_ready_percentile_of_the_sla_is_taken(shop: Api) -> None:
    body = {"sla": {"response_time_ms": 10, "percentile": 99}, "sources": [READY]}
    assert shop.ok("PUT", "/applications/shop", body)["sources"][0]["percentile"] == 99


def test_probes_move_to_a_host_that_reports_and_back_when_the_first_one_lasts(shop: Api) -> None:
    def probing() -> list[str]:
        found = {host: shop.ok("GET", f"/hosts/{host}/assignment")["applications"] for host in (HOST, "kvm2")}
        return [host for host, [application] in found.items() if application["sources"]]

    watch = SilenceWatch(timedelta(seconds=30), lambda: shop.clock.now_s)

    def passed(seconds: float, *reporting: str) -> list[str]:
        shop.clock.now_s += seconds
        for host in reporting:
            shop.ok("POST", f"/hosts/{host}/report", report())
        now = datetime.fromtimestamp(shop.clock.now_s, UTC)
        watch.look(shop.database, now, START - timedelta(days=1))
        return probing()

    for host, vm in ((HOST, "web-1"), ("kvm2", "web-2")):
        shop.ok("PUT", f"/hosts/{host}", {})
        shop.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": host})
    shop.ok("PATCH", "/applications/shop", {"sources": [source("http_probe", url="http://10.0.0.1/")]})
    assert passed(0, "kvm2") == ["kvm2"], "the first one never reported"
    assert passed(5, HOST, "kvm2") == [HOST]
    assert passed(29, "kvm2") == [HOST]
    assert passed(5, "kvm2") == ["kvm2"]
    assert passed(5, HOST, "kvm2") == ["kvm2"], "it may fall silent again"
    assert passed(59, HOST, "kvm2") == ["kvm2"]
    assert passed(1, HOST, "kvm2") == [HOST]
    assert passed(60) == [HOST], "nobody reports: the first by name"


def test_an_application_without_a_source_is_measured_at_its_taps_unless_somebody_posts(shop: Api) -> None:
    """And unless it has no SLA, or the agent is older: it would not understand the application."""
    shop.ok("PUT", f"/hosts/{HOST}", {})
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})

    def in_force() -> list[tuple[str, Any]]:
        [application] = shop.ok("GET", f"/hosts/{HOST}/assignment", Equipoise_Taps="1")["applications"]
        shown = [row["source"] for row in shop.ok("GET", "/applications/shop/sources")["items"]]
        assert shown == [each["name"] for each in application["sources"]]
        return [(each["name"], each["port"]) for each in application["sources"]]

    assert in_force() == [("taps", None)]
    [of_an_older_agent] = shop.ok("GET", f"/hosts/{HOST}/assignment")["applications"]
    assert of_an_older_agent["sources"] == []
    assert shop.ok("GET", "/applications/shop")["sources"] == []
    shop.ok("POST", "/applications/shop/samples", {"times_ms": [1]})
    assert in_force() == []
    shop.clock.now_s += POSTED_LATELY.total_seconds() + 10
    assert in_force() == [("taps", None)]
    shop.ok("PATCH", "/applications/shop", {"sla": None})
    assert in_force() == []
    shop.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 5}, "sources": [source("push", "p")]})
    [application] = shop.ok("GET", f"/hosts/{HOST}/assignment")["applications"]
    assert [each["name"] for each in application["sources"]] == ["p"]


def test_a_source_that_no_host_runs_names_some_of_many_vms(shop: Api) -> None:
    for host in (HOST, "kvm2"):
        shop.ok("PUT", f"/hosts/{host}", {})
    names = [f"{'v' * 60}{number:03}" for number in range(40)]
    for name in names:
        shop.ok("PUT", f"/vms/{name}", {"class": "critical"})
    body = {"tiers": [{"name": "web", "vms": names}], "sources": [source("http_probe")]}
    shop.ok("PUT", "/applications/shop", body)
    [row] = shop.ok("GET", "/applications/shop/sources")["items"]
    assert row["problem"].startswith(f"no host is registered for VM {names[0]}, {names[1]}, ")
    assert row["problem"].endswith(f"{names[19]} and 20 more: set its host, or that of the source")
