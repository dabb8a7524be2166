"""What a decision costs, by policy: 200 VMs of 20 applications on 64 pCPUs, some of which violate their SLAs.

    python -m tests.bench.decisions

Prints the median and the worst CPU time of decisions one after the other, each with the memory of the one before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from manager.model.decision import Memory, Snapshot, VmView
from manager.model.registration import Tier, VmClass
from policies.base import Policy
from policies.installed import load_policies
from tests.unit.build import view
from tests.unit.test_auto import application, moment, on_pcpus

APPLICATIONS, VMS_EACH, BATCH_VMS, PCPUS, TICKS = 20, 5, 100, 64, 40
TARGET_MS = 200.0


def snapshot(at_s: float, violated: int) -> Snapshot:
    """Of all applications the first ``violated`` have percentiles of 1.3 times their targets, the others of 0.4."""
    vms: list[VmView] = []
    applications = []
    for number in range(APPLICATIONS):
        name = f"app-{number:02}"
        slowest_ms = TARGET_MS * (1.3 if number < violated else 0.4)
        shop = application(name, [slowest_ms / 3, slowest_ms / 2, slowest_ms], TARGET_MS, at_s)
        names = tuple(f"{name}-{each}" for each in range(VMS_EACH))
        applications.append(replace(shop, application=replace(shop.application, tiers=(Tier("web", names),))))
        vms += (_critical(vm, name) for vm in names)
    vms += (
        replace(view(f"batch-{number}", VmClass.BATCH, weight=1), cpu_share=0.3 / PCPUS, run_delay_share=0.7)
        for number in range(BATCH_VMS)
    )
    return on_pcpus(moment(at_s, *applications, vms=vms), PCPUS)


def _critical(name: str, application: str) -> VmView:
    vm = replace(view(name, weight=10_000), application=application, tier="web", vcpus=2)
    return vm.with_rates(0.3 / PCPUS, 0.12, (0.15, 0.15), (0.06, 0.06))


def decision_times_ms(policy: Policy, snapshots: Sequence[Snapshot]) -> list[float]:
    """CPU time of each decision, in ms."""
    memory: Memory = None
    times_ms: list[float] = []
    for each in snapshots:
        began_s = time.thread_time()
        decision = policy.decide(each, memory)
        times_ms.append(1000 * (time.thread_time() - began_s))
        memory = decision.memory
    return times_ms


def main() -> None:
    """Print a line for each policy and number of violated SLAs."""
    policies = load_policies()
    for violated in (0, 1, 4, 10):
        snapshots = [snapshot(1000.0 + 5 * tick, violated) for tick in range(TICKS)]
        for name in ("priority", "fair", "auto"):
            times_ms = decision_times_ms(policies[name].policy, snapshots)
            print(f"{violated:2} violated, {name}: median {median(times_ms):.2f} ms, worst {max(times_ms):.2f} ms")


if __name__ == "__main__":
    main()
