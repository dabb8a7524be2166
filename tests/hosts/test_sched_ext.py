"""Debian 13 with the newest backports kernel: the real agent loads our sched_ext scheduler under the real libvirt.

Manager, agent and two VMs whose vCPU spins (firmware without a disk) on one machine, set up as the guide says. One
story, as an emulated machine is slow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.conftest import INSTALLED, boot, install, unused_port
from tests.hosts.emulated import TCG_CX16, Host
from tests.hosts.images import DEBIAN_13_BACKPORTS, build

pytestmark = pytest.mark.long

WARP_US = 12_000
WAIT_S = 300.0
LOADED = "/sys/kernel/sched_ext/enable_seq"
"""How often a scheduler was loaded since the boot (Documentation/scheduler/sched-ext.rst)."""

SET_UP = r"""
set -e
config=/etc/equipoise/manager.toml
systemctl enable -q --now equipoise-manager
until curl -fsS http://127.0.0.1:8750/readyz >/dev/null 2>&1; do sleep 1; done
new_token() { runuser -u equipoise -- equipoise token create --config $config "$@" | tail -1; }
umask 077
new_token --role host --host alpha --name agent-alpha >/etc/equipoise/token
new_token --role operator --name test >/root/token
echo 'allow = "scheduler"' >>/etc/equipoise/equipoise.toml
for name in web batch; do
    cat >/root/$name.xml <<XML
<domain type='qemu'><name>$name</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os></domain>
XML
    virsh -q define /root/$name.xml
    virsh -q autostart $name
    virsh -q start $name
done
systemctl enable -q --now equipoise-agent
"""
REGISTER = r"""
ask() { curl -fsS -X "$1" -H "Authorization: Bearer $(cat /root/token)" -H 'Content-Type: application/json' \
    "http://127.0.0.1:8750/api/v1/$2" -d "$3" >/dev/null; }
host='{"mode": "enforce", "policy": "priority", "pinning": false, "warp": "sched_ext"}'
until ask PATCH hosts/alpha "$host" 2>/dev/null; do sleep 1; done
set -e
ask PUT vms/web '{"class": "critical", "warp_us": WARP_US}'
ask PUT vms/batch '{"class": "batch"}'
ask PUT applications/shop '{"tiers": [{"name": "web", "vms": ["web"]}],
    "sla": {"percentile": 95, "response_time_ms": 50}, "sources": [{"type": "push", "name": "load"}]}'
""".replace("WARP_US", str(WARP_US))
DECIDES = "grep -qx enabled /sys/kernel/sched_ext/state && grep -q ^equipoise_bvt /sys/kernel/sched_ext/root/ops"
ASKED = r"""
/opt/equipoise/bin/python3 - <<'PYTHON'
import json
from pathlib import Path
from manager.host.registry import HostPaths
from manager.host.sched_ext import SchedExt
scheduler = SchedExt(HostPaths(Path("/")))
scopes = {path.name.rpartition("x2d")[2].removesuffix(".scope"): path for path in Path(MACHINES).glob("*.scope")}
warps = {name: scheduler.warp(path.stat().st_ino).warp_us for name, path in scopes.items()}
print(json.dumps({"warps": warps, "counters": scheduler.counters()}))
PYTHON
""".replace("MACHINES", "'/sys/fs/cgroup/machine.slice'")
"""What the kernel has in the maps of the scheduler."""
THREADS = r"""
for name in web batch; do
    for task in /proc/$(cat /run/libvirt/qemu/$name.pid)/task/*; do
        ! grep -q '^CPU 0/' $task/comm || sed -n 's/^ext.enabled *: *//p' $task/sched
    done
done
"""
"""Whether the thread of each VM's vCPU is a task of sched_ext."""
WEIGHTS = "cat /sys/fs/cgroup/machine.slice/machine-qemu*.scope/cpu.weight"


def until(host: Host, script: str, what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a script succeeds."""
    deadline_s = time.monotonic() + timeout_s
    while host.output(script).status:
        journal = "journalctl -b -u equipoise-agent --no-pager | tail -30"
        assert time.monotonic() < deadline_s, f"{what}: {host.run(journal, check=False)}"
        time.sleep(1.0)


def asked(host: Host) -> Any:
    return json.loads(host.run(ASKED))


def until_in_force(host: Host, what: str) -> None:
    """Our scheduler decides, and has the warp of the first VM."""
    until(host, DECIDES, what)
    deadline_s = time.monotonic() + WAIT_S
    while (warps := asked(host)["warps"]) != {"web": WARP_US, "batch": 0}:
        assert time.monotonic() < deadline_s, (what, warps)
        time.sleep(1.0)


def loads(host: Host) -> int:
    return int(host.read(LOADED))


@pytest.fixture
def sched_ext_host(tmp_path: Path) -> Iterator[Host]:
    """A Debian 13 host with the newest kernel of backports and the package."""
    with ExitStack() as stack:
        image = build(DEBIAN_13_BACKPORTS, say=print)
        host = install(boot(image, "alpha", tmp_path, stack, unused_port(), TCG_CX16))
        host.load(INSTALLED)
        yield host


def test_loaded_ejected_loaded_again_rebooted_and_removed(sched_ext_host: Host) -> None:
    host = sched_ext_host
    host.run(SET_UP, timeout_s=2 * WAIT_S)
    before = host.run(WEIGHTS)
    assert host.output(DECIDES).status, "nothing is loaded that nobody asked for"
    host.run(REGISTER, timeout_s=WAIT_S)
    until_in_force(host, "the warp is in force")
    assert host.run(THREADS).split() == ["1", "1"], "it schedules the vCPUs"
    counted = asked(host)["counters"]
    until(host, f"[ $(virsh domstats --vcpu web | sed -n 's/.*vcpu.0.time=//p') -gt {10**9} ]", "its vCPU runs")
    assert asked(host)["counters"] != counted, "it decides"

    loaded = loads(host)
    host.run("echo S >/proc/sysrq-trigger")  # Documentation/admin-guide/sysrq.rst: back to the fair class
    until(host, "journalctl -b -u equipoise-agent | grep -q 'threw our sched_ext scheduler out'", "that is told")
    until_in_force(host, "the warp is in force again")
    assert loads(host) == loaded + 1

    host.reboot()
    until(host, "[ $(virsh list --name | grep -c .) = 2 ]", "the VMs run")
    until_in_force(host, "the warp is in force after the reboot")
    assert host.run("systemctl is-system-running --wait", check=False).strip() == "running", host.run(
        "systemctl --failed"
    )

    host.run("systemctl stop equipoise-agent")
    until(host, "grep -qx disabled /sys/kernel/sched_ext/state", "it is removed")
    assert host.run("ls /sys/fs/bpf | grep -c equipoise", check=False).strip() == "0"
    assert host.run(WEIGHTS) == before
