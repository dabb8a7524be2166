"""Receiving NGINX access log lines by syslog over UDP: one socket for all sources of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from manager.errors import SettingsError
from manager.model.source import NginxSyslog
from manager.rate_limit import RateLimit
from manager.telemetry.feed import Feed
from manager.telemetry.nginx import MalformedLine, parse_syslog, take_line
from manager.telemetry.trust import plain_address

RECEIVE_BUFFER = 8 * 1024 * 1024
_MAX_PACKET = 65536
_PACKETS_A_TURN = 256
_IDLE_SHARE = 2.0
"""After a full turn nothing is read for so many times as long as it took: a flood takes a third of a core at most, and
what comes meanwhile waits in the kernel's buffer, or is dropped there."""
_DROPS_EVERY_S = 1.0
# Not in Python's socket module: asm-generic/socket.h and linux/sock_diag.h (SK_MEMINFO_DROPS is the last of them).
_SO_MEMINFO = 55
_SO_RCVBUFFORCE = 33
_MEMINFO = struct.Struct("=9I")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyslogRoute:
    """A source that takes lines, and the addresses of its application's VMs."""

    spec: NginxSyslog
    feed: Feed
    addresses: frozenset[str]

    def takes(self, tag: str) -> bool:
        """Whether lines of this tag are meant for it."""
        return self.spec.tag is None or self.spec.tag == tag


@dataclass(frozen=True, slots=True)
class Routes:
    """Where lines go: ``by_address`` holds for each address of a VM the sources that it may send to."""

    every: tuple[SyslogRoute, ...] = ()
    by_address: Mapping[str, tuple[SyslogRoute, ...]] = field(default_factory=dict)

    @staticmethod
    def of(routes: Sequence[SyslogRoute]) -> Routes:
        """The routes, indexed."""
        by_address: dict[str, tuple[SyslogRoute, ...]] = {}
        for route in routes:
            for address in route.addresses:
                by_address[address] = (*by_address.get(address, ()), route)
        return Routes(tuple(routes), by_address)


class SyslogReceiver:
    """Counts the lines of packets where they belong, if they come from where they may. Does no I/O."""

    def __init__(self, on_unknown: Callable[[str], None], samples: RateLimit | None = None) -> None:
        """``on_unknown`` is called for packets of unknown addresses; ``samples`` bounds the packets of each address."""
        self.routes = Routes()
        self._on_unknown = on_unknown
        self._samples = samples or RateLimit(0)

    def packet(self, data: bytes, sender: str) -> None:
        """Take a packet from an IP address."""
        routes = self.routes
        address = plain_address(sender)
        senders = routes.by_address.get(address)
        if self._samples.ask(address):  # before it costs any more
            for route in senders or ():
                route.feed.flooded(self._samples.per_s)
            return
        try:
            tag, message = parse_syslog(data)
        except MalformedLine as error:
            for route in senders or ():
                route.feed.malformed(str(error))
            if senders:
                return
            tag, message = "", ""
        if senders is None:
            self._on_unknown(address)
            for route in routes.every:
                if not tag or route.takes(tag):
                    route.feed.refused(address)
            return
        takers = [route for route in senders if route.takes(tag)]
        for route in takers:
            take_line(route.feed, message, route.spec.time)
        if not takers:
            for route in senders:
                route.feed.malformed("a line whose tag is that of no source of the application")


def open_socket(host: str, port: int) -> socket.socket:
    """A UDP socket with a large receive buffer. Raises SettingsError for no address, OSError when it cannot listen."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        raise SettingsError(f"setting syslog_listen_host = {host!r} is refused: use an IP address") from None
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)
        except PermissionError:  # without CAP_NET_ADMIN up to net.core.rmem_max
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        opened.bind((host, port))
    except OSError:
        opened.close()
        raise
    return opened


def dropped(opened: socket.socket) -> int:
    """How many packets the kernel dropped, as the receive buffer was full; 0 where the kernel does not say."""
    try:
        return int(_MEMINFO.unpack(opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1])
    except (OSError, struct.error):  # since Linux 4.12
        return 0


class SyslogListener:
    """The socket, read in an asyncio loop while there are sources for it."""

    def __init__(self, host: str, port: int, receiver: SyslogReceiver) -> None:
        """Port 0 of the setting means off, and makes all sources ``failing``."""
        self._host = host
        self._port = port
        self._receiver = receiver
        self._resting: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Receive until cancelled. Raises OSError, SettingsError when it cannot listen."""
        if not self._port:
            raise SettingsError("setting syslog_listen_port is 0, so no syslog is received")
        opened = open_socket(self._host, self._port)
        loop = asyncio.get_running_loop()
        log.info("receiving syslog at %s port %d", self._host, self._port)
        try:
            loop.add_reader(opened, self._read, opened)
            reported = 0
            while True:
                for route in self._receiver.routes.every:
                    route.feed.working()
                    route.feed.explain(f"{reported} packets dropped as they came too fast" if reported else "")
                await asyncio.sleep(_DROPS_EVERY_S)
                reported = dropped(opened)
        finally:
            if self._resting is not None:
                self._resting.cancel()
            loop.remove_reader(opened)
            opened.close()

    def failing(self, reason: str) -> None:
        """Mark all sources as failing: nothing is received."""
        for route in self._receiver.routes.every:
            route.feed.failing(f"no syslog is received at {self._host} port {self._port}: {reason}")

    def _read(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PACKETS_A_TURN):
                data, sender = opened.recvfrom(_MAX_PACKET)
                self._receiver.packet(data, sender[0])
            loop.remove_reader(opened)
            idle_s = _IDLE_SHARE * (loop.time() - begun_s)
            self._resting = loop.call_later(idle_s, loop.add_reader, opened, self._read, opened)
