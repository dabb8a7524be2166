"""`equipoise profile load` against the interface: a queue whose load comes and goes, with batch VMs and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, profile_load
from manager.cli.load_profile import LoadProfile, remarks
from manager.cli.profile_drive import batch_share
from manager.cli.profile_load import measured
from manager.control.load_curve import LoadStep, by_batch, load_curve
from manager.model.histogram import Histogram
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, START, Api, moment, record, report, status, tick_of, window
from tests.api.sweeping import InProcess

SLOTS = 400
FULL_RPS = 100.0
BESIDE = 1.5
"""Beside batch VMs everything takes so many times as long."""
UUIDS = {name: f"6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a1{place}" for place, name in enumerate(("web-1", "hog"))}


def slow_ms(rate_rps: float, beside: bool) -> float:
    return 4 / (1 - rate_rps / FULL_RPS) * (BESIDE if beside else 1.0)


@pytest.fixture
def api(sqlite_api: Api) -> Api:
    """Five-second slots at 4 to 80 req/s in turn; in the second half of them a batch VM has half of the host."""
    sqlite_api.ok("PUT", f"/hosts/{HOST}", {})
    sqlite_api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    sqlite_api.ok("PUT", "/vms/hog", {"class": "batch", "host": HOST})
    tiers = [{"name": "web", "vms": ["web-1"]}]
    sqlite_api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 13}})
    windows, ticks = [], []
    for number in range(SLOTS):
        end, beside = -5 * number, number < SLOTS // 2
        rate_rps = 4.0 * (number % 20 + 1)
        count = round(5 * rate_rps)
        buckets = Histogram.of([slow_ms(rate_rps, beside) * 1000] * count).buckets
        text = {str(bucket): many for bucket, many in buckets.items()}
        windows.append(window(end=end, count=count, buckets=text))
        vms = [
            {"vm": name, "cpu_share": share, "run_delay_share": 0.0, "weight": 100, "mode": "enforce"}
            for name, share in (("web-1", 0.1), ("hog", 0.5 if beside else 0.0))
        ]
        ticks.append(tick_of(end, vms=vms))
    for place in range(0, SLOTS, 100):
        part = slice(place, place + 100)
        body = report(vms=[status("web-1"), status("hog")], windows=windows[part], ticks=ticks[part][::-1])
        sqlite_api.ok("POST", f"/hosts/{HOST}/report", body)
    return sqlite_api


def client(api: Api) -> ManagerClient:
    return ManagerClient("http://manager", "", InProcess(api))


def run(api: Api, monkeypatch: pytest.MonkeyPatch, *arguments: str, application: str = "shop") -> Result:
    monkeypatch.setattr(profile_load, "connect", lambda _settings: client(api))
    monkeypatch.setattr(profile_load.time, "time", api.clock)
    return CliRunner().invoke(main, ["profile", "load", application, *arguments])


def test_what_batch_costs_at_each_load(api: Api) -> None:
    now_s = START.timestamp()
    curves = measured(client(api), "shop", now_s - 3600, now_s).curves
    assert {name: sum(band.steps for band in curve.bands) for name, curve in curves.items()} == {
        "all": SLOTS,
        "without": SLOTS // 2,
        "beside": SLOTS // 2,
    }
    for name, beside in (("without", False), ("beside", True)):
        for band in curves[name].bands:
            assert band.median_ms == pytest.approx(slow_ms(band.rate_rps, beside), rel=0.12), "two rates share a band"
    assert curves["without"].met_rps > curves["beside"].met_rps > 40  # type: ignore[operator]
    assert curves["without"].knee_rps == pytest.approx(56, abs=12)


@pytest.mark.parametrize("gone", [False, True])
def test_what_batch_did_counts_where_the_application_ran(sqlite_api: Api, gone: bool) -> None:
    """It left a host with much batch load, which may not be registered any more."""
    for host in (HOST, "kvm2"):
        sqlite_api.ok("PUT", f"/hosts/{host}", {})
    sqlite_api.ok("PUT", "/vms/web-1", {"class": "critical"})
    sqlite_api.ok("PUT", "/vms/hog", {"class": "batch"})
    sqlite_api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    web, hog = (
        dict[str, Any](vm=name, cpu_share=share, run_delay_share=0.0, weight=100, mode="enforce")
        for name, share in (("web-1", 0.1), ("hog", 0.5))
    )
    before, since = range(-200, -100, 5), range(-100, 0, 5)
    for host, ends, vms in (("kvm2", before, [web, hog]), ("kvm2", since, [hog]), (HOST, since, [web])):
        body = report(
            vms=[status(vm["vm"], libvirt_uuid=UUIDS[vm["vm"]]) for vm in vms],
            windows=[window(end=end, count=25) for end in ends if web in vms],
            ticks=[tick_of(end, vms=vms) for end in ends],
            decisions=[record(1, host=host, at=moment(ends[0]))] if web in vms else [],
        )
        sqlite_api.ok("POST", f"/hosts/{host}/report", body)
    if gone:
        sqlite_api.ok("DELETE", "/hosts/kvm2")
    now_s = START.timestamp()
    curves = measured(client(sqlite_api), "shop", now_s - 300, now_s).curves
    steps = {name: sum(band.steps for band in curve.bands) for name, curve in curves.items()}
    assert steps == {"all": 40, "without": 20, "beside": 0 if gone else 20}


def test_of_a_time_that_is_still_to_come_for_the_manager_nothing_is_known(api: Api) -> None:
    """Where the clock of the machine that makes load is ahead."""
    now_s = START.timestamp()
    assert batch_share(client(api), (HOST,), now_s - 60, now_s) == pytest.approx(0.5)
    assert batch_share(client(api), (HOST,), now_s + 60, now_s + 70) is None


def test_what_batch_costs_of_response_times_of_nothing_is_not_said() -> None:
    steps = [LoadStep(float(rate), 0.0, 0.5 * (rate % 2)) for rate in range(10, 200)]
    curves = {name: load_curve(group, None) for name, group in {"all": steps, **by_batch(steps)}.items()}
    said = list(remarks(LoadProfile("shop", 95.0, None, 0.0, 1.0, 5.0, curves)))
    assert not any("times as long" in one for one in said)


def test_the_table_and_what_it_means(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picture = tmp_path / "shop.png"
    result = run(api, monkeypatch, "--since", "1h", "--picture", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Steps of 5 s, 400 with response times." in result.output
    assert "The SLA, p95 <= 13 ms, was met up to" in result.output
    assert result.output.count("it took 1.5") >= 5
    assert result.output.count("<- knee") == 3


def test_json(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    body: dict[str, Any] = json.loads(run(api, monkeypatch, "--since", "1h", "--json").stdout)
    assert (body["application"], body["percentile"], body["sla_ms"], body["step_s"]) == ("shop", 95, 13, 5)
    assert set(body["curves"]) == {"all", "without", "beside"}
    bands = body["curves"]["beside"]["bands"]
    assert [band["violated_share"] for band in bands] == sorted(band["violated_share"] for band in bands)


def test_without_an_sla_it_is_of_p95_and_there_are_no_limits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.ok("PATCH", "/applications/shop", {"sla": None})
    result = run(api, monkeypatch, "--since", "1h")
    assert "p95, median" in result.output
    assert "It has no SLA to compare with." in result.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--since", "yesterday"), 2, "'yesterday' is refused: use up to 3650d, such as 90s, 10m or 1h"),
        (("--since", "1h", "--until", "2h"), 2, "--since is not before --until"),
        (("--since", "1h", "--until", "9999-12-31T23:59:59-12:00"), 2, "'9999-12-31T23:59:59-12:00' is refused"),
        (
            ("--since", "3h", "--until", "2h"),
            1,
            "no curve of shop: 0 steps with response times and a rate: 6 are needed",
        ),
        (("--since", "1h", "--picture", "/proc/shop.png"), 1, "/proc/shop.png cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(
    api: Api, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], exit_code: int, said: str
) -> None:
    result = run(api, monkeypatch, *arguments)
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output


def test_an_application_that_is_not_there(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(api, monkeypatch, application="bank")
    assert result.exit_code == 1
    assert "there is no application named 'bank'" in result.output
