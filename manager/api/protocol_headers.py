"""What agent and manager tell each other beside the bodies: which protocol they speak, and what time it is."""

from __future__ import annotations

import math
import re

from flask import Response, request

from manager.api.context import ManagerContext
from manager.control.tenure_rules import Who
from manager.errors import ProtocolRefused
from manager.protocol.headers import (
    AHEAD_HEADER,
    BOOT_HEADER,
    CLOCK_HEADER,
    INSTANCE_HEADER,
    OLDEST_PROTOCOL,
    PROTOCOL,
    PROTOCOL_HEADER,
)

_MOST_AHEAD_S = 1e10
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def refuse_too_old() -> int:
    """The protocol that the agent speaks. Raises ProtocolRefused where that is too old."""
    given = request.headers.get(PROTOCOL_HEADER, "0")
    spoken = int(given) if given.isdecimal() and len(given) < 10 else 0
    if spoken < OLDEST_PROTOCOL:
        raise ProtocolRefused(
            f"this agent speaks protocol {spoken}, and this manager {OLDEST_PROTOCOL} to {PROTOCOL}: upgrade the agent"
        )
    return spoken


def who() -> Who | None:
    """Which agent asks; None: an earlier one, which does not say, or a person."""
    instance, boot = request.headers.get(INSTANCE_HEADER, ""), request.headers.get(BOOT_HEADER, "")
    return Who(instance, boot) if _ID.fullmatch(instance) and _ID.fullmatch(boot) else None


def told(response: Response, context: ManagerContext) -> Response:
    """An answer to an agent, with the protocol and the time."""
    response.headers[PROTOCOL_HEADER] = str(PROTOCOL)
    response.headers[CLOCK_HEADER] = f"{context.clock():.6f}"
    return response


def clock_ahead_s() -> float | None:
    """By how many seconds the agent that asks found its clock ahead of the manager's; None: it does not tell."""
    try:
        ahead_s = float(request.headers.get(AHEAD_HEADER, "nan"))
    except ValueError:
        return None
    return ahead_s if math.isfinite(ahead_s) and abs(ahead_s) < _MOST_AHEAD_S else None
