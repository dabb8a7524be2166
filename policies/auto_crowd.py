"""Where critical vCPUs outnumber the pCPUs they may be pinned to: do they share pCPUs packed, or float?

Packed ones that share a pCPU cannot use another that idles, so that floating is better as a rule. But a VM with as many
vCPUs as there are pCPUs, packed one on each, has all of them, and its guest gives work to the vCPU that runs; floating,
its vCPUs meet on one pCPU while batch VMs have another, until the kernel next evens out its run queues. The more of
the host such VMs use the more that costs. So they stay as the host says until an SLA is at risk on average: who is
moved at ease has to be packed again when the load rises, with a queue that began to grow in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from manager.control.feedback_law import average
from manager.control.placer import usable_cpus, wants_pins
from manager.model.decision import Snapshot

FEWEST_TO_FLOAT = 3
"""On fewer pCPUs than these, crowded critical VMs stay packed."""
PACKED_ABOVE, FLOATING_BELOW = 0.56, 0.5
"""Parts of the pCPUs, see ``Crowd.spread``: in between they stay as they are."""
RISING_S, FALLING_S = 20.0, 120.0
"""Its average follows what it rises to sooner than what it falls to: SLAs are violated in bursts."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Critical ``vcpus`` that want pins, and the fewer ``pcpus`` they may be pinned to; none where there are enough.

    ``spread``: the part of these pCPUs that they use, a VM with fewer vCPUs than there are pCPUs counting for as much
    less; averaged, None until they use any. ``floats``: they float now.
    """

    vcpus: int = 0
    pcpus: int = 0
    spread: float | None = None
    floats: bool = False

    @property
    def may_float(self) -> bool:
        """Whether floating would not cost more than it brings, as far as it is known what they use."""
        return self.spread is None or self.spread < FLOATING_BELOW


def next_crowd(before: Crowd, snapshot: Snapshot, *, needed: bool) -> Crowd:
    """As of now: as the host says until it was measured what they use, and until floating is ``needed``."""
    wanting = [vm for vm in snapshot.vms if wants_pins(vm, snapshot)]
    vcpus, pcpus = sum(vm.vcpus for vm in wanting), len(usable_cpus(snapshot))
    if not vcpus > pcpus >= FEWEST_TO_FLOAT:
        return Crowd(spread=before.spread)
    online = len(snapshot.capabilities.online_cpus)
    spread = sum(vm.cpu_share * online / pcpus * min(vm.vcpus / pcpus, 1.0) for vm in wanting)
    averaged = before.spread
    if spread > 0:
        over_s = RISING_S if averaged is not None and spread > averaged else FALLING_S
        averaged = average(averaged, spread, min(1.0, snapshot.interval_s / over_s))
    may = before.floats or needed
    limit = PACKED_ABOVE if before.floats else FLOATING_BELOW
    return Crowd(vcpus, pcpus, averaged, may and averaged is not None and averaged < limit)


def share_pcpus(snapshot: Snapshot) -> bool:
    """Whether weights decide among critical VMs: one floats, or two have vCPUs on the same pCPU."""
    pins = [vm.pinned for vm in snapshot.vms if vm.critical and vm.vcpus]
    return not all(pins) or sum(map(len, pins)) > len(frozenset().union(*pins))
