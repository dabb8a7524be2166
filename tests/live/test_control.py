"""The service on real VMs: what it sets, what it leaves alone, and that it puts everything back however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.lab.demo.originals import qemu_pid, settings_of_all
from deploy.lab.lab_vms import LabHost
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.own_group import FOLDER
from manager.host.registry import HostPaths
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.decision import Decision, Memory, Snapshot
from manager.model.limits import EVERYTHING
from manager.model.registration import Assignment, HostSpec, VmClass, VmSpec
from policies.priority import Priority
from tests.live.conftest import (
    BATCH,
    CACHE,
    HOST,
    STRANGER,
    Service,
    is_v1,
    kill_all,
    terminate,
    until,
    weight,
    weight_file,
)

pytestmark = pytest.mark.live

NAMES = [CACHE.name, BATCH.name, STRANGER.name]
CRITICAL = 10_000


OWN_GROUPS = {"mode": "enforce", "placement": {"batch_group": "off"}}
"""Each VM has its weight in a group of its own."""


def smallest() -> int:
    return 2 if is_v1(BATCH) else 1


def in_force() -> bool:
    return weight(CACHE) == CRITICAL and weight(BATCH) == smallest()


def vcpu_cpus(name: str) -> set[int]:
    """pCPUs that the vCPU threads of a VM may use, as the kernel says."""
    found: set[int] = set()
    for thread in Path(f"/proc/{qemu_pid(name)}/task").iterdir():
        if (thread / "comm").read_text().startswith("CPU "):
            found |= os.sched_getaffinity(int(thread.name))
    return found


def test_from_registration_to_the_real_cgroup_and_back(vms: dict[str, str], service: Service) -> None:
    running = service.run()
    service.ticks()
    assert settings_of_all(NAMES) == vms, "nobody is registered, so nothing is touched"
    service.register()
    until(in_force, "the weights of `priority`")
    assert len(vcpu_cpus(CACHE.name)) == 1
    assert vcpu_cpus(BATCH.name) == os.sched_getaffinity(0)
    stranger = {key: value for key, value in vms.items() if STRANGER.name in key}
    assert settings_of_all([STRANGER.name]) == stranger

    def reported() -> object:
        knobs = (service.client.get(f"/vms/{CACHE.name}")["status"] or {}).get("knobs", [])
        return [knob for knob in knobs if knob["knob"] == "weight" and knob["value"] == str(CRITICAL)]

    [knob] = until(reported, "the weight in the API")
    assert (knob["owned"], knob["original"]) == (True, "1024" if is_v1(CACHE) else "100")
    decisions = until(lambda: service.client.items("/decisions", vm=CACHE.name), "decisions")
    assert {one["outcome"] for one in decisions} == {"applied"}
    assert any(one["reason"] == "priority: critical VM" for one in decisions)
    shown = json.loads(service.cli("status", "--json"))
    assert {vm["name"] for vm in shown["vms"]} == {CACHE.name, BATCH.name}
    assert CACHE.name in service.cli("decisions") and "10000" in service.cli("status").replace(",", "")

    service.client.request("POST", "/applications/shop/samples", body={"times_ms": [1.0] * 50})
    assert service.client.get("/applications/shop")["sla_state"] == "met"
    service.client.request("POST", "/applications/shop/samples", body={"times_ms": [9.0] * 500})
    assert service.client.get("/applications/shop")["sla_state"] == "violated"

    assert terminate(running) == 0
    assert settings_of_all(NAMES) == vms


def test_release_and_enforce_again(vms: dict[str, str], service: Service) -> None:
    service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    assert "every setting is restored" in service.cli("release")
    assert settings_of_all(NAMES) == vms
    service.ticks()
    assert settings_of_all(NAMES) == vms, "released means left alone"
    service.cli("release")
    service.cli("enforce")
    until(in_force, "the weights of `priority` again")
    service.cli("observe")
    assert settings_of_all(NAMES) == vms


def test_observe_writes_nothing_and_records_what_it_would_do(vms: dict[str, str], service: Service) -> None:
    service.run()
    service.register(mode="observe")
    found = until(lambda: service.client.items("/decisions"), "decisions")
    service.ticks(5)
    assert {one["outcome"] for one in found} == {"observed"}
    assert settings_of_all(NAMES) == vms


def test_kill_9_of_the_whole_service_leaves_nothing_behind(vms: dict[str, str], service: Service) -> None:
    running = service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    running.kill()  # its children are told by the kernel
    until(lambda: settings_of_all(NAMES) == vms, "everything to be put back")


def test_equipoise_itself_runs_beside_the_vms_and_leaves_no_group_behind(vms: dict[str, str], service: Service) -> None:
    if not is_v1(CACHE):
        pytest.skip("NOT TESTED: needs cgroup v1")
    group = weight_file(CACHE).parent.parent / FOLDER
    running = service.run()
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert {str(running.pid), *children} <= set((group / "cgroup.procs").read_text().split())
    assert terminate(running) == 0
    assert not group.exists()
    running = service.run()
    kill_all(running)
    assert group.exists(), "nobody was left to remove it"
    until(lambda: not (group / "cgroup.procs").read_text(), "what the manager had started to end")
    service.cli("release")
    assert not group.exists()


@pytest.mark.parametrize("knob", ["weight", "vcpu_pin", "emulator_pin"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_between_journal_and_write_and_after_it(
    vms: dict[str, str], service: Service, moment: str, knob: str
) -> None:
    prepare(service)
    dying = service.spawn("-m", "tests.live.dying", moment, knob)
    assert dying.wait(30) == -signal.SIGKILL
    agent = service.spawn("-m", "manager.cli", "agent")  # control resumes from the journal
    until(in_force, "control to resume")
    service.ticks()
    outcomes = {one["outcome"] for one in service.client.items("/decisions")}
    assert outcomes <= {"applied"}, "its own half-done work must not look like somebody else's"
    assert terminate(agent) == 0
    assert settings_of_all(NAMES) == vms


def test_release_without_agent_manager_and_registration(vms: dict[str, str], service: Service) -> None:
    manager = prepare(service)
    dying = service.spawn("-m", "tests.live.dying", "after", "weight")
    assert dying.wait(30) == -signal.SIGKILL
    assert settings_of_all(NAMES) != vms
    terminate(manager)
    assert "restored" in service.cli("release")
    assert settings_of_all(NAMES) == vms
    service.cli("release")


def prepare(service: Service) -> subprocess.Popen[bytes]:
    """A manager with everything registered and no agent yet."""
    running = service.run()
    service.register(mode="released")
    terminate(running)
    manager = service.manager()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    return manager


def test_a_foreign_change_is_noticed_and_respected(vms: dict[str, str], service: Service) -> None:
    running = service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    subprocess.run(
        ["virsh", "-q", "-c", "qemu:///system", "schedinfo", CACHE.name, "--live", "cpu_shares=5000"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    [event] = until(lambda: [e for e in service.client.items("/events") if e["kind"] == "external-change"], "an alert")
    assert event["vm"] == CACHE.name
    assert event["severity"] == "warning"
    service.ticks(5)
    assert weight(CACHE) == 5000
    assert "externally modified" in service.cli("status")
    assert terminate(running) == 0
    assert weight(CACHE) == 5000
    different = {key for key, value in settings_of_all(NAMES).items() if vms[key] != value}
    assert {key.rpartition("/")[0] for key in different} == {f"{CACHE.name}: {weight_file(CACHE).parent}"}


def test_vms_that_end_and_start_again(vms: dict[str, str], service: Service, lab: LabHost) -> None:
    service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    os.kill(qemu_pid(CACHE.name), signal.SIGKILL)
    until(lambda: service.client.get(f"/vms/{CACHE.name}")["status"] is None, "the VM to be gone")
    until(lambda: CACHE.name not in virsh_list(), "libvirt to have seen it")
    lab.start(CACHE)
    until(lambda: weight(CACHE) == CRITICAL, "the new run of the VM to be controlled")
    errors = [event for event in service.client.items("/events") if event["severity"] == "error"]
    assert errors == []
    # Threads of a process that is killed take pins until the last of them is gone.
    assert {one["outcome"] for one in service.client.items("/decisions")} <= {"applied", "vanished", "restored"}
    del vms


def virsh_list() -> str:
    return subprocess.run(
        ["virsh", "-q", "-c", "qemu:///system", "list", "--all", "--name"], check=True, capture_output=True, text=True
    ).stdout


class KillerPolicy(Priority):
    """`priority`, but the cache VM dies between being read and being written."""

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        decision = Priority.decide(self, snapshot, memory)
        pid = qemu_pid(CACHE.name)
        os.kill(pid, signal.SIGKILL)
        until(lambda: has_ended(pid), "its end")
        return decision


def has_ended(pid: int) -> bool:
    """With all of its threads: the first may be a zombie while others still run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_vm_killed_in_the_middle_of_a_tick(vms: dict[str, str], tmp_path: Path) -> None:
    EventLoop().start()
    paths = HostPaths(Path("/"))
    watch = HypervisorWatch("qemu:///system", paths, 30)
    watch.start()
    assert watch.wait_first_listing(10)
    host = KernelHost(paths, watch)
    journal = Journal(tmp_path / "journal.db", host.boot_id)
    settings = LoopSettings(HOST, 1.0, 30.0, 20)
    specs = (VmSpec(CACHE.name, VmClass.CRITICAL), VmSpec(BATCH.name, VmClass.BATCH))
    loop = ControlLoop(host, journal, {"priority": KillerPolicy()}, settings, limits=EVERYTHING)
    result = loop.tick(Assignment(HostSpec(HOST), specs), {})
    assert result.problems == ()
    pins = {str(r.outcome) for r in result.records if r.vm == CACHE.name and r.knob != "weight"}
    assert pins == {"vanished"}  # its empty cgroup may still be there, so the weight may still be written
    assert {str(r.outcome) for r in result.records if r.vm == BATCH.name} == {"applied"}
    loop = ControlLoop(host, journal, {"priority": Priority()}, settings, limits=EVERYTHING)
    assert loop.tick(Assignment(HostSpec(HOST), specs), {}).problems == ()
    loop.release("test")
    assert not journal.entries
    assert settings_of_all([BATCH.name]) == {key: value for key, value in vms.items() if BATCH.name in key}
    watch.stop()
    journal.close()


def test_libvirtd_restarts(vms: dict[str, str], service: Service, open_lab: Callable[[], LabHost]) -> None:
    running = service.run()
    service.register()
    until(in_force, "the weights of `priority`")
    stop_libvirtd()
    try:
        until(lambda: not service.reports()["libvirt_connected"], "the agent to notice")
        service.client.request("PUT", f"/hosts/{HOST}", body={**OWN_GROUPS, "policy": "equal", "pinning": False})
        until(lambda: weight(CACHE) == weight(BATCH) == weight(STRANGER), "control to go on without libvirtd")
    finally:
        start_libvirtd()
    until(lambda: service.reports()["libvirt_connected"], "the agent to be connected again")
    fresh = open_lab()
    service.client.request("PUT", f"/vms/{STRANGER.name}", body={"class": "batch"})
    service.client.request("PUT", f"/hosts/{HOST}", body={**OWN_GROUPS, "policy": "priority"})
    fresh.destroy(STRANGER)
    fresh.start(STRANGER)
    until(lambda: weight(STRANGER) == smallest(), "a VM started afterwards to be found")
    assert terminate(running) == 0
    left = {key: value for key, value in settings_of_all([CACHE.name, BATCH.name]).items() if vms[key] != value}
    assert left == {}


def has_systemd() -> bool:
    return Path("/run/systemd/system").exists()


def stop_libvirtd() -> None:
    if has_systemd():
        subprocess.run(["systemctl", "stop", "libvirtd.service", "libvirtd.socket", "libvirtd-ro.socket"], check=True)
        return
    pid = int(Path("/run/libvirtd.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{pid}").exists(), "libvirtd to end")


def start_libvirtd() -> None:
    command = ["systemctl", "start", "libvirtd.service"] if has_systemd() else ["libvirtd", "-d"]
    subprocess.run(command, check=True)
