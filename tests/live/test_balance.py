"""Migrations that Equipoise itself carries out between two hosts: approved, refused, done, and interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libvirt
import pytest

from deploy.lab.lab_vms import URI, LabHost
from manager.model.migration import MovePrediction, MoveSpan
from manager.store.proposals import Proposal
from tests.live.conftest import HOST, HOT, is_untouched, renew, until, weight
from tests.live.fleet import Fleet, two_hosts
from tests.live.second_host import AWAY, keep_apart
from tests.live.test_control import CRITICAL
from tests.live.test_lifecycle import alarms

pytestmark = pytest.mark.live

SLOW_MIB_PER_S, FAST_MIB_PER_S = 1, 1000
PREDICTION = MovePrediction("shop", HOST, 95.0, 2.0, MoveSpan(9, 8, 10), MoveSpan(1, 0.9, 1.1))


def moving(source: str, destination: str) -> Proposal:
    """A proposal to migrate the VM."""
    return Proposal(HOT.name, source, destination, "shop", "its host is full", (PREDICTION,))


@pytest.fixture(scope="module")
def fleet(open_lab: Callable[[], LabHost], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both hosts, and a critical VM on this one."""
    renew(open_lab(), HOT)
    keep_apart(HOT)
    with two_hosts(tmp_path_factory.mktemp("fleet"), "priority") as made:
        made.service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical", "host": HOST})
        until(lambda: made.controls(HOT, HOST), "the VM to be controlled")
        yield made


def approved(fleet: Fleet, source: str, destination: str) -> int:
    """A proposal as an operator approves it."""
    number = fleet.propose(moving(source, destination))
    fleet.approve(number)
    return number


def test_what_the_destination_refuses_fails_in_libvirts_words(fleet: Fleet) -> None:
    namesake = fleet.away.connection.defineXML(
        f"<domain type='qemu'><name>{HOT.name}</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>"
    )
    assert fleet.rests() == frozenset()
    failed = fleet.ended(approved(fleet, HOST, AWAY))
    namesake.undefine()
    assert failed["state"] == "failed"
    assert "libvirt: " in failed["detail"]
    assert f"'{HOT.name}' already exists" in failed["detail"]
    assert fleet.controls(HOT, HOST), "it stays where it was"
    assert fleet.rests() == {f"vm {HOT.name}", f"host {HOST}", f"host {AWAY}"}
    assert "migration-failed" in fleet.kinds(HOT, HOST)


def test_a_vm_moves_to_the_other_host_and_back_although_the_agent_is_killed(fleet: Fleet) -> None:
    home = libvirt.open(URI)
    uuid = home.lookupByName(HOT.name).UUIDString()
    done = fleet.ended(approved(fleet, HOST, AWAY))
    assert (done["state"], done["copied"], done["detail"]) == ("done", 1.0, "")
    assert [(each["before"]["ms"], each["after"]["ms"]) for each in done["predictions"]] == [(9, 1)]
    until(lambda: fleet.controls(HOT, AWAY), "the VM to be controlled at the other host")
    assert weight(HOT) == CRITICAL
    assert (fleet.away.vms, HOT.name in {domain.name() for domain in home.listAllDomains()}) == ([HOT.name], False)
    assert {"migration-begun", "migration-done"} <= set(fleet.kinds(HOT, HOST))
    assert {"vm-found", "vm-moved"} <= set(fleet.kinds(HOT, AWAY))

    guest = fleet.away.connection.lookupByUUIDString(uuid)
    guest.migrateSetMaxSpeed(SLOW_MIB_PER_S)
    number = approved(fleet, AWAY, HOST)
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
    until(lambda: fleet.controls(HOT, HOST), "the VM to be controlled here again")
    assert fleet.away.vms == []
    assert home.lookupByUUIDString(uuid).state()[0] == libvirt.VIR_DOMAIN_RUNNING
    home.close()
    fleet.service.cli("release")
    assert is_untouched(HOT)
    assert [text for text in alarms(fleet.service) if "already exists" not in text] == []
