"""What operators do with real VMs: plan, release one VM, the doctor, and the settings of hosts and VMs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.demo.originals import qemu_pid
from deploy.lab.lab_vms import GuestRole, LabHost, LabVm
from tests.live.conftest import (
    BATCH,
    CACHE,
    HOST,
    LIVE_PREFIX,
    STRANGER,
    Service,
    group_file,
    held,
    is_untouched,
    quota_file,
    terminate,
    until,
    virsh,
    weight,
    weight_file,
)
from tests.live.test_control import CRITICAL, in_force, prepare, vcpu_cpus
from tests.live.test_lifecycle import ALL

pytestmark = pytest.mark.live

BUSY = LabVm(f"{LIVE_PREFIX}busy", GuestRole.BATCH, "192.168.122.245")
LIMIT_PCPUS = 0.3
MEASURED_S = 4.0
DISK_BYTES = 16 << 20


@pytest.fixture
def before(vms: dict[str, str]) -> dict[str, str]:
    """All that the kernel holds of the three VMs."""
    del vms
    return held(CACHE, BATCH, STRANGER)


def settings_of_vm(settings: dict[str, str], vm: LabVm) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key.startswith(f"{vm.name}:")}


def checksums(folder: Path) -> dict[str, str]:
    """Of the journal's files, but for the one in which SQLite notes who reads."""
    files = [folder / name for name in ("journal.db", "journal.db-wal")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()}


def test_a_plan_says_what_enforcing_then_does(before: dict[str, str], service: Service) -> None:
    service.run()
    service.register(mode="observe")
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "observe", "policy": "priority", "batch_idle": True})
    service.client.request("PUT", f"/vms/{BATCH.name}", body={"class": "batch", "max_pcpus": LIMIT_PCPUS})
    until(lambda: {"idle", "quota"} <= {one["knob"] for one in service.client.items("/decisions")}, "observations")
    journal, decided = checksums(service.folder), len(service.client.items("/decisions"))
    planned = json.loads(service.cli("plan", "--json"))
    assert (planned["host"], planned["mode"], planned["policy"]) == (HOST, "observe", "priority")
    assert planned["problems"] == []
    assert {one["action"] for one in planned["changes"]} == {"write"}
    assert held(CACHE, BATCH, STRANGER) == before
    assert checksums(service.folder) == journal
    assert "journal.db" in journal
    assert len(service.client.items("/decisions")) == decided, "the manager was told nothing"
    assert CACHE.name in service.cli("plan")
    service.cli("enforce")
    until(lambda: group_file(BATCH, "cpu.idle").read_text() == "1\n" and weight(CACHE) == CRITICAL, "all that")
    service.ticks(2)
    applied = [one for one in service.client.items("/decisions") if one["outcome"] == "applied"]

    def essence(changes: list[dict[str, Any]]) -> list[tuple[object, ...]]:
        return sorted(tuple(one[name] for name in ("vm", "knob", "index", "before", "after")) for one in changes)

    assert essence(planned["changes"]) == essence(applied)
    assert json.loads(service.cli("plan", "--json"))["changes"] == [], "nothing is left to do"
    service.cli("release")
    assert held(CACHE, BATCH, STRANGER) == before


def test_one_vm_is_released_and_enforced_again(before: dict[str, str], service: Service) -> None:
    service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    for _ in range(2):
        assert "every setting is restored" in service.cli("release", "--vm", CACHE.name)
        assert held(CACHE) == settings_of_vm(before, CACHE)
        service.ticks(3)
        assert held(CACHE) == settings_of_vm(before, CACHE), "released means left alone"
        assert weight(BATCH) in {1, 2}, "the other one is not concerned"
    service.cli("enforce", "--vm", CACHE.name)
    until(in_force, "the weights of `priority` again")
    until(lambda: len(vcpu_cpus(CACHE.name)) == 1, "its pins again")


def test_one_vm_is_released_without_an_agent(before: dict[str, str], service: Service) -> None:
    prepare(service)
    agent = service.spawn("-m", "manager.cli", "agent")
    until(in_force, "the weights of `priority`")
    until(lambda: len(vcpu_cpus(CACHE.name)) == 1, "pins")
    agent.kill()
    assert agent.wait(30) == -signal.SIGKILL
    assert in_force(), "nobody undoes what a killed agent did"
    assert "restored" in service.cli("release", "--vm", CACHE.name)
    assert held(CACHE) == settings_of_vm(before, CACHE)
    assert weight(BATCH) in {1, 2}
    assert "0 settings restored" in service.cli("release", "--vm", CACHE.name)
    again = service.spawn("-m", "manager.cli", "agent")
    tick = service.tick_number()
    until(lambda: service.tick_number() != tick, "the next agent to report")
    service.ticks(3)
    assert held(CACHE) == settings_of_vm(before, CACHE), "it stays released, also across restarts"
    assert weight(BATCH) in {1, 2}
    service.cli("enforce", "--vm", CACHE.name)
    until(in_force, "the weights of `priority` again")
    assert terminate(again) == 0
    assert held(CACHE, BATCH, STRANGER) == before


def groups() -> set[str]:
    """The groups of VMs, and those that a doctor makes, in the hierarchy that has the weights."""
    machine = weight_file(CACHE).parents[1]
    return {str(folder) for folder in (*machine.rglob("*/"), *machine.parent.glob("*doctor*"))}


def test_the_doctor_beside_running_vms(before: dict[str, str], service: Service) -> None:
    service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    until(lambda: service.client.get(f"/hosts/{HOST}/findings"), "the agent's own look, whose scratch groups are gone")
    service.ticks()
    names = (CACHE.name, BATCH.name, STRANGER.name)
    during = held(CACHE, BATCH, STRANGER)
    described = [virsh("dumpxml", name) for name in names]
    files, there = sorted(file.name for file in service.folder.iterdir()), groups()
    journal = checksums(service.folder)
    found = json.loads(service.cli("doctor", "--json"))
    assert (found["host"], found["ok"]) == (HOST, True)
    finding = {one["id"]: one for one in found["findings"]}
    for name in ("cgroup", "cpu-weight", "cpu-idle", "cpu-quota", "affinity", "libvirt", "libvirt-events", "agent"):
        assert finding[name]["status"] == "works", finding[name]
    assert f"{len(virsh('list', '--name').split())} running domains" in finding["libvirt"]["detail"]
    emulated = [name for name in names if "<domain type='qemu'" in virsh("dumpxml", name)]
    accelerator = finding["accelerator"]
    assert accelerator["status"] == ("degraded" if emulated else "works")
    assert all(name in accelerator["detail"] for name in emulated)
    assert held(CACHE, BATCH, STRANGER) == during
    assert [virsh("dumpxml", name) for name in names] == described
    assert sorted(file.name for file in service.folder.iterdir()) == files
    assert groups() == there
    assert checksums(service.folder) == journal
    service.cli("release")
    assert held(CACHE, BATCH, STRANGER) == before


def test_the_doctor_names_the_disks_that_libvirt_counts(lab: LabHost) -> None:
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix=LIVE_PREFIX) as image:
        os.truncate(image.name, DISK_BYTES)
        Path(image.name).chmod(0o666)  # QEMU runs as a user of its own
        stored = replace(BUSY, name=f"{LIVE_PREFIX}stored", disk=Path(image.name))
        try:
            lab.start(stored)
            command = [sys.executable, "-m", "manager.cli", "doctor", "--quick", "--json"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            lab.destroy_all(stored.name)
    [finding] = [one for one in json.loads(answer.stdout)["findings"] if one["id"] == "virtual-disks"]
    assert finding["status"] == "works", finding
    assert f"{stored.name} (vda)" in finding["detail"]


@pytest.mark.skipif(len(ALL) < 2, reason="needs a pCPU beside the critical VM's")
@pytest.mark.parametrize("batch", ["fence", "single", "float"])
def test_where_batch_vms_run(before: dict[str, str], service: Service, batch: str) -> None:
    service.run()
    service.register()
    body = {"mode": "enforce", "policy": "priority", "placement": {"batch": batch}}
    service.client.request("PUT", f"/hosts/{HOST}", body=body)
    until(in_force, "the weights of `priority`")
    until(lambda: len(vcpu_cpus(CACHE.name)) == 1, "the critical VM's pins")

    def wanted() -> set[int]:
        return ALL - vcpu_cpus(CACHE.name) if batch == "fence" else ALL

    if batch == "single":
        until(lambda: len(vcpu_cpus(BATCH.name)) == 1, "both vCPUs on one pCPU")
    else:
        until(lambda: vcpu_cpus(BATCH.name) == wanted(), "the batch VM's pCPUs")
    service.ticks(3)
    assert vcpu_cpus(STRANGER.name) == ALL
    service.cli("release")
    assert held(CACHE, BATCH, STRANGER) == before


def test_batch_vms_in_the_idle_class_keep_their_originals(before: dict[str, str], service: Service) -> None:
    """The kernel forgets an idle group's weight; it comes back all the same."""
    weight_file(BATCH).write_text("777")
    try:
        service.run()
        service.register()
        service.client.request(
            "PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority", "batch_idle": True}
        )
        until(lambda: group_file(BATCH, "cpu.idle").read_text() == "1\n", "the idle class")
        service.ticks(3)
        assert group_file(BATCH, "cpu.idle").read_text() == "1\n"
        assert group_file(CACHE, "cpu.idle").read_text() == "0\n"
        assert group_file(STRANGER, "cpu.idle").read_text() == "0\n"
        service.cli("release")
        assert group_file(BATCH, "cpu.idle").read_text() == "0\n"
        assert weight(BATCH) == 777
    finally:
        service.end()
        weight_file(BATCH).write_text("1024" if weight_file(BATCH).name == "cpu.shares" else "100")
    assert held(CACHE, BATCH, STRANGER) == before


def test_a_vm_stays_on_its_registered_pcpus(before: dict[str, str], service: Service) -> None:
    service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    for cpu in sorted(ALL)[:2]:
        service.client.request("PUT", f"/vms/{CACHE.name}", body={"class": "critical", "cpus": str(cpu)})
        service.client.request("PUT", f"/vms/{BATCH.name}", body={"class": "batch", "cpus": str(cpu)})
        until(lambda cpu=cpu: vcpu_cpus(CACHE.name) == vcpu_cpus(BATCH.name) == {cpu}, f"both VMs on pCPU {cpu}")
    service.cli("release")
    assert held(CACHE, BATCH, STRANGER) == before


@pytest.fixture
def busy(vms: dict[str, str], lab: LabHost) -> Iterator[None]:
    """A VM that uses as much CPU time as it gets."""
    del vms
    lab.start(BUSY)
    lab.wait_ready(BUSY)
    yield
    lab.destroy(BUSY)


def cpu_time_s(vm: LabVm) -> float:
    """What all threads of a VM's process have used, in seconds: utime and stime of proc_pid_stat(5)."""
    fields = Path(f"/proc/{qemu_pid(vm.name)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_pcpus(vm: LabVm) -> float:
    """CPU seconds a second that a VM uses, over some seconds."""
    used, began = cpu_time_s(vm), time.monotonic()
    time.sleep(MEASURED_S)
    return (cpu_time_s(vm) - used) / (time.monotonic() - began)


def test_a_busy_vm_uses_what_it_is_limited_to(busy: None, service: Service) -> None:
    del busy
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    service.client.request("PUT", f"/vms/{BUSY.name}", body={"class": "critical", "max_pcpus": LIMIT_PCPUS})
    until(lambda: quota_file(BUSY).read_text().split()[0] == "30000", "the quota")
    assert abs(used_pcpus(BUSY) / LIMIT_PCPUS - 1) < 0.2
    service.cli("release")
    assert is_untouched(BUSY)
    assert used_pcpus(BUSY) > 1.5 * LIMIT_PCPUS, "the limit is gone"
