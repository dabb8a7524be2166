"""What libvirt is told about the lab's VMs.

The domain XML is compared with files in ``golden``. EQUIPOISE_REGENERATE_GOLDEN=1 writes them anew; read the diff.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from deploy.lab.accelerator import Accelerator
from deploy.lab.commands import LabError
from deploy.lab.guest import Guest
from deploy.lab.lab_vms import PREFIX, GuestRole, LabHost, LabVm, command_line, domain_xml, network_of

GOLDEN = Path(__file__).parent / "golden"
GUEST = Guest(Path("/var/lib/equipoise-lab/guest/0123456789abcdef"))
CACHE = LabVm("eqp-lab-cache", GuestRole.MEMCACHED, "192.168.122.201", options={"cache_mib": 100})
WEB = LabVm("eqp-lab-web", GuestRole.NGINX, "192.168.122.202", mac="52:54:00:00:00:07", vcpus=2, memory_mib=384)
WAVE = LabVm("eqp-lab-wave", GuestRole.BATCH, "192.168.122.203", vcpus=2, options={"on_ms": 6, "off_ms": 42})


@pytest.mark.parametrize("accelerator", Accelerator)
@pytest.mark.parametrize("vm", [CACHE, WEB, WAVE], ids=lambda vm: vm.name.removeprefix(PREFIX))
def test_domain_xml(vm: LabVm, accelerator: Accelerator) -> None:
    xml = domain_xml(vm, GUEST, accelerator, Path(f"/var/lib/equipoise-lab/log/{vm.name}.log"))
    golden = GOLDEN / f"{vm.name}-{accelerator}.xml"
    if os.environ.get("EQUIPOISE_REGENERATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(xml)
    assert xml == golden.read_text()


def test_no_cpu_tuning_and_nothing_persistent() -> None:
    domain = ET.fromstring(domain_xml(WAVE, GUEST, Accelerator.TCG, Path("/log")))
    assert domain.find("cputune") is None
    assert domain.find(".//disk") is None
    assert [domain.findtext(event) for event in ("on_poweroff", "on_reboot", "on_crash")] == ["destroy"] * 3


def test_a_vm_can_be_confined_to_cpus() -> None:
    confined = LabVm("eqp-lab-x", GuestRole.BATCH, "192.168.122.9", vcpus=2, cpus="0,2-3")
    vcpu = ET.fromstring(domain_xml(confined, GUEST, Accelerator.TCG, Path("/log"))).find("vcpu")
    assert vcpu is not None
    assert vcpu.attrib == {"cpuset": "0,2-3"}


def test_command_line_has_role_address_and_options() -> None:
    words = command_line(WAVE, Accelerator.KVM, prefix_length=20).split()
    assert words[-4:] == [
        "equipoise.role=batch",
        "equipoise.ip=192.168.122.203/20",
        "equipoise.on_ms=6",
        "equipoise.off_ms=42",
    ]
    assert "tsc=reliable" not in words


def test_emulated_guests_get_their_own_boot_options() -> None:
    assert {"tsc=reliable", "no_timer_check"} <= set(command_line(CACHE, Accelerator.TCG).split())


def test_mac_is_made_of_the_address_unless_given() -> None:
    assert CACHE.mac_address == "52:54:00:a8:7a:c9"
    assert WEB.mac_address == "52:54:00:00:00:07"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "web", "role": GuestRole.NGINX}, "names of lab VMs are eqp-lab-"),
        ({"name": "eqp-lab-../web", "role": GuestRole.NGINX}, "names of lab VMs are eqp-lab-"),
        ({"name": "eqp-lab-x", "role": GuestRole.NGINX, "ip": "192.168.122"}, "192.168.122"),
        ({"name": "eqp-lab-x", "role": GuestRole.NGINX, "options": {"on_ms": 6}}, "no option on_ms"),
        ({"name": "eqp-lab-x", "role": GuestRole.BATCH, "options": {"on_ms": "6 init=/bin/sh"}}, "no value for on_ms"),
        ({"name": "eqp-lab-x", "role": GuestRole.BATCH, "options": {"on_ms": ""}}, "no value for on_ms"),
    ],
)
def test_unusable_vms_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LabError, match=message):
        LabVm(**{"ip": "192.168.122.9"} | arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("xml", "subnet"),
    [
        ("<ip address='192.168.122.1' netmask='255.255.255.0'/>", "192.168.122.0/24"),
        ("<ip address='10.1.2.1' prefix='20'/>", "10.1.0.0/20"),
    ],
)
def test_network_of(xml: str, subnet: str) -> None:
    assert network_of(ET.fromstring(xml)) == IPv4Network(subnet)


class FakeDomain:
    def __init__(self, name: str, removed: list[str]) -> None:
        self._name = name
        self._removed = removed

    def name(self) -> str:
        return self._name

    def destroy(self) -> None:
        self._removed.append(self._name)

    def isPersistent(self) -> bool:  # noqa: N802 - libvirt's name
        return self._name.endswith("-kept")

    def undefineFlags(self, _flags: int) -> None:  # noqa: N802 - libvirt's name
        self._removed.append(f"{self._name} undefined")


class FakeConnection:
    """The little of libvirt that finding and removing VMs needs."""

    def __init__(self, *names: str) -> None:
        self.removed: list[str] = []
        self._domains = [FakeDomain(name, self.removed) for name in names]

    def listAllDomains(self) -> list[FakeDomain]:  # noqa: N802 - libvirt's name
        return self._domains


def test_destroy_all_leaves_other_vms_alone(tmp_path: Path) -> None:
    connection = FakeConnection("eqp-lab-b", "production", "eqp-lab-kept", "eqp-laboratory")
    host = LabHost(connection, GUEST, Accelerator.TCG, tmp_path)
    assert host.destroy_all() == ("eqp-lab-b", "eqp-lab-kept")
    assert sorted(connection.removed) == ["eqp-lab-b", "eqp-lab-kept", "eqp-lab-kept undefined"]
    with pytest.raises(LabError, match="outside the lab"):
        host.destroy_all("eqp-")


def test_a_vm_that_ended_is_reported_with_its_console(tmp_path: Path) -> None:
    host = LabHost(FakeConnection(), GUEST, Accelerator.TCG, tmp_path)
    (tmp_path / "log" / f"{WAVE.name}.log").write_text("\n\nequipoise-guest failed: unknown role\n")
    with pytest.raises(LabError, match=r"(?s)ended instead of getting ready.*unknown role"):
        host.wait_ready(WAVE)


def test_a_vm_that_is_silent_is_given_up(tmp_path: Path) -> None:
    host = LabHost(FakeConnection(WAVE.name), GUEST, Accelerator.TCG, tmp_path)
    with pytest.raises(LabError, match=r"(?s)not ready after 0 s.*\(nothing\)"):
        host.wait_ready(WAVE, timeout_s=0)


def test_pausing_a_vm_that_is_gone_says_so(tmp_path: Path) -> None:
    host = LabHost(FakeConnection(), GUEST, Accelerator.TCG, tmp_path)
    host.destroy(WAVE)
    with pytest.raises(LabError, match="does not run"):
        host.suspend(WAVE)
