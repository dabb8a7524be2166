"""Whose assignments a registration concerns: those are read again, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from sqlalchemy import update

from manager.api.assignments import Assignments
from manager.api.context import ManagerContext
from manager.model.migration import MigrationReport, MigrationState
from manager.protocol.assignment import AssignmentOut
from manager.store.host_models import RevisionRow
from manager.store.models import HostRow
from manager.store.proposals import Proposal, propose, take_reports
from manager.store.registrations import find
from manager.store.revisions import assignment_revision, registration_revision
from tests.api.conftest import START, Api

HOSTS = ("kvm1", "kvm2", "kvm3", "kvm4")
VMS = tuple(f"vm-{number}" for number in range(8))
APPLICATIONS = ("blog", "mail", "shop")
STEPS = 60


@dataclass
class Fleet:
    """An API, and what a manager's process keeps of assignments."""

    api: Api
    kept: list[Assignments] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept += [self.anew(), self.anew()]

    def anew(self) -> Assignments:
        """A process that knows nothing yet."""
        return Assignments(ManagerContext(self.api.database, {}, 30, 1, slot_s=5.0, clock=self.api.clock))

    def hosts(self) -> list[str]:
        """Those that are registered."""
        with self.api.database.reading() as session:
            return [name for name in HOSTS if find(session, HostRow, name) is not None]

    def of(self, assignments: Assignments, host: str) -> tuple[AssignmentOut, int]:
        """What a process answers the agent of a host."""
        with self.api.database.reading() as session:
            return assignments.whole(session, host, taps=True)

    def revisions(self) -> dict[str, int]:
        """Of each host's assignment."""
        with self.api.database.reading() as session:
            return {name: assignment_revision(session, name) for name in HOSTS}

    def look(self) -> None:
        """Let all processes read all assignments."""
        for host in self.hosts():
            for one in self.kept:
                self.of(one, host)

    def migrate(self, vm: str, source: str, destination: str) -> None:
        """Let a migration be proposed, approved by the source's setting, and done, and all of it be seen."""
        now = datetime.fromtimestamp(self.api.clock.now_s, UTC)
        proposal = Proposal(vm, source, destination, "shop", "its host is full", ())
        with self.api.database.registering(source, destination) as session:
            number = propose(session, proposal, now, approved=True).id
        for state in (MigrationState.RUNNING, MigrationState.DONE):
            self.look()
            with self.api.database.writing() as session:
                take_reports(session, source, [MigrationReport(number, state, 0.5, "")], now)


@pytest.fixture
def fleet(api: Api) -> Fleet:
    for name in HOSTS:
        api.ok("PUT", f"/hosts/{name}", {"mode": "observe"})
    return Fleet(api)


def change(fleet: Fleet, chance: Random) -> None:
    """Register something, or try to."""
    call, host, vm = fleet.api.call, chance.choice(HOSTS), chance.choice(VMS)
    name = chance.choice(APPLICATIONS)

    def put_application() -> None:
        vms = chance.sample(VMS, chance.randint(0, 3))
        source = {"type": "nginx_file", "name": "log", "path": "/x", "host": chance.choice(HOSTS)}
        body: dict[str, Any] = {
            "tiers": [{"name": "web", "vms": vms}],
            "sla": {"response_time_ms": chance.randint(5, 9)},
        }
        call("PUT", f"/applications/{name}", body | ({"sources": [source]} if chance.random() < 0.3 else {}))

    def put_vm() -> None:
        body = {"class": chance.choice(["critical", "batch"]), "host": chance.choice([*HOSTS, host, None])}
        call("PUT", f"/vms/{vm}", body)

    def migrate() -> None:
        others = [other for other in HOSTS if other != host]
        fleet.migrate(vm, host, chance.choice(others))

    kinds: list[Callable[[], object]] = [
        *[put_application] * 4,
        *[put_vm] * 6,
        migrate,
        lambda: call("DELETE", f"/vms/{vm}"),
        lambda: call("DELETE", f"/applications/{name}"),
        lambda: call("POST", f"/vms/{vm}/adopt"),
        lambda: call("PATCH", f"/hosts/{host}", {"pinning": chance.random() < 0.5}),
        lambda: call("DELETE", f"/hosts/{host}"),
        lambda: call("PUT", f"/hosts/{host}", {"mode": "enforce"}),
    ]
    chance.choice(kinds)()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_is_registered(fleet: Fleet, seed: int) -> None:
    chance = Random(seed)
    for _ in range(STEPS):
        change(fleet, chance)
        for host in fleet.hosts():
            truth = fleet.of(fleet.anew(), host)
            told = [fleet.of(one, host) for one in fleet.kept if chance.random() < 0.7]
            assert all(answer == truth for answer in told), host


@pytest.fixture
def shop(fleet: Fleet) -> Fleet:
    """An application on two of four hosts; a VM on each, and one that may run anywhere."""
    for vm, host in (("vm-0", "kvm1"), ("vm-1", "kvm2"), ("vm-2", "kvm3"), ("vm-3", "kvm4"), ("vm-4", None)):
        fleet.api.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": host})
    fleet.api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["vm-0", "vm-1"]}]})
    return fleet


CONCERNED: dict[str, tuple[Callable[[Api], object], set[str]]] = {
    "a VM": (lambda api: api.ok("PUT", "/vms/vm-2", {"class": "batch", "host": "kvm3"}), {"kvm3"}),
    "one that is new": (lambda api: api.ok("PUT", "/vms/vm-9", {"class": "batch", "host": "kvm3"}), {"kvm3"}),
    "one that moves": (lambda api: api.ok("PUT", "/vms/vm-2", {"class": "critical", "host": "kvm4"}), {"kvm3", "kvm4"}),
    "one that goes": (lambda api: api.ok("DELETE", "/vms/vm-2"), {"kvm3"}),
    "one for any host": (lambda api: api.ok("PUT", "/vms/vm-4", {"class": "batch", "host": None}), set(HOSTS)),
    "one that was": (lambda api: api.ok("PUT", "/vms/vm-4", {"class": "batch", "host": "kvm1"}), set(HOSTS)),
    "an application": (
        lambda api: api.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 9}}),
        {"kvm1", "kvm2"},
    ),
    "its VMs": (
        lambda api: api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["vm-2"]}]}),
        {"kvm1", "kvm2", "kvm3"},
    ),
    "one that goes, too": (lambda api: api.ok("DELETE", "/applications/shop"), {"kvm1", "kvm2"}),
    "a source elsewhere": (
        lambda api: api.ok(
            "PATCH",
            "/applications/shop",
            {"sources": [{"type": "nginx_file", "name": "log", "path": "/x", "host": "kvm4"}]},
        ),
        {"kvm1", "kvm2", "kvm4"},
    ),
    "a host": (lambda api: api.ok("PATCH", "/hosts/kvm3", {"mode": "enforce"}), {"kvm3"}),
    "nothing": (lambda api: api.ok("PATCH", "/hosts/kvm3", {"mode": "observe"}), set()),
}


@pytest.mark.parametrize(("register", "concerned"), CONCERNED.values(), ids=CONCERNED)
def test_a_registration_concerns_its_hosts_alone(
    shop: Fleet, register: Callable[[Api], object], concerned: set[str]
) -> None:
    before = shop.revisions()
    register(shop.api)
    after = shop.revisions()
    assert {name for name in HOSTS if after[name] != before[name]} == concerned
    assert all(after[name] > max(before.values()) for name in concerned)


def test_a_migration_concerns_its_two_hosts(shop: Fleet) -> None:
    before = shop.revisions()
    shop.migrate("vm-2", "kvm3", "kvm4")
    after = shop.revisions()
    assert {name for name in HOSTS if after[name] != before[name]} == {"kvm3", "kvm4"}
    assert "vm-2" in {vm.name for vm in shop.of(shop.kept[0], "kvm4")[0].vms}


def test_a_host_that_is_deleted_and_registered_again_is_another_one(shop: Fleet) -> None:
    before = shop.of(shop.kept[0], "kvm4")
    shop.api.ok("DELETE", "/hosts/kvm4")
    assert shop.revisions()["kvm4"] == 0
    shop.api.ok("PUT", "/hosts/kvm4", {"mode": "enforce"})
    after = shop.of(shop.kept[0], "kvm4")
    assert (before[0].host.mode, after[0].host.mode) == ("observe", "enforce")
    assert after[1] > before[1]


def test_what_a_manager_of_an_earlier_version_registers_concerns_all(shop: Fleet) -> None:
    with shop.api.database.writing() as session:
        number = registration_revision(session) + 1
        session.execute(update(RevisionRow).values(number=number))
    assert set(shop.revisions().values()) == {number}
    shop.api.ok("PATCH", "/hosts/kvm3", {"mode": "enforce"})
    [later] = set(shop.revisions().values())
    assert later > number, "nobody knows what that manager's registration was about"
    shop.api.ok("PATCH", "/hosts/kvm3", {"mode": "observe"})
    assert [name for name, revision in shop.revisions().items() if revision > later] == ["kvm3"]


def test_the_time_of_a_registration_is_that_of_the_fleet(shop: Fleet) -> None:
    with shop.api.database.reading() as session:
        assert registration_revision(session) == max(shop.revisions().values())
    assert START.timestamp() < shop.revisions()["kvm1"] / 1e6
