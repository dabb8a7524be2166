"""What the doctor tries on this machine's kernel, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor import batch_group_check, scratch, weight_check
from manager.host.doctor.check import Subject
from manager.host.doctor.checks import CHECKS
from manager.host.doctor.scratch import remove_groups, scratch_group, scratch_process
from manager.host.doctor.weight_check import least_busy, race
from manager.host.process import affinity
from manager.host.registry import CgroupCpu
from manager.host.thread_scheduling import set_slice
from manager.model.finding import Finding
from tests.host.conftest import REAL, until

OURS = f"equipoise-doctor-{os.getpid()}"
SAYS_READY = 'os.write(1, b"r")'  # what each scratch process's program begins with
NO_PROCESS = 4_194_303  # above any pid: PID_MAX_LIMIT is 2^22


@pytest.fixture
def hierarchy() -> tuple[CgroupCpu, Path]:
    """The cpu controller of this machine, if groups can be made and weighted."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: real cgroups need root")
    mounts = read_mounts(REAL)
    cpu = cpu_controller(mounts)
    if cpu is None:
        pytest.skip("NOT TESTED: this machine has no cgroup hierarchy with a cpu controller")
    root = mounts.by_controller[cpu.controller][0]
    try:
        with scratch_group(root) as group:
            if not (group / cpu.weight_file).exists():
                pytest.skip("NOT TESTED: the cpu controller is not enabled for groups below the root")
    except OSError as error:
        pytest.skip(f"NOT TESTED: no cgroups can be made on this machine: {error}")
    return cpu, root


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No scratch group and no child process, whatever a test did."""
    yield
    mounts = read_mounts(REAL)
    cpu = cpu_controller(mounts)
    if cpu is not None:
        assert not (mounts.by_controller[cpu.controller][0] / OURS).exists()
    assert children() == set()


def children() -> set[int]:
    """Processes whose parent is this one and that are the doctor's."""
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid() and SAYS_READY in command:
                found.add(int(folder.name))
    return found


def look(identity: str, tmp_path: Path, quick: bool = False) -> Finding:
    [check] = [one for one in CHECKS if one.id == identity]
    return check.run(Subject(REAL, "test:///default", tmp_path / "lock", tmp_path, "journal.db", quick=quick))


@pytest.mark.parametrize("identity", ["cgroup", "cgroup-delegation", "cpu-weight", "cpu-usage"])
def test_weights_are_taken_here(hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, identity: str) -> None:
    found = look(identity, tmp_path)
    assert found.status == "works", found.detail


@pytest.mark.parametrize(("identity", "file"), [("cpu-idle", "cpu.idle"), ("cpu-quota", None)])
def test_idle_class_and_limits(
    hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, identity: str, file: str | None
) -> None:
    cpu, root = hierarchy
    with scratch_group(root) as group:
        there = (group / (file or cpu.quota_file)).exists()
    found = look(identity, tmp_path)
    assert found.status == ("works" if there else "missing"), found.detail


def until_known(look_again: Callable[[], Finding]) -> Finding:
    """The finding once the machine is not too busy to tell."""
    for _ in range(10):
        found = look_again()
        if found.status != "unknown":
            return found
    pytest.skip(f"NOT TESTED: {found.detail}")


def test_weights_act_here(hierarchy: tuple[CgroupCpu, Path], tmp_path: Path) -> None:
    found = until_known(lambda: look("cpu-weight-acts", tmp_path))
    assert found.status == "works", found.detail


def test_equal_weights_are_seen_as_weights_that_do_not_act(
    hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a kernel that ignores them."""
    monkeypatch.setattr(weight_check, "_RATIO", 1)
    found = until_known(lambda: look("cpu-weight-acts", tmp_path))
    assert (found.status, found.broken) == ("ignored", True), found.detail


def test_quick_tries_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_check, "race", None)
    monkeypatch.setattr(batch_group_check, "measure", None)
    for identity in ("cpu-weight-acts", "batch-group", "load-outside"):
        found = look(identity, tmp_path, quick=True)
        assert (found.status, found.broken) == ("unknown", False)
        assert "--quick" in found.detail


class Racer:
    """Uses as much CPU time, in milliseconds, as it was told to by each look."""

    def __init__(self, *used_ms: int) -> None:
        self._used = iter(used_ms)

    def spin(self) -> None: ...

    def cpu_ns(self) -> int:
        return next(self._used) * 1_000_000


@pytest.mark.parametrize(
    ("heavy", "light", "ratio"),
    [
        ((0, 130), (0, 13), 10),  # believed at once
        ((0, 100, 900), (0, 60, 90), 10),  # the pCPU stood still meanwhile
        ((0, 100, 300, 500), (0, 100, 300, 500), 1),  # weights do not act
    ],
)
def test_a_race_that_weights_seem_not_to_decide_is_watched_for_longer(
    heavy: tuple[int, ...], light: tuple[int, ...], ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_check.time, "sleep", lambda _s: None)
    result = weight_check._run(0, Racer(*heavy), Racer(*light))  # type: ignore[arg-type]
    assert result.ratio == ratio


def test_the_race_is_run_on_one_pcpu_at_a_low_weight(
    hierarchy: tuple[CgroupCpu, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, root = hierarchy
    seen: list[tuple[int, list[set[int]], list[int]]] = []

    def spy(pcpu: int, *racers: scratch.ScratchProcess) -> weight_check.Race:
        folder = root / OURS
        files = [folder / name / cpu.weight_file for name in (".", "heavy", "light")]
        inside = [(folder / name / "cgroup.procs").read_text().split() for name in ("heavy", "light")]
        assert inside == [[str(one.pid)] for one in racers]
        affinities = [set(affinity(one.pid)) for one in racers]
        seen.append((pcpu, affinities, [int(file.read_text()) for file in files]))
        return weight_check.Race(pcpu, 1, 1)

    monkeypatch.setattr(weight_check, "_run", spy)
    allowed = frozenset(os.sched_getaffinity(0))
    with scratch_group(root) as group:
        race(cpu, group, max(allowed))
    default = cpu.scale.default
    assert seen == [(max(allowed), [{max(allowed)}] * 2, [default // 10, default * 10, default])]


def test_a_probe_that_fails_half_way_leaves_nothing(
    hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture looks for what is left."""
    _, root = hierarchy

    def fail(*_arguments: object) -> None:
        assert (root / OURS / "light").exists()
        assert len(children()) == 2
        raise OSError(5, "an error of the disk")

    monkeypatch.setattr(weight_check, "_run", fail)
    found = look("cpu-weight-acts", tmp_path)
    assert (found.status, found.broken) == ("unknown", False)
    assert "an error of the disk" in found.detail

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(weight_check, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        look("cpu-weight-acts", tmp_path)
    monkeypatch.setattr(weight_check, "try_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        look("cpu-weight", tmp_path)


def test_a_group_that_cannot_be_made_is_said_so(
    hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_a, **_k: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    found = look("cpu-weight", tmp_path)
    assert (found.status, found.broken) == ("missing", True)
    assert "Read-only" in found.detail


def test_what_a_killed_doctor_left_is_swept_and_that_of_a_living_one_is_not(
    hierarchy: tuple[CgroupCpu, Path],
) -> None:
    _, root = hierarchy
    left, living, named = (root / f"equipoise-doctor-{who}" for who in (NO_PROCESS, os.getppid(), "notes"))
    try:
        for folder in (left, left / "heavy", living, named):
            folder.mkdir()
        with scratch_group(root):
            assert not left.exists()
            assert living.exists()
            assert named.exists()
    finally:
        for folder in (left, living, named):
            remove_groups(folder)


def test_a_terminated_doctor_leaves_nothing(hierarchy: tuple[CgroupCpu, Path], tmp_path: Path) -> None:
    _, root = hierarchy
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
    command = [
        sys.executable,
        "-m",
        "manager.cli",
        "doctor",
        "--state-dir",
        str(tmp_path),
        "--libvirt-uri",
        "test:///x",
    ]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        folder = root / f"equipoise-doctor-{process.pid}"
        until((folder / "light").exists, "the doctor tries weights")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGTERM
        assert not folder.exists()


def test_a_scratch_process_spins_only_when_told() -> None:
    with scratch_process() as one:
        waiting = Path(f"/proc/{one.pid}/stat")
        until(lambda: waiting.read_text().rpartition(")")[2].split()[0] == "S", "it waits")
        one.spin()
        start_ns = one.cpu_ns()
        until(lambda: one.cpu_ns() > start_ns + 5_000_000, "it uses CPU time")
        pid = one.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_affinity_is_tried_here(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert look("affinity", tmp_path).status in {"works", "degraded"}  # degraded: the tests run on some CPUs only
    assert os.sched_getaffinity(0) == before


def test_slice_is_set_and_read_back_where_the_kernel_has_it(tmp_path: Path) -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    found = look("eevdf-slice", tmp_path)
    if release >= (6, 12):
        assert found.status in {"works", "degraded"}, found.detail  # degraded: under sched_ext
    else:
        assert found.status == "missing", found.detail
    with pytest.raises(HostError, match="No such process"):
        set_slice(NO_PROCESS, 5_000_000)


def test_a_limit_of_real_time_threads_is_tried_here(tmp_path: Path) -> None:
    there = Path("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").exists()
    assert look("real-time-limit", tmp_path).status == ("works" if there else "missing")


def test_the_least_busy_pcpu_is_the_idlest_of_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(({0: 10, 1: 10, 2: 10, 3: 10}, {0: 15, 1: 17, 2: 19, 3: 17}))
    monkeypatch.setattr(weight_check, "_idle_ticks", lambda _paths: next(ticks))
    assert least_busy(REAL, frozenset({0, 1, 3}), 0) == 1
    monkeypatch.undo()
    assert least_busy(REAL, frozenset(os.sched_getaffinity(0)), 0) in os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="names none"):
        least_busy(REAL, frozenset({8191}), 0)
