"""A live migration of a real VM away and back, to a second libvirtd on this machine, by somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import libvirt
import pytest

from deploy.lab.lab_vms import URI
from tests.live.conftest import HOST, HOT, Service, held, is_untouched, until, virsh, weight
from tests.live.second_host import SecondHost, keep_apart, second_host
from tests.live.test_control import CRITICAL, vcpu_cpus
from tests.live.test_lifecycle import alarms, driven, original, status

pytestmark = pytest.mark.live

SLOW_MIB_PER_S, FAST_MIB_PER_S = 1, 1000


@pytest.fixture
def away(tmp_path: Path) -> Iterator[SecondHost]:
    """The other host."""
    hosts = tmp_path / "hosts"
    hosts.mkdir()
    with second_host(hosts) as started:
        yield started


@pytest.fixture
def first(hot: dict[str, str]) -> dict[str, str]:
    """What the kernel holds of the VM."""
    del hot
    keep_apart(HOT)
    return held(HOT)


def migrate(domain: libvirt.virDomain, to: libvirt.virConnect) -> libvirt.virDomain:
    return domain.migrate3(to, {libvirt.VIR_MIGRATE_PARAM_URI: "tcp:127.0.0.1"}, libvirt.VIR_MIGRATE_LIVE)


def test_a_vm_that_migrates_away_and_back(first: dict[str, str], service: Service, away: SecondHost) -> None:
    """It leaves as any VM that ends, its settings stay here, and it comes back as a new process."""
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical"})
    until(lambda: driven(service), "weight and pins")
    before = virsh("dumpxml", HOT.name, "--inactive")
    home = libvirt.open(URI)
    domain = home.lookupByName(HOT.name)
    assert "cputune" not in domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE), "nothing of ours travels along"
    domain.migrateSetMaxSpeed(SLOW_MIB_PER_S)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(migrate, domain, away.connection)
        try:
            until(lambda: status(service).get("migrating") or under_way.done(), "the host to say that the VM leaves")
            assert not under_way.done(), under_way.result()
        finally:
            domain.migrateSetMaxSpeed(FAST_MIB_PER_S)
        guest = under_way.result()
    until(lambda: status(service) == {}, "the API to show that it is gone")
    assert away.vms == [HOT.name]
    assert "cputune" not in guest.XMLDesc()
    parameters = guest.schedulerParameters()
    assert parameters["cpu_shares"] in {100, 1024}
    service.ticks(3)
    migrate(guest, home)
    until(lambda: driven(service), "the VM to be managed again")
    assert status(service)["migrating"] is False
    guest = home.lookupByName(HOT.name)
    assert guest.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    home.close()
    until(lambda: original(service, "weight"), "its original in the API")
    assert (weight(HOT), len(vcpu_cpus(HOT.name))) == (CRITICAL, 1)
    assert virsh("dumpxml", HOT.name, "--inactive") == before
    service.cli("release")
    assert is_untouched(HOT)
    assert held(HOT).keys().isdisjoint(first), "another process in another group"
    assert alarms(service) == []
    gone = [event["kind"] for event in service.client.items("/events") if event["vm"] == HOT.name]
    assert sorted(gone) == ["vm-found", "vm-found", "vm-gone"]
