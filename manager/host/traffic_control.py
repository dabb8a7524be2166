"""Queueing disciplines, classes and filters of network interfaces: tc(8), tc-htb(8) and tc-u32(8), over rtnetlink(7).

Shapes of messages: linux/rtnetlink.h and linux/pkt_sched.h. Rates are in bits, as HTB's in 32 bits of bytes a second.
"""

from __future__ import annotations

import errno
import socket
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from manager.host.netlink import CREATE, ECHO, EXCLUSIVE, REPLACE, RouteSocket, attribute, attributes
from manager.model.network import USUAL_TURN

ROOT = 0xFFFF_FFFF
"""The parent of an interface's root qdisc."""
INGRESS = 0xFFFF_FFF1
"""That of its ingress or clsact, which is beside the root."""
BURST_US = 2000
"""How long a class may send faster than its rate: longer than a timer of a busy host is late, short beside an SLA."""

_NEW_QDISC, _DEL_QDISC, _GET_QDISC = 36, 37, 38
_NEW_CLASS, _DEL_CLASS, _GET_CLASS = 40, 41, 42
_NEW_FILTER, _DEL_FILTER, _GET_FILTER = 44, 45, 46
_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_KIND, _OPTIONS, _STATS = 1, 2, 7  # TCA_KIND, TCA_OPTIONS, TCA_STATS2
_BASIC = 1  # TCA_STATS_BASIC
_BYTES = struct.Struct("=Q")
_HTB_PARAMS, _HTB_INIT = 1, 2
_HTB_ROOT = struct.Struct("=5I")  # tc_htb_glob: version, rate2quantum, default class, debug, direct packets
_HTB_CLASS = struct.Struct("=BBHhHIBBHhHI5I")  # tc_htb_opt: tc_ratespec twice, bursts, quantum, level, priority
_HTB_VERSION, _HTB_QUANTA = 3, 10
_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: the kernel computes the time of a packet itself
_TICK_NS = 64  # PSCHED_SHIFT
_BYTES_PER_KBIT = 125
FRAME_BYTES = 1514
"""A whole one of Ethernet."""
_U32_CLASS, _U32_SELECTOR = 1, 5
_TARGET = struct.Struct("=I")
_SELECTOR = struct.Struct("=BBBxHHhHI")  # tc_u32_sel: flags, shift, keys, then what is of no use here
_MATCH = struct.Struct(">4s4s")  # tc_u32_key: mask and value
_OFFSET = struct.Struct("=ii")
_TERMINAL = 1
_SOURCE_OFFSETS = ((-8, b"\xff\xff\xff\xff"), (-4, b"\xff\xff\x00\x00"))
"""Where a frame has its source address, from its network header: tc-u32(8), "match ether src"."""
_PRIORITY = 1
_FILTER_INFO = _PRIORITY << 16 | socket.htons(0x0003)  # ETH_P_ALL


Listed = TypeVar("Listed")
_Known = dict[int, dict[bytes, Listed | None]]
"""What messages say, by interface; None: nothing that is of use here."""


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A queueing discipline. ``handle`` 0: the kernel's default."""

    interface: int
    kind: str
    handle: int
    parent: int


@dataclass(frozen=True, slots=True)
class HtbClass:
    """A class of HTB: what it is guaranteed and may have at most, in kbit/s, and its turn (0 first).

    Classes of one parent that borrow from it do so in proportion to ``quantum_bytes``, by deficit round robin.
    ``sent_bytes`` is what it and those inside it have sent.
    """

    handle: int
    parent: int
    rate_kbit: int
    ceiling_kbit: int
    priority: int
    quantum_bytes: int = USUAL_TURN * FRAME_BYTES
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Puts what comes from an address (6 bytes) into a class."""

    handle: int
    address: bytes
    target: int


class TrafficControl:
    """Of this thread's network namespace, by a socket that is held open. Not thread-safe; all raise OSError."""

    def __init__(self) -> None:
        """Nothing is opened yet."""
        self._link: RouteSocket | None = None
        self._classes: _Known[HtbClass] = {}
        self._filters: _Known[SourceFilter] = {}

    def qdiscs(self) -> list[Qdisc]:
        """Those of all interfaces, without what has no queue."""
        found: list[Qdisc] = []
        for _, body in self._socket().dump(_GET_QDISC, _MESSAGE.pack(0, 0, 0, 0, 0)):
            _, interface, handle, parent, _ = _MESSAGE.unpack_from(body)
            found.append(Qdisc(interface, _text(attributes(body[_MESSAGE.size :])), handle, parent))
        return found

    def add_htb(self, interface: int, handle: int, default: int) -> None:
        """Make HTB its root in place of the kernel's default. EEXIST: it has another one."""
        options = attribute(_HTB_INIT, _HTB_ROOT.pack(_HTB_VERSION, _HTB_QUANTA, default, 0, 0))
        self._ask(_NEW_QDISC, CREATE | EXCLUSIVE, interface, handle, ROOT, _of_kind("htb", options))

    def add_queue(self, interface: int, parent: int, kind: str) -> None:
        """Give a class another queue than its first in, first out. ENOENT: the kernel has no such kind."""
        self._ask(_NEW_QDISC, CREATE | REPLACE, interface, 0, parent, _of_kind(kind))

    def delete_root(self, interface: int, handle: int) -> None:
        """Remove its root qdisc, with all in it: the kernel's default comes back. ENOENT, EINVAL: it has another."""
        self._ask(_DEL_QDISC, 0, interface, handle, ROOT)

    def classes(self, interface: int) -> list[HtbClass]:
        """Those of HTB."""
        return self._listed(self._classes, _parse_class, _GET_CLASS, interface)

    def htb_class(self, interface: int, handle: int) -> HtbClass:
        """One of these. ENOENT: there is none."""
        for _, body in self._socket().request(_GET_CLASS, _MESSAGE.pack(0, interface, handle, 0, 0), ECHO):
            _, _, found, parent, _ = _MESSAGE.unpack_from(body)
            return _class(found, parent, attributes(body[_MESSAGE.size :]))
        raise FileNotFoundError(errno.ENOENT, "rtnetlink: no such class")

    def put_class(self, interface: int, wanted: HtbClass) -> None:
        """Make a class, or change the one that is there."""
        rates = [(0, _ETHERNET, 0, 0, 0, kbit * _BYTES_PER_KBIT) for kbit in (wanted.rate_kbit, wanted.ceiling_kbit)]
        burst = BURST_US * 1000 // _TICK_NS
        params = _HTB_CLASS.pack(*rates[0], *rates[1], burst, burst, wanted.quantum_bytes, 0, wanted.priority)
        options = _of_kind("htb", attribute(_HTB_PARAMS, params))
        self._ask(_NEW_CLASS, CREATE, interface, wanted.handle, wanted.parent, options)

    def delete_class(self, interface: int, handle: int) -> None:
        """EBUSY: it has classes or filters."""
        self._ask(_DEL_CLASS, 0, interface, handle, 0)

    def filters(self, interface: int, parent: int) -> list[SourceFilter]:
        """Those by source address."""
        return self._listed(self._filters, _parse_filter, _GET_FILTER, interface, parent)

    def add_filter(self, interface: int, parent: int, address: bytes, target: int) -> None:
        """Put what comes from an address into a class."""
        values = (address[:4], address[4:] + bytes(2))
        keys = [
            _MATCH.pack(mask, value) + _OFFSET.pack(offset, 0)
            for (offset, mask), value in zip(_SOURCE_OFFSETS, values, strict=True)
        ]
        selector = _SELECTOR.pack(_TERMINAL, 0, len(keys), 0, 0, 0, 0, 0) + b"".join(keys)
        options = attribute(_U32_CLASS, _TARGET.pack(target)) + attribute(_U32_SELECTOR, selector)
        self._ask(_NEW_FILTER, CREATE | EXCLUSIVE, interface, 0, parent, _of_kind("u32", options), _FILTER_INFO)

    def delete_filter(self, interface: int, parent: int, handle: int) -> None:
        """Remove one."""
        self._ask(_DEL_FILTER, 0, interface, handle, parent, _of_kind("u32"), _FILTER_INFO)

    def close(self) -> None:
        """Close the socket; may be called twice, and it is opened again where it is needed."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _socket(self) -> RouteSocket:
        if self._link is None:
            self._link = RouteSocket()
            weakref.finalize(self, self._link.close)
        return self._link

    def _listed(
        self, known: _Known[Listed], parse: Callable[[bytes], Listed | None], kind: int, interface: int, parent: int = 0
    ) -> list[Listed]:
        """What there is by a list that the kernel answers. What is the same as before is not parsed again."""
        before = known.get(interface, {})
        now = {
            body: before[body] if body in before else parse(body)
            for _, body in self._socket().dump(kind, _MESSAGE.pack(0, interface, 0, parent, 0))
        }
        known[interface] = now
        return [found for found in now.values() if found is not None]

    def _ask(
        self, kind: int, flags: int, interface: int, handle: int, parent: int, options: bytes = b"", info: int = 0
    ) -> None:
        self._socket().request(kind, _MESSAGE.pack(0, interface, handle, parent, info) + options, flags)


def _of_kind(kind: str, options: bytes = b"") -> bytes:
    return attribute(_KIND, kind.encode() + b"\0") + (attribute(_OPTIONS, options) if options else b"")


def _text(fields: dict[int, bytes]) -> str:
    return fields.get(_KIND, b"").rstrip(b"\0").decode(errors="replace")


def _parse_class(body: bytes) -> HtbClass | None:
    _, _, handle, parent, _ = _MESSAGE.unpack_from(body)
    fields = attributes(body[_MESSAGE.size :])
    return _class(handle, parent, fields) if _text(fields) == "htb" else None


def _parse_filter(body: bytes) -> SourceFilter | None:
    _, _, handle, _, _ = _MESSAGE.unpack_from(body)
    fields = attributes(body[_MESSAGE.size :])
    options = attributes(fields.get(_OPTIONS, b""))
    address, target = _source(options.get(_U32_SELECTOR, b"")), options.get(_U32_CLASS, b"")
    if _text(fields) == "u32" and address and len(target) == _TARGET.size:
        return SourceFilter(handle, address, *_TARGET.unpack(target))
    return None


def _class(handle: int, parent: int, fields: dict[int, bytes]) -> HtbClass:
    params = attributes(fields.get(_OPTIONS, b"")).get(_HTB_PARAMS, b"")
    basic = attributes(fields.get(_STATS, b"")).get(_BASIC, b"")
    sent = _BYTES.unpack_from(basic)[0] if len(basic) >= _BYTES.size else 0
    numbers = _HTB_CLASS.unpack_from(params) if len(params) >= _HTB_CLASS.size else (0,) * 17
    rate, ceiling, quantum, priority = numbers[5], numbers[11], numbers[14], numbers[16]
    return HtbClass(handle, parent, rate // _BYTES_PER_KBIT, ceiling // _BYTES_PER_KBIT, priority, quantum, sent)


def _source(selector: bytes) -> bytes:
    """The address that a selector compares the source of a frame with; empty for any other."""
    size = _SELECTOR.size + len(_SOURCE_OFFSETS) * (_MATCH.size + _OFFSET.size)
    if len(selector) < size or selector[2] != len(_SOURCE_OFFSETS):
        return b""
    address = b""
    for number, (offset, mask) in enumerate(_SOURCE_OFFSETS):
        place = _SELECTOR.size + number * (_MATCH.size + _OFFSET.size)
        masked, value = _MATCH.unpack_from(selector, place)
        if masked != mask or _OFFSET.unpack_from(selector, place + _MATCH.size)[0] != offset:
            return b""
        address += value
    return address[:6]
