"""What an agent says of itself in the headers of a request, and what the manager says in those of its answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from werkzeug.datastructures import Headers

from manager.api.context import ManagerContext
from manager.api.validation import shown
from manager.control.tenure_rules import Who
from manager.errors import ProtocolRefused
from manager.protocol.headers import (
    AHEAD_HEADER,
    BOOT_HEADER,
    CLOCK_HEADER,
    INSTANCE_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    REVISION_HEADER,
    TAPS_HEADER,
)

_MOST_AHEAD_S = 1e10
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def refuse_other_protocols(headers: Headers) -> None:
    """Raises ProtocolRefused for an agent of another protocol; requests without the header are accepted."""
    spoken = headers.get(PROTOCOL_HEADER, str(PROTOCOL))
    if spoken != str(PROTOCOL):
        raise ProtocolRefused(
            f"{PROTOCOL_HEADER} {shown(spoken)} is refused; allowed: {PROTOCOL}; install the same version of Equipoise"
            " on the manager and this host"
        )


def has_taps(headers: Headers) -> bool:
    """Whether the agent that sent the request can have sources of type tap."""
    return TAPS_HEADER in headers


def who_sent(headers: Headers) -> Who | None:
    """The agent that sent the request; None: it was not an agent."""
    instance, boot = headers.get(INSTANCE_HEADER, ""), headers.get(BOOT_HEADER, "")
    return Who(instance, boot) if _ID.fullmatch(instance) and _ID.fullmatch(boot) else None


def clock_ahead_s(headers: Headers) -> float | None:
    """By how many seconds the agent measured its clock ahead of the manager's; None: unknown."""
    try:
        ahead_s = float(headers.get(AHEAD_HEADER, "nan"))
    except ValueError:
        return None
    return ahead_s if math.isfinite(ahead_s) and abs(ahead_s) < _MOST_AHEAD_S else None


def headers_to_agent(context: ManagerContext, revision: int | None) -> Iterator[tuple[str, str]]:
    """Of an answer to an agent: the protocol, the time, and the revision of the assignment in it."""
    yield PROTOCOL_HEADER, str(PROTOCOL)
    yield CLOCK_HEADER, f"{context.clock():.6f}"
    if revision is not None:
        yield REVISION_HEADER, str(revision)
