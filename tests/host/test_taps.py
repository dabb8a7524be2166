"""The program on taps, run by this kernel on packets with known answers."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.bpf.buckets import upper_bounds_ns
from manager.bpf import tap
from manager.errors import HostError
from manager.host.taps import TapProgram, halvings_for
from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET, RELATIVE_ERROR, bucket_of
from manager.model.traffic import TapProtocol, TapWay
from tests.host.conftest import REAL, until
from tests.host.packets import ACK, FIN, RST, SYN, Connection, run_on
from tests.host.wire import GET, INTERFACE, NEEDS_BPF, OK, PASSES, PAUSE_S, Wire, time_us, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF


@pytest.mark.parametrize(
    "connection",
    [Connection(), Connection(version=6), Connection(tags=1), Connection(version=6, tags=2), Connection(padding=60)],
    ids=["IPv4", "IPv6", "a VLAN", "two VLANs", "padded"],
)
def test_a_request_and_its_answer(wire: Wire, connection: Connection) -> None:
    wire.accept(connection)
    begun_s = time.monotonic()
    wire.to_guest(connection.to_guest(GET))
    sent_s = time.monotonic()
    time.sleep(PAUSE_S)
    answered_s = time.monotonic()
    wire.from_guest(connection.from_guest(OK))
    done_s = time.monotonic()
    seen = wire.seen
    assert (seen.interface, seen.port, seen.connections) == (INTERFACE, 80, 1)
    assert (seen.requests[TapProtocol.HTTP], seen.answers, seen.errors, seen.untimed, seen.unanswered) == (
        1,
        1,
        0,
        0,
        0,
    )
    assert seen.protocol == (TapProtocol.HTTP, 1.0)
    time_s = (seen.times.percentile_us(50) or 0) / 1e6
    assert (answered_s - sent_s) * (1 - 2 * RELATIVE_ERROR) <= time_s <= (done_s - begun_s) * (1 + 2 * RELATIVE_ERROR)


HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION = 0, 43, 44, 51, 60
OPTIONS = bytes([1, 4]) + bytes(4)
"""Of hop-by-hop and destination: padding. Of routing: type 1, 4 stations left."""
ARRIVED = bytes([4, 0]) + bytes(20)


@pytest.mark.parametrize(
    "extensions",
    [
        ((HOP_BY_HOP, OPTIONS),),
        ((DESTINATION, OPTIONS + bytes(8 * 31)),),
        ((ROUTING, ARRIVED),),
        ((HOP_BY_HOP, OPTIONS), (DESTINATION, OPTIONS), (ROUTING, ARRIVED), (DESTINATION, OPTIONS)),
    ],
    ids=["hop-by-hop", "a long one", "routing", "four"],
)
def test_extension_headers_of_ipv6_are_passed_over(wire: Wire, extensions: tuple[tuple[int, bytes], ...]) -> None:
    """Their bytes are no content, also in acknowledgements."""
    connection = wire.accept(Connection(version=6, tags=1, extensions=extensions))
    wire.turn(connection)
    wire.to_guest(connection.to_guest(flags=ACK))
    wire.turn(connection)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers, wire.seen.connections) == (2, 2, 1)


def test_segments_of_more_than_64_kib(wire: Wire) -> None:
    """BIG TCP of Linux: IPv6 says that its length is 0, and a hop-by-hop header that it is a jumbogram."""
    for port, extensions in ((40_000, ()), (40_001, ((HOP_BY_HOP, b"\xc2\x04" + bytes(4)),))):
        connection = wire.accept(Connection(version=6, client_port=port))
        connection.extensions, connection.length = extensions, 0
        wire.turn(connection)
        wire.turn(connection)
    assert (wire.seen.answers, wire.seen.untimed) == (4, 0)


@pytest.mark.parametrize(
    "extensions",
    [
        ((FRAGMENT, bytes(6)),),
        ((FRAGMENT, b"\x00\x01" + bytes(4)),),
        ((HOP_BY_HOP, OPTIONS), (FRAGMENT, bytes(6))),
        ((AUTHENTICATION, bytes(6)),),
        ((ROUTING, OPTIONS),),
        ((DESTINATION, OPTIONS),) * 5,
    ],
    ids=["whole in one fragment", "fragment", "fragment behind", "authenticated", "not yet there", "five"],
)
def test_packets_of_ipv6_that_pass_unseen(wire: Wire, extensions: tuple[tuple[int, bytes], ...]) -> None:
    connection = wire.accept(Connection(version=6))
    connection.extensions = extensions
    wire.turn(connection)
    assert (sum(wire.seen.requests.values()), wire.seen.answers, wire.seen.waiting.count) == (0, 0, 0)


@pytest.mark.parametrize("claimed", [3, 4, 31, 255])
def test_an_extension_header_that_claims_to_be_longer_than_its_packet(wire: Wire, claimed: int) -> None:
    connection = wire.accept(Connection(version=6, extensions=((DESTINATION, OPTIONS),)))
    packet = bytearray(connection.to_guest(b"GET "))
    packet[14 + 40 + 1] = claimed
    wire.to_guest(bytes(packet))
    assert sum(wire.seen.requests.values()) == 0


def test_a_request_ends_with_its_last_byte(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"))
    time.sleep(PAUSE_S)
    begun_s = time.monotonic()
    wire.turn(connection, b"hello")
    assert time_us(wire) <= (time.monotonic() - begun_s) * 1e6 * (1 + 2 * RELATIVE_ERROR)
    assert wire.seen.requests[TapProtocol.HTTP] == 1


def test_what_is_sent_again_counts_when_it_was_sent_first(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET))
    time.sleep(PAUSE_S)
    wire.to_guest(connection.to_guest(GET, back=len(GET)))
    wire.from_guest(connection.from_guest(OK))
    wire.from_guest(connection.from_guest(OK, back=len(OK)))
    assert time_us(wire) >= PAUSE_S * 1e6 * (1 - 2 * RELATIVE_ERROR)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers) == (1, 1)


def test_a_part_that_is_sent_again_with_the_rest_begins_no_other_request(wire: Wire) -> None:
    """What was lost on its way here and what was not, in one segment."""
    connection = Connection()
    wire.turn(connection)
    wire.turn(connection)
    wire.to_guest(connection.to_guest(GET[:10]))
    time.sleep(PAUSE_S)
    begun_s = time.monotonic()
    wire.to_guest(connection.to_guest(GET, back=10))
    wire.from_guest(connection.from_guest(OK))
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers, wire.seen.untimed) == (2, 2, 0)
    assert (wire.seen.times.percentile_us(100) or 0) <= (time.monotonic() - begun_s) * 1e6 * (1 + 2 * RELATIVE_ERROR)


def test_probes_neither_ask_nor_answer(wire: Wire) -> None:
    """Of a connection that is idle, or whose other side has no room: the last byte once more, or none."""
    connection = wire.accept(Connection())
    wire.turn(connection)
    for probe in (connection.to_guest(b"\0", back=1), connection.to_guest(b"", ACK, back=1)):
        wire.to_guest(probe)
    for probe in (connection.from_guest(b"\0", back=1), connection.from_guest(b"", ACK, back=1)):
        wire.from_guest(probe)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.waiting.count, wire.seen.answers) == (1, 0, 1)
    wire.turn(connection)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.untimed, wire.seen.answers) == (2, 0, 2)


def test_a_request_that_waits_for_room_ends_with_its_last_byte(wire: Wire) -> None:
    """The guest has no room: one byte at a time, sent until it is taken."""
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET[:10]))
    for _ in range(3):
        time.sleep(PAUSE_S)
        wire.to_guest(connection.to_guest(GET[10:11]))
        connection.sent -= 1
    begun_s = time.monotonic()
    wire.turn(connection, GET[10:])
    assert time_us(wire) <= (time.monotonic() - begun_s) * 1e6 * (1 + 2 * RELATIVE_ERROR)
    assert wire.seen.requests[TapProtocol.HTTP] == wire.seen.answers == 1


def test_segments_in_another_order_are_one_request(wire: Wire) -> None:
    connection = wire.accept(Connection())
    first, second = connection.to_guest(GET[:10]), connection.to_guest(GET[10:])
    wire.to_guest(second)
    wire.to_guest(first)
    wire.from_guest(connection.from_guest(OK))
    assert (sum(wire.seen.requests.values()), wire.seen.answers) == (1, 1)


def test_an_answer_in_many_segments_is_one(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET))
    for _ in range(5):
        wire.from_guest(connection.from_guest(b"x" * 1400))
        wire.to_guest(connection.to_guest(flags=ACK))
    assert (sum(wire.seen.requests.values()), wire.seen.answers) == (1, 1)


def test_a_client_that_pipelines_is_counted_and_not_timed_where_its_beginning_was_not_seen(wire: Wire) -> None:
    wire.accept(Connection(client_port=40_001))
    connection = Connection()
    wire.turn(connection)
    wire.to_guest(connection.to_guest(GET))
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(OK))
    wire.from_guest(connection.from_guest(OK))
    wire.turn(connection)
    seen = wire.seen
    assert (seen.requests[TapProtocol.HTTP], seen.answers, seen.untimed) == (4, 1, 3)


def test_a_client_that_pipelined_is_timed_again_once_both_were_silent_for_a_second(wire: Wire) -> None:
    wire.accept(Connection(client_port=40_001))
    connection = Connection()
    for _ in range(2):
        wire.to_guest(connection.to_guest(GET))
    for _ in range(2):
        wire.from_guest(connection.from_guest(OK))
    time.sleep(1.01)
    wire.turn(connection)
    wire.turn(connection)
    assert (wire.seen.requests[TapProtocol.HTTP], wire.seen.answers, wire.seen.untimed) == (4, 2, 2)


@pytest.mark.parametrize("flags", [RST, RST | ACK, FIN | ACK])
def test_a_request_whose_connection_the_guest_ends_is_unanswered(wire: Wire, flags: int) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET))
    wire.from_guest(connection.from_guest(flags=flags))
    assert (wire.seen.answers, wire.seen.unanswered) == (0, 1)


def test_an_answer_that_ends_the_connection_counts(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET, flags=ACK | FIN))
    wire.from_guest(connection.from_guest(OK, flags=ACK | FIN))
    assert (wire.seen.answers, wire.seen.unanswered) == (1, 0)


def test_a_connection_in_place_of_another_begins_anew(wire: Wire) -> None:
    """A client takes the same port again; its numbers begin anywhere."""
    wire.to_guest(wire.accept(Connection()).to_guest(GET))
    wire.turn(wire.accept(Connection(sent=1000, answered=5)))
    assert (wire.seen.connections, wire.seen.answers, wire.seen.unanswered) == (2, 1, 1)


def test_a_connection_that_is_older_than_the_program_is_seen_from_its_next_turn_on(wire: Wire) -> None:
    connection = Connection()
    wire.turn(connection)
    wire.turn(connection)
    assert (wire.seen.connections, wire.seen.answers) == (0, 1)


def test_what_the_guest_asks_of_others_is_no_service(wire: Wire) -> None:
    guests = Connection(port=51_000, client_port=443)  # as seen from the guest, which is the client
    wire.from_guest(guests.from_guest(flags=SYN))
    wire.to_guest(guests.to_guest(flags=SYN | ACK))
    wire.from_guest(guests.from_guest(GET))
    wire.to_guest(guests.to_guest(OK))
    assert wire.all == []


def test_clients_that_knock_at_random_make_no_service(wire: Wire) -> None:
    for port in range(1000, 1200):
        connection = Connection(port=port)
        wire.to_guest(connection.to_guest(flags=SYN))
        wire.to_guest(connection.to_guest(GET))
        wire.from_guest(connection.from_guest(flags=RST | ACK))
    assert wire.all == []


def test_a_guest_that_answers_on_every_port_gets_64_services(wire: Wire) -> None:
    for port in range(1000, 1100):
        wire.accept(Connection(port=port))
    assert len(wire.all) == 64
    assert wire.lost["services"] == 36


def test_a_guest_for_which_there_was_no_room_has_services_once_there_is(wire: Wire) -> None:
    for service in range(1024):
        other = tap.KEY.pack(2 + service // 64, 1000 + service % 64, 0)
        wire.program._services.write(other, bytes(8 * len(tap.COUNTERS)))
    for client_port in range(40_000, 40_100):
        wire.accept(Connection(client_port=client_port))
    assert (len(wire.all), wire.lost["services"]) == (1024, 100)
    wire.program.detach(2)
    wire.accept(Connection())
    assert [service.port for service in wire.all if service.interface == INTERFACE] == [80]


def test_an_interface_that_is_not_admitted_has_no_services() -> None:
    with closing(TapProgram(REAL)) as program:
        assert run_on(program.programs[1], Connection().from_guest(flags=SYN | ACK)) == PASSES
        assert (program.traffic(), program.lost()["services"]) == ([], 1)


@pytest.mark.parametrize("cut", range(1, 48, 3))
def test_packets_that_are_cut_short_pass(wire: Wire, cut: int) -> None:
    """Down to the headers of Ethernet and IP, without which a kernel makes no test run."""
    wire.accept(Connection())
    for packet in (Connection().to_guest(GET), Connection().from_guest(OK)):
        wire.to_guest(packet[:-cut])
        wire.from_guest(packet[:-cut])
    assert (wire.seen.answers, wire.seen.untimed) == (0, 0)


def test_a_request_that_waits_is_shown_with_its_age_until_it_is_answered(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.turn(connection)
    assert wire.seen.waiting.count == 0
    begun_s = time.monotonic()
    wire.to_guest(connection.to_guest(GET))
    time.sleep(PAUSE_S)
    waiting, latest_s = wire.seen.waiting, time.monotonic() - begun_s
    assert waiting.count == wire.seen.waiting.count == 1
    age_s = (waiting.percentile_us(50) or 0) / 1e6
    assert PAUSE_S * (1 - 2 * RELATIVE_ERROR) <= age_s <= latest_s * (1 + 2 * RELATIVE_ERROR)
    wire.from_guest(connection.from_guest(OK))
    assert (wire.seen.waiting.count, wire.seen.answers) == (0, 2)


def test_a_request_that_nobody_answers_is_given_up() -> None:
    with closing(TapProgram(REAL, given_up_s=PAUSE_S)) as program:
        wire = Wire(program)
        connection = wire.accept(Connection())
        wire.to_guest(connection.to_guest(GET))
        time.sleep(PAUSE_S)
        assert (wire.seen.waiting.count, wire.seen.unanswered) == (0, 1)
        wire.from_guest(connection.from_guest(OK))
        wire.turn(connection)
        assert (wire.seen.answers, wire.seen.unanswered) == (1, 1)


def test_a_request_does_not_wait_after_its_interface_was_not_seen_for_a_while(wire: Wire) -> None:
    connection = wire.accept(Connection())
    wire.to_guest(connection.to_guest(GET))
    wire.detach()
    wire.accept(Connection(client_port=40_001))
    assert wire.seen.waiting.count == 0


def test_how_long_the_guests_kernel_takes_to_accept(wire: Wire) -> None:
    """Of a SYN that is sent again, since the first one; of another connection with the same ports, since its own."""
    wire.accept(Connection())
    assert wire.seen.handshakes.count == 0  # that it serves is not known before
    connection = Connection(client_port=40_001)
    wire.to_guest(connection.to_guest(flags=SYN))
    time.sleep(PAUSE_S)
    connection.sent -= 1
    wire.accept(connection)
    assert wire.seen.handshakes.count == 1
    assert (wire.seen.handshakes.percentile_us(50) or 0) >= PAUSE_S * 1e6 * (1 - 2 * RELATIVE_ERROR)
    wire.to_guest(Connection(client_port=40_002).to_guest(flags=SYN))
    time.sleep(PAUSE_S)
    begun_s = time.monotonic()
    wire.accept(Connection(client_port=40_002, sent=77))
    accepted_s = time.monotonic()  # on a busy machine later than a pause
    assert wire.seen.handshakes.count == 2
    assert (wire.seen.handshakes.percentile_us(1) or 0) <= (accepted_s - begun_s) * 1e6 * (1 + 2 * RELATIVE_ERROR)
    assert wire.seen.times.count == 0


def test_syns_of_clients_that_do_not_exist_push_no_connection_out(wire: Wire) -> None:
    connection = wire.accept(Connection(client_port=65_535))
    wire.to_guest(connection.to_guest(GET))
    for number in range(tap.MOST_CONNECTIONS + 10_000):
        wire.to_guest(Connection(client_port=1 + number % 65_000, version=4 + number // 65_000 * 2).to_guest(flags=SYN))
    wire.from_guest(connection.from_guest(OK))
    assert (wire.seen.answers, wire.seen.connections) == (1, 1)


def test_connections_that_are_too_many_are_sampled_and_counted_in_full(wire: Wire) -> None:
    """As many as there is room for by now; then half of them; and all of them, once they are few."""
    connections = [Connection(client_port=port) for port in range(1, 1 + tap.MOST_CONNECTIONS * 7 // 8)]
    for connection in connections:
        wire.from_guest(connection.from_guest(flags=SYN | ACK))
        wire.turn(connection)
    first = wire.seen
    assert first.answers == len(connections)
    assert wire.sampled_share == 0.5
    for connection in connections:
        wire.turn(connection)
    second = wire.seen
    for counted in (second.answers - first.answers, second.times.count - first.times.count):
        assert counted == pytest.approx(len(connections), rel=0.05)
    assert wire.sampled_share == 0.5


@pytest.mark.parametrize(
    ("active", "halved", "then"),
    [
        (0, 0, 0),
        (tap.MOST_CONNECTIONS, 0, 1),
        (tap.MOST_CONNECTIONS // 2, 0, 0),
        (tap.MOST_CONNECTIONS // 2, 3, 3),
        (tap.MOST_CONNECTIONS // 5, 3, 2),
        (tap.MOST_CONNECTIONS, tap.MOST_HALVINGS, tap.MOST_HALVINGS),
    ],
)
def test_connections_are_halved_while_they_are_too_many(active: int, halved: int, then: int) -> None:
    assert halvings_for(active, halved) == then


CHANGES = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=6)
STEP = st.tuples(
    st.booleans(), st.sampled_from([b"", GET, OK, b"get a\r\n", b"\x17\x03\x03", b"x"]), st.integers(0, 255), CHANGES
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    steps=st.lists(STEP, max_size=20),
    version=st.sampled_from([4, 6]),
    extensions=st.lists(st.tuples(st.sampled_from([HOP_BY_HOP, ROUTING, DESTINATION]), st.just(OPTIONS)), max_size=5),
)
def test_whatever_comes_passes_and_is_counted_once(
    wire: Wire,
    steps: list[tuple[bool, bytes, int, list[tuple[int, int]]]],
    version: int,
    extensions: list[tuple[int, bytes]],
) -> None:
    """Packets of any order, flags and changed bytes."""
    connection = Connection(version=version, client_port=random.randrange(32_768, 65_536), extensions=tuple(extensions))
    wire.accept(connection)
    for to_guest, payload, flags, changes in steps:
        packet = bytearray(connection.to_guest(payload, flags) if to_guest else connection.from_guest(payload, flags))
        for at, value in changes:
            packet[12 + at % (len(packet) - 12)] = value
        (wire.to_guest if to_guest else wire.from_guest)(bytes(packet))
    for seen in wire.all:
        requests = sum(seen.requests.values())
        assert seen.answers + seen.untimed + seen.unanswered <= requests
        assert seen.times.count == seen.answers
        assert set(seen.times.buckets) <= set(range(FIRST_BUCKET, LAST_BUCKET + 1))


@given(st.integers(1, 200_000_000_000))
def test_the_buckets_of_the_program_are_those_of_response_times(time_ns: int) -> None:
    """But for times at their very bounds, which are rounded to nanoseconds."""
    bounds = upper_bounds_ns()
    bucket = FIRST_BUCKET + min(bisect_left(bounds, time_ns), len(bounds) - 1)
    assert bucket_of((time_ns - 1) / 1000) <= bucket <= bucket_of((time_ns + 1) / 1000)


def programs_of(pid: int | str) -> set[str]:
    """The ids of the BPF programs that a process holds."""
    programs: set[str] = set()
    for file in list(Path(f"/proc/{pid}/fdinfo").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it was opened to list them
            programs |= {line.split()[1] for line in file.read_text().splitlines() if line.startswith("prog_id:")}
    return programs


def any_left(programs: set[str]) -> bool:
    """Whether the kernel still has one of these."""
    return any(
        subprocess.run(["bpftool", "prog", "show", "id", each], capture_output=True, check=False).returncode == 0
        for each in programs
    )


@pytest.mark.parametrize("way", TapWay)
def test_it_sees_a_real_connection_until_it_is_closed(way: TapWay) -> None:
    """On the loopback, of which both directions are seen."""
    others = programs_of("self")
    with socket.create_server(("127.0.0.1", 0)) as server, closing(TapProgram(REAL, ways=[way])) as program:
        assert program.attach(INTERFACE) is way
        programs = programs_of("self") - others
        assert any_left(programs)
        port = server.getsockname()[1]
        serving = threading.Thread(target=serve_one, args=(server,))
        serving.start()
        with socket.create_connection(("127.0.0.1", port)) as client:
            for _ in range(20):
                client.sendall(GET)
                client.recv(1000)
        serving.join()
        [seen] = [seen for seen in program.traffic() if seen.port == port]
        assert (seen.requests[TapProtocol.HTTP], seen.answers, seen.connections) == (20, 20, 1)
        program.close()
        program.close()
        until(lambda: not any_left(programs), "the kernel to let go of it")


def test_nothing_is_left_of_it_when_its_process_is_killed() -> None:
    script = (
        "import time\nfrom pathlib import Path\nfrom manager.host.registry import HostPaths\n"
        "from manager.host.taps import TapProgram\nprogram = TapProgram(HostPaths(Path('/')))\n"
        f"program.attach({INTERFACE})\nprint('attached', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        programs = programs_of(process.pid)
        assert any_left(programs)
        process.kill()
        pins = f"equipoise_tap_{process.pid}"
    until(lambda: not any_left(programs), "the kernel to let go of it")
    assert not (Path("/sys/fs/bpf") / pins).exists()


def test_pins_of_a_process_that_was_killed_while_it_loaded_are_removed_by_the_next_one() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = Path(f"/sys/fs/bpf/equipoise_tap_{gone.pid}")
    (left / "maps").mkdir(parents=True)
    with closing(TapProgram(REAL)):
        assert not left.exists()


def serve_one(server: socket.socket) -> None:
    accepted, _ = server.accept()
    with accepted:
        while accepted.recv(1000):
            accepted.sendall(OK)


def test_an_interface_that_is_detached_is_forgotten_and_another_is_not(wire: Wire) -> None:
    wire.turn(wire.accept(Connection()))
    program = wire.program
    program.detach(INTERFACE + 1)
    assert wire.seen.answers == 1
    program.detach(INTERFACE)
    assert (wire.all, program.attached) == ([], frozenset())
    program.attach(INTERFACE)  # the loopback, on which tests beside this one may talk
    assert not [service for service in wire.all if service.port == Connection.port]
    assert program.attached == {INTERFACE}


@pytest.mark.parametrize(
    ("bpftool", "says"),
    [
        ("/nonexistent/bpftool", "/nonexistent/bpftool: "),
        ("/bin/false", "the kernel did not take the program equipoise_tap"),
    ],
)
def test_a_program_that_cannot_be_loaded_is_an_error(bpftool: str, says: str) -> None:
    with pytest.raises(HostError, match=says):
        TapProgram(REAL, bpftool)


def test_a_program_that_the_kernel_refuses_is_an_error_in_the_verifiers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is shipped, but at its end it reads what may be anywhere: r0 = *r0 in place of w0 = -1."""
    ends, reads = bytes.fromhex("b4000000ffffffff95"), bytes.fromhex("790000000000000095")
    refused = tmp_path / tap.OBJECT.name
    refused.write_bytes(tap.OBJECT.read_bytes().replace(ends, reads))
    monkeypatch.setattr(tap, "OBJECT", refused)
    with pytest.raises(HostError, match=r"prog 'to_guest': .* load failed: .*: R0 (invalid mem access|!read_ok)"):
        TapProgram(REAL)
    assert not list(Path("/sys/fs/bpf").glob(f"equipoise_tap_{os.getpid()}"))


@pytest.mark.parametrize("ways", [tuple(TapWay), (TapWay.PACKET_SOCKET,)])
def test_an_interface_that_is_gone_is_an_error(ways: tuple[TapWay, ...]) -> None:
    with closing(TapProgram(REAL, ways=ways)) as program, pytest.raises(HostError, match="interface 99999999") as gone:
        program.attach(99_999_999)
    assert gone.value.errno == errno.ENODEV
    assert program.attached == frozenset()


def test_a_kernel_that_knows_no_way_is_told() -> None:
    with closing(TapProgram(REAL, ways=())) as program, pytest.raises(HostError, match="no way is left"):
        program.attach(INTERFACE)
