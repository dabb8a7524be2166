"""What agent and manager tell each other beside the bodies: which protocol they speak, and what time it is."""

from __future__ import annotations

import math
import re

from flask import Response, request

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
)

_MOST_AHEAD_S = 1e10
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def refuse_other_protocols() -> None:
    """Raises ProtocolRefused where the agent says that it speaks another protocol; a person says nothing of it."""
    spoken = request.headers.get(PROTOCOL_HEADER, str(PROTOCOL))
    if spoken != str(PROTOCOL):
        raise ProtocolRefused(
            f"{PROTOCOL_HEADER} {shown(spoken)} is refused; allowed: {PROTOCOL}; install the same version of Equipoise"
            " on the manager and this host"
        )


def who() -> Who | None:
    """Which agent asks; None: a person."""
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
