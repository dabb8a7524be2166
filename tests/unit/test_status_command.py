"""`equipoise status`: what it says of warps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from manager.cli import main, status_commands
from manager.cli.batch_table import batch_table
from manager.protocol.client import ManagerClient
from tests.fakes.manager import Wire

WARP = {
    "mechanism": "slice",
    "detail": "it was set and read back",
    "can": "do this",
    "cannot": "do that",
    "vms": 1,
    "counters": {},
}


def knob(name: str, value: str, **changes: Any) -> dict[str, Any]:
    return {"knob": name, "index": 0, "value": value, "original": None, "owned": False, "external": False, **changes}


def host(warp: dict[str, Any] | None) -> dict[str, Any]:
    tick = {"mode": "enforce", "host_cpu_share": 0.5, "owned_knobs": 1, "libvirt_connected": True, "warp": warp}
    plain = {"name": "kvm1", "mode": "enforce", "policy": "equal", "pinning": False, "last_seen_at": None}
    return plain | {"tick": tick, "capabilities": {"warnings": []}}


def vm(warp_us: int | None, *knobs: dict[str, Any]) -> dict[str, Any]:
    status = {"cpu_share": 0.1, "run_delay_share": 0.0, "knobs": [*knobs], "warp_us": warp_us}
    plain = {"name": "web", "class": "critical", "application": None, "host": None, "status_host": "kvm1"}
    return plain | {"status": status}


CACHE = {
    "groups": [
        {"name": "", "applications": [], "parts": [{"domain": 0, "ways": 8, "mask": "ff0"}], "external": False},
        {"name": "equipoise-+batch", "applications": [], "parts": [], "external": False},
        {
            "name": "equipoise-shop",
            "applications": ["shop"],
            "parts": [{"domain": 0, "ways": 4, "mask": "f"}, {"domain": 1, "ways": 2, "mask": "3"}],
            "external": True,
        },
    ],
    "notes": ["shop gets 4 of 6 ways in domain 0"],
}


@pytest.mark.parametrize(
    ("tick", "shown"),
    [
        ({"libvirt_connected": True}, "connected"),
        ({"libvirt_connected": True, "discovery_age_s": 12.3}, "connected, listed 12 s ago"),
        ({"libvirt_connected": False, "discovery_age_s": 95.0}, "not connected, listed 95 s ago"),
        ({}, "not connected"),
    ],
)
def test_how_fresh_the_list_of_domains_is(tick: dict[str, Any], shown: str) -> None:
    assert status_commands._libvirt(tick) == shown


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (None, "never"),
        ("2026-03-01T11:59:48Z", "12 s ago"),
        ("2026-03-01T12:00:03Z", "0 s ago"),
        ("2026-03-01T14:00:00Z", "2026-03-01T14:00:00Z, ahead of this clock"),
        ("today", "today"),
    ],
)
def test_no_age_is_below_nothing(moment: str | None, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_commands.time, "time", lambda: datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
    assert status_commands._ago(moment) == shown


def test_a_host_whose_loop_stands_still_is_named() -> None:
    one = host(None)
    assert not any("no tick" in line for line in status_commands._warnings([one]))
    one["tick"]["stalled_s"] = 34.6
    assert "kvm1: no tick for 35 s: nothing is controlled; see its events" in status_commands._warnings([one])


def test_a_host_whose_power_is_measured_says_so() -> None:
    one = host(None)
    assert status_commands._power(one) == ""
    assert status_commands._power(one | {"tick": None}) == ""
    one["tick"]["power"] = {"package_watts": 140.0, "dram_watts": 10.0}
    assert status_commands._power(one) == "kvm1: processors and memory draw 150.0 W (RAPL), of it 100.0 W idle"
    one["costs"] = {"idle_percent": 0}
    assert status_commands._power(one).endswith("of it 0.0 W idle")


def test_vms_have_a_column_of_power_where_any_has_it() -> None:
    plain, powered, stopped = vm(None), vm(None) | {"power_watts": 12.34}, vm(None) | {"status": None}
    assert "power" not in [str(column.header) for column in status_commands._vms_table([plain]).columns]
    table = status_commands._vms_table([plain, powered, stopped])
    [power] = [column for column in table.columns if str(column.header) == "power"]
    assert [str(cell) for cell in power.cells] == ["-", "12.3 W", ""]


def test_a_vm_with_one_full_vcpu_is_named() -> None:
    one = host(None)
    assert list(status_commands._busy_vcpus(one)) == []
    one["tick"]["busy_vcpus"] = [
        {"vm": "web", "used": [0.97, 0.05], "waited": [0.01, 0.0]},
        {"vm": "all-full", "used": [0.97, 0.5], "waited": [0.01, 0.5]},
        {"vm": "none-full", "used": [0.8, 0.0], "waited": [0.0, 0.0]},
    ]
    assert list(status_commands._busy_vcpus(one)) == [
        "kvm1: web has a full vCPU beside idle ones (use + vCPU wait: 0: 97 % + 1 %, 1: 5 % + 0 %)"
    ]


def test_a_divided_cache() -> None:
    one = host(None)
    assert list(status_commands._caches([one, one | {"tick": None}])) == []
    one["tick"]["cache"] = CACHE
    assert list(status_commands._caches([one])) == [
        "kvm1: cache of all else: 8 ways (ff0) in domain 0",
        "kvm1: cache of batch: ",
        "kvm1: cache of shop: 4 ways (f) in domain 0, 2 ways (3) in domain 1 (externally modified)",
        "kvm1: shop gets 4 of 6 ways in domain 0",
    ]


def test_what_vms_have_of_the_cache_and_of_memory() -> None:
    held = {"name": "equipoise-+held", "applications": [], "parts": [], "external": False, "bandwidth": "30 %"}
    part = {"domain": 0, "occupancy_bytes": 3 << 20, "bandwidth_total_bytes_per_s": 12.34e9}
    unknown = {"occupancy_bytes": None, "bandwidth_total_bytes_per_s": None, "bandwidth_local_bytes_per_s": None}
    memory = {"domain": 0, "bandwidth_bytes_per_s": 19e9, "maximum_bytes_per_s": 20e9, "saturated": True}
    one = host(None)
    one["tick"]["cache"] = {
        "groups": [held],
        "notes": [],
        "memories": [
            memory,
            memory | {"domain": 1, "maximum_bytes_per_s": None, "saturated": False},
            memory | {"domain": 2, "bandwidth_bytes_per_s": None},
        ],
        "vms": [{"vm": "hog", "parts": [part | {"bandwidth_local_bytes_per_s": 12e9}, {"domain": 1} | unknown]}],
    }
    assert list(status_commands._caches([one])) == [
        "kvm1: cache of held: , memory bandwidth held to 30 %",
        "kvm1: memory of domain 0: 19 GB/s, at most 20 measured FULL",
        "kvm1: memory of domain 1: 19 GB/s",
        "kvm1: hog has 3 MiB of the cache, 12.3 GB/s of memory, 12 of them local in domain 0",
    ]


@pytest.mark.parametrize(
    ("told", "one", "said", "unsaid"),
    [
        (
            WARP,
            vm(13_288, knob("slice", "100000", original="0", owned=True)),
            ["warps of 1 VM by slice (it was set and read back): it can do this; it cannot do that", "13,288 us"],
            ["modified"],
        ),
        (
            WARP,
            vm(None, knob("slice", "5000000", external=True)),
            ["vCPU 0 slice: 5,000,000 ns (externally modified)"],
            ["13,288"],
        ),
        (None, vm(None), [], ["warp"]),
        (
            None,
            vm(
                None,
                knob("scheduling", "1002", original="0", owned=True),
                knob("rt_runtime", "300000", original="0", owned=True),
            ),
            [
                "vCPU 0 scheduling: fifo 2 (was nice 0)",
                "group 0 real-time limit: 300,000 us a second (was 0 us a second)",
            ],
            ["modified"],
        ),
        (None, vm(None, knob("scheduling", "0"), knob("rt_runtime", "0")), [], ["nice", "real-time"]),
    ],
)
def test_warps(
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any] | None,
    one: dict[str, Any],
    said: list[str],
    unsaid: list[str],
) -> None:
    lists = {"/hosts": [host(told)], "/vms": [one], "/applications": [], "/events": []}

    def handle(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        return httpx.Response(200, json={"items": lists[path], "next": None})

    client = ManagerClient("http://manager", "", Wire(handle))
    monkeypatch.setattr(status_commands, "connect", lambda _settings: client)
    result = CliRunner().invoke(main, ["status"], env={"COLUMNS": "200"})
    client.close()
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert all(" ".join(words.split()) in text for words in said), result.output
    assert not any(words in text for words in unsaid), result.output


def test_the_time_of_an_application_is_that_of_its_slas_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = {
        "name": "shop",
        "sla": {"percentile": 99, "response_time_ms": 80},
        "sla_state": "violated",
        "window": {"p95_ms": 40.0, "p99_ms": 90.0, "rate_rps": 5.0},
        "measured_percentile": 99.0,
        "measured_ms": 90.0,
        "sources": [],
        "tiers": [],
    }
    lists = {
        "/hosts": [],
        "/vms": [],
        "/applications": [shop, shop | {"window": None, "measured_ms": None}],
        "/events": [],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"items": lists[request.url.path.removeprefix("/api/v1")], "next": None})

    client = ManagerClient("http://manager", "", Wire(handle))
    monkeypatch.setattr(status_commands, "connect", lambda _settings: client)
    result = CliRunner().invoke(main, ["status"], env={"COLUMNS": "200"})
    client.close()
    assert result.exit_code == 0, result.output
    assert "p99 90 ms" in result.output
    assert "40 ms" not in result.output


def test_what_the_policy_of_each_host_does_for_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
    monkeypatch.setattr(status_commands.time, "time", lambda: now_s)
    text = "Nothing is needed."
    each = {"host": "kvm1", "policy": "auto", "at": "2026-03-01T11:59:58Z", "text": text}
    shop = {"name": "shop", "explanations": [each, each | {"host": "kvm2", "policy": "doubling"}]}
    older = {"name": "of-an-older-manager"}
    first = f"shop on kvm1, policy auto: {text} (2 s ago)"
    second = f"shop on kvm2, policy doubling: {text} (2 s ago)"
    assert list(status_commands._explanations([shop, older], "")) == [first, second]
    assert list(status_commands._explanations([shop, older], "kvm1")) == [first]


def test_a_second_agent_that_was_refused_is_shown() -> None:
    warned = status_commands._warnings([host(None) | {"rival_instance": "2222"}])
    assert warned == ["kvm1: a second agent, 2222, was refused; `equipoise host replace kvm1` prefers it"]
    assert status_commands._warnings([host(None) | {"rival_instance": None}]) == []


def test_what_was_refused_of_reports_is_shown_once_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC).isoformat()

    def event(host: str, message: str) -> dict[str, Any]:
        return {"host": host, "at": now, "message": message}

    events = {
        "items-refused": [event("kvm1", "the newest"), event("kvm1", "one before"), event("kvm2", "of another")],
        "host-renamed": [event("kvm1", "this host was kvm0")],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        found = events[request.url.params["kind"]] if request.url.path.endswith("/events") else []
        return httpx.Response(200, json={"items": found, "next": None})

    client = ManagerClient("http://manager", "", Wire(handle))
    monkeypatch.setattr(status_commands, "connect", lambda _settings: client)
    result = CliRunner().invoke(main, ["status"], env={"COLUMNS": "200"})
    client.close()
    assert result.exit_code == 0, result.output
    lines = [line.partition(" (")[0] for line in result.output.splitlines() if line.startswith("kvm")]
    assert lines == ["kvm1: this host was kvm0", "kvm1: the newest", "kvm2: of another"]


def test_batch_vms_have_a_table_of_their_own() -> None:
    fares = {"got_pcpus": 0.5, "would_pcpus": 1.0, "alone_by": "learnt", "slowdown": 2.0, "too_slow": False}
    job = {"deadline": "2026-03-01T13:00:00Z", "cpu_seconds": 900.0, "max_slowdown": 3.0}
    due = fares | {"state": "at_risk", "done_cpu_s": 90.0, "needed_pcpus": 0.75}
    idle = fares | {"slowdown": None, "state": None, "too_slow": True}
    table = batch_table(
        [
            {"name": "render", "status_host": "kvm1", "batch": due, "job": job},
            {"name": "idle", "status_host": "kvm1", "batch": idle, "job": None},
            {"name": "web", "status_host": "kvm1", "batch": None},
        ]
    )
    assert table is not None
    assert [[str(cell) for cell in column.cells] for column in table.columns][3:] == [
        ["1.00 (learnt)", "1.00 (learnt)"],
        ["50 %", "no work"],
        ["2.00 of 3", "- TOO SLOW"],
        ["2026-03-01T13:00:00Z AT RISK: 90 of 900 CPU seconds, needs 0.75 pCPUs", "-"],
    ]
    assert batch_table([{"name": "web", "batch": None}]) is None


@pytest.mark.parametrize(
    ("since", "asked"),
    [
        ("2h", "2026-03-01T10:00:00+00:00"),
        ("2026-03-01T09:00:00+01:00", "2026-03-01T08:00:00+00:00"),
        ("1960-01-01T00:00:00Z", "1970-01-01T00:00:00+00:00"),
    ],
)
def test_decisions_since_a_time_or_for_a_length_of_it(since: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.params["since"] == asked
        return httpx.Response(200, json={"items": [], "next": None})

    client = ManagerClient("http://manager", "", Wire(handle))
    monkeypatch.setattr(status_commands, "connect", lambda _settings: client)
    monkeypatch.setattr("time.time", datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp)
    result = CliRunner().invoke(main, ["decisions", "--since", since])
    assert result.exit_code == 0, result.output


def test_decisions_since_what_is_no_time_are_refused() -> None:
    result = CliRunner().invoke(main, ["decisions", "--since", "yesterday", "--manager-url", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "'yesterday' is refused: use up to 3650d, such as 90s, 10m or 1h" in result.output
