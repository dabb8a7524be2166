"""A domain whose libvirt calls do not return, and a guest that shows ever new addresses: what becomes of all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest

from manager.host.hypervisor import HypervisorWatch
from tests.host.conftest import QemuLike, Root, until
from tests.host.test_event_bursts import Connection, Domain

HARDWARE = "52:54:00:00:00:0a"
STATE = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED


class Blocking(Connection):
    """One on which whatever asks for ``hung`` waits."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def pass_by(self, name: str) -> None:
        if name == "hung":
            self.free.wait(60)

    def listAllDomains(self, _flags: int) -> list[Domain]:  # noqa: N802 - libvirt's name
        return [BlockingDomain(self, name, uuid) for name, uuid in self.names]

    def lookupByUUIDString(self, uuid: str) -> Domain:  # noqa: N802 - libvirt's name
        [name] = [name for name, known in self.names if known == uuid]
        return BlockingDomain(self, name, uuid)

    def domainListGetStats(self, domains: list[Domain], *_given: int) -> list[tuple[Domain, dict[str, int]]]:  # noqa: N802
        for domain in domains:
            self.pass_by(domain.name())
        return [(domain, dict(zip(("state.state", "state.reason"), STATE, strict=True))) for domain in domains]


class BlockingDomain(Domain):
    def state(self) -> tuple[int, int]:
        self._connection.pass_by(self.name())  # type: ignore[attr-defined]
        return STATE

    def interfaceAddresses(self, _source: int, _flags: int) -> dict[str, Any]:  # noqa: N802 - libvirt's name
        self.state()
        return {}

    def XMLDesc(self) -> str:  # noqa: N802 - libvirt's name
        self.state()
        return f"<domain><devices><interface><mac address='{HARDWARE}'/></interface></devices></domain>"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocking]:
    made = Blocking()
    monkeypatch.setattr(libvirt, "open", lambda _uri: made)
    yield made
    made.free.set()


@pytest.fixture
def boot(connection: Blocking, root: Root, start: Callable[..., QemuLike]) -> Callable[[str], QemuLike]:
    def boot_one(name: str) -> QemuLike:
        vm = start("CPU 0/KVM")
        root.note(name, vm.pid)
        connection.start(name, vm.uuid)
        return vm

    return boot_one


def test_a_domain_whose_calls_do_not_return_stops_the_discovery_of_no_other(
    connection: Blocking, root: Root, boot: Callable[[str], QemuLike]
) -> None:
    boot("hung")
    boot("first")
    watch = HypervisorWatch("test:///default", root.paths, 0.2, neighbours=dict)
    watch.start()
    try:
        until(lambda: "first" in {one.libvirt_name for one in watch.domains.instances.values()}, "the first is found")
        boot("second")
        until(lambda: "second" in {one.libvirt_name for one in watch.domains.instances.values()}, "and the second")
    finally:
        connection.free.set()
        watch.stop()


def test_a_guest_that_rotates_its_addresses_has_a_bounded_number_of_them(
    root: Root, boot: Callable[[str], QemuLike]
) -> None:
    vm = boot("guest")
    turns: list[int] = []

    def rotate() -> dict[str, frozenset[str]]:
        turns.append(len(turns))
        return {HARDWARE: frozenset(f"2001:db8::{len(turns):x}:{number:x}" for number in range(50))}

    watch = HypervisorWatch("test:///default", root.paths, 3600, neighbours=rotate)
    watch.start()
    try:
        for turn in range(1, 11):
            until(lambda turn=turn: len(turns) >= turn, "it looked again")  # type: ignore[misc]
            watch.look_again()
        assert 1 <= len(watch.domains.addresses[vm.uuid]) <= 100, "of 500 that it showed"
    finally:
        watch.stop()
