"""From a violation to the VM that leaves: nothing but the violation itself makes the manager propose a migration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.lab.lab_vms import MEMCACHED_PORT, GuestRole, LabHost, LabVm
from manager.load import LoadSpec, MemcachedOptions, Phase
from manager.load import run as run_load
from tests.live.conftest import CACHE, HOST, LIVE_PREFIX, START_S, held, until
from tests.live.fleet import two_hosts
from tests.live.second_host import AWAY, keep_apart

SERVED = replace(CACHE, persistent=True)
BUSY = tuple(
    LabVm(f"{LIVE_PREFIX}busy-{number}", GuestRole.BATCH, f"192.168.122.{246 + number}", persistent=True)
    for number in range(2)
)
LOAD_RPS, MEASURE_S, LONGEST_S = 100.0, 10.0, 3000.0
ROOM = 1.5
PROPOSED_S = 1200.0
"""A violation lasts after ten minutes; the likely cause, a twin and the next search take more."""

pytestmark = [pytest.mark.live, pytest.mark.long]


def load(seconds: float) -> LoadSpec:
    return LoadSpec(SERVED.ip, MEMCACHED_PORT, MemcachedOptions(), (Phase(seconds, LOAD_RPS),), connections=8)


def p95_ms() -> float:
    """Of a client."""
    return (run_load(load(MEASURE_S)).histogram.percentile_us(95) or 0.0) / 1000


@contextmanager
def asked() -> Iterator[None]:
    """Requests all the time."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: run_load(load(LONGEST_S), stop=stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def target_ms(open_lab: Callable[[], LabHost]) -> Iterator[float]:
    """A little more than what the service answers in when it is alone; then the batch VMs run, too."""
    lab = open_lab()
    lab.destroy_all(LIVE_PREFIX)
    lab.start(SERVED)
    lab.wait_ready(SERVED)
    alone_ms = p95_ms()
    for vm in BUSY:
        lab.start(vm)
        lab.wait_ready(vm)
    for vm in (SERVED, *BUSY):
        keep_apart(vm)
        lab.wait_ready(vm)
    print(f"p95 alone {alone_ms:.2f} ms, beside batch VMs {p95_ms():.2f} ms")
    yield ROOM * alone_ms
    open_lab().destroy_all(LIVE_PREFIX)


def test_a_violation_that_lasts_makes_a_vm_leave(target_ms: float, tmp_path: Path) -> None:
    before = held(SERVED)
    with two_hosts(tmp_path, "equal", EQUIPOISE_INTERVAL_S="5") as fleet, asked():
        client = fleet.service.client
        client.request("PUT", f"/vms/{SERVED.name}", body={"class": "critical", "host": HOST})
        for vm in BUSY:
            client.request("PUT", f"/vms/{vm.name}", body={"class": "batch", "host": HOST})
        body = {
            "tiers": [{"name": "cache", "vms": [SERVED.name]}],
            "sla": {"response_time_ms": target_ms},
            "sources": [{"name": "wire", "type": "tap", "port": MEMCACHED_PORT}],
        }
        client.request("PUT", "/applications/shop", body=body)
        [proposed] = until(lambda: client.items("/proposals"), "a proposal", PROPOSED_S)
        print(fleet.service.cli("proposals"))
        assert (proposed["source"], proposed["destination"]) == (HOST, AWAY)
        assert proposed["vm"] in {vm.name for vm in BUSY}
        assert (proposed["state"], proposed["application"]) == ("proposed", "shop")
        fleet.approve(proposed["number"])
        ended = fleet.ended(proposed["number"])
        assert (ended["state"], ended["detail"]) == ("done", "")
        assert fleet.away.vms == [proposed["vm"]]
        until(
            lambda: client.get(f"/vms/{proposed['vm']}")["status_host"] == AWAY, "the other agent to report it", START_S
        )
        assert client.items("/proposals", host=HOST) == [ended], "both hosts rest"
        fleet.service.cli("release")
        assert held(SERVED) == before
