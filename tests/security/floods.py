"""Floods of requests that nobody has leave to make, and what they cost a process: memory, files, and a probe's wait."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20
LONG_S = 30.0
"""A probe that is not answered within it has failed."""
MOST_BYTES = 64 * MIB
MOST_S = 2.0
"""The longest a probe may wait beside a flood for anything but a CPU, as that tells of what else the machine does."""


def address(number: int) -> str:
    """One of many addresses of the loopback network."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{2 + number % 250}"


def connected(to: int | Path, source: str) -> socket.socket:
    """A connection from an address to a port, or to a Unix socket."""
    if isinstance(to, Path):
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(2)
        opened.connect(str(to))
        return opened
    opened = socket.socket()
    opened.settimeout(2)
    opened.bind((source, 0))
    opened.connect(("127.0.0.1", to))
    return opened


def resident(pid: int | None) -> int:
    """Bytes of memory that are the process's own; None: this one's."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def run_queue_delay_s(*pids: int) -> float:
    """How long the threads of processes have waited for a CPU so far."""
    delay_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                delay_ns += int((thread / "schedstat").read_text().split()[1])
    return delay_ns / 1e9


def spooled(pid: int) -> int:
    """Bytes in files that the process has open and whose names are gone: those of tempfile."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).endswith("(deleted)"):
                found += link.stat().st_size
    return found


@dataclass
class Cost:
    """What a flood cost: bytes beyond those of before, and the longest wait of a probe."""

    held: int = 0
    slowest_s: float = 0.0
    answers: list[int] = field(default_factory=list)
    enough: int = 5
    """Probes that a flood lasts for, however slow the machine is."""

    def goes_on(self, until_s: float) -> bool:
        """Whether the flood does: until then, and for enough probes, but for at most ``LONG_S`` longer."""
        now_s = time.monotonic()
        return now_s < until_s or (len(self.answers) < self.enough and now_s < until_s + LONG_S)

    def lasting(self, seconds: float) -> Iterator[None]:
        """Turns of the flood, with pauses."""
        until_s = time.monotonic() + seconds
        while self.goes_on(until_s):
            yield
            time.sleep(0.02)

    def judge(self, turned_away: int = 0) -> None:
        """``turned_away``: probes that may be closed without an answer."""
        print(f"held {self.held / MIB:.1f} MiB, slowest {self.slowest_s:.2f} s, {len(self.answers)} probes")
        assert self.held < MOST_BYTES
        assert self.slowest_s < MOST_S
        assert len(self.answers) >= self.enough
        assert set(self.answers) <= {200, 0}
        assert self.answers.count(0) <= turned_away


@contextlib.contextmanager
def watched(pid: int, probe: Callable[[], int], every_s: float = 0.05, enough: int = 5) -> Iterator[Cost]:
    """Measure while a flood lasts. ``probe`` asks for health, with pauses, and answers the status."""
    cost = Cost(enough=enough)
    before = resident(pid) + spooled(pid)
    stop = threading.Event()

    def weigh() -> None:
        while not stop.wait(0.05):
            cost.held = max(cost.held, resident(pid) + spooled(pid) - before)

    def ask() -> None:
        while not stop.wait(every_s):
            begun_s, delay_s = time.monotonic(), run_queue_delay_s(pid, os.getpid())
            cost.answers.append(probe())
            delay_s = run_queue_delay_s(pid, os.getpid()) - delay_s
            cost.slowest_s = max(cost.slowest_s, time.monotonic() - begun_s - max(delay_s, 0.0))

    threads = [threading.Thread(target=weigh), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        yield cost
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def probe_of(port: int, path: str, trusted: ssl.SSLContext | None = None) -> Callable[[], int]:
    """Asks for a path over a connection of its own; answers the status, 0 for none."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()

    def ask() -> int:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as plain:
                plain.settimeout(LONG_S)
                with trusted.wrap_socket(plain, server_hostname="127.0.0.1") if trusted else plain as opened:
                    opened.sendall(request)
                    return int(opened.recv(100).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    return ask


class Flood:
    """Connections that are kept open, each with what it sent."""

    def __init__(self, to: int | Path, many: bool, source: str = "127.0.0.2") -> None:
        """``many``: each from another address; else all from ``source``, which usually is not the probe's."""
        self._to = to
        self._many = many
        self._source = source
        self.opened: list[socket.socket] = []

    def send(self, count: int, data: bytes) -> None:
        """Open connections that each send something."""
        for number in range(count):
            with contextlib.suppress(OSError):
                source = address(number) if self._many else self._source
                opened = connected(self._to, source)
                self.opened.append(opened)
                opened.sendall(data)
                opened.settimeout(0)

    def more(self, data: bytes) -> int:
        """Send more on each; how many still took it."""
        taken = 0
        for opened in self.opened:
            with contextlib.suppress(OSError):
                taken += opened.send(data) > 0
        return taken

    def answer(self, number: int) -> int:
        """The status that came on one so far; 0: none."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(self.opened[number].recv(1000).split()[1])
        return 0

    def close(self) -> None:
        """Close all."""
        for opened in self.opened:
            opened.close()
