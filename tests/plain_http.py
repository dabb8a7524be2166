"""Asking servers of this machine by http."""

from __future__ import annotations

from typing import Any

import httpx


def plain_client(**options: Any) -> httpx.Client:
    """A client that opens a connection for each request, as ``httpx.get`` does, and knows no authorities.

    To read these takes 40 ms of CPU time, each time that ``httpx.get`` is called.
    """
    return httpx.Client(verify=False, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), **options)
