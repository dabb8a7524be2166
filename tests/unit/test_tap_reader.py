"""Reading the program on taps for sources; the program is a fake, and interface 1 stands for the tap of a VM."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from manager.errors import HostError
from manager.model.histogram import Histogram
from manager.model.source import SourceState, Tap
from manager.model.traffic import ServiceTraffic, TapProtocol
from manager.telemetry.source_thread import Sources
from manager.telemetry.tap_reader import TapReader
from tests.telemetry.conftest import free_port, shop, until

VM, TAP = "shop-web", 1


@dataclass
class FakeProgram:
    """Answers like the program: ``seen`` is what it has counted of an interface and port so far."""

    seen: dict[tuple[int, int], ServiceTraffic] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    attached: frozenset[int] = frozenset()
    closed: bool = False

    def attach(self, interface: int) -> None:
        if interface in self.refused:
            raise HostError(self.refused[interface])
        self.attached |= {interface}

    def detach(self, interface: int) -> None:
        self.attached -= {interface}
        self.seen = {place: traffic for place, traffic in self.seen.items() if place[0] != interface}

    def traffic(self) -> list[ServiceTraffic]:
        return [traffic for (interface, _), traffic in self.seen.items() if interface in self.attached]

    def close(self) -> None:
        self.closed = True

    def count(self, interface: int, port: int, *times_ms: float, **more: int) -> None:
        """So many more answers, and what else there is more of."""
        nothing = ServiceTraffic(interface, port, {}, 0, 0, 0, 0, 0, Histogram())
        before = self.seen.get((interface, port), nothing)
        requests = sum(before.requests.values()) + len(times_ms) + more.pop("requests", 0)
        times = before.times.merge(Histogram.of(time_ms * 1000 for time_ms in times_ms))
        changed = {name: getattr(before, name) + count for name, count in more.items()}
        self.seen[interface, port] = replace(before, requests={TapProtocol.HTTP: requests}, times=times, **changed)


@pytest.fixture
def program() -> FakeProgram:
    return FakeProgram()


@pytest.fixture
def sources(program: FakeProgram) -> Iterator[Sources]:
    made = Sources("127.0.0.1", free_port(socket.SOCK_DGRAM))
    made._taps = TapReader(lambda: program, time.time)  # type: ignore[arg-type,return-value]
    made.start()
    yield made
    made.close()


def configure(sources: Sources, *taps: Tap, interfaces: frozenset[int] = frozenset({TAP})) -> None:
    sources.configure([shop(*taps, vm=VM)], 1.0, {}, {VM: interfaces})


def counted(sources: Sources) -> int:
    return sum(window.histogram.count for windows in sources.slots().values() for window in windows)


def requested(sources: Sources) -> float:
    return sum(window.requests or 0 for windows in sources.slots().values() for window in windows)


def test_what_is_answered_is_counted_once(sources: Sources, program: FakeProgram) -> None:
    configure(sources, Tap("wire", 80))
    program.count(TAP, 80, 10, 20, 30)
    until(lambda: counted(sources) == 3, "three answers")
    program.count(TAP, 80, 10)
    program.count(TAP, 443, 5)
    until(lambda: counted(sources) == 4, "a fourth one")
    [status] = sources.statuses()
    assert (status.state, status.accepted, status.errors, status.detail) == (SourceState.OK, 4, 0, "")
    assert requested(sources) == 4


def test_errors_and_what_cannot_be_timed_are_told(sources: Sources, program: FakeProgram) -> None:
    configure(sources, Tap("wire", 80))
    program.count(TAP, 80, 10, requests=3, untimed=3, errors=2, unanswered=1)
    until(lambda: counted(sources) == 1, "an answer")
    [status] = sources.statuses()
    assert status.errors == 3
    assert "75% of the requests cannot be timed" in status.detail
    assert requested(sources) == 4


def test_interfaces_come_and_go(sources: Sources, program: FakeProgram) -> None:
    wire = Tap("wire", 80)
    configure(sources, wire, interfaces=frozenset())
    until(lambda: sources.statuses()[0].state is SourceState.FAILING, "the source to fail")
    assert "has a tap" in sources.statuses()[0].detail
    configure(sources, wire, interfaces=frozenset({7}))
    until(lambda: program.attached == {7}, "interface 7")
    program.count(7, 80, 10)
    until(lambda: counted(sources) == 1, "an answer of interface 7")
    configure(sources, wire, interfaces=frozenset({8}))
    until(lambda: program.attached == {8}, "interface 8")
    program.count(8, 80, 10)
    until(lambda: counted(sources) == 2, "an answer of interface 8")
    assert sources.statuses()[0].state is SourceState.OK
    sources.configure([shop(vm=VM)], 1.0, {}, {})
    until(lambda: program.closed, "the program to be closed")


def test_an_interface_that_the_kernel_refuses_is_told_and_others_go_on(sources: Sources, program: FakeProgram) -> None:
    program.refused = {7: "attach to interface 7: Invalid argument: Linux 6.6 or newer is needed"}
    configure(sources, Tap("wire", 80), interfaces=frozenset({7}))
    until(lambda: "Linux 6.6" in sources.statuses()[0].detail, "the kernel's refusal")
    assert sources.statuses()[0].state is SourceState.FAILING
    program.refused = {}
    until(lambda: program.attached == {7}, "interface 7 after all")


def test_a_program_that_cannot_be_loaded_fails_all_taps_alone() -> None:
    def load() -> FakeProgram:
        raise HostError("the kernel did not take the program for taps: as it says")

    with closing(Sources("127.0.0.1", 0)) as sources:
        sources._taps = TapReader(load, time.time)  # type: ignore[arg-type]
        sources.start()
        configure(sources, Tap("wire", 80), Tap("tls", 443))
        until(lambda: all("as it says" in status.detail for status in sources.statuses()), "both to fail")
