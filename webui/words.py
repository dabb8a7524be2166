"""How numbers, times, states, and the fields of forms are written on pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from manager.model.knob_text import knob_name
from manager.model.numbers import NOTHING, digits, duration, fixed, milliseconds
from manager.model.vcpu_wait import MATERIAL, wait_share
from manager.plain import plain_lines

_MARKS = {"met": "✓", "at_risk": "▲", "violated": "✗", "no_data": "○", "info": "●"}


@dataclass(frozen=True, slots=True)
class Badge:
    """A state as pages show it, readable without colour. ``colour``: a class of style.css, that of an SLA's state."""

    colour: str
    word: str

    @property
    def mark(self) -> str:
        """The sign before the word."""
        return _MARKS[self.colour]


BADGES: Mapping[str, Mapping[str, Badge]] = {
    "sla": {
        "violated": Badge("violated", "violated"),
        "at_risk": Badge("at_risk", "at risk"),
        "no_data": Badge("no_data", "no data"),
        "met": Badge("met", "met"),
    },
    "health": {
        "silent": Badge("violated", "silent"),
        "no_libvirt": Badge("violated", "no libvirt"),
        "errors": Badge("at_risk", "errors"),
        "slow": Badge("at_risk", "slow ticks"),
        "never_reported": Badge("no_data", "never reported"),
        "healthy": Badge("met", "healthy"),
    },
    "burn": {
        "fast": Badge("violated", "burning fast"),
        "slow": Badge("at_risk", "burning"),
        "none": Badge("met", "within budget"),
    },
    "finding": {
        "missing": Badge("violated", "missing"),
        "ignored": Badge("violated", "ignored by the kernel"),
        "degraded": Badge("at_risk", "degraded"),
        "warning": Badge("at_risk", "warning"),
        "unknown": Badge("no_data", "unknown"),
        "works": Badge("met", "works"),
    },
    "source": {
        "ok": Badge("met", "ok"),
        "starting": Badge("no_data", "starting"),
        "silent": Badge("at_risk", "silent"),
        "failing": Badge("violated", "failing"),
        "unreported": Badge("no_data", "not reported"),
    },
    "job": {
        "missed": Badge("violated", "missed"),
        "infeasible": Badge("violated", "cannot be met"),
        "at_risk": Badge("at_risk", "at risk"),
        "on_track": Badge("met", "on track"),
        "done": Badge("info", "done"),
    },
    "fit": {
        "no": Badge("violated", "no"),
        "unsure": Badge("no_data", "unsure"),
        "yes": Badge("met", "yes"),
    },
    "migration": {
        "proposed": Badge("at_risk", "proposed"),
        "approved": Badge("info", "approved"),
        "running": Badge("info", "under way"),
        "done": Badge("met", "done"),
        "failed": Badge("violated", "failed"),
        "dismissed": Badge("no_data", "dismissed"),
        "expired": Badge("no_data", "expired"),
    },
    "severity": {
        "error": Badge("violated", "error"),
        "warning": Badge("at_risk", "warning"),
        "info": Badge("info", "info"),
    },
    "outcome": {
        "applied": Badge("met", "applied"),
        "restored": Badge("met", "restored"),
        "observed": Badge("no_data", "observed only"),
        "ignored": Badge("violated", "ignored by the kernel"),
        "failed": Badge("violated", "failed"),
        "external": Badge("at_risk", "externally modified"),
        "vanished": Badge("no_data", "VM ended"),
    },
}
"""All states that pages show: of an SLA, a burn rate, a host check, a source, a job, an admission, an event and a
decision.

Each kind's worst comes first where pages list them in its order.
"""

CAUSES: Mapping[str, str] = {
    "neighbour": "Noisy neighbour: {vm} on {host}",
    "overload": "Overload: {application} exceeds its capacity or agreed rate; no neighbour is involved",
    "host_full": "Host {host} is full: no single VM explains it",
    "imbalance": "Imbalance: one vCPU is full while others are not; no neighbour is involved",
    "memory": "Memory: pages of its VM on {host} are taken from it",
    "disk": "Disk: its VM on {host} waits for a disk",
    "network": "Network: packets of its VM on {host} are lost or held up",
    "power": "Power: the pCPUs of its VM on {host} wake up slowly, or have a low clock",
    "not_cpu": "Not the CPU: look at {application} itself",
    "unknown": "Unknown: not enough evidence",
}
"""The likely cause of a violation, by verdict."""

MEASURES: Mapping[str, str] = {
    "cpu_share": "CPU, share of the host",
    "wait_share": "vCPU wait (steal), share of runnable time",
    "vcpu_used": "full vCPU: CPU, share of the time",
    "vcpu_wait": "full vCPU: vCPU wait (steal), share of the time",
    "memory_pressure": "memory pressure (PSI), share of the time",
    "io_pressure": "I/O pressure (PSI), share of the time",
    "major_faults_per_s": "major faults",
    "refaults_per_s": "refaults",
    "growth_bytes_per_s": "growth of its memory",
    "disk_latency_ms": "latency of a request",
    "disk_bytes_per_s": "read and written",
    "network_bytes_per_s": "received and sent",
    "dropped_packets_per_s": "packets lost",
    "resume_us": "time its pCPUs take to resume from idle",
    "clock_part": "clock of its pCPUs, share of the highest",
}

PERIODS: Mapping[str, tuple[str, int | None]] = {
    "15min": ("15 minutes", 900),
    "1h": ("hour", 3600),
    "6h": ("6 hours", 6 * 3600),
    "1d": ("day", 86_400),
    "7d": ("7 days", 7 * 86_400),
    "30d": ("30 days", 30 * 86_400),
    "all": ("all that is kept", None),
}
"""Times back from now that a reader can choose, as URLs name them: what they are called, and seconds."""

INHERITED: Mapping[str, str] = {
    "vms": "inherited from application and host",
    "applications": "inherited from host",
    "hosts": "none",
}
"""What stands for a mode that is not set, by kind of what is registered."""


def mode(value: str | None, kind: str) -> str:
    """A mode, or from where it is inherited, of what is registered as ``kind``."""
    return value or INHERITED[kind]


def above_agreed(rate_rps: float | None, sla: Mapping[str, Any] | None) -> bool:
    """Whether a request rate is above the one agreed."""
    return bool(rate_rps and sla and sla["max_rate_rps"] and rate_rps > sla["max_rate_rps"])


def vcpu_wait(status: Mapping[str, Any], pcpus: int) -> float | None:
    """The share of runnable time that a VM's vCPUs waited, on a host of so many pCPUs; None: these are unknown."""
    return wait_share(status["cpu_share"] * pcpus, status["run_delay_share"]) if pcpus else None


def badge(state: str, kind: str) -> Badge:
    """How a state of a kind in ``BADGES`` is shown."""
    return BADGES[kind][state]


def cause(evidence: Mapping[str, Any]) -> str:
    """The likely cause that evidence names, or the one that was shown by experiment."""
    text = CAUSES[evidence["verdict"]].format_map({name: value or "" for name, value in evidence.items()})
    confidence = evidence.get("confidence")
    return text if confidence is None else f"{text}, shown by experiment (confidence {100 * confidence:.1f} %)"


def rate(value: float | None) -> str:
    """A rate of requests, in req/s."""
    return NOTHING if value is None else f"{digits(value)} req/s"


def percent(share: float | None) -> str:
    """A share, 0 to 1, as a percentage."""
    if share is None:
        return NOTHING
    shown = round(share * 100, 1)
    return f"{fixed(shown, 0 if shown >= 10 else 1)} %"


def measured(value: float | None, metric: str) -> str:
    """A value of that measure of a likely cause, with its unit."""
    if value is None:
        return NOTHING
    if metric.endswith("_bytes_per_s"):
        return throughput(value)
    if metric.endswith("_per_s"):
        return f"{digits(value)} /s"
    if metric.endswith("_us"):
        return milliseconds(value / 1000)
    return milliseconds(value) if metric.endswith("_ms") else percent(value)


def attainment(share: float | None) -> str:
    """The share of intervals in which an SLA held: never rounded up to all of it."""
    return NOTHING if share is None else f"{fixed(100 if share >= 1 else min(share * 100, 99.99), 2)} %"


def budget(share: float | None) -> str:
    """The part of an error budget that is left; ``used up`` where nothing is."""
    return "used up" if share is not None and share <= 0 else percent(share)


def burn(rate_: float | None) -> str:
    """A burn rate, such as ``2.5×``: so many times what the budget allows."""
    return NOTHING if rate_ is None else f"{fixed(rate_, 0 if rate_ >= 10 else 1)}×"


def bandwidth(value: float | None) -> str:
    """Bytes a second, such as ``12.3 GB/s``."""
    return NOTHING if value is None else f"{digits(value / 1e9)} GB/s"


def throughput(value: float | None) -> str:
    """Bytes a second of disks and networks, such as ``12.3 MB/s``."""
    return NOTHING if value is None else f"{digits(value / 1e6)} MB/s"


def size(value: float | None) -> str:
    """Bytes, such as ``12.3 MiB``."""
    return NOTHING if value is None else f"{digits(value / (1 << 20))} MiB"


def number(value: float | None) -> str:
    """A number with separated thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def clock(value: str | None, show: str = "%H:%M:%S") -> str:
    """The time of day, UTC, as the page shows it before the browser turns it into local time."""
    return datetime.fromisoformat(value.upper()).astimezone(UTC).strftime(show) if value else NOTHING


def moment(value: str | None) -> str:
    """Date and time of day, UTC."""
    return clock(value, "%Y-%m-%d %H:%M:%S")


def local_time(value: str) -> str:
    """A time as a browser's field for one holds it, UTC; other text as it is."""
    try:
        at = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except ValueError:
        return value
    return at.strftime("%Y-%m-%dT%H:%M:%S" if at.second else "%Y-%m-%dT%H:%M")


def ago(seconds: float) -> str:
    """A time that has passed, such as ``12 s ago``, ``3 min ago``, ``2 h ago``, ``5 days ago``."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def setting(one: Mapping[str, Any]) -> str:
    """What a setting is called, from anything that has its ``knob`` and ``index``."""
    return knob_name(one["knob"], one["index"])


LABELS: Mapping[str, str] = {
    "allow": "Networks that may post",
    "alone_pcpus": "Uses when alone (pCPUs)",
    "bandwidth_warning": "Warn above this share of the memory bandwidth",
    "batch": "Where batch VMs run",
    "batch_group": "One group for all batch VMs",
    "batch_idle": "Idle class for batch VMs",
    "batch_weight": "Disk weight of batch VMs (critical ones: 1000)",
    "cache": "Last-level cache",
    "cache_mount": "Mount resctrl for it",
    "cooling_capital_factor": "Cooling equipment ($ per $ for cooling)",
    "cooling_factor": "Cooling (W per W)",
    "costs": "What it costs",
    "cpu_seconds": "Work (CPU seconds)",
    "cpus": "pCPUs",
    "credential": "Credential on the host",
    "deadline": "Deadline (such as 2027-01-31T12:00:00Z)",
    "delivery_factor": "Power delivery ($ per $ of electricity)",
    "disk.steps": "Let the policy decide disk weights and ceilings",
    "disk.ceilings": "Hold back batch VMs that make a disk slow",
    "every_s": "Interval (s)",
    "expires_at": "Expires at (such as 2027-01-31T12:00:00Z)",
    "headroom": "Headroom (part of a VM's memory)",
    "idle_percent": "Of that when idle (%)",
    "irqs": "Network interrupts",
    "job": "Job of a batch VM",
    "law": "Feedback law",
    "law.batch_floor": "Batch floor (share of the host's CPU)",
    "libvirt_name": "libvirt name",
    "libvirt_uuid": "libvirt UUID",
    "limit": "Limit (share of each pCPU)",
    "max_pcpus": "CPU limit (pCPUs)",
    "max_slowdown": "Slowdown at most (times)",
    "max_rate_rps": "Agreed rate (req/s)",
    "memory.steps": "Let the policy decide protection and ceilings of memory",
    "migrate": "Migrations away from it",
    "memory.ceilings": "Hold back batch VMs that grow",
    "most_protected": "Protected at most (part of the host's memory)",
    "network.batch_tap_mbit": "A batch VM sends at most, at each tap (Mbit/s)",
    "network.steps": "Let the policy divide uplinks",
    "network.batch_floor": "Batch VMs keep at least (part of the rate)",
    "peak_watts": "Power when full (W)",
    "performance_governor": "Highest clock frequency for critical vCPUs",
    "pin": "Pin to pCPUs of its own",
    "pinning": "Pin critical VMs",
    "protect": "Protect memory of critical VMs",
    "published": "Law exactly as published",
    "query": "Query (PromQL)",
    "rate_query": "Query for the rate (PromQL)",
    "rate_mbit": "Rate (Mbit/s)",
    "reserved_cpus": "Reserved pCPUs",
    "resume_latency_us": "Resume from idle within (us)",
    "scheduling": "Scheduling of its vCPUs",
    "server_usd": "Price of the server ($)",
    "shares": "Divide uplinks: critical VMs first",
    "sharing": "Above the agreed rate",
    "sla": "SLA",
    "sources": "Sources of response times",
    "tag": "syslog tag",
    "time": "Time that counts",
    "url": "URL",
    "usd_per_kwh": "Electricity ($ per kWh)",
    "vms": "VMs",
    "warp": "Warps",
    "warp_max_us": "Largest warp (us)",
    "warp_us": "Warp (us)",
    "weights": "Weight critical VMs over batch VMs",
    "years": "It serves (years)",
}
"""What fields are called that their name alone does not tell well; by their path where a name means several."""

CHOICES: Mapping[str, str] = {
    "critical": "critical: serves requests under an SLA",
    "batch": "batch: uses the remaining capacity",
    "enforce": "enforce: settings are written",
    "observe": "observe: decisions are recorded, nothing is written",
    "released": "released: not controlled, settings restored",
    "true": "yes",
    "false": "no",
    "fifo": "fifo: real-time, runs until it blocks",
    "rr": "rr: real-time, round-robin within its priority",
    "other": "other: the default, with a nice value",
    "fair": "fair: keep boosting above the agreed rate",
    "isolation": "isolation: no boost above the agreed rate",
    "float": "float: on all pCPUs",
    "fence": "fence: off the cores of critical vCPUs",
    "single": "single: on one pCPU each",
    "off": "off: unchanged",
    "on": "on: by the best mechanism of the kernel",
    "sched_ext": "sched_ext: our scheduler, loaded for the whole host",
    "group_identity": "group identity: of OpenAnolis, benefit not measured",
    "slice": "slice: EEVDF's, measured to harm more than it helps",
    "reserved": "reserved: on the reserved pCPUs",
    "serving": "serving: on the pCPUs of critical VMs",
    "request_time": "the whole request",
    "upstream_response_time": "the servers behind NGINX",
    "nginx_syslog": "NGINX by syslog",
    "nginx_file": "NGINX log file",
    "memcached_probe": "memcached probe",
    "http_probe": "HTTP probe",
    "prometheus": "Prometheus",
    "push": "posts to the agent",
    "tap": "packets at the VMs' taps",
    "viewer": "viewer: reads everything",
    "operator": "operator: also registers and controls",
    "admin": "admin: also users and tokens",
    "host": "host: the agent of one host",
    "source": "source: response times of one application",
}
"""What values are called; those left out are called by themselves."""

_UNITS: Mapping[str, str] = {"ms": "ms", "s": "s", "rps": "req/s"}


def label_of(path: str) -> str:
    """The label of a field by its path: words with the unit in parentheses."""
    path = re.sub(r"\[\d*\]", "", path)
    name = path.rsplit(".", 1)[-1]
    if label := LABELS.get(path) or LABELS.get(name):
        return label
    words, _, last = name.rpartition("_")
    unit = _UNITS.get(last) if words else None
    text = (words if unit else name).replace("_", " ")
    return text[:1].upper() + text[1:] + (f" ({unit})" if unit else "")


def range_words(schema: Mapping[str, Any]) -> str:
    """The range of a number, such as ``0.01 to 8192`` or ``more than 0, at most 100``; empty where there is none."""
    if schema.get("type") not in {"integer", "number"}:
        return ""
    whole = "a whole number, " if schema["type"] == "integer" else ""
    if "minimum" in schema and "maximum" in schema:
        return f"{whole}{schema['minimum']:,.15g} to {schema['maximum']:,.15g}"
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    return whole + ", ".join(f"{word} {schema[key]:,.15g}" for key, word in words.items() if key in schema)


def prose(text: object) -> Markup:
    """A sentence of the program: what it has between backticks is a name or a command; None: nothing."""
    parts = plain_lines("" if text is None else str(text)).split("`")
    if len(parts) % 2 == 0:  # one that nothing closes is a character like any other
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


FILTERS: Mapping[str, Callable[..., Any]] = {
    "ms": milliseconds,
    "rate": rate,
    "percent": percent,
    "number": number,
    "attainment": attainment,
    "budget": budget,
    "burn": burn,
    "duration": duration,
    "ago": ago,
    "clock": clock,
    "moment": moment,
    "local_time": local_time,
    "setting": setting,
    "badge": badge,
    "above_agreed": above_agreed,
    "cause": cause,
    "vcpu_wait": vcpu_wait,
    "hurts": MATERIAL.__le__,
    "measure": MEASURES.__getitem__,
    "measured": measured,
    "mode": mode,
    "label": label_of,
    "bandwidth": bandwidth,
    "size": size,
    "throughput": throughput,
    "prose": prose,
}
