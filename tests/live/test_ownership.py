"""Settings of real VMs that somebody else changes: given up, told of, and taken back on the operator's word alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.demo.originals import qemu_pid
from deploy.lab.lab_vms import LabVm
from manager.model.cpus import format_cpus
from tests.live.conftest import (
    BATCH,
    CACHE,
    HOST,
    HOT,
    STRANGER,
    Service,
    group_file,
    held,
    quota_file,
    terminate,
    until,
    virsh,
    weight,
    weight_file,
)
from tests.live.test_control import CRITICAL, vcpu_cpus

pytestmark = pytest.mark.live

ALL = frozenset(os.sched_getaffinity(0))
ANY_PCPU = frozenset(str(cpu) for cpu in ALL)
LIMITED = 0.5


@dataclass(frozen=True)
class Meddling:
    """Somebody changes one knob of a VM; ``found`` is what it holds then, ``wanted`` what it may hold once adopted."""

    vm: LabVm
    knob: str
    change: Callable[[], object]
    read: Callable[[], str]
    found: str
    wanted: frozenset[str]


def vcpu_tid(vm: LabVm, index: int) -> int:
    """The thread of a vCPU."""
    for thread in Path(f"/proc/{qemu_pid(vm.name)}/task").iterdir():
        if (thread / "comm").read_text().startswith(f"CPU {index}/"):
            return int(thread.name)
    raise AssertionError(f"{vm.name} has no vCPU {index}")


def quota_us(vm: LabVm) -> str:
    return quota_file(vm).read_text().split()[0]


def affinity(tid: int) -> str:
    return format_cpus(frozenset(os.sched_getaffinity(tid)))


def by_virsh() -> list[Meddling]:
    """As an operator does it. A vCPU that he binds to one pCPU is adopted with that as its limits."""
    other = str(min(ALL - vcpu_cpus(CACHE.name)))
    return [
        Meddling(
            CACHE,
            "weight",
            lambda: virsh("schedinfo", CACHE.name, "--live", "cpu_shares=5000"),
            lambda: str(weight(CACHE)),
            "5000",
            frozenset({str(CRITICAL)}),
        ),
        Meddling(
            CACHE,
            "vcpu_pin",
            lambda: virsh("vcpupin", CACHE.name, "0", other, "--live"),
            lambda: affinity(vcpu_tid(CACHE, 0)),
            other,
            frozenset({other}),
        ),
        Meddling(
            BATCH,
            "quota",
            lambda: virsh("schedinfo", BATCH.name, "--live", "global_quota=70000"),
            lambda: quota_us(BATCH),
            "70000",
            frozenset({"50000"}),
        ),
    ]


def by_the_kernel() -> list[Meddling]:
    """As other tools do it, past libvirt. A vCPU that is adopted is placed anew: on whichever pCPU is best then."""
    idle, everywhere = group_file(BATCH, "cpu.idle"), format_cpus(ALL)
    tid, pid = vcpu_tid(CACHE, 0), qemu_pid(CACHE.name)
    return [
        Meddling(
            CACHE,
            "weight",
            lambda: weight_file(CACHE).write_text("4000"),
            lambda: str(weight(CACHE)),
            "4000",
            frozenset({str(CRITICAL)}),
        ),
        Meddling(
            CACHE, "vcpu_pin", lambda: os.sched_setaffinity(tid, ALL), lambda: affinity(tid), everywhere, ANY_PCPU
        ),
        Meddling(
            CACHE, "emulator_pin", lambda: os.sched_setaffinity(pid, ALL), lambda: affinity(pid), everywhere, ANY_PCPU
        ),
        Meddling(BATCH, "idle", lambda: idle.write_text("0"), lambda: idle.read_text().strip(), "0", frozenset({"1"})),
        Meddling(
            BATCH,
            "quota",
            lambda: quota_file(BATCH).write_text("30000"),
            lambda: quota_us(BATCH),
            "30000",
            frozenset({"50000"}),
        ),
    ]


def knob_of(service: Service, vm: LabVm, knob: str) -> Mapping[str, Any]:
    """What the API shows of the first knob of a kind; empty while the agent has not reported it."""
    status = service.client.get(f"/vms/{vm.name}")["status"]
    return next((one for one in status["knobs"] if (one["knob"], one["index"]) == (knob, 0)), {}) if status else {}


def reset(vm: LabVm) -> None:
    """As the kernel makes a group, and everywhere; an idle group takes no weight."""
    group_file(vm, "cpu.idle").write_text("0")
    weight_file(vm).write_text("1024" if weight_file(vm).name == "cpu.shares" else "100")
    quota_file(vm).write_text("-1" if quota_file(vm).name == "cpu.cfs_quota_us" else "max")
    for thread in Path(f"/proc/{qemu_pid(vm.name)}/task").iterdir():
        os.sched_setaffinity(int(thread.name), ALL)
    for index in range(vm.vcpus):  # libvirt narrows the cpuset of a vCPU that it pins
        virsh("vcpupin", vm.name, str(index), format_cpus(ALL), "--live")


@pytest.fixture
def enforced(vms: dict[str, str], service: Service) -> Iterator[dict[str, str]]:
    """Every knob of the two registered VMs is driven; gives what the kernel held before. Put back whatever happens."""
    del vms
    before = held(CACHE, BATCH, STRANGER)
    service.run()
    service.register()
    host = {"mode": "enforce", "policy": "priority", "batch_idle": True}
    service.client.request("PUT", f"/hosts/{HOST}", body=host)
    service.client.request("PUT", f"/vms/{BATCH.name}", body={"class": "batch", "max_pcpus": LIMITED})
    until(lambda: weight(CACHE) == CRITICAL and quota_us(BATCH) == "50000", "weight and quota")
    until(lambda: group_file(BATCH, "cpu.idle").read_text() == "1\n", "the idle class")
    until(lambda: knob_of(service, BATCH, "idle").get("owned"), "the agent to report")
    yield before
    service.end()
    for vm in (CACHE, BATCH):
        reset(vm)


@pytest.mark.parametrize("tool", [by_virsh, by_the_kernel])
def test_what_somebody_changes_is_given_up_and_taken_back_on_the_operators_word(
    enforced: dict[str, str], service: Service, tool: Callable[[], list[Meddling]]
) -> None:
    cases = tool()
    for case in cases:
        until(lambda case=case: knob_of(service, case.vm, case.knob).get("owned"), f"{case.knob} to be told of")
    for case in cases:
        case.change()
    service.ticks(5)  # those already under way, and one or two more
    for case in cases:
        shown = knob_of(service, case.vm, case.knob)
        assert (shown["external"], shown["owned"], shown["value"]) == (True, False, case.found), case.knob
    service.ticks(5)
    for case in cases:
        assert case.read() == case.found, f"{case.knob} was written again"
    events = [event for event in service.client.items("/events") if event["kind"] == "external-change"]
    assert sorted(event["vm"] for event in events) == sorted(case.vm.name for case in cases), "one alert each, once"
    assert {event["severity"] for event in events} == {"warning"}
    kept = {case.knob for case in cases if case.vm is CACHE}
    others = [one for one in service.client.get(f"/vms/{CACHE.name}")["status"]["knobs"] if one["knob"] not in kept]
    assert not any(one["external"] for one in others)
    assert "externally modified" in service.cli("status")

    assert CACHE.name in service.cli("adopt", "--vm", CACHE.name)
    mine = [case for case in cases if case.vm is CACHE]
    for case in mine:
        until(lambda case=case: case.read() in case.wanted, f"{case.knob} to be driven again")
        until(lambda case=case: not knob_of(service, CACHE, case.knob)["external"], "that to be reported")
        if case.found not in case.wanted:
            until(lambda case=case: knob_of(service, CACHE, case.knob)["original"] == case.found, "the new original")
    assert all(knob_of(service, BATCH, case.knob)["external"] for case in cases if case.vm is BATCH)
    service.cli("adopt")
    for case in cases:
        until(lambda case=case: case.read() in case.wanted, f"{case.knob} to be driven again")
    service.cli("release")
    for case in cases:
        assert case.read() == case.found, f"{case.knob}: the value that was found is the original now"
    untouched = held(STRANGER).items() <= enforced.items()
    assert untouched


def test_a_change_survives_the_agent_and_its_successor(enforced: dict[str, str], service: Service) -> None:
    """What was given up stays given up when the agent starts again; stopping and starting write nothing there."""
    weight_file(CACHE).write_text("4000")
    until(lambda: knob_of(service, CACHE, "weight").get("external"), "the change to be noticed")
    assert service.processes[-1].poll() is None
    service.processes[-1].terminate()
    assert service.processes[-1].wait(30) == 0
    assert weight(CACHE) == 4000
    assert {key: text for key, text in held(CACHE, BATCH, STRANGER).items() if enforced[key] != text} == {
        next(key for key in enforced if key.endswith(weight_file(CACHE).name) and CACHE.name in key): "4000"
    }
    service.run()
    until(lambda: knob_of(service, BATCH, "idle").get("owned"), "control to go on")
    assert weight(CACHE) == CRITICAL, "nobody holds it any more: it was found anew"
    service.cli("release")
    assert weight(CACHE) == 4000


def test_a_cpuset_that_somebody_narrowed_does_not_keep_a_vm_from_being_released(
    enforced: dict[str, str], service: Service
) -> None:
    """`virsh vcpupin` with the pCPU that we chose too is no change that could be seen, but it binds the thread."""
    del enforced
    [cpu] = vcpu_cpus(CACHE.name)
    virsh("vcpupin", CACHE.name, "0", str(cpu), "--live")
    service.ticks(5)
    assert knob_of(service, CACHE, "vcpu_pin")["owned"]
    assert "every setting is restored" in service.cli("release")
    assert affinity(qemu_pid(CACHE.name)) == format_cpus(ALL)
    assert vcpu_cpus(CACHE.name) <= ALL
    assert terminate(service.processes[-1]) == 0


def test_the_persistent_configuration_is_never_changed(hot: dict[str, str], service: Service) -> None:
    """Weights, pins, idle class and quota are set and released, and libvirt's description is what it was."""
    before = [virsh("dumpxml", HOT.name, *options) for options in (["--inactive"], [])]
    service.run()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority", "batch_idle": True})
    body = {"class": "batch", "max_pcpus": LIMITED, "cpus": str(min(ALL))}
    service.client.request("PUT", f"/vms/{HOT.name}", body=body)
    until(lambda: group_file(HOT, "cpu.idle").read_text() == "1\n", "the idle class")
    until(lambda: quota_us(HOT) == "50000" and vcpu_cpus(HOT.name) == {min(ALL)}, "quota and pins")
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    until(lambda: weight(HOT) in {1, 2}, "the weight, which an idle group has none of")
    during = [virsh("dumpxml", HOT.name, *options) for options in (["--inactive"], [])]
    service.cli("release")
    assert held(HOT) == hot
    after = [virsh("dumpxml", HOT.name, *options) for options in (["--inactive"], [])]
    assert during == after == before
    decided = {one["knob"] for one in service.client.items("/decisions") if one["outcome"] == "applied"}
    assert decided == {"weight", "vcpu_pin", "emulator_pin", "idle", "quota"}
