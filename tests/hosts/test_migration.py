"""Live migration of a VM between two hosts: settings, journals, response times and events follow it, or stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.hosts.conftest import INSTALLED
from tests.hosts.emulated import Host, Output
from tests.hosts.fleet import (
    START_S,
    Manager,
    TinyVm,
    define,
    journalled,
    make_guest,
    settings_of,
    start_agents,
    start_manager,
)
from tests.hosts.service import until

pytestmark = pytest.mark.long

VM = TinyVm("web", "5b5f38a0-9f0b-4d0e-8f5c-6b0b8b9a0c01")
READY = "fleet"
DEFAULT_WEIGHT = "100"
# Other hosts may come without a password; QEMU keeps its own port for the memory, and may fetch it from there later.
LISTEN = """
sysctl -q -w vm.unprivileged_userfaultfd=1
sed -i '/^auth_tcp/d; $a auth_tcp = "none"' /etc/libvirt/libvirtd.conf
systemctl stop libvirtd.service && systemctl start libvirtd-tcp.socket libvirtd.service
"""
MIGRATE = "virsh -q migrate --live {options} {vm} qemu+tcp://{to}/system"
SLOWEST = ("migrate-setspeed {vm} 1", "migrate-setmaxdowntime {vm} 1")
FASTEST = ("migrate-setspeed {vm} 1000", "migrate-setmaxdowntime {vm} 20000")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two hosts with agents, and the manager on the first."""

    alpha: Host
    beta: Host
    manager: Manager

    @property
    def weight(self) -> str | None:
        """That of the VM on alpha."""
        return settings_of(self.alpha, VM.name).get("cpu.weight")

    def is_set(self, host: Host) -> Mapping[str, str]:
        """The settings of the VM on a host, where the agent there has set it; else empty."""
        found = settings_of(host, VM.name)
        return found if found.get("cpu.weight", DEFAULT_WEIGHT) != DEFAULT_WEIGHT else {}

    def is_forgotten(self, host: Host) -> bool:
        """Whether neither a process nor the agent's journal has the VM."""
        return not settings_of(host, VM.name) and not journalled(host, VM.name)

    def shown_on(self) -> str | None:
        """The host that the manager shows the VM on."""
        shown: str | None = self.manager.request("GET", f"/vms/{VM.name}")["status_host"]
        return shown

    def warnings(self) -> list[str]:
        """What went wrong by the agents and the manager; slow clocks of emulated machines do not count."""
        slow = {"clock-jumped", "clock-off", "loop-stalled", "host-silent", "response-times", "discovery-late"}
        return [
            f"{event['kind']}: {event['message']}"
            for event in self.manager.events()
            if event["severity"] != "info" and event["kind"] not in slow | {"domain-hangs"}
        ]

    def moves(self) -> list[str]:
        """The events of moves, newest first."""
        return [event["message"] for event in self.manager.events("vm-moved")]


@pytest.fixture(scope="module")
def joined(alpha: Host, beta: Host) -> Fleet:
    """Hosts that joined, with an application of one VM, defined on alpha. Saved as ``READY``."""
    hosts = (alpha, beta)
    for host in hosts:
        host.load(INSTALLED)
        make_guest(host)
        host.run(LISTEN)
    manager = start_manager(alpha)
    start_agents(hosts, manager)
    register(manager)
    define(alpha, VM)
    for host in hosts:
        host.save(READY)
    return Fleet(alpha, beta, manager)


def register(manager: Manager) -> None:
    """The VM and its application."""
    manager.request("PUT", f"/vms/{VM.name}", {"class": "critical"})
    manager.request("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": [VM.name]}]})


@pytest.fixture
def fleet(joined: Fleet) -> Fleet:
    """Both hosts and their agents, and the VM running on alpha, under control."""
    for host in (joined.beta, joined.alpha):
        host.load(READY)
    joined.alpha.run(f"virsh -q start {VM.name}")
    until(lambda: joined.is_set(joined.alpha), bool, "settings on alpha")
    until(lambda: joined.shown_on() == "alpha", bool, "the manager to show the VM on alpha")
    return joined


def set_speed(fleet: Fleet, commands: tuple[str, ...]) -> None:
    """How a migration ends: at the slowest never, as it may not stand still for what is left; at the fastest soon, over
    the slow network of emulated machines, as it may stand still meanwhile: perhaps before the last command.
    """
    for command in commands:
        fleet.alpha.run(f"virsh -q {command.format(vm=VM.name)}", check=commands is SLOWEST)


@contextmanager
def migrating(fleet: Fleet, options: str = "") -> Iterator[Future[Output]]:
    """Begin a migration to beta that goes on until it gets faster, and wait until the VM's process is there."""
    set_speed(fleet, SLOWEST)
    command = MIGRATE.format(options=options, vm=VM.name, to=fleet.beta.name)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(fleet.alpha.output, command, timeout_s=START_S)
        try:
            until(
                lambda: settings_of(fleet.beta, VM.name) or under_way.done(),
                bool,
                "the VM's process on beta",
            )
            assert not under_way.done(), under_way.result()
            yield under_way
        finally:
            if not under_way.done():
                fleet.alpha.run(f"virsh -q domjobabort {VM.name}", check=False)


def state(host: Host) -> str:
    """Of the VM, by libvirt; empty where it has none."""
    return host.run(f"virsh -q domstate {VM.name} 2>/dev/null", check=False).strip()


def test_settings_and_response_times_follow_a_vm_to_its_new_host(fleet: Fleet) -> None:
    sent = 0

    def push() -> None:
        nonlocal sent
        fleet.manager.request("POST", "/applications/shop/samples", {"times_ms": [10, 20, 30]})
        sent += 3

    before = fleet.is_set(fleet.alpha)
    push()
    with migrating(fleet) as under_way:
        there = until(lambda: fleet.is_set(fleet.beta), bool, "settings on beta")
        assert (state(fleet.alpha), state(fleet.beta)) == ("running", "paused"), "set before it runs there"
        assert there == before == fleet.is_set(fleet.alpha)
        push()
        assert fleet.shown_on() == "alpha"
        set_speed(fleet, FASTEST)
        assert under_way.result().status == 0, under_way.result()
    push()
    assert state(fleet.beta) == "running"
    assert fleet.is_set(fleet.beta) == there
    until(lambda: fleet.is_forgotten(fleet.alpha), bool, "alpha to forget the VM")
    until(lambda: fleet.shown_on() == "beta", bool, "the manager to show the VM on beta")
    push()
    assert fleet.moves() == ["web moved from alpha to beta"]
    windows = fleet.manager.request("GET", "/applications/shop/windows?limit=100")["items"]
    assert sum(window["count"] for window in windows) == sent, "none is lost, none is counted twice"
    fleet.beta.run("systemctl stop equipoise-agent", timeout_s=START_S)
    released = settings_of(fleet.beta, VM.name)
    assert released["cpu.weight"] == DEFAULT_WEIGHT
    assert {value for name, value in released.items() if not name.startswith("cpu.")} == {"0,1"}
    assert fleet.warnings() == []


def test_a_cancelled_migration_leaves_the_vm_set_where_it_is(fleet: Fleet) -> None:
    before = fleet.is_set(fleet.alpha)
    with migrating(fleet) as under_way:
        until(lambda: fleet.is_set(fleet.beta), bool, "settings on beta")
        fleet.alpha.run(f"virsh -q domjobabort {VM.name}")
        assert under_way.result().status != 0
    until(lambda: fleet.is_forgotten(fleet.beta), bool, "beta to forget the VM")
    assert (state(fleet.alpha), fleet.is_set(fleet.alpha)) == ("running", before)
    assert (fleet.shown_on(), fleet.moves(), fleet.warnings()) == ("alpha", [], [])


@pytest.mark.parametrize("killed", ["alpha", "beta"])
def test_a_migration_that_fails_with_libvirtd_leaves_the_vm_set_where_it_is(fleet: Fleet, killed: str) -> None:
    before = fleet.is_set(fleet.alpha)
    host = fleet.alpha if killed == "alpha" else fleet.beta
    with migrating(fleet) as under_way:
        until(lambda: fleet.is_set(fleet.beta), bool, "settings on beta")
        host.run("systemctl kill --signal=KILL libvirtd.service")
        under_way.result()  # whose status is 0 where the connection ended, with an error
        until(lambda: state(fleet.alpha) == "running", bool, "libvirtd to say that the VM runs on alpha")
    until(lambda: fleet.is_forgotten(fleet.beta), bool, "beta to forget the VM")
    assert fleet.is_set(fleet.alpha) == before
    assert (fleet.shown_on(), fleet.moves(), fleet.warnings()) == ("alpha", [], [])


def test_after_post_copy_the_vm_is_set_where_it_runs(fleet: Fleet) -> None:
    with migrating(fleet, "--postcopy") as under_way:
        until(lambda: fleet.is_set(fleet.beta) or under_way.done(), bool, "settings on beta")
        assert not under_way.done(), under_way.result()
        there = fleet.is_set(fleet.beta)
        assert (state(fleet.alpha), state(fleet.beta)) == ("running", "paused"), "set before it runs there"
        fleet.alpha.run(f"virsh -q migrate-postcopy {VM.name}")
        until(lambda: state(fleet.beta) == "running", bool, "the VM to run on beta")
        assert fleet.is_set(fleet.beta) == there
        set_speed(fleet, FASTEST)
        assert under_way.result().status == 0, under_way.result()
    until(lambda: fleet.is_forgotten(fleet.alpha), bool, "alpha to forget the VM")
    until(lambda: fleet.shown_on() == "beta", bool, "the manager to show the VM on beta")
    assert fleet.is_set(fleet.beta) == there
    assert fleet.moves() == ["web moved from alpha to beta"]
    assert fleet.warnings() == []


def test_a_vm_leaves_equipoise_behind_with_its_host(fleet: Fleet) -> None:
    fleet.beta.run("systemctl stop equipoise-agent", timeout_s=START_S)
    with migrating(fleet) as under_way:
        set_speed(fleet, FASTEST)
        assert under_way.result().status == 0, under_way.result()
    until(lambda: fleet.is_forgotten(fleet.alpha), bool, "alpha to forget the VM")
    assert settings_of(fleet.beta, VM.name)["cpu.weight"] == DEFAULT_WEIGHT, "it took none along"


def test_a_vm_comes_under_equipoise_with_its_host(fleet: Fleet) -> None:
    fleet.alpha.run("systemctl stop equipoise-agent", timeout_s=START_S)
    assert not fleet.is_set(fleet.alpha)
    with migrating(fleet) as under_way:
        until(lambda: fleet.is_set(fleet.beta), bool, "settings on beta")
        assert state(fleet.beta) == "paused", "set before it runs there"
        set_speed(fleet, FASTEST)
        assert under_way.result().status == 0, under_way.result()
    assert fleet.is_set(fleet.beta)
    until(lambda: fleet.shown_on() == "beta", bool, "the manager to show the VM on beta")
