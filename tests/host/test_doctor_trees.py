"""What the doctor reads off a host, on trees with files as kernels write them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from manager.host import warp_mechanisms
from manager.host.doctor.check import Subject
from manager.host.doctor.checks import CHECKS
from manager.host.doctor.weight_check import Race, judge, try_idle, try_quota, try_weights
from manager.host.registry import CGROUP_V1, CGROUP_V2, HostPaths
from manager.loop.journal import Journal
from manager.model.cpus import parse_cpus
from manager.model.finding import Finding, FindingStatus

V1 = """\
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
26 24 0:24 / /sys/fs/cgroup/ca rw - cgroup cgroup rw,cpuacct
"""
V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
RESCTRL = "40 23 0:30 / /sys/fs/resctrl rw - resctrl resctrl rw\n"
BPFFS = "41 23 0:31 / /sys/fs/bpf rw - bpf bpf rw\n"
CPU_SYS = "sys/devices/system/cpu"
IDENTITY = "proc/sys/kernel/sched_group_identity_enabled"
WARP = "sys/fs/cgroup/cpu/machine/cpu.bvt_warp_ns"
CATS = "flags\t: fpu cat_l3 mba cqm\n"


def subject_of(folder: Path, **options: object) -> Subject:
    (folder / "state").mkdir(exist_ok=True)
    lock, state = folder / "run/equipoise-agent.lock", folder / "state"
    return replace(Subject(HostPaths(folder), "test:///default", lock, state, "journal.db"), **options)  # type: ignore[arg-type]


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def look(identity: str, subject: Subject) -> Finding:
    [check] = [one for one in CHECKS if one.id == identity]
    return check.run(subject)


def cpufreq(*governors: str) -> dict[str, str]:
    return {f"{CPU_SYS}/cpufreq/policy{i}/scaling_governor": f"{name}\n" for i, name in enumerate(governors)}


def idle(cpu: int, state: int, name: str, latency_us: int, disable: int = 0) -> dict[str, str]:
    values = {"name": name, "latency": latency_us, "disable": disable}
    return {f"{CPU_SYS}/cpu{cpu}/cpuidle/state{state}/{key}": f"{value}\n" for key, value in values.items()}


def clock(current: str, available: str) -> dict[str, str]:
    folder = "sys/devices/system/clocksource/clocksource0"
    return {f"{folder}/current_clocksource": f"{current}\n", f"{folder}/available_clocksource": f"{available}\n"}


def caps(user: int, effective: int) -> dict[str, str]:
    return {"proc/self/status": f"Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{effective:016x}\n"}


def sysctl(**values: int) -> dict[str, str]:
    return {f"proc/sys/kernel/{name}": f"{value}\n" for name, value in values.items()}


def sched_ext(state: str, ops: str = "") -> dict[str, str]:
    folder = "sys/kernel/sched_ext"
    return {f"{folder}/state": f"{state}\n"} | ({f"{folder}/root/ops": f"{ops}\n"} if ops else {})


def mounts(*lines: str) -> dict[str, str]:
    return {"proc/self/mountinfo": "".join(lines)}


def v2(root: str, machine: str | None = None) -> dict[str, str]:
    files = {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n", "sys/fs/cgroup/cgroup.subtree_control": root}
    if machine is not None:
        files["sys/fs/cgroup/machine.slice/cgroup.subtree_control"] = machine
    return mounts(V2) | files


def process(pid: int, comm: str, *command: str) -> dict[str, str]:
    return {f"proc/{pid}/comm": f"{comm}\n", f"proc/{pid}/cmdline": "\0".join([*command, ""])}


SCOPE = {r"sys/fs/cgroup/machine.slice/machine-qemu\x2d1\x2dweb.scope/cgroup.procs": ""}
OURS = {"sys/fs/cgroup/machine.slice/equipoise-agent.service/cgroup.procs": ""}
ONLINE = {f"{CPU_SYS}/online": "0-3\n"}
CASES: list[tuple[str, dict[str, str], str, str]] = [
    ("kernel", {"proc/sys/kernel/osrelease": "6.12.9-amd64\n"}, "works", "Linux 6.12.9-amd64"),
    ("kernel", {"proc/sys/kernel/osrelease": "4.18.0-553.el8\n"}, "warning", "older than 5.4"),
    ("kernel", {}, "unknown", "No such file"),
    ("privileges", caps(0, 0x1FFFFFFFFFF), "works", "root with"),
    ("privileges", caps(1000, 0x1FFFFFFFFFF), "missing", "user 1000"),
    ("privileges", caps(0, 0x1FFFFFFFFFF & ~(1 << 23)), "missing", "CAP_SYS_NICE"),
    ("privileges", caps(0, 0x1FFFFFFFFFF & ~(1 << 21)), "degraded", "CAP_SYS_ADMIN"),
    ("privileges", {"proc/self/status": "Name:\tx\n"}, "unknown", "names no Uid or CapEff"),
    ("virtual-machine", {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\n"}, "warning", "virtual machine"),
    ("virtual-machine", {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vmx\n"}, "works", "real hardware"),
    ("cgroup", mounts(V1), "works", "cgroup v1: cpu.shares"),
    ("cgroup", v2("cpu\n"), "works", "cgroup v2: cpu.weight"),
    ("cgroup", mounts(V2), "missing", "no cgroup hierarchy"),
    ("cgroup-delegation", mounts(V1), "works", "cgroup v1"),
    ("cgroup-delegation", v2("cpuset cpu\n"), "works", "no VM is running yet"),
    ("cgroup-delegation", v2("cpuset cpu\n", "memory\n"), "works", "no VM is running yet"),
    ("cgroup-delegation", v2("cpuset memory\n", "\n"), "warning", "cgroup/cgroup.subtree_control"),
    ("cgroup-delegation", v2("cpuset cpu\n", "cpu\n") | SCOPE, "works", "the root and machine.slice"),
    ("cgroup-delegation", v2("cpuset memory\n", "cpu\n") | SCOPE, "missing", "cgroup/cgroup.subtree_control"),
    ("cgroup-delegation", v2("cpu\n", "cpuset\n") | SCOPE, "missing", "machine.slice/cgroup.subtree_control"),
    ("cgroup-delegation", v2("cpu\n", "cpuset\n") | OURS, "works", "no VM is running yet"),
    ("cgroup-delegation", mounts(), "missing", "no cgroup hierarchy"),
    ("cpu-weight", mounts(), "missing", "no cgroup hierarchy"),
    ("cpu-weight", v2("memory\n"), "warning", "not enabled for groups below the root"),
    ("cpu-weight-acts", v2("memory\n"), "unknown", "not enabled for groups below the root"),
    ("cpu-idle", v2("memory\n"), "unknown", "not enabled for groups below the root"),
    ("cpu-quota", v2("memory\n"), "unknown", "not enabled for groups below the root"),
    ("cpu-usage", mounts(V1) | {"sys/fs/cgroup/ca/cpuacct.usage": "123\n"}, "works", "cpuacct.usage"),
    ("cpu-usage", v2("") | {"sys/fs/cgroup/cpu.stat": "usage_usec 5\nuser_usec 3\n"}, "works", "cpu.stat"),
    ("cpu-usage", v2("") | {"sys/fs/cgroup/cpu.stat": "nr_periods 0\n"}, "degraded", "no hierarchy counts"),
    ("schedstat", {"proc/1/schedstat": "1 2 3\n"}, "works", "schedstat"),
    ("schedstat", {}, "degraded", "how long vCPUs wait"),
    (
        "sched-features",
        {"sys/kernel/debug/sched/features": "PLACE_LAG RUN_TO_PARITY PREEMPT_SHORT"},
        "works",
        "PREEMPT",
    ),
    ("sched-features", {"sys/kernel/debug/sched/features": "PLACE_LAG NO_PREEMPT_SHORT"}, "degraded", "PREEMPT_SHORT"),
    ("sched-features", {}, "unknown", "debugfs"),
    ("sched-ext", {}, "missing", "no sched_ext"),
    ("sched-ext", sched_ext("disabled"), "works", "no scheduler is loaded"),
    ("sched-ext", sched_ext("enabled", "scx_rusty_1.0"), "warning", "'scx_rusty_1.0' of another tool"),
    ("sched-ext", sched_ext("enabled", "equipoise_bvt"), "works", "own scheduler"),
    ("sched-ext", sched_ext("enabling"), "warning", "'unknown'"),
    ("bvt-kernel", {"proc/sys/kernel/osrelease": "6.1.0\n"} | mounts(V1), "missing", "ordinary kernel"),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "5.10.134-13.al8\n", IDENTITY: "1\n"} | mounts(V1),
        "works",
        "a class of -2 to 2",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "5.10.134-13.al8\n", IDENTITY: "0\n"} | mounts(V1),
        "degraded",
        "switched off",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "4.19.91-25.3.al7\n", IDENTITY: "1\n"} | mounts(V1),
        "warning",
        "crashes",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "4.19.91-25.6.al7\n", IDENTITY: "1\n"} | mounts(V1),
        "works",
        "a class",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "3.5.0\n", WARP: "0\n"} | mounts(V1) | sysctl(sched_bvt_place_epsilon=1),
        "works",
        "nanoseconds",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "3.5.0\n", WARP: "0\n"} | mounts(V1),
        "unknown",
        "nothing says whether",
    ),
    (
        "bvt-kernel",
        {"proc/sys/kernel/osrelease": "4.19.91-26.1.al7\n", WARP: "0\n"} | mounts(V1),
        "degraded",
        "does not act on it",
    ),
    (
        "warp",
        {"proc/sys/kernel/osrelease": "5.10.134-13.al8\n", IDENTITY: "1\n"} | mounts(V1),
        "missing",
        "by nothing of this kernel that was measured to help; group identity is there, of which nobody measured that",
    ),
    (
        "warp",
        {"proc/sys/kernel/osrelease": "6.18.0\n"} | mounts(V1) | sched_ext("enabled", "equipoise_bvt"),
        "works",
        "by Equipoise's sched_ext scheduler: it can",
    ),
    (
        "warp",
        {"proc/sys/kernel/osrelease": "6.18.0\n"} | mounts(V1) | sched_ext("enabled", "scx_lavd"),
        "missing",
        "by nothing: the sched_ext scheduler 'scx_lavd' of another tool decides",
    ),
    ("real-time-limit", v2("cpu\n"), "missing", "the cpu controller is that of cgroup v2"),
    ("real-time-limit", mounts(V1), "missing", "without CONFIG_RT_GROUP_SCHED"),
    (
        "resctrl",
        {"proc/filesystems": "nodev\tproc\n", "proc/cpuinfo": CATS} | mounts(),
        "missing",
        "the CPU has cat_l3",
    ),
    ("resctrl", {"proc/filesystems": "nodev\tproc\n", "proc/cpuinfo": "flags: fpu\n"}, "missing", "neither the CPU"),
    ("resctrl", {"proc/filesystems": "nodev\tresctrl\n", "proc/cpuinfo": CATS} | mounts(), "warning", "not mounted"),
    (
        "resctrl",
        {"proc/filesystems": "nodev\tresctrl\n", "proc/cpuinfo": CATS} | mounts(RESCTRL),
        "works",
        "mounted at",
    ),
    (
        "cache-allocation",
        {"sys/fs/resctrl/info/L3/cbm_mask": "fffff\n", "sys/fs/resctrl/info/L3/num_closids": "16\n"} | mounts(RESCTRL),
        "works",
        "L3: cbm_mask fffff, num_closids 16",
    ),
    (
        "cache-allocation",
        {"sys/fs/resctrl/info/L3DATA/cbm_mask": "ff\n"} | mounts(RESCTRL),
        "works",
        "L3DATA: cbm_mask ff",
    ),
    ("cache-allocation", {"proc/cpuinfo": CATS} | mounts(), "missing", "the CPU has cache allocation, but resctrl"),
    ("memory-bandwidth", {"proc/cpuinfo": "flags: fpu\n"} | mounts(RESCTRL), "missing", "this CPU has no memory"),
    (
        "cache-monitoring",
        {"sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n"} | mounts(RESCTRL),
        "works",
        "llc_occupancy mbm_total_bytes",
    ),
    ("resctrl-groups", mounts(), "works", "not mounted"),
    (
        "resctrl-groups",
        {f"sys/fs/resctrl/{name}/schemata": "" for name in ("info", "mon_groups", "mon_data", "equipoise-c1", "pqos1")}
        | mounts(RESCTRL),
        "warning",
        "1 groups of other tools use up classes and cache ways: pqos1",
    ),
    ("btf", {"sys/kernel/btf/vmlinux": "x"}, "works", "vmlinux"),
    ("btf", {}, "missing", "vmlinux"),
    ("bpffs", mounts(BPFFS), "works", "sys/fs/bpf"),
    ("bpffs", mounts(V1), "missing", "no BPF file system"),
    ("clocksource", clock("tsc", "tsc hpet acpi_pm"), "works", "tsc"),
    ("clocksource", clock("kvm-clock", "kvm-clock tsc"), "works", "kvm-clock"),
    ("clocksource", clock("hpet", "hpet acpi_pm"), "degraded", "reading it is slow"),
    ("clocksource", clock("hpet", "tsc hpet"), "degraded", "slow"),
    ("clocksource", {}, "unknown", "does not say"),
    ("cpufreq", cpufreq("performance", "performance"), "works", "performance on 2 of 2"),
    ("cpufreq", cpufreq("performance", "powersave"), "degraded", "powersave on 1 of 2 policies"),
    ("cpufreq", {}, "works", "does not change"),
    ("cpuidle", ONLINE | idle(0, 1, "C1", 2) | idle(0, 2, "C6", 133), "warning", "C6 (133 us) on pCPUs 0;"),
    ("cpuidle", ONLINE | idle(2, 2, "C6", 133) | idle(3, 2, "C6", 133), "warning", "C6 (133 us) on pCPUs 2-3"),
    ("cpuidle", ONLINE | idle(0, 2, "C6", 133, disable=1), "works", "no idle state of the managed"),
    ("cpuidle", ONLINE | idle(0, 2, "C6", 100), "works", "no idle state of the managed"),
    ("cpuidle", ONLINE, "works", "chooses no idle states"),
    ("smt", {f"{CPU_SYS}/smt/control": "on\n", f"{CPU_SYS}/smt/active": "1\n"}, "warning", "share a core"),
    ("smt", {f"{CPU_SYS}/smt/control": "forceoff\n", f"{CPU_SYS}/smt/active": "0\n"}, "works", "forceoff"),
    ("numa-balancing", sysctl(numa_balancing=0), "works", "does not move"),
    ("numa-balancing", sysctl(numa_balancing=1) | {"sys/devices/system/node/online": "0-1\n"}, "warning", "nodes 0-1"),
    (
        "numa-balancing",
        sysctl(numa_balancing=1) | {"sys/devices/system/node/online": "0\n"},
        "works",
        "one memory node",
    ),
    ("isolation", ONLINE | {f"{CPU_SYS}/isolated": "2-3\n"}, "warning", "pCPUs 2-3"),
    ("isolation", ONLINE | {f"{CPU_SYS}/isolated": "\n", f"{CPU_SYS}/nohz_full": "1\n"}, "warning", "nohz_full="),
    ("isolation", ONLINE | {f"{CPU_SYS}/isolated": "\n", f"{CPU_SYS}/nohz_full": "  (null)\n"}, "works", "neither"),
    ("isolation", ONLINE | {f"{CPU_SYS}/isolated": "nonsense\n"}, "unknown", "nonsense"),
    ("autogroup", sysctl(sched_autogroup_enabled=1), "works", "on:"),
    ("autogroup", {}, "missing", "no autogroup"),
    ("rt-throttling", sysctl(sched_rt_runtime_us=-1), "warning", "for ever"),
    ("rt-throttling", sysctl(sched_rt_runtime_us=950_000), "works", "95 %"),
    ("other-irqbalance", process(7, "irqbalance", "/usr/sbin/irqbalance", "--foreground"), "warning", "process 7"),
    ("other-irqbalance", process(7, "vi", "vi", "irqbalance"), "works", "not running"),
    ("other-tuned", process(8, "tuned", "/usr/bin/python3", "/usr/sbin/tuned", "-l"), "warning", "process 8"),
    ("other-nova-compute", process(9, "python3", "/usr/bin/python3", "/usr/bin/nova-compute"), "warning", "process 9"),
    ("other-vdsm", process(9, "vdsmd", "/usr/bin/python3", "/usr/share/vdsm/vdsmd"), "warning", "vdsmd runs"),
    ("other-ksm", process(9, "ksmtuned", "/bin/bash", "/usr/sbin/ksmtuned"), "warning", "merges equal"),
    ("kvm", {}, "missing", "TCG"),
    ("kvm", {"dev/kvm": ""}, "missing", "is not KVM's"),
    ("agent", {}, "warning", "there is no lock"),
    ("journal", {}, "works", "nothing was ever changed"),
]


@pytest.mark.parametrize(("identity", "files", "status", "says"), CASES)
def test_a_tree_is_judged(tmp_path: Path, identity: str, files: dict[str, str], status: str, says: str) -> None:
    write(tmp_path, files)
    found = look(identity, subject_of(tmp_path))
    assert found.status == status, found.detail
    assert says in found.detail
    if status != "works":
        assert found.advice, "what is not in order comes with what to do"


@pytest.mark.parametrize("links", [{"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}])
def test_a_container_is_known_by_its_namespaces_or_its_marks(tmp_path: Path, links: dict[str, str]) -> None:
    folder = tmp_path / "proc/self/ns"
    folder.mkdir(parents=True)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    subject = subject_of(tmp_path)
    assert look("container", subject).status == "works"
    write(tmp_path, {".dockerenv": ""})
    assert ".dockerenv" in look("container", subject).detail
    (folder / "pid").unlink()
    (folder / "pid").symlink_to("pid:[4026532999]")
    found = look("container", subject)
    assert (found.status, found.detail.split()[1]) == ("degraded", "pid")


def test_managed_cpus_alone_count(tmp_path: Path) -> None:
    write(tmp_path, ONLINE | idle(0, 2, "C6", 133) | idle(1, 1, "C1", 2) | {f"{CPU_SYS}/isolated": "0\n"})
    subject = subject_of(tmp_path, managed_cpus=parse_cpus("1-3"))
    assert look("cpuidle", subject).status == "works"
    assert look("isolation", subject).status == "works"


def group(folder: Path, weight_file: str, **files: str) -> Path:
    write(folder, {weight_file: "0"} | {name.replace("_", ".", 1): text for name, text in files.items()})
    return folder


def test_a_group_that_keeps_no_idle_class_or_weight_is_noticed(tmp_path: Path) -> None:
    """On plain files, which refuse nothing: what the kernel does to an idle group's weight is not seen here."""
    v1 = group(tmp_path / "v1", "cpu.shares", cpu_idle="0")
    assert try_weights(CGROUP_V1, v1).status == "works"
    assert try_idle(CGROUP_V1, v1).status == "degraded"
    bare = tmp_path / "bare"
    bare.mkdir()
    assert try_weights(CGROUP_V2, bare).status == "missing"
    assert try_idle(CGROUP_V2, bare).status == "missing"
    assert try_quota(CGROUP_V2, bare).status == "missing"


def test_what_is_written_and_not_kept_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = group(tmp_path, "cpu.weight", cpu_idle="0", cpu_max="max 100000")
    monkeypatch.setattr(Path, "write_text", lambda _self, text: len(text))
    for tried in (try_weights, try_idle, try_quota):
        assert tried(CGROUP_V2, folder).status == "ignored"


@pytest.mark.parametrize(
    ("heavy_ms", "light_ms", "scheduler", "status", "essential"),
    [
        (300, 30, "", "works", False),
        (90, 30, "", "works", False),
        (89, 31, "", "ignored", True),
        (150, 150, "scx_simple", "ignored", True),
        (300, 0, "", "works", False),
        (50, 5, "", "unknown", False),
    ],
)
def test_weights_act_from_a_ratio_of_three(
    heavy_ms: int, light_ms: int, scheduler: str, status: str, essential: bool
) -> None:
    found = judge(Race(1, heavy_ms * 1_000_000, light_ms * 1_000_000), scheduler)
    assert (found.status, found.essential) == (status, essential)
    assert scheduler in found.detail


@pytest.mark.parametrize(
    ("default_ns", "scheduler", "status"),
    [(3_000_000, "", "works"), (None, "", "missing"), (3_000_000, "scx_lavd", "degraded")],
)
def test_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_ns: int | None, scheduler: str, status: str
) -> None:
    monkeypatch.setattr(warp_mechanisms, "default_slice_ns", lambda: default_ns)
    write(tmp_path, sched_ext("enabled", scheduler) if scheduler else {})
    assert look("eevdf-slice", subject_of(tmp_path)).status == status


def journal(folder: Path, *rows: tuple[str, int]) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as database, database:
        database.execute("CREATE TABLE owned (boot_id TEXT, is_external INTEGER)")
        database.executemany("INSERT INTO owned VALUES (?, ?)", rows)


def test_journal_is_read_and_not_touched(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "this\n"})
    journal(subject.state_dir, ("this", 0), ("this", 0), ("earlier", 0))
    before = (subject.state_dir / "journal.db").read_bytes()
    assert "2 settings of this boot" in look("journal", subject).detail
    assert (subject.state_dir / "journal.db").read_bytes() == before
    assert [one.name for one in subject.state_dir.iterdir()] == ["journal.db"]


def test_a_journal_in_use_is_readable(tmp_path: Path) -> None:
    """As the agent itself makes it."""
    subject = subject_of(tmp_path)
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "this\n"})
    used = Journal(subject.state_dir / subject.journal_name, "this")
    found = look("journal", subject)
    used.close()
    assert (found.status, found.detail) == ("works", "readable; 0 settings of this boot are changed")


def test_journal_with_foreign_changes_and_one_that_is_none(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "this\n"})
    journal(subject.state_dir, ("this", 0), ("this", 1))
    found = look("journal", subject)
    assert (found.status, found.detail[:36]) == (FindingStatus.WARNING, "2 settings are changed, 1 of them we")
    (subject.state_dir / "journal.db").write_bytes(b"this is no database, by any means")
    assert look("journal", subject).status == "degraded"


def test_state_dir_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    assert look("state-dir", subject).status in {"works", "degraded"}, "degraded: this machine's disk is nearly full"
    assert list(subject.state_dir.iterdir()) == []
    assert look("state-dir", replace(subject, state_dir=tmp_path / "absent")).status == "warning"
    found = look("state-dir", replace(subject, state_dir=Path("/proc/self")))
    assert (found.status, found.broken) == ("missing", True)
