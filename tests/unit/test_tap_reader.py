"""Reading the program on taps for sources; the program is a fake, and interface 1 stands for the tap of a VM."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from manager.errors import HostError
from manager.model.histogram import Histogram
from manager.model.registration import Mode, Sla, Tier
from manager.model.source import SourceState, Tap
from manager.model.traffic import AnswerCount, Answered, HostServices, JudgedService, ServiceTraffic, TapProtocol
from manager.telemetry.source_thread import Sources
from manager.telemetry.tap_reader import FIND_S, TapReader, TapRoute
from tests.telemetry.conftest import free_port, shop, until

VM, TAP = "shop-web", 1
UUID, OTHER = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))


@dataclass
class FakeProgram:
    """Answers like the program: ``seen`` is what it has counted of an interface and port so far."""

    seen: dict[tuple[int, int], ServiceTraffic] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    attached: frozenset[int] = frozenset()
    closed: bool = False
    bounds_us: dict[tuple[int, int], float | None] = field(default_factory=dict)
    late: Counter[tuple[int, int]] = field(default_factory=Counter)

    def judge(self, interface: int, port: int, late_us: float | None) -> bool:
        self.bounds_us[interface, port] = late_us
        return (interface, port) in self.seen

    def answers(self, places: Sequence[tuple[int, int]]) -> FakeCounts:
        return FakeCounts(self, tuple(places))

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
        bound_us = self.bounds_us.get((interface, port))
        self.late[interface, port] += sum(bound_us is not None and ms * 1000 > bound_us for ms in times_ms)
        changed = {name: getattr(before, name) + count for name, count in more.items()}
        self.seen[interface, port] = replace(before, requests={TapProtocol.HTTP: requests}, times=times, **changed)

    def wait(self, interface: int, port: int, *ages_ms: float) -> None:
        """These requests wait, and no others."""
        waiting = Histogram.of(age_ms * 1000 for age_ms in ages_ms)
        self.seen[interface, port] = replace(self.seen[interface, port], waiting=waiting)


@dataclass(frozen=True)
class FakeCounts:
    """What it has counted of some services, read while it goes on."""

    program: FakeProgram
    places: tuple[tuple[int, int], ...]

    def read(self) -> list[AnswerCount]:
        return [self._count(place) for place in self.places]

    def _count(self, place: tuple[int, int]) -> AnswerCount:
        seen = self.program.seen[place]
        answers = seen.times.count
        return AnswerCount(sum(seen.requests.values()), answers, answers, self.program.late[place])


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
    assert "75 % of the requests cannot be timed" in status.detail
    assert requested(sources) == 4


def test_requests_that_wait_longer_than_the_sla_allows_count_in_each_window(
    sources: Sources, program: FakeProgram
) -> None:
    late = replace(shop(Tap("wire", 80), vm=VM), sla=Sla(response_time_ms=100.0))
    sources.configure([late], 1.0, {}, {VM: frozenset({TAP})})
    program.count(TAP, 80, 10)
    until(lambda: counted(sources) == 1, "an answer")
    program.wait(TAP, 80, 40, 5000, 5000)
    until(lambda: "2 requests wait" in sources.statuses()[0].detail, "requests that wait")
    seen = counted(sources)
    until(lambda: counted(sources) == seen + 2, "the next window")
    newest = [window for windows in sources.slots().values() for window in windows][-1]
    assert newest.histogram.percentile_us(95) == pytest.approx(5_000_000, rel=0.02)
    assert requested(sources) == 1
    program.wait(TAP, 80)
    until(lambda: not sources.statuses()[0].detail, "nothing to wait")


@pytest.mark.parametrize(
    ("slot_s", "every_s", "end_s", "ends"),
    [
        (5, 1, 1000.0, True),
        (5, 1, 1003.0, False),
        (5, 1, 1004.9, True),
        (0.5, 0.5, 1000.5, True),
        (5, 1, 1000.1, False),
    ],
)
def test_a_window_ends_with_its_last_reading(slot_s: float, every_s: float, end_s: float, ends: bool) -> None:
    route = TapRoute(Tap("wire", 80), None, frozenset(), None, slot_s)  # type: ignore[arg-type]
    assert route.ends_slot(end_s, every_s) is ends


def test_without_a_port_it_is_that_with_the_most_requests_of_the_first_tier(
    sources: Sources, program: FakeProgram
) -> None:
    application = replace(shop(Tap("wire"), vm=VM), tiers=(Tier("front", (VM,)), Tier("back", ("db",))))
    sources.configure([application], 1.0, {}, {VM: frozenset({TAP}), "db": frozenset({TAP + 1})})
    until(lambda: "no service was seen yet" in sources.statuses()[0].detail, "the source to look")
    program.count(TAP, 22, 5)
    program.count(TAP, 80, *[10] * 9)
    program.count(TAP + 1, 5432, *[1] * 50)
    until(lambda: counted(sources) == 9, "the answers")
    assert sources.statuses()[0].detail == "the port with the most requests is 80"


def test_what_is_answered_late_can_be_asked_for_at_any_time(sources: Sources, program: FakeProgram) -> None:
    promised = replace(shop(Tap("wire", 80), vm=VM), sla=Sla(response_time_ms=100.0, percentile=90.0))
    sources.configure([promised], 1.0, {}, {VM: frozenset({TAP})})
    assert sources.answered() == Answered()
    program.count(TAP, 80, 10)
    program.count(TAP, 443, 10)
    until(lambda: sources.answered() != Answered(), "the service to be judged")
    program.count(TAP, 80, 50, 150, 200)
    answered = sources.answered()
    assert answered == Answered((JudgedService("shop", (TAP, 80), pytest.approx(0.1), 0.1),), [AnswerCount(4, 4, 4, 2)])
    configure(sources, Tap("wire", 80))
    until(lambda: sources.answered() == Answered(), "the SLA to be gone")
    assert program.bounds_us == {(TAP, 80): None}


def test_nobody_is_told_of_late_answers_of_a_released_application(sources: Sources, program: FakeProgram) -> None:
    """Else the guard would hold batch VMs for it."""
    late = replace(shop(Tap("wire", 80), vm=VM), sla=Sla(response_time_ms=100.0))
    sources.configure([late], 1.0, {}, {VM: frozenset({TAP})})
    program.count(TAP, 80, 10)
    until(lambda: sources.answered() != Answered(), "the service to be judged")
    sources.configure([replace(late, mode=Mode.RELEASED)], 1.0, {}, {VM: frozenset({TAP})})
    until(lambda: sources.answered() == Answered(), "its release")
    program.count(TAP, 80, 200)
    program.wait(TAP, 80, 5000)
    until(lambda: counted(sources) >= 3, "its answers, and what waits, to count as before")


def test_a_port_that_nobody_serves_is_told(sources: Sources, program: FakeProgram) -> None:
    configure(sources, Tap("wire", 81))
    program.count(TAP, 80, 10)
    until(lambda: "nobody was seen to serve port 81" in sources.statuses()[0].detail, "the note")
    program.count(TAP, 81, 10)
    until(lambda: not sources.statuses()[0].detail, "no note")


def test_what_waits_at_a_tap_is_not_of_the_next_application_there(sources: Sources, program: FakeProgram) -> None:
    late = replace(shop(Tap("wire", 80), vm=VM), sla=Sla(response_time_ms=100.0))
    taps = {VM: frozenset({TAP})}
    sources.configure([late], 1.0, {}, taps)
    program.count(TAP, 80, 10, 10)
    until(lambda: counted(sources) == 2, "the answers")
    program.wait(TAP, 80, 5000)
    sources.configure([replace(late, name="blog")], 1.0, {}, taps)
    until(lambda: "nobody was seen" in sources.statuses()[0].detail, "nothing of the one before")
    program.count(TAP, 80, 10)
    until(lambda: sources.statuses()[0].accepted == 1, "an answer of the next one")


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
        raise HostError("the kernel did not take the program equipoise_tap: as it says")

    with closing(Sources("127.0.0.1", 0)) as sources:
        sources._taps = TapReader(load, time.time)  # type: ignore[arg-type]
        sources.start()
        configure(sources, Tap("wire", 80), Tap("tls", 443))
        until(lambda: all("as it says" in status.detail for status in sources.statuses()), "both to fail")


@dataclass
class Steps:
    """Seconds that pass whenever somebody looks: enough for a reading of services each time."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += FIND_S
        return self.now_s


@pytest.fixture
def finder(program: FakeProgram, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """Reads as often as it can, and each time is one for services, too."""
    monkeypatch.setattr("manager.telemetry.source_thread.FIND_S", 0.01)
    made = Sources("127.0.0.1", free_port(socket.SOCK_DGRAM))
    made._taps = TapReader(lambda: program, time.time, Steps())  # type: ignore[arg-type,return-value]
    made.start()
    made.configure([], 1.0, {})
    yield made
    made.close()


def test_a_program_is_loaded_once_where_it_is_wanted_no_more_and_again_meanwhile(
    program: FakeProgram, caplog: pytest.LogCaptureFixture
) -> None:
    """Two at a time would be pinned in the same folder, which the kernel refuses."""
    loading, goes_on = threading.Lock(), threading.Event()
    begun = threading.Semaphore(0)

    def load() -> FakeProgram:
        if not loading.acquire(blocking=False):
            raise HostError("the kernel did not take the program: File exists")
        begun.release()
        assert goes_on.wait(60)
        loading.release()
        return program

    with closing(Sources("127.0.0.1", 0)) as sources:
        sources._taps = TapReader(load, time.time)  # type: ignore[arg-type]
        sources.start()
        sources.find_services({UUID: frozenset({TAP})})
        assert begun.acquire(timeout=60)
        sources.find_services({})
        sources.find_services({UUID: frozenset({TAP})})
        settled = threading.Event()
        sources._loop.call_soon_threadsafe(lambda: sources._loop.call_later(0.1, settled.set))
        assert settled.wait(60)
        goes_on.set()
        until(lambda: program.attached == {TAP}, "the interface")
        assert (sources.services().problem, program.closed) == ("", False)
    assert not [record for record in caplog.records if "File exists" in record.getMessage()]


def test_a_program_that_is_wanted_no_more_once_it_is_loaded_is_closed(program: FakeProgram) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def load() -> FakeProgram:
        begun.set()
        assert goes_on.wait(60)
        return program

    with closing(Sources("127.0.0.1", 0)) as sources:
        sources._taps = TapReader(load, time.time)  # type: ignore[arg-type]
        sources.start()
        for _ in range(2):
            begun.clear()
            goes_on.clear()
            program.closed = False
            sources.find_services({UUID: frozenset({TAP})})
            assert begun.wait(60)
            sources.find_services({})
            goes_on.set()
            until(lambda: program.closed, "the program to be closed")


def test_services_are_found_without_a_source(finder: Sources, program: FakeProgram) -> None:
    assert finder.services() == HostServices()
    finder.find_services({UUID: frozenset({TAP})})
    until(lambda: program.attached == {TAP}, "the interface")
    program.count(TAP, 80, 10, 20, 30, errors=1)
    until(lambda: finder.services().services, "a service")
    [service] = finder.services().services
    assert (service.libvirt_uuid, service.port, service.protocol) == (UUID, 80, "http")
    assert service.p50_ms == pytest.approx(20, rel=0.01)
    assert service.since_s == pytest.approx(time.time(), abs=60)
    finder.find_services({})
    until(lambda: program.closed, "the program to be closed")
    assert finder.services() == HostServices()


def test_what_was_counted_of_one_vm_is_not_of_the_next_one_at_its_tap(finder: Sources, program: FakeProgram) -> None:
    """A tap that libvirt has not made itself outlasts the VM, and has the same index for the next one."""
    finder.find_services({UUID: frozenset({TAP, 2})})
    until(lambda: program.attached == {TAP, 2}, "the interfaces")
    program.count(TAP, 80, *[10] * 200)
    program.count(2, 443, 10)
    until(lambda: len(finder.services().services) == 2, "the services")
    finder.find_services({OTHER: frozenset({TAP}), UUID: frozenset({2})})
    until(lambda: [one.port for one in finder.services().services] == [443], "the next VM, which has answered nothing")
    assert program.attached == {TAP, 2}
    program.count(TAP, 80, 5)
    until(lambda: len(finder.services().services) == 2, "its service")
    [service] = [one for one in finder.services().services if one.libvirt_uuid == OTHER]
    assert (service.port, service.quiet_p95_ms) == (80, None)
    assert service.p95_ms == pytest.approx(5, rel=0.02)


def test_sources_go_on_beside_services(finder: Sources, program: FakeProgram) -> None:
    """Interfaces are those of both, each once."""
    configure(finder, Tap("wire", 80), interfaces=frozenset({TAP}))
    finder.find_services({UUID: frozenset({TAP, 2})})
    until(lambda: program.attached == {TAP, 2}, "both interfaces")
    program.count(TAP, 80, 10)
    program.count(2, 11211, 1)
    until(lambda: counted(finder) == 1, "the source's answer")
    until(lambda: len(finder.services().services) == 2, "both services")
    finder.find_services({})
    until(lambda: program.attached == {TAP}, "the source's interface alone")
    assert finder.statuses()[0].state is SourceState.OK


def test_why_services_cannot_be_seen(finder: Sources, program: FakeProgram, caplog: pytest.LogCaptureFixture) -> None:
    """In one line of the log, however often it is tried again."""
    program.refused = {TAP: "attach to interface 1: Invalid argument: Linux 6.6 or newer is needed"}
    finder.find_services({UUID: frozenset({TAP, 2})})
    until(lambda: "Linux 6.6" in finder.services().problem, "the kernel's refusal")
    program.count(2, 80, 10)
    until(lambda: finder.services().services, "the other interface's service")
    readings = len(caplog.records)
    assert [record for record in caplog.records if "Linux 6.6" in record.getMessage()] == caplog.records[:readings]
    assert readings == 1
    program.refused = {}
    until(lambda: not finder.services().problem, "both interfaces")


def test_vms_without_a_tap_and_an_agent_that_may_not_look(finder: Sources) -> None:
    finder.find_services({UUID: frozenset()})
    assert "has a tap" in finder.services().problem
    finder.finds_services = False
    finder.find_services({UUID: frozenset({TAP})})
    assert "find_services is off" in finder.services().problem
    assert finder._tapping is None


def test_a_program_that_cannot_be_loaded_is_why_no_service_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0

    def load() -> FakeProgram:
        nonlocal tries
        tries += 1
        raise HostError("bpftool: [Errno 2] No such file or directory")

    with closing(Sources("127.0.0.1", 0)) as sources:
        sources._taps = TapReader(load, time.time)  # type: ignore[arg-type]
        sources.start()
        sources.find_services({UUID: frozenset({TAP})})
        until(lambda: tries > 1, "another try")
        assert sources.services() == HostServices(problem="bpftool: [Errno 2] No such file or directory")
    assert len([record for record in caplog.records if "bpftool" in record.getMessage()]) == 1
