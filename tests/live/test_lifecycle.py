"""What becomes of settings when real VMs are plugged, rebooted, paused, saved, reverted, renamed, destroyed."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.demo.originals import qemu_pid
from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.lab_vms import URI, LabHost
from tests.live.conftest import HOST, HOT, WAIT_S, Service, held, is_untouched, until, virsh, weight, weight_file
from tests.live.test_control import CRITICAL, vcpu_cpus
from tests.live.test_ownership import vcpu_tid

pytestmark = pytest.mark.live

ALL = set(os.sched_getaffinity(0))
EVERYWHERE = ",".join(map(str, sorted(ALL)))
CONFIGURED = 600
ENDS = 5
DISKS = DEFAULT_BASE / "disk"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def enforced(hot: dict[str, str], service: Service) -> dict[str, str]:
    """A critical VM with its weight and pins; gives what the kernel held before."""
    service.extra["EQUIPOISE_AGENT_LISTEN_PORT"] = str(free_port())
    service.extra["EQUIPOISE_RECONCILE_S"] = "3600"  # events must do
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical"})
    until(lambda: driven(service), "weight and pins")
    return hot


def status(service: Service, name: str = HOT.name) -> Any:
    """What the API shows of the running VM, empty while it shows none."""
    return service.client.get(f"/vms/{name}")["status"] or {}


def driven(service: Service, name: str = HOT.name) -> bool:
    """Whether the process that runs now has our weight and pins, and the API says so."""
    if not Path(f"/run/libvirt/qemu/{HOT.name}.pid").exists():
        return False
    shown = status(service, name)
    return bool(shown) and (
        shown["pid"] == qemu_pid(HOT.name)
        and weight(HOT) == CRITICAL
        and len(vcpu_cpus(HOT.name)) == shown["vcpus"]
        and all(knob["owned"] for knob in shown["knobs"] if knob["knob"] in {"weight", "vcpu_pin"})
    )


def original(service: Service, knob: str) -> str | None:
    """What the agent will put back one day."""
    found = [one["original"] for one in status(service)["knobs"] if (one["knob"], one["index"]) == (knob, 0)]
    return found[0] if found else None


def alarms(service: Service) -> list[str]:
    """What an operator was told that is not mere news, but for ticks and reports that a busy machine is late with."""
    late = {"loop-stalled", "host-silent"}  # after a second: the interval is a fifth of one
    events = service.client.items("/events")
    return [event["message"] for event in events if event["severity"] != "info" and event["kind"] not in late]


def errors_counted(service: Service) -> float:
    """The agent's count of errors of every kind, but for a manager that was not there yet."""
    url = f"http://127.0.0.1:{service.extra['EQUIPOISE_AGENT_LISTEN_PORT']}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        text = answer.read().decode()
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("equipoise_agent_errors_total") and 'kind="manager"' not in line
    )


def boots() -> int:
    """How often the guest of this run of the VM has booted."""
    return (DEFAULT_BASE / "log" / f"{HOT.name}.log").read_bytes().count(b"equipoise-guest ready")


def ctrl_alt_delete() -> None:
    virsh("send-key", HOT.name, "--codeset", "linux", "KEY_LEFTCTRL", "KEY_LEFTALT", "KEY_DELETE")


@pytest.mark.parametrize(
    "restart", [lambda: virsh("reset", HOT.name), ctrl_alt_delete], ids=["reset", "by the guest itself"]
)
def test_a_guest_that_reboots_keeps_its_settings(
    enforced: dict[str, str], service: Service, restart: Callable[[], object]
) -> None:
    pid, decided, booted = qemu_pid(HOT.name), len(service.client.items("/decisions")), boots()
    during = held(HOT)
    restart()
    until(lambda: boots() > booted, "the guest to have booted again")
    service.ticks(3)
    assert qemu_pid(HOT.name) == pid
    assert held(HOT) == during
    assert len(service.client.items("/decisions")) == decided, "nothing had to be written again"
    service.cli("release")
    assert held(HOT) == enforced
    assert alarms(service) == []


def test_a_paused_vm_keeps_its_settings(enforced: dict[str, str], service: Service) -> None:
    decided, during = len(service.client.items("/decisions")), held(HOT)
    virsh("suspend", HOT.name)
    service.ticks(3)
    assert held(HOT) == during
    virsh("resume", HOT.name)
    service.ticks(3)
    assert held(HOT) == during
    assert len(service.client.items("/decisions")) == decided
    virsh("suspend", HOT.name)
    service.cli("release")
    assert held(HOT) == enforced, "a paused VM is released as any other"
    virsh("resume", HOT.name)
    assert alarms(service) == []


def managed_save() -> None:
    virsh("managedsave", HOT.name)
    virsh("start", HOT.name)


def save_and_restore() -> None:
    image = DISKS / "saved"
    try:
        virsh("save", HOT.name, str(image))
        virsh("restore", str(image))
    finally:
        image.unlink(missing_ok=True)


def revert() -> None:
    virsh("snapshot-revert", HOT.name, "before")


def shut_off_and_start() -> None:
    virsh("destroy", HOT.name)
    virsh("start", HOT.name)


def empty_qcow2(path: Path) -> None:
    """A disk of 1 MB in the format that holds snapshots, https://gitlab.com/qemu-project/qemu docs/interop/qcow2.rst.

    One cluster each for header, table of reference counts, reference counts, and table of data.
    """
    cluster = 1 << 16
    header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, 16, 1 << 20, 0, 1, 3 * cluster, cluster, 1, 0, 0)
    parts = (header, struct.pack(">Q", 2 * cluster), struct.pack(">4H", 1, 1, 1, 1), b"")
    path.write_bytes(b"".join(part.ljust(cluster, b"\0") for part in parts))


@pytest.fixture
def disk(hot: dict[str, str]) -> Iterator[None]:
    """A disk that holds snapshots, and one from before anybody changed a setting."""
    del hot
    DISKS.mkdir(exist_ok=True)
    image = DISKS / f"{HOT.name}.qcow2"
    empty_qcow2(image)
    virsh("attach-disk", HOT.name, str(image), "vda", "--subdriver", "qcow2", "--live", "--config")
    virsh("snapshot-create-as", HOT.name, "before")
    yield
    virsh("destroy", HOT.name)  # with its snapshot and its disk: the next test starts another
    image.unlink()


@pytest.mark.parametrize(
    "restart", [managed_save, save_and_restore, shut_off_and_start, revert], ids=lambda restart: restart.__name__
)
def test_a_vm_that_is_started_again_is_managed_anew(
    disk: None, enforced: dict[str, str], service: Service, restart: Callable[[], None]
) -> None:
    """A new process in a new group; what it has then, as libvirt configured it, is the original."""
    del disk
    before = qemu_pid(HOT.name)
    virsh("schedinfo", HOT.name, "--config", f"cpu_shares={CONFIGURED}")
    restart()
    until(lambda: qemu_pid(HOT.name) != before and driven(service), "the new process to be managed")
    fresh = held(HOT).keys().isdisjoint(enforced)
    assert fresh, "nothing of the old process is left"
    until(lambda: original(service, "weight"), "its original in the API")
    # A state that was saved brings the settings it was saved with, none; a plain start takes the new definition.
    expected = CONFIGURED if restart is shut_off_and_start else int(default_weight())
    assert original(service, "weight") == str(expected)
    service.cli("release")
    assert (weight(HOT), vcpu_cpus(HOT.name)) == (expected, ALL)
    assert set(affinities()) == {EVERYWHERE}
    assert alarms(service) == []
    assert errors_counted(service) == 0


def default_weight() -> str:
    return "1024" if weight_file(HOT).name == "cpu.shares" else "100"


def affinities() -> list[str]:
    """Of each lasting thread of the VM."""
    return [value for key, value in held(HOT).items() if "affinity of thread" in key]


def vcpu_threads() -> dict[int, set[int]]:
    """The pCPUs of each vCPU's thread, as the kernel says."""
    found = {}
    for thread in Path(f"/proc/{qemu_pid(HOT.name)}/task").iterdir():
        title = re.match(r"CPU (\d+)/", (thread / "comm").read_text())
        if title:
            found[int(title.group(1))] = os.sched_getaffinity(int(thread.name))
    return found


@contextmanager
def standing_still(service: Service) -> Iterator[None]:
    """The agent does nothing meanwhile."""
    parent = service.processes[-1].pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    [agent] = [int(pid) for pid in children if b"\0agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def plug() -> None:
    virsh("setvcpus", HOT.name, "2", "--live")
    until(lambda: set(vcpu_threads()) == {0, 1}, "the thread of the plugged vCPU")


@pytest.mark.parametrize("inherits", [False, True], ids=["as libvirt leaves it", "with the emulator's affinity"])
def test_a_vcpu_that_is_plugged_is_pinned_and_released(
    enforced: dict[str, str], service: Service, lab: LabHost, inherits: bool
) -> None:
    """QEMU starts its thread with the affinity of the emulator, that is with our pin. libvirt 9 then lets it run
    everywhere; one that does not (or is killed before) leaves it so.
    """
    emulator = os.sched_getaffinity(qemu_pid(HOT.name))
    assert (emulator, set(vcpu_threads())) == (vcpu_cpus(HOT.name), {0})
    if inherits:
        with standing_still(service):
            plug()
            os.sched_setaffinity(vcpu_tid(HOT, 1), emulator)
    else:
        plug()
    until(lambda: sorted(map(len, vcpu_threads().values())) == [1, 1], "it to be pinned")
    until(lambda: vcpu_threads()[0] != vcpu_threads()[1], "each to have a pCPU of its own")
    until(lambda: status(service).get("vcpus") == 2, "the API to show it")
    service.cli("release")
    assert set(affinities()) == {EVERYWHERE}, "the plugged one included"
    assert enforced.items() <= held(HOT).items()
    assert alarms(service) == []
    lab.destroy(HOT)


def test_a_vcpu_that_is_unplugged_takes_nothing_with_it(
    enforced: dict[str, str], service: Service, lab: LabHost
) -> None:
    plug()
    until(lambda: driven(service) and status(service)["vcpus"] == 2, "both to be pinned")
    # virsh waits for the guest and may give up before it answers; the thread ends when it does.
    with subprocess.Popen(
        ["virsh", "-q", "-c", URI, "setvcpus", HOT.name, "1", "--live"], stderr=subprocess.DEVNULL
    ) as unplugging:
        until(lambda: set(vcpu_threads()) == {0}, "the thread of the unplugged vCPU to end")
        until(lambda: status(service)["vcpus"] == 1, "the API to show it")
        service.ticks(3)
        assert driven(service)
        service.cli("release")
        assert held(HOT).items() <= enforced.items()
        assert alarms(service) == []
        assert errors_counted(service) == 0
        lab.destroy(HOT)  # QEMU 7.2 corrupts its heap when it unplugs an emulated vCPU, and dies some time later
        unplugging.wait(WAIT_S)


def test_a_vm_that_is_renamed(enforced: dict[str, str], service: Service, lab: LabHost) -> None:
    """Registered by its name it is let go, registered by its UUID it is not. libvirt renames what is shut off."""
    del enforced
    renamed = f"{HOT.name}-renamed"
    virsh("destroy", HOT.name)
    virsh("domrename", HOT.name, renamed)
    try:
        virsh("start", renamed)
        service.ticks(5)
        assert status(service) == {}
        assert is_untouched(replace(HOT, name=renamed))
        uuid = virsh("domuuid", renamed).strip()
        service.client.request("PUT", "/vms/by-uuid", body={"class": "critical", "libvirt_uuid": uuid})
        until(lambda: status(service, "by-uuid").get("libvirt_name") == renamed, "the VM to be managed")
        until(lambda: len(vcpu_cpus(renamed)) == 1, "its pins")
        virsh("destroy", renamed)
        virsh("domrename", renamed, HOT.name)
        virsh("start", HOT.name)
        until(lambda: status(service, "by-uuid").get("libvirt_name") == HOT.name, "the same VM under its old name")
        until(lambda: driven(service, "by-uuid"), "weight and pins")
        assert status(service) == {}, "the UUID decides before the name"
        service.cli("release")
        assert is_untouched(HOT)
        assert alarms(service) == []
    finally:
        lab.destroy(replace(HOT, name=renamed))


def test_vms_destroyed_while_ticks_run_are_no_errors(enforced: dict[str, str], service: Service) -> None:
    """Each at whatever moment of a tick; all ends are normal, and told once."""
    del enforced
    for _ in range(ENDS):
        virsh("destroy", HOT.name)
        until(lambda: status(service) == {}, "the API to show that it is gone")
        virsh("start", HOT.name)
        until(lambda: weight(HOT) == CRITICAL, "the new process to be managed")
    service.ticks(2)
    kinds = [event["kind"] for event in service.client.items("/events") if event["vm"] == HOT.name]
    assert (kinds.count("vm-found"), kinds.count("vm-gone")) == (ENDS + 1, ENDS)
    assert alarms(service) == []
    assert errors_counted(service) == 0
    # Restored: of a process that still ended, when libvirt had told that its VM was gone.
    assert {one["outcome"] for one in service.client.items("/decisions")} <= {"applied", "vanished", "restored"}
