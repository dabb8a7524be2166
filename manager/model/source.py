"""Where response times of an application come from, and how each of these sources is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SourceKind(StrEnum):
    """Kinds of sources, as the REST interface names them."""

    NGINX_SYSLOG = "nginx_syslog"
    NGINX_FILE = "nginx_file"
    MEMCACHED_PROBE = "memcached_probe"
    HTTP_PROBE = "http_probe"
    PROMETHEUS = "prometheus"
    PUSH = "push"


class TimeField(StrEnum):
    """Which time of an NGINX log line counts: the whole request's, or the upstream servers'."""

    REQUEST = "request_time"
    UPSTREAM = "upstream_response_time"


@dataclass(frozen=True, slots=True)
class NginxSyslog:
    """Access log lines that NGINX sends to the agent by syslog over UDP.

    ``tag`` None takes lines of any tag; else only those whose syslog tag it is.
    """

    name: str
    tag: str | None = None
    time: TimeField = TimeField.REQUEST
    host: str | None = None
    kind: SourceKind = SourceKind.NGINX_SYSLOG


@dataclass(frozen=True, slots=True)
class NginxFile:
    """An access log on the agent's host, followed through rotation and truncation. ``path`` is absolute."""

    name: str
    path: str
    time: TimeField = TimeField.REQUEST
    host: str | None = None
    kind: SourceKind = SourceKind.NGINX_FILE


@dataclass(frozen=True, slots=True)
class MemcachedProbe:
    """Open-loop requests for a key that need not exist, and the server's own request counters."""

    name: str
    address: str
    port: int = 11211
    rate_rps: float = 10.0
    timeout_s: float = 5.0
    host: str | None = None
    kind: SourceKind = SourceKind.MEMCACHED_PROBE


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Open-loop GET requests for a URL; answers with a status of 500 and more, and none, are errors.

    ``credential`` names a file on the agent's host with what requests carry, see ``manager.telemetry.credentials``.
    """

    name: str
    url: str
    rate_rps: float = 5.0
    timeout_s: float = 10.0
    host: str | None = None
    credential: str | None = None
    kind: SourceKind = SourceKind.HTTP_PROBE


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """A query on the operator's Prometheus server (``url``), every ``every_s`` seconds.

    With ``percentile`` None the ``query`` answers cumulative ``_bucket`` counters by ``le``, the bounds in seconds;
    else it answers one number, that percentile in seconds, and ``rate_query``, if given, requests per second.
    ``credential`` is as of ``HttpProbe``.
    """

    name: str
    url: str
    query: str
    percentile: float | None = None
    rate_query: str | None = None
    every_s: float = 5.0
    timeout_s: float = 5.0
    host: str | None = None
    credential: str | None = None
    kind: SourceKind = SourceKind.PROMETHEUS


@dataclass(frozen=True, slots=True)
class Push:
    """Times that load generators, proxies or the application post to the agent.

    Believed from the application's VMs, from the agent's own machine, and from ``allow``: networks such as
    ``10.0.0.0/8``.
    """

    name: str
    allow: tuple[str, ...] = ()
    host: str | None = None
    kind: SourceKind = SourceKind.PUSH


Source = NginxSyslog | NginxFile | MemcachedProbe | HttpProbe | PrometheusQuery | Push
"""``name`` is unique in an application. ``host`` None: log and push sources run on every host that has a VM of the
application, the others on one of these."""

ON_EVERY_HOST = frozenset({SourceKind.NGINX_SYSLOG, SourceKind.NGINX_FILE, SourceKind.PUSH})


class SourceState(StrEnum):
    """Health of a source. ``silent``: it works, but nothing has come for a while; ``failing``: ``detail`` says why."""

    STARTING = "starting"
    OK = "ok"
    SILENT = "silent"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is on one host, with counts since it was started there.

    ``accepted`` response times; ``malformed`` lines or bodies; ``refused``: from addresses that are not believed;
    ``late``: older than the slots that are kept; ``errors``: requests that failed or were not answered in time.
    """

    application: str
    source: str
    kind: SourceKind
    state: SourceState
    last_sample_s: float | None = None
    accepted: int = 0
    malformed: int = 0
    refused: int = 0
    late: int = 0
    errors: int = 0
    detail: str = ""
