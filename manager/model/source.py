"""Where response times of an application come from, and how each of these sources is."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, TypeAdapter

from manager.model.fields import CLOSED, Count, EpochS, Name, Percentile, SafeText
from manager.model.url import secret_of


class SourceKind(StrEnum):
    """Kinds of sources, as the REST interface names them."""

    NGINX_SYSLOG = "nginx_syslog"
    NGINX_FILE = "nginx_file"
    MEMCACHED_PROBE = "memcached_probe"
    HTTP_PROBE = "http_probe"
    PROMETHEUS = "prometheus"
    PUSH = "push"
    TAP = "tap"


class TimeField(StrEnum):
    """Which time of an NGINX log line counts: the whole request's, or the upstream servers'."""

    REQUEST = "request_time"
    UPSTREAM = "upstream_response_time"


_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def _address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if not _HOST_NAME.fullmatch(text) or text.replace(".", "").isdecimal():
            raise ValueError("neither an IP address nor a host name") from None
    return text


def _network(text: str) -> str:
    ipaddress.ip_network(text)  # its ValueError says what is wrong
    return text


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not text.isascii() or not text.isprintable():
        raise ValueError("should begin with http:// or https:// and a host")
    _address(parts.hostname)
    if parts.port == 0:  # the property raises ValueError beyond 65535
        raise ValueError("a port is at least 1")
    if secret := secret_of(text):
        raise ValueError(secret)
    return text


def _base_url(text: str) -> str:
    if "?" in text or "#" in text:  # the path of Prometheus' interface is put behind it
        raise ValueError("has a query or a fragment; allowed: http(s)://HOST:PORT and a path")
    return text


Address = Annotated[
    str, Field(min_length=1, max_length=253, description="an IP address or a host name"), AfterValidator(_address)
]
Network = Annotated[
    str,
    Field(min_length=1, max_length=50, description="a network such as 10.0.0.0/8, or an address"),
    AfterValidator(_network),
]
Url = Annotated[
    str,
    Field(min_length=8, max_length=2000, description="an http:// or https:// URL with a host"),
    AfterValidator(_url),
]
Credential = Annotated[
    Name | None, Field(description="file on the agent's host with what requests carry; null: they carry nothing")
]
Rate = Annotated[float, Field(ge=0.1, le=1000, description="requests per second that are made")]
Timeout = Annotated[float, Field(ge=0.05, le=60, description="seconds after which no answer is an error")]
Query = Annotated[
    str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00]*$", description="PromQL, 1 to 2000 characters")
]


@dataclass(frozen=True, slots=True)
class _Source:
    """What all sources have. ``name`` is unique in an application."""

    name: Name
    host: Annotated[
        Name | None,
        Field(description="host whose agent runs it; null: logs, posts and taps on all with a VM, others on the first"),
    ] = field(default=None, kw_only=True)
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class NginxSyslog(_Source):
    """Access log lines that NGINX sends to the agent by syslog over UDP."""

    tag: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,32}$", description="1 to 32 letters, digits, underscores")]
        | None,
        Field(description="only lines with this syslog tag; null: all"),
    ] = None
    time: TimeField = TimeField.REQUEST
    kind: Annotated[Literal[SourceKind.NGINX_SYSLOG], Field(alias="type")] = SourceKind.NGINX_SYSLOG


@dataclass(frozen=True, slots=True)
class NginxFile(_Source):
    """An access log on the agent's host, followed through rotation and truncation."""

    path: Annotated[str, Field(max_length=1000, pattern=r"^/[^\x00]*$", description="an absolute path")]
    time: TimeField = TimeField.REQUEST
    kind: Annotated[Literal[SourceKind.NGINX_FILE], Field(alias="type")] = SourceKind.NGINX_FILE


@dataclass(frozen=True, slots=True)
class MemcachedProbe(_Source):
    """Open-loop requests for a key that need not exist, and the server's own request counters."""

    address: Address
    port: Annotated[int, Field(ge=1, le=65535)] = 11211
    rate_rps: Rate = 10.0
    timeout_s: Timeout = 5.0
    kind: Annotated[Literal[SourceKind.MEMCACHED_PROBE], Field(alias="type")] = SourceKind.MEMCACHED_PROBE


@dataclass(frozen=True, slots=True)
class HttpProbe(_Source):
    """Open-loop GET requests for a URL; a status of 500 and more, and no answer, are errors."""

    url: Url
    rate_rps: Rate = 5.0
    timeout_s: Timeout = 10.0
    credential: Credential = None
    kind: Annotated[Literal[SourceKind.HTTP_PROBE], Field(alias="type")] = SourceKind.HTTP_PROBE


@dataclass(frozen=True, slots=True)
class PrometheusQuery(_Source):
    """A query on a Prometheus server for cumulative buckets by `le`, or for a `percentile`; both in seconds."""

    url: Annotated[Url, AfterValidator(_base_url)]
    query: Query
    percentile: Annotated[Percentile | None, Field(description="what the query answers; null: buckets")] = None
    rate_query: Annotated[Query | None, Field(description="answers requests per second")] = None
    every_s: Annotated[float, Field(ge=1, le=300, description="seconds between queries")] = 5.0
    timeout_s: Timeout = 5.0
    credential: Credential = None
    kind: Annotated[Literal[SourceKind.PROMETHEUS], Field(alias="type")] = SourceKind.PROMETHEUS


@dataclass(frozen=True, slots=True)
class Push(_Source):
    """Times posted to the agent, by the application's VMs, the agent's own machine, and the networks in `allow`."""

    allow: Annotated[tuple[Network, ...], Field(max_length=100)] = ()
    kind: Annotated[Literal[SourceKind.PUSH], Field(alias="type")] = SourceKind.PUSH


@dataclass(frozen=True, slots=True)
class Tap(_Source):
    """A port of the application's VMs, seen by the packets at their taps."""

    port: Annotated[
        Annotated[int, Field(ge=1, le=65535)] | None,
        Field(description="where the VMs serve; null: the port of the first tier's VMs with the most requests"),
    ] = None
    kind: Annotated[Literal[SourceKind.TAP], Field(alias="type")] = SourceKind.TAP


UNREGISTERED = Tap("taps")
"""The source of applications that have none."""


Source = Annotated[
    NginxSyslog | NginxFile | MemcachedProbe | HttpProbe | PrometheusQuery | Push | Tap, Field(discriminator="kind")
]
SOURCES: TypeAdapter[tuple[Source, ...]] = TypeAdapter(tuple[Source, ...])
"""Sources as JSON and as a database keeps them."""

ON_EVERY_HOST = frozenset({SourceKind.NGINX_SYSLOG, SourceKind.NGINX_FILE, SourceKind.PUSH, SourceKind.TAP})


class SourceState(StrEnum):
    """Health of a source. ``silent``: it works, but nothing has come for a while; ``failing``: ``detail`` says why."""

    STARTING = "starting"
    OK = "ok"
    SILENT = "silent"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is on one host, with counts since it was started there."""

    application: Name
    source: Name
    kind: Annotated[SourceKind, Field(alias="type")]
    state: SourceState
    last_sample_s: Annotated[EpochS | None, Field(alias="last_sample_at")] = None
    accepted: Annotated[Count, Field(description="response times")] = 0
    malformed: Annotated[Count, Field(description="lines or bodies that could not be read")] = 0
    refused: Annotated[Count, Field(description="from addresses that are not believed")] = 0
    late: Annotated[Count, Field(description="older than the windows that are kept open")] = 0
    errors: Annotated[Count, Field(description="requests that failed, or were not answered in time")] = 0
    detail: SafeText = ""
    __pydantic_config__: ClassVar = CLOSED
