"""Through the life of a VM and of its host's pCPUs its settings are right each time, and go back in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from manager.model.knobs import Knob
from tests.hosts.conftest import INSTALLED
from tests.hosts.emulated import Host
from tests.hosts.fleet import (
    START_S,
    Manager,
    TinyVm,
    define,
    journalled,
    make_guest,
    settings_of,
    start_agents,
    start_manager,
)
from tests.hosts.service import until

pytestmark = pytest.mark.long

DISK = "/var/lib/libvirt/images/tiny.qcow2"
VM = TinyVm("web", "5b5f38a0-9f0b-4d0e-8f5c-6b0b8b9a0c01", vcpus=1, most_vcpus=2, disk=DISK)
READY = "managed"
ALL_CPUS = "0,1"
SECOND_PIN = f"{Knob.VCPU_PIN} 1"
ORIGINAL = {"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000", "emulator": ALL_CPUS, "CPU 0/TCG": ALL_CPUS}


@dataclass(frozen=True, slots=True)
class Managed:
    """A host with manager and agent."""

    host: Host
    manager: Manager

    def set(self, vm: str = VM.name) -> Mapping[str, str]:
        """The settings of a VM once the agent has set it: a weight, and a pCPU for each vCPU."""

        def look() -> Mapping[str, str]:
            found = settings_of(self.host, vm)
            pins = [value for name, value in found.items() if name.startswith("CPU ")]
            done = found.get("cpu.weight", "100") != "100" and all(pin in {"0", "1"} for pin in pins)
            return found if done else {}

        return until(look, bool, f"settings of {vm}")

    def release(self) -> None:
        """Restore everything."""
        self.host.run("systemctl stop equipoise-agent", timeout_s=START_S)

    def warnings(self) -> list[str]:
        """External changes and settings that could not be written."""
        return [event["message"] for event in self.manager.events("external-change")]


@pytest.fixture(scope="module")
def controlled(alpha: Host) -> Managed:
    """A host with a registered VM, saved as ``READY``."""
    host = alpha
    host.load(INSTALLED)
    make_guest(host)
    manager = start_manager(host)
    start_agents([host], manager)
    manager.request("PUT", f"/vms/{VM.name}", {"class": "critical"})
    host.run(f"qemu-img create -q -f qcow2 {DISK} 1M")
    define(host, VM)
    host.save(READY)
    return Managed(host, manager)


@pytest.fixture
def managed(controlled: Managed) -> Managed:
    """The host with the VM running and set."""
    controlled.host.load(READY)
    controlled.host.run(f"virsh -q start {VM.name}")
    controlled.set()
    return controlled


def test_a_vm_is_set_again_after_a_managed_save_and_after_it_was_destroyed(managed: Managed) -> None:
    before = managed.set()
    for stop in ("managedsave", "destroy"):
        managed.host.run(f"virsh -q {stop} {VM.name}")
        until(lambda: not journalled(managed.host, VM.name), bool, f"the journal to forget the VM after {stop}")
        managed.host.run(f"virsh -q start {VM.name}")
        assert managed.set() == before
    managed.release()
    assert settings_of(managed.host, VM.name) == ORIGINAL
    assert managed.warnings() == []


def test_a_vm_is_set_again_after_a_snapshot_is_reverted(managed: Managed) -> None:
    before = managed.set()
    managed.host.run(f"virsh -q snapshot-create-as {VM.name} earlier")
    managed.host.run(f"virsh -q snapshot-revert {VM.name} earlier")
    assert managed.set() == before
    managed.release()
    assert settings_of(managed.host, VM.name) == ORIGINAL
    assert managed.warnings() == []


def test_a_plugged_vcpu_is_set_and_an_unplugged_one_forgotten(managed: Managed) -> None:
    managed.host.run(f"virsh -q setvcpus {VM.name} 2 --live")
    until(lambda: settings_of(managed.host, VM.name).get("CPU 1/TCG") in {"0", "1"}, bool, "the second vCPU's own pCPU")
    both = managed.set()
    assert {both["CPU 0/TCG"], both["CPU 1/TCG"]} == {"0", "1"}
    assert SECOND_PIN in journalled(managed.host, VM.name)
    # libvirt never hears of its end, and QEMU 7.2 corrupts its heap when it unplugs an emulated vCPU: no more is done.
    managed.host.run(f"virsh -q setvcpus {VM.name} 1 --live", check=False)
    until(lambda: "CPU 1/TCG" not in settings_of(managed.host, VM.name), bool, "the second vCPU's thread to end")
    until(lambda: SECOND_PIN not in journalled(managed.host, VM.name), bool, "the journal to forget the second vCPU")
    assert "CPU 1/TCG" not in managed.set()
    managed.release()
    assert settings_of(managed.host, VM.name) == ORIGINAL
    assert managed.warnings() == []


def test_pins_outlive_a_pcpu_that_goes_and_comes_back(managed: Managed) -> None:
    online = "/sys/devices/system/cpu/cpu1/online"
    managed.host.run(f"echo 0 >{online}")
    until(lambda: settings_of(managed.host, VM.name)["CPU 0/TCG"] == "0", bool, "a pin on what is left")
    managed.host.run(f"echo 1 >{online}")
    until(
        lambda: managed.manager.request("GET", f"/hosts/{managed.host.name}")["capabilities"]["online_cpus"] == "0-1",
        bool,
        "both pCPUs",
    )
    until(lambda: settings_of(managed.host, VM.name)["CPU 0/TCG"] in {"0", "1"}, bool, "the pin again")
    assert managed.warnings() == []
    managed.release()
    assert settings_of(managed.host, VM.name) == ORIGINAL


def test_a_vm_keeps_its_registration_by_uuid_and_leaves_its_name_behind(managed: Managed) -> None:
    managed.manager.request("PATCH", f"/vms/{VM.name}", {"libvirt_uuid": VM.uuid})
    managed.host.run(f"virsh -q destroy {VM.name} && virsh -q domrename {VM.name} renamed")
    managed.host.run("virsh -q start renamed")
    managed.set("renamed")
    other = replace(VM, uuid=VM.uuid[:-1] + "2", disk="")
    define(managed.host, other)
    managed.host.run(f"virsh -q start {VM.name}")
    until(lambda: journalled(managed.host, VM.name), bool, "the renamed VM in the journal")
    managed.release()
    assert settings_of(managed.host, "renamed") == settings_of(managed.host, VM.name) == ORIGINAL
    assert managed.warnings() == []


def test_a_vm_defined_anew_under_its_name_is_another_one(managed: Managed) -> None:
    before = managed.set()
    managed.host.run(f"virsh -q destroy {VM.name} && virsh -q undefine {VM.name}")
    define(managed.host, replace(VM, uuid=VM.uuid[:-1] + "2", disk=""))
    managed.host.run(f"virsh -q start {VM.name}")
    assert managed.set() == before
    managed.release()
    assert settings_of(managed.host, VM.name) == ORIGINAL
    assert managed.warnings() == []
