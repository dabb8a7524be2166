"""What befalls a host: reboots, crashes, a full disk, a clock that is set, a log that stops. Control survives each.

Both services and both VMs start with the machine, as on a host in use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from tests.hosts.conftest import INSTALLED
from tests.hosts.emulated import Host
from tests.hosts.fleet import TinyVm, define, make_guest
from tests.hosts.service import API, START_S, Service, changed, settings, until

pytestmark = pytest.mark.long

WEB, RENDER, LATE = (
    TinyVm(name, f"5b5f38a0-9f0b-4d0e-8f5c-6b0b8b9a0c0{number}", vcpus=vcpus, most_vcpus=vcpus)
    for number, (name, vcpus) in enumerate({"web": 1, "render": 2, "late": 1}.items())
)
CONTROLLED = "controlled"
JSON = '-H "Authorization: Bearer $(cat /root/token)" -H "Content-Type: application/json"'
UNITS = "equipoise-manager equipoise-agent"
BOTH_RUN = "[ $(virsh list --name | grep -c .) = 2 ]"
READY = "curl -fsS http://127.0.0.1:8750/readyz"
WEIGHTS = "/sys/fs/cgroup/machine.slice/*.scope/cpu.weight"
LOUD = frozenset({"external-change", "file-damaged", "items-refused", "second-agent", "agent-cloned", "host-renamed"})
"""Kinds of events that say that something is not as it was left, or lost."""

SET = {f"{WEB.name}/cpu.weight", f"{WEB.name}/cpu.max", f"{RENDER.name}/cpu.max"}

Settings = Mapping[str, str]


class Controlled(Service):
    """Manager and agent, with VMs under control. ``untouched`` are their settings before, ``in_force`` those now."""

    untouched: Settings
    in_force: Settings

    def control(self) -> Controlled:
        """Start everything, have it start with the machine, and wait until settings are in force."""
        make_guest(self.host)
        for vm in (WEB, RENDER, LATE):
            define(self.host, vm)
        both = f"{WEB.name} {RENDER.name}"
        self.host.run(f"for vm in {both}; do virsh -q autostart $vm; virsh -q start $vm; done", timeout_s=START_S)
        self.host.run(f"systemctl enable {UNITS}")
        self.untouched = of_vms(self.host)
        self.start()
        self.register(WEB.name, "critical", max_pcpus=1.5)
        self.register(RENDER.name, "batch", max_pcpus=0.5)
        until(
            lambda: changed(self.untouched, of_vms(self.host)),
            lambda differs: differs.keys() >= SET,
            "settings are in force",
        )
        self.ticks(3)  # until one has nothing left to do
        self.in_force = of_vms(self.host)
        return self

    def is_in_force(self) -> None:
        """Wait until all settings are what they were when everything was in force."""
        until(lambda: changed(self.in_force, of_vms(self.host)), lambda differs: not differs, "settings differ")

    def gives_all_back(self) -> None:
        """Release the host: everything is as it was before, and nobody was told that it was not."""
        self.host.run("EQUIPOISE_TOKEN=$(cat /root/token) equipoise release", timeout_s=START_S)
        assert changed(self.untouched, of_vms(self.host)) == {}
        self.is_undamaged()

    def is_undamaged(self) -> None:
        """No file was set aside, and nothing was told to be otherwise than it was left."""
        assert not [event for event in self.events() if event.partition(":")[0] in LOUD]
        assert self.host.run("find /var/lib/equipoise /var/lib/equipoise-manager -name '*broken*'") == ""


def of_vms(host: Host) -> Settings:
    """Settings of control groups and vCPUs, by names of VMs: a VM's scope has another number after each start."""
    found = {
        re.sub(r".*machine-qemu.x2d\d+.x2d(\w+)\.scope", r"\1", name): value for name, value in settings(host).items()
    }
    return {
        name: value
        for name, value in found.items()
        if not name.startswith(("interrupt", LATE.name)) and (re.match(r"\w+/cpu\.", name) or " CPU " in name)
    }


@pytest.fixture(scope="module")
def kept(alpha: Host) -> Controlled:
    """Saved as ``CONTROLLED``."""
    alpha.load(INSTALLED)
    service = Controlled(alpha).control()
    alpha.save(CONTROLLED)
    return service


@pytest.fixture
def service(kept: Controlled) -> Controlled:
    """As it was when everything was in force."""
    kept.host.load(CONTROLLED)
    return kept


def is_up(service: Controlled) -> None:
    """After a boot everything is in force again."""
    host = service.host
    state = host.run("systemctl is-system-running --wait", check=False).strip()
    assert state == "running", host.run("systemctl --failed; journalctl -b -p warning --no-pager | tail -30")
    until(lambda: host.output(BOTH_RUN).status, lambda status: status == 0, "the VMs start with the host")
    service.is_in_force()


def test_a_reboot_restores_and_sets_again(service: Controlled) -> None:
    service.host.reboot()
    is_up(service)
    ended = service.host.run("journalctl -b -1 -u equipoise-agent -o cat --no-pager | tail -20")
    assert "Deactivated successfully" in ended, ended
    service.gives_all_back()


def first_write(host: Host) -> None:
    """The agent begins to set what it restored when it stopped."""
    host.run("systemctl stop equipoise-agent", timeout_s=START_S)
    host.run(
        f"before=$(cat {WEIGHTS}); systemctl start --no-block equipoise-agent;"
        f' while [ "$(cat {WEIGHTS})" = "$before" ]; do :; done',
        timeout_s=START_S,
    )


def first_restore(host: Host) -> None:
    """The agent begins to restore."""
    host.run(
        f"before=$(cat {WEIGHTS}); systemctl stop --no-block equipoise-agent;"
        f' while [ "$(cat {WEIGHTS})" = "$before" ]; do :; done',
        timeout_s=START_S,
    )


def agent_starts(host: Host) -> None:
    """The agent opens its files."""
    host.run("systemctl kill --signal KILL equipoise-agent; sleep 4")


def vm_starts(host: Host) -> None:
    """Libvirt makes a VM's scope."""
    host.run(
        f"virsh start {LATE.name} >/dev/null 2>&1 & until [ -e /sys/fs/cgroup/machine.slice/*late.scope ]; do :; done",
        timeout_s=START_S,
    )


def steady(_host: Host) -> None:
    """Nothing changes."""


@pytest.mark.parametrize("step", [steady, first_write, first_restore, agent_starts, vm_starts])
def test_after_a_crash_everything_is_set_again(service: Controlled, step: Callable[[Host], None]) -> None:
    step(service.host)
    service.host.reset()
    is_up(service)
    service.gives_all_back()


def test_a_release_amid_which_the_host_crashes_is_kept(service: Controlled) -> None:
    host = service.host
    release = "EQUIPOISE_TOKEN=$(cat /root/token) equipoise release >/dev/null 2>&1"
    host.run(
        f'before=$(cat {WEIGHTS}); {release} & while [ "$(cat {WEIGHTS})" = "$before" ]; do :; done', timeout_s=START_S
    )
    host.reset()
    until(lambda: host.output(BOTH_RUN).status, lambda status: status == 0, "the VMs start with the host")
    until(lambda: host.output(READY).status, lambda status: status == 0, "the manager is up")
    service.ticks(3)
    assert changed(service.untouched, of_vms(host)) == {}
    service.is_undamaged()


def test_what_the_manager_has_acknowledged_survives_a_crash(service: Controlled) -> None:
    service.register(LATE.name, "batch", weight=9)
    service.host.reset()
    until(lambda: service.host.output(READY).status, lambda status: status == 0, "it is up")
    assert service.call("GET", f"/vms/{LATE.name}")["weight"] == 9


def test_a_full_disk_stops_nothing_for_long(service: Controlled) -> None:
    host = service.host
    host.run("head -c 100G /dev/zero >/full 2>/dev/null; sync", check=False, timeout_s=START_S)
    assert "No space left" in host.output("echo more >/more").stderr
    refused = host.output(f'curl -sS -X PUT {API}/vms/{LATE.name} {JSON} -d \'{{"class": "batch", "weight": 9}}\'')
    assert '"status":503' in refused.stdout, refused
    host.run("systemctl daemon-reload")  # systemd puts its own weights back, see docs/how-to/deployment.md
    service.is_in_force()
    host.run("sleep 61")  # nor can be noted any more when a token was used
    assert service.call("GET", f"/vms/{WEB.name}")["name"] == WEB.name, "what is there can be read"
    assert host.run(f"systemctl is-active {UNITS}").split() == ["active"] * 2
    host.run("rm /full /more")
    service.register(LATE.name, "batch", weight=9)
    service.ticks()
    service.gives_all_back()


@pytest.mark.parametrize("hours", [36, -36])
def test_chronyd_sets_the_clock_and_control_goes_on(service: Controlled, hours: int) -> None:
    host = service.host
    pids = "systemctl show --property MainPID --value equipoise-agent equipoise-manager"
    before, before_s = host.run(pids), float(host.run("date +%s"))
    told = len(jumps(service))
    host.run(f"chronyc -m 'manual on' \"settime $(date -d '{hours:+d} hours' '+%b %d, %Y %H:%M:%S')\" makestep")
    moved_s = float(host.run("date +%s")) - before_s
    assert abs(moved_s - hours * 3600.0) < 600.0
    service.ticks()
    host.run("systemctl daemon-reload")
    service.is_in_force()
    assert host.run(pids) == before, "neither was ended by a watchdog"
    until(lambda: jumps(service), lambda events: len(events) > told, "the jump is told")
    service.gives_all_back()


def jumps(service: Controlled) -> list[str]:
    """The events of jumps of the clock; loading a machine makes one, too."""
    return [event for event in service.events() if event.startswith("clock-jumped")]


def test_a_log_that_ends_or_hangs_stops_nothing(service: Controlled) -> None:
    host = service.host
    for signal in ("TERM", "KILL"):
        host.run(f"systemctl kill --signal {signal} systemd-journald")
        until(
            lambda: host.run("systemctl is-active systemd-journald", check=False).strip(), "active".__eq__, "it is back"
        )
        service.ticks()
    host.run("systemctl kill --signal STOP systemd-journald")
    service.ticks(3)
    host.run("systemctl kill --signal CONT systemd-journald")
    service.gives_all_back()
    host.run("systemctl stop equipoise-agent", timeout_s=START_S)
    logged = "journalctl --sync; journalctl -b -u equipoise-agent -o cat --no-pager | tail"
    assert "Deactivated successfully" in host.run(logged)
