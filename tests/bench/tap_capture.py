"""The packets of a tap with the kernel's times, and what they say of requests whose beginning and end the client knows.

This shares nothing with the program of ``manager.bpf.tap``: the kernel writes packets to a ring (packet(7),
packet_mmap), and they are read once the load has ended. A request is matched with its packets by the client's clock:
between the moments when the client sends a request and has its answer, all that passes on that connection is of this
request.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SOL_PACKET = 263
_RX_RING, _STATISTICS, _VERSION = 5, 6, 10
_VERSION_2 = 1
_ALL_PROTOCOLS = 3
_OUTGOING = 4
_BLOCK_BYTES, _FRAME_BYTES, _RING_BYTES = 1 << 16, 256, 128 << 20
# tp_status, tp_len, tp_snaplen, tp_mac, tp_net, tp_sec, tp_nsec of struct tpacket2_hdr; sll_pkttype behind it
_FRAME = struct.Struct("=IIIHHII")
_KIND_AT = 42
_TO_USER = 1
_IPV4, _TCP = b"\x08\x00", 6
_SYN = 0x02
_CLOCK_STEP_NS = 100_000


class TapPacket(NamedTuple):
    """A TCP segment of the service. ``length`` is of its payload; times are those of ``time.monotonic_ns()``."""

    at_ns: int
    to_guest: bool
    client_port: int
    sequence: int
    length: int
    flags: int


class CaptureError(Exception):
    """The packets are not those that passed; the text says why."""


class TapCapture:
    """Records the packets of one service on an interface, from its making until ``packets``. To be closed.

    Raises OSError without the right to, or for an interface that there is not.
    """

    def __init__(self, interface: str, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._socket.setsockopt(_SOL_PACKET, _VERSION, _VERSION_2)
            ring = (_BLOCK_BYTES, _RING_BYTES // _BLOCK_BYTES, _FRAME_BYTES, _RING_BYTES // _FRAME_BYTES)
            self._socket.setsockopt(_SOL_PACKET, _RX_RING, struct.pack("=IIII", *ring))
            self._ring = mmap.mmap(self._socket.fileno(), _RING_BYTES)
            self._offset_ns = _clock_offset_ns()
            self._socket.bind((interface, _ALL_PROTOCOLS))
        except BaseException:
            self._socket.close()
            raise

    def packets(self) -> list[TapPacket]:
        """Those so far. Raises CaptureError where some are missing, or the clock was set meanwhile."""
        offset_ns = _clock_offset_ns()
        _, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        if dropped:
            raise CaptureError(f"{dropped} packets found no room: use fewer --seconds")
        if abs(offset_ns - self._offset_ns) > _CLOCK_STEP_NS:
            raise CaptureError(f"the clock was set by {(offset_ns - self._offset_ns) / 1e6:.3f} ms: run again")
        return list(self._read(offset_ns))

    def _read(self, offset_ns: int) -> Iterator[TapPacket]:
        for at in range(0, _RING_BYTES, _FRAME_BYTES):
            status, _, taken, begin, _, seconds, nanoseconds = _FRAME.unpack_from(self._ring, at)
            if not status & _TO_USER:
                return
            to_guest = self._ring[at + _KIND_AT] == _OUTGOING
            frame = self._ring[at + begin : at + begin + taken]
            packet = _parse(frame, seconds * 10**9 + nanoseconds - offset_ns, to_guest, self._port)
            if packet is not None:
                yield packet

    def close(self) -> None:
        """Forget the packets."""
        self._ring.close()
        self._socket.close()


def _clock_offset_ns() -> int:
    """Of the clock of packets to the client's."""
    before_ns, real_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return real_ns - (before_ns + after_ns) // 2


def _parse(frame: bytes, at_ns: int, to_guest: bool, port: int) -> TapPacket | None:
    """The TCP segment in an Ethernet frame that was cut off behind its headers; None: of another service."""
    if frame[12:14] != _IPV4 or frame[23] != _TCP:
        return None
    total = int.from_bytes(frame[16:18], "big")
    at = 14 + (frame[14] & 0xF) * 4
    source, destination, sequence = struct.unpack_from("!HHI", frame, at)
    if (destination if to_guest else source) != port:
        return None
    length = total - (at - 14) - (frame[at + 12] >> 4) * 4
    return TapPacket(at_ns, to_guest, source if to_guest else destination, sequence, length, frame[at + 13])


def opened(packets: Iterable[TapPacket]) -> list[int]:
    """The clients' ports of connections, in the order in which they were opened."""
    return list(
        {(packet.client_port, packet.sequence): packet.client_port for packet in packets if _opens(packet)}.values()
    )


def _opens(packet: TapPacket) -> bool:
    return packet.to_guest and bool(packet.flags & _SYN)


class Turn(NamedTuple):
    """A request and its answer as the client has them: sent from ``sent_ns`` on, complete at ``done_ns``.

    ``first``: of its connection.
    """

    client_port: int
    first: bool
    sent_ns: int
    done_ns: int


@dataclass(frozen=True, slots=True)
class PassedTurn:
    """When a turn passed the tap: the last byte of the request, the first and the last one of the answer."""

    turn: Turn
    asked_ns: int
    answered_ns: int
    ended_ns: int

    @property
    def tap_ns(self) -> int:
        """The response time at the tap."""
        return self.answered_ns - self.asked_ns

    @property
    def whole_ns(self) -> int:
        """The response time at the tap, and that of the rest of the answer."""
        return self.ended_ns - self.asked_ns

    @property
    def client_ns(self) -> int:
        """The client's time."""
        return self.turn.done_ns - self.turn.sent_ns

    @property
    def out_ns(self) -> int:
        """From the client to the tap: its network stack, the bridge, and the rest of a long request."""
        return self.asked_ns - self.turn.sent_ns

    @property
    def rest_ns(self) -> int:
        """That the rest of the answer took to pass the tap."""
        return self.ended_ns - self.answered_ns

    @property
    def back_ns(self) -> int:
        """From the last byte of the answer at the tap to the client: the bridge, its network stack and its wake-up."""
        return self.turn.done_ns - self.ended_ns


def passed(turns: Iterable[Turn], packets: Iterable[TapPacket]) -> tuple[list[PassedTurn], int]:
    """The turns as they passed the tap, and how many of them cannot be found there."""
    content: dict[int, list[TapPacket]] = {}
    ends: dict[tuple[int, bool], int] = {}
    for packet in packets:
        key = packet.client_port, packet.to_guest
        end = (packet.sequence + packet.length) & 0xFFFFFFFF
        if packet.flags & _SYN:
            ends.pop(key, None)
        elif packet.length and (key not in ends or 0 < ((end - ends[key]) & 0xFFFFFFFF) < 1 << 31):
            ends[key] = end  # else it is sent again
            content.setdefault(packet.client_port, []).append(packet)
    times = {port: [packet.at_ns for packet in sent] for port, sent in content.items()}
    found, missing = [], 0
    for turn in turns:
        at_ns = times.get(turn.client_port, [])
        begin, end = bisect_left(at_ns, turn.sent_ns), bisect_right(at_ns, turn.done_ns)
        placed = _place(turn, content.get(turn.client_port, [])[begin:end])
        if placed is None:
            missing += 1
        else:
            found.append(placed)
    return found, missing


def _place(turn: Turn, packets: Sequence[TapPacket]) -> PassedTurn | None:
    requests = [packet.at_ns for packet in packets if packet.to_guest]
    answers = [packet.at_ns for packet in packets if not packet.to_guest]
    if not requests or not answers or (answers[0] < requests[-1]):
        return None
    return PassedTurn(turn, requests[-1], answers[0], answers[-1])
