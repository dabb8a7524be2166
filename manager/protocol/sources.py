"""Shapes of sources of response times, and of how they are."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from manager.model.fields import Count, Moment, Name, Percentile, Schema, Text
from manager.model.source import SourceKind, SourceState, TimeField
from manager.model.url import secret_of

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


class _SourceBody(Schema):
    """What all sources have."""

    name: Name
    host: Name | None = Field(
        default=None, description="host whose agent runs it; null: logs and posts on all with a VM, others on the first"
    )


class NginxSyslogBody(_SourceBody):
    """Access log lines that NGINX sends to the agent by syslog over UDP."""

    type: Literal["nginx_syslog"]
    tag: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9_]{1,32}$", description="1 to 32 letters, digits, underscores"),
        ]
        | None
    ) = Field(default=None, description="only lines with this syslog tag; null: all")
    time: TimeField = TimeField.REQUEST


class NginxFileBody(_SourceBody):
    """An access log on the agent's host, followed through rotation and truncation."""

    type: Literal["nginx_file"]
    path: Annotated[str, Field(max_length=1000, pattern=r"^/[^\x00]*$", description="an absolute path")]
    time: TimeField = TimeField.REQUEST


class MemcachedProbeBody(_SourceBody):
    """Requests to a memcached at a steady rate, and its own request counters."""

    type: Literal["memcached_probe"]
    address: Address
    port: Annotated[int, Field(ge=1, le=65535)] = 11211
    rate_rps: Rate = 10.0
    timeout_s: Timeout = 5.0


class HttpProbeBody(_SourceBody):
    """GET requests for a URL at a steady rate; a status of 500 and more is an error."""

    type: Literal["http_probe"]
    url: Url
    rate_rps: Rate = 5.0
    timeout_s: Timeout = 10.0
    credential: Credential = None


class PrometheusBody(_SourceBody):
    """A query on a Prometheus server for cumulative buckets by `le`, or for a `percentile`; both in seconds."""

    type: Literal["prometheus"]
    url: Url
    query: Query
    percentile: Percentile | None = Field(default=None, description="what the query answers; null: buckets")
    rate_query: Query | None = Field(default=None, description="answers requests per second")
    every_s: Annotated[float, Field(ge=1, le=300, description="seconds between queries")] = 5.0
    timeout_s: Timeout = 5.0
    credential: Credential = None


class PushBody(_SourceBody):
    """Times posted to the agent, by the application's VMs, the agent's own machine, and the networks in `allow`."""

    type: Literal["push"]
    allow: list[Network] = Field(default_factory=list, max_length=100)


SourceBody = Annotated[
    NginxSyslogBody | NginxFileBody | MemcachedProbeBody | HttpProbeBody | PrometheusBody | PushBody,
    Field(discriminator="type"),
]


class SourceStatusBody(Schema):
    """How a source is on one host, with counts since it was started there."""

    application: Name
    source: Name
    type: SourceKind
    state: SourceState
    last_sample_at: Moment | None = None
    accepted: Count = Field(default=0, description="response times")
    malformed: Count = Field(default=0, description="lines or bodies that could not be read")
    refused: Count = Field(default=0, description="from addresses that are not believed")
    late: Count = Field(default=0, description="older than the windows that are kept open")
    errors: Count = Field(default=0, description="requests that failed, or were not answered in time")
    detail: Text = ""
