"""`equipoise services`: what it shows of what the program on taps has seen, which is a fake here."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from click.testing import CliRunner

from manager.cli import services_command
from manager.cli.main import main
from manager.errors import HostError
from manager.model.histogram import Histogram
from manager.model.traffic import ServiceTraffic, TapProtocol, VmInterface

WEB, CACHE = VmInterface("web", "vnet0", 7), VmInterface("cache", "vnet1", 8)
PASSED_THROUGH = VmInterface("web", "hostdev", None, "is a device of the VM's own (SR-IOV)")


@dataclass
class FakeProgram:
    """Has seen this traffic; refuses the interfaces in ``refused`` with these error numbers."""

    seen: list[ServiceTraffic] = field(default_factory=list)
    refused: Mapping[int, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=lambda: {"services": 0, "times": 0})
    attached: set[int] = field(default_factory=set)
    closed: bool = False
    sampled_share: float = 1.0

    def attach(self, interface: int) -> None:
        if interface in self.refused:
            raise HostError(f"attach to interface {interface}: refused", self.refused[interface])
        self.attached.add(interface)

    def traffic(self) -> list[ServiceTraffic]:
        return [traffic for traffic in self.seen if traffic.interface in self.attached]

    def lost(self) -> Mapping[str, int]:
        return self.left_out

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> FakeProgram:
    made = FakeProgram()
    monkeypatch.setattr(services_command, "TapProgram", lambda _paths: made)
    monkeypatch.setattr(services_command, "interfaces", lambda _uri: [WEB, PASSED_THROUGH, CACHE])
    return made


def served(interface: int, port: int, requests: Mapping[TapProtocol, int], *times_us: float) -> ServiceTraffic:
    traffic = ServiceTraffic(interface, port, requests, 1, len(times_us), 2, 3, 4, Histogram.of(times_us))
    return replace(traffic, handshakes=Histogram.of([200, 300]), waiting=Histogram.of([5000, 9000]))


def show(*words: str) -> Any:
    shown = CliRunner().invoke(main, ["services", "--duration", "0.1", *words], env={"COLUMNS": "160"})
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout) if "--json" in words else shown.output


def test_services_by_vm_and_port(program: FakeProgram) -> None:
    program.seen = [
        served(7, 443, {TapProtocol.TLS: 3}, 1000, 1000, 4000),
        served(7, 80, {TapProtocol.HTTP: 3, TapProtocol.OTHER: 1}, 2000),
        served(8, 11211, {TapProtocol.MEMCACHED: 1}),
    ]
    body = show("--json")
    assert [(row["vm"], row["port"], row["protocol"], row["protocol_share"]) for row in body["services"]] == [
        ("cache", 11211, "memcached", 1.0),
        ("web", 80, "http", 0.75),
        ("web", 443, "tls", 1.0),
    ]
    quiet, half, tls = body["services"]
    assert (quiet["p50_ms"], half["p95_ms"]) == (None, pytest.approx(2, rel=0.02))
    assert tls["p99_ms"] == pytest.approx(4, rel=0.02)
    assert (tls["answers"], tls["untimed"], tls["unanswered"], tls["errors"]) == (3, 2, 3, 4)
    assert (tls["waiting"], tls["longest_wait_ms"]) == (2, pytest.approx(9, rel=0.02))
    assert tls["accept_p95_ms"] == pytest.approx(0.3, rel=0.02)
    assert (body["sampled_share"], tls["connections"]) == (1.0, 1)
    assert tls["requests_per_s"] == pytest.approx(3 / body["duration_s"], rel=0.01)
    assert body["not_visible"] == [{"vm": "web", "interface": "hostdev", "why": PASSED_THROUGH.why}]
    assert program.closed


def test_as_a_table_with_what_was_left_out(program: FakeProgram) -> None:
    program.seen = [served(7, 80, {TapProtocol.HTTP: 3, TapProtocol.OTHER: 1}, 2000)]
    program.left_out = {"services": 5, "times": 6}
    program.sampled_share = 0.25
    shown = show()
    assert "one of 4 connections is looked at" in shown
    assert "http (75 %)" in shown
    assert "web: hostdev is a device of the VM's own (SR-IOV)" in shown
    assert "5 packets were of other services" in shown
    assert "6 response times were not counted" in shown
    assert "no service was seen" in show("cache")


@dataclass
class Crowded(FakeProgram):
    """Has more connections than there is room for: each reading halves those that are looked at from then on."""

    readings: int = 0

    def traffic(self) -> list[ServiceTraffic]:
        self.readings += 1
        self.sampled_share /= 2
        return super().traffic()


@pytest.mark.parametrize(("read_s", "least"), [(60.0, 1), (0.0, 2)])
def test_the_share_that_is_shown_is_that_of_what_was_counted(
    monkeypatch: pytest.MonkeyPatch, program: FakeProgram, read_s: float, least: int
) -> None:
    crowded = Crowded()
    monkeypatch.setattr(services_command, "TapProgram", lambda _paths: crowded)
    monkeypatch.setattr(services_command, "_READ_S", read_s)
    assert show("--json")["sampled_share"] == 0.5 ** (crowded.readings - 1)
    assert crowded.readings >= least


def test_an_interface_that_is_gone_is_told_and_others_are_shown(program: FakeProgram) -> None:
    program.refused = {8: errno.ENODEV}
    program.seen = [served(7, 80, {TapProtocol.HTTP: 1}, 2000)]
    body = show("--json")
    assert [row["vm"] for row in body["services"]] == ["web"]
    assert [(each["vm"], each["why"].partition(":")[0]) for each in body["not_visible"]] == [
        ("web", PASSED_THROUGH.why),
        ("cache", "is gone"),
    ]


def test_a_kernel_that_refuses_ends_it(program: FakeProgram) -> None:
    program.refused = {7: errno.EINVAL}
    shown = CliRunner().invoke(main, ["services", "--duration", "0.1"])
    assert (shown.exit_code, program.closed) == (1, True)
    assert "attach to interface 7: refused" in shown.output


def test_the_protocol_is_that_of_most_requests() -> None:
    requests = {TapProtocol.HTTP: 3, TapProtocol.OTHER: 1}
    traffic = ServiceTraffic(1, 80, requests, 1, 4, 0, 0, 0, Histogram())
    assert traffic.protocol == (TapProtocol.HTTP, 0.75)
    assert ServiceTraffic(1, 80, {}, 0, 0, 0, 0, 0, Histogram()).protocol == (TapProtocol.OTHER, 0.0)
