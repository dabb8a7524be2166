"""Interference tables: kept from what agents report, answered by REST and CLI, and used by admission."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.api import admission_routes, interference_job
from manager.api.context import ManagerContext
from manager.api.interference_job import AGAIN, IDLE_AGAIN, OVERLAP, InterferenceTables
from manager.api.table_verdicts import present_loads
from manager.cli import fits_command, main, profile_table
from manager.errors import TwinRefused
from manager.model.histogram import Histogram
from manager.model.registration import VmClass, VmSpec
from manager.protocol.client import ManagerClient
from manager.sim.twin import Twin
from manager.store.interference_tables import put_tables
from manager.store.jobs import Run
from manager.store.models import HostRow
from manager.store.registrations import get
from manager.store.tick_rollups import read_ticks
from manager.store.vms import put_vm
from tests.api.conftest import CAPABILITIES, HOST, START, Api, moment, report, status, tick_of, window
from tests.api.sweeping import InProcess

PATH = "/applications/shop/interference"
MINUTES = 120
TYPE = "Example CPU, 3 of 4 pCPUs, 1 socket, 2 threads a core"
HOG_UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11"


def use(name: str, share: float, waited: float = 0.0) -> dict[str, Any]:
    return {"vm": name, "cpu_share": share, "run_delay_share": waited, "weight": 100, "mode": "enforce"}


def tell(api: Api, minutes: int = MINUTES, vcpus: int = 1, only_rps: float | None = None) -> None:
    """A minute each at 10, 20 .. 100 req/s in turn until now, or at one rate: the SLA of 10 ms holds up to 60 req/s.

    The batch VM wants two of four pCPUs, and gets the less the more load there is.
    """
    windows, ticks = [], []
    begin_s = api.clock.now_s // 60 * 60 - 60 * minutes - START.timestamp()
    for number in range(minutes):
        end = round(begin_s) + 60 * number + 30
        rate_rps = only_rps or 10.0 * (number % 10 + 1)
        buckets = Histogram.of([rate_rps * 155.0] * 40).buckets
        text = {str(bucket): many for bucket, many in buckets.items()}
        windows.append(window(end=end, count=40, buckets=text, requests=60 * rate_rps))
        waited = 0.009 * rate_rps
        ticks.append(tick_of(end, vms=[use("web-1", 0.2), use("hog", 0.5 - waited / 4, waited)]))
    vms = [status("web-1", vcpus=vcpus), status("hog", vcpus=2, libvirt_uuid=HOG_UUID)]
    for place in range(0, minutes, 100):
        part = slice(place, place + 100)
        api.ok("POST", f"/hosts/{HOST}/report", report(vms=vms, windows=windows[part], ticks=ticks[part]))


def look(api: Api) -> int:
    context = ManagerContext(api.database, {}, 30.0, 10, clock=api.clock)
    return InterferenceTables(context).look(Run(datetime.fromtimestamp(api.clock.now_s, UTC), START))


def known(api: Api) -> dict[str, Any]:
    answer: dict[str, Any] = api.ok("GET", PATH, role="viewer")
    return answer


def register(api: Api) -> Api:
    for name in (HOST, "kvm2"):
        api.ok("PUT", f"/hosts/{name}", {})
    api.ok("PUT", "/vms/web-1", {"class": "critical"})
    api.ok("PUT", "/vms/hog", {"class": "batch"})
    tiers = [{"name": "web", "vms": ["web-1"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    return api


@pytest.fixture
def site(sqlite_api: Api) -> Api:
    return register(sqlite_api)


def test_a_table_is_made_of_what_agents_report(api: Api) -> None:
    register(api)
    tell(api)
    assert look(api) == 1
    found = known(api)
    assert (found["application"], found["size"], found["size_since"]) == ("shop", "web 1", None)
    [table] = found["tables"]
    assert (table["host_type"], table["hosts"], table["peak_rps"]) == (TYPE, [HOST], 100)
    assert table["minutes"] == MINUTES
    heavy = {row["max_loss"]: row for row in table["rows"] if row["batch"] == "heavy"}
    assert (heavy[1]["load_rps"], heavy[1]["violated_rps"]) == (60, 70)
    assert heavy[1]["peak_share"] == 0.6
    assert heavy[0.1]["load_rps"] == 20, "at 20 req/s the batch VM loses 0.18 of 2 pCPUs"
    assert {row["minutes"] for row in table["rows"] if row["batch"] != "heavy"} == {0}
    assert found["why"].startswith("of the last 2,880 minutes 2,760 did not count (too few response times: 2,760)")


def test_it_is_brought_up_to_date_in_time_and_at_once_after_another_sla(site: Api) -> None:
    tell(site)
    assert (look(site), look(site)) == (1, 0)
    site.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 5}})
    assert (known(site)["tables"], known(site)["why"]) == (
        [],
        "its history has not been looked at yet: that is done within minutes",
    )
    assert look(site) == 1
    assert {row["load_rps"] for row in known(site)["tables"][0]["rows"] if row["max_loss"] == 1} == {None, 30}
    site.clock.now_s += AGAIN.total_seconds() + 1
    tell(site, 20)
    assert look(site) == 1
    assert known(site)["tables"][0]["minutes"] == MINUTES + 20


def test_other_sizes_of_its_vms_are_another_table(site: Api) -> None:
    tell(site)
    look(site)
    site.clock.now_s += AGAIN.total_seconds() + 1
    tell(site, 20, vcpus=2)
    assert look(site) == 0
    found = known(site)
    assert (found["size"], found["tables"]) == ("web 2", [])
    assert found["size_since"] is not None
    site.clock.now_s += 20 * 60
    tell(site, 19, vcpus=2)
    look(site)
    assert [table["minutes"] for table in known(site)["tables"]] == [19]


def test_the_size_of_very_many_vms_is_shortened(site: Api) -> None:
    names = [f"web-{number}" for number in range(1100)]
    with site.database.registering() as session:
        for name in names:
            put_vm(session, VmSpec(name, VmClass.CRITICAL, host=HOST), START, lambda _etag: None)
    tiers = [{"name": tier, "vms": names[place::2]} for place, tier in enumerate(("a", "b"))]
    site.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    site.ok("POST", f"/hosts/{HOST}/report", report(vms=[status(name) for name in names]))
    look(site)
    assert len(known(site)["size"]) == 2000


def test_applications_of_a_host_are_looked_at_together(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    register(api)
    api.ok("PUT", "/vms/blog-1", {"class": "critical"})
    tiers = [{"name": "blog", "vms": ["blog-1"]}]
    api.ok("PUT", "/applications/blog", {"tiers": tiers, "sla": {"response_time_ms": 1}})
    tell(api)
    also = [window("blog", 60 * number - 3600 + 30, 40, requests=40) for number in range(60)]
    ran = [status("blog-1", vcpus=2, libvirt_uuid=HOG_UUID[:-1] + "2")]
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=ran, vms_changed_only=True, windows=also))
    read: list[str] = []

    def counted(session: Any, host: str, *range_: Any) -> Any:
        read.append(host)
        return read_ticks(session, host, *range_)

    monkeypatch.setattr(interference_job, "read_ticks", counted)
    assert look(api) == 1, "no tick of the other VM was reported"
    assert read == [HOST, HOST], "of the one since an hour, of the other since two"
    assert known(api)["tables"][0]["minutes"] == MINUTES
    blog = api.ok("GET", "/applications/blog/interference")
    assert (blog["size"], blog["tables"]) == ("blog 2", [])
    assert "no reports of its VMs: 60" in blog["why"]
    read.clear()
    api.clock.now_s += AGAIN.total_seconds() + 1
    assert look(api) == 1
    assert read == [HOST], "both since the same minute"
    assert known(api)["tables"][0]["minutes"] == MINUTES


@pytest.mark.parametrize(("together", "groups"), [(1, 2), (20, 1)])
def test_applications_of_several_hosts_are_the_same_together(
    api: Api, monkeypatch: pytest.MonkeyPatch, together: int, groups: int
) -> None:
    register(api)
    api.ok("PUT", "/vms/blog-1", {"class": "critical", "host": "kvm2"})
    tiers = [{"name": "blog", "vms": ["blog-1"]}]
    api.ok("PUT", "/applications/blog", {"tiers": tiers, "sla": {"response_time_ms": 1}})
    tell(api)
    also = [window("blog", 60 * number - 3600 + 30, 40, requests=40) for number in range(60)]
    ran = [status("blog-1", vcpus=2, libvirt_uuid=HOG_UUID[:-1] + "2")]
    api.ok("POST", "/hosts/kvm2/report", report(vms=ran, windows=also), role="other host")
    put: list[int] = []

    def counted(session: Any, made: Any) -> Any:
        put.append(len(made))
        return put_tables(session, made)

    monkeypatch.setattr(interference_job, "put_tables", counted)
    monkeypatch.setattr(interference_job, "_TOGETHER", together)
    look(api)
    assert (len(put), sum(put)) == (groups, 2)
    assert known(api)["tables"][0]["minutes"] == MINUTES
    blog = api.ok("GET", "/applications/blog/interference")
    assert (blog["size"], blog["tables"]) == ("blog 2", [])
    assert "no reports of its VMs: 60" in blog["why"]


def test_a_run_looks_at_a_part_of_a_large_fleet(site: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference_job, "_FEW", 1)
    site.ok("PUT", "/applications/blog", {"sla": {"response_time_ms": 1}})
    site.ok("PUT", "/applications/bare", {})
    tell(site)

    def looked_at() -> list[bool]:
        names = ("blog", "shop")
        return [site.ok("GET", f"/applications/{name}/interference")["at"] is not None for name in names]

    assert looked_at() == [False, False]
    look(site)
    assert looked_at() == [True, False]
    look(site)
    assert looked_at() == [True, True]


def test_where_nothing_is_measured_any_more_nothing_is_read(site: Api) -> None:
    tell(site)
    look(site)
    before = known(site)["at"]
    site.clock.now_s += (OVERLAP + AGAIN).total_seconds() + 60
    assert look(site) == 0
    assert known(site)["at"] == before
    site.clock.now_s += IDLE_AGAIN.total_seconds()
    assert look(site) == 1
    assert known(site)["at"] > before


def test_what_is_missing_is_said(site: Api) -> None:
    assert "has not been looked at yet" in known(site)["why"]
    look(site)
    assert known(site)["why"].startswith("no minute of its history counts; of the last 2,880 minutes")
    site.ok("PATCH", "/applications/shop", {"sla": None})
    assert look(site) == 0
    assert known(site)["why"].startswith("it has no SLA")
    assert (known(site)["at"], known(site)["tables"]) == (None, [])
    site.refused(404, "GET", "/applications/nobody/interference")


def test_a_job_that_is_to_end_looks_at_nothing(site: Api) -> None:
    tell(site)
    context = ManagerContext(site.database, {}, 30.0, 10, clock=site.clock)
    assert InterferenceTables(context).look(Run(START, START, lambda: True)) == 0


@pytest.fixture
def crowd(site: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A host with a table, of which nothing is simulated."""

    def refuse(*_: object) -> Twin:
        raise TwinRefused("it takes too long")

    monkeypatch.setattr(admission_routes, "calibrate", refuse)
    tell(site)
    look(site)
    return site


def admitted(api: Api, rate_rps: float, **asked: Any) -> dict[str, Any]:
    """Whether a batch VM may come while the application has that load."""
    api.clock.now_s += 600
    tell(api, 10, only_rps=rate_rps)
    answer: dict[str, Any] = api.ok("POST", f"/hosts/{HOST}/admission", {"class": "batch", "vcpus": 4, **asked})
    return answer


@pytest.mark.parametrize(
    ("rate_rps", "asked", "verdict", "reason"),
    [
        (30, {"demand_pcpus": 0.1}, "yes", "the SLA, met at"),
        (80, {"demand_pcpus": 0.1}, "no", "with heavy batch load: not from 70 req/s on"),
        (30, {"demand_pcpus": 2.5}, "unsure", "nothing was measured at"),
        (10, {"demand_pcpus": 0.1, "max_batch_loss": 0.15}, "yes", "a batch loss of at most 10 %, met at"),
        (40, {"demand_pcpus": 0.1, "max_batch_loss": 0.15}, "no", "a batch loss of at most 10 %, not met at"),
        (30, {"demand_pcpus": 2.5, "max_batch_loss": 0.5}, "unsure", "nothing was measured at"),
    ],
)
def test_admission_by_tables_where_nothing_is_simulated(
    crowd: Api, rate_rps: float, asked: dict[str, float], verdict: str, reason: str
) -> None:
    found = admitted(crowd, rate_rps, **asked)
    assert (found["verdict"], found["simulated"]) == (verdict, False), found
    [table] = found["tables"]
    assert reason in table["reason"]
    assert (table["application"], table["host_type"]) == ("shop", TYPE)
    assert table["verdict"] == (None if verdict == "unsure" else verdict)
    if table["verdict"]:
        assert found["reasons"] == [f"interference table of shop: {table['reason']}"]
    assert ("what batch VMs lose" in " ".join(found["missing"])) is ("unsure" in verdict and "max_batch_loss" in asked)


@pytest.mark.parametrize("later_s", [1, 299])
def test_the_present_load_is_known_where_intervals_are_long(site: Api, later_s: int) -> None:
    slots = [window(end=end, start=moment(end - 300), requests=3000) for end in (-600, -300, 0)]
    site.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1")], windows=slots[: 2 + (later_s > 1)]))
    site.clock.now_s += later_s
    context = ManagerContext(site.database, {}, 3000.0, 10, slot_s=300.0, clock=site.clock)
    with site.database.reading() as session:
        [load] = present_loads(session, context, get(session, HostRow, HOST))
    assert load.rate_rps == 10


def test_a_slowdown_that_is_agreed_bounds_what_batch_vms_lose(crowd: Api) -> None:
    crowd.ok("PUT", "/vms/render", {"class": "batch", "job": {"max_slowdown": 1.25}})
    found = admitted(crowd, 40, vm="render", demand_pcpus=0.1)
    assert (found["verdict"], found["tables"][0]["max_loss"]) == ("no", 0.1)


def test_a_critical_vm_is_no_batch_load(crowd: Api) -> None:
    asked = {"class": "critical", "vcpus": 1}
    assert crowd.ok("POST", f"/hosts/{HOST}/admission", asked)["tables"] == []
    [error] = crowd.refused(422, "POST", f"/hosts/{HOST}/admission", asked | {"max_batch_loss": 0.1})["errors"]
    assert error["field"] == "max_batch_loss"
    [error] = crowd.refused(422, "POST", f"/hosts/{HOST}/admission", {"class": "batch", "max_batch_loss": 0.01})[
        "errors"
    ]
    assert (error["field"], "0.05" in error["message"]) == ("max_batch_loss", True)


def test_a_host_of_another_type_has_no_table(crowd: Api) -> None:
    crowd.clock.now_s += 300
    other = CAPABILITIES | {"cpu_model": "Another CPU"}
    crowd.ok("POST", f"/hosts/{HOST}/report", report(capabilities=other, vms=[status("web-1")]))
    [table] = crowd.ok("POST", f"/hosts/{HOST}/admission", {"class": "batch", "vcpus": 1})["tables"]
    assert table["reason"].startswith("there is no interference table for hosts of its type, Another CPU")


def run(api: Api, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    for module in (profile_table, fits_command):
        monkeypatch.setattr(module, "connect", lambda *_, **__: ManagerClient("http://manager", "", InProcess(api)))
    return CliRunner().invoke(main, arguments)


def test_the_command_shows_the_table(crowd: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(crowd, monkeypatch, "profile", "table", "shop")
    assert result.exit_code == 0, result.output
    [heavy] = [line for line in result.stdout.splitlines() if "heavy" in line]
    assert [cell.strip() for cell in heavy.split("│")[1:-1]] == [
        "heavy",
        "60 req/s (60 %)",
        "60 req/s (60 %)",
        "50 req/s (50 %)",
        "20 req/s (20 %)",
        "10 req/s (10 %)",
        "70 req/s",
        "120",
    ]
    assert f"shop on {TYPE}: largest load" in result.stdout
    assert "vCPUs by tier: web 1" in result.stdout
    assert json.loads(run(crowd, monkeypatch, "profile", "table", "shop", "--json").stdout) == known(crowd)


def test_the_command_says_why_there_is_none(site: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(site, monkeypatch, "profile", "table", "shop")
    assert result.exit_code == 1
    assert "no interference table of shop: its history has not been looked at yet" in result.output
    missing = run(site, monkeypatch, "profile", "table", "nobody")
    assert missing.exit_code == 1
    assert "no application named 'nobody'" in missing.output


def test_fits_shows_what_tables_say(crowd: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    admitted(crowd, 40)
    asked = ("fits", "new", "--host", HOST, "--class", "batch", "--vcpus", "1", "--demand", "0.1", "--batch-loss", "10")
    result = run(crowd, monkeypatch, *asked)
    assert f"{HOST}: no, by arithmetic alone" not in result.output
    assert f"{HOST}: no, by interference tables" in result.output, result.output
    assert "Measured: interference tables, heavy batch load with it" in result.output
