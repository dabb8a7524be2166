"""Response times of a guest that serves memcached drive the weights of VMs on a whole host.

Emulated within an emulated machine, the guest is slow, so the SLA is one that it meets only with help.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from deploy.lab.accelerator import Accelerator
from deploy.lab.guest import Guest
from deploy.lab.lab_vms import MEMCACHED_PORT, GuestRole, LabVm, domain_xml
from tests.hosts.emulated import Host
from tests.hosts.images import GUEST
from tests.hosts.service import START_S, Service, until

pytestmark = pytest.mark.long

CACHE = LabVm("eqp-lab-cache", GuestRole.MEMCACHED, "192.168.122.20", memory_mib=128)
BATCH = LabVm("eqp-lab-batch", GuestRole.BATCH, "192.168.122.21", memory_mib=128, vcpus=2)
IMAGES = "/var/lib/libvirt/images"
BOOT_S = 1200.0
WINDOWS = 8
"""Of how many windows the median p95 counts."""
PROBE = {
    "name": "probe",
    "type": "memcached_probe",
    "address": CACHE.ip,
    "port": MEMCACHED_PORT,
    "rate_rps": 10,
    "timeout_s": 5,
}
APPLICATION = {
    "tiers": [{"name": "cache", "vms": [CACHE.name]}],
    "sla": {"percentile": 95, "response_time_ms": 20},
    "sources": [PROBE],
}


def serve(host: Host) -> None:
    """Start both guests, and wait until they have booted."""
    host.run(f"cp /{GUEST}/* {IMAGES}/")
    logs = {vm: Path(f"/var/log/libvirt/qemu/{vm.name}-console.log") for vm in (CACHE, BATCH)}
    for vm, log in logs.items():
        xml = domain_xml(vm, Guest(Path(IMAGES)), Accelerator.TCG, log)
        host.run(f"virsh -q define /dev/stdin && virsh -q start {vm.name}", stdin=xml, timeout_s=START_S)
    for log in logs.values():
        until(lambda log=log: host.run(f"tail {log}"), lambda said: "ready role" in said, "the guest boots", BOOT_S)


def windows(service: Service) -> list[dict[str, Any]]:
    """Those with response times, newest first."""
    items = service.call("GET", "/applications/shop/windows?limit=1000")["items"]
    return sorted((window for window in items if window["count"]), key=lambda window: window["end"], reverse=True)


def next_p95_ms(service: Service) -> float:
    """The median p95 of the next windows."""
    last = max((window["end"] for window in windows(service)), default="")

    def later() -> list[float]:
        return [window["p95_ms"] for window in windows(service) if window["end"] > last]

    return median(until(later, lambda times: len(times) > WINDOWS, "response times")[:WINDOWS])


def weights(service: Service) -> dict[str, int]:
    """The weight of each VM's scope."""
    shown = service.host.run("grep . /sys/fs/cgroup/machine.slice/*.scope/cpu.weight")
    return {
        vm.name: int(line.rpartition(":")[2])
        for vm in (CACHE, BATCH)
        for line in shown.splitlines()
        if vm.name.replace("-", r"\x2d") in line
    }


def assert_seen_at_its_tap(service: Service) -> None:
    """The agent, under its unit and its AppArmor profile, sees what the guest serves; by a packet socket (6.1)."""

    def found() -> dict[str, Any]:
        answer: dict[str, Any] = service.call("GET", f"/hosts/{service.host.name}/services?vm={CACHE.name}")
        return answer

    seen = until(found, lambda answer: bool(answer["items"]), "the guest's service is seen")
    assert seen["problem"] == ""
    [cache] = seen["items"]
    print(f"at the tap: {cache}")
    assert (cache["port"], cache["protocol"], cache["error_share"]) == (MEMCACHED_PORT, "memcached", 0.0)
    assert cache["rate_rps"] == pytest.approx(PROBE["rate_rps"], rel=0.3)
    assert cache["p50_ms"] > 0
    said = service.host.run("journalctl --no-pager --dmesg --grep 'DENIED.*profile=.equipoise-agent' || true")
    assert "DENIED" not in said


def test_response_times_of_a_guest_drive_its_weight(debian_12: Host) -> None:
    serve(debian_12)
    service = Service(debian_12).start()
    service.set_host(mode="observe", policy="fair", pinning=False, batch_idle=False)
    service.register(CACHE.name, "critical")
    service.register(BATCH.name, "batch")
    service.call("PUT", "/applications/shop", APPLICATION)
    observed_ms = next_p95_ms(service)
    assert set(weights(service).values()) == {100}
    assert_seen_at_its_tap(service)
    service.set_host(mode="enforce")
    seen = until(lambda: weights(service), lambda now: now[CACHE.name] > 10 * now[BATCH.name], "the weights move")
    enforced_ms = next_p95_ms(service)
    print(f"p95 {observed_ms:.0f} ms observed, {enforced_ms:.0f} ms enforced; weights {seen}")
    assert enforced_ms < observed_ms
    decisions = service.call("GET", "/decisions?limit=100")["items"]
    assert any("p95" in decision["reason"] for decision in decisions), decisions
    service.set_host(mode="released")
    until(lambda: set(weights(service).values()), lambda now: now == {100}, "released")
