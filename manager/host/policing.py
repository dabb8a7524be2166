"""What an interface takes in at most: an ingress qdisc with a filter for all packets, and a police action.

tc-police(8) over rtnetlink(7). Shapes of messages: linux/pkt_cls.h. Of a tap, what comes in is what its VM sends.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Mapping

from manager.host.netlink import CREATE, EXCLUSIVE, REPLACE, RouteSocket, attribute, attributes
from manager.host.traffic_control import INGRESS

INGRESS_HANDLE = 0xFFFF_0000
"""The kernel knows no other for ingress and clsact: an interface has one of them at most."""
KIND = "ingress"
OUR_ACTIONS = 0xE000_0000
"""The number of our action is this and the index of its interface. Other tools let the kernel number theirs from 1."""
MOST_INDEX = 0x0FFF_FFFF
BURST_MS = 20
"""How long a VM may send faster than its limit: less, and TCP gets a part of it only."""
LARGEST_BYTES = 1 << 17
"""A packet of a tap is up to 64 KiB (GSO) before its headers; two of these pass at once."""

_NEW_QDISC, _DEL_QDISC = 36, 37
_NEW_FILTER, _GET_FILTER = 44, 46
_NEW_ACTION, _GET_ACTION = 48, 50
_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_ACTIONS = struct.Struct("=Bxxx")  # tcamsg: family
_KIND, _OPTIONS = 1, 2  # TCA_KIND, TCA_OPTIONS; TCA_ACT_KIND and TCA_ACT_OPTIONS are the same
_ACTION_TABLE = 1  # TCA_ACT_TAB
_FIRST = 1  # of the actions of a filter or a table
_U32_SELECTOR, _U32_ACTION = 5, 7
_ALL_PACKETS = struct.pack("=BBBxHHHhHI", 1, 0, 1, 0, 0, 0, 0, 0, 0) + bytes(16)  # tc_u32_sel: terminal, one key
_TBF, _RATE_TABLE = 1, 2  # TCA_POLICE_TBF, TCA_POLICE_RATE
_POLICE = struct.Struct("=IiIIIBBHhHI12xiiI")  # tc_police: number, action, limit, burst, mtu, rate, no peak, counts
_DROP = 2  # TC_ACT_SHOT
_CELL_LOG, _ETHERNET = 3, 1
_TABLE_BYTES = 1024  # of a table that the kernel asks for, and has not used since it computes times itself
_TICK_NS = 64  # PSCHED_SHIFT
_BYTES_PER_KBIT = 125
_PRIORITY = 0xE951
_FILTER_INFO = _PRIORITY << 16 | socket.htons(0x0003)  # ETH_P_ALL


def add_ingress(link: RouteSocket, interface: int) -> None:
    """Give an interface an ingress qdisc. EEXIST: it has one, or a clsact. ENOENT: the kernel has none."""
    message = _MESSAGE.pack(0, interface, INGRESS_HANDLE, INGRESS, 0) + attribute(_KIND, KIND.encode() + b"\0")
    link.request(_NEW_QDISC, message, CREATE | EXCLUSIVE)


def delete_ingress(link: RouteSocket, interface: int) -> None:
    """Remove it, with its filters and their actions. ENOENT, EINVAL: there is none."""
    link.request(_DEL_QDISC, _MESSAGE.pack(0, interface, INGRESS_HANDLE, INGRESS, 0))


def police(link: RouteSocket, interface: int, kbit: int) -> None:
    """Drop what comes in beyond that rate, by a filter in the ingress qdisc. Raises OSError: there is one, or the
    kernel has no u32 filters or police actions (ENOENT).
    """
    action = _action(interface, kbit)
    selector = attribute(_U32_SELECTOR, _ALL_PACKETS)
    options = attribute(_OPTIONS, selector + attribute(_U32_ACTION, attribute(_FIRST, action)))
    message = _MESSAGE.pack(0, interface, 0, INGRESS_HANDLE, _FILTER_INFO) + attribute(_KIND, b"u32\0") + options
    link.request(_NEW_FILTER, message, CREATE | EXCLUSIVE)


def change_limit(link: RouteSocket, interface: int, kbit: int) -> None:
    """Give our action of an interface another rate, without a packet that passes unlimited."""
    table = attribute(_ACTION_TABLE, attribute(_FIRST, _action(interface, kbit)))
    link.request(_NEW_ACTION, _ACTIONS.pack(0) + table, CREATE | REPLACE)


def limits(link: RouteSocket) -> Mapping[int, int]:
    """Rates of our actions, in kbit/s, by index of the interface. Raises OSError."""
    wanted = attribute(_ACTION_TABLE, attribute(_FIRST, attribute(_KIND, b"police\0")))
    found: dict[int, int] = {}
    for _, body in link.dump(_GET_ACTION, _ACTIONS.pack(0) + wanted):
        for action in attributes(attributes(body[_ACTIONS.size :]).get(_ACTION_TABLE, b"")).values():
            parameters = attributes(attributes(action).get(_OPTIONS, b"")).get(_TBF, b"")
            if len(parameters) >= _POLICE.size:
                number, *_ = fields = _POLICE.unpack_from(parameters)
                if number & ~MOST_INDEX == OUR_ACTIONS:
                    found[number & MOST_INDEX] = fields[10] // _BYTES_PER_KBIT
    return found


def has_filters(link: RouteSocket, interface: int) -> bool:
    """Whether there are any where packets come in. Raises OSError."""
    with contextlib.closing(link.dump(_GET_FILTER, _MESSAGE.pack(0, interface, 0, INGRESS_HANDLE, 0))) as filters:
        return any(True for _ in filters)


def lacks_policing(error: OSError) -> bool:
    """Whether an error of ``police`` says that the kernel has none of what it takes."""
    return error.errno in {errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL}


def _action(interface: int, kbit: int) -> bytes:
    burst_ns = max(BURST_MS * 1_000_000, LARGEST_BYTES * 8 * 1_000_000 // kbit)
    ticks = min(burst_ns // _TICK_NS, 0xFFFF_FFFF)
    rate = (_CELL_LOG, _ETHERNET, 0, 0, 0, kbit * _BYTES_PER_KBIT)
    parameters = _POLICE.pack(OUR_ACTIONS | interface, _DROP, 0, ticks, LARGEST_BYTES, *rate, 0, 0, 0)
    options = attribute(_TBF, parameters) + attribute(_RATE_TABLE, bytes(_TABLE_BYTES))
    return attribute(_KIND, b"police\0") + attribute(_OPTIONS, options)
