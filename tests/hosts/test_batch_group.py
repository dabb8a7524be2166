"""The batch group on hosts with systemd: VMs that start in its slice, what systemd does to it, and the way back."""

from __future__ import annotations

import pytest

from tests.hosts.emulated import Host
from tests.hosts.service import START_S, Service, Vm, changed, define, settings, until

pytestmark = pytest.mark.long

WEB, RED, BLUE = Vm("web"), Vm("red", vcpus=2), Vm("blue", vcpus=2)
GROUP = "machine-batch.slice"
PARTITION = "EQUIPOISE_TOKEN=$(cat /root/token) equipoise partition"
LOUD = ("external-change", "placement", "read", "journal")


def test_vms_start_in_the_group_and_have_its_idle_class_or_weight(host: Host) -> None:
    service = Service(host)
    define(host, WEB, RED, BLUE)
    service.start()
    for vm, vm_class in ((WEB, "critical"), (RED, "batch"), (BLUE, "batch")):
        service.register(vm.name, vm_class)
    service.set_host(placement={"batch_group": "on"})
    told = until(service.events, lambda events: any("`equipoise partition`" in event for event in events), "the hint")
    assert [event for event in told if event.startswith("batch-group")]
    assert "red: starts outside the batch group" in host.run(PARTITION)
    assert "from its next start on" in host.run(f"{PARTITION} --apply")
    for vm in (RED, BLUE):
        host.run(f"virsh -q destroy {vm.name} && virsh -q start --paused {vm.name}", timeout_s=START_S)

    in_force = until(lambda: settings(host), lambda found: found.get(f"{GROUP}/cpu.idle") == "1", "the group is idle")
    inside = {name: value for name, value in in_force.items() if name.startswith(f"{GROUP}/machine-")}
    assert {value for name, value in inside.items() if name.endswith(".scope/cpu.weight")} == {"100"}
    assert {value for name, value in inside.items() if name.endswith(".scope/cpu.idle")} == {"0"}
    service.set_host(policy="equal")
    until(lambda: settings(host)[f"{GROUP}/cpu.weight"], "200".__eq__, "the group has the weight of its two VMs")

    host.run("systemctl daemon-reload")
    service.ticks(2)
    assert settings(host)[f"{GROUP}/cpu.weight"] == "200"
    host.run(f"{PARTITION} --undo blue && virsh -q destroy blue && virsh -q start --paused blue", timeout_s=START_S)
    until(lambda: settings(host)[f"{GROUP}/cpu.weight"], "100".__eq__, "the group has that of the one that is left")
    host.run("systemctl stop equipoise-agent", timeout_s=START_S)
    left = settings(host)
    assert (left[f"{GROUP}/cpu.weight"], left[f"{GROUP}/cpu.idle"]) == ("100", "0")
    assert {value for name, value in left.items() if name.endswith(".scope/cpu.weight")} == {"100"}
    assert not [event for event in service.events() if event.partition(":")[0] in LOUD]
    assert changed(left, settings(host)) == {}
