"""Packets of a TCP connection between a client and a guest, and a kernel that runs a BPF program on one."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from ipaddress import ip_address

from manager.host.bpf_calls import call

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
PROG_TEST_RUN = 10
# prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration, ctx_size_in, ctx_size_out, ctx_in,
# ctx_out, flags, cpu, batch_size: include/uapi/linux/bpf.h
TEST = struct.Struct("=IIIIQQIIIIQQIII4x")


def run_on(program: int, packet: bytes) -> int:
    """What a program (its descriptor) returns for a packet, that of interface 1; also how long it took is known."""
    data = ctypes.create_string_buffer(packet, len(packet))
    packed = TEST.pack(program, 0, len(packet), 0, ctypes.addressof(data), 0, 1, *[0] * 8)
    attributes = ctypes.create_string_buffer(packed, len(packed))
    call("test run", PROG_TEST_RUN, attributes)
    return int(struct.unpack_from("=i", attributes, 4)[0])


@dataclass(slots=True)
class Connection:
    """Makes the packets of one connection. Sequence numbers wrap around soon."""

    port: int = 80
    client_port: int = 40_000
    version: int = 4
    tags: int = 0
    sent: int = 0xFFFFFFF0
    answered: int = 0xFFFFFF00
    padding: int = 0
    extensions: tuple[tuple[int, bytes], ...] = ()
    """Headers between IPv6 and TCP: the kind of each, and what it has after its kind and its length."""
    length: int | None = None
    """What IPv6 says of its own; None: the truth."""

    def to_guest(self, payload: bytes = b"", flags: int = ACK | PSH, back: int = 0) -> bytes:
        """The next segment of the client, or one that begins so many bytes ``back``."""
        packet = self._packet(True, self.sent - back, payload, flags)
        self.sent += max(len(payload) - back, 0) + bool(flags & SYN)
        return packet

    def from_guest(self, payload: bytes = b"", flags: int = ACK | PSH, back: int = 0) -> bytes:
        """The guest's."""
        packet = self._packet(False, self.answered - back, payload, flags)
        self.answered += max(len(payload) - back, 0) + bool(flags & SYN)
        return packet

    def _packet(self, to_guest: bool, sequence: int, payload: bytes, flags: int) -> bytes:
        numbers = sequence & 0xFFFFFFFF, (self.answered if to_guest else self.sent) & 0xFFFFFFFF
        ports = (self.client_port, self.port) if to_guest else (self.port, self.client_port)
        tcp = struct.pack("!HHIIBBHHH", *ports, *numbers, 5 << 4, flags, 65535, 0, 0) + payload
        hosts = ("192.0.2.1", "192.0.2.2") if self.version == 4 else ("2001:db8::1", "2001:db8::2")
        source, destination = (ip_address(host).packed for host in (hosts if to_guest else hosts[::-1]))
        if self.version == 4:
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + destination
        else:
            kinds = [*(kind for kind, _ in self.extensions), 6]
            extensions = b"".join(
                bytes([following, (len(rest) + 2) // 8 - 1]) + rest
                for following, (_, rest) in zip(kinds[1:], self.extensions, strict=True)
            )
            length = len(extensions + tcp) if self.length is None else self.length
            ip = struct.pack("!IHBB", 6 << 28, length, kinds[0], 64) + source + destination + extensions
        tags = b"\x81\x00\x00\x07" * self.tags
        return bytes(12) + tags + (b"\x08\x00" if self.version == 4 else b"\x86\xdd") + ip + tcp + bytes(self.padding)


def binary(opaque: int, *, magic: int = 0x80, code: int = 0, body: bytes = b"k", status: int = 0) -> bytes:
    """A message of memcached's binary protocol; its answer has magic 0x81."""
    return struct.pack("!BBHBBHIIQ", magic, code, 0, 0, 0, status, len(body), opaque, 0) + body


def answer_to(opaque: int, body: bytes = b"value", status: int = 0) -> bytes:
    return binary(opaque, magic=0x81, body=body, status=status)
