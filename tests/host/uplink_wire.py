"""A bridge with an uplink of the kernel's own making, whose wire is slow, and two VMs of network namespaces behind it.

    critical VM --+                                   (namespace "wire")
                  +-- bridge -- uplink === veth === bridge -- tbf, 50 Mbit/s -- peer
    batch VM -----+

Run in a namespace, this file is what works there: ``echo`` and ``sink`` at the peer, ``flood``, ``segments`` and
``ask`` in the VMs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

WIRE_MBIT = 50
CRITICAL_ADDRESS, BATCH_ADDRESS = "52:54:00:e9:51:01", "52:54:00:e9:51:02"
_PEER_IP, _IPS = "10.231.0.9", {"critical": "10.231.0.1", "batch": "10.231.0.2"}
_ECHO_PORT, _SINK_PORT = 7007, 7009
_QUESTION, _ANSWER = b"q" * 100, b"a" * 1000
_CONNECTIONS = 4
_UDP_SEGMENT = 103  # include/uapi/linux/udp.h
_SEGMENT, _SEGMENTS = 1400, 44
"""Bytes in a frame, and frames that are handed over as one packet."""
_PAUSE_S = 0.004
_WARM_UP_S = 1.0


def lacks() -> str:
    """Why there can be no such bridge here; empty: there can."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"no {missing[0]}" if missing else ""


def run(command: str) -> None:
    """Of iproute2. Raises CalledProcessError."""
    subprocess.run(command.split(), check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Wire:
    """``uplink`` is the name of the bridge's port; ``prefix`` begins all names."""

    prefix: str
    uplink: str

    @property
    def index(self) -> int:
        return socket.if_nametoindex(self.uplink)

    def start(self, place: str, *words: str) -> subprocess.Popen[str]:
        """Something of this file in a namespace."""
        program = [sys.executable, str(Path(__file__)), *words]
        command = ["ip", "netns", "exec", f"{self.prefix}-{place}", *program]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def round_trips_ms(self, seconds: float, *, flooded: bool) -> list[float]:
        """Those of the critical VM, sorted; ``flooded``: while the batch VM sends what it can."""
        with contextlib.ExitStack() as stack:
            self._begin(stack, "peer", "echo")
            if flooded:
                self._begin(stack, "peer", "sink")
                self._begin(stack, "batch", "flood")
            if flooded:
                time.sleep(_WARM_UP_S)
            asking = self.start("critical", "ask", str(seconds))
            answer, _ = asking.communicate(timeout=seconds + 60)
        return sorted(json.loads(answer))

    def flood(self, place: str, seconds: float) -> None:
        """A VM sends what it can for so long."""
        with self.flooded(place):
            time.sleep(seconds)

    @contextmanager
    def flooded(self, *places: str, large: bool = False) -> Iterator[None]:
        """These VMs send what they can; ``large``: packets of 60 KiB, which the wire's end cuts into frames."""
        with contextlib.ExitStack() as stack:
            self._begin(stack, "peer", "sink")
            for place in places:
                self._begin(stack, place, "segments" if large else "flood")
            yield

    def _begin(self, stack: ExitStack, place: str, word: str) -> None:
        """Until the block ends. Waits until it is ready."""
        process = self.start(place, word)
        stack.callback(_end, process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"


@contextmanager
def slow_wire(mbit: int = WIRE_MBIT) -> Iterator[Wire]:
    """All of it is gone at the end. Raises CalledProcessError."""
    prefix = f"eq{os.getpid() % 100_000}"
    with ExitStack() as undo:
        bridge, uplink, inside, outside = (f"{prefix}{end}" for end in ("br", "u", "i", "o"))
        for place in ("wire", "peer", "critical", "batch"):
            run(f"ip netns add {prefix}-{place}")
            undo.callback(run, f"ip netns del {prefix}-{place}")
        run(f"ip link add {bridge} type bridge forward_delay 0")
        undo.callback(run, f"ip link del {bridge}")
        run(f"ip link set {bridge} up")
        run(f"ip link add {uplink} type veth peer name {inside} netns {prefix}-wire")
        undo.callback(run, f"ip link del {uplink}")
        run(f"ip link set {uplink} up master {bridge}")
        wire = f"ip -n {prefix}-wire"
        run(f"{wire} link add {bridge} type bridge forward_delay 0")
        run(f"{wire} link set {bridge} up")
        run(f"{wire} link set {inside} up master {bridge}")
        run(f"{wire} link add {outside} type veth peer name eth0 netns {prefix}-peer")
        run(f"{wire} link set {outside} up master {bridge}")
        run(f"tc -n {prefix}-wire qdisc add dev {outside} root tbf rate {mbit}mbit burst 16kb latency 100ms")
        _give(f"{prefix}-peer", "eth0", _PEER_IP)
        for place, address in (("critical", CRITICAL_ADDRESS), ("batch", BATCH_ADDRESS)):
            port = f"{prefix}{place[0]}"
            peer = f"peer name eth0 address {address} netns {prefix}-{place}"
            run(f"ip link add {port} type veth {peer}")
            undo.callback(run, f"ip link del {port}")
            run(f"ip link set {port} up master {bridge}")
            _give(f"{prefix}-{place}", "eth0", _IPS[place])
        yield Wire(prefix, uplink)


def _give(namespace: str, interface: str, ip: str) -> None:
    run(f"ip -n {namespace} addr add {ip}/24 dev {interface}")
    run(f"ip -n {namespace} link set {interface} up")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _listen(port: int) -> socket.socket:
    server = socket.create_server((_PEER_IP, port))
    print("ready", flush=True)
    return server


def _echo() -> None:
    connection, _ = _listen(_ECHO_PORT).accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while _received(connection, len(_QUESTION)):
        connection.sendall(_ANSWER)


def _sink() -> None:
    server = _listen(_SINK_PORT)
    waiting: list[socket.socket] = [server]
    while True:
        for ready in select.select(waiting, [], [])[0]:
            if ready is server:
                waiting.append(server.accept()[0])
            elif not ready.recv(1 << 20):
                waiting.remove(ready)


def _flood() -> None:
    connections = [socket.create_connection((_PEER_IP, _SINK_PORT)) for _ in range(_CONNECTIONS)]
    for connection in connections:
        connection.setblocking(False)
    print("ready", flush=True)
    while True:
        for connection in select.select([], connections, [])[1]:
            with contextlib.suppress(BlockingIOError):
                connection.send(bytes(1 << 16))


def _segments() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, _SEGMENT)
        sender.connect((_PEER_IP, _SINK_PORT))
        print("ready", flush=True)
        while True:
            with contextlib.suppress(ConnectionRefusedError):  # nobody receives datagrams
                sender.send(bytes(_SEGMENT * _SEGMENTS))


def _ask(seconds: float) -> None:
    connection = socket.create_connection((_PEER_IP, _ECHO_PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    spent_ms: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        connection.sendall(_QUESTION)
        if not _received(connection, len(_ANSWER)):
            break
        spent_ms.append((time.monotonic() - began) * 1000)
        time.sleep(_PAUSE_S)
    print(json.dumps(spent_ms))


def _received(connection: socket.socket, count: int) -> bool:
    while count:
        part = connection.recv(count)
        if not part:
            return False
        count -= len(part)
    return True


def main(words: Sequence[str]) -> None:
    """Work in a namespace."""
    if words[0] == "ask":
        _ask(float(words[1]))
    else:
        {"echo": _echo, "sink": _sink, "flood": _flood, "segments": _segments}[words[0]]()


if __name__ == "__main__":
    main(sys.argv[1:])
