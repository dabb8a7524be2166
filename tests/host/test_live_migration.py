"""Live migration through libvirt: what is asked of it, what it refuses, and what does not end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import libvirt
import pytest

from manager.errors import HostError, VmVanished
from manager.host.live_migration import LiveMigration
from manager.model.host import VmInstance

VM = VmInstance("6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10", "render", 4711, 1)
LIVE = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
PERSISTENT = libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE


class Refusal(libvirt.libvirtError):  # type: ignore[misc]
    """What libvirt raises, with a code of its own."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def get_error_code(self) -> int:
        return self.code


@dataclass
class FakeDomain:
    """A domain that migrates when ``lets``, or is refused."""

    persistent: bool = True
    refusal: Exception | None = None
    ends_by_abort: bool = True
    stats: list[dict[str, int]] = field(default_factory=list)
    sent: list[tuple[str, dict[str, Any], int]] = field(default_factory=list)
    lets: threading.Event = field(default_factory=threading.Event)
    aborted: bool = False
    no_stats: int = libvirt.VIR_ERR_OPERATION_INVALID

    def name(self) -> str:
        return "render"

    def isPersistent(self) -> bool:  # noqa: N802 - libvirt's name
        return self.persistent

    def migrateToURI3(self, uri: str, parameters: dict[str, Any], flags: int) -> None:  # noqa: N802 - libvirt's name
        self.sent.append((uri, parameters, flags))
        assert self.lets.wait(10)
        if self.aborted:
            raise Refusal("operation aborted: migration out: canceled by client", libvirt.VIR_ERR_OPERATION_ABORTED)
        if self.refusal is not None:
            raise self.refusal

    def jobStats(self) -> dict[str, int]:  # noqa: N802 - libvirt's name
        if not self.stats:
            self.lets.set()
            raise Refusal("no job", self.no_stats)
        return self.stats.pop(0)

    def abortJob(self) -> None:  # noqa: N802 - libvirt's name
        self.aborted = self.ends_by_abort
        self.lets.set()
        if not self.ends_by_abort:
            raise Refusal("no job is active on the domain", libvirt.VIR_ERR_OPERATION_INVALID)


@dataclass
class FakeLibvirt:
    """A connection to libvirt with one domain."""

    domain: FakeDomain
    closed: bool = False

    def lookupByUUIDString(self, uuid: str) -> FakeDomain:  # noqa: N802 - libvirt's name
        assert uuid == VM.uuid
        return self.domain

    def unregisterCloseCallback(self) -> None:  # noqa: N802 - libvirt's name
        raise Refusal("none is registered", libvirt.VIR_ERR_OPERATION_FAILED)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def domain() -> FakeDomain:
    return FakeDomain()


@pytest.fixture
def connection(domain: FakeDomain, monkeypatch: pytest.MonkeyPatch) -> FakeLibvirt:
    opened = FakeLibvirt(domain)
    monkeypatch.setattr(libvirt, "open", lambda _uri: opened)
    return opened


def migrate(longest_s: float = 60.0) -> list[float]:
    copied: list[float] = []
    LiveMigration("qemu:///system", "qemu+tls://{host}/system", longest_s, 0.01).migrate(VM, "kvm2", copied.append)
    return copied


def test_progress_is_told_until_it_is_done(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.stats = [
        {"memory_total": 1000, "memory_remaining": 1000},
        {},
        {"memory_total": 1000, "memory_remaining": 250},
    ]
    assert migrate() == [0.0, 0.75]
    assert domain.sent == [("qemu+tls://kvm2/system", {}, LIVE | PERSISTENT)]
    assert connection.closed


def test_a_transient_domain_stays_one(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.persistent = False
    assert migrate() == []
    assert domain.sent[0][2] == LIVE
    assert connection.closed


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal("Unsafe migration: disks without shared storage", libvirt.VIR_ERR_MIGRATE_UNSAFE), HostError),
        (Refusal("domain is not running", libvirt.VIR_ERR_OPERATION_INVALID), VmVanished),
        (Refusal("no domain with matching uuid", libvirt.VIR_ERR_NO_DOMAIN), VmVanished),
    ],
)
def test_what_libvirt_refuses_is_told_in_its_words(
    domain: FakeDomain, connection: FakeLibvirt, refusal: Refusal, kind: type[HostError]
) -> None:
    domain.refusal = refusal
    with pytest.raises(kind, match=str(refusal)):
        migrate()
    assert connection.closed


def test_what_does_not_end_is_aborted(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.stats = [{"memory_total": 1000, "memory_remaining": 900}] * 50
    with pytest.raises(HostError, match="it was aborted, as it was not over after 0 s"):
        migrate(longest_s=0.05)
    assert domain.aborted
    assert connection.closed


def test_what_ends_while_it_is_aborted_is_done(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.stats, domain.ends_by_abort = [{"memory_total": 1000, "memory_remaining": 1}] * 50, False
    assert set(migrate(longest_s=0.05)) == {0.999}
    assert connection.closed


def follow(longest_s: float = 60.0) -> list[float]:
    copied: list[float] = []
    LiveMigration("qemu:///system", "qemu+tls://{host}/system", longest_s, 0.01).follow(VM, copied.append)
    return copied


JOB = {"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED, "memory_total": 1000, "memory_remaining": 250}
NO_JOB = {"type": libvirt.VIR_DOMAIN_JOB_NONE}


def test_a_migration_that_was_begun_before_is_watched(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.stats = [JOB, {"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED}, NO_JOB]
    assert follow() == [0.75]
    assert (domain.sent, domain.aborted, connection.closed) == ([], False, True)


def test_one_that_was_begun_before_is_aborted_by_its_own_time(domain: FakeDomain, connection: FakeLibvirt) -> None:
    domain.stats = [JOB | {"time_elapsed": 59_999}, JOB | {"time_elapsed": 60_000}, NO_JOB]
    follow()
    assert domain.aborted
    assert connection.closed


def test_a_backup_that_began_after_it_is_not_taken_for_it(domain: FakeDomain, connection: FakeLibvirt) -> None:
    """It failed while no agent ran; a backup may take for hours."""
    backup = JOB | {"operation": libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP, "time_elapsed": 60_000}
    domain.stats = [JOB | {"operation": libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT}, backup, NO_JOB]
    assert follow() == [0.75]
    assert not domain.aborted, "it is not ours"
    assert connection.closed


@pytest.mark.parametrize(("code", "kind"), [(libvirt.VIR_ERR_NO_DOMAIN, VmVanished), (libvirt.VIR_ERR_RPC, HostError)])
def test_a_vm_that_left_while_it_was_watched(
    domain: FakeDomain, connection: FakeLibvirt, code: int, kind: type[HostError]
) -> None:
    domain.stats, domain.no_stats = [JOB], code
    with pytest.raises(HostError, match="libvirt: ") as raised:
        follow()
    assert type(raised.value) is kind
    assert connection.closed


def test_libvirts_own_driver_for_tests_knows_no_migration() -> None:
    with pytest.raises(VmVanished, match="Domain not found"):
        LiveMigration("test:///default", "test://{host}/default", 60, 0.01).migrate(VM, "kvm2", lambda _copied: None)
    there = VmInstance("6695eb01-f6a4-8304-79aa-97f2502e193f", "test", 4711, 1)
    with pytest.raises(HostError, match="libvirt: "):
        LiveMigration("test:///default", "test://{host}/default", 60, 0.01).migrate(there, "kvm2", lambda _copied: None)


def test_a_libvirt_that_does_not_answer() -> None:
    with pytest.raises(HostError, match="libvirt at nothing:///x does not answer"):
        LiveMigration("nothing:///x", "{host}").migrate(VM, "kvm2", lambda _copied: None)
