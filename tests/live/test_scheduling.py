"""A real VM's vCPU becomes real-time within a limit, and all of it is undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.lab.demo.originals import qemu_pid
from manager.host.thread_scheduling import scheduling_of
from manager.model.scheduling import in_words
from tests.live.conftest import CACHE, HOST, LabVm, Service, group_file, held, kill_all, until

pytestmark = pytest.mark.live

LIMIT_US = 300_000
RUNTIME = "cpu.rt_runtime_us"


def policies(vm: LabVm) -> dict[str, str]:
    """Policy and level of each thread, by its name."""
    found: dict[str, str] = {}
    for task in Path(f"/proc/{qemu_pid(vm.name)}/task").iterdir():
        name = (task / "comm").read_text().strip()
        found[f"{name} {task.name}"] = in_words(scheduling_of(int(task.name)) or 0)
    return found


def vcpus(vm: LabVm) -> set[str]:
    """Policies of the vCPU threads."""
    return {words for name, words in policies(vm).items() if name.startswith("CPU ")}


def limits(vm: LabVm) -> dict[str, int]:
    """Of the VM's group, of those inside it, and of the one above."""
    folder = group_file(vm, RUNTIME).parent
    files = [folder.parent / RUNTIME, *sorted(folder.rglob(RUNTIME))]
    return {str(file.parent.relative_to(folder.parent)): int(file.read_text()) for file in files}


def reported(service: Service) -> tuple[str, str]:
    """What the API says the first vCPU holds, and held before."""
    status = service.client.get(f"/vms/{CACHE.name}")["status"] or {"knobs": []}
    return next(((one["value"], one["original"]) for one in status["knobs"] if one["knob"] == "scheduling"), ("", ""))


@pytest.mark.parametrize("undo", ["unregister", "offline"])
def test_a_vcpu_becomes_real_time_within_its_limit_and_is_undone(
    vms: dict[str, str], service: Service, undo: str
) -> None:
    del vms
    if not group_file(CACHE, RUNTIME).exists():
        pytest.skip("NOT TESTED: this kernel has no limits for real-time threads of a group")
    before = held(CACHE), policies(CACHE), limits(CACHE)
    service.extra["EQUIPOISE_ALLOW"] = "real-time"
    running = service.run()
    service.register()
    service.client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "equal", "pinning": False})
    scheduling = {"policy": "fifo", "priority": 2, "limit": LIMIT_US / 10**6}
    service.client.request("PATCH", f"/vms/{CACHE.name}", body={"scheduling": scheduling})
    until(lambda: vcpus(CACHE) == {"fifo 2"}, "the vCPU to be real-time")
    assert {words for name, words in policies(CACHE).items() if not name.startswith("CPU ")} == {"nice 0"}
    found = limits(CACHE)
    own = group_file(CACHE, RUNTIME).parent.name
    assert (found["."], found[own]) == (LIMIT_US, LIMIT_US)
    assert sum(value for name, value in found.items() if "vcpu" in name) in range(LIMIT_US - CACHE.vcpus, LIMIT_US + 1)
    assert not any(value for name, value in found.items() if "emulator" in name)
    until(lambda: reported(service) == ("1002", "0"), "that to be reported")
    if undo == "unregister":
        service.client.request("PATCH", f"/vms/{CACHE.name}", body={"scheduling": None})
        until(lambda: limits(CACHE) == before[2], "the limits to be put back")
    else:
        kill_all(running)
        assert vcpus(CACHE) == {"fifo 2"}, "it stays so when the agent is killed"
        service.cli("release")
    assert policies(CACHE) == before[1]
    assert limits(CACHE) == before[2]
    if undo != "unregister":
        assert held(CACHE) == before[0]
