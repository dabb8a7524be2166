"""The program on taps as it is shipped: the object, and how its maps look. equipoise_tap.bpf.c says what it does."""

from __future__ import annotations

import re
import struct
from pathlib import Path

OBJECT = Path(__file__).parent / "equipoise_tap.bpf.o"
TO_GUEST, FROM_GUEST = "to_guest", "from_guest"
"""Names of the programs: of the tap's egress, and of its ingress."""
SERVICES, INTERFACES, TIMES, LOST = "tap_services", "tap_interfaces", "tap_times", "tap_lost"
"""Names of the maps that are read and written."""

_INTERFACE = (Path(__file__).parent / "tap.h").read_text()


def _fields(name: str) -> tuple[str, ...]:
    """Names of the members, all of 64 bits, of a struct in tap.h."""
    body = re.search(rf"struct {name} {{\n(.*?)}};", _INTERFACE, re.DOTALL)
    return tuple(re.findall(r"^\tu64 (\w+);", body[1], re.MULTILINE)) if body else ()


KEY = struct.Struct("=IHH")
"""Key of SERVICES and of TIMES: interface, port, bucket."""

COUNTERS = _fields("service")
"""Value of SERVICES, 64 bits each, for each possible CPU."""

LOST_COUNTERS = _fields("lost")
"""Value of LOST, likewise."""
