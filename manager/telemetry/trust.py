"""Whose response times are believed. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def plain_address(text: str) -> str:
    """An IP address in one spelling: without a zone, IPv4 also where an IPv6 socket shows it as ``::ffff:…``.

    Raises ValueError for what is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


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
    """Networks such as ``10.0.0.0/8``, or single addresses. Raises ValueError naming the bad one."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def believed(address: str, addresses: frozenset[str], networks: tuple[Network, ...]) -> bool:
    """Whether a plain address is one of ``addresses`` or in one of ``networks``; none of loopback is."""
    ip = ipaddress.ip_address(address)
    return not ip.is_loopback and (address in addresses or any(ip in network for network in networks))
