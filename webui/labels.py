"""Words of forms: what fields and their values are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LABELS: Mapping[str, str] = {
    "allow": "Networks that may post",
    "bandwidth_warning": "Warn above this share of the memory bandwidth",
    "batch": "Where batch VMs run",
    "batch_idle": "Idle class for batch VMs",
    "cache": "Last-level cache",
    "cache_mount": "Mount resctrl for it",
    "cpus": "pCPUs",
    "credential": "Credential on the host",
    "every_s": "Interval (s)",
    "expires_at": "Ends at (such as 2027-01-31T12:00:00Z)",
    "host": "Host",
    "irqs": "Network interrupts",
    "law": "Feedback law",
    "libvirt_name": "libvirt name",
    "libvirt_uuid": "libvirt UUID",
    "limit": "Limit (share of each pCPU)",
    "max_pcpus": "CPU limit (pCPUs)",
    "max_rate_rps": "Agreed rate (req/s)",
    "pin": "Pin to pCPUs of its own",
    "pinning": "Pin critical VMs",
    "published": "Law exactly as published",
    "query": "Query (PromQL)",
    "rate_query": "Query for the rate (PromQL)",
    "response_time_ms": "Response time (ms)",
    "scheduling": "Scheduling of its vCPUs",
    "sharing": "Above the agreed rate",
    "sla": "SLA",
    "sources": "Sources of response times",
    "tag": "syslog tag",
    "tiers": "Tiers",
    "time": "Time that counts",
    "url": "URL",
    "vms": "VMs",
    "warp": "Warps",
    "warp_max_us": "Largest warp (us)",
    "warp_us": "Warp (us)",
}
"""What fields are called that their name alone does not tell well."""

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
    "fence": "fence: off those of critical vCPUs",
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
    name = re.sub(r"\[\d*\]", "", path).rsplit(".", 1)[-1]
    if name in LABELS:
        return LABELS[name]
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
