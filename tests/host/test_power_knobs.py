"""Resume latencies and governors in a tree of kernel files, and what the doctor says of these."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.doctor import hardware_check, power_check
from manager.host.doctor.check import Subject
from manager.host.power_knobs import PowerKnobs
from manager.host.registry import HostPaths
from manager.host.resources.pcpu_power import read_power
from manager.model.finding import FindingStatus
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.power import ANOTHER_GOVERNOR, ANY_LATENCY, GOVERNORS, NO_LATENCY, PERFORMANCE, ClockDomain
from manager.model.resource_use import PcpuPower

CPUS = frozenset(range(4))
LATENCIES = [KnobKey(HOST_UUID, Knob.RESUME_LATENCY, cpu) for cpu in range(4)]
GOVERNOR = KnobKey(HOST_UUID, Knob.GOVERNOR, 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four pCPUs, of which two each share a clock."""
    cpus = tmp_path / "sys/devices/system/cpu"
    for cpu in CPUS:
        (cpus / f"cpu{cpu}/power").mkdir(parents=True)
        (cpus / f"cpu{cpu}/cpuidle/state1").mkdir(parents=True)
        (cpus / f"cpu{cpu}/power/pm_qos_resume_latency_us").write_text("0\n")
    for policy, sharing in ((0, "0 1"), (2, "2 3")):
        folder = cpus / f"cpufreq/policy{policy}"
        folder.mkdir(parents=True)
        (folder / "related_cpus").write_text(f"{sharing}\n")
        (folder / "scaling_available_governors").write_text("performance powersave\n")
        (folder / "scaling_governor").write_text("powersave\n")
    (cpus / "cpufreq/boost").write_text("1\n")
    (cpus / "online").write_text("0-3\n")
    return tmp_path


def files(root: Path, cpus: frozenset[int] = CPUS) -> PowerKnobs:
    return PowerKnobs(HostPaths(root), lambda: cpus)


def latency_file(root: Path, cpu: int = 0) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"


def policy(root: Path, number: int = 2) -> Path:
    return root / f"sys/devices/system/cpu/cpufreq/policy{number}"


def test_all_managed_pcpus_and_the_clocks_that_they_have_are_read(root: Path) -> None:
    latency_file(root, 1).write_text("n/a\n")
    latency_file(root, 2).write_text("30\n")
    held = files(root).read(None)
    assert [held[key] for key in LATENCIES] == [ANY_LATENCY, NO_LATENCY, 30, ANY_LATENCY]
    assert held[GOVERNOR] == GOVERNORS.index("powersave")
    assert files(root).domains() == {0: ClockDomain(frozenset({0, 1}), True), 2: ClockDomain(frozenset({2, 3}), True)}
    assert set(files(root, frozenset({3})).read(None)) == {LATENCIES[3], GOVERNOR}


@pytest.mark.parametrize(("value", "text"), [(ANY_LATENCY, "0"), (NO_LATENCY, "n/a"), (1, "1"), (20, "20")])
def test_a_latency_is_written_in_the_kernels_words_and_read_back(root: Path, value: int, text: str) -> None:
    assert files(root).write(LATENCIES[0], value, None) == value
    assert latency_file(root).read_text() == text


def test_a_governor_is_written_and_read_back_and_one_that_is_not_known_is_no_number_of_ours(root: Path) -> None:
    assert files(root).write(GOVERNOR, PERFORMANCE, None) == PERFORMANCE
    assert (policy(root) / "scaling_governor").read_text() == "performance"
    (policy(root) / "scaling_governor").write_text("interactive\n")
    assert files(root).read(None)[GOVERNOR] == ANOTHER_GOVERNOR


@pytest.mark.parametrize(
    ("key", "value"), [(GOVERNOR, ANOTHER_GOVERNOR), (GOVERNOR, 7), (LATENCIES[0], -2), (LATENCIES[0], CPUS)]
)
def test_what_is_no_value_is_not_written(root: Path, key: KnobKey, value: int | frozenset[int]) -> None:
    with pytest.raises(HostError, match="takes"):
        files(root).write(key, value, None)
    assert latency_file(root).read_text() == "0\n"


def test_a_clock_that_goes_with_its_pcpus_is_gone_and_text_of_another_kind_is_an_error(root: Path) -> None:
    for file in policy(root).iterdir():
        file.unlink()
    policy(root).rmdir()
    assert GOVERNOR not in files(root).read(None)
    with pytest.raises(VmVanished):
        files(root).write(GOVERNOR, PERFORMANCE, None)
    latency_file(root).write_text("soon\n")
    with pytest.raises(HostError, match="resume latency of pCPU 0"):
        files(root).read(None)


@pytest.fixture
def offline(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel keeps the folder of a policy of which all pCPUs are offline, and answers nothing there."""
    read = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        if self.parent == policy(root):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    return root


def test_pcpus_that_are_offline_keep_no_others_from_being_read_and_restored(offline: Path) -> None:
    online = files(offline, frozenset({0, 1}))
    assert online.domains() == {0: ClockDomain(frozenset({0, 1}), True)}
    governor = KnobKey(HOST_UUID, Knob.GOVERNOR, 0)
    assert online.read(None).keys() == {*LATENCIES[:2], governor}
    assert online.held(GOVERNOR, None) is None
    assert online.write(governor, PERFORMANCE, None) == PERFORMANCE


def test_the_latency_of_a_pcpu_that_goes_offline_can_be_restored(root: Path) -> None:
    online = set(CPUS)
    power = PowerKnobs(HostPaths(root), lambda: frozenset(online))
    power.read(None)
    assert power.write(LATENCIES[3], 20, None) == 20
    online.remove(3)
    assert power.read(None)[LATENCIES[3]] == 20
    assert power.write(LATENCIES[3], ANY_LATENCY, None) == ANY_LATENCY


def test_the_doctor_looks_at_clocks_of_pcpus_that_are_online(offline: Path) -> None:
    checked = subject(offline)
    (offline / "sys/devices/system/cpu/online").write_text("0-1\n")
    assert power_check.governor(checked).detail == "`performance` can be set on 1 policies"
    assert hardware_check.cpufreq(checked).detail.startswith("powersave on 1 of 1 policies: ")


def subject(root: Path) -> Subject:
    return Subject(HostPaths(root), "test:///default", root / "lock", root, "journal.db")


def test_the_doctor_finds_both_and_changes_nothing(root: Path) -> None:
    latency_file(root).write_text("25\n")
    latency, governor = power_check.resume_latency(subject(root)), power_check.governor(subject(root))
    assert (latency.status, governor.status) == (FindingStatus.WORKS, FindingStatus.WORKS)
    assert latency.detail == "limits are taken, and idle states chosen by them on pCPUs 0-3"
    assert (latency_file(root).read_text(), (policy(root, 0) / "scaling_governor").read_text()) == ("25", "powersave")


def test_the_doctor_tells_a_host_without_them(root: Path) -> None:
    for cpu in CPUS:
        (root / f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state1").rmdir()
    assert power_check.resume_latency(subject(root)).status is FindingStatus.IGNORED
    for cpu in CPUS:
        latency_file(root, cpu).unlink()
    assert power_check.resume_latency(subject(root)).status is FindingStatus.MISSING
    (policy(root) / "scaling_available_governors").write_text("powersave\n")
    assert power_check.governor(subject(root)).detail == "no governor `performance` on 1 of 2 policies"
    for number in (0, 2):
        policy(root, number).rename(root / f"gone{number}")
    assert power_check.governor(subject(root)).status is FindingStatus.MISSING


def test_how_often_a_pcpu_resumed_how_long_that_takes_and_its_clock(root: Path) -> None:
    cpu = root / "sys/devices/system/cpu/cpu0"
    for state, usage, latency in (("state0", 100, 0), ("state1", 10, 133)):
        (cpu / "cpuidle" / state).mkdir(exist_ok=True)
        (cpu / "cpuidle" / state / "usage").write_text(f"{usage}\n")
        (cpu / "cpuidle" / state / "latency").write_text(f"{latency}\n")
    assert read_power(HostPaths(root), 0) == PcpuPower(110, 1330, None, None)
    (cpu / "cpufreq").mkdir()
    (cpu / "cpufreq/scaling_cur_freq").write_text("1200000\n")
    (cpu / "cpufreq/cpuinfo_max_freq").write_text("3600000\n")
    assert read_power(HostPaths(root), 0) == PcpuPower(110, 1330, 1_200_000, 3_600_000)
    (root / "sys/devices/system/cpu/cpu3/cpuidle/state1").rmdir()
    assert read_power(HostPaths(root), 3) is None
