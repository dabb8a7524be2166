"""Which addresses the agent may connect to for a source: the setting probe_networks, read and applied."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNICAST, LOOPBACK = "unicast", "loopback"
"""Words of the setting: all unicast addresses but those below, and loopback."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


_LOOPBACK = _networks("127.0.0.0/8", "::1/128")
# By IANA's registries of special-purpose addresses, and the metadata services of clouds that are not link-local.
_NEVER = _networks("0.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32", "::/128", "ff00::/8")
_RESERVED = _networks("240.0.0.0/4")
_LINK_LOCAL = _networks("169.254.0.0/16", "fe80::/10")
_METADATA = _networks(
    "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128"
)
_SPECIAL = (
    (_LOOPBACK, "loopback"),
    (_LINK_LOCAL, "link-local"),
    (_METADATA, "a cloud's metadata service"),
    (_RESERVED, "reserved"),
)
_NAT64 = _networks("64:ff9b::/96", "64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


@dataclass(frozen=True, slots=True)
class Reach:
    """``networks`` are those that were said. ``unicast``: and all that is not special."""

    unicast: bool = True
    networks: tuple[Network, ...] = ()

    def refusal(self, text: str) -> str:
        """Why this IP address must not be connected to, empty where it may. A zone (``%eth0``) changes nothing.

        What an IPv6 address stands for counts as well: mapped IPv4, 6to4, Teredo, NAT64, ISATAP.
        """
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return "it is no IP address"
        return next(filter(None, map(self._refusal, _meant(address))), "")

    def _refusal(self, address: Address) -> str:
        if any(address in network for network in _NEVER):
            return f"{address} is no address of one machine"
        for special, name in _SPECIAL:
            inside = next((network for network in special if address in network), None)
            if inside is not None:
                # A wide network, such as 0.0.0.0/0, does not mean these.
                said = any(address in one and _within(one, inside) for one in self.networks)
                return "" if said else f"{address} is {name}, which is not said in {SETTING}"
        if self.unicast or any(address in network for network in self.networks):
            return ""
        return f"{address} is not in {SETTING}"


SETTING = "this agent's setting probe_networks"
DEFAULT_REACH = Reach()


def parse_reach(text: str) -> Reach:
    """Read a list with commas of ``unicast``, ``loopback`` and networks. Raises ValueError naming the bad one."""
    unicast = False
    networks: list[Network] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        if part == UNICAST:
            unicast = True
        elif part == LOOPBACK:
            networks += _LOOPBACK
        else:
            try:
                networks.append(ipaddress.ip_network(part if "%" not in part else ""))
            except ValueError:
                what = f"{UNICAST}, {LOOPBACK}, addresses and networks such as 10.0.0.0/8, without bits of a host"
                raise ValueError(f"{part!r} is none of {what}") from None
    return Reach(unicast, tuple(networks))


def _within(network: Network, outer: Network) -> bool:
    return (
        network.version == outer.version and network.prefixlen >= outer.prefixlen and network.network_address in outer
    )


def _meant(address: Address) -> Iterator[Address]:
    """The addresses that a connection to this one may end at."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if any(address in network for network in _NAT64) or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield last
    if address in _NAT64[1]:  # RFC 6052, section 2.2: a prefix of 48 bits has the address around bits 64 to 71
        yield ipaddress.IPv4Address((int(address) >> 64 & 0xFFFF) << 16 | int(address) >> 40 & 0xFFFF)
    if address in _COMPATIBLE and int(address) > 1:
        yield last
