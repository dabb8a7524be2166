"""Orders to migrate VMs: each is carried out once, within the agent's limits, and reported until the manager knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.loop.migrations import Migrations
from manager.model.fields import timestamp
from manager.model.limits import DEFAULT_LIMITS, EVERYTHING, AgentLimits
from manager.model.migration import MigrationOrder, MigrationReport, MigrationState
from manager.model.registration import Mode
from manager.store.database import Database
from manager.store.proposals import Proposal, propose
from tests.fakes.host import FakeHost
from tests.fakes.migrator import FakeMigrator
from tests.loop.site import START_S, Site

RUNNING, DONE, FAILED = MigrationState.RUNNING, MigrationState.DONE, MigrationState.FAILED


@pytest.fixture
def host() -> FakeHost:
    made = FakeHost()
    for name in ("render", "other"):
        made.boot(name)
    return made


@pytest.fixture
def migrator(host: FakeHost) -> Iterator[FakeMigrator]:
    made = FakeMigrator(host)
    yield made
    made.lets.set()


def order(host: FakeHost, number: int = 1, name: str = "render", *, begun: bool = False) -> MigrationOrder:
    instance = next(each for each in host.running().values() if each.libvirt_name == name)
    return MigrationOrder(number, name, name, instance.uuid, "kvm2", begun)


def ended(migrations: Migrations, migrator: FakeMigrator) -> list[MigrationReport]:
    migrator.lets.set()
    migrations.wait(120)
    return migrations.reports()


def test_a_migration_is_watched_and_reported_until_the_manager_knows(host: FakeHost, migrator: FakeMigrator) -> None:
    migrations, wanted = Migrations(host, migrator, EVERYTHING), order(host)
    migrations.obey([wanted])
    assert migrator.begun.wait(120)
    running = migrations.reports()
    assert running == [MigrationReport(1, RUNNING, 0.25)]
    assert not migrations.untold
    migrations.reported(running)
    assert migrations.reports() == running, "it goes on"
    assert ended(migrations, migrator) == [MigrationReport(1, DONE, 1.0)]
    assert migrations.untold
    migrations.reported(running)
    assert migrations.untold, "the manager knows what was before"
    migrations.reported(migrations.reports())
    assert (migrations.reports(), migrations.untold) == ([], False)
    migrations.obey([wanted])
    assert migrator.moved == [("render", "kvm2")], "an order that the manager still lists is not carried out again"


def test_one_at_a_time(host: FakeHost, migrator: FakeMigrator) -> None:
    migrations, orders = Migrations(host, migrator, EVERYTHING), [order(host), order(host, 2, "other")]
    migrations.obey(orders)
    migrations.obey(orders)
    assert [report.number for report in migrations.reports()] == [1]
    ended(migrations, migrator)
    migrations.obey(orders)
    migrations.wait(120)
    assert migrator.moved == [("render", "kvm2"), ("other", "kvm2")]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (HostError("libvirt: Unsafe migration"), "libvirt: Unsafe migration"),
        (RuntimeError("x" * 3000), "a mistake of the agent: RuntimeError('xxx"),
    ],
)
def test_a_failure_is_reported_with_its_reason(
    host: FakeHost, migrator: FakeMigrator, error: Exception, says: str
) -> None:
    migrator.error = error
    migrations = Migrations(host, migrator, EVERYTHING)
    migrations.obey([order(host)])
    [report] = ended(migrations, migrator)
    assert report.state is FAILED
    assert report.detail.startswith(says)
    assert len(report.detail) <= 2000


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (DEFAULT_LIMITS, "limited by this agent's settings: allow has no migrate"),
        (replace(EVERYTHING, max_mode=Mode.OBSERVE), "limited by this agent's settings: max_mode = observe"),
    ],
)
def test_the_agents_own_settings_have_the_last_word(
    host: FakeHost, migrator: FakeMigrator, limits: AgentLimits, says: str
) -> None:
    migrations = Migrations(host, migrator, limits)
    migrations.obey([order(host)])
    assert migrations.reports() == [MigrationReport(1, FAILED, None, says)]
    assert not migrator.begun.is_set()


def test_a_host_without_libvirt_and_a_vm_that_is_gone(host: FakeHost, migrator: FakeMigrator) -> None:
    simulated = Migrations(host, None, EVERYTHING)
    simulated.obey([order(host)])
    assert simulated.reports()[0].detail == "this host cannot migrate VMs"
    gone = order(host)
    host.stop("render")
    migrations = Migrations(host, migrator, EVERYTHING)
    migrations.obey([gone])
    assert migrations.reports()[0].detail == "VM render does not run on this host"


@pytest.mark.parametrize("known", [True, False])
def test_what_an_agent_before_began_is_watched(host: FakeHost, migrator: FakeMigrator, known: bool) -> None:
    begun = order(host, begun=known)
    if not known:  # that agent was killed before it reported
        host.leaving.add(begun.libvirt_uuid)
    migrations = Migrations(host, migrator, EVERYTHING)
    migrations.obey([begun])
    assert migrator.begun.wait(120)
    assert migrations.reports() == [MigrationReport(1, RUNNING, 0.5)]
    [report] = ended(migrations, migrator)
    assert (report.state, migrator.moved) == (FAILED, [])
    assert report.detail.startswith("the agent was restarted meanwhile")


@pytest.mark.parametrize("error", [VmVanished("libvirt: no domain"), HostError("libvirt does not answer")])
def test_what_cannot_be_watched_any_more_is_told_by_others(
    host: FakeHost, migrator: FakeMigrator, error: HostError
) -> None:
    migrator.error = error
    migrations = Migrations(host, migrator, EVERYTHING)
    migrations.obey([order(host, begun=True)])
    migrations.obey([order(host, 2, "other")])
    assert [report.number for report in migrations.reports()] == [1], "one at a time, too"
    assert ended(migrations, migrator) == []
    begun = order(host, begun=True)
    migrator.error = None
    migrations.obey([begun])
    assert [report.state for report in ended(migrations, migrator)] == [FAILED], "it is looked at again"
    host.stop("render")
    again = Migrations(host, migrator, EVERYTHING)
    again.obey([begun])
    assert again.reports() == [], "it has left: its new host reports it"


def test_old_attempts_are_forgotten(host: FakeHost) -> None:
    migrations = Migrations(host, None, EVERYTHING)
    migrations.obey([replace(order(host), number=number) for number in range(1, 150)])
    migrations.obey([])
    assert len(migrations.reports()) == 100


def test_what_an_operator_approves_is_carried_out_and_known_at_the_manager(
    migrated: Callable[[str], Database], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        site = Site(migrated("sqlite"), tmp_path, stack)
        machine = site.machines[0]
        site.client.request("PUT", "/vms/render", body={"class": "batch"})
        machine.host.boot("render")
        for each in site.machines:
            each.agent.reporter.sync()
            each.agent.tick()
        site.pass_slot()
        with site.database.registering() as session:
            propose(session, Proposal("render", "a", "b", "shop", "its host is full", ()), timestamp(START_S))
        site.client.request("POST", "/proposals/1/approve")

        def state() -> str:
            return str(site.client.get("/proposals/1")["state"])

        site.pass_slot()
        assert machine.migrator.begun.wait(120)
        site.pass_slot()
        assert state() == "running"
        assert site.client.get("/proposals/1")["copied"] == 0.25
        machine.migrator.lets.set()
        machine.agent.migrations.wait(120)
        site.machines[1].host.boot("render")
        site.pass_slot()
        assert state() == "done"
        assert machine.migrator.moved == [("render", "b")]
        site.pass_slot()
        assert site.client.get("/vms/render")["status_host"] == "b"
        kinds = {event["kind"] for event in site.client.items("/events")}
        assert {"migration-proposed", "migration-begun", "migration-done", "vm-moved"} <= kinds
