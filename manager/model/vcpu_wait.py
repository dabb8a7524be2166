"""vCPU wait (steal): how long the vCPUs of a VM wait for a pCPU while they could run."""

from __future__ import annotations

MATERIAL = 0.2
"""From this share of runnable time on waiting hurts: work takes a quarter longer."""


def wait_share(used_pcpus: float, waited_pcpus: float) -> float:
    """The share of the time in which vCPUs were runnable that they waited, from seconds a second of either."""
    return waited_pcpus / (used_pcpus + waited_pcpus) if waited_pcpus > 0 else 0.0
