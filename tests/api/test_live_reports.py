"""Live reports make no rows of windows where nobody else has to do with the host; all others are stored as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.model.histogram import Histogram
from manager.rate_limit import RateLimit
from manager.store.access_models import TokenRow
from manager.store.database import Database
from manager.store.kept_glances import KeptGlance, kept_glances
from manager.store.models import HostRow
from manager.store.watched_hosts import look_at
from manager.store.window_packs import YOUNG
from policies.installed import InstalledPolicy
from policies.priority import POLICY as PRIORITY
from tests.api.conftest import HOST, START, Api, Clock, report, status, tick, tick_of, window
from tests.conftest import KINDS
from tests.statements import counted

AGENT = {"Equipoise_Instance": "agent-1", "Equipoise_Boot": "boot-1"}


@pytest.fixture(params=[(kind, served) for kind in KINDS for served in (False, True)], ids=str)
def fleet(request: pytest.FixtureRequest, migrated: Callable[[str], Database]) -> Api:
    """A fleet that is not small, with a host that serves ``shop`` alone and has reported all."""
    kind, served = request.param
    return make_fleet(migrated(kind), served=served)


def make_fleet(database: Database, *, served: bool, requests: RateLimit | None = None) -> Api:
    """``served``: live reports are answered past the web framework."""
    clock, policies = Clock(), {PRIORITY.name: InstalledPolicy(PRIORITY, "equipoise")}
    context = ManagerContext(database, policies, stale_s=30, min_samples=1, small_fleet=0, clock=clock)
    if requests is not None:
        context = replace(context, requests=requests)
    api = Api(create_app(context), database, clock, served=served)
    api.make_tokens()
    api.ok("PUT", f"/hosts/{HOST}", {})
    api.ok("PUT", "/vms/web-1", {"class": "critical", "host": HOST})
    body = {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 10}}
    api.ok("PUT", "/applications/shop", body)
    first = report(vms=[status("web-1")], windows=[window(end=-10)], wants_slots=True)
    for _ in range(2):  # what is registered for a host is known from the second time on
        send(api, first)
    return api


def send(api: Api, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer: dict[str, Any] = api.ok("POST", f"/hosts/{HOST}/report", body, role="host", **(headers or AGENT))
    return answer


def live(**changes: Any) -> dict[str, Any]:
    """A live report."""
    body = {"agent_version": "0.1.0", "tick": tick(), "windows": [window(count=3)], "live": True, "wants_slots": True}
    return body | changes


def rows(api: Api) -> int:
    with api.database.reading() as session:
        return sum(session.scalar(select(func.count()).select_from(kind)) or 0 for kind, _ in YOUNG)


def test_a_live_report_makes_no_rows_and_says_what_is_so_now(fleet: Api) -> None:
    before = rows(fleet)
    whole = send(fleet, live(live=False, windows=[window(end=-5)]))
    assert rows(fleet) == before + 1
    fleet.clock.now_s += 5
    answer = send(fleet, live(tick=tick(number=8)))
    assert answer == whole | {"stored_windows": 1}
    assert rows(fleet) == before + 1
    shop = fleet.ok("GET", "/applications/shop")
    assert (shop["sla_state"], shop["window"]["count"]) == ("met", 4), "with the slot before"
    host = fleet.ok("GET", f"/hosts/{HOST}")
    assert (host["tick"]["number"], host["last_seen_at"]) == (8, "2026-03-01T12:00:05Z")


def test_what_history_brings_counts_once(fleet: Api) -> None:
    send(fleet, live(windows=[window(count=3)]))
    send(fleet, live(windows=[window(count=2)]))
    assert fleet.ok("GET", "/applications/shop")["window"]["count"] == 2, "an agent was started anew"
    send(fleet, report(windows=[window(count=7)], ticks=[tick_of(0)]))
    assert fleet.ok("GET", "/applications/shop")["window"]["count"] == 7
    [newest, *_] = fleet.ok("GET", "/applications/shop/windows")["items"]
    assert newest["count"] == 7


def test_a_tick_alone_leaves_the_windows_as_they_were(fleet: Api) -> None:
    send(fleet, live())
    send(fleet, live(windows=[], tick=tick(number=9)))
    assert fleet.ok("GET", "/applications/shop")["window"]["count"] == 3
    assert fleet.ok("GET", f"/hosts/{HOST}")["tick"]["number"] == 9


def watch(api: Api) -> None:
    look_at(api.database, START, hosts=[HOST])


def register(api: Api) -> None:
    api.ok("PUT", "/vms/web-9", {"class": "batch"})


def post(api: Api) -> None:
    api.ok("POST", "/applications/shop/samples", {"times_ms": [5.0]})


def share(api: Api) -> None:
    api.ok("PUT", "/vms/web-2", {"class": "critical", "host": "kvm2"})
    tiers = [{"name": "web", "vms": ["web-1", "web-2"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    send(api, report(wants_slots=True))


def set_clock_off(api: Api) -> None:
    send(api, live(), **AGENT, Equipoise_Clock_Ahead="7.5")


@pytest.mark.parametrize("happen", [watch, register, post, share, set_clock_off])
def test_where_more_is_to_be_done_windows_become_rows(fleet: Api, happen: Callable[[Api], None]) -> None:
    send(fleet, live())
    happen(fleet)
    before = rows(fleet)
    assert send(fleet, live(windows=[window(end=5)]))["stored_windows"] == 1
    assert rows(fleet) == before + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"live": False},
        {"wants_slots": False},
        {"tick": None},
        {"ticks": [tick_of(0)]},
        {"vms": [status("web-1")]},
        {"domains": []},
        {"windows": [window(), window(end=3600)]},
        {"windows": [window(), window("unknown")]},
    ],
)
def test_a_report_of_more_is_stored_as_ever(fleet: Api, changes: dict[str, Any]) -> None:
    before = rows(fleet)
    send(fleet, live(**changes))
    assert rows(fleet) == before + 1


def test_a_live_report_is_one_statement(fleet: Api) -> None:
    send(fleet, live())
    with counted(fleet.database) as asked:
        send(fleet, live())
    begin = 1 if fleet.database.file else 0
    assert asked.statements == begin + 1


_COMMITS = """
    ALTER DATABASE "{name}" SET synchronous_commit = on;
    CREATE TABLE commits (setting text);
    CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO commits VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
    CREATE TRIGGER note_commit AFTER UPDATE ON hosts FOR EACH ROW EXECUTE FUNCTION note_commit();
"""
_AS_BEFORE = """
    ALTER DATABASE "{name}" RESET synchronous_commit;
    DROP FUNCTION note_commit CASCADE;
    DROP TABLE commits;
"""


@pytest.mark.parametrize("fleet", [("postgresql", False), ("postgresql", True)], indirect=True)
def test_a_live_report_waits_for_no_disk_and_all_else_does(fleet: Api) -> None:
    database = fleet.database
    name = str(database.url.database)
    database.close()
    with database.writing() as session:
        session.connection().exec_driver_sql(_COMMITS.format(name=name))
    database.close()  # new connections have the setting
    try:
        for body in (live(), report(ticks=[tick_of(0)]), live()):
            send(fleet, body)
        with database.reading() as session:
            commits = session.connection().exec_driver_sql("SELECT setting FROM commits").scalars().all()
        assert commits == ["off", "on", "off"]
    finally:
        with database.writing() as session:
            session.connection().exec_driver_sql(_AS_BEFORE.format(name=name))
        database.close()


def revoke(api: Api) -> None:
    [name] = [token["name"] for token in api.ok("GET", "/tokens")["items"] if token["host"] == HOST]
    api.ok("DELETE", f"/tokens/{name}")


def expire(api: Api) -> None:
    with api.database.writing() as session:
        row = session.scalars(select(TokenRow).where(TokenRow.host == HOST)).one()
        row.expires_at = datetime.fromtimestamp(api.clock.now_s, UTC)


@pytest.mark.parametrize("end", [revoke, expire])
@pytest.mark.parametrize("body", [live(), live(tick=None), live(agent_version=7), report(ticks=[tick_of(0)])])
def test_a_token_that_just_ended_stores_nothing_and_is_told_nothing_else(
    fleet: Api, end: Callable[[Api], None], body: dict[str, Any]
) -> None:
    send(fleet, live())
    end(fleet)
    before = fleet.ok("GET", f"/hosts/{HOST}")
    fleet.clock.now_s += 1
    refused = fleet.refused(401, "POST", f"/hosts/{HOST}/report", body, role="host", **AGENT)
    assert "revoked or expired" in refused["detail"]
    fleet.refused(401, "POST", f"/hosts/{HOST}/report", body, role="host", Equipoise_Protocol="9")
    assert fleet.ok("GET", f"/hosts/{HOST}") == before


def test_the_use_of_a_token_is_noted_each_minute(fleet: Api) -> None:
    for _ in range(3):
        fleet.clock.now_s += 50
        send(fleet, live())
    with fleet.database.reading() as session:
        used_at = session.scalars(select(TokenRow.last_used_at).where(TokenRow.host == HOST)).one()
    assert used_at == datetime.fromtimestamp(fleet.clock.now_s, UTC) - timedelta(seconds=50)


def test_another_agent_is_refused_as_ever(fleet: Api) -> None:
    before = fleet.ok("GET", f"/hosts/{HOST}")["tick"]
    other = {"Equipoise_Instance": "agent-2", "Equipoise_Boot": "boot-2"}
    fleet.refused(409, "POST", f"/hosts/{HOST}/report", live(), role="host", **other)
    assert fleet.ok("GET", f"/hosts/{HOST}")["tick"] == before


def test_a_host_says_nothing_of_what_another_one_serves(fleet: Api) -> None:
    fleet.ok("PUT", "/vms/other", {"class": "critical", "host": "kvm2"})
    fleet.ok("PUT", "/applications/blog", {"tiers": [{"name": "web", "vms": ["other"]}]})
    for _ in range(2):
        fleet.ok("POST", "/hosts/kvm2/report", report(vms=[status("other")], wants_slots=True), role="other host")
    before = fleet.ok("GET", "/applications/shop")["window"]
    for application in ("blog", "shop"):
        body = live(windows=[window(application, count=99)])
        fleet.ok("POST", "/hosts/kvm2/report", body, role="other host")
    assert fleet.ok("GET", "/applications/shop")["window"] == before
    assert fleet.ok("GET", "/applications/blog")["window"]["count"] == 99


def test_a_refused_tick_does_not_stop_the_rest(fleet: Api) -> None:
    answer = send(fleet, live(tick=tick(duration_ms=-1)))
    assert [item["field"] for item in answer["refused"]] == ["tick.duration_ms"]
    assert answer["stored_windows"] == 1


def seen(api: Api) -> tuple[object, ...]:
    """What the fleet's list shows of ``shop``."""
    [shop] = api.ok("GET", "/fleet")["applications"]
    return shop["sla_state"], shop["measured_ms"], shop["measured_at"], shop["rate_rps"]


def kept(api: Api) -> dict[int, KeptGlance]:
    """Glances that the rows of hosts hold."""
    with api.database.reading() as session:
        return kept_glances(session)


def without_glances(api: Api) -> tuple[object, ...]:
    """What the list shows where windows are read."""
    with api.database.writing() as session:
        session.execute(update(HostRow).values(glances=None))
    return seen(api)


def put_sla(api: Api, percentile: float) -> None:
    """Another percentile than the one of the report before."""
    body = {"tiers": [{"name": "web", "vms": ["web-1"]}], "sla": {"response_time_ms": 10, "percentile": percentile}}
    api.ok("PUT", "/applications/shop", body)


def slow(end: float, count: int = 5) -> dict[str, Any]:
    return window(end=end, buckets=Histogram.of([20_000.0] * count).buckets)


def move(api: Api) -> None:
    """Another host, on which the application was before, has something else in its row, and is gone."""
    api.ok("PUT", "/hosts/kvm2", {})
    with api.database.writing() as session:
        stale = select(HostRow.glances, HostRow.live).where(HostRow.name == HOST)
        glances, windows = session.execute(stale).one()
        session.execute(update(HostRow).where(HostRow.name == "kvm2").values(glances=glances, live=windows))
    send(api, report(wants_slots=True))
    send(api, live(windows=[window(end=40)]))
    assert kept(api) == {}


LATER = [
    pytest.param(lambda api: None, "violated", id="nothing"),
    pytest.param(lambda api: send(api, report(windows=[window(end=30, count=99)])), "met", id="history of that slot"),
    pytest.param(lambda api: send(api, report(windows=[window(end=25, count=999)])), "met", id="history just before"),
    pytest.param(lambda api: send(api, report(windows=[window(end=35)])), "violated", id="newer history"),
    pytest.param(lambda api: send(api, live(windows=[window(end=45)])), "met", id="newer live report"),
    pytest.param(lambda api: put_sla(api, 10.0), "violated", id="another percentile"),
    pytest.param(post, "met", id="samples from elsewhere"),
    pytest.param(move, "met", id="a glance of another host"),
]


@pytest.mark.parametrize(("later", "state"), LATER)
def test_the_list_of_the_fleet_shows_what_reading_the_windows_would(
    fleet: Api, later: Callable[[Api], object], state: str
) -> None:
    fleet.clock.now_s += 40
    send(fleet, live(windows=[slow(25), slow(30)]))
    assert len(kept(fleet)) == 1, "it is taken from the host's row"
    later(fleet)
    quick = seen(fleet)
    assert quick == without_glances(fleet)
    assert quick[0] == state
