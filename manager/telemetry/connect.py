"""Connections to what sources ask: only to addresses that the agent's own settings allow.

A name is looked up here, the addresses are checked, and one of those is connected to: between check and connection no
name can come to mean another address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from manager.model.reach import Reach
from manager.telemetry.feed import SourceError, reason_of

KEEP_S = 30.0
"""For so long a name means what it did when it was looked up."""
_AGAIN_S = 1.0
_MOST_ADDRESSES = 8
LookUp = Callable[[str], Awaitable[list[str]]]


class Unreachable(SourceError):
    """A name means nothing, or only addresses that must not be connected to."""


async def look_up(host: str) -> list[str]:
    """The addresses of a host name, in the order in which they are to be tried. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in addresses]


class Names:
    """What the names that a source connects to mean. Belongs to one asyncio loop.

    There is one look-up at a time, also after those who waited for it timed out: each holds a thread.
    """

    def __init__(self, reach: Reach, look_up: LookUp = look_up) -> None:
        self._reach = reach
        self._look_up = look_up
        self._known: dict[str, tuple[float, list[str] | Unreachable]] = {}
        self._pending: asyncio.Task[None] | None = None

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a host, each of which may be connected to, at least one. Raises Unreachable."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            addresses = await self._meaning(host)
        else:
            addresses = [host]
        allowed = [address for address in addresses if not self._reach.refusal(address)]
        if not allowed:
            raise Unreachable(self._reach.refusal(addresses[0]))
        return allowed

    async def _meaning(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        while host not in self._known or self._known[host][0] <= loop.time():
            if self._pending is None:
                self._pending = loop.create_task(self._learn(host))
            await asyncio.shield(self._pending)
        meaning = self._known[host][1]
        if isinstance(meaning, Unreachable):
            raise Unreachable(*meaning.args)
        return meaning

    async def _learn(self, host: str) -> None:
        meaning: list[str] | Unreachable
        try:
            addresses = (await self._look_up(host))[:_MOST_ADDRESSES]
            meaning = list(dict.fromkeys(addresses)) or Unreachable("the host name has no address")
        except (OSError, UnicodeError) as error:
            meaning = Unreachable(reason_of(error))
        finally:
            self._pending = None
        kept_s = _AGAIN_S if isinstance(meaning, Unreachable) else KEEP_S
        self._known = {host: (asyncio.get_running_loop().time() + kept_s, meaning)}
