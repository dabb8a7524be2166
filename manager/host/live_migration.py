"""Live migration of VMs through libvirt, by a connection of its own, as such a call returns only after minutes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

import libvirt

from manager.errors import HostError, VmVanished
from manager.host.libvirt_calls import close
from manager.model.host import VmInstance

LONGEST_S = 1800.0
"""A migration that takes longer is aborted: the VM writes its memory faster than it can be copied."""
_LOOK_S = 2.0
_ABORT_S = 30.0
_MIGRATION, _NO_JOB = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT, libvirt.VIR_DOMAIN_JOB_NONE
_VANISHED = frozenset({libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID})

log = logging.getLogger(__name__)


class LiveMigration:
    """``MigrationPort`` by libvirt, from peer to peer: libvirt itself goes on if the agent ends.

    The VM's disks have to be on storage that both hosts have: libvirt refuses a migration that would lose what is in
    the host's cache, and one to a host where a disk is missing.
    """

    def __init__(self, uri: str, peer_uri: str, longest_s: float = LONGEST_S, look_s: float = _LOOK_S) -> None:
        """``peer_uri`` is how libvirt here reaches that of another host, whose name stands for ``{host}`` in it."""
        self._uri, self._peer_uri = uri, peer_uri
        self._longest_s, self._look_s = longest_s, look_s

    def migrate(self, instance: VmInstance, to: str, on_copied: Callable[[float], None]) -> None:
        """See ``MigrationPort``. A persistent domain is defined at the destination, and here no more."""
        with self._domain(instance) as domain:
            ended: Future[None] = Future()
            threading.Thread(
                target=self._send, args=(domain, self._peer_uri.replace("{host}", to), ended), daemon=True
            ).start()
            waited_s = 0.0
            while True:
                with contextlib.suppress(TimeoutError):
                    return ended.result(self._look_s)
                waited_s += self._look_s
                if waited_s >= self._longest_s:
                    return self._abort(domain, ended)
                if (copied := _copied(_stats(domain))) is not None:
                    on_copied(copied)

    def follow(self, instance: VmInstance, on_copied: Callable[[float], None]) -> None:
        """See ``MigrationPort``. Its time counts from its beginning."""
        with self._domain(instance) as domain:
            while (stats := _job(domain)) is not None:
                if stats.get("time_elapsed", 0) >= 1000 * self._longest_s:
                    _ask_to_abort(domain)
                if (copied := _copied(stats)) is not None:
                    on_copied(copied)
                time.sleep(self._look_s)

    @contextmanager
    def _domain(self, instance: VmInstance) -> Iterator[libvirt.virDomain]:
        try:
            connection = libvirt.open(self._uri)
        except libvirt.libvirtError as error:
            raise HostError(f"libvirt at {self._uri} does not answer: {error}") from error
        try:
            yield _looked_up(connection, instance)
        finally:
            close(connection)

    def _send(self, domain: libvirt.virDomain, uri: str, ended: Future[None]) -> None:
        try:
            flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
            if domain.isPersistent():
                flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
            domain.migrateToURI3(uri, {}, flags)
        except libvirt.libvirtError as error:
            ended.set_exception(_failure(error))
        else:
            ended.set_result(None)

    def _abort(self, domain: libvirt.virDomain, ended: Future[None]) -> None:
        """End it, unless it ends well just now. Raises HostError."""
        _ask_to_abort(domain)
        try:
            ended.result(_ABORT_S)
        except (TimeoutError, HostError) as error:
            raise HostError(f"it was aborted, as it was not over after {self._longest_s:.0f} s") from error


def _failure(error: libvirt.libvirtError) -> HostError:
    kind = VmVanished if error.get_error_code() in _VANISHED else HostError
    return kind(f"libvirt: {error}")


def _ask_to_abort(domain: libvirt.virDomain) -> None:
    try:
        domain.abortJob()
    except libvirt.libvirtError as error:
        log.warning("the migration of domain %s cannot be aborted: %s", domain.name(), error)


def _looked_up(connection: libvirt.virConnect, instance: VmInstance) -> libvirt.virDomain:
    try:
        return connection.lookupByUUIDString(instance.uuid)
    except libvirt.libvirtError as error:
        raise VmVanished(f"libvirt: {error}") from error


def _stats(domain: libvirt.virDomain) -> Mapping[str, int]:
    """Of what libvirt does with it; empty: not known now."""
    try:
        return dict(domain.jobStats())
    except libvirt.libvirtError as error:
        log.debug("how far the migration of domain %s is: %s", domain.name(), error)
        return {}


def _job(domain: libvirt.virDomain) -> Mapping[str, int] | None:
    """The migration to another host that is under way; None: none is, but perhaps a backup or another job.

    libvirt says which it is since 3.3. Raises VmVanished, HostError.
    """
    try:
        stats = dict(domain.jobStats())
    except libvirt.libvirtError as error:
        raise _failure(error) from error
    migrates = stats.get(libvirt.VIR_DOMAIN_JOB_OPERATION, _MIGRATION) == _MIGRATION
    return stats if migrates and stats.get("type", _NO_JOB) != _NO_JOB else None


def _copied(stats: Mapping[str, int]) -> float | None:
    """The part of its memory that was copied; None: not known now."""
    total, left = stats.get("memory_total", 0), stats.get("memory_remaining", 0)
    return min(max(1 - left / total, 0.0), 1.0) if total else None
