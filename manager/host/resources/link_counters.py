"""Counters of all network interfaces in one answer of the kernel, by index: a name may change meanwhile.

Messages: rtnetlink(7), RTM_GETSTATS of linux/if_link.h.
"""

from __future__ import annotations

import struct

from manager.host.netlink import attributes, dump
from manager.model.resource_use import LinkCounters

_RTM_NEWSTATS, _RTM_GETSTATS = 92, 94
_MESSAGE = struct.Struct("=BxxxII")  # if_stats_msg: family, index, filter
_LINK_64 = 1  # IFLA_STATS_LINK_64
_FILTER = 1 << (_LINK_64 - 1)
_COUNTERS = struct.Struct("=8Q")  # of rtnl_link_stats64: packets, bytes, errors and drops, received and sent each


def read_links() -> dict[int, LinkCounters]:
    """The counters of each interface of this network namespace by its index. Raises OSError."""
    links: dict[int, LinkCounters] = {}
    for kind, body in dump(_RTM_GETSTATS, _MESSAGE.pack(0, 0, _FILTER)):
        if kind == _RTM_NEWSTATS and len(body) >= _MESSAGE.size:
            _, index, _ = _MESSAGE.unpack_from(body)
            counters = attributes(body[_MESSAGE.size :]).get(_LINK_64, b"")
            if len(counters) >= _COUNTERS.size:
                links[index] = _counters(counters)
    return links


def _counters(data: bytes) -> LinkCounters:
    received, sent, received_bytes, sent_bytes, _, _, received_lost, sent_lost = _COUNTERS.unpack_from(data)
    return LinkCounters(received_bytes, sent_bytes, received, sent, received_lost + sent_lost)
