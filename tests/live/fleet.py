"""A manager with two hosts of this machine between which it migrates VMs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from deploy.lab.lab_vms import LabVm
from manager.control.balance import BalanceRules, resting
from manager.store.database import Database
from manager.store.proposals import Proposal, past_migrations, propose
from tests.live.conftest import HOST, START_S, Service, serving, until
from tests.live.second_host import AWAY, SecondHost, second_host, uri_of


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

    def propose(self, proposal: Proposal) -> int:
        """Store a proposal as the manager's job does; its number."""
        with self.database.registering() as session:
            return propose(session, proposal, datetime.now(UTC)).id

    def approve(self, number: int) -> None:
        """As an operator does."""
        assert "approved" in self.service.cli("proposals", "approve", str(number))

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

    def controls(self, vm: LabVm, host: str) -> bool:
        """Whether a VM is registered for that host, and its weight is set there."""
        known = self.service.client.get(f"/vms/{vm.name}")
        knobs = (known["status"] or {}).get("knobs", [])
        owned = {knob["knob"] for knob in knobs if knob["owned"]}
        return (known["host"], known["status_host"]) == (host, host) and "weight" in owned

    def kinds(self, vm: LabVm, host: str) -> list[str]:
        """The kinds of events about a VM at a host."""
        return [event["kind"] for event in self.service.client.items("/events", host=host) if event["vm"] == vm.name]


@contextmanager
def two_hosts(folder: Path, policy: str, **settings: str) -> Iterator[Fleet]:
    """Both in mode enforce, without VMs. ``settings`` by their environment variables, of manager and agents."""
    hosts, manager, agent = (folder / name for name in ("hosts", "manager", "agent"))
    for each in (hosts, manager, agent):
        each.mkdir(mode=0o700)
    settings |= {"EQUIPOISE_ALLOW": "migrate", "EQUIPOISE_MIGRATION_URI": uri_of(hosts)}
    with second_host(hosts) as away, serving(manager) as service:
        service.extra |= settings
        service.run()
        body = {"mode": "enforce", "policy": policy, "placement": {"batch_group": "off"}}
        for name in (HOST, AWAY):
            service.client.request("PUT", f"/hosts/{name}", body=body)
        other = Service(agent, service.port)
        secret = service.cli("token", "create", "--role", "host", "--host", AWAY, "--name", AWAY).split()[-1]
        (other.folder / "agent.token").write_text(secret)
        other.extra |= settings | {"EQUIPOISE_HOST_NAME": AWAY, "EQUIPOISE_LIBVIRT_URI": away.uri}
        database = Database(make_url(f"sqlite:///{service.folder}/equipoise.db"), pool_size=1)
        made = Fleet(service, other, away, database)
        try:
            made.start_other_agent()
            yield made
        finally:
            database.close()
            other.end()
            print(other.logs())
