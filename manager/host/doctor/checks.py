"""All checks of this host, in the order of the report."""

from __future__ import annotations

from manager.host.doctor import (
    agent_check,
    base_check,
    bpf_check,
    hardware_check,
    kernel_settings,
    load_check,
    others,
    resctrl_check,
    thread_check,
    virtualization,
    warp_check,
    weight_check,
)

CHECKS = (
    *base_check.CHECKS,
    *weight_check.CHECKS,
    *thread_check.CHECKS,
    *warp_check.CHECKS,
    *resctrl_check.CHECKS,
    *bpf_check.CHECKS,
    *virtualization.CHECKS,
    *hardware_check.CHECKS,
    *kernel_settings.CHECKS,
    *load_check.CHECKS,
    *others.CHECKS,
    *agent_check.CHECKS,
)
