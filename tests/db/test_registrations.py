"""Hosts, VMs and applications in the store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import delete as sql_delete
from sqlalchemy import select, text
from sqlalchemy.exc import StatementError

from manager.errors import Conflict, InvalidRequest, NotFound
from manager.model.fields import fields_of
from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.registration import Application, HostSpec, Mode, Sharing, Sla, Tier, VmClass, VmSpec
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.source import HttpProbe, Push
from manager.model.window import Window
from manager.store.applications import applications_for_host, applications_of, put_application, remove_application
from manager.store.database import Database
from manager.store.hosts import adopt_host, put_host, put_statuses, reporting_host, shares_on
from manager.store.models import ApplicationRow, HostRow, TierVmRow, VmRow, VmStatusRow, WindowRow
from manager.store.registrations import delete, get, page
from manager.store.source_rows import hosts_of
from manager.store.vm_lists import VmFilter, get_vm, list_vms
from manager.store.vm_shares import older_shares
from manager.store.vms import adopt_vm, delete_vm, put_vm, vms_for_host
from manager.store.windows import add_samples

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
SHOP = Application("shop", (Tier("web", ("web-1", "web-2")), Tier("db", ("db-1",))), Sla(20.0, 95.0, 1000.0))


def anything(_etag: str | None) -> None:
    """A precondition that always holds."""


def register_vms(database: Database, *names: str) -> None:
    with database.registering() as session:
        for name in names:
            put_vm(session, VmSpec(name, VmClass.CRITICAL), NOW, anything)


def put_shop(database: Database, application: Application, now: datetime = NOW) -> tuple[str, bool]:
    with database.registering() as session:
        row, created = put_application(session, application, now, anything)
        return row.etag, created


def test_put_creates_then_replaces_and_only_a_change_makes_a_version(database: Database) -> None:
    seen: list[tuple[bool, str, datetime]] = []
    for mode in (Mode.ENFORCE, Mode.ENFORCE, Mode.OBSERVE):
        with database.registering() as session:
            row, created = put_host(session, HostSpec("h", mode), NOW + timedelta(seconds=len(seen)), anything)
            seen.append((created, row.etag, row.updated_at))
    assert seen == [
        (True, "1.1", NOW),
        (False, "1.1", NOW),
        (False, "1.2", NOW + timedelta(seconds=2)),
    ]


def test_an_object_made_again_never_has_an_old_etag(database: Database) -> None:
    etags = set()
    for _ in range(3):
        with database.registering() as session:
            row, created = put_host(session, HostSpec("h"), NOW, anything)
            assert created
            etags.add(row.etag)
        with database.registering() as session:
            delete(session, HostRow, "h", anything)
    assert len(etags) == 3


def test_a_precondition_that_raises_leaves_everything_as_it_was(database: Database) -> None:
    def never(_etag: str | None) -> None:
        raise Conflict("no")

    with pytest.raises(Conflict), database.registering() as session:
        put_host(session, HostSpec("h"), NOW, never)
    with database.reading() as session, pytest.raises(NotFound, match="no host named 'h'"):
        get(session, HostRow, "h")


def test_times_come_back_as_utc_whatever_offset_they_had(database: Database) -> None:
    eastern = NOW.astimezone(timezone(timedelta(hours=9)))
    with database.registering() as session:
        put_host(session, HostSpec("h"), eastern.replace(microsecond=123456), anything)
    with database.reading() as session:
        created = get(session, HostRow, "h").created_at
    assert created == NOW.replace(microsecond=123456)
    assert created.tzinfo is UTC


def test_a_naive_time_is_refused(database: Database) -> None:
    with pytest.raises(StatementError, match="no time zone"), database.registering() as session:
        put_host(session, HostSpec("h"), NOW.replace(tzinfo=None), anything)


def test_pages_by_name(database: Database) -> None:
    register_vms(database, "c", "a", "d", "b")
    with database.reading() as session:
        assert [row.name for row in page(session, VmRow, None, 3)] == ["a", "b", "c"]
        assert [row.name for row in page(session, VmRow, "b", 3)] == ["c", "d"]


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (VmSpec("a", VmClass.BATCH), VmSpec("b", VmClass.BATCH, libvirt_name="a"), "libvirt_name 'a'"),
        (VmSpec("a", VmClass.BATCH, "x"), VmSpec("b", VmClass.BATCH, "x"), "libvirt_name 'x'"),
        (VmSpec("a", VmClass.BATCH, "x", host="h"), VmSpec("b", VmClass.BATCH, "x", host="h"), "libvirt_name 'x'"),
        (VmSpec("a", VmClass.BATCH, "x", host="h"), VmSpec("b", VmClass.BATCH, "x"), "libvirt_name 'x'"),
        (VmSpec("a", VmClass.BATCH, "x"), VmSpec("b", VmClass.BATCH, "x", host="h"), "libvirt_name 'x'"),
        (VmSpec("a", VmClass.BATCH, "x", host="h"), VmSpec("b", VmClass.BATCH, "x", host="g"), None),
        (VmSpec("a", VmClass.BATCH, None, "u"), VmSpec("b", VmClass.BATCH, None, "u", host="h"), "libvirt_uuid u"),
        (VmSpec("a", VmClass.BATCH, None, "u"), VmSpec("b", VmClass.BATCH, None, "v"), None),
        (VmSpec("a", VmClass.BATCH, None, "u"), VmSpec("b", VmClass.BATCH, "a"), None),
    ],
)
def test_two_vms_may_not_be_the_same_domain(
    database: Database, first: VmSpec, second: VmSpec, clash: str | None
) -> None:
    with database.registering() as session:
        put_vm(session, first, NOW, anything)
        put_vm(session, first, NOW, anything)  # a VM does not stand in its own way
    if clash is None:
        with database.registering() as session:
            assert put_vm(session, second, NOW, anything)[1]
        return
    with pytest.raises(Conflict, match=clash), database.registering() as session:
        put_vm(session, second, NOW, anything)
    with database.reading() as session:
        assert [row.name for row in page(session, VmRow, None, 9)] == ["a"]


def test_a_vm_without_a_domain_is_found_by_its_own_name(database: Database) -> None:
    with database.registering() as session:
        assert put_vm(session, VmSpec("a", VmClass.BATCH), NOW, anything)[0].libvirt_name == "a"
        assert put_vm(session, VmSpec("b", VmClass.BATCH, None, "u"), NOW, anything)[0].libvirt_name is None


def test_an_application_keeps_the_order_of_tiers_and_vms(database: Database) -> None:
    register_vms(database, "web-1", "web-2", "db-1")
    assert put_shop(database, SHOP) == ("1.1", True)
    assert put_shop(database, SHOP, LATER) == ("1.1", False)
    moved = Application("shop", (Tier("db", ("web-2",)), Tier("web", ("db-1", "web-1"))), None, Mode.OBSERVE)
    etag, created = put_shop(database, moved, LATER)
    assert (etag != "1.1", created) == (True, False)
    with database.reading() as session:
        row = get(session, ApplicationRow, "shop")
        assert applications_of(session, [row]) == {"shop": moved}
        assert row.updated_at == LATER


def test_only_tiers_that_changed_make_a_version_too(database: Database) -> None:
    register_vms(database, "web-1", "web-2", "db-1")
    put_shop(database, SHOP)
    assert put_shop(database, Application("shop", SHOP.tiers[:1], SHOP.sla)) == ("1.2", False)


@pytest.mark.parametrize(
    ("tiers", "field"),
    [
        ((Tier("web", ("web-1",)), Tier("db", ("nobody",))), "tiers[1].vms[0]"),
        ((Tier("web", ("web-1", "web-1")),), "tiers[0].vms[1]"),
        ((Tier("web", ("web-1",)), Tier("db", ("web-1",))), "tiers[1].vms[0]"),
        ((Tier("web"), Tier("web")), "tiers[1].name"),
    ],
)
def test_a_bad_tier_is_named_and_changes_nothing(database: Database, tiers: tuple[Tier, ...], field: str) -> None:
    register_vms(database, "web-1", "web-2", "db-1")
    put_shop(database, SHOP)
    with pytest.raises(InvalidRequest) as refusal:
        put_shop(database, Application("shop", tiers))
    assert refusal.value.field == field
    with database.reading() as session:
        assert applications_of(session, [get(session, ApplicationRow, "shop")]) == {"shop": SHOP}


def test_a_vm_serves_one_application_and_cannot_be_removed_meanwhile(database: Database) -> None:
    register_vms(database, "web-1", "web-2", "db-1")
    put_shop(database, SHOP)
    with pytest.raises(Conflict, match="'web-2' serves application 'shop'"):
        put_shop(database, Application("blog", (Tier("web", ("web-2",)),)))
    with pytest.raises(Conflict, match="application 'shop'"), database.registering() as session:
        delete_vm(session, "web-2", anything)
    put_shop(database, Application("shop"))
    with database.registering() as session:
        delete_vm(session, "web-2", anything)
    with database.reading() as session, pytest.raises(NotFound):
        get_vm(session, "web-2")


def test_removing_an_application_removes_its_tiers_and_not_what_was_measured(database: Database) -> None:
    register_vms(database, "web-1", "web-2", "db-1")
    put_shop(database, SHOP)
    with database.writing() as session:
        window = Window("shop", NOW.timestamp(), LATER.timestamp(), Histogram.of([1.0]), 1)
        add_samples(session, "shop", [window], timedelta(seconds=5))
    with database.registering() as session:
        remove_application(session, "shop", NOW, anything)
    with database.reading() as session:
        assert len(session.scalars(select(WindowRow)).all()) == 1
        assert session.scalars(select(TierVmRow)).all() == []
        assert len(page(session, VmRow, None, 9)) == 3


def report(database: Database, host: str, **statuses: str) -> None:
    with database.writing() as session:
        row = reporting_host(session, HostSpec(host), NOW)
        session.execute(sql_delete(VmStatusRow).where(VmStatusRow.host_id == row.id))
        told = [{"vm": vm, "cpu_share": 0.25, "run_delay_share": 0.5, "body": body} for vm, body in statuses.items()]
        put_statuses(session, row, told, NOW)


def test_a_report_replaces_all_statuses_of_its_host_and_no_other(database: Database) -> None:
    register_vms(database, "a", "b", "c")
    report(database, "h", a='{"n":1}', b='{"n":2}')
    report(database, "g", c='{"n":3}')
    report(database, "h", b='{"n":4}')
    assert statuses(database) == [("a", None, None), ("b", status(n=4), "h"), ("c", status(n=3), "g")]


def statuses(database: Database) -> list[tuple[str, dict[str, object] | None, str | None]]:
    with database.reading() as session:
        return [
            (vm["name"], vm["status"] and json.loads(vm["status"]), vm["status_host"])
            for vm in list_vms(session, VmFilter(), None, 9)
        ]


def status(cpu_share: float = 0.25, run_delay_share: float = 0.5, **body: object) -> dict[str, object]:
    return {"cpu_share": cpu_share, "run_delay_share": run_delay_share, **body}


def test_shares_change_by_themselves(database: Database) -> None:
    register_vms(database, "a", "b", "c")
    report(database, "h", a='{"n":1}', b='{"n":2}')
    report(database, "g", c='{"n":3}')
    shares = {"a": (1e-5, 0.0), "b": (0.33333, 12345.678)}

    def put(host: str, shares: dict[str, tuple[float, float]]) -> bool:
        with database.writing() as session:
            row = get(session, HostRow, host)
            row.shares, complete = shares_on(session, row, shares, NOW)
            return complete

    assert put("h", shares)
    now = [("a", status(*shares["a"], n=1), "h"), ("b", status(*shares["b"], n=2), "h"), ("c", status(n=3), "g")]
    assert statuses(database) == now
    assert not put("g", shares | {"c": (0.5, 0.5)}), "a and b are not there"
    now[2] = ("c", status(0.5, 0.5, n=3), "g")
    assert statuses(database) == now
    assert not put("h", {"a": shares["a"]}), "b is known, too"


def test_a_migrated_vm_is_where_it_was_reported_last(database: Database) -> None:
    report(database, "h", a="1")
    report(database, "g", a="2")
    report(database, "h")
    with database.reading() as session:
        [row] = session.scalars(select(VmStatusRow))
        assert row.body == "2"


def test_a_reporting_host_keeps_how_it_is_registered(database: Database) -> None:
    with database.registering() as session:
        put_host(session, HostSpec("h", Mode.OBSERVE, "equal", False), NOW, anything)
    report(database, "h", a="1")
    with database.reading() as session:
        row = get(session, HostRow, "h")
        assert (row.mode, row.policy, row.pinning, row.etag) == (Mode.OBSERVE, "equal", False, "1.1")


def test_removing_a_host_forgets_what_it_reported(database: Database) -> None:
    report(database, "h", a="1")
    with database.registering() as session:
        delete(session, HostRow, "h", anything)
    with database.reading() as session:
        assert session.scalars(select(VmStatusRow)).all() == []


@pytest.mark.parametrize("law", [Law(), Law(published=True), Law(gain=1.0, min_samples=7)])
@pytest.mark.parametrize(
    "placement",
    [
        PlacementRules(),
        PlacementRules(BatchPlacement.SINGLE, frozenset({0, 5}), IrqSteering.RESERVED),
        PlacementRules(min_gain=0.5),
    ],
)
def test_a_host_keeps_its_settings(database: Database, law: Law, placement: PlacementRules) -> None:
    spec = HostSpec("h", law=law, placement=placement, batch_idle=law.published)
    with database.registering() as session:
        put_host(session, spec, NOW, anything)
    with database.reading() as session:
        row = get(session, HostRow, "h")
        assert HostSpec(**fields_of(HostSpec, row)) == spec
        stored = session.execute(text("SELECT law, placement FROM hosts")).one()
        assert (stored.law is None) == (law == Law()), "what is not set follows the default"
        assert (stored.placement is None) == (placement == PlacementRules())


def test_taking_back_counts_and_registering_again_does_not_reset_it(database: Database) -> None:
    vm = VmSpec("web", VmClass.CRITICAL, cpus=frozenset({1, 2}), max_pcpus=1.5, mode=Mode.OBSERVE)
    with database.registering() as session:
        put_host(session, HostSpec("h"), NOW, anything)
        put_vm(session, vm, NOW, anything)
    for count in (1, 2):
        with database.registering() as session:
            assert adopt_host(session, "h", LATER).adoptions == count
            row = adopt_vm(session, "web", LATER)
            assert (row.adoptions, row.etag) == (count, f"1.{1 + count}"), "another assignment"
    with database.registering() as session:
        put_host(session, HostSpec("h", Mode.OBSERVE), LATER, anything)
        put_vm(session, vm, LATER, anything)
        assert get(session, HostRow, "h").adoptions == 2
        assert vms_for_host(session, "h") == [replace(vm, libvirt_name=vm.name, adoptions=2)]


@pytest.mark.parametrize(
    "scheduling", [None, Scheduling(SchedulingPolicy.RR, 2, limit=0.25), Scheduling(SchedulingPolicy.OTHER, nice=-5)]
)
def test_scheduling_is_kept(database: Database, scheduling: Scheduling | None) -> None:
    with database.registering() as session:
        put_vm(session, VmSpec("web", VmClass.CRITICAL, scheduling=scheduling), NOW, anything)
    with database.reading() as session:
        assert get_vm(session, "web")["scheduling"] == scheduling


def test_sources_belong_to_an_application_and_make_it_a_hosts_concern(database: Database) -> None:
    register_vms(database, *SHOP.vms)
    sources = (HttpProbe("probe", "http://shop/", host="elsewhere"), Push("push", ("10.0.0.0/8",)))
    wanted = replace(SHOP, sources=sources, sharing=Sharing.ISOLATION)
    assert put_shop(database, wanted) == ("1.1", True)
    assert put_shop(database, wanted, LATER) == ("1.1", False)
    with database.registering() as session:
        for vm in SHOP.vms:
            put_vm(session, VmSpec(vm, VmClass.CRITICAL, host="h"), NOW, anything)
    with database.reading() as session:
        row = get(session, ApplicationRow, "shop")
        assert applications_of(session, [row])["shop"] == wanted
        concerned = [host for host in ("elsewhere", "g", "h") if applications_for_host(session, host)]
        assert concerned == ["elsewhere", "h"]


def test_the_hosts_that_have_a_vm_of_an_application(database: Database) -> None:
    register_vms(database, "web-1", "web-2", "db-1", "other")
    put_shop(database, SHOP)
    with database.registering() as session:
        put_application(session, Application("idle"), NOW, anything)
        put_vm(session, VmSpec("web-1", VmClass.CRITICAL, host="a"), NOW, anything)
    report(database, "b", **{"web-2": "1", "other": "1"})
    report(database, "c", other="1")
    with database.reading() as session:
        rows = [get(session, ApplicationRow, name) for name in ("shop", "idle")]
        assert hosts_of(session, {row.id: row.name for row in rows}) == {"shop": {"a", "b"}, "idle": frozenset()}


def test_lists_of_vms_are_filtered(database: Database) -> None:
    with database.registering() as session:
        put_vm(session, VmSpec("a", VmClass.CRITICAL, host="h"), NOW, anything)
        put_vm(session, VmSpec("b", VmClass.BATCH), NOW, anything)
        put_vm(session, VmSpec("c", VmClass.BATCH, host="g"), NOW, anything)
        put_application(session, Application("shop", (Tier("t", ("a",)),)), NOW, anything)
    report(database, "h", b="1")
    with database.reading() as session:

        def names(wanted: VmFilter) -> str:
            return "".join(vm["name"] for vm in list_vms(session, wanted, None, 9))

        assert names(VmFilter()) == "abc"
        assert names(VmFilter(host="h")) == "ab"
        assert names(VmFilter(vm_class=VmClass.BATCH)) == "bc"
        assert names(VmFilter(host="h", vm_class=VmClass.BATCH)) == "b"
        assert names(VmFilter(application="shop")) == "a"
        assert [vm.name for vm in vms_for_host(session, "h")] == ["a", "b"]
        assert [row.name for row in applications_for_host(session, "h")] == ["shop"]
        assert applications_for_host(session, "g") == []


def test_shares_are_as_old_as_the_tick_they_came_with(database: Database) -> None:
    register_vms(database, "a", "b")
    report(database, "h", a='{"n":1}', b='{"n":2}')

    def put(shares: dict[str, tuple[float, float]], after_s: int) -> None:
        with database.writing() as session:
            row = get(session, HostRow, "h")
            row.shares, _ = shares_on(session, row, shares, NOW + timedelta(seconds=after_s))

    def seen() -> list[tuple[float, int]]:
        with database.reading() as session:
            vms = list_vms(session, VmFilter(), None, 9)
        return [(json.loads(vm["status"])["cpu_share"], (vm["status_at"] - NOW).seconds) for vm in vms]

    assert seen() == [(0.25, 0), (0.25, 0)]
    put({"a": (0.5, 0.0), "b": (0.75, 0.0)}, 5)
    assert seen() == [(0.5, 5), (0.75, 5)]
    put({"b": (1.0, 0.0)}, 10)
    assert seen() == [(0.5, 5), (1.0, 10)], "of a nothing new was reported"
    with database.writing() as session:
        row = get(session, HostRow, "h")
        row.shares = older_shares(row, {"b"})
    assert seen() == [(0.5, 5), (0.25, 0)], "those of its status are newer"
