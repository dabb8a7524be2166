"""The page of one application: its response times against the SLA, the likely cause of violations, decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from manager.model.cpus import parse_cpus
from webui.inside import Json
from webui.site import Site, csv_file, page

RANGES: Mapping[str, str] = {
    "15min": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "1d": "1 day",
    "7d": "7 days",
    "30d": "30 days",
}
"""Ranges that end now, as the URL names them: a number, and min, h or d."""

PERIODS: Mapping[int, str] = {3600: "last hour", 86_400: "last day", 30 * 86_400: "last 30 days"}

_MOST_POINTS = 2000
_TIMES = ("start", "end", "count", "requests", "rate_rps", "p50_ms", "p95_ms", "p99_ms", "time_ms", "judged", "missed")
_SHOWN_PERCENTILES = (50, 95, 99)
_TIERS = ("start", "tier", "vm", "host", "cpu_share", "run_delay_share", "weight", "mode")


def add_application(web: Blueprint, site: Site) -> None:
    """The page of an application, and its values as tables."""

    @web.get("/applications/<name>")
    @allow(VIEWER)
    def application(name: str) -> Response:
        """SLA, charts, budget, evidence, sources and VMs."""
        path = _path(name)
        found = site.api.get(path)
        vms = {one["name"]: one for one in site.api.every("/vms", application=name)}
        hosts = {vm["status_host"] for vm in vms.values() if vm["status"]}
        return page(
            "application.html",
            pcpus={host: _pcpus(site.api.get(f"/hosts/{quote(host, safe='')}")["capabilities"]) for host in hosts},
            application=found,
            others=_others(found["window"], found["measured_percentile"]),
            budget=site.api.get(f"{path}/budget"),
            evidence=site.api.get(f"{path}/evidence") if found["sla"] else None,
            sources=site.api.get(f"{path}/sources", limit=1000)["items"],
            vms=vms,
            ranges=RANGES,
            periods=PERIODS,
            silent_s=_silence_s(found, site.now_s()),
            stale_s=site.stale_s,
        )

    @web.get("/applications/<name>/times.csv")
    @allow(VIEWER)
    def times_csv(name: str) -> Response:
        """Response times and rate of a range of time, a line each step."""
        found = site.api.get(f"{_path(name)}/history", **_range())
        return csv_file(f"{name}-times", _TIMES, ([step[column] for column in _TIMES] for step in found["steps"]))

    @web.get("/applications/<name>/tiers.csv")
    @allow(VIEWER)
    def tiers_csv(name: str) -> Response:
        """CPU use and weights of a range of time, a line each step and VM."""
        found = site.api.get(f"{_path(name)}/tiers-history", **_range())
        return csv_file(f"{name}-tiers", _TIERS, _tier_rows(found))


def _path(name: str) -> str:
    return f"/applications/{quote(name, safe='')}"


def _pcpus(capabilities: Json | None) -> int:
    """How many pCPUs a host has; 0: not known."""
    return len(parse_cpus(capabilities["online_cpus"])) if capabilities else 0


def _range() -> dict[str, object]:
    """The range that the URL names; the interface has its own default."""
    return {"since": request.args.get("since"), "until": request.args.get("until"), "points": _MOST_POINTS}


def _others(window: Json | None, watched: float) -> list[tuple[str, float | None]]:
    """The percentiles of a window that the interface answers besides the one that is judged."""
    names = [f"p{percentile}" for percentile in _SHOWN_PERCENTILES if percentile != watched]
    return [(name, window[f"{name}_ms"] if window else None) for name in names]


def _silence_s(application: Json, now_s: float) -> float | None:
    """How long nothing came, in seconds; None where nothing ever did."""
    window = application["window"]
    return None if window is None else max(0.0, now_s - datetime.fromisoformat(window["end"]).timestamp())


def _tier_rows(found: Json) -> Iterator[Sequence[Any]]:
    for place, start in enumerate(found["starts"]):
        for tier in found["tiers"]:
            for vm in tier["vms"]:
                values = [vm[name][place] for name in ("cpu_share", "run_delay_share", "weight", "mode")]
                if any(value is not None for value in values):
                    yield [start, tier["tier"], vm["vm"], vm["host"], *values]
