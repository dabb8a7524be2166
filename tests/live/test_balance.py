"""Migrations that Equipoise itself carries out between two hosts: approved, refused, done, and interrupted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import libvirt
import pytest
from sqlalchemy import make_url

from deploy.lab.lab_vms import URI, LabHost
from manager.control.balance import BalanceRules, resting
from manager.model.migration import MovePrediction, MoveSpan
from manager.store.database import Database
from manager.store.proposals import Proposal, past_migrations, propose
from tests.live.conftest import HOST, HOT, START_S, Service, is_untouched, renew, serving, until, weight
from tests.live.second_host import AWAY, SecondHost, keep_apart, second_host, uri_of
from tests.live.test_control import CRITICAL
from tests.live.test_lifecycle import alarms

pytestmark = pytest.mark.live

SLOW_MIB_PER_S, FAST_MIB_PER_S = 1, 1000
PREDICTION = MovePrediction("shop", HOST, 95.0, 2.0, MoveSpan(9, 8, 10), MoveSpan(1, 0.9, 1.1))


@dataclass(frozen=True, slots=True)
class Fleet:
    """A manager with the agent of this host, and another host with its agent, whose processes ``other`` starts."""

    service: Service
    other: Service
    away: SecondHost
    database: Database

    def start_other_agent(self) -> subprocess.Popen[bytes]:
        """Returns once it has ticked."""
        before = self.service.client.get(f"/hosts/{AWAY}")["tick"]
        process = self.other.spawn("-m", "manager.cli", "agent", before=self.away.inside)

        def ticks() -> bool:
            return self.service.client.get(f"/hosts/{AWAY}")["tick"] != before or process.poll() is not None

        until(ticks, "the other agent to report", START_S)
        assert process.poll() is None
        return process

    def approved(self, source: str, destination: str) -> int:
        """A proposal to migrate the VM, as an operator approves it."""
        proposal = Proposal(HOT.name, source, destination, "shop", "its host is full", (PREDICTION,))
        with self.database.registering() as session:
            number = propose(session, proposal, datetime.now(UTC)).id
        assert "approved" in self.service.cli("proposals", "approve", str(number))
        return number

    def proposal(self, number: int) -> Any:
        return self.service.client.get(f"/proposals/{number}")

    def ended(self, number: int) -> Any:
        """The proposal once it is over."""
        until(lambda: self.proposal(number)["state"] in {"done", "failed"}, "the end of the migration", START_S)
        return self.proposal(number)

    def rests(self) -> frozenset[str]:
        """What no migration is proposed for."""
        now = datetime.now(UTC)
        with self.database.reading() as session:
            return resting(past_migrations(session, now - timedelta(days=1)), now.timestamp(), BalanceRules())

    def runs_on(self, host: str) -> bool:
        """Whether the VM is controlled there, and registered for that host."""
        vm = self.service.client.get(f"/vms/{HOT.name}")
        knobs = (vm["status"] or {}).get("knobs", [])
        owned = {knob["knob"] for knob in knobs if knob["owned"]}
        return (vm["host"], vm["status_host"]) == (host, host) and "weight" in owned and weight(HOT) == CRITICAL

    def kinds(self, host: str) -> list[str]:
        """The kinds of events about the VM at a host."""
        return [event["kind"] for event in self.service.client.items("/events", host=host) if event["vm"] == HOT.name]


@pytest.fixture(scope="module")
def fleet(open_lab: Callable[[], LabHost], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both hosts in mode enforce, and a critical VM on this one."""
    renew(open_lab(), HOT)
    keep_apart(HOT)
    hosts = tmp_path_factory.mktemp("hosts")
    settings = {"EQUIPOISE_ALLOW": "migrate", "EQUIPOISE_MIGRATION_URI": uri_of(hosts)}
    with second_host(hosts) as away, serving(tmp_path_factory.mktemp("manager")) as service:
        service.extra |= settings
        service.run()
        for name in (HOST, AWAY):
            service.client.request("PUT", f"/hosts/{name}", body={"mode": "enforce", "policy": "priority"})
        service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical", "host": HOST})
        other = Service(tmp_path_factory.mktemp("agent"), service.port)
        secret = service.cli("token", "create", "--role", "host", "--host", AWAY, "--name", AWAY).split()[-1]
        (other.folder / "agent.token").write_text(secret)
        other.extra |= settings | {"EQUIPOISE_HOST_NAME": AWAY, "EQUIPOISE_LIBVIRT_URI": away.uri}
        database = Database(make_url(f"sqlite:///{service.folder}/equipoise.db"), pool_size=1)
        made = Fleet(service, other, away, database)
        try:
            made.start_other_agent()
            until(lambda: made.runs_on(HOST), "the VM to be controlled")
            yield made
        finally:
            database.close()
            other.end()
            print(other.logs())


def test_what_the_destination_refuses_fails_in_libvirts_words(fleet: Fleet) -> None:
    namesake = fleet.away.connection.defineXML(
        f"<domain type='qemu'><name>{HOT.name}</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>"
    )
    assert fleet.rests() == frozenset()
    failed = fleet.ended(fleet.approved(HOST, AWAY))
    namesake.undefine()
    assert failed["state"] == "failed"
    assert "libvirt: " in failed["detail"]
    assert f"'{HOT.name}' already exists" in failed["detail"]
    assert fleet.runs_on(HOST), "it stays where it was"
    assert fleet.rests() == {f"vm {HOT.name}", f"host {HOST}", f"host {AWAY}"}
    assert "migration-failed" in fleet.kinds(HOST)


def test_a_vm_moves_to_the_other_host_and_back_although_the_agent_is_killed(fleet: Fleet) -> None:
    home = libvirt.open(URI)
    uuid = home.lookupByName(HOT.name).UUIDString()
    done = fleet.ended(fleet.approved(HOST, AWAY))
    assert (done["state"], done["copied"], done["detail"]) == ("done", 1.0, "")
    assert [(each["before"]["ms"], each["after"]["ms"]) for each in done["predictions"]] == [(9, 1)]
    until(lambda: fleet.runs_on(AWAY), "the VM to be controlled at the other host")
    assert (fleet.away.vms, HOT.name in {domain.name() for domain in home.listAllDomains()}) == ([HOT.name], False)
    assert {"migration-begun", "migration-done"} <= set(fleet.kinds(HOST))
    assert {"vm-found", "vm-moved"} <= set(fleet.kinds(AWAY))

    guest = fleet.away.connection.lookupByUUIDString(uuid)
    guest.migrateSetMaxSpeed(SLOW_MIB_PER_S)
    number = fleet.approved(AWAY, HOST)
    until(lambda: fleet.proposal(number)["copied"], "the agent to say how far the migration is")
    agent = fleet.other.processes[-1]
    agent.kill()
    agent.wait()
    until(lambda: guest.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE, "libvirt to go on")
    fleet.start_other_agent()
    before = fleet.proposal(number)["copied"]
    until(lambda: fleet.proposal(number)["copied"] != before, "the next agent to say how far it is")
    guest.migrateSetMaxSpeed(FAST_MIB_PER_S)
    back = fleet.ended(number)
    assert (back["state"], back["detail"]) == ("done", "")
    until(lambda: fleet.runs_on(HOST), "the VM to be controlled here again")
    assert fleet.away.vms == []
    assert home.lookupByUUIDString(uuid).state()[0] == libvirt.VIR_DOMAIN_RUNNING
    home.close()
    fleet.service.cli("release")
    assert is_untouched(HOT)
    assert [text for text in alarms(fleet.service) if "already exists" not in text] == []
