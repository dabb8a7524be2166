"""Proposals to migrate VMs: who decides, what agents are told and report, and what ends by itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from manager.errors import Conflict, NotFound
from manager.model.migration import MigrationOrder, MigrationReport, MigrationState, MovePrediction, MoveSpan
from manager.model.registration import HostSpec, Mode, VmClass, VmSpec
from manager.store.access_models import AuditRow
from manager.store.database import Database, registration_revision
from manager.store.hosts import put_host, put_statuses
from manager.store.models import EventRow, HostRow
from manager.store.proposals import (
    BY_SETTING,
    Proposal,
    approve,
    busy_hosts,
    close_stale,
    dismiss,
    get_proposal,
    list_proposals,
    orders_of,
    past_migrations,
    propose,
    take_reports,
)
from manager.store.registrations import get
from manager.store.vms import get_vm, put_vm

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"
PREDICTION = MovePrediction("shop", "kvm1", 95.0, 80.0, MoveSpan(120, 110, 130), MoveSpan(60, 55, 65))
PROPOSAL = Proposal("render-1", "kvm1", "kvm2", "shop", "its host is full", (PREDICTION,))
RUNNING, DONE, FAILED = MigrationState.RUNNING, MigrationState.DONE, MigrationState.FAILED


@pytest.fixture
def fleet(database: Database) -> Database:
    """Two hosts, and a batch VM that is registered for the first and runs there."""
    with database.registering() as session:
        for name in ("kvm1", "kvm2"):
            put_host(session, HostSpec(name), NOW, lambda _etag: None)
        put_vm(session, VmSpec("render-1", vm_class=VmClass.BATCH, host="kvm1"), NOW, lambda _etag: None)
    runs_on(database, "kvm1")
    return database


def runs_on(database: Database, host: str) -> None:
    body = json.dumps({"libvirt_name": "render", "libvirt_uuid": UUID})
    with database.writing() as session:
        status = {"vm": "render-1", "cpu_share": 0.2, "run_delay_share": 0.0, "body": body}
        put_statuses(session, get(session, HostRow, host), [status], NOW)


def proposed(database: Database, *, approved: bool = False) -> int:
    with database.registering() as session:
        return propose(session, PROPOSAL, NOW, approved=approved).id


def decided(database: Database) -> int:
    number = proposed(database)
    with database.registering() as session:
        approve(session, number, "ann", NOW)
    return number


def state(database: Database, number: int) -> tuple[MigrationState, str]:
    with database.reading() as session:
        row = get_proposal(session, number)
        return row.state, row.detail


def events(database: Database) -> list[tuple[str, str]]:
    with database.reading() as session:
        return [(row.kind, row.message) for row in session.scalars(select(EventRow).order_by(EventRow.id))]


def orders(database: Database, host: str) -> tuple[MigrationOrder, ...]:
    with database.reading() as session:
        return orders_of(session, host)


def report(database: Database, number: int, to: MigrationState, now: datetime = NOW, host: str = "kvm1") -> None:
    with database.writing() as session:
        why = "no disk there" if to is FAILED else ""
        take_reports(session, host, [MigrationReport(number, to, 0.5, why)], now)


def test_a_proposal_waits_for_a_person_and_then_for_the_agent(fleet: Database) -> None:
    number = proposed(fleet)
    assert state(fleet, number)[0] is MigrationState.PROPOSED
    assert orders(fleet, "kvm1") == ()
    with fleet.reading() as session:
        assert busy_hosts(session) == {"kvm1", "kvm2"}
        before = registration_revision(session)
        [row] = list_proposals(session, "kvm2", MigrationState.PROPOSED, None, 10)
        assert row.predictions[0]["after"] == {"ms": 60, "low_ms": 55, "high_ms": 65}
        assert list_proposals(session, "kvm3", None, None, 10) == []
    with fleet.registering() as session:
        row = approve(session, number, "ann", NOW)
        assert (row.state, row.decided_by) == (MigrationState.APPROVED, "ann")
    assert orders(fleet, "kvm1") == (MigrationOrder(number, "render-1", "render", UUID, "kvm2"),)
    assert orders(fleet, "kvm2") == ()
    with fleet.reading() as session:
        assert registration_revision(session) > before, "agents are told at once"


def test_a_setting_approves_at_once(fleet: Database) -> None:
    number = proposed(fleet, approved=True)
    with fleet.reading() as session:
        assert get_proposal(session, number).decided_by == BY_SETTING
    assert len(orders(fleet, "kvm1")) == 1


def test_a_vm_that_arrived_is_registered_for_its_new_host(fleet: Database) -> None:
    number = decided(fleet)
    report(fleet, number, RUNNING)
    assert orders(fleet, "kvm1")[0].begun
    report(fleet, number, DONE, NOW + timedelta(seconds=42))
    report(fleet, number, FAILED)
    assert state(fleet, number) == (DONE, "")
    with fleet.reading() as session:
        assert get_vm(session, "render-1")["host"] == "kvm2"
        [done] = past_migrations(session, NOW)
        assert (done.vm, done.took_s) == ("render-1", 42.0)
        [row] = session.scalars(select(AuditRow)).all()
        assert (row.action, row.before, row.after) == ("vm.migrate", {"host": "kvm1"}, {"host": "kvm2"})
        assert busy_hosts(session) == frozenset()
    kinds = [kind for kind, _ in events(fleet)]
    assert kinds == ["migration-proposed", "migration-begun", "migration-done"]
    assert events(fleet)[-1][1].endswith("from kvm1 to kvm2 for shop is done, after 42 s")


def test_progress_bothers_no_other_agent(fleet: Database) -> None:
    number = decided(fleet)
    report(fleet, number, RUNNING)
    with fleet.reading() as session:
        before = registration_revision(session)
    report(fleet, number, RUNNING)
    with fleet.reading() as session:
        assert registration_revision(session) == before
        assert get_proposal(session, number).copied == 0.5


def test_a_failure_is_told_with_its_reason(fleet: Database) -> None:
    number = decided(fleet)
    report(fleet, number, FAILED, host="kvm2")
    assert state(fleet, number)[0] is MigrationState.APPROVED, "it is not kvm2's"
    report(fleet, number, FAILED)
    assert state(fleet, number) == (FAILED, "no disk there")
    with fleet.reading() as session:
        assert get_vm(session, "render-1")["host"] == "kvm1"
        assert len(past_migrations(session, NOW)) == 1, "it rests"
        assert past_migrations(session, NOW + timedelta(seconds=1)) == []
    assert events(fleet)[-1][0] == "migration-failed"


def test_only_what_is_proposed_can_be_decided(fleet: Database) -> None:
    first, second = proposed(fleet), proposed(fleet)
    with fleet.registering() as session:
        assert dismiss(session, first, "ann", NOW).state is MigrationState.DISMISSED
    for decide in (approve, dismiss):
        with pytest.raises(Conflict, match="is dismissed: only one"), fleet.registering() as session:
            decide(session, first, "ann", NOW)
        with pytest.raises(Conflict, match="has changed"), fleet.registering() as session:
            decide(session, second, "ann", NOW + timedelta(minutes=31))
        with pytest.raises(NotFound, match="no proposal 999"), fleet.registering() as session:
            decide(session, 999, "ann", NOW)


def test_hosts_that_cannot_are_refused(fleet: Database) -> None:
    number = proposed(fleet)
    with fleet.registering() as session:
        get(session, HostRow, "kvm2").mode = Mode.OBSERVE
    with pytest.raises(Conflict, match="kvm2 is in mode observe"), fleet.registering() as session:
        approve(session, number, "ann", NOW)
    with fleet.registering() as session:
        host = get(session, HostRow, "kvm2")
        host.mode, host.silent = Mode.ENFORCE, True
    with pytest.raises(Conflict, match="kvm2 does not report"), fleet.registering() as session:
        approve(session, number, "ann", NOW)
    with fleet.registering() as session:
        get(session, HostRow, "kvm2").silent = False
    runs_on(fleet, "kvm2")
    with pytest.raises(Conflict, match="does not run on kvm1 any more"), fleet.registering() as session:
        approve(session, number, "ann", NOW)


def test_a_host_has_one_migration_at_a_time(fleet: Database) -> None:
    first, second = decided(fleet), proposed(fleet)
    with pytest.raises(Conflict, match=f"migration {first} of one of these hosts"), fleet.registering() as session:
        approve(session, second, "ann", NOW)


@pytest.mark.parametrize(
    ("begun", "arrived", "ended"), [(True, True, DONE), (True, False, FAILED), (False, True, FAILED)]
)
def test_without_a_report_the_vms_host_tells(
    fleet: Database, begun: bool, arrived: bool, ended: MigrationState
) -> None:
    number = decided(fleet)
    if begun:
        report(fleet, number, RUNNING)
    if arrived:
        runs_on(fleet, "kvm2")
    with fleet.registering() as session:
        assert close_stale(session, NOW + timedelta(minutes=10)) == 0
        assert close_stale(session, NOW + timedelta(minutes=11)) == 1
    assert state(fleet, number)[0] is ended


def test_what_nobody_decides_expires_without_a_cool_down(fleet: Database) -> None:
    number = proposed(fleet)
    with fleet.registering() as session:
        assert close_stale(session, NOW + timedelta(minutes=31)) == 1
        assert past_migrations(session, NOW) == []
    assert state(fleet, number)[0] is MigrationState.EXPIRED
