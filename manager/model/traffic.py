"""What is seen of the services in VMs from the packets at their interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple, Protocol

from pydantic import Field

from manager.model.fields import CLOSED, EpochS, Name, SafeText, Uuid
from manager.model.histogram import Histogram

MOST_SERVICES = 1000
"""Services of a host: no more are reported."""


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


ServicePlace = tuple[int, int]
"""Index of a network interface, and port behind it."""


@dataclass(frozen=True, slots=True)
class JudgedService:
    """A service of an application, of whose answers the SLA allows a share to be late, 0 .. 1: after ``late_s``."""

    application: str
    place: ServicePlace
    allowed: float
    late_s: float


class AnswerCount(NamedTuple):
    """Of a service, since it was first seen. All of it grows.

    ``asked``: requests that want an answer. ``ended``: those that got one, or whose connection ended. ``answers`` are
    those answers that were timed, and ``late`` those of them that came late.
    """

    asked: int
    ended: int
    answers: int
    late: int


class AnswersTable(Protocol):
    """Where the kernel counts answers, for as long as this is held."""

    @property
    def descriptor(self) -> int:
        """Of the kernel's table, which is another one's once this is not held any more."""


@dataclass(frozen=True, slots=True)
class Answered:
    """How much each of these services was asked and has answered, in order; in ``table``, where the kernel counts."""

    services: tuple[JudgedService, ...] = ()
    counts: Sequence[AnswerCount] = ()
    table: AnswersTable | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class VmInterface:
    """A network interface of a running VM. ``index`` None: its packets do not pass this kernel, ``why`` says so."""

    vm: str
    name: str
    index: int | None
    why: str = ""


_Part = Annotated[float, Field(ge=0, le=1)]
_TimeMs = Annotated[float | None, Field(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True)
class SeenService:
    """A port of a running domain that answers requests, with what passed in the last ``window_s`` seconds.

    Percentiles are of the response times in milliseconds; None where none was timed. ``quiet_p95_ms``: the lowest p95
    of half a minute so far; None where none had enough response times. ``since_s`` is when its first
    request was seen, in seconds since the epoch.
    """

    libvirt_uuid: Uuid
    port: Annotated[int, Field(ge=1, le=65535)]
    protocol: Annotated[Name, Field(description="of most requests, such as http, memcached, tls or other")]
    protocol_share: Annotated[_Part, Field(description="fraction of the requests that are of this protocol")]
    rate_rps: Annotated[float, Field(ge=0, le=1e12, description="requests per second")]
    p50_ms: _TimeMs
    p95_ms: _TimeMs
    p99_ms: _TimeMs
    error_share: Annotated[_Part, Field(description="fraction of the requests that failed or were not answered")]
    since_s: Annotated[EpochS, Field(alias="since", description="when its first request was seen")]
    window_s: Annotated[float, Field(gt=0, le=1e6, description="seconds that all this is measured over")]
    quiet_p95_ms: Annotated[
        float | None,
        Field(ge=0, le=1e9, description="lowest p95 of half a minute with 100 response times, since the agent started"),
    ] = None
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class HostServices:
    """The services in the running domains of a host, by domain and port. ``problem``: why not all can be seen."""

    services: Annotated[tuple[SeenService, ...], Field(max_length=MOST_SERVICES)] = ()
    problem: Annotated[SafeText, Field(description="why services cannot be seen, or not all; empty: they can")] = ""
    simulated: Annotated[bool, Field(description="figures of a simulated host")] = False
    __pydantic_config__: ClassVar = CLOSED
