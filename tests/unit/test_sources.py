"""Where sources of response times run, which go together, and their plain form."""

from __future__ import annotations

import json

import pytest

from manager.control.source_rules import contradictions, sources_on
from manager.model.registration import Sla
from manager.model.source import (
    SOURCES,
    HttpProbe,
    MemcachedProbe,
    NginxFile,
    NginxSyslog,
    PrometheusQuery,
    Push,
    Source,
    SourceKind,
    Tap,
    TimeField,
)

EVERY: tuple[Source, ...] = (
    NginxSyslog("s", "tag", TimeField.UPSTREAM),
    NginxFile("f", "/log", host="c"),
    MemcachedProbe("m", "10.0.0.1", 1, 2.5, 3.5),
    HttpProbe("h", "http://x/"),
    PrometheusQuery("p", "http://x/", "up", 95.0, "rate", 1.5, 2.5, host="c"),
    Push("u", ("10.0.0.0/8", "fd00::/8")),
    Tap("t", 80),
)


@pytest.mark.parametrize(
    ("host", "hosts", "names"),
    [
        ("a", ["b", "a"], "smhut"),  # the first by name makes the requests
        ("b", ["b", "a"], "sut"),
        ("b", ["b"], "smhut"),
        ("c", ["b", "a"], "fp"),  # named, though it has no VM
        ("c", ["c", "d"], "sfmhput"),
        ("d", ["c", "d"], "sut"),
        ("a", ["b"], ""),
        ("a", [], ""),
        ("c", [], "fp"),
    ],
)
def test_where_sources_run(host: str, hosts: list[str], names: str) -> None:
    assert "".join(source.name for source in sources_on(host, EVERY, hosts, hosts)) == names


@pytest.mark.parametrize(
    ("ranks", "first"),
    [
        ({}, "a"),
        ({"a": 2}, "b"),
        ({"a": 1, "b": 1, "c": 0}, "c"),
        ({"a": 2, "b": 1, "c": 2}, "b"),
        ({"b": 0, "a": 0}, "a"),
    ],
)
def test_a_host_that_does_not_report_makes_no_requests_for_others(ranks: dict[str, int], first: str) -> None:
    for host in "abc":
        probes = {source.name for source in sources_on(host, EVERY, "cba", "cba", ranks)} & set("mh")
        assert probes == (set("mh") if host == first else set())


def test_who_says_that_it_has_a_vm_gets_no_requests_to_make() -> None:
    assert "".join(source.name for source in sources_on("a", EVERY, ["a"], ["b"])) == "sut"
    assert "".join(source.name for source in sources_on("b", EVERY, ["a"], ["b"])) == "mh"
    assert "".join(source.name for source in sources_on("a", EVERY, ["a"], [])) == "sut"


def test_every_kind_has_a_plain_form() -> None:
    assert {source.kind for source in EVERY} == set(SourceKind)
    for source in EVERY:
        [plain] = json.loads(SOURCES.dump_json((source,), by_alias=True))
        assert plain["type"] == source.kind
        assert SOURCES.validate_python([plain]) == (source,)


@pytest.mark.parametrize("plain", [{"type": "guess", "name": "a"}, {"type": "push", "name": "a", "port": 1}])
def test_what_is_no_plain_form(plain: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        SOURCES.validate_python([plain])


def ready(percentile: float, name: str = "r") -> PrometheusQuery:
    return PrometheusQuery(name, "http://x/", "up", percentile)


@pytest.mark.parametrize(
    ("sources", "percentile", "fields"),
    [
        (EVERY[:4], 95, []),
        ([Push("a"), Push("b"), Push("a"), Push("a")], 95, ["sources[2].name", "sources[3].name"]),
        ([NginxSyslog("a")], 95, []),
        ([NginxSyslog("a", "x"), NginxSyslog("b", "y")], 95, []),
        ([NginxSyslog("a", "x"), NginxSyslog("b", "x")], 95, ["sources[1].tag"]),
        ([NginxSyslog("a"), NginxSyslog("b", "x")], 95, ["sources[0].tag"]),
        ([ready(95)], 95, []),
        ([ready(95)], None, []),
        ([ready(99)], 95, ["sources[0].percentile"]),
        ([Push("a"), ready(95)], 95, ["sources[1].percentile"]),
        ([ready(95), ready(95, "s")], 95, ["sources[0].percentile", "sources[1].percentile"]),
        ([PrometheusQuery("a", "http://x/", "up"), Push("b")], 95, []),
    ],
)
def test_what_does_not_go_together(sources: list[Source], percentile: float | None, fields: list[str]) -> None:
    sla = None if percentile is None else Sla(10, percentile)
    assert [field for field, _ in contradictions(sources, sla)] == fields
