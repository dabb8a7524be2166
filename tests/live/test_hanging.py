"""A real libvirtd that hangs: with one domain whose hook does not end, and stopped as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.lab.lab_vms import URI
from tests.live.conftest import HOST, HOT, LIVE_PREFIX, Service, held, terminate, until, virsh, weight
from tests.live.test_control import CRITICAL, has_systemd
from tests.live.test_hook import find_hooks

pytestmark = pytest.mark.live

STUCK = f"{LIVE_PREFIX}stuck"
INSTALLED = Path("/etc/libvirt/hooks/qemu.d/equipoise-live-stuck")
DOMAIN = f"""
<domain type='qemu'>
  <name>{STUCK}</name><memory unit='MiB'>32</memory><os><type arch='x86_64' machine='pc'>hvm</type></os>
</domain>
"""


@pytest.fixture
def enforced(hot: dict[str, str], service: Service) -> dict[str, str]:
    """A critical VM under control, by an agent that soon takes a list of domains for old."""
    service.extra |= {"EQUIPOISE_RECONCILE_S": "1", "EQUIPOISE_DISCOVERY_LIMIT_S": "3"}
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{HOT.name}", body={"class": "critical"})
    until(lambda: weight(HOT) == CRITICAL, "its weight")
    return hot


def told(service: Service, kind: str) -> str:
    """The message of an event, empty: there is none."""
    return next((event["message"] for event in service.client.items("/events") if event["kind"] == kind), "")


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """A domain whose hook does not end as long as this lasts: libvirt lists nothing meanwhile."""
    flag = folder / "hangs"
    flag.touch()
    INSTALLED.parent.mkdir(parents=True, exist_ok=True)
    INSTALLED.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "{STUCK} started" ] && while [ -e {flag} ]; do sleep 0.1; done\nexit 0\n'
    )
    INSTALLED.chmod(0o755)
    find_hooks()
    xml = folder / "stuck.xml"
    xml.write_text(DOMAIN)
    creating = subprocess.Popen(["virsh", "-q", "-c", URI, "create", str(xml)], stdout=subprocess.DEVNULL)
    try:
        until(lambda: Path(f"/run/libvirt/qemu/{STUCK}.pid").exists(), "its process")
        yield
    finally:
        flag.unlink()
        creating.wait(30)
        INSTALLED.unlink()
        find_hooks()
        subprocess.run(["virsh", "-q", "-c", URI, "destroy", STUCK], check=False)


def test_a_vm_is_found_while_another_one_keeps_libvirt_from_listing_any(
    enforced: dict[str, str], service: Service, tmp_path: Path
) -> None:
    virsh("destroy", HOT.name)
    with starting(tmp_path):
        virsh("start", HOT.name)
        until(lambda: weight(HOT) == CRITICAL, "the VM that started meanwhile to be found", 15)
        until(lambda: told(service, "discovery-late"), "the operator to be told")
        until(lambda: STUCK in told(service, "domain-hangs"), "the domain to be named")
        assert f"libvirt does not answer about domain {STUCK}" in service.cli("status")
    until(lambda: told(service, "discovery-resumed") and told(service, "domain-answers"), "all to be well again")
    assert weight(HOT) == CRITICAL


def libvirtd() -> int:
    """Its process."""
    if has_systemd():
        shown = subprocess.run(["systemctl", "show", "-P", "MainPID", "libvirtd"], capture_output=True, check=True)
        return int(shown.stdout)
    return int(Path("/run/libvirtd.pid").read_text())


def test_control_goes_on_while_libvirtd_stands_still_which_is_told(enforced: dict[str, str], service: Service) -> None:
    pid = libvirtd()
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: told(service, "discovery-late"), "the operator to be told")
        assert told(service, "domain-hangs") == "", "it is no domain's fault"
        service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "released", "policy": "priority"})
        until(lambda: held(HOT) == enforced, "control to go on")
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: told(service, "discovery-resumed"), "all to be well again")
    until(lambda: service.reports()["discovery_age_s"] < 3, "a fresh list")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert terminate(service.processes[0]) == 0, "the agent ends in order meanwhile"
    finally:
        os.kill(pid, signal.SIGCONT)
