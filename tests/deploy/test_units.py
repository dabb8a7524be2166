"""The units of systemd: sound, as closed as documented, and open enough for what runs in them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from manager.host.registry import (
    CGROUP_V1,
    CGROUP_V2,
    DISK_CEILING_FILES,
    DISK_WEIGHT_FILES,
    IDLE_FILE,
    MEMORY_HIGH_FILE,
    MEMORY_LOW_FILE,
    RT_RUNTIME_FILE,
    SOFT_LIMIT_FILE,
    SWAPPINESS_FILE,
)
from tests.deploy.units import FOLDER, SERVICES, TOP, allowed_calls, capabilities, limited, values
from tests.plain_http import plain_client
from tests.ports import reserved_ports

OPERATIONS = (TOP / "docs/how-to/deployment.md").read_text()
NOBODY = 65534
MDWE = 65, 1
"""PR_SET_MDWE and PR_MDWE_REFUSE_EXEC_GAIN, prctl(2): what MemoryDenyWriteExecute= comes to."""
LACKING = {"missing", "ignored", "unknown"}
CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="drops capabilities, which only root has")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_ports(1) as [one]:
        yield one


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for unit in FOLDER.glob("*.service"):
        text = unit.read_text().replace("/opt/equipoise/bin/equipoise", sys.executable)
        (tmp_path / unit.name).write_text(text)
    shutil.copy(FOLDER / "sys-fs-resctrl.mount", tmp_path)
    units = sorted(str(one) for one in tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "equipoise" in line or "resctrl" in line]
    assert not ours, "\n".join(ours)


def test_an_agent_is_not_ended_while_a_busy_host_lets_it_start_slowly() -> None:
    """Beside VMs that start with the host, 90 s, systemd's default, were too short: it was ended and started again."""
    [start], [stop] = (values("equipoise-agent.service", f"Timeout{when}Sec") for when in ("Start", "Stop"))
    assert int(start) >= 300
    assert int(stop) >= 90, "also of ExecStopPost=, which restores"


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    return float(re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)[0])


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_is_as_closed_as_documented(service: str) -> None:
    [documented] = re.findall(rf"`{service}\.service` (\d+\.\d)", OPERATIONS)
    assert exposure(FOLDER / f"{service}.service") <= float(documented)


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_is_beside_the_vms_with_an_ordinary_weight(service: str) -> None:
    assert values(f"{service}.service", "Slice") == ["machine.slice"]
    assert values(f"{service}.service", "CPUWeight") == ["100"]


def test_an_opened_unit_has_a_higher_score(tmp_path: Path) -> None:
    unit = FOLDER / "equipoise-manager.service"
    opened = tmp_path / unit.name
    opened.write_text(unit.read_text().replace("PrivateDevices=yes", "").replace("CapabilityBoundingSet=\n", ""))
    assert exposure(opened) > exposure(unit)


def test_the_manager_has_no_capability_and_does_not_see_libvirt() -> None:
    assert not capabilities("equipoise-manager.service")
    assert values("equipoise-manager.service", "User") == ["equipoise"]
    hidden = " ".join(values("equipoise-manager.service", "InaccessiblePaths")).split()
    assert {"-/run/libvirt", "-/etc/libvirt"} <= set(hidden)


# One thing a capability is for, which fails without it: a program of Python, run as root.
NEEDS = {
    # the pin of a vCPU's thread, which is another user's
    "sys_nice": "import os, sys; os.sched_setaffinity(int(sys.argv[1]), os.sched_getaffinity(0))",
    # resctrl is mounted by the agent where a host allows that; in a mount namespace of the test's own
    "sys_admin": (
        "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True);"
        "sys.exit(libc.mount(b'none', os.fsencode(sys.argv[2]), b'tmpfs', 0, None) and ctypes.get_errno())"
    ),
    # the packets of a tap, where there are no TCX links
    "net_raw": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    # a qdisc of an interface, here of one that is not there: who may not is refused before
    "net_admin": (
        "import errno, sys; from manager.host.traffic_control import TrafficControl\n"
        "try: TrafficControl().delete_root(2**30, 1)\n"
        "except OSError as error: sys.exit(error.errno != errno.ENODEV)"
    ),
    # a group of resctrl: the modes of its folder, as of those of control groups, let nobody write
    "dac_override": "import os, sys; open(sys.argv[3]).read(); os.mkdir(sys.argv[4] + '/' + sys.argv[5])",
}


def test_the_profile_of_the_agent_is_what_its_unit_names_and_has_its_capabilities() -> None:
    unit = "equipoise-agent.service"
    [name] = values(unit, "AppArmorProfile")
    profile = TOP / "deploy/apparmor" / name.removeprefix("-")
    text = profile.read_text()
    assert name.startswith("-"), "a host without AppArmor starts it as well"
    assert f"\nprofile {profile.name} " in text
    assert "complain" not in text
    assert set(re.findall(r"^ *capability (\w+),$", text, re.MULTILINE)) == capabilities(unit)
    if parser := shutil.which("apparmor_parser"):
        subprocess.run([parser, "--skip-kernel-load", "--skip-cache", profile], check=True)


def test_the_profile_of_the_agent_lets_it_write_every_setting_of_control_groups() -> None:
    rules = re.findall(
        r"^  @\{sys\}/fs/cgroup/\*\*/([^{\s]*)\{(.*)\} w,$", (TOP / "deploy/apparmor/equipoise-agent").read_text(), re.M
    )
    allowed = {before + name for before, names in rules for name in names.split(",")}
    of_cpu = {name for cpu in (CGROUP_V1, CGROUP_V2) for name in (cpu.weight_file, cpu.quota_file, cpu.period_file)}
    of_disks = {name for names in DISK_WEIGHT_FILES.values() for name in names.values()}
    of_disks |= {name for names in DISK_CEILING_FILES.values() for name in names}
    others = {IDLE_FILE, RT_RUNTIME_FILE, MEMORY_LOW_FILE, MEMORY_HIGH_FILE, SOFT_LIMIT_FILE, SWAPPINESS_FILE}
    assert (of_cpu | of_disks | others) - {None} <= allowed


@as_root
@pytest.mark.parametrize("capability", sorted(capabilities("equipoise-agent.service")))
def test_the_agent_has_what_it_needs_and_each_of_it_is_needed(capability: str, place: Path) -> None:
    log, point, closed = place / "log", place / "mount", place / "closed"
    log.write_text("GET /\n")
    log.chmod(0o600)
    os.chown(log, NOBODY, NOBODY)
    point.mkdir()
    closed.mkdir(0o555)
    other = subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY)
    try:
        program = [sys.executable, "-c", NEEDS[capability], str(other.pid), str(point), str(log), str(closed)]
        ended = [
            subprocess.run(
                ["unshare", "--mount", *limited("equipoise-agent.service", *without), *program, f"{len(without)}"],
                capture_output=True,
                check=False,
            ).returncode
            for without in ([], [capability])
        ]
    finally:
        other.kill()
        other.wait()
    assert ended[0] == 0
    assert ended[1] != 0


def called(trace: Path) -> frozenset[str]:
    return frozenset(match[1] for line in trace.read_text().splitlines() if (match := CALL.match(line)))


def _no_new_code() -> None:
    if ctypes.CDLL(None).prctl(*MDWE, 0, 0, 0) != 0:
        os.write(2, b"this kernel has no PR_SET_MDWE\n")


def environment(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
    given = {f"EQUIPOISE_{name.upper()}": value for name, value in settings.items()}
    return kept | {"PYTHONPATH": str(TOP), "PYTHONDONTWRITEBYTECODE": "1"} | given


@as_root
def test_the_manager_serves_with_no_privilege_by_the_calls_it_may_make(place: Path, port: int) -> None:
    state, trace = place / "state", place / "trace"
    for folder in (state, trace):
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
    drop = [*limited("equipoise-manager.service"), "--inh-caps=-all", f"--reuid={NOBODY}", f"--regid={NOBODY}"]
    traced = ["strace", "-f", "-qq", "-o", str(trace / "calls")]
    manager = subprocess.Popen(
        [*drop, "--clear-groups", *traced, sys.executable, "-m", "manager.cli", "manager"],
        cwd=place,
        env=environment(state_dir=str(state), listen_port=str(port)),
        preexec_fn=_no_new_code,  # noqa: PLW1509 - it only asks the kernel
        process_group=0,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        page = _answered(f"http://127.0.0.1:{port}/api/v1/health", manager)
        scraped = httpx.get(f"http://127.0.0.1:{port}/metrics")
    finally:
        errors = _ended(manager)
    assert (page.status_code, scraped.status_code) == (200, 200), errors
    assert "manager stopped" in errors
    calls = called(trace / "calls")
    assert {"openat", "accept4", "listen"} & calls
    assert calls <= allowed_calls("equipoise-manager.service"), errors


def _answered(url: str, process: subprocess.Popen[str]) -> httpx.Response:
    with plain_client() as client:
        for _ in range(600):
            if process.poll() is not None:
                break
            try:
                return client.get(url)
            except httpx.TransportError:
                time.sleep(0.1)
    raise AssertionError(f"no answer: {_ended(process)}")


def _ended(process: subprocess.Popen[str]) -> str:
    """What a process group that was asked to end wrote to standard error."""
    for number in [signal.SIGTERM] * 20 + [signal.SIGKILL]:
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=3)[1]
        except subprocess.TimeoutExpired:  # a signal that came while its thread was traced wakes nobody
            continue
    return ""


@as_root
def test_the_doctor_finds_with_the_capabilities_of_the_agent_what_root_finds(place: Path) -> None:
    command = [sys.executable, "-m", "manager.cli", "doctor", "--quick", "--json", "--state-dir", str(place)]
    traced = ["strace", "-f", "-qq", "-o", str(place / "calls")]
    found = []
    for before, prepare in ([], None), ([*limited("equipoise-agent.service"), *traced], _no_new_code):
        done = subprocess.run(
            [*before, *command], env=environment(), preexec_fn=prepare, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        found.append({one["id"]: one["status"] for one in json.loads(done.stdout)["findings"]})
    # Not all that it finds is a matter of privileges: others use this machine, too.
    worse = {one for one, status in found[0].items() if status == "works" and found[1][one] in LACKING}
    assert not worse
    assert found[0]["privileges"] == "works"
    calls = called(place / "calls")
    assert "sched_setaffinity" in calls or "sched_setattr" in calls
    assert calls <= allowed_calls("equipoise-agent.service")


@as_root
def test_without_sys_nice_the_doctor_says_so(place: Path) -> None:
    command = [sys.executable, "-m", "manager.cli", "doctor", "--quick", "--json", "--state-dir", str(place)]
    done = subprocess.run(
        [*limited("equipoise-agent.service", "sys_nice"), *command],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    statuses = {one["id"]: one["status"] for one in json.loads(done.stdout)["findings"]}
    assert statuses["privileges"] == "missing"
