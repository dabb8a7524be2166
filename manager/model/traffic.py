"""What is seen of the services in VMs from the packets at their interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from manager.model.histogram import Histogram


class TapProtocol(StrEnum):
    """Of requests, as recognised by their first bytes; the values are the names of the program's counters."""

    HTTP = "http"
    HTTP2 = "http2"
    MEMCACHED = "memcached"
    MEMCACHED_BINARY = "memcached_binary"
    TLS = "tls"
    OTHER = "other"
    """Not recognised: client and server are taken to take turns."""


class TapWay(StrEnum):
    """How a program sees the packets of a tap."""

    TCX = "TCX link"
    PACKET_SOCKET = "packet socket"


@dataclass(frozen=True, slots=True)
class ServiceTraffic:
    """What passed of a service, a port behind a network interface.

    ``requests`` by protocol. ``answers`` were timed: ``times``; ``untimed`` requests are those whose answers cannot be
    matched, ``unanswered`` those whose connection ended before an answer. ``errors``: answers that say that the
    server failed. ``connections``: those that were accepted; ``handshakes`` how long the guest's kernel took for that.
    All of these grow. ``waiting``: how long those requests wait that have no answer yet, now.
    """

    interface: int
    port: int
    requests: Mapping[TapProtocol, int]
    connections: int
    answers: int
    untimed: int
    unanswered: int
    errors: int
    times: Histogram
    handshakes: Histogram = field(default_factory=Histogram)
    waiting: Histogram = field(default_factory=Histogram)

    @property
    def protocol(self) -> tuple[TapProtocol, float]:
        """What most requests are, and the share of those, 0 .. 1; OTHER and 0 without requests."""
        total = sum(self.requests.values())
        most = max(TapProtocol, key=lambda protocol: self.requests.get(protocol, 0)) if total else TapProtocol.OTHER
        return most, self.requests.get(most, 0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class VmInterface:
    """A network interface of a running VM. ``index`` None: its packets do not pass this kernel, ``why`` says so."""

    vm: str
    name: str
    index: int | None
    why: str = ""
