"""How numbers, times and states are written on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from manager.model.knobs import knob_name
from manager.model.numbers import NOTHING, digits, fixed, milliseconds
from manager.model.vcpu_wait import MATERIAL, wait_share


@dataclass(frozen=True, slots=True)
class Badge:
    """A state as pages show it, readable without colour. ``colour``: a class of style.css, that of an SLA's state."""

    mark: str
    word: str
    colour: str


def _good(word: str) -> Badge:
    return Badge("✓", word, "met")


def _warning(word: str) -> Badge:
    return Badge("▲", word, "at_risk")


def _bad(word: str) -> Badge:
    return Badge("✗", word, "missed")


def _unknown(word: str) -> Badge:
    return Badge("○", word, "no_data")


BADGES: Mapping[str, Mapping[str, Badge]] = {
    "sla": {
        "missed": _bad("violated"),
        "at_risk": _warning("at risk"),
        "no_data": _unknown("no data"),
        "met": _good("met"),
    },
    "burn": {"fast": _bad("burning fast"), "slow": _warning("burning"), "none": _good("within budget")},
    "finding": {
        "missing": _bad("missing"),
        "ignored": _bad("ignored by the kernel"),
        "degraded": _warning("degraded"),
        "warning": _warning("warning"),
        "unknown": _unknown("unknown"),
        "works": _good("works"),
    },
    "source": {
        "ok": _good("ok"),
        "starting": _unknown("starting"),
        "silent": _warning("silent"),
        "failing": _bad("failing"),
        "unreported": _unknown("not reported"),
    },
    "severity": {"error": _bad("error"), "warning": _warning("warning"), "info": Badge("●", "info", "no_data")},
    "outcome": {
        "applied": _good("applied"),
        "restored": _good("restored"),
        "observed": _unknown("observed only"),
        "ignored": _bad("ignored by the kernel"),
        "failed": _bad("failed"),
        "external": _warning("externally modified"),
        "vanished": _unknown("VM ended"),
    },
}
"""All states that pages show: of an SLA, a burn rate, a host check, a source, an event and a decision.

Each kind's worst comes first where pages list them in its order.
"""

CAUSES: Mapping[str, str] = {
    "neighbour": "Noisy neighbour: {vm} on {host}",
    "overload": "Overload: {application} exceeds its capacity or agreed rate; no neighbour is involved",
    "host_full": "Host {host} is full: no single VM explains it",
    "imbalance": "Imbalance: one vCPU is full while others are not; no neighbour is involved",
    "not_cpu": "Not the CPU: look at {application} itself, its disks or the network",
    "unknown": "Unknown: not enough evidence",
}
"""The likely cause of a violation, by verdict."""

MEASURES: Mapping[str, str] = {
    "cpu_share": "CPU, share of the host",
    "wait_part": "vCPU wait (steal), share of runnable time",
    "vcpu_used": "full vCPU: CPU, share of the time",
    "vcpu_wait": "full vCPU: vCPU wait (steal), share of the time",
}

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
    """The likely cause that evidence names."""
    return CAUSES[evidence["verdict"]].format_map({name: value or "" for name, value in evidence.items()})


def rate(value: float | None) -> str:
    """A rate of requests, in req/s."""
    return NOTHING if value is None else f"{digits(value)} req/s"


def percent(share: float | None) -> str:
    """A share, 0 to 1, as a percentage."""
    if share is None:
        return NOTHING
    shown = round(share * 100, 1)
    return f"{fixed(shown, 0 if shown >= 10 else 1)} %"


def attainment(share: float | None) -> str:
    """The share of intervals in which an SLA held: never rounded up to all of it."""
    return NOTHING if share is None else f"{fixed(100 if share >= 1 else min(share * 100, 99.99), 2)} %"


def budget(share: float | None) -> str:
    """The part of an error budget that is left; ``used up`` where nothing is."""
    return "used up" if share is not None and share <= 0 else percent(share)


def burn(rate_: float | None) -> str:
    """A burn rate, such as ``2.5×``: so many times what the budget allows."""
    return NOTHING if rate_ is None else f"{fixed(rate_, 0 if rate_ >= 10 else 1)}×"


def duration(seconds: float) -> str:
    """A length of time, such as ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{digits(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{fixed(seconds / 3600, 1)} h"


def number(value: float | None) -> str:
    """A number with separated thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def clock(value: str | datetime | None) -> str:
    """The time of day, UTC, as the page shows it before the browser turns it into local time."""
    moment = _moment(value)
    return NOTHING if moment is None else moment.strftime("%H:%M:%S")


def day_and_clock(value: str | datetime | None) -> str:
    """Date and time of day, UTC."""
    moment = _moment(value)
    return NOTHING if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """A time that has passed, such as ``12 s ago``, ``3 min ago``, ``2 h ago``, ``5 days ago``."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def setting(one: Mapping[str, Any]) -> str:
    """What a setting is called, from anything that has its ``knob`` and ``index``."""
    return knob_name(one["knob"], one["index"])


def _moment(value: str | datetime | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


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
    "moment": day_and_clock,
    "setting": setting,
    "badge": badge,
    "above_agreed": above_agreed,
    "cause": cause,
    "vcpu_wait": vcpu_wait,
    "hurts": MATERIAL.__le__,
    "measure": MEASURES.__getitem__,
    "mode": mode,
}
