"""Headers of what agent and manager tell each other, and the number of the protocol they speak."""

from __future__ import annotations

REVISION_HEADER = "Equipoise-Revision"
"""Header of an assignment: the revision of the registrations it is made of, also of a 304."""

PROTOCOL_HEADER = "Equipoise-Protocol"
"""Header of what agent and manager tell each other: the number of the protocol they speak."""

PROTOCOL = 1
"""Each side refuses another that speaks another protocol. Within one, fields that it does not know are passed over."""

CLOCK_HEADER = "Equipoise-Clock"
"""Header of what the manager answers an agent: its time, in seconds since the epoch."""

AHEAD_HEADER = "Equipoise-Clock-Ahead"
"""Header of a report: by how many seconds the agent found its own clock ahead of that."""

INSTANCE_HEADER, BOOT_HEADER = "Equipoise-Instance", "Equipoise-Boot"
"""Headers of what an agent asks and tells: the id that its state directory keeps, and that of its kernel's boot."""

TAPS_HEADER = "Equipoise-Taps"
"""Header of what an agent asks and tells that can have sources of type `tap`; of any value. Others would not understand
an application that is given one unasked.
"""
