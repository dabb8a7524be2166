"""Jobs of real batch VMs: weights follow the earliest deadline, progress is CPU time, and what cannot be is told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import libvirt
import pytest

from deploy.lab.lab_vms import LabHost, LabVm
from manager.errors import ManagerRefused
from tests.live.conftest import BATCH, CACHE, START_S, STRANGER, Service, before_all_else, until, weight
from tests.live.test_control import smallest

pytestmark = pytest.mark.live

URGENT, LATER = STRANGER, BATCH


def agree(service: Service, vm: LabVm, cpu_seconds: float, in_s: float) -> None:
    """A job of so much work until then."""
    deadline = (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat()
    service.client.request("PATCH", f"/vms/{vm.name}", body={"job": {"deadline": deadline, "cpu_seconds": cpu_seconds}})


def progress(service: Service, vm: LabVm) -> Any:
    """How the API says that it fares; empty while it says nothing."""
    return service.client.get(f"/vms/{vm.name}")["batch"] or {}


def cpu_s(lab: LabHost, vm: LabVm) -> float:
    """CPU time of all its threads, as libvirt reads it from the kernel."""
    return int(lab.stats(vm.name, libvirt.VIR_DOMAIN_STATS_CPU_TOTAL)["cpu.time"]) / 1e9


def fresh(service: Service, lab: LabHost, vm: LabVm) -> tuple[float, float]:
    """CPU time of its work by the next progress that the API tells, and by libvirt then."""
    before = progress(service, vm).get("done_cpu_s")
    until(lambda: progress(service, vm).get("done_cpu_s") not in {None, before}, "its next progress", START_S)
    return progress(service, vm)["done_cpu_s"], cpu_s(lab, vm)


def told(service: Service, vm: LabVm, kind: str) -> str:
    """The text of its event of that kind."""

    def texts() -> list[str]:
        items = service.client.items("/events", kind=kind)
        return [event["message"] for event in items if event["message"].startswith(vm.name)]

    return str(until(texts, f"an event {kind}")[0])


@pytest.fixture
def served(vms: dict[str, str], service: Service) -> Iterator[Service]:
    """Two batch VMs beside a critical one, which a busy machine does not keep waiting."""
    del vms
    with before_all_else(CACHE):
        service.run()
        service.register()
        service.client.request("PUT", f"/vms/{STRANGER.name}", body={"class": "batch"})
        until(lambda: weight(URGENT) == weight(LATER) == smallest(), "the weights of `priority`")
        yield service


def test_weights_follow_deadlines_and_progress_is_cpu_time(served: Service, lab: LabHost) -> None:
    agree(served, LATER, 30, 3600)
    agree(served, URGENT, 3, 60)
    until(lambda: weight(URGENT) > weight(LATER), "more weight for the earlier deadline")
    done, got = fresh(served, lab, URGENT)
    until(lambda: cpu_s(lab, URGENT) - got > 0.4, "some work", START_S)
    later, got_later = fresh(served, lab, URGENT)
    assert later - done == pytest.approx(got_later - got, abs=0.2), "which is told in tenths"
    agree(served, LATER, 3, 30)
    until(lambda: weight(LATER) > weight(URGENT), "more weight for what is due first now")


def test_work_that_is_done_and_work_that_cannot_be(served: Service) -> None:
    agree(served, URGENT, 0.3, 3600)
    agree(served, LATER, 55, 30)  # two vCPUs can do 60, but use a twentieth of their time
    until(lambda: progress(served, LATER).get("state") == "infeasible", "to be told that it cannot be done")
    until(lambda: progress(served, URGENT).get("state") == "done", "its work to be done", START_S)
    assert "has done its" in told(served, URGENT, "job-done")
    assert "can use 2 at most: the deadline cannot be met" in told(served, LATER, "job-infeasible")
    with pytest.raises(ManagerRefused, match="1000 is refused; use at most"):
        agree(served, LATER, 1000, 30)
