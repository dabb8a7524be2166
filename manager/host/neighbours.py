"""The kernel's neighbour table: which IP addresses the interfaces beside this host have, by hardware address.

libvirt reads it as well, but version 9.0 refuses the answer of current kernels ("wrong nlmsg len"), and all know IPv4
only. Messages: rtnetlink(7), linux/neighbour.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Mapping
from itertools import islice

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWNEIGH, _RTM_GETNEIGH = 28, 30
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NDA_DST, _NDA_LLADDR = 1, 2
_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # NUD_REACHABLE, _STALE, _DELAY, _PROBE, _PERMANENT

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, interface, state, flags, type
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_BUFFER = 1 << 18
MOST_ENTRIES = 16_384
"""More than that is not read: the kernel keeps 1,024 of IPv4 and as many of IPv6 by default (gc_thresh3)."""
MOST_OF_ONE = 256
"""So many addresses of one hardware address are returned."""
_TIMEOUT_S = 2.0


def read_neighbours() -> Mapping[str, frozenset[str]]:
    """IP addresses by hardware address, such as ``52:54:00:12:34:56``; of very many, some. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        length = _HEADER.size + _NEIGHBOUR.size
        header = _HEADER.pack(length, _RTM_GETNEIGH, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
        link.send(header + _NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        found: dict[str, set[str]] = {}
        for hardware, address in islice(_entries(link), MOST_ENTRIES):
            addresses = found.setdefault(hardware, set())
            if len(addresses) < MOST_OF_ONE:
                addresses.add(address)
        return {hardware: frozenset(addresses) for hardware, addresses in found.items()}


def _entries(link: socket.socket) -> Iterator[tuple[str, str]]:
    """Hardware and IP address of each usable entry of an answer. Raises OSError."""
    while True:
        for kind, body in _messages(link.recv(_BUFFER)):
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise OSError(-int(struct.unpack_from("=i", body)[0]), "the neighbour table cannot be read")
            entry = _neighbour(body) if kind == _RTM_NEWNEIGH else None
            if entry is not None:
                yield entry


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message of a packet."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _neighbour(body: bytes) -> tuple[str, str] | None:
    """Hardware and IP address; None for entries that are of no use, as those that did not answer."""
    family, _, state, *_ = _NEIGHBOUR.unpack_from(body)
    if family not in {socket.AF_INET, socket.AF_INET6} or not state & _USABLE:
        return None
    values: dict[int, bytes] = {}
    rest = body[_NEIGHBOUR.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    if _NDA_DST not in values or _NDA_LLADDR not in values:
        return None
    return values[_NDA_LLADDR].hex(":"), str(ipaddress.ip_address(values[_NDA_DST]))


def _aligned(length: int) -> int:
    return (length + 3) & ~3
