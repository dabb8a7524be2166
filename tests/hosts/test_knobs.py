"""Every setting of VMs that a Debian host can hold, in real scopes of systemd: set, kept, and restored to what it was.

The agent is the packaged service under its AppArmor profile; the VMs are libvirt's, one of them in a slice of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.hosts.conftest import INSTALLED
from tests.hosts.emulated import Host
from tests.hosts.service import Service, Vm, changed, define, settings, until

pytestmark = pytest.mark.long

VMS = (Vm("web", iothreads=1), Vm("render", vcpus=2), Vm("sim", partition="/machine/batch"))
WEB = r"machine-qemu\x2d1\x2dweb.scope"
RENDER = r"machine-qemu\x2d2\x2drender.scope"
SIM = r"machine-batch.slice/machine-qemu\x2d3\x2dsim.scope"
REGISTERED = "registered"
DEPLOYMENT = Path(__file__).parents[2] / "docs/how-to/deployment.md"
IN_FORCE = {
    f"{WEB}/cpu.weight": "10000",
    f"{WEB}/cpu.max": "150000 100000",
    f"{RENDER}/cpu.idle": "1",
    f"{RENDER}/cpu.max": "50000 100000",
    f"{SIM}/cpu.weight": "7",
    "web CPU 0/TCG": "cpus 0 policy 0 nice -5",
    "web IO iothread1": "cpus 0 policy 0 nice 0",
    "web main": "cpus 0 policy 0 nice 0",
    "render CPU 1/TCG": "cpus 0 policy 0 nice 0",
    "sim CPU 0/TCG": "cpus 0 policy 0 nice 0",
}
"""What the registrations below come to. More follows from that: other threads of QEMU, and interrupts."""

Settings = Mapping[str, str]


class Registered(Service):
    """Manager and agent, with every setting in force that this host can hold. ``untouched`` are those before."""

    def __init__(self, host: Host, untouched: Settings) -> None:
        """``host`` has ``VMS`` and nothing started of Equipoise."""
        super().__init__(host)
        self.untouched = untouched
        self.in_force: Settings = {}

    def register_all(self) -> None:
        """Start, and wait until all is in force."""
        self.start()
        self.set_host(batch_idle=True, placement={"irqs": "reserved", "reserved_cpus": "1", "batch": "single"})
        self.register("late", "batch", weight=9)
        self.register("web", "critical", scheduling={"policy": "other", "nice": -5}, max_pcpus=1.5)
        self.register("render", "batch", max_pcpus=0.5)
        self.register("sim", "batch", weight=7)
        self.in_force = until(lambda: settings(self.host), _holds, "what is registered")

    def meanwhile(self, script: str) -> dict[str, tuple[str | None, str | None]]:
        """What a script changes while the agent stands still."""
        pid = "$(systemctl show --property MainPID --value equipoise-agent)"
        self.host.run(f"kill -STOP {pid}")
        try:
            self.host.run(script)
            return changed(self.in_force, settings(self.host))
        finally:
            self.host.run(f"kill -CONT {pid}")

    def is_back(self, wanted: Settings) -> None:
        """All settings become what they were at some time. Raises AssertionError."""
        until(lambda: changed(wanted, settings(self.host)), lambda differs: not differs, "settings differ")

    def external_changes(self) -> list[str]:
        """What the agent left alone."""
        return [event for event in self.events() if event.startswith("external-change")]


def _holds(now: Settings) -> bool:
    return IN_FORCE.items() <= now.items() and "1" in interrupts(now)


def interrupts(now: Settings) -> set[str]:
    """Where interrupts may be delivered."""
    return {value for name, value in now.items() if name.startswith("interrupt ")}


@pytest.fixture(scope="module")
def kept() -> list[Registered]:
    """The machine's services once they were started and saved."""
    return []


@pytest.fixture
def service(alpha: Host, kept: list[Registered]) -> Iterator[Registered]:
    """As it was when everything was in force."""
    host = alpha
    if kept:
        host.load(REGISTERED)
    else:
        host.load(INSTALLED)
        define(host, *VMS)
        new = Registered(host, settings(host))
        new.register_all()
        host.save(REGISTERED)
        kept.append(new)
    yield kept[0]
    lines = host.run("journalctl --dmesg --no-pager --grep 'apparmor=.DENIED'", check=False).splitlines()
    # libvirt's profile lets it look at clients only that have none: docs/how-to/deployment.md, "Units".
    harmless = 'operation="ptrace" profile="libvirtd"'
    refused = [line for line in lines if "DENIED" in line and harmless not in line]
    assert refused == []


def test_nothing_but_what_is_registered_is_set(service: Registered) -> None:
    for name in changed(service.untouched, service.in_force):
        vm_setting = re.search(r"\.scope/cpu\.(weight|weight\.nice|idle|max)$", name)
        assert vm_setting or name.startswith(("web ", "render ", "sim ", "interrupt ")), name
    assert service.external_changes() == []
    assert "equipoise-agent (enforce)" in service.host.run(
        "cat /proc/$(systemctl show --property MainPID --value equipoise-agent)/attr/current"
    )


@pytest.mark.parametrize(
    "script", ["systemctl daemon-reload", f"systemctl set-property --runtime '{WEB}' MemoryLow=1M"]
)
def test_what_systemd_takes_back_is_set_again(service: Registered, script: str) -> None:
    taken = service.meanwhile(script)
    assert taken[f"{WEB}/cpu.weight"] == ("10000", "100"), "systemd knows nothing of our weight"
    service.is_back({**service.in_force, **{name: now for name, (_, now) in taken.items() if now and "memory" in name}})
    assert service.external_changes() == []


def test_a_weight_set_by_systemd_is_left_alone_until_it_is_adopted(service: Registered) -> None:
    service.host.run(f"systemctl set-property --runtime '{WEB}' CPUWeight=200")
    until(service.external_changes, bool, "no event")
    weight, quota = f"{WEB}/cpu.weight", f"{WEB}/cpu.max"
    now = until(lambda: settings(service.host), lambda now: now[quota] == IN_FORCE[quota], "the quota is set again")
    assert now[weight] == "200"
    service.call("POST", "/vms/web/adopt")
    until(lambda: settings(service.host), lambda now: now[weight] == "10000", "adopted")
    service.set_host(mode="released")
    service.is_back({**service.untouched, weight: "200", f"{WEB}/cpu.weight.nice": now[f"{WEB}/cpu.weight.nice"]})


def test_daemons_that_start_again_change_nothing_for_long(service: Registered) -> None:
    for script in ("restart systemd-machined", "restart libvirtd", "daemon-reexec"):
        service.host.run(f"systemctl {script}")
        service.is_back(service.in_force)
    assert service.external_changes() == []


def test_a_vm_has_its_settings_when_libvirt_says_that_it_has_started(service: Registered) -> None:
    define(service.host, Vm("late"))
    assert settings(service.host)[r"machine-qemu\x2d4\x2dlate.scope/cpu.weight"] == "9"


def _released(service: Registered) -> None:
    service.host.run("EQUIPOISE_TOKEN=$(cat /root/token) equipoise release", timeout_s=300.0)


def _stopped(service: Registered) -> None:
    service.host.run("systemctl stop equipoise-agent")


def _removed(service: Registered) -> None:
    service.host.run("apt-get -qy purge equipoise", timeout_s=600.0)
    assert "equipoise" not in service.host.run("cat /sys/kernel/security/apparmor/profiles")


@pytest.mark.parametrize("end", [_released, _stopped, _removed])
def test_in_the_end_everything_is_exactly_what_it_was(service: Registered, end: Callable[[Registered], None]) -> None:
    end(service)
    assert changed(service.untouched, settings(service.host)) == {}


def test_a_killed_agent_sets_everything_again(service: Registered) -> None:
    service.host.run("systemctl kill --signal KILL equipoise-agent")
    until(
        lambda: service.host.run("systemctl show --property NRestarts --value equipoise-agent").strip(),
        lambda restarts: restarts != "0",
        "it is started again",
    )
    service.is_back(service.in_force)


def test_units_are_as_closed_as_documented(host: Host) -> None:
    documented = dict(re.findall(r"`(equipoise-\w+\.service)` (\d+\.\d)", DEPLOYMENT.read_text()))
    assert len(documented) == 2
    for unit, exposure in documented.items():
        shown = host.run(f"systemd-analyze security --no-pager {unit}")
        [measured] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", shown)
        assert float(measured) <= float(exposure), shown
