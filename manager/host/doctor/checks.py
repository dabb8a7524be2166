"""All checks of this host, in the order of the report."""

from __future__ import annotations

from functools import partial

from manager.host.doctor import (
    agent_check,
    batch_group_check,
    hardware_check,
    load_check,
    resctrl_check,
    signal_check,
    tap_check,
    thread_check,
    virtualization,
    warp_check,
    weight_check,
)
from manager.host.doctor.check import Check
from manager.host.doctor.scratch import on_scratch_group

CHECKS = (
    Check("kernel", "Host", "Kernel", hardware_check.kernel),
    Check("privileges", "Host", "Privileges", hardware_check.privileges, essential=True),
    Check("container", "Host", "Container", hardware_check.container),
    Check("virtual-machine", "Host", "Real hardware", hardware_check.virtual_machine),
    Check("cgroup", "CPU weights", "CPU controller", weight_check.cgroup, essential=True),
    Check("cgroup-delegation", "CPU weights", "Delegation", weight_check.delegation, essential=True),
    Check("cpu-weight", "CPU weights", "Weights are taken", weight_check.weight, essential=True),
    Check("cpu-weight-acts", "CPU weights", "Weights act", weight_check.weights_act),
    Check("cpu-idle", "CPU weights", "Idle class for batch", partial(on_scratch_group, attempt=weight_check.try_idle)),
    Check("cpu-quota", "CPU weights", "Limits", partial(on_scratch_group, attempt=weight_check.try_quota)),
    Check("cpu-usage", "CPU weights", "CPU time of groups", weight_check.usage),
    Check("schedstat", "CPU weights", "vCPU wait", weight_check.schedstat),
    Check("batch-group", "CPU weights", "Group above batch VMs", batch_group_check.batch_group),
    Check("affinity", "Pinning", "Pinning of threads", warp_check.affinity_of_threads, essential=True),
    Check("eevdf-slice", "Warp", "EEVDF slices", warp_check.slices),
    Check("sched-features", "Warp", "Scheduler features", warp_check.features),
    Check("sched-ext", "Warp", "sched_ext", warp_check.sched_ext),
    Check("bvt-kernel", "Warp", "BVT in the kernel", warp_check.bvt_kernel),
    Check("warp", "Warp", "Warps", warp_check.best),
    Check("real-time-limit", "Warp", "Limits of real-time threads", warp_check.real_time),
    Check("resctrl", "Cache", "resctrl", resctrl_check.resctrl),
    Check("cache-allocation", "Cache", "Cache allocation", resctrl_check.allocation),
    Check("memory-bandwidth", "Cache", "Memory bandwidth", resctrl_check.bandwidth),
    Check("cache-monitoring", "Cache", "Cache monitoring", resctrl_check.monitoring),
    Check("resctrl-groups", "Cache", "Groups of other tools", resctrl_check.groups),
    Check("pressure", "Signals", "Pressure (PSI)", signal_check.pressure),
    Check("memory-faults", "Signals", "Memory faults", signal_check.memory),
    Check("disk-use", "Signals", "Use of disks", signal_check.disks),
    Check("network-use", "Signals", "Use of interfaces", signal_check.network),
    Check("performance-counters", "Signals", "Performance counters", signal_check.counters),
    Check("btf", "BPF", "Kernel types (BTF)", warp_check.btf),
    Check("bpffs", "BPF", "BPF file system", warp_check.bpffs),
    Check("bpftool", "BPF", "bpftool", warp_check.bpftool),
    Check("thread-times", "BPF", "Times of vCPUs in one call", thread_check.times),
    Check("taps", "BPF", "Response times at taps", tap_check.taps),
    Check("libvirt", "Virtualisation", "libvirt", virtualization.connection, essential=True),
    Check("libvirt-events", "Virtualisation", "Domain events", virtualization.events),
    Check("libvirt-tuning", "Virtualisation", "Tuning by libvirt", virtualization.tuning),
    Check("kvm", "Virtualisation", "KVM", virtualization.kvm),
    Check("accelerator", "Virtualisation", "Running domains", virtualization.accelerator),
    Check("clocksource", "Time and power", "Time source", hardware_check.clocksource),
    Check("cpufreq", "Time and power", "Clock frequency", hardware_check.cpufreq),
    Check("cpuidle", "Time and power", "Idle states", hardware_check.cpuidle),
    Check("smt", "Time and power", "Threads of a core (SMT)", hardware_check.smt),
    Check("numa-balancing", "Scheduling", "NUMA balancing", hardware_check.numa),
    Check("isolation", "Scheduling", "Isolated pCPUs", hardware_check.isolation),
    Check("autogroup", "Scheduling", "Autogroup", hardware_check.autogroup),
    Check("rt-throttling", "Scheduling", "Real-time limit", hardware_check.real_time_throttling),
    Check("load-outside", "Load", "Load outside the VMs", load_check.load_outside),
    *(
        Check(f"other-{other.id}", "Other managers", other.id, partial(load_check.running, other=other))
        for other in load_check.OTHERS
    ),
    Check("agent", agent_check.AREA, "Agent", agent_check.agent),
    Check("journal", agent_check.AREA, "Journal", agent_check.journal),
    Check("limits", agent_check.AREA, "Limits of the agent", agent_check.limits),
    Check("set-aside", agent_check.AREA, "Damaged files", agent_check.set_aside),
    Check("state-dir", agent_check.AREA, "State directory", agent_check.state_dir, essential=True),
)
