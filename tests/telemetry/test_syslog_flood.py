"""A flood of packets: other work of the loop goes on, and strangers have VMs looked for once."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from manager.model.source import NginxSyslog
from manager.telemetry import source_thread
from tests.security.floods import MIB, resident
from tests.telemetry.conftest import Running, shop, until

LINE = b"<190>Mar  1 12:00:00 web nginx: request_time=0.005"


def test_a_flood_of_strangers_costs_a_bounded_share_of_a_core_and_no_memory(running: Running) -> None:
    running.configure(shop(NginxSyslog("log")))
    until(lambda: (running.send(LINE), running.status("log").refused)[1], "packets arrive")
    [thread] = [one for one in threading.enumerate() if one.name == "telemetry"]
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    before, used_s, begun_s = resident(None), time.clock_gettime(clock), time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while time.monotonic() < begun_s + 1.5:
            for _ in range(100):
                sender.sendto(LINE, ("127.0.0.1", running.port))
    share = (time.clock_gettime(clock) - used_s) / (time.monotonic() - begun_s)
    assert share < 0.5
    assert resident(None) - before < 64 * MIB
    assert len(running.asked) == 1


def test_strangers_who_go_on_have_vms_looked_for_ever_more_rarely(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.configure(shop(NginxSyslog("log")))
    begun_s = time.monotonic()
    monkeypatch.setattr(
        source_thread, "time", SimpleNamespace(monotonic=lambda: begun_s + 100 * (time.monotonic() - begun_s))
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while time.monotonic() < begun_s + 1:  # 100 s
            sender.sendto(LINE, ("127.0.0.1", running.port))
            time.sleep(0.005)
    assert 1 <= len(running.asked) <= 4, "each is a full listing of all domains"
