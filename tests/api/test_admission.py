"""May a VM come? Over the interface and by `equipoise fits`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.api import admission_routes
from manager.cli import fits_command, main
from manager.protocol.client import Answer, ManagerClient
from manager.sim.twin import Effort
from tests.api.conftest import CAPABILITIES, HOST, Api, report, status, tick, tick_of
from tests.api.sweeping import InProcess
from tests.sim.test_twin import recording, truth

PATH = f"/hosts/{HOST}/admission"
BATCH = {"class": "batch", "vcpus": 2}


def use(name: str, share: float) -> dict[str, Any]:
    return {"vm": name, "cpu_share": share, "run_delay_share": 0.0, "weight": 100, "mode": "enforce"}


@pytest.fixture
def site(shop: Api) -> Api:
    """``web-1`` and ``hog`` on a host of four pCPUs for a minute, and ``render`` and ``web-2`` on another one."""
    api = shop
    api.ok("PUT", "/hosts/kvm2", {})
    for name, vm_class in (("hog", "batch"), ("render", "batch"), ("web-2", "critical")):
        api.ok("PUT", f"/vms/{name}", {"class": vm_class})
    tiers = [{"name": "web", "vms": ["web-1", "web-2"]}]
    api.ok("PATCH", "/applications/shop", {"tiers": tiers})
    ticks = [tick_of(end, vms=[use("web-1", 0.2), use("hog", 0.5)]) for end in range(-60, 0, 5)]
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1"), status("hog", vcpus=2)], ticks=ticks))
    fares = {
        "vm": "render",
        "got_pcpus": 0.5,
        "wants_pcpus": 2.0,
        "would_pcpus": 1.0,
        "slowdown": 2.0,
        "alone_by": "learnt",
        "alone_pcpus": 1.5,
    }
    vms = [status("render", vcpus=2), status("web-2", cpu_share=0.1, run_delay_share=0.2)]
    api.ok("POST", "/hosts/kvm2/report", report(vms=vms, tick=tick(batch_vms=[fares])), role="other host")
    return api


@pytest.fixture
def simulated(site: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(admission_routes, "recorded", lambda *_: recording(truth()))
    monkeypatch.setattr(admission_routes, "MAX_ADMISSION_S", 3600.0)
    monkeypatch.setattr(admission_routes, "TWIN_EFFORT", Effort(requests=3000, seeds=2))
    return site


def test_without_enough_history_it_says_what_is_missing_and_counts(site: Api) -> None:
    found = site.ok("POST", PATH, BATCH, role="viewer")
    assert (found["verdict"], found["simulated"], found["applications"]) == ("unsure", False, [])
    [missing] = found["missing"]
    assert "record 240 s or more under one policy" in missing
    assert found["reasons"] == [f"not known: {missing}"]
    assert found["consolidation"] == {
        "pcpus": 4,
        "critical_without": 0.2,
        "critical_with": 0.2,
        "total_without": 0.7,
        "total_with": 1.2,
    }


def test_critical_vms_that_want_more_than_there_is_do_not_fit(site: Api) -> None:
    found = site.ok("POST", PATH, {"class": "critical", "vcpus": 4})
    assert found["verdict"] == "no"
    assert "critical VMs would want 4.80 of 4 pCPUs" in found["reasons"][0]


def test_what_a_vm_wants_that_serves_like_others_is_not_guessed(site: Api) -> None:
    found = site.ok("POST", PATH, {"class": "critical", "vcpus": 4, "like": "shop", "rate_rps": 5})
    assert (found["verdict"], found["vm"]["wants_pcpus"]) == ("unsure", None)
    assert (found["consolidation"]["critical_without"], found["consolidation"]["critical_with"]) == (0.2, None)


def test_what_takes_too_long_to_simulate_is_for_the_command(simulated: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_routes, "MAX_ADMISSION_S", 0.0)
    [missing] = simulated.ok("POST", PATH, BATCH)["missing"]
    assert missing.endswith("use `equipoise record` and `equipoise sim fits`")


def test_a_host_of_which_no_pcpu_is_known_is_unsure(site: Api) -> None:
    capabilities = CAPABILITIES | {"online_cpus": "", "managed_cpus": ""}
    site.ok("POST", f"/hosts/{HOST}/report", report(capabilities=capabilities, vms=[status("web-1")]))
    found = site.ok("POST", PATH, BATCH)
    assert (found["verdict"], found["consolidation"], found["tables"]) == ("unsure", None, [])


def test_a_host_without_history_is_unsure(site: Api) -> None:
    site.clock.now_s += 7200
    found = site.ok("POST", PATH, BATCH)
    assert (found["verdict"], found["consolidation"]) == ("unsure", None)
    assert "no ticks of the last 60 minutes" in found["missing"][0]
    site.ok("PUT", "/hosts/new", {})
    assert "never reported" in site.ok("POST", "/hosts/new/admission", BATCH)["missing"][0]
    site.refused(404, "POST", "/hosts/nowhere/admission", BATCH)


@pytest.mark.parametrize(
    ("vm", "judged"),
    [
        ("render", {"class": "batch", "vcpus": 2, "wants_pcpus": 1.5}),
        ("web-2", {"class": "critical", "vcpus": 1, "wants_pcpus": 0.6}),
    ],
)
def test_a_registered_vm_is_known(site: Api, vm: str, judged: dict[str, Any]) -> None:
    found = site.ok("POST", PATH, {"vm": vm})["vm"]
    assert found | judged == found
    assert site.ok("POST", PATH, {"vm": vm, "vcpus": 1, "demand_pcpus": 0.25})["vm"]["wants_pcpus"] == 0.25


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "class", "is required"),
        ({"class": "batch"}, "vcpus", "is required, 1 to 256"),
        ({"vm": "nobody"}, "vm", "no VM named"),
        ({"vm": "hog"}, "vm", "runs on kvm1 already"),
        (BATCH | {"like": "shop"}, "like", "serves no requests"),
        (BATCH | {"rate_rps": 5}, "rate_rps", "without `like`"),
        (BATCH | {"demand_pcpus": 3}, "demand_pcpus", "at most its vCPUs, 2"),
        ({"class": "critical", "vcpus": 1, "like": "shop", "demand_pcpus": 1}, "demand_pcpus", "use rate_rps"),
        (BATCH | {"vcpus": 257}, "vcpus", "at most 256"),
        (BATCH | {"like": "a b"}, "like", "refused"),
        (BATCH | {"policy": "nothing"}, "policy", "allowed: equal, priority"),
    ],
)
def test_what_cannot_be_asked_is_refused(site: Api, body: dict[str, Any], field: str, words: str) -> None:
    [error] = site.refused(422, "POST", PATH, body)["errors"]
    assert error["field"] == field
    assert words in error["message"]


def test_the_twin_predicts_everybody(simulated: Api) -> None:
    found = simulated.ok("POST", PATH, {"class": "critical", "vcpus": 1, "like": "shop", "rate_rps": 5})
    assert (found["simulated"], found["verdict"], found["missing"]) == (True, "yes", []), found["reasons"]
    shop, newcomer = found["applications"]
    assert (shop["application"], newcomer["without"]) == ("shop", None)
    assert shop["without"]["low_ms"] < shop["without"]["ms"] <= shop["with"]["ms"] * 1.05
    assert found["consolidation"]["critical_with"] > found["consolidation"]["critical_without"]
    assert found["vm"]["like"] == "shop"


def test_a_vm_like_none_here_is_judged_by_what_it_wants(simulated: Api) -> None:
    found = simulated.ok("POST", PATH, {"class": "critical", "vcpus": 1, "like": "blog"})
    assert found["vm"]["like"] is None
    assert found["missing"] == [f"response times of the VM itself: {HOST} has no predicted application or tier blog"]
    assert found["verdict"] == "no"


@pytest.fixture
def run(site: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def connect(_settings: object, answer_s: float) -> ManagerClient:
        assert answer_s > 10
        return ManagerClient("http://manager", "", InProcess(site))

    monkeypatch.setattr(fits_command, "connect", connect)
    return lambda *arguments: CliRunner().invoke(main, ["fits", *arguments])


def test_the_command_shows_verdict_and_factors(run: Callable[..., Result]) -> None:
    result = run("render", "--host", HOST)
    assert result.exit_code == 0, result.output
    assert f"{HOST}: unsure, by arithmetic alone" in result.output
    assert "critical 0.20, with it 0.20; total 0.70, with it 1.07 (of 4 pCPUs)" in result.output
    assert json.loads(run("render", "--host", HOST, "--json").stdout)["vm"]["vm"] == "render"


def test_the_fleet_leaves_out_where_it_runs(run: Callable[..., Result]) -> None:
    found = json.loads(run("render", "--fleet", "--json").stdout)
    assert ([each["host"] for each in found["hosts"]], found["best"]) == ([HOST], None)
    both = json.loads(run("new", "--class", "critical", "--vcpus", "4", "--fleet", "--json").stdout)
    assert [(each["host"], each["verdict"]) for each in both["hosts"]] == [("kvm2", "unsure"), (HOST, "no")]
    assert "No host is known to have room for render." in run("render", "--fleet").output


def _hang(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let the manager not answer in time for these hosts."""
    exchange = InProcess.exchange

    def hanging(network: InProcess, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        if any(f"/hosts/{host}/admission" in target for host in hosts):
            raise TimeoutError("timed out")
        return exchange(network, method, target, headers, body)

    monkeypatch.setattr(InProcess, "exchange", hanging)


def test_a_host_without_an_answer_is_told_beside_the_others(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("new", "--class", "critical", "--vcpus", "4", "--fleet", "--json")
    _hang(monkeypatch, HOST)
    result = run(*asked)
    assert result.exit_code == 0, result.output
    judged, silent = json.loads(result.stdout)["hosts"]
    assert (judged["host"], judged["verdict"], silent["host"]) == ("kvm2", "unsure", HOST)
    assert "does not answer: timed out" in silent["error"]
    _hang(monkeypatch, HOST, "kvm2")
    result = run(*asked)
    assert (result.exit_code, len(json.loads(result.stdout)["hosts"])) == (1, 2)
    assert "no host was judged" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["render", "--host", HOST, "--fleet"], "--host does not go with --fleet"),
        (["render"], "there are 2 hosts: choose one with --host"),
        (["unknown", "--host", HOST], "'unknown' is not registered: say what it is with --class and --vcpus"),
        (["hog", "--host", HOST], "runs on kvm1 already"),
    ],
)
def test_what_the_command_cannot_ask(run: Callable[..., Result], arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--vcpus", "2", "--demand", "3"], "--demand 3 is refused: use 0.01 to 2"),
        (["--class", "batch", "--like", "shop"], "--like shop is refused with --class batch"),
        (["--demand", "1", "--like", "shop"], "--demand 1 is refused with --like"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    monkeypatch.setattr(fits_command, "connect", lambda *_, **__: pytest.fail("the manager is asked"))
    result = CliRunner().invoke(main, ["fits", "new", *options, "--fleet"])
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_the_best_comes_first() -> None:
    def answer(host: str, verdict: str, high_ms: float | None, total: float) -> dict[str, Any]:
        apps = [] if high_ms is None else [{"with": {"high_ms": high_ms}, "target_ms": 10.0}]
        return {"host": host, "verdict": verdict, "applications": apps, "consolidation": {"total_with": total}}

    dead = answer("dead", "no", 1.0, 0.1)
    dead["applications"].append({"with": None, "target_ms": 10.0})
    given = [
        {"host": "broken", "error": "x"},
        dead,
        answer("full", "no", 5.0, 0.1),
        answer("tight", "yes", 9.0, 0.2),
        answer("unknown", "unsure", None, 0.2),
        answer("busy", "yes", 5.0, 2.0),
        answer("calm", "yes", 5.0, 1.0),
    ]
    order = ["calm", "busy", "tight", "unknown", "full", "dead", "broken"]
    assert [each["host"] for each in fits_command.best_first(given)] == order
