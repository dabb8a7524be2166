"""A real VM's vCPU threads get a slice of EEVDF for a warp: set, read back, reported and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.lab.demo.originals import qemu_pid
from manager.host.thread_scheduling import attributes, default_slice_ns
from tests.live.conftest import CACHE, HOST, LabVm, Service, held, kill_all, until

pytestmark = pytest.mark.live

WARP_US, SLICE_NS = 5000, 200_000


def slices(vm: LabVm) -> dict[str, int]:
    """Nanoseconds, of each lasting thread, by its name."""
    found: dict[str, int] = {}
    for task in Path(f"/proc/{qemu_pid(vm.name)}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if not name.startswith(("worker", "call_rcu")):
            found[f"{name} {task.name}"] = int(attributes(int(task.name)).runtime)
    return found


def of_vcpus(vm: LabVm) -> set[int]:
    return {slice_ns for name, slice_ns in slices(vm).items() if name.startswith("CPU ")}


def reported(service: Service) -> int | None:
    """The warp that the API says is in force."""
    return (service.client.get(f"/vms/{CACHE.name}")["status"] or {"warp_us": None})["warp_us"]


@pytest.mark.parametrize("undo", ["off", "offline"])
def test_a_warp_becomes_a_slice_of_the_vcpu_threads_and_is_undone(
    vms: dict[str, str], service: Service, undo: str
) -> None:
    del vms
    if default_slice_ns() is None:
        pytest.skip("NOT TESTED: slices of threads are not honoured before Linux 6.12")
    before = held(CACHE), slices(CACHE)
    running = service.run()
    service.register()
    service.client.request("PATCH", f"/vms/{CACHE.name}", body={"warp_us": WARP_US})
    host = {"mode": "enforce", "policy": "equal", "pinning": False, "warp": "slice"}
    service.client.request("PUT", f"/hosts/{HOST}", body=host)
    until(lambda: of_vcpus(CACHE) == {SLICE_NS}, "the vCPU to have the slice")
    others = {name: one for name, one in before[1].items() if not name.startswith("CPU ")}
    assert {name: one for name, one in slices(CACHE).items() if name in others} == others
    until(lambda: reported(service) == WARP_US, "it to be reported")
    told = service.client.get(f"/hosts/{HOST}")["tick"]["warp"]
    assert (told["mechanism"], told["vms"]) == ("slice", 1)
    if undo == "off":
        service.client.request("PATCH", f"/hosts/{HOST}", body={"warp": "off"})
        until(lambda: of_vcpus(CACHE) != {SLICE_NS}, "the slice to be put back")
    else:
        kill_all(running)
        assert of_vcpus(CACHE) == {SLICE_NS}, "it stays so when the agent is killed"
        service.cli("release")
    assert slices(CACHE) == before[1]
    if undo != "off":
        assert held(CACHE) == before[0]
