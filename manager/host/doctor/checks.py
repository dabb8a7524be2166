"""All checks of this host, in the order of the report."""

from __future__ import annotations

from manager.host.doctor import (
    agent,
    base,
    bpf,
    cache,
    hardware,
    kernel_settings,
    load,
    others,
    threads,
    virtualization,
    warp,
    weights,
)

CHECKS = (
    *base.CHECKS,
    *weights.CHECKS,
    *threads.CHECKS,
    *warp.CHECKS,
    *cache.CHECKS,
    *bpf.CHECKS,
    *virtualization.CHECKS,
    *hardware.CHECKS,
    *kernel_settings.CHECKS,
    *load.CHECKS,
    *others.CHECKS,
    *agent.CHECKS,
)
