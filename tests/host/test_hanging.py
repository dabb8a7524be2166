"""A libvirtd whose calls do not return: about one domain, about all of them, or at all. On a connection in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest

from manager.host.doctor import libvirt_view
from manager.host.hypervisor import HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.libvirt_calls import MOST_DISKS_HANGING, MOST_HANGING, Patience
from tests.host.conftest import REAL, QemuLike, Root, until
from tests.host.test_doctor_libvirt import look
from tests.host.test_event_bursts import Connection, Domain

PATIENCE = Patience(listing_s=0.1, domain_s=0.2, renew_s=0.5, most_left=2)
STATUS = "<!-- libvirt's -->\n<domstatus state='{}' reason='{}' pid='1'>\n"


class Stuck:
    """Calls that do not return until they are let go, by what they are about."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.waiting: list[str] = []
        self.asked: list[str] = []
        self._changed = threading.Condition()

    def pass_by(self, name: str) -> None:
        """What each call does."""
        with self._changed:
            self.asked.append(name)
            if name in self.names:
                self.waiting.append(name)
                self._changed.wait_for(lambda: name not in self.names)
                self.waiting.remove(name)

    def let_go(self) -> None:
        with self._changed:
            self.names.clear()
            self._changed.notify_all()


class HangingConnection(Connection):
    """One whose calls pass by ``stuck``: ``open``, ``list``, ``version``, and the names of domains."""

    def __init__(self, stuck: Stuck) -> None:
        super().__init__()
        self.stuck = stuck
        self.closed = 0

    def listAllDomains(self, flags: int) -> list[Domain]:  # noqa: N802 - libvirt's name
        self.stuck.pass_by("list")
        return [HangingDomain(self, name, uuid) for name, uuid in super().listAllDomains(flags) and self.names]

    def lookupByUUIDString(self, uuid: str) -> Domain:  # noqa: N802 - libvirt's name
        [name] = [name for name, known in self.names if known == uuid] or ["unknown"]
        return HangingDomain(self, name, uuid)

    def domainListGetStats(  # noqa: N802 - libvirt's name
        self, domains: list[Domain], stats: int, flags: int
    ) -> list[tuple[Domain, dict[str, int]]]:
        if stats == libvirt.VIR_DOMAIN_STATS_BLOCK:
            for domain in domains:
                self.stuck.pass_by(f"{domain.name()}'s QEMU")
        return super().domainListGetStats(domains, stats, flags)

    def getLibVersion(self) -> int:  # noqa: N802 - libvirt's name
        self.stuck.pass_by("version")
        return 9_000_000

    def close(self) -> None:
        self.closed += 1


class HangingDomain(Domain):
    def __init__(self, connection: HangingConnection, name: str, uuid: str) -> None:
        super().__init__(connection, name, uuid)
        self._stuck = connection.stuck

    def state(self) -> tuple[int, int]:
        self._stuck.pass_by(self.name())
        return libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED

    def interfaceAddresses(self, source: int, flags: int) -> dict[str, Any]:  # noqa: N802 - libvirt's name
        self._stuck.pass_by(self.name())
        return super().interfaceAddresses(source, flags)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.let_go()


@pytest.fixture
def connection(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> HangingConnection:
    made = HangingConnection(stuck)

    def open_one(_uri: str) -> HangingConnection:
        stuck.pass_by("open")
        return made

    monkeypatch.setattr(libvirt, "open", open_one)
    return made


@pytest.fixture
def arrivals() -> list[str]:
    return []


@pytest.fixture
def watch(connection: HangingConnection, root: Root, stuck: Stuck, arrivals: list[str]) -> Iterator[HypervisorWatch]:
    made = HypervisorWatch("test:///default", root.paths, 0.05, neighbours=dict, late_s=0.3, patience=PATIENCE)
    made.on_arrival = lambda: arrivals.append("arrived")
    yield made
    stuck.let_go()
    made.stop()


@pytest.fixture
def boot(connection: HangingConnection, root: Root, start: Callable[..., QemuLike]) -> Callable[[str], QemuLike]:
    """Start a domain's process, and have libvirt list it."""

    def boot_one(name: str) -> QemuLike:
        vm = start("CPU 0/KVM")
        root.note(name, vm.pid)
        connection.addresses[name] = f"192.0.2.{len(connection.names) + 1}"
        connection.start(name, vm.uuid)
        return vm

    return boot_one


def names(watch: HypervisorWatch) -> set[str]:
    return {instance.libvirt_name for instance in watch.domains.instances.values()}


def test_a_domain_whose_calls_block_is_set_apart_and_others_go_on(
    watch: HypervisorWatch, stuck: Stuck, boot: Callable[[str], QemuLike], arrivals: list[str]
) -> None:
    boot("hung")
    stuck.names.add("hung")
    watch.start()
    until(lambda: watch.discovery.hanging == ("hung",), "it is set apart")
    came = boot("came")
    until(lambda: watch.domains.addresses.get(came.uuid) == {"192.0.2.2"}, "another one is discovered, with addresses")
    assert names(watch) == {"hung", "came"}, "it is listed as before"
    assert arrivals == ["arrived"] * 2
    seen = watch.domains.generation
    until(lambda: watch.domains.generation > seen + 3, "listings go on")
    assert (stuck.asked.count("hung"), watch.discovery.late) == (1, False), "it is not asked again"
    stuck.let_go()
    until(lambda: watch.discovery.hanging == (), "it is told that it answers again")
    until(lambda: len(watch.domains.addresses) == 2, "its addresses are looked up after all")


def test_of_many_hanging_domains_only_some_are_waited_for(
    watch: HypervisorWatch, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    """libvirtd answers five calls of a connection at a time: more that wait would block the listing, too."""
    hung = {f"hung-{number}" for number in range(MOST_HANGING + 2)}
    for name in hung:
        boot(name)
    stuck.names |= hung
    watch.start()
    until(lambda: len(stuck.waiting) == MOST_HANGING, "as many wait as may")
    boot("came")
    until(lambda: "came" in names(watch), "another one is discovered")
    seen = watch.domains.generation
    until(lambda: watch.domains.generation > seen + 3, "listings go on")
    assert len(stuck.waiting) == MOST_HANGING == len(watch.discovery.hanging)
    stuck.let_go()
    until(lambda: len(watch.domains.addresses) == len(hung) + 1, "all are looked up after all")


def test_qemus_that_do_not_say_what_their_disks_do_keep_nobody_from_addresses(
    watch: HypervisorWatch, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    hung = {f"hung-{number}" for number in range(MOST_HANGING + 2)}
    for name in hung:
        boot(name)
    stuck.names |= {f"{name}'s QEMU" for name in hung}
    watch.start()
    until(lambda: len(stuck.waiting) == MOST_DISKS_HANGING, "one is waited for")
    boot("came")
    until(lambda: len(watch.domains.addresses) == len(hung) + 1, "the addresses of all are looked up")
    assert len(stuck.waiting) == MOST_DISKS_HANGING
    assert watch.discovery.hanging == (), "libvirt answers about them"


def test_a_listing_that_blocks_does_not_stop_discovery(
    watch: HypervisorWatch,
    connection: HangingConnection,
    stuck: Stuck,
    boot: Callable[[str], QemuLike],
    root: Root,
    arrivals: list[str],
) -> None:
    """As it does while libvirt holds the lock of one domain, such as for a hook that does not end."""
    held, ends = boot("held"), boot("ends")
    watch.start()
    until(lambda: names(watch) == {"held", "ends"}, "both are listed")
    stuck.names |= {"list", "held"}
    until(lambda: "list" in stuck.waiting, "a listing blocks")
    for name, state in (("starts", ("paused", "starting up")), ("came", ("running", "booted"))):
        root.paths.status_file(name).write_text(STATUS.format(*state))
        boot(name)
    ends.kill()
    until(lambda: names(watch) == {"held", "came"}, "what comes and goes is noticed, what is being set up is not")
    until(lambda: watch.discovery.late, "discovery is late")
    until(lambda: watch.discovery.hanging == ("held",), "who keeps it is told")
    assert held.uuid in watch.domains.instances
    assert len(arrivals) >= 2
    connection.names = [one for one in connection.names if one[0] != "ends"]
    stuck.let_go()
    until(lambda: names(watch) == {"held", "came", "starts"}, "libvirt lists them again")
    until(lambda: not watch.discovery.late and not watch.discovery.hanging, "all is well")
    assert watch.domains.connected


def test_a_libvirtd_that_stands_still_is_no_fault_of_a_domain(
    watch: HypervisorWatch, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    boot("vm")
    watch.start()
    until(lambda: watch.domains.addresses, "it is listed")
    stuck.names |= {"list", "version", "vm"}
    until(lambda: "version" in stuck.waiting, "libvirtd itself is asked")
    until(lambda: watch.discovery.late, "discovery is late")
    assert watch.discovery.hanging == ()
    assert names(watch) == {"vm"}


def test_another_connection_is_tried_a_few_times(
    watch: HypervisorWatch, connection: HangingConnection, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    boot("vm")
    stuck.names.add("open")
    watch.start()
    assert watch.wait_first_listing(20), "found by its files"
    assert (names(watch), watch.domains.connected) == ({"vm"}, False)
    until(lambda: len(stuck.waiting) == PATIENCE.most_left + 1, "another connection is tried, and another")
    boot("came")
    until(lambda: "came" in names(watch), "discovery goes on")
    assert len(stuck.waiting) == PATIENCE.most_left + 1, "no more than that are left behind"
    stuck.let_go()
    until(lambda: watch.domains.connected and not watch.discovery.late, "libvirt lists them")
    until(lambda: connection.closed == PATIENCE.most_left, "connections that came too late are closed")
    assert [thread.name for thread in threading.enumerate()].count("libvirt-watch") == 1


def test_a_listing_left_behind_changes_nothing(
    watch: HypervisorWatch, connection: HangingConnection, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    boot("vm")
    watch.start()
    until(lambda: names(watch) == {"vm"}, "it is listed")
    stuck.names.add("list")
    until(lambda: not watch.domains.connected, "the connection is given up")
    listings = connection.calls["list"]
    stuck.let_go()
    until(lambda: watch.domains.connected and connection.closed, "another one lists, and the old one is closed")
    assert connection.calls["list"] > listings
    assert names(watch) == {"vm"}


def test_what_is_late_and_what_hangs_is_a_warning_of_the_host(
    watch: HypervisorWatch, stuck: Stuck, boot: Callable[[str], QemuLike]
) -> None:
    boot("held")
    watch.start()
    until(lambda: names(watch) == {"held"}, "it is listed")
    host = KernelHost(REAL, watch)
    before = host.capabilities.warnings
    stuck.names |= {"list", "held"}
    until(lambda: watch.discovery.late and watch.discovery.hanging, "it is noticed")
    assert host.capabilities.warnings == (
        "libvirt has not listed the running domains for more than 0.3 s",
        "libvirt does not answer about domain held: it is set apart",
        *before,
    )
    stuck.let_go()
    until(lambda: not watch.discovery.late and not watch.discovery.hanging, "it is over")
    assert host.capabilities.warnings == before


def test_the_doctor_names_a_domain_that_hangs_and_looks_at_the_others(
    connection: HangingConnection, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.names = [("hung", "1"), ("well", "2")]
    stuck.names.add("hung")
    described = "<domain type='kvm'><name>{}</name></domain>"

    def describe(domain: HangingDomain, _flags: int) -> str:
        stuck.pass_by(domain.name())
        return described.format(domain.name())

    monkeypatch.setattr(HangingDomain, "XMLDesc", describe)
    monkeypatch.setattr(HangingConnection, "getType", lambda _connection: "QEMU", raising=False)
    monkeypatch.setattr(HangingConnection, "getVersion", HangingConnection.getLibVersion, raising=False)
    monkeypatch.setattr(libvirt, "openReadOnly", lambda _uri: connection)
    monkeypatch.setattr(libvirt_view, "_DOMAIN_S", 0.2)
    view = libvirt_view.look_at_libvirt("test:///default")
    assert (view.error, view.hanging, [one.name for one in view.domains]) == ("", ("hung",), ["well"])
    finding = look("libvirt", view)
    assert finding.status == "degraded"
    assert finding.detail.endswith("does not answer about 1 domains: hung")
