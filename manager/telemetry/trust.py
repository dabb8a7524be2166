"""Whose response times are trusted, and when to look for VMs again because of an unknown sender."""

from __future__ import annotations

import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FIRST_S, LONGEST_S = 5.0, 80.0
AGAIN_S = 60.0
"""For so long one sender that stays unknown causes no second look."""
MOST = 1024


@lru_cache(maxsize=4096)
def plain_address(text: str) -> str:
    """An IP address in one spelling: without a zone, IPv4 also where an IPv6 socket shows it as ``::ffff:…``.

    Raises ValueError for what is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def plain_addresses(texts: Iterable[str]) -> frozenset[str]:
    """Addresses in one spelling; what is no address is left out."""
    addresses: set[str] = set()
    for text in texts:
        try:
            addresses.add(plain_address(text))
        except ValueError:
            continue
    return frozenset(addresses)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as ``10.0.0.0/8``, or single addresses. Raises ValueError for a bad one."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def is_trusted(address: str, addresses: frozenset[str], networks: tuple[Network, ...]) -> bool:
    """Whether a plain address is one of ``addresses`` or in one of ``networks``; none of loopback is."""
    ip = ipaddress.ip_address(address)
    return not ip.is_loopback and (address in addresses or any(ip in network for network in networks))


def is_own_address(address: str) -> bool:
    """Whether an IP address is this machine's, of loopback or any other interface.

    To one of its own addresses Linux routes from that very address. Nothing is sent.
    """
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback:
        return True
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # unreachable, so it is elsewhere


class Strangers:
    """Bounds how often VMs are looked for: by sender, and more rarely the longer unknown senders go on."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._looked_s = float("-inf")
        self._gap_s = FIRST_S

    def should_look(self, address: str, now_s: float) -> bool:
        """Whether to look now, by a clock that only grows; then it counts as done."""
        if now_s - self._looked_s < self._gap_s or now_s - self._seen.get(address, float("-inf")) < AGAIN_S:
            return False
        self._gap_s = FIRST_S if now_s - self._looked_s > 2 * LONGEST_S else min(2 * self._gap_s, LONGEST_S)
        self._looked_s = now_s
        self._seen[address] = now_s
        self._seen.move_to_end(address)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)
        return True
