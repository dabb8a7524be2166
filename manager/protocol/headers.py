"""Headers of what agent and manager tell each other, and the number of the protocol they speak."""

from __future__ import annotations

ORDERS_HEADER = "Equipoise-Orders"
"""Header of an assignment: the number of the registrations it is made of, also where it is answered with 304."""

PROTOCOL_HEADER = "Equipoise-Protocol"
"""Header of what agent and manager tell each other: the number of the protocol they speak; 0 where it is absent."""

PROTOCOL = 2
TELLS_REFUSED = 2
"""From this protocol on an agent sets aside the items that a manager leaves out, and tells of them."""

OLDEST_PROTOCOL = 0
"""Each side refuses another that speaks an older protocol than this one. What it does not know of a newer one, such as
fields, it passes over."""

CLOCK_HEADER = "Equipoise-Clock"
"""Header of what the manager answers an agent: its time, in seconds since the epoch."""

AHEAD_HEADER = "Equipoise-Clock-Ahead"
"""Header of a report: by how many seconds the agent found its own clock ahead of that."""

INSTANCE_HEADER, BOOT_HEADER = "Equipoise-Instance", "Equipoise-Boot"
"""Headers of what an agent asks and tells: the id that its state directory keeps, and that of its kernel's boot."""
