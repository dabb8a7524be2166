"""URLs of sources: what of them is a secret, which belongs into a file on the agent's host."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

SECRET_NAME = re.compile(
    r"(?i)token|secret|passw|credential|session|signature|api.?key|access.?key"
    r"|(?:^|[^a-z])(?:pass|pwd|auth|sig|jwt|bearer|key)(?:$|[^a-z])"
)
"""Names of what is a secret, as of parameters and settings."""

_INSTEAD = (
    "everybody who may read the application would see it; name a `credential` instead, a file on the agent's host"
)


def secret_of(url: str) -> str:
    """What of a URL is, or looks like, a secret, and what to use instead; empty for nothing. It is not quoted."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return f"a user or password in the URL is refused: {_INSTEAD}"
    named = next((name for name in map(_name, _parameters(parts.query)) if SECRET_NAME.search(name)), None)
    return f"the parameter {named!r} in the URL is refused, it looks like a secret: {_INSTEAD}" if named else ""


def covers(prefix: str, url: str) -> bool:
    """Whether a URL is at the same scheme, host and port as ``prefix``, and its path below that one's.

    Raises ValueError for what is no URL with a host.
    """
    allowed, asked = urlsplit(prefix), urlsplit(url)
    if _origin(allowed.scheme, allowed.hostname, allowed.port) != _origin(asked.scheme, asked.hostname, asked.port):
        return False
    path = unquote(unquote(asked.path))
    if "\\" in path or {".", ".."} & {*path.split("/")}:
        return False
    return path == allowed.path or f"{path.rstrip('/')}/".startswith(f"{allowed.path.rstrip('/')}/")


def _origin(scheme: str, host: str | None, port: int | None) -> tuple[str, str, int]:
    defaults = {"http": 80, "https": 443}
    if scheme not in defaults or not host:
        raise ValueError("it should begin with http:// or https:// and a host")
    return scheme, host, port or defaults[scheme]


def _parameters(query: str) -> list[str]:
    return re.split("[&;]", query) if query else []


def _name(parameter: str) -> str:
    return unquote(parameter.partition("=")[0])
