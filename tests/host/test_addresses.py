"""Addresses of domains: whose they are, and that no guest can have so many that the agent grows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from types import SimpleNamespace

import libvirt
import pytest

from manager.host.addresses import AGE_S, MOST_ADDRESSES, AddressBook, Contest, Interfaces
from manager.host.hypervisor import HypervisorWatch
from tests.host.conftest import QemuLike, Root, until

A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"


class Site:
    """A book with a clock, of two domains with an interface each."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.book = AddressBook(lambda: self.now_s)
        self.leases: dict[str, set[str] | None] = {"a": set(), "b": set()}

    def look(self, running: str = "ab", **neighbours: set[str]) -> Mapping[str, frozenset[str]]:
        hardware = {"a": frozenset({A}), "b": frozenset({B})}
        leases = {uuid: None if of is None else frozenset(of) for uuid, of in self.leases.items()}
        seen = {uuid: Interfaces(leases[uuid], hardware[uuid]) for uuid in running}
        table = {{"a": A, "b": B}[uuid]: frozenset(addresses) for uuid, addresses in neighbours.items()}
        self.book.update(self.book.addresses.keys() & set(running), seen, table)
        return self.book.addresses


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_address_stays_known_after_the_kernel_forgot_it_but_not_for_ever(site: Site) -> None:
    site.look(a={"192.0.2.1"})
    site.now_s += AGE_S - 1
    assert site.look(a={"192.0.2.2"})["a"] == {"192.0.2.1", "192.0.2.2"}
    site.now_s += 2
    assert site.look()["a"] == {"192.0.2.2"}


def test_who_has_an_address_keeps_it_whoever_else_claims_it(site: Site) -> None:
    site.look(a={"192.0.2.1"})
    assert site.look(b={"192.0.2.1"}) == {"a": {"192.0.2.1"}, "b": frozenset()}
    assert site.book.contested == (Contest("192.0.2.1", "b", "a"),)
    assert site.look(a={"192.0.2.1"})["a"] == {"192.0.2.1"}
    assert site.book.contested == ()


def test_a_lease_counts_before_all_claims(site: Site) -> None:
    site.look(b={"192.0.2.1"})
    site.leases["a"] = {"192.0.2.1"}
    assert site.look(b={"192.0.2.1"}) == {"a": {"192.0.2.1"}, "b": frozenset()}
    assert site.book.contested == (Contest("192.0.2.1", "b", "a"),)
    site.leases["a"] = None  # libvirt does not answer: what it said still counts
    assert site.look(b={"192.0.2.1"}) == {"a": {"192.0.2.1"}, "b": frozenset()}
    site.leases["a"] = set()
    assert site.look(b={"192.0.2.1"}) == {"a": frozenset(), "b": {"192.0.2.1"}}


def test_an_address_that_two_claim_at_once_is_nobodys(site: Site) -> None:
    assert site.look(a={"192.0.2.1"}, b={"192.0.2.1"}) == {"a": frozenset(), "b": frozenset()}
    assert {one.owner for one in site.book.contested} == {None}


def test_an_address_is_free_once_its_domain_ended_or_has_not_shown_it_for_long(site: Site) -> None:
    site.look(a={"192.0.2.1"})
    assert site.look("b", b={"192.0.2.1"}) == {"b": {"192.0.2.1"}}
    site.look(a={"192.0.2.2"})
    site.now_s += AGE_S
    assert site.look(b={"192.0.2.2"})["b"] == {"192.0.2.2"}


def test_a_guest_that_rotates_its_addresses_keeps_its_first_and_does_not_grow(site: Site) -> None:
    site.leases["a"] = {"192.0.2.1"}
    site.look(a={"192.0.2.1", "2001:db8::1"})
    tracemalloc.start()
    try:
        before = 0
        for turn in range(400):
            rotated = {f"2001:db8::{turn:x}:{number:x}" for number in range(1, 51)}
            found = site.look(a={"2001:db8::1"} | rotated)["a"]
            assert len(found) <= MOST_ADDRESSES + 1
            assert {"192.0.2.1", "2001:db8::1"} <= found
            before = before or tracemalloc.get_traced_memory()[0]
            site.now_s += 30
        assert tracemalloc.get_traced_memory()[0] - before < 100_000, "20,000 addresses were shown"
    finally:
        tracemalloc.stop()


def test_the_watch_of_a_guest_that_rotates_its_addresses_stays_small(
    root: Root, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm: QemuLike = start("CPU 0/KVM")
    root.note("guest", vm.pid)
    domain = SimpleNamespace(
        UUIDString=lambda: vm.uuid,
        name=lambda: "guest",
        interfaceAddresses=lambda *_: {"vnet0": {"hwaddr": A, "addrs": [{"addr": "192.0.2.1"}]}},
        XMLDesc=lambda: f"<domain><devices><interface><mac address='{A}'/></interface></devices></domain>",
    )
    connection = SimpleNamespace(
        setKeepAlive=lambda *_: None,
        registerCloseCallback=lambda *_: None,
        unregisterCloseCallback=lambda: None,
        domainEventRegisterAny=lambda *_: 1,
        domainEventDeregisterAny=lambda *_: None,
        getLibVersion=lambda: 9_000_000,
        listAllDomains=lambda *_: [domain],
        domainListGetStats=lambda *_: [(domain, {"state.state": libvirt.VIR_DOMAIN_RUNNING, "state.reason": 0})],
        close=lambda: None,
    )
    monkeypatch.setattr(libvirt, "open", lambda _uri: connection)
    turns: list[int] = []

    def rotate() -> dict[str, frozenset[str]]:
        turns.append(len(turns))
        return {A: frozenset(f"2001:db8::{len(turns):x}:{number:x}" for number in range(200))}

    watch = HypervisorWatch("test:///default", root.paths, 3600, neighbours=rotate)
    watch.start()
    try:
        for turn in range(1, 6):
            until(lambda turn=turn: len(turns) >= turn, "it looked again")
            watch.look_again()
        addresses = watch.domains.addresses[vm.uuid]
        assert "192.0.2.1" in addresses
        assert len(addresses) <= MOST_ADDRESSES + 1
    finally:
        watch.stop()
