"""What load to produce: target, protocol, schedule and limits; each number bounded in one table."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import urlsplit

from manager.load.load_errors import SpecError

RANGES: Mapping[str, tuple[float, float]] = {
    "port": (1, 65535),
    "rate_rps": (0, 100_000),
    "duration_s": (0, 604_800),
    "warmup_s": (0, 3600),
    "connections": (1, 10_000),
    "seed": (0, 2**32),
    "timeout_s": (0.01, 100),  # the histogram ends at 100 s
    "connect_timeout_s": (0.1, 600),
    "interval_s": (0.05, 3600),
    "pipeline": (1, 100),
    "keys": (1, 1_000_000),
    "zipf": (0, 5),
    "value_bytes": (1, 1_000_000),
    "set_share": (0, 1),
}
KEY_FIELD = "{key}"
"""What becomes the number of a key in the path of HTTP requests."""

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "memcached": 11211}
_HOST = re.compile(r"[0-9A-Za-z._:%-]+")
_PATH = re.compile(r"/[!-~]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[ -~\t]*")
_PHASE = re.compile(r"([0-9.]+)x([0-9.]+)")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_WEIGHTED = re.compile(r"([0-9]{1,9})x([0-9.]{1,9})")
_NUMBERS = ("port", "warmup_s", "connections", "seed", "timeout_s", "connect_timeout_s", "interval_s", "pipeline")
_ETC_SCALE, _ETC_SHAPE = 214.476, 0.348238


def check_range(field: str, value: float) -> None:
    """Raise SpecError unless ``value`` lies in the field's range, ends included; refuses NaN."""
    low, high = RANGES[field]
    if not low <= value <= high:
        raise SpecError(field, value, f"{low:,.10g} to {high:,.10g}")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of constant rate. A rate of 0 is a pause."""

    duration_s: float
    rate_rps: float

    def __post_init__(self) -> None:
        check_range("duration_s", self.duration_s)
        check_range("rate_rps", self.rate_rps)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Keep-alive GET requests for one path, with extra headers such as ``("Accept-Encoding", "gzip")``.

    ``{key}`` in the path becomes the number of a key, 0 to ``keys`` - 1; ``zipf`` as in MemcachedOptions.
    """

    path: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    keys: int = 1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise SpecError("path", self.path, "a path that begins with / and holds printable ASCII without blanks")
        for name, value in self.headers:
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise SpecError("headers", f"{name}: {value}", "a header such as 'Accept-Encoding: gzip'")
        check_range("keys", self.keys)
        check_range("zipf", self.zipf)
        if self.keys > 1 and KEY_FIELD not in self.path:
            raise SpecError("keys", self.keys, f"it with {KEY_FIELD} in the path, such as /{KEY_FIELD}.html")


@dataclass(frozen=True, slots=True)
class MemcachedOptions:
    """``get`` and ``set`` of randomly chosen keys, all of them stored before the load begins.

    ``set_share`` is the fraction of ``set`` among the requests. The key of rank r is requested in proportion to
    1 / r ** ``zipf``; at 0 all keys alike. ``value_bytes``: a size, or sizes as ``sizes_of`` reads them; a key's value
    always has the same.
    """

    keys: int = 1000
    value_bytes: int | str = 100
    set_share: float = 0.1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        check_range("keys", self.keys)
        sizes_of(self.value_bytes)
        check_range("set_share", self.set_share)
        check_range("zipf", self.zipf)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A whole run: ``warmup_s`` seconds at the first phase's rate, not counted, then the schedule.

    ``timeout_s`` runs from the intended send time. ``seed`` fixes arrivals, keys and values. ``pipeline``: so many
    requests may be outstanding on a connection. ``closed_loop``: each connection always has so many, the next is sent
    when one was answered, and the rates of the schedule do not count. Raises SpecError, here and in the parts, for a
    value out of range.
    """

    host: str
    port: int
    protocol: HttpOptions | MemcachedOptions
    schedule: tuple[Phase, ...]
    warmup_s: float = 0.0
    connections: int = 64
    seed: int = 1
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    interval_s: float = 1.0
    pipeline: int = 1
    closed_loop: bool = False

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise SpecError("host", self.host, "an ASCII name or a numeric address, IPv6 without brackets")
        for field in _NUMBERS:
            check_range(field, getattr(self, field))
        if self.closed_loop:
            if self.schedule_s <= 0:
                raise SpecError("duration_s", self.schedule_s, "a duration above 0")
        elif not any(phase.rate_rps * phase.duration_s > 0 for phase in self.schedule):
            text = ",".join(f"{phase.rate_rps:g}x{phase.duration_s:g}" for phase in self.schedule)
            raise SpecError("schedule", text, "at least one phase with a rate and a duration above 0")

    @property
    def schedule_s(self) -> float:
        """Length of the schedule, without the warm-up."""
        return sum(phase.duration_s for phase in self.schedule)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The schedule with the warm-up before it."""
        return (Phase(self.warmup_s, self.schedule[0].rate_rps), *self.schedule)

    @property
    def offered_rps(self) -> float | None:
        """The mean rate of the schedule, in requests per second; None in a closed loop."""
        if self.closed_loop:
            return None
        return sum(phase.rate_rps * phase.duration_s for phase in self.schedule) / self.schedule_s

    @property
    def address_text(self) -> str:
        """``host:port`` as a person writes it, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def target_text(self) -> str:
        """The target as a URL."""
        if isinstance(self.protocol, HttpOptions):
            return f"http://{self.address_text}{self.protocol.path}"
        return f"memcached://{self.address_text}"


def sizes_of(value_bytes: int | str) -> Callable[[float], int]:
    """The size in bytes of a value, by its place (0 to 1) among all values in order of size.

    ``value_bytes``: one size (``100``); a range, each size alike (``10-1000``); sizes with weights (``100x9,4096x1``);
    or ``etc``, the sizes of a general-purpose memcached at Facebook: a generalised Pareto distribution, cut at
    1,000,000 (Atikoglu et al., "Workload analysis of a large-scale key-value store", SIGMETRICS 2012, 5).
    Raises SpecError.
    """
    text = str(value_bytes)
    low, high = RANGES["value_bytes"]
    refusal = SpecError(
        "value_bytes", value_bytes, f"{low:,.10g} to {high:,.10g}, such as 100, 10-1000, 100x9,4096x1, or etc"
    )
    if text == "etc":
        return lambda place: int(min(max(_ETC_SCALE / _ETC_SHAPE * ((1 - place) ** -_ETC_SHAPE - 1), low), high))
    if between := _RANGE.fullmatch(text):
        least, most = int(between[1]), int(between[2])
        if not low <= least <= most <= high:
            raise refusal
        return lambda place: least + int(place * (most - least + 1))
    # A single size is a list of one.
    parts = [_WEIGHTED.fullmatch(part if "x" in part else f"{part}x1") for part in text.split(",")]
    try:
        pairs = sorted((int(part[1]), float(part[2])) for part in parts if part is not None)
    except ValueError:
        raise refusal from None
    total = sum(weight for _, weight in pairs)
    if len(pairs) < len(parts) or total <= 0 or not all(low <= size <= high for size, _ in pairs):
        raise refusal
    edges = [edge / total for edge in accumulate(weight for _, weight in pairs)]
    return lambda place: pairs[min(bisect_right(edges, place), len(pairs) - 1)][0]


def parse_schedule(text: str) -> tuple[Phase, ...]:
    """Read ``RATExSECONDS,RATExSECONDS,…`` such as ``500x60,1000x300``. Raises SpecError."""
    phases = []
    for part in text.split(","):
        match = _PHASE.fullmatch(part.strip())
        try:
            if match is None:
                raise ValueError
            phases.append(Phase(rate_rps=float(match[1]), duration_s=float(match[2])))
        except ValueError:
            raise SpecError("schedule", text, "RATExSECONDS, separated by commas, such as 500x60,1000x300") from None
        except SpecError as error:
            raise SpecError("schedule", text, f"for each {error.field}: {error.allowed}") from None
    return tuple(phases)


def parse_target(text: str) -> tuple[str, str, int, str]:
    """Read a URL into scheme (``http`` or ``memcached``), host, port, and the path with its query.

    Raises SpecError.
    """
    refusal = SpecError("target", text, "http://HOST[:PORT]/PATH or memcached://HOST[:PORT]")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refusal from None
    if parts.scheme not in DEFAULT_PORTS or not host or parts.username is not None or parts.fragment:
        raise refusal
    if parts.scheme == "memcached" and (parts.path.strip("/") or parts.query):
        raise refusal
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, DEFAULT_PORTS[parts.scheme] if port is None else port, path
