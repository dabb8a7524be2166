"""What the doctor asks of libvirt: its test driver, which needs no daemon, and domains' XML."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from manager.host.doctor import libvirt_view
from manager.host.doctor.check import Subject
from manager.host.doctor.checks import CHECKS
from manager.host.doctor.libvirt_view import DomainFacts, LibvirtView, look_at_libvirt, parse_domain, version_text
from manager.host.hypervisor import EventLoop
from manager.host.registry import HostPaths
from manager.model.finding import Finding
from manager.model.resource_use import VirtualDiskCounters, VirtualDisksSeen

TUNED = """
<domain type='kvm'>
  <name>web</name>
  <cputune><shares>2048</shares><vcpupin vcpu='0' cpuset='1'/>{}</cputune>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator></devices>
</domain>
"""
CACHE = "<cachetune vcpus='0'><cache id='0' level='3' type='both' size='3' unit='MiB'/></cachetune>"


@pytest.fixture(autouse=True, scope="module")
def events() -> None:
    """Registered as the command does: without, libvirt refuses to follow events. A second time does no harm."""
    EventLoop()


def look(identity: str, view: LibvirtView) -> Finding:
    [check] = [one for one in CHECKS if one.id == identity]
    nowhere = Path("/nonexistent")
    subject = Subject(HostPaths(nowhere), view.uri, nowhere, nowhere, "journal.db")
    subject.__dict__["libvirt"] = view  # what cached_property keeps
    return check.run(subject)


def connected(*domains: DomainFacts) -> LibvirtView:
    return LibvirtView("qemu:///system", versions="libvirt 9.0.0 at qemu:///system", domains=domains)


def test_the_test_driver_answers() -> None:
    view = look_at_libvirt("test:///default")
    assert view.error == ""
    assert f"(library {version_text(libvirt.getVersion())}), TEST " in view.versions
    assert view.events_error == ""
    assert [(one.name, one.kind) for one in view.domains] == [("test", "test")]
    assert look("libvirt", view).status == "works"
    assert look("libvirt-events", view).status == "works"


@pytest.mark.parametrize("uri", ["test:///nonexistent.xml", "qemu+unix:///system?socket=/nonexistent", "nonsense:///x"])
def test_no_connection_is_essential_and_the_rest_unknown(uri: str) -> None:
    view = look_at_libvirt(uri)
    assert view.error
    found = look("libvirt", view)
    assert (found.status, found.broken) == ("missing", True)
    assert uri in found.detail
    for identity in ("libvirt-events", "libvirt-tuning", "accelerator", "virtual-disks"):
        assert look(identity, view).status == "unknown"


def test_a_daemon_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(_uri: str) -> libvirt.virConnect:
        release.wait(20)
        raise libvirt.libvirtError("released")

    monkeypatch.setattr(libvirt, "openReadOnly", hang)
    try:
        assert look_at_libvirt("qemu:///system", answer_s=0.05).error == "no answer within 0.05 s"
    finally:
        release.set()


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real: Callable[[str], libvirt.virConnect] = libvirt.openReadOnly
    monkeypatch.setattr(libvirt, "openReadOnly", lambda uri: asked.append(uri) or real(uri))
    nowhere = Path("/nonexistent")
    subject = Subject(HostPaths(nowhere), "test:///default", nowhere, nowhere, "journal.db")
    for check in CHECKS:
        if check.area == "Virtualisation":
            check.run(subject)
    assert asked == ["test:///default"]


def test_a_domain_that_ends_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_self: object, _flags: int = 0) -> str:
        connection = libvirt.openReadOnly("test:///default")
        try:
            connection.lookupByName("gone")
        finally:
            connection.close()
        raise AssertionError

    monkeypatch.setattr(libvirt.virDomain, "XMLDesc", ended)
    view = look_at_libvirt("test:///default")
    assert (view.error, view.domains) == ("", ())


def test_events_that_are_refused_are_said_so() -> None:
    view = replace(connected(), events_error="this function is not supported")
    found = look("libvirt-events", view)
    assert (found.status, "reconcile_s" in found.advice) == ("degraded", True)


def test_tuning_in_a_domain_is_found() -> None:
    web = parse_domain(TUNED.format(CACHE))
    assert web == DomainFacts("web", "kvm", ("shares", "vcpupin", "cachetune"))
    plain = parse_domain("<domain type='qemu'><name>x</name><cputune/></domain>")
    assert plain == DomainFacts("x", "qemu", ())
    found = look("libvirt-tuning", connected(web, plain))
    assert (found.status, "web (shares, vcpupin, cachetune)" in found.detail) == ("warning", True)
    assert look("libvirt-tuning", connected(plain)).status == "works"
    with pytest.raises(ValueError, match="cannot be read"):
        parse_domain("<domain")


DISKS = """
<domain type='kvm'>
  <name>web</name>
  <devices>
    <disk type='file' device='disk'><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='disk'><target dev='vdb' bus='virtio'/></disk>
    <disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>
  </devices>
</domain>
"""


def test_disks_that_libvirt_counts_and_others() -> None:
    web = parse_domain(DISKS)
    assert web.disks == ("vda", "vdb")
    whole = replace(web, counted=frozenset({"vda", "vdb", "sda"}))
    found = look("virtual-disks", connected(whole, DomainFacts("diskless", "kvm")))
    assert (found.status, found.detail) == (
        "works",
        "requests and latency by disk, from libvirt's block statistics: web (vda, vdb)",
    )
    found = look("virtual-disks", connected(whole, replace(web, name="db", counted=frozenset({"vda"}))))
    assert (found.status, found.detail) == ("degraded", "libvirt has no block statistics of db (vdb)")
    assert "virsh domstats --block" in found.advice
    assert look("virtual-disks", connected()).status == "works"
    assert look("virtual-disks", replace(connected(), error="refused")).status == "unknown"


def test_the_statistics_are_asked_of_each_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test driver has none, and a disk by its default configuration no more."""
    [plain] = look_at_libvirt("test:///default").domains
    assert plain.counted == frozenset()
    seen = VirtualDisksSeen(1.0, {"vda": VirtualDiskCounters(1, 1)})
    monkeypatch.setattr(libvirt_view, "virtual_disks_of", lambda _connection, domain: domain.name() == "test" and seen)
    [counted] = look_at_libvirt("test:///default").domains
    assert counted.counted == {"vda"}


def test_many_names_are_cut() -> None:
    many = [DomainFacts(f"vm{i}", "kvm", ("shares",)) for i in range(8)]
    assert "vm4 (shares) and 3 more" in look("libvirt-tuning", connected(*many)).detail


def test_emulated_domains_are_named() -> None:
    kvm, tcg = DomainFacts("fast", "kvm"), DomainFacts("slow", "qemu")
    assert look("accelerator", connected(kvm)).status == "works"
    assert look("accelerator", connected()).status == "works"
    found = look("accelerator", connected(kvm, tcg))
    assert (found.status, found.detail) == ("degraded", "running: 1 kvm, 1 qemu; emulated (TCG): slow")


def test_xml_that_cannot_be_read_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_xml: str) -> DomainFacts:
        raise ValueError("a domain's XML cannot be read")

    monkeypatch.setattr(libvirt_view, "parse_domain", broken)
    assert look_at_libvirt("test:///default").error == "a domain's XML cannot be read"
