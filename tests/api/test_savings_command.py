"""`equipoise savings` against the interface: what hosts used, as agents reported it."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, savings_command
from manager.control.savings import CostModel
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, Api, report, status, tick_of
from tests.api.sweeping import InProcess

TICKS = 100


@pytest.fixture
def api(sqlite_api: Api) -> Api:
    """A host that critical VMs use by a tenth and batch VMs by 80 %, one with half of that, and one that never ran."""
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
            ticks = [tick_of(-5 * number, vms=vms, host_cpu_share=0.95 * part) for number in range(TICKS)][::-1]
            body = report(vms=[status(name) for name in names], ticks=ticks)
            sqlite_api.ok("POST", f"/hosts/{host}/report", body)
    return sqlite_api


@pytest.fixture
def run(api: Api, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        savings_command, "connect", lambda _settings: ManagerClient("http://manager", "", InProcess(api))
    )
    monkeypatch.setattr(savings_command.time, "time", api.clock)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["savings", "--since", "1h", *arguments])

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


def test_a_table_of_what_is_calculated(run: Any) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "Savings (model)" in result.output
    assert "0.80 of 1" in result.output
    assert "1.20 of 2" in result.output
    assert "Batch VMs did the work of 1.20 servers" in result.output
    assert "calculated from CPU use, not measured" in result.output


def test_csv(run: Any) -> None:
    rows = list(csv.DictReader(run("--csv").stdout.splitlines()))
    assert [row["host"] for row in rows] == [HOST, "kvm2", "all hosts"]
    assert float(rows[0]["saved_servers"]) == pytest.approx(0.8)


def test_prices_of_ones_own(run: Any) -> None:
    body = json.loads(run("--json", "--host", HOST, "--server-usd", "0", "--idle-percent", "0").stdout)
    assert body["fleet"]["gain"] == pytest.approx(0, abs=1e-9), "power that grows with use alone saves nothing"
    assert body["model"]["server_usd"] == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--host", "new"), 1, "no CPU use was measured in that time"),
        (("--host", "gone"), 1, "there is no host named 'gone'"),
        (("--years", "0"), 2, "0.1<=x<=20"),
        (("--csv", "--json"), 2, "--csv does not go with --json"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output
