"""Proposals to migrate VMs: who decides, what agents are told and report, and what ends by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import select, text

from manager.api.context import ManagerContext
from manager.api.manager_jobs import make_jobs
from manager.errors import Conflict, NotFound
from manager.model.migration import MigrationOrder, MigrationReport, MigrationState, MovePrediction, MoveSpan
from manager.model.registration import HostSpec, Mode, VmClass, VmSpec
from manager.settings import load_settings
from manager.store.access_models import AuditRow
from manager.store.database import Database
from manager.store.hosts import put_host, put_statuses, replace_domains
from manager.store.jobs import JobResult, Jobs
from manager.store.models import EventRow, HostRow
from manager.store.proposals import (
    BY_SETTING,
    Proposal,
    approve,
    busy_hosts,
    close_proposals,
    dismiss,
    get_proposal,
    list_proposals,
    orders_of,
    past_migrations,
    propose,
    take_reports,
)
from manager.store.registrations import get
from manager.store.revisions import registration_revision
from manager.store.vm_claims import take_statuses
from manager.store.vm_lists import get_vm
from manager.store.vms import put_vm
from policies.installed import InstalledPolicy
from policies.priority import POLICY as PRIORITY

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


def close_after(database: Database, minutes: float) -> int:
    with database.writing() as session:
        return close_proposals(session, NOW + timedelta(minutes=minutes))


def leaves(database: Database) -> None:
    """The VM is gone at its host."""
    with database.writing() as session:
        take_statuses(session, get(session, HostRow, "kvm1"), [], NOW, timedelta(seconds=15), whole=True)


def arrives(database: Database, name: str = "render-1") -> None:
    """The destination reports a domain; the VM it does not report, as that is registered for the source."""
    with database.writing() as session:
        replace_domains(session, get(session, HostRow, "kvm2"), {UUID: name})


@pytest.mark.parametrize("uuid", [None, UUID])
def test_a_vm_that_arrived_ends_its_migration_where_no_agent_reports_that(fleet: Database, uuid: str | None) -> None:
    spec = VmSpec("render-1", vm_class=VmClass.BATCH, host="kvm1", libvirt_uuid=uuid)
    with fleet.registering() as session:
        put_vm(session, spec, NOW, lambda _etag: None)
    number = decided(fleet)
    report(fleet, number, RUNNING)
    arrives(fleet, "render-1" if uuid is None else "another name")
    with fleet.reading() as session:
        before = registration_revision(session)
    assert close_after(fleet, 1) == 0, "the source has it, too"
    with fleet.reading() as session:
        assert registration_revision(session) == before, "agents are bothered by nothing"
    leaves(fleet)
    assert close_after(fleet, 1) == 1
    assert state(fleet, number) == (DONE, "")
    with fleet.reading() as session:
        assert get_vm(session, "render-1")["host"] == "kvm2"


def test_an_agent_that_knows_of_no_migration_does_not_make_it_a_failure(fleet: Database) -> None:
    number = decided(fleet)
    leaves(fleet)
    arrives(fleet)
    report(fleet, number, FAILED, NOW + timedelta(minutes=1))
    assert state(fleet, number) == (DONE, "")


SILENT = "no report on it came from the agent of kvm1"


@pytest.mark.parametrize(
    ("begun", "acts", "why"),
    [
        (True, [], SILENT),
        (False, [leaves], SILENT),
        (True, [arrives], f"{SILENT}, and kvm2 has a domain of this VM"),
        (True, [leaves], "render-1 left kvm1, and the agent of kvm2 does not report it"),
        (False, [partial(runs_on, host="kvm2")], "render-1 runs on kvm2"),
    ],
)
def test_without_a_report_it_failed_and_the_place_of_the_vm_tells_why(
    fleet: Database, begun: bool, acts: list[Callable[[Database], None]], why: str
) -> None:
    number = decided(fleet)
    if begun:
        report(fleet, number, RUNNING)
    for act in acts:
        act(fleet)
    assert (close_after(fleet, 10), close_after(fleet, 11)) == (0, 1)
    assert state(fleet, number) == (FAILED, why)


def test_what_nobody_decides_expires_without_a_cool_down(fleet: Database) -> None:
    number = proposed(fleet)
    with fleet.registering() as session:
        assert close_proposals(session, NOW + timedelta(minutes=31)) == 1
        assert past_migrations(session, NOW) == []
    assert state(fleet, number)[0] is MigrationState.EXPIRED


def test_what_is_decided_or_reported_while_it_would_end_counts(fleet: Database) -> None:
    number = proposed(fleet)
    with ThreadPoolExecutor(1) as pool:
        with fleet.exclusively() as session:
            approve(session, number, "user ann", NOW + timedelta(minutes=29))
            ended = pool.submit(close_after, fleet, 31)
            wait_until_blocked(fleet)
        assert ended.result() == 0
    assert state(fleet, number) == (MigrationState.APPROVED, "")
    with ThreadPoolExecutor(1) as pool:
        with fleet.exclusively() as session:
            assert close_proposals(session, NOW + timedelta(minutes=40)) == 1
            reported = pool.submit(report, fleet, number, RUNNING, NOW + timedelta(minutes=39))
            wait_until_blocked(fleet)
        reported.result()
    assert state(fleet, number)[0] is FAILED
    assert [kind for kind, _ in events(fleet)] == ["migration-proposed", "migration-failed"], "it has not begun"


def wait_until_blocked(database: Database) -> None:
    """Until another transaction waits for a lock; on SQLite it waits before it has read anything."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while database.file is None:
        with database.reading() as session:
            if session.scalar(waiting):
                return


def test_a_migration_goes_on_while_no_manager_runs(fleet: Database) -> None:
    number = decided(fleet)
    report(fleet, number, RUNNING)
    later = NOW + timedelta(minutes=15)  # of which no manager ran in the last 14
    policies = {"priority": InstalledPolicy(PRIORITY, "equipoise")}
    context = ManagerContext(fleet, policies, stale_s=30, min_samples=20, clock=later.timestamp)
    [job] = [job for job in make_jobs(load_settings(None, {}, {}), context) if job.name == "migrations"]
    assert Jobs(fleet, [job], context.clock).ask(job) is JobResult.DONE
    assert state(fleet, number)[0] is RUNNING
    report(fleet, number, DONE, later)
    with fleet.reading() as session:
        assert get_vm(session, "render-1")["host"] == "kvm2"
