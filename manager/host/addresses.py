"""Which IP addresses are a domain's: what libvirt leased to it, and what the neighbour table says of its interfaces.

A guest decides what the neighbour table says: it can answer for any number of addresses, and for those of others. So
each domain has a bounded number of them, which age, and what one domain has is not taken by another's claim.

libvirt reads the kernel's neighbour table as well, but version 9.0 refuses the answer of current kernels ("wrong nlmsg
len"), and all versions know IPv4 only. Messages: rtnetlink(7), linux/neighbour.h.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from manager.host.netlink import attributes, dump

MOST_ADDRESSES = 64
"""So many leased addresses of a domain are known, and so many that it claims besides."""
AGE_S = 3600.0
"""For so long an address that a domain claimed stays its own without being seen again: the neighbour table forgets
those that it was not asked for a while."""
_MOST_CONTESTED = 16

_RTM_NEWNEIGH, _RTM_GETNEIGH = 28, 30
_NDA_DST, _NDA_LLADDR = 1, 2
_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # NUD_REACHABLE, _STALE, _DELAY, _PROBE, _PERMANENT

_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, interface, state, flags, type
MOST_ENTRIES = 16_384
"""More than that is not read: the kernel keeps 1,024 of IPv4 and as many of IPv6 by default (gc_thresh3)."""
MOST_OF_ONE = 256
"""So many addresses of one hardware address are returned."""


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The addresses that libvirt leased to a domain, and its interfaces' hardware addresses; None: it did not say.

    ``taps``: the indexes of those interfaces whose packets pass this kernel.
    """

    leased: frozenset[str] | None = frozenset()
    hardware: frozenset[str] | None = frozenset()
    taps: frozenset[int] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Contest:
    """``claimant`` shows an address of another domain's, ``owner``, which keeps it; None: both began at once."""

    address: str
    claimant: str
    owner: str | None


@dataclass(slots=True)
class _Page:
    """``claimed``: when each address was seen last, in order of when it was seen first."""

    leased: frozenset[str] = frozenset()
    claimed: dict[str, float] = field(default_factory=dict)


class AddressBook:
    """The addresses of running domains by UUID. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds that only grow."""
        self._clock = clock
        self._pages: dict[str, _Page] = {}
        self.contested: tuple[Contest, ...] = ()
        """What was claimed of others' at the last update, at most so much of it as one reads."""

    @property
    def addresses(self) -> Mapping[str, frozenset[str]]:
        """By UUID, at most twice ``MOST_ADDRESSES`` each; one address is never two domains'."""
        return {uuid: page.leased | page.claimed.keys() for uuid, page in self._pages.items()}

    def update(
        self, running: Collection[str], seen: Mapping[str, Interfaces], neighbours: Mapping[str, frozenset[str]]
    ) -> None:
        """Take over what was looked up; ``neighbours`` are IP addresses by hardware address.

        Domains neither ``running`` nor ``seen`` ended; one that is only ``seen`` began.
        """
        now_s = self._clock()
        pages = {uuid: self._pages.get(uuid, _Page()) for uuid in running}
        pages |= {uuid: _Page() for uuid in seen if uuid not in pages}
        self._pages = pages
        for uuid, interfaces in seen.items():
            if interfaces.leased is not None:
                pages[uuid].leased = frozenset(sorted(interfaces.leased)[:MOST_ADDRESSES])
        leased = {address: uuid for uuid, page in pages.items() for address in page.leased}
        for uuid, page in pages.items():
            page.claimed = {
                address: seen_s
                for address, seen_s in page.claimed.items()
                if now_s - seen_s < AGE_S and leased.get(address, uuid) == uuid
            }
        owners = {address: uuid for uuid, page in pages.items() for address in page.claimed} | leased
        self.contested = tuple(sorted(self._take(_claims(seen, neighbours), owners, now_s), key=str)[:_MOST_CONTESTED])

    def _take(self, claims: Mapping[str, set[str]], owners: Mapping[str, str], now_s: float) -> Iterator[Contest]:
        """Give each claimed address to the domain that has it, or to the only one that claims it."""
        for address, claimants in claims.items():
            owner = owners.get(address)
            if owner is None and len(claimants) == 1:
                owner = next(iter(claimants))
            yield from (Contest(address, claimant, owner) for claimant in claimants if claimant != owner)
            if owner in claimants:
                claimed = self._pages[owner].claimed
                if address in claimed or len(claimed) < MOST_ADDRESSES:
                    claimed[address] = now_s


def _claims(seen: Mapping[str, Interfaces], neighbours: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The domains that claim each address."""
    claims: dict[str, set[str]] = {}
    for uuid, interfaces in seen.items():
        for hardware in interfaces.hardware or ():
            for address in sorted(neighbours.get(hardware, ())):
                claims.setdefault(address, set()).add(uuid)
    return claims


def read_neighbours() -> Mapping[str, frozenset[str]]:
    """IP addresses by hardware address, such as ``52:54:00:12:34:56``; of very many, some. Raises OSError."""
    by_hardware: dict[str, set[str]] = {}
    with contextlib.closing(dump(_RTM_GETNEIGH, _NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, 0, 0))) as messages:
        entries = (entry for kind, body in messages if kind == _RTM_NEWNEIGH for entry in _neighbour(body))
        for hardware, address in islice(entries, MOST_ENTRIES):
            addresses = by_hardware.setdefault(hardware, set())
            if len(addresses) < MOST_OF_ONE:
                addresses.add(address)
    return {hardware: frozenset(addresses) for hardware, addresses in by_hardware.items()}


def _neighbour(body: bytes) -> Iterator[tuple[str, str]]:
    """Hardware and IP address, unless the entry is of no use, as those that did not answer."""
    family, _, state, *_ = _NEIGHBOUR.unpack_from(body)
    values = attributes(body[_NEIGHBOUR.size :])
    if family in {socket.AF_INET, socket.AF_INET6} and state & _USABLE and {_NDA_DST, _NDA_LLADDR} <= values.keys():
        yield values[_NDA_LLADDR].hex(":"), str(ipaddress.ip_address(values[_NDA_DST]))
