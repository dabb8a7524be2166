"""The program on taps as it is shipped: the object, and how its maps look. equipoise_tap.bpf.c says what it does."""

from __future__ import annotations

import struct
from pathlib import Path

from manager.bpf import members, number

OBJECT = Path(__file__).parent / "equipoise_tap.bpf.o"
TO_GUEST, FROM_GUEST, BOTH_WAYS = "to_guest", "from_guest", "both_ways"
COUNT_WAITING, SET_LATE = "count_waiting", "set_late"
"""Names of the programs: of the tap's egress, of its ingress, of a packet socket, and those which the reader runs."""
SERVICES, INTERFACES, TIMES, LOST = "tap_services", "tap_interfaces", "tap_times", "tap_lost"
WAITING, SETTINGS = "tap_waiting", "tap_settings"
"""Names of the maps that are read and written."""
CALLS = "tap_calls"
"""Name of the map of programs that BOTH_WAYS has called: the kernel empties it when nobody holds it any more."""

_INTERFACE = (Path(__file__).parent / "tap.h").read_text()

KEY = struct.Struct("=IHH")
"""Key of SERVICES and of TIMES: interface, port, bucket."""

COUNTERS = members(_INTERFACE, "service")
"""Value of SERVICES, 64 bits each."""

LOST_COUNTERS = members(_INTERFACE, "lost")
"""Value of LOST, likewise."""

WALK = members(_INTERFACE, "walk")
"""What COUNT_WAITING answers, 64 bits each."""

LATENESS = members(_INTERFACE, "lateness")
"""What SET_LATE is told, and answers, likewise."""

HANDSHAKE = number(_INTERFACE, "HANDSHAKE")
"""Of a bucket in TIMES: it is one of handshakes."""

MOST_CONNECTIONS, MOST_HALVINGS = number(_INTERFACE, "MOST_CONNECTIONS"), number(_INTERFACE, "MOST_HALVINGS")
