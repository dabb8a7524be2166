"""Services of real VMs, seen at their taps beside the clock of who sends the requests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.lab_vms import URI, GuestRole, LabHost, LabVm
from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.host.vm_interfaces import interfaces
from manager.load import HttpOptions, IntervalResult, LoadResult, LoadSpec, MemcachedOptions, Phase, run
from manager.model.histogram import RELATIVE_ERROR
from manager.model.traffic import TapProtocol
from tests.bench.tap_accuracy import SETTLE_S, collector, compare, log_misses, logged_ms
from tests.bench.tap_clients import HeardLoadgen
from tests.live.conftest import CACHE, HOST, LIVE_PREFIX, Service, until
from tests.live.pipelining import Pipelined

WEB = LabVm(f"{LIVE_PREFIX}web", GuestRole.NGINX, "192.168.122.248")
KEYS = 4
"""Stored before the load, in one packet."""
SERVICES = (
    (CACHE, 11211, MemcachedOptions(keys=KEYS), 200.0, TapProtocol.MEMCACHED),
    (WEB, 80, HttpOptions("/"), 50.0, TapProtocol.HTTP),
)
CLOSE = (("Connection", "close"),)
COMPARED = (
    (CACHE, 11211, MemcachedOptions(), 200.0),
    (CACHE, 11211, MemcachedOptions(keys=16, value_bytes=1_000_000), 20.0),
    (WEB, 80, HttpOptions("/"), 100.0),
    (WEB, 80, HttpOptions("/", CLOSE), 100.0),
)
PLACES = 16
"""Requests of a connection that are timed at once: MOST_OUTSTANDING of manager/bpf/tap/tap.h."""
DURATION_S, MINUTE_S, HOUR_S = 5.0, 60.0, 3600.0
LONG_S = 100.0
"""A time-out that busy CPUs do not have pass."""
EXACT = 0.005

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served(open_lab: Callable[[], LabHost]) -> Iterator[socket.socket]:
    """Both VMs, which no test here changes; gives where NGINX's log arrives."""
    lab = open_lab()
    lab.destroy_all(LIVE_PREFIX)
    with collector() as log:
        host, port = log.getsockname()
        vms = CACHE, replace(WEB, options={"access_log": f"{host}:{port}"})
        for vm in vms:
            lab.start(vm)
        for vm in vms:
            lab.wait_ready(vm)
        yield log
    lab.destroy_all(LIVE_PREFIX)


@contextmanager
def under_load(*specs: LoadSpec) -> Iterator[list[LoadResult]]:
    """These loads, from the end of the first interval of each until the block ends; then the list has their results."""
    results: list[LoadResult] = []
    stop, begun = threading.Event(), threading.Semaphore(0)

    def on_interval(interval: IntervalResult) -> None:
        if interval.start_s == 0:
            begun.release()

    with ThreadPoolExecutor(len(specs)) as pool:
        loads = [pool.submit(run, spec, on_interval, stop) for spec in specs]
        try:
            for _ in specs:
                until(
                    lambda: begun.acquire(blocking=False) or any(load.result() for load in loads if load.done()),
                    "the loads to begin",
                )
            yield results
        finally:
            stop.set()
        results += [load.result() for load in loads]


def test_response_times_at_the_tap_are_the_clients_less_its_network(served: socket.socket) -> None:
    """By a capture of the same packets; with segments that make one request, and connections for one request."""
    for vm, port, options, rate_rps in COMPARED:
        generator = HeardLoadgen(LoadSpec(vm.ip, port, options, (Phase(DURATION_S, rate_rps),), connections=8))
        generator.prepare()
        time.sleep(SETTLE_S)
        logged_ms(served)
        compared = compare(vm, port, generator.run)
        print(f"{vm.name}, {options}: {compared.figures()}")
        assert compared.misses == []
        assert len(compared.turns) == compared.requests > 0
        if vm is WEB:
            assert log_misses(compared, logged_ms(served)) == []


def test_requests_at_the_tap_are_those_that_were_sent(served: socket.socket) -> None:
    """As many, and none of them answered later than the client says."""
    del served
    by_vm = {interface.vm: interface.index for interface in interfaces(URI)}
    for vm, port, options, rate_rps, protocol in SERVICES:
        index = by_vm[vm.name]
        assert index is not None
        with closing(TapProgram(HostPaths(Path("/")))) as program:
            program.attach(index)
            phases = (Phase(DURATION_S, rate_rps),)
            result = run(LoadSpec(vm.ip, port, options, phases, connections=8, timeout_s=LONG_S))
            [seen] = [traffic for traffic in program.traffic() if traffic.port == port]
        assert result.errors == {}
        assert seen.protocol == (protocol, 1.0)
        stored = KEYS if vm is CACHE else 0
        assert seen.answers == pytest.approx(result.answered + stored, rel=EXACT / 2)
        assert (seen.errors, seen.unanswered, seen.untimed) == (0, 0, 0)
        for percentile in (50, 95):  # of the 99th what was stored may be a part
            at_tap_us, at_client_us = (each.percentile_us(percentile) for each in (seen.times, result.histogram))
            print(f"{vm.name} p{percentile}: {at_tap_us} us at the tap, {at_client_us} us for the client")
            assert at_tap_us is not None
            assert at_client_us is not None
            assert at_tap_us <= at_client_us * (1 + 2 * RELATIVE_ERROR)


@pytest.mark.parametrize("most", [PLACES, 3 * PLACES], ids=["as many as are timed", "more"])
@pytest.mark.parametrize(
    ("vm", "port", "ask"),
    [(CACHE, 11211, b"get nothing\r\n"), (WEB, 80, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")],
    ids=["memcached", "NGINX"],
)
def test_pipelined_requests_are_timed_each(served: socket.socket, vm: LabVm, port: int, ask: bytes, most: int) -> None:
    """In segments that are cut anywhere; those that find no place are counted.

    Dozens of answers with a head of HTTP in one segment are more than is looked at: the way is lost then, and what
    comes in one segment counts once.
    """
    del served
    [index] = [interface.index for interface in interfaces(URI) if interface.vm == vm.name]
    assert index is not None
    client = Pipelined((vm.ip, port), ask)
    with closing(TapProgram(HostPaths(Path("/")))) as program:
        program.attach(index)
        times_ms = sorted(time_ms for seed in range(4) for time_ms in client.times_ms(seed, batches=20, most=most))
        [seen] = [traffic for traffic in program.traffic() if traffic.port == port]
    counted = seen.answers + seen.untimed
    assert counted == len(times_ms) or (most > PLACES and vm is WEB and counted < len(times_ms))
    assert (seen.unanswered, seen.errors) == (0, 0)
    if most > PLACES:
        assert seen.untimed and seen.answers
        return
    assert seen.untimed == 0
    for percentile in (50, 95):
        at_tap_us, at_client_ms = seen.times.percentile_us(percentile), times_ms[len(times_ms) * percentile // 100]
        print(f"{vm.name} p{percentile}: {at_tap_us} us at the tap, {at_client_ms:.2f} ms for the client")
        assert at_tap_us is not None
        assert at_tap_us <= 1000 * at_client_ms * (1 + 2 * RELATIVE_ERROR)


def test_the_command_shows_what_serves(served: socket.socket) -> None:
    """Of loads that begin before it and go on until it has ended, whenever it comes to measure."""
    del served
    command = [sys.executable, "-m", "manager.cli", "services", "--json", "--duration", str(2 * DURATION_S)]
    specs = [
        LoadSpec(vm.ip, port, options, (Phase(HOUR_S, rate_rps),), connections=8)
        for vm, port, options, rate_rps, _ in SERVICES
    ]
    with under_load(*specs) as results:
        shown = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    rows = {row["vm"]: row for row in shown["services"]}
    for (vm, port, _, _, protocol), result in zip(SERVICES, results, strict=True):
        row = rows[vm.name]
        assert (row["port"], row["protocol"], row["protocol_share"]) == (port, protocol, 1.0)
        assert 0 < row["requests"] <= result.sent
        assert row["requests_per_s"] == pytest.approx(row["requests"] / shown["duration_s"], rel=EXACT)
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    refused = subprocess.run(
        [sys.executable, "-m", "manager.cli", "services", "nobody"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "no running domain with a network interface: nobody" in refused.stderr


@pytest.mark.parametrize("interval_s", ["0.2", "0.05"])
def test_an_sla_is_watched_without_anything_in_the_guest(
    served: socket.socket, service: Service, interval_s: str
) -> None:
    """A source of type `tap`: as many response times as there were answers, in windows of the application.

    Among them answers that the load generator had not waited for.
    """
    del served
    service.extra = {"EQUIPOISE_INTERVAL_S": interval_s}
    vm, port, options, rate_rps, _ = SERVICES[0]
    service.run()
    client = service.client
    client.request("PUT", f"/hosts/{HOST}", body={"mode": "observe"})
    client.request("PUT", f"/vms/{vm.name}", body={"class": "critical"})
    body = {
        "tiers": [{"name": "cache", "vms": [vm.name]}],
        "sla": {"response_time_ms": 100},
        "sources": [{"name": "wire", "type": "tap", "port": port}],
    }
    client.request("PUT", "/applications/shop", body=body)

    def status() -> dict[str, Any]:
        [source] = client.get("/applications/shop/sources")["items"]
        return source["status"] or {"state": "", "detail": ""}

    def counted() -> int:
        return sum(window["count"] for window in client.items("/applications/shop/windows"))

    until(lambda: status()["detail"] == f"nobody was seen to serve port {port}", "the program to be at the tap")
    result = run(LoadSpec(vm.ip, port, options, (Phase(DURATION_S, rate_rps),), connections=8))
    until(lambda: counted() >= result.answered * (1 - EXACT), "the answers to be counted")
    assert counted() <= KEYS + result.sent - result.errors.get("queue_timeout", 0)  # those were never sent
    until(lambda: status()["state"] == "ok", "the source to be ok")


def test_a_minute_from_a_fresh_host_to_a_watched_sla(served: socket.socket, service: Service) -> None:
    """Nothing is registered and nothing configured, intervals included: only commands that a person types."""
    del served
    vm, port, options, rate_rps, _ = SERVICES[0]
    service.extra = {"EQUIPOISE_INTERVAL_S": "5", "EQUIPOISE_SYNC_S": "5"}
    path = f"/hosts/{HOST}/services"

    def is_seen() -> bool:
        return any(seen["port"] == port and seen["p95_ms"] for seen in service.client.get(path)["items"])

    with under_load(LoadSpec(vm.ip, port, options, (Phase(HOUR_S, rate_rps),), connections=8)):
        began_s = time.monotonic()
        service.run()
        client = service.client
        until(lambda: client.get(f"/hosts/{HOST}"), "the agent to report")
        until(is_seen, "the service to be seen", MINUTE_S)
        seen_s = time.monotonic() - began_s
        print(service.cli("watch", vm.name, "--tap", f"{port}"))
        [application] = client.items("/applications")
        until(lambda: client.get(f"/applications/{application['name']}")["window"], "the SLA to be judged", MINUTE_S)
        print(f"seen after {seen_s:.1f} s, an SLA judged after {time.monotonic() - began_s:.1f} s")
        assert client.get(f"/applications/{application['name']}")["window"]["p95_ms"]
