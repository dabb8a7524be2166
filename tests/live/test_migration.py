"""A live migration of a real VM away and back, to a second libvirtd on this machine.

Two hosts on one machine: the other libvirtd has a mount namespace of its own, in which libvirt's folders are empty, a
host UUID of its own, and a socket elsewhere. The kernel, and so the cgroup hierarchy, is the same.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import libvirt
import pytest

from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.lab_vms import URI
from tests.live.conftest import HOST, HOT, WAIT_S, Service, held, is_untouched, until, virsh, weight
from tests.live.test_control import CRITICAL, vcpu_cpus
from tests.live.test_lifecycle import alarms, driven, original, status

pytestmark = pytest.mark.live

SLOW_MIB_PER_S, FAST_MIB_PER_S = 1, 1000
HIDDEN = ("/run/libvirt", "/var/lib/libvirt", "/etc/libvirt/qemu")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[libvirt.virConnect]:
    """The other host."""
    daemon = tmp_path / "libvirtd.conf"
    daemon.write_text(
        f'host_uuid = "{uuid.uuid4()}"\nunix_sock_dir = "{tmp_path}"\nauth_unix_rw = "none"\n'
        f'log_outputs = "3:file:{tmp_path}/log"\n'
    )
    qemu = tmp_path / "qemu.conf"
    qemu.write_text('stdio_handler = "file"\n')  # it has no virtlogd
    mounts = [f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in HIDDEN]
    mounts.append(f"mount --bind {qemu} /etc/libvirt/qemu.conf")
    script = " && ".join([*mounts, f"exec libvirtd -f {daemon} -p {tmp_path / 'pid'}"])
    with (tmp_path / "out").open("wb") as output:
        running = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdout=output, stderr=output
        )
    try:
        until(lambda: (tmp_path / "libvirt-sock").exists() or running.poll() is not None, "the other libvirtd")
        connection = libvirt.open(f"qemu+unix:///system?socket={tmp_path}/libvirt-sock")
        yield connection
        for domain in connection.listAllDomains():
            domain.destroy()
        connection.close()
    finally:
        running.terminate()
        running.wait(WAIT_S)
        (DEFAULT_BASE / "log" / f"{HOT.name}.away.log").unlink(missing_ok=True)


@pytest.fixture
def first(hot: dict[str, str]) -> dict[str, str]:
    """What the kernel holds of the VM, whose group must not have the name that the other libvirtd will give its own."""
    if virsh("domid", HOT.name).strip() != "1":
        return hot
    virsh("destroy", HOT.name)
    virsh("start", HOT.name)
    return held(HOT)


def migrate(domain: libvirt.virDomain, to: libvirt.virConnect, xml: str) -> libvirt.virDomain:
    parameters = {libvirt.VIR_MIGRATE_PARAM_URI: "tcp:127.0.0.1", libvirt.VIR_MIGRATE_PARAM_DEST_XML: xml}
    return domain.migrate3(to, parameters, libvirt.VIR_MIGRATE_LIVE)


def test_a_vm_that_migrates_away_and_back(
    first: dict[str, str], service: Service, elsewhere: libvirt.virConnect
) -> None:
    """It leaves as any VM that ends, its settings stay here, and it comes back as a new process."""
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical"})
    until(lambda: driven(service), "weight and pins")
    before = virsh("dumpxml", HOT.name, "--inactive")
    home = libvirt.open(URI)
    domain = home.lookupByName(HOT.name)
    here = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
    # The other libvirtd has no networks and must not write to the same console log.
    there = re.sub(r"<source network='default'[^>]*/>", "<source bridge='virbr0'/>", here)
    there = there.replace("<interface type='network'>", "<interface type='bridge'>").replace(".log'", ".away.log'")
    assert "cputune" not in here, "nothing of ours travels along"
    domain.migrateSetMaxSpeed(SLOW_MIB_PER_S)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(migrate, domain, elsewhere, there)
        try:
            until(lambda: status(service).get("migrating") or under_way.done(), "the host to say that the VM leaves")
            assert not under_way.done(), under_way.result()
        finally:
            domain.migrateSetMaxSpeed(FAST_MIB_PER_S)
        guest = under_way.result()
    until(lambda: status(service) == {}, "the API to show that it is gone")
    assert [one.name() for one in elsewhere.listAllDomains()] == [HOT.name]
    assert "cputune" not in guest.XMLDesc()
    parameters = guest.schedulerParameters()
    assert parameters["cpu_shares"] in {100, 1024}
    service.ticks(3)
    migrate(guest, home, here)
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
