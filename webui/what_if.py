"""The page of a what-if: the last minutes of a host, replayed under another policy."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from webui.inside import Refused
from webui.site import FRAGMENT, Site, page

MINUTES = (5, 15, 30, 60)


def add_what_if(web: Blueprint, site: Site) -> None:
    """The form, and the estimate."""

    @web.get("/what-if")
    @allow(VIEWER)
    def what_if() -> Response:
        """The choice of host, policy and minutes; with all three, the estimate."""
        host, policy = request.args.get("host", ""), request.args.get("policy", "")
        minutes = request.args.get("minutes", str(MINUTES[-1]))
        estimate, refused = _estimate(site, host, policy, minutes) if host and policy else (None, None)
        whole = FRAGMENT not in request.headers
        return page(
            "what_if.html",
            host=host,
            policy=policy,
            minutes=minutes,
            choices=MINUTES,
            estimate=estimate,
            refused=refused,
            hosts=[(one["name"], one["policy"]) for one in site.api.every("/hosts")] if whole else [],
            policies=list(site.api.every("/policies")) if whole else [],
        )


def _estimate(site: Site, host: str, policy: str, minutes: str) -> tuple[Any, Refused | None]:
    """The replay, or why there is none: shown in place of it, with the form to choose anew."""
    try:
        return site.api.get(f"/hosts/{quote(host, safe='')}/what-if", policy=policy, minutes=minutes), None
    except Refused as refused:
        return None, refused
