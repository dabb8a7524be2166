"""Many lifecycle events at once: what is asked of libvirt then. On a connection in memory, which counts the calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest

from manager.host.hypervisor import HypervisorWatch
from tests.host.conftest import QemuLike, Root, until


class Connection:
    """libvirt's, as far as the watch uses it."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.calls: Counter[str] = Counter()
        self.addresses: dict[str, str] = {}
        self.tell: Callable[..., None] = lambda *_given: None

    def start(self, name: str, uuid: str) -> None:
        self.names = [*self.names, (name, uuid)]
        self.tell(self, None, libvirt.VIR_DOMAIN_EVENT_STARTED, 0, None)

    def listAllDomains(self, _flags: int) -> list[Domain]:  # noqa: N802 - libvirt's name
        self.calls["list"] += 1
        return [Domain(self, name, uuid) for name, uuid in self.names]

    def domainListGetStats(  # noqa: N802 - libvirt's name
        self, domains: list[Domain], _stats: int, _flags: int
    ) -> list[tuple[Domain, dict[str, int]]]:
        running = {"state.state": libvirt.VIR_DOMAIN_RUNNING, "state.reason": libvirt.VIR_DOMAIN_RUNNING_BOOTED}
        return [(domain, running) for domain in domains]

    def domainEventRegisterAny(self, _domain: None, _kind: int, tell: Callable[..., None], _opaque: None) -> int:  # noqa: N802
        self.tell = tell
        return 1

    def __getattr__(self, name: str) -> Any:
        if name in {"setKeepAlive", "registerCloseCallback", "unregisterCloseCallback", "domainEventDeregisterAny"}:
            return lambda *_given: None
        if name in {"getLibVersion", "close"}:
            return lambda: 9_000_000
        raise AttributeError(name)


class Domain:
    """A running one."""

    def __init__(self, connection: Connection, name: str, uuid: str) -> None:
        self._connection, self._name, self._uuid = connection, name, uuid

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return self._uuid

    def name(self) -> str:
        return self._name

    def interfaceAddresses(self, _source: int, _flags: int) -> dict[str, Any]:  # noqa: N802 - libvirt's name
        self._connection.calls[self._name] += 1
        address = self._connection.addresses.get(self._name)
        return {"vnet0": {"addrs": [{"addr": address}] if address else None}}

    def XMLDesc(self) -> str:  # noqa: N802 - libvirt's name
        return "<domain/>"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    made = Connection()
    monkeypatch.setattr(libvirt, "open", lambda _uri: made)
    return made


@pytest.fixture
def watch(connection: Connection, root: Root) -> Iterator[HypervisorWatch]:
    made = HypervisorWatch("test:///default", root.paths, 3600, neighbours=dict)
    made.start()
    assert made.wait_first_listing(20)
    yield made
    made.stop()


@pytest.fixture
def boot(connection: Connection, root: Root, start: Callable[..., QemuLike]) -> Callable[[str], QemuLike]:
    """Start a domain's process and tell of it."""

    def boot_one(name: str) -> QemuLike:
        vm = start("CPU 0/KVM")
        root.note(name, vm.pid)
        connection.start(name, vm.uuid)
        return vm

    return boot_one


def test_a_burst_of_events_leads_to_few_listings(watch: HypervisorWatch, connection: Connection) -> None:
    """However long the burst takes on a busy machine: events are gathered for a tenth of a second each time."""
    listed, began_s = connection.calls["list"], time.monotonic()
    for number in range(40):
        connection.start(f"vm-{number}", f"00000000-0000-4000-8000-{number:012d}")
        time.sleep(0.005)
    lasted_s = time.monotonic() - began_s
    assert connection.calls["list"] - listed <= lasted_s / 0.1 + 1


def test_the_last_event_of_a_burst_is_not_lost(watch: HypervisorWatch, boot: Callable[[str], QemuLike]) -> None:
    vms = [boot(f"vm-{number}") for number in range(3)]
    until(lambda: watch.domains.instances.keys() == {vm.uuid for vm in vms}, "all of them are listed")


def test_an_event_asks_for_the_addresses_of_new_domains_only(
    watch: HypervisorWatch, connection: Connection, boot: Callable[[str], QemuLike]
) -> None:
    connection.addresses = {"old": "192.0.2.1", "new": "192.0.2.2"}
    old = boot("old")
    until(lambda: watch.domains.addresses == {old.uuid: {"192.0.2.1"}}, "the first one's address is known")
    new = boot("new")
    both = {old.uuid: {"192.0.2.1"}, new.uuid: {"192.0.2.2"}}
    until(lambda: watch.domains.addresses == both, "the other's, too")
    assert (connection.calls["old"], connection.calls["new"]) == (1, 1)


def test_looking_again_asks_for_all_addresses(
    watch: HypervisorWatch, connection: Connection, boot: Callable[[str], QemuLike]
) -> None:
    vm = boot("vm")
    until(lambda: watch.domains.addresses == {vm.uuid: frozenset()}, "it has no address yet")
    connection.addresses = {"vm": "192.0.2.1"}
    watch.look_again()
    until(lambda: watch.domains.addresses == {vm.uuid: {"192.0.2.1"}}, "its lease is seen")
