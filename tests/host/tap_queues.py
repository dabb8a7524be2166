"""A tap with several queues, as QEMU holds it, and what stands for a guest at each: plainly, or through vhost.

Frames have the header of virtio in front (linux/virtio_net.h), as those of a guest that offloads segmentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from manager.host.taps import TapProgram
from manager.model.traffic import TapProtocol
from tests.host.packets import ACK, FIN, SYN, Connection

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE = 0x2, 0x1000, 0x4000, 0x100
TUN_F_CSUM, TUN_F_TSO4 = 0x1, 0x2
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
NEEDS_CHECKSUM, SEGMENTS_TCPV4 = 1, 1
ETHERNET_IP_BYTES, TCP_BYTES, CHECKSUM_AT, SEGMENT_BYTES = 34, 20, 16, 1448
PLAIN = bytes(10)
MOST_FRAME = 1 << 16
WAIT_S = 30.0

TURNS, CONNECTIONS = 8, 16
GET = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000

# linux/vhost.h
SET_FEATURES, SET_OWNER, SET_MEMORY = 0x4008AF00, 0xAF01, 0x4008AF03
SET_RING_SIZE, SET_RING_ADDRESSES, SET_RING_BASE = 0x4008AF10, 0x4028AF11, 0x4008AF12
SET_KICK, SET_BACKEND = 0x4008AF20, 0x4008AF30
RECEIVES, SENDS = 0, 1
# A ring: 16 descriptors, then what is offered and what was used, each with an index behind two bytes of flags.
DESCRIPTORS, OFFERED_AT, USED_AT, FRAME_AT = 16, 512, 1024, 4096
RING_BYTES = FRAME_AT + MOST_FRAME
TO_BE_WRITTEN = 2


class Queue(Protocol):
    """One of a tap's queues, with the guest behind it."""

    def send(self, frame: bytes, header: bytes = PLAIN) -> None:
        """The guest sends it; when this returns, the tap has it."""

    def receive(self) -> bytes | None:
        """A frame that came for the guest; None: none is there."""


class PlainQueue:
    """QEMU reads and writes the tap itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def send(self, frame: bytes, header: bytes = PLAIN) -> None:
        os.write(self._descriptor, header + frame)

    def receive(self) -> bytes | None:
        try:
            return os.read(self._descriptor, len(PLAIN) + MOST_FRAME)[len(PLAIN) :]
        except BlockingIOError:
            return None


class Ring:
    """A virtqueue of one frame at a time, in memory that vhost may use; linux/virtio_ring.h."""

    def __init__(self, vhost: int, number: int, memory: mmap.mmap, address: int, at: int) -> None:
        self._memory, self._at, self._address = memory, at, address + at
        self._kick = os.eventfd(0)
        self._offered = 0
        base = self._address
        fcntl.ioctl(vhost, SET_RING_SIZE, struct.pack("=II", number, DESCRIPTORS))
        fcntl.ioctl(vhost, SET_RING_BASE, struct.pack("=II", number, 0))
        addresses = base, base + USED_AT, base + OFFERED_AT, 0
        fcntl.ioctl(vhost, SET_RING_ADDRESSES, struct.pack("=II4Q", number, 0, *addresses))
        fcntl.ioctl(vhost, SET_KICK, struct.pack("=Ii", number, self._kick))

    def offer(self, length: int, flags: int) -> None:
        """The frame's place, for vhost to read or write."""
        place = self._offered % DESCRIPTORS
        entry = struct.pack("=QIHH", self._address + FRAME_AT, length, flags, 0)
        self._put(16 * place, entry)
        self._put(OFFERED_AT + 4 + 2 * place, struct.pack("=H", place))
        self._offered += 1
        self._put(OFFERED_AT + 2, struct.pack("=H", self._offered & 0xFFFF))
        os.eventfd_write(self._kick, 1)

    @property
    def is_used(self) -> bool:
        """Whether vhost is done with it."""
        return bool(struct.unpack("=H", self._get(USED_AT + 2, 2))[0] == self._offered & 0xFFFF)

    @property
    def used_bytes(self) -> int:
        place = (self._offered - 1) % DESCRIPTORS
        return int(struct.unpack("=I", self._get(USED_AT + 8 + 8 * place, 4))[0])

    @property
    def frame(self) -> bytes:
        return self._get(FRAME_AT, self.used_bytes)

    def fill(self, content: bytes) -> None:
        self._put(FRAME_AT, content)

    def close(self) -> None:
        os.close(self._kick)

    def _put(self, at: int, content: bytes) -> None:
        self._memory[self._at + at : self._at + at + len(content)] = content

    def _get(self, at: int, length: int) -> bytes:
        return self._memory[self._at + at : self._at + at + length]


class VhostQueue:
    """A thread of vhost's reads and writes the tap, as for KVM: the guest's memory is that of this process."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(-1, 2 * RING_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._vhost = os.open("/dev/vhost-net", os.O_RDWR)
        fcntl.ioctl(self._vhost, SET_OWNER)
        fcntl.ioctl(self._vhost, SET_FEATURES, struct.pack("=Q", 0))
        whole = struct.pack("=II4Q", 1, 0, address, 2 * RING_BYTES, address, 0)
        fcntl.ioctl(self._vhost, SET_MEMORY, whole)
        self._received = Ring(self._vhost, RECEIVES, self._memory, address, 0)
        self._sent = Ring(self._vhost, SENDS, self._memory, address, RING_BYTES)
        self._received.offer(MOST_FRAME, TO_BE_WRITTEN)
        for number in (RECEIVES, SENDS):
            fcntl.ioctl(self._vhost, SET_BACKEND, struct.pack("=Ii", number, descriptor))

    def send(self, frame: bytes, header: bytes = PLAIN) -> None:
        self._sent.fill(header + frame)
        self._sent.offer(len(header + frame), 0)
        until(lambda: self._sent.is_used, "vhost to send")

    def receive(self) -> bytes | None:
        if not self._received.is_used:
            return None
        frame = self._received.frame[len(PLAIN) :]
        self._received.offer(MOST_FRAME, TO_BE_WRITTEN)
        return frame

    def close(self) -> None:
        os.close(self._vhost)
        self._received.close()
        self._sent.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {WAIT_S} s for {what}"
        time.sleep(0.0005)


@contextmanager
def tap(name: str, queues: int) -> Iterator[list[int]]:
    """A tap that is up; descriptors of its queues."""
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE
    with contextlib.ExitStack() as opened:
        descriptors = []
        for _ in range(queues):
            descriptors.append(os.open("/dev/net/tun", os.O_RDWR))
            opened.callback(os.close, descriptors[-1])
            fcntl.ioctl(descriptors[-1], TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
            fcntl.ioctl(descriptors[-1], TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
        quiet = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if quiet.exists():
            quiet.write_text("1")  # else the kernel sends packets of its own
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), IFF_UP))
        yield descriptors


@contextmanager
def bridge(name: str) -> Iterator[socket.socket]:
    """What is sent to it goes to the guest, as from a bridge."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as opened:
        opened.bind((name, 0))
        yield opened


def in_segments(frame: bytes) -> bytes:
    """The header of a frame that is to be cut into segments: IPv4, TCP without options."""
    lengths = ETHERNET_IP_BYTES + TCP_BYTES, SEGMENT_BYTES, ETHERNET_IP_BYTES, CHECKSUM_AT
    return struct.pack("=BBHHHH", NEEDS_CHECKSUM, SEGMENTS_TCPV4, *lengths)


@dataclass(frozen=True, slots=True)
class Guest:
    """What serves behind a tap, and how packets come to it."""

    interface: int
    queues: Sequence[Queue]
    outside: socket.socket

    def hear(self, frame: bytes) -> int:
        """A client's frame arrives; the number of its queue."""
        self.outside.send(frame)
        came: list[int] = []

        def has_come() -> bool:
            came.extend(number for number, queue in enumerate(self.queues) if queue.receive() == frame)
            return bool(came)

        until(has_come, "the frame to arrive")
        return came[0]


def serve(guest: Guest, program: TapProgram) -> set[int]:
    """Clients ask, and the guest answers each packet by another queue than the one before; the queues they came by.

    All that was asked is answered, and seen so.
    """
    taken, used = set(), 0
    for number in range(CONNECTIONS):
        connection = Connection(client_port=40_000 + number)
        taken.add(guest.hear(connection.to_guest(flags=SYN)))
        guest.queues[number % len(guest.queues)].send(connection.from_guest(flags=SYN | ACK))
        for _ in range(TURNS):
            taken.add(guest.hear(connection.to_guest(GET)))
            answer = connection.from_guest(LONG)
            used += 1
            guest.queues[used % len(guest.queues)].send(answer, in_segments(answer))
        guest.queues[used % len(guest.queues)].send(connection.from_guest(flags=FIN | ACK))
    [seen] = program.traffic()
    asked = CONNECTIONS * TURNS
    assert (seen.requests[TapProtocol.HTTP], seen.answers, seen.times.count) == (asked, asked, asked)
    assert (seen.connections, seen.untimed, seen.unanswered, seen.waiting.count) == (CONNECTIONS, 0, 0, 0)
    assert seen.handshakes.count == CONNECTIONS - 1  # that it serves is known from the first one on
    return taken
