"""The arithmetic of the feedback law: from response times and CPU use to weights (design, section 4).

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation management",
IM 2013, section V.A, equations (1) to (3); and what keeps a proportional controller on noisy data steady.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from operator import add

from manager.model.decision import VmView
from manager.model.host import WeightScale
from manager.model.window import Window

UNBOUND_MS = 1_000_000_000.0
"""RT_SLA of an application above its agreed load: a million seconds."""
LEAST_SAMPLES = 20
"""Of fewer response times nothing is the 95th percentile."""


def performance_factor(response_time_ms: float, sla_ms: float) -> float:
    """Equation (1): PF = RT / RT_SLA - 1, above 0 where the SLA is violated."""
    return response_time_ms / sla_ms - 1


def demand(cpu_share: float, factor: float) -> float:
    """Equation (2): D = C (1 + PF); ``cpu_share`` C is the CPU time used as a fraction of the whole host."""
    return cpu_share * (1 + factor)


def weight_of(wanted: float, largest: float, scale: WeightScale) -> int:
    """Equation (3): W = W_min + (W_max - W_min) D / D_max, rounded; W_min where nobody demands anything."""
    part = wanted / largest if largest > 0 else 0.0
    return round(scale.critical_min + (scale.maximum - scale.critical_min) * min(max(part, 0.0), 1.0))


def miss(response_time_ms: float, sla_ms: float, largest: float, *, fold: bool = False) -> float:
    """How much an application's SLA calls for more weight: ln(RT / RT_SLA), within ln(1 / ``largest``) and its inverse.

    It is 0 where the SLA is just met, and the same distance from it for twice and for half the target. With ``fold`` it
    falls again above ln(``largest``), down to ln(1 / ``largest``): who is above the target by that much then makes
    way for the others.
    """
    limit = math.log(largest)
    called = math.log(max(response_time_ms / sla_ms, 1 / largest))
    return called if called <= limit else max(2 * limit - called, -limit) if fold else limit


def wanted_pcpus(vm: VmView, pcpus: int) -> float:
    """What a VM wants of the CPU: of each vCPU what it used and what it waited for, at most 1; at least what it used.

    Where vCPUs are not known one by one, the same of all together. ``pcpus`` are those of the host.
    """
    used = vm.cpu_share * pcpus
    if len(vm.vcpu_pcpus) == len(vm.vcpu_waits) == vm.vcpus:
        return max(used, math.fsum(vcpu_demands(vm)))
    return max(used, min(used + vm.run_delay_share, vm.vcpus))


def vcpu_demands(vm: VmView) -> tuple[float, ...]:
    """What each vCPU wants of a pCPU, 0 .. 1: what it used and what it waited for. Empty where use is not known.

    Where only the VM's wait is known, it is divided evenly.
    """
    used = vm.vcpu_pcpus
    if len(used) != vm.vcpus:
        return ()
    waits = vm.vcpu_waits if len(vm.vcpu_waits) == vm.vcpus else (vm.run_delay_share / vm.vcpus,) * vm.vcpus
    wanted = tuple(map(add, used, waits))
    return wanted if not wanted or max(wanted) <= 1.0 else tuple([min(each, 1.0) for each in wanted])


def average(before: float | None, now: float, smoothing: float) -> float:
    """The moving average after one more value; ``smoothing`` is the weight of that value, 0 .. 1."""
    return now if before is None else before + smoothing * (now - before)


def step_towards(current: int, wanted: int, max_step: float) -> int:
    """``wanted``, but at most a factor of ``max_step`` from ``current``."""
    return min(max(wanted, math.ceil(current / max_step)), math.floor(current * max_step))


def within(current: int, wanted: int, dead_band: float) -> bool:
    """Whether the two differ by no more than ``dead_band``, as a fraction of the larger one."""
    return abs(wanted - current) <= dead_band * max(current, wanted)


def rate_over(slots: Sequence[Window], now_s: float, length_s: float) -> float | None:
    """Requests per second in the slots that ended in the last ``length_s`` seconds; None where no slot has them.

    ``slots`` are disjoint and oldest first.
    """
    recent = takewhile(lambda slot: slot.end_s > now_s - length_s, reversed(slots))
    counted = [(slot.requests, slot.end_s - slot.start_s) for slot in recent if slot.requests is not None]
    spent_s = sum(length_s for _, length_s in counted)
    return sum(requests for requests, _ in counted) / spent_s if spent_s > 0 else None


def floor_weight(others: int, share: float, vms: int) -> int:
    """The weight of each of ``vms`` VMs that together are to get ``share`` (0 .. 1) beside weights of ``others``."""
    return math.ceil(share / (1 - share) * others / vms)
