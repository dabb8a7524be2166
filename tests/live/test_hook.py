"""Real VMs that are set before they run, by libvirt's hook; and soon after they run, without it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.lab.lab_vms import LabHost
from tests.deploy.units import TOP
from tests.live.conftest import HOST, HOT, Service, held, is_untouched, terminate, until, virsh, weight
from tests.live.test_control import CRITICAL, has_systemd
from tests.live.test_lifecycle import alarms, driven

pytestmark = pytest.mark.live

HOOK = TOP / "deploy/libvirt/hooks/qemu.d/equipoise"
INSTALLED = Path("/etc/libvirt/hooks/qemu.d/equipoise-live")


def find_hooks() -> None:
    """Have libvirt look for hooks again."""
    if has_systemd():
        subprocess.run(["systemctl", "reload", "libvirtd.service"], check=True)
    else:
        os.kill(int(Path("/run/libvirtd.pid").read_text()), signal.SIGHUP)
    until(lambda: virsh("list") or True, "libvirtd to answer")


@pytest.fixture
def hook(service: Service) -> Iterator[Path]:
    """The hook, for the agent of the test."""
    INSTALLED.parent.mkdir(parents=True, exist_ok=True)
    INSTALLED.write_text(HOOK.read_text().replace("/var/lib/equipoise", str(service.folder)))
    INSTALLED.chmod(0o755)
    find_hooks()
    yield INSTALLED
    INSTALLED.unlink(missing_ok=True)
    find_hooks()


@pytest.fixture
def idle(lab: LabHost, service: Service) -> Service:
    """An agent that knows of a VM which is not running, and whose next interval ends long after the test."""
    lab.destroy(HOT)
    lab.start(HOT)
    virsh("destroy", HOT.name)
    service.extra |= {"EQUIPOISE_INTERVAL_S": "300", "EQUIPOISE_RECONCILE_S": "3600"}
    running = service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical"})
    # The next start begins with these orders.
    assert terminate(running) == 0
    socket = service.folder / "hook.sock"
    assert not socket.exists()
    service.run()
    until(socket.exists, "the agent to run again")
    return service


def test_a_vm_is_set_before_its_first_instruction_where_it_starts_paused(idle: Service, hook: Path) -> None:
    del hook
    virsh("start", HOT.name, "--paused")
    assert weight(HOT) == CRITICAL
    during = held(HOT)
    assert virsh("domstate", HOT.name).strip() == "paused"
    virsh("resume", HOT.name)
    until(lambda: driven(idle), "the API to show it")
    assert held(HOT) == during
    assert alarms(idle) == []
    assert terminate(idle.processes[-1]) == 0
    assert is_untouched(HOT), "put back"


def test_a_vm_is_set_when_its_start_returns(idle: Service, hook: Path) -> None:
    del hook
    virsh("start", HOT.name)
    assert weight(HOT) == CRITICAL
    assert alarms(idle) == []
    assert terminate(idle.processes[-1]) == 0
    assert is_untouched(HOT), "put back"


def test_a_vm_starts_while_the_agent_is_away(idle: Service, hook: Path) -> None:
    del hook
    assert terminate(idle.processes[-1]) == 0
    virsh("start", HOT.name)
    assert is_untouched(HOT)


def test_without_the_hook_a_vm_is_set_by_the_event_of_its_start(idle: Service) -> None:
    virsh("start", HOT.name)
    until(lambda: driven(idle), "weight and pins, long before the interval ends")
    assert alarms(idle) == []
    assert terminate(idle.processes[-1]) == 0
    assert is_untouched(HOT), "put back"
