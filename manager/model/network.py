"""How the rate of an uplink is divided: parts that are guaranteed, and what an uplink is seen to be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

CRITICAL_PART, OTHERS_PART, BATCH_PART = 0.75, 0.20, 0.05
"""Guaranteed parts of an uplink's rate: of critical VMs, of all traffic that is no managed VM's, and of batch VMs."""
MOST_KBIT = 34_000_000
"""What HTB's 32 bits of bytes a second hold."""
LEAST_TURN, USUAL_TURN, MOST_TURN = 1, 46, 460
"""Frames that a VM sends in its turn, where those of a kind share an uplink.

HTB sends a whole packet in each turn, however short the turn is (net/sched/sch_htb.c, ``htb_dequeue_tree``), and a VM
hands over segments of up to 64 KiB: 46 frames. Parts are as turns only where none is shorter than that.
"""
NO_RATE, ANOTHER, INCOMPLETE = 0, -1, -2
"""In place of a rate: the uplink is not divided; another tool gave it a qdisc; ours is not whole, as after a crash."""


class EgressGroup(IntEnum):
    """Whose part of an uplink a VM's packets are sent from. ``CHANGED``: another tool changed its class."""

    OTHERS = 0
    BATCH = 1
    CRITICAL = 2
    PARTLY = 3
    CHANGED = 4


@dataclass(frozen=True, slots=True)
class UplinkPort:
    """An interface that may be an uplink, as it is now.

    ``speed_kbit`` None: it says none. ``physical``: hardware, not made by software; ``bridged``: a port of a bridge.
    ``other_qdisc`` is what another tool made its queueing discipline, empty for none, and ``critical_bytes`` what
    critical VMs sent through ours so far, None while it is not divided.
    """

    name: str
    speed_kbit: int | None = None
    physical: bool = False
    bridged: bool = False
    other_qdisc: str = ""
    critical_bytes: int | None = None
