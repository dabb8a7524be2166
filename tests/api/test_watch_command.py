"""`equipoise watch`: what it registers of a service that an agent reported."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from manager.cli import main, watch_command
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, Api, notice_silence, report, status
from tests.fakes.manager import Wire

UUID = status("shop-web")["libvirt_uuid"]


@pytest.fixture
def api(sqlite_api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A VM that runs and serves, and the command as an operator's."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = sqlite_api.app.test_client().open(
            str(request.url.raw_path, "ascii"),
            method=request.method,
            data=request.content,
            headers=dict(request.headers),
            buffered=True,
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.data)

    secret = sqlite_api.secrets["operator"]
    monkeypatch.setattr(
        watch_command, "connect", lambda _settings: ManagerClient("http://manager", secret, Wire(handle))
    )
    sqlite_api.ok("PUT", "/vms/shop-web", {"class": "critical", "host": HOST})
    seen(sqlite_api)
    return sqlite_api


def seen(api: Api, problem: str = "", **changes: Any) -> None:
    """The agent reports the VM's service."""
    service = {
        "libvirt_uuid": UUID,
        "port": 80,
        "protocol": "http",
        "protocol_share": 1.0,
        "rate_rps": 48.2,
        "p50_ms": 1.3,
        "p95_ms": 1.9,
        "p99_ms": 3.0,
        "error_share": 0.0,
        "since": "2026-03-01T11:58:05Z",
        "window_s": 45.0,
    }
    domains = [{"libvirt_name": "shop-web", "libvirt_uuid": UUID}]
    services = {"services": [service | changes], "problem": problem}
    body = report(vms=[status("shop-web")], domains=domains, services=services)
    api.ok("POST", f"/hosts/{HOST}/report", body, role="host")


def watch(*words: str) -> Result:
    return CliRunner().invoke(main, ["watch", "--manager-url", "http://manager", *words])


def test_application_sla_and_source_are_registered_at_once(api: Api) -> None:
    done = watch("shop-web:80")
    assert done.exit_code == 0, done.output
    made = api.ok("GET", "/applications/shop")
    assert made["tiers"] == [{"name": "web", "vms": ["shop-web"]}]
    assert (made["sla"]["percentile"], made["sla"]["response_time_ms"], made["mode"]) == (95, 10, "observe")
    assert [(one["type"], one["port"]) for one in made["sources"]] == [("tap", 80)]
    assert "application shop is registered: tier web with VM shop-web, p95 <= 10 ms" in done.output
    assert "three times the measured p95, 1.9 ms over the last 45 s at 48.2 req/s" in done.output
    assert "undo: DELETE http://manager/api/v1/applications/shop" in done.output
    again = watch("shop-web:80")
    assert (again.exit_code, "serves application shop already" in again.output) == (1, True)


def test_the_port_may_be_an_option(api: Api) -> None:
    by_argument = json.loads(watch("shop-web:80", "--dry-run", "--json").stdout)
    assert json.loads(watch("shop-web", "--tap", "80", "--dry-run", "--json").stdout) == by_argument
    assert watch("shop-web", "--tap", "80").exit_code == 0
    assert [(one["type"], one["port"]) for one in api.ok("GET", "/applications/shop")["sources"]] == [("tap", 80)]


def test_the_port_is_named_once(api: Api) -> None:
    refused = watch("shop-web:80", "--tap", "80")
    assert (refused.exit_code, "name the port once: VM:PORT, or VM --tap PORT" in refused.output) == (2, True)
    assert api.ok("GET", "/applications")["items"] == []


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", ""])
def test_an_option_that_is_no_port_is_refused(port: str) -> None:
    assert watch("shop-web", "--tap", port).exit_code == 2


def test_a_port_that_nobody_serves_is_told(api: Api) -> None:
    """A target of one's own needs no response times, and a service may start later."""
    done = watch("shop-web", "--tap", "8080", "--p95-ms", "2")
    assert done.exit_code == 0, done.output
    assert f"no data yet: the agent of host {HOST} has seen no service at port 8080 of VM shop-web; seen are 80" in (
        done.output
    )
    assert "no data yet" not in watch("shop-web", "--tap", "80", "--p95-ms", "2", "--dry-run").output


def test_a_target_of_ones_own_needs_no_measured_one(api: Api) -> None:
    seen(api, p50_ms=None, p95_ms=None, p99_ms=None)
    refused = watch("shop-web:80")
    assert refused.exit_code == 1
    assert "no response time of port 80 of VM shop-web was measured in the last 45 s" in refused.output
    body = json.loads(watch("shop-web:8080", "--p95-ms", "2.5", "--json").stdout)
    assert (body["application"], body["measured"], body["dry_run"]) == ("shop", None, False)
    assert "has seen no service at port 8080" in body["not_seen"]
    assert api.ok("GET", "/applications/shop")["sla"]["response_time_ms"] == 2.5
    assert api.ok("GET", "/applications/shop")["sources"][0]["port"] == 8080


def test_a_target_is_derived_from_the_quietest_half_minute(api: Api) -> None:
    """A neighbour is busy now."""
    seen(api, p95_ms=90.0, quiet_p95_ms=1.9)
    done = watch("shop-web:80")
    assert (done.exit_code, api.ok("GET", "/applications/shop")["sla"]["response_time_ms"]) == (0, 10)
    assert "target: three times the lowest p95 of half a minute so far, 1.9 ms, rounded up" in done.output


def test_a_dry_run_registers_nothing(api: Api) -> None:
    done = watch("shop-web:80", "--dry-run")
    assert "application shop would be registered" in done.output
    assert "undo" not in done.output
    body = json.loads(watch("shop-web:80", "--dry-run", "--json").stdout)
    assert body["registration"]["sla"]["response_time_ms"] == 10
    assert body["measured"]["p95_ms"] == 1.9
    assert api.ok("GET", "/applications")["items"] == []


def test_a_batch_vm_is_measured_but_not_protected(api: Api) -> None:
    api.ok("PATCH", "/vms/shop-web", {"class": "batch"})
    assert "it is measured, but not protected" in watch("shop-web:80", "--dry-run").output


def test_a_service_that_was_not_seen_is_named_with_what_was(api: Api) -> None:
    refused = watch("shop-web:443")
    assert refused.exit_code == 1
    assert "has seen no service at port 443 of VM shop-web; seen are 80" in refused.output
    assert "--p95-ms" in refused.output
    seen(api, "Linux 6.6 or newer is needed", port=81)
    assert "seen are 81: Linux 6.6 or newer is needed" in watch("shop-web:80").output


def test_a_vm_that_is_not_there_or_does_not_run(api: Api) -> None:
    assert "there is no VM named 'ghost', and no agent reports that domain ghost runs" in watch("ghost:80").output
    api.ok("PUT", "/vms/idle", {"class": "critical"})
    refused = watch("idle:80")
    assert (refused.exit_code, "no agent reports that VM idle runs" in refused.output) == (1, True)


def test_a_domain_that_nobody_registered_is_registered_with_it(api: Api) -> None:
    api.ok("DELETE", "/vms/shop-web", headers={"If-Match": "*"})
    seen(api)
    done = watch("shop-web:80", "--dry-run")
    assert "VM shop-web would be registered: critical" in done.output
    assert api.ok("GET", "/vms")["items"] == []
    done = watch("shop-web:80")
    assert done.exit_code == 0, done.output
    assert "VM shop-web is registered: critical; /vms/shop-web likewise undoes that" in done.output
    assert api.ok("GET", "/vms/shop-web")["class"] == "critical"
    assert api.ok("GET", "/applications/shop")["mode"] == "observe"


def test_a_host_that_fell_silent_does_not_run_what_another_reports(api: Api) -> None:
    """The domain came from there, as when a host failed."""
    api.ok("DELETE", "/vms/shop-web", headers={"If-Match": "*"})
    seen(api)
    other = report(domains=[{"libvirt_name": "shop-web", "libvirt_uuid": UUID}])
    api.ok("POST", "/hosts/kvm2/report", other)
    refused = watch("shop-web:80")
    assert f"domains named shop-web run on hosts {HOST}, kvm2: register the one that is meant" in refused.output
    api.clock.now_s += 60
    seen(api)
    notice_silence(api)
    done = watch("shop-web:80")
    assert done.exit_code == 0, done.output
    assert "application shop is registered: tier web with VM shop-web" in done.output


def test_both_are_registered_or_none(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.ok("DELETE", "/vms/shop-web", headers={"If-Match": "*"})
    seen(api)
    monkeypatch.setattr(watch_command, "application_names", lambda *_: ("no name", "web"))
    refused = watch("shop-web:80")
    assert refused.exit_code == 1
    assert api.ok("GET", "/vms")["items"] == []


def test_a_vm_that_was_registered_only_just_is_found_by_its_domain(api: Api) -> None:
    """Its agent has not reported it as registered yet."""
    api.ok("DELETE", "/vms/shop-web", headers={"If-Match": "*"})
    seen(api)
    api.ok("PUT", "/vms/shop-web", {"class": "critical"})
    assert watch("shop-web:80").exit_code == 0


@pytest.mark.parametrize("given", ["shop-web", "shop-web:", ":80", ":", "web:0", "web:65536", "a b:80", "web:x"])
def test_what_is_no_vm_and_port_is_refused(given: str) -> None:
    refused = watch(given)
    assert refused.exit_code == 2
    assert "use the name of a VM and a port, 1 to 65535" in " ".join(refused.output.split())


@pytest.mark.parametrize("target", ["0", "-1", "100001", "soon"])
def test_a_target_that_no_sla_has_is_refused(target: str) -> None:
    assert watch("shop-web:80", "--p95-ms", target).exit_code == 2
