"""A VM one of whose vCPUs is full while the other is idle: a mean of half of its CPU time, of which more is no help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.lab.lab_vms import GuestRole, LabHost, LabVm
from tests.live.conftest import HOST, LIVE_PREFIX, Service, before_all_else, is_untouched, until

ALL = frozenset(os.sched_getaffinity(0))
LOPSIDED = LabVm(f"{LIVE_PREFIX}lopsided", GuestRole.BATCH, "192.168.122.247", vcpus=2, options={"busy_vcpus": 1})
FULL, IDLE = 0.75, 0.25

pytestmark = [pytest.mark.live, pytest.mark.skipif(len(ALL) < 2, reason="NOT TESTED: needs a pCPU for each vCPU")]


@pytest.fixture
def lopsided(quiet: None, lab: LabHost) -> Iterator[None]:
    """The VM alone."""
    del quiet
    lab.start(LOPSIDED)
    lab.wait_ready(LOPSIDED)
    yield
    lab.destroy(LOPSIDED)


def test_a_full_vcpu_is_told_of_and_is_the_likely_cause(lopsided: None, service: Service) -> None:
    del lopsided
    service.run()
    with before_all_else(LOPSIDED):
        is_told_of(service)
    service.cli("release")
    assert is_untouched(LOPSIDED)


def is_told_of(service: Service) -> None:
    """In status, history and API, and in the verdict once the SLA is violated."""
    client = service.client
    client.request("PUT", f"/hosts/{HOST}", body={"mode": "enforce", "policy": "priority"})
    client.request("PUT", f"/vms/{LOPSIDED.name}", body={"class": "critical"})
    body = {"tiers": [{"name": "web", "vms": [LOPSIDED.name]}], "sla": {"response_time_ms": 10}}
    client.request("PUT", "/applications/shop", body=body)

    def busy_vcpus() -> list[dict[str, Any]]:
        tick = client.get(f"/hosts/{HOST}")["tick"]
        return [vm for vm in tick["busy_vcpus"] if vm["used"][0] > FULL and vm["used"][1] < IDLE]

    [vm] = until(busy_vcpus, "each vCPU's use and wait")
    assert vm["vm"] == LOPSIDED.name
    assert len(vm["used"]) == len(vm["waited"]) == 2
    text = f"{LOPSIDED.name} has a full vCPU beside idle ones"
    until(lambda: text in " ".join(service.cli("status").split()), "status to say so, in lines of any width")
    ticks = client.get(f"/hosts/{HOST}/ticks")["items"]
    seen = [one["vcpu"] for tick in ticks for one in tick["vms"] if one["vm"] == LOPSIDED.name and one.get("vcpu")]
    assert (0, 1) in {(one["index"], one["full"]) for one in seen}

    def imbalance() -> dict[str, Any] | None:
        client.request("POST", "/applications/shop/samples", body={"times_ms": [90.0] * 100})
        found: dict[str, Any] = client.get("/applications/shop/evidence")
        print(found)
        return found if found["verdict"] == "imbalance" else None

    found = until(imbalance, "the verdict")
    assert (found["vm"], found["host"]) == (None, HOST), "no neighbour is involved"
    assert f"vCPU 0 of {LOPSIDED.name} is full" in found["evidence"][0]
    assert "1 of 2 vCPUs are full" in found["evidence"][1]
    measured = {one["metric"]: one["during"] for one in found["measures"]}
    assert measured["vcpu_used"] > FULL
    assert measured["vcpu_used"] + measured["vcpu_wait"] > 0.9
