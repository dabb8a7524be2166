"""VMs that have just started: told of by libvirt's hook, which libvirt waits for, or found by a listing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manager.errors import HostError
from manager.host.hypervisor import HypervisorWatch
from tests.host.conftest import QemuLike, Root, until
from tests.host.test_event_bursts import Connection, boot, connection, watch

__all__ = ["boot", "connection", "watch"]


@pytest.fixture
def vm(root: Root, start: Callable[..., QemuLike]) -> QemuLike:
    """A process of a domain that libvirt does not list yet."""
    made = start("CPU 0/KVM")
    root.note("web", made.pid)
    return made


def test_it_is_listed_without_asking_libvirt(watch: HypervisorWatch, connection: Connection, vm: QemuLike) -> None:
    listed, generation = connection.calls["list"], watch.domains.generation
    assert watch.started(vm.uuid, "web")
    [instance] = watch.domains.instances.values()
    assert (instance.uuid, instance.libvirt_name, instance.pid) == (vm.uuid, "web", vm.pid)
    assert watch.domains.generation == generation + 1
    assert watch.started(vm.uuid, "web"), "told again"
    assert watch.domains.generation == generation + 1
    assert connection.calls["list"] == listed


def test_what_no_process_runs_is_not_listed(watch: HypervisorWatch, vm: QemuLike, root: Root) -> None:
    assert not watch.started("11111111-1111-4111-8111-111111111111", "web"), "the process is another domain's"
    assert not watch.started(vm.uuid, "other")
    root.paths.pid_file("folder").mkdir()
    with pytest.raises(HostError, match="process of domain folder"):
        watch.started(vm.uuid, "folder")
    assert watch.domains.instances == {}


def test_it_stays_listed_by_a_listing_that_began_before(
    watch: HypervisorWatch, connection: Connection, vm: QemuLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = connection.listAllDomains

    def told_meanwhile(flags: int) -> object:
        found = listing(flags)
        monkeypatch.setattr(connection, "listAllDomains", listing)
        watch.started(vm.uuid, "web")
        return found

    monkeypatch.setattr(connection, "listAllDomains", told_meanwhile, raising=False)
    generation = watch.domains.generation
    watch.look_again()
    until(lambda: watch.domains.generation >= generation + 2, "it was told of and listed")
    assert watch.domains.instances.keys() == {vm.uuid}
    watch.look_again()
    until(lambda: not watch.domains.instances, "what libvirt does not list afterwards is gone")


def test_those_that_a_listing_finds_are_told_of_once(
    watch: HypervisorWatch, connection: Connection, vm: QemuLike, boot: Callable[[str], QemuLike]
) -> None:
    told: list[set[str]] = []
    watch.on_arrival = lambda: told.append(set(watch.domains.instances))
    watch.started(vm.uuid, "web")
    connection.start("web", vm.uuid)
    until(lambda: vm.uuid in watch.domains.addresses, "it was listed, too")
    assert told == [], "it was known"
    other = boot("other")
    until(lambda: other.uuid in watch.domains.addresses, "it was listed")
    assert told == [{vm.uuid, other.uuid}]
    other.kill()
    connection.names.pop()
    watch.look_again()
    until(lambda: watch.domains.instances.keys() == {vm.uuid}, "it is gone")
    assert len(told) == 1
