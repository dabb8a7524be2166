"""`equipoise savings` against the interface: what hosts used, as agents reported it."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import costs_command, main, savings_command
from manager.control.savings import CostModel
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, Api, report, status, tick_of
from tests.api.sweeping import InProcess

TICKS = 100
WATTS = 143.0


@pytest.fixture
def api(sqlite_api: Api) -> Api:
    """A host that critical VMs use by a tenth and batch VMs by 80 %, one with half of that, and one that never ran.

    The energy of the first is measured.
    """
    for host, part in ((HOST, 1.0), ("kvm2", 0.5), ("new", None)):
        sqlite_api.ok("PUT", f"/hosts/{host}", {})
        names = (f"web-{host}", f"hog-{host}")
        for name, kind in zip(names, ("critical", "batch"), strict=True):
            sqlite_api.ok("PUT", f"/vms/{name}", {"class": kind, "host": host})
        if part is not None:
            shares = zip(names, (0.1 * part, 0.8 * part), strict=True)
            vms = [
                {"vm": name, "cpu_share": share, "run_delay_share": 0.0, "weight": 100, "mode": "enforce"}
                for name, share in shares
            ]
            watts = {"power_watts": WATTS} if host == HOST else {}
            ticks = [tick_of(-5 * number, vms=vms, host_cpu_share=0.95 * part, **watts) for number in range(TICKS)]
            body = report(vms=[status(name) for name in names], ticks=ticks[::-1])
            sqlite_api.ok("POST", f"/hosts/{host}/report", body)
    return sqlite_api


@pytest.fixture
def run(api: Api, monkeypatch: pytest.MonkeyPatch) -> Any:
    for command in (savings_command, costs_command):
        monkeypatch.setattr(command, "connect", lambda _settings: ManagerClient("http://manager", "", InProcess(api)))
    monkeypatch.setattr(savings_command.time, "time", api.clock)

    def invoke(*arguments: str) -> Result:
        command = () if arguments[:1] == ("host",) else ("savings", "--since", "1h")
        return CliRunner().invoke(main, [*command, *arguments])

    return invoke


def test_hosts_and_their_fleet(run: Any) -> None:
    body = json.loads(run("--json").stdout)
    hosts = {host["host"]: host for host in body["hosts"]}
    assert set(hosts) == {HOST, "kvm2"}, "nothing is known of the new one"
    model, full = CostModel(), hosts[HOST]
    assert full["hours"] == pytest.approx(TICKS * 5 / 3600, rel=0.02)
    assert (full["utilisation"], full["critical"], full["saved_servers"]) == pytest.approx((0.95, 0.1, 0.8))
    apart_usd = model.tco_usd(0.15) + 0.8 * model.tco_usd(1.0)
    assert full["gain"] == pytest.approx(apart_usd / model.tco_usd(0.95) - 1)
    assert body["fleet"]["servers"] == 2
    assert body["fleet"]["saved_servers"] == pytest.approx(1.2)


def test_of_a_long_time_only_what_was_measured_counts(run: Any) -> None:
    own = json.loads(run("--since", "30d", "--json").stdout)["hosts"][0]
    assert own["hours"] == pytest.approx(TICKS * 5 / 3600, rel=0.02)
    assert own["energy_kwh"] == pytest.approx(WATTS / 1000 * own["hours"])


def test_a_table_of_what_is_calculated(run: Any) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "Savings (model)" in result.output
    assert "0.80 of 1" in result.output
    assert "1.20 of 2" in result.output
    assert "Batch VMs did the work of 1.20 servers" in result.output
    text = " ".join(result.output.split())
    assert "Costs are calculated from CPU use, not measured. Energy that is measured (RAPL)" in text
    assert "Costs and energy are calculated from CPU use, not measured." in run("--host", "kvm2").output


def test_energy_is_measured_where_it_can_be(run: Any) -> None:
    body = json.loads(run("--json").stdout)
    own, other = body["hosts"]
    assert (own["energy_source"], other["energy_source"], body["fleet"]["energy_source"]) == ("rapl", "model", "mixed")
    assert own["energy_kwh"] == pytest.approx(WATTS / 1000 * own["hours"])
    assert other["energy_kwh"] == pytest.approx(CostModel().power_kw(0.475) * other["hours"])
    assert body["fleet"]["energy_kwh"] == pytest.approx(own["energy_kwh"] + other["energy_kwh"])
    assert [row["energy_source"] for row in csv.DictReader(run("--csv").stdout.splitlines())] == [
        "rapl",
        "model",
        "mixed",
    ]


def test_csv(run: Any) -> None:
    rows = list(csv.DictReader(run("--csv").stdout.splitlines()))
    assert [row["host"] for row in rows] == [HOST, "kvm2", "all hosts"]
    assert float(rows[0]["saved_servers"]) == pytest.approx(0.8)
    described = CliRunner().invoke(main, ["savings", "--help"]).output.partition("the lines as CSV: ")[2]
    words = re.sub(r"\s*\([^)]*\)", "", described.partition(". Exit")[0])
    assert re.split(r",\s+", words) == list(rows[0]), "the help names the columns in their order"


def test_prices_of_ones_own(run: Any) -> None:
    body = json.loads(run("--json", "--host", HOST, "--server-usd", "0", "--idle-percent", "0").stdout)
    assert body["fleet"]["gain"] == pytest.approx(0, abs=1e-9), "power that grows with use alone saves nothing"
    assert body["hosts"][0]["costs"]["server_usd"] == 0


def test_each_host_counts_by_its_own_costs(run: Any) -> None:
    assert run("host", "costs", HOST, "--server-usd", "6500", "--peak-watts", "550").exit_code == 0
    body = json.loads(run("--json").stdout)
    own, other = (host for host in body["hosts"])
    model = CostModel(server_usd=6500, peak_kw=0.55)
    assert own["together_usd_per_year"] == pytest.approx(model.tco_usd(0.95) / 3)
    assert other["together_usd_per_year"] == pytest.approx(CostModel().tco_usd(0.475) / 3)
    together_usd = own["together_usd_per_year"] + other["together_usd_per_year"]
    assert body["fleet"]["together_usd_per_year"] == pytest.approx(together_usd)
    text = " ".join(run().output.split())
    assert f"{HOST}: a server: $6,500 over 3 years, 550 W when full" in text
    assert "kvm2: a server: $2,000 over 3 years, 300 W when full" in text


def test_costs_of_a_host_are_shown_set_and_reset(run: Any) -> None:
    shown = json.loads(run("host", "costs", HOST, "--json").stdout)
    assert (shown["server_usd"], shown["cooling_factor"]) == (2000, 0.8)
    run("host", "costs", HOST, "--server-usd", "6500", "--years", "5")
    run("host", "costs", HOST, "--cooling-factor", "0.2")
    shown = json.loads(run("host", "costs", HOST, "--json").stdout)
    assert (shown["server_usd"], shown["years"], shown["cooling_factor"]) == (6500, 5, 0.2), "the others stay"
    shown = json.loads(run("host", "costs", HOST, "--reset", "--years", "4", "--json").stdout)
    assert (shown["server_usd"], shown["years"], shown["cooling_factor"]) == (2000, 4, 0.8)
    assert "server_usd" in run("host", "costs", HOST).output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--host", "new"), 1, "no CPU use was measured in that time"),
        (("--host", "gone"), 1, "there is no host named 'gone'"),
        (("--years", "0"), 2, "0.1<=x<=20"),
        (("--years", "nan"), 2, "0.1<=x<=20"),
        (("host", "costs", HOST, "--idle-percent", "101"), 2, "0<=x<=100"),
        (("host", "costs", "gone", "--years", "4"), 1, "there is no host named 'gone'"),
        (("--csv", "--json"), 2, "--csv does not go with --json"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output
