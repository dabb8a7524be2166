"""NGINX by syslog: who is believed, which source a line belongs to, and the real NGINX."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from manager.errors import SettingsError
from manager.model.source import NginxFile, NginxSyslog, SourceState
from manager.telemetry import syslog
from manager.telemetry.source_thread import Sources
from manager.telemetry.syslog import Routes, SyslogReceiver, SyslogRoute, dropped, open_socket
from manager.telemetry.trust import plain_address, plain_addresses
from tests.telemetry.conftest import Fed, Nginx, Running, shop, until

WEB, CACHE, STRANGER = "192.168.122.10", "192.168.122.11", "192.168.122.99"


def line(time_s: str = "0.010", tag: str = "nginx", more: str = "") -> bytes:
    return f"<190>Nov 21 04:08:00 web {tag}: {more}request_time={time_s} status=200".encode()


class Receiver:
    """A receiver with its routes."""

    def __init__(self, fed: Fed, *sources: tuple[NginxSyslog, set[str]]) -> None:
        self.asked = 0
        self.receiver = SyslogReceiver(self._ask)
        self.feeds = [fed.another(spec.name) for spec, _ in sources]
        self.receiver.routes = Routes.of(
            [SyslogRoute(spec, feed, frozenset(ips)) for (spec, ips), feed in zip(sources, self.feeds, strict=True)]
        )

    def _ask(self, _address: str) -> None:
        self.asked += 1

    def counts(self) -> list[tuple[int, int, int]]:
        return [(one.accepted, one.malformed, one.refused) for one in (feed.status() for feed in self.feeds)]


def test_only_the_applications_vms_are_believed(fed: Fed) -> None:
    made = Receiver(fed, (NginxSyslog("web"), {WEB}), (NginxSyslog("cache"), {CACHE}))
    made.receiver.packet(line(), WEB)
    made.receiver.packet(line(), CACHE)
    made.receiver.packet(line(), f"::ffff:{WEB}")
    assert made.counts() == [(2, 0, 0), (1, 0, 0)]
    assert made.asked == 0
    made.receiver.packet(line(), STRANGER)
    assert made.counts() == [(2, 0, 1), (1, 0, 1)]
    assert made.asked == 1
    assert STRANGER in made.feeds[0].status().detail
    assert fed.count == fed.requests == 3


def test_tags_tell_sources_apart(fed: Fed) -> None:
    made = Receiver(fed, (NginxSyslog("a", "one"), {WEB}), (NginxSyslog("b", "two"), {WEB}))
    for tag in ("one", "two", "two", "three"):
        made.receiver.packet(line(tag=tag), WEB)
    assert made.counts() == [(1, 1, 0), (2, 1, 0)]
    made.receiver.packet(line(tag="one"), STRANGER)
    assert made.counts() == [(1, 1, 1), (2, 1, 0)], "it was meant for one of them"


@pytest.mark.parametrize("data", [b"", b"nonsense", b"<190>Nov 21 04:08:00 web nginx: nonsense", b"\xff" * 2000])
def test_malformed_packets_are_counted(fed: Fed, data: bytes) -> None:
    made = Receiver(fed, (NginxSyslog("web"), {WEB}))
    made.receiver.packet(data, WEB)
    assert made.counts() == [(0, 1, 0)]
    made.receiver.packet(data, STRANGER)
    assert made.counts() == [(0, 1, 1)]
    assert fed.count == 0


def test_the_end_that_a_line_tells_decides_about_its_slot(fed: Fed) -> None:
    made = Receiver(fed, (NginxSyslog("web"), {WEB}))
    for offset_s in (0.0, -7.0, -60.0, +30.0):
        made.receiver.packet(line(more=f"msec={fed.clock() + offset_s:.3f} "), WEB)
    status = made.feeds[0].status()
    assert (status.accepted, status.late, status.malformed) == (2, 1, 1)
    assert [fed.clock() - slot.start_s for slot in fed.store.recent()] == [10, 5]


@pytest.mark.parametrize(
    ("text", "plain"),
    [("192.168.1.2", "192.168.1.2"), ("::ffff:192.168.1.2", "192.168.1.2"), ("FE80::1%virbr0", "fe80::1"),
     ("fd00:0::1", "fd00::1")],
)  # fmt: skip
def test_addresses_have_one_spelling(text: str, plain: str) -> None:
    assert plain_address(text) == plain
    assert plain_addresses([text, "no address"]) == {plain}


def test_lines_arrive_over_a_real_socket(running: Running) -> None:
    running.configure(shop(NginxSyslog("log")), shop_web="127.0.0.1")
    assert running.status("log").state is SourceState.STARTING
    until(lambda: (running.send(line("0.030")), running.status("log").accepted)[1], "lines arrive")
    sent = 2000
    before = running.status("log").accepted
    running.send(*[line("0.030")] * sent)
    until(lambda: running.status("log").accepted >= before + sent, "all lines arrive: the buffer holds them")
    assert running.status("log").state is SourceState.OK
    assert running.count() == running.status("log").accepted
    assert running.asked == []


def test_an_unknown_sender_has_its_address_looked_up_and_is_believed_from_then_on(running: Running) -> None:
    running.configure(shop(NginxSyslog("log")))
    until(lambda: (running.send(line()), running.status("log").refused)[1], "it is refused")
    running.send(*[line()] * 10)
    until(lambda: running.status("log").refused > 10, "and again")
    assert len(running.asked) == 1, "asking is bounded"
    running.configure(shop(NginxSyslog("log")), shop_web="127.0.0.1")
    running.send(line())
    until(lambda: running.status("log").accepted, "now it is believed")
    assert running.status("log").refused > 10, "the source went on undisturbed"


def test_a_port_that_is_taken_fails_and_is_tried_again(running: Running) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", running.port))
        running.configure(shop(NginxSyslog("log")), shop_web="127.0.0.1")
        until(lambda: running.status("log").state is SourceState.FAILING, "the taken port is told")
        assert running.status("log").detail == (
            f"no syslog is received at 127.0.0.1 port {running.port}: Address already in use"
        )
    until(lambda: (running.send(line()), running.status("log").accepted)[1], "it listens once the port is free")
    assert running.status("log").state is SourceState.OK


def test_the_port_is_given_up_with_the_last_source(running: Running) -> None:
    running.configure(shop(NginxSyslog("log")), shop_web="127.0.0.1")
    until(lambda: (running.send(line()), running.status("log").accepted)[1], "it listens")
    running.configure(shop())

    def free() -> bool:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.bind(("127.0.0.1", running.port))
        except OSError:
            return False
        return True

    until(free, "the port is free")
    assert running.sources.statuses() == ()


def test_a_bad_address_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(SettingsError, match="syslog_listen_host = 'localhost' is refused: use an IP address"):
        open_socket("localhost", 0)


def test_drops_of_the_kernel_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog, "RECEIVE_BUFFER", 4096)
    with open_socket("::", 0) as opened, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        assert dropped(opened) == 0
        for _ in range(1000):
            sender.sendto(b"x" * 500, ("127.0.0.1", opened.getsockname()[1]))
        received = 0
        while True:
            try:
                opened.recv(1000)
            except BlockingIOError:
                break
            received += 1
        assert 0 < received < 1000
        assert dropped(opened) == 1000 - received


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: the full receive buffer needs root")
def test_the_receive_buffer_is_large() -> None:
    with open_socket("127.0.0.1", 0) as opened:
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * syslog.RECEIVE_BUFFER


def test_a_real_nginx_by_syslog_and_by_file_through_a_rotation(running: Running, nginx: Callable[..., Nginx]) -> None:
    server = nginx(running.port)
    server.get()  # before there is any source
    running.configure(
        shop(NginxSyslog("syslog", tag="nginx"), NginxFile("file", str(server.log))),
        shop_web="127.0.0.1",
    )
    unseen = 1

    def both_count() -> bool:
        nonlocal unseen
        server.get()
        unseen += 1
        return all(running.status(name).accepted for name in ("syslog", "file"))

    until(both_count, "both count")
    by_syslog, by_file = running.status("syslog").accepted, running.status("file").accepted
    server.get(30)
    server.log.rename(server.log.with_suffix(".1"))
    server.get(30)
    server.reopen()
    server.get(30)
    until(lambda: running.status("file").accepted >= by_file + 90, "every line of both files is counted")
    until(lambda: running.status("syslog").accepted >= by_syslog + 90, "every packet is counted")
    until(server.log.exists, "the server opened its new log")
    lines = len(server.log.read_text().splitlines()) + len(server.log.with_suffix(".1").read_text().splitlines())
    # The first packet may have waited until there was a source; the file is read from where it ended then.
    for status, most in ((running.status("syslog"), lines), (running.status("file"), lines - 1)):
        assert (status.state, status.malformed, status.refused, status.late) == (SourceState.OK, 0, 0, 0)
        assert lines - unseen <= status.accepted <= most
    slots = running.sources.slots()["shop"]
    assert sum(slot.histogram.count for slot in slots) == sum(slot.requests for slot in slots)
    assert slots[-1].percentile_ms(50) == pytest.approx(0.5, rel=0.02), "an answer at once takes less than 1 ms"


def test_without_a_port_sources_say_which_setting() -> None:
    sources = Sources("127.0.0.1", 0)
    sources.start()
    try:
        sources.configure([shop(NginxSyslog("log"))], 5.0, {})
        until(lambda: sources.statuses()[0].state is SourceState.FAILING, "it is failing")
        assert "setting syslog_listen_port is 0" in sources.statuses()[0].detail
    finally:
        sources.close()
