"""Follows the running domains through libvirt: lifecycle events, and a full listing now and then.

All libvirt calls are made here, in threads of their own, never in a tick: a libvirtd that hangs or restarts delays the
discovery of domains but not their control.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import libvirt

from manager.errors import HostError
from manager.host import process
from manager.host.registry import HostPaths
from manager.model.host import VmInstance

_KEEPALIVE_S = 5
_KEEPALIVE_COUNT = 3
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domains:
    """The running domains as last listed, by UUID. ``generation`` grows with each listing; 0: never listed yet."""

    instances: Mapping[str, VmInstance]
    generation: int = 0
    connected: bool = False
    libvirt_version: str = "unknown"


class EventLoop:
    """Runs libvirt's default event loop in a thread, which delivers lifecycle events and keepalives.

    libvirt allows one event implementation a process, registered before the first connection.
    """

    def __init__(self) -> None:
        libvirt.virEventRegisterDefaultImpl()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)  # errors arrive as exceptions; print none
        self._thread = threading.Thread(target=self._run, name="libvirt-events", daemon=True)

    def start(self) -> None:
        """Start delivering events."""
        self._thread.start()

    @staticmethod
    def _run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()


class HypervisorWatch:
    """Keeps ``domains`` up to date in a background thread, reconnecting for as long as it takes."""

    def __init__(
        self,
        uri: str,
        paths: HostPaths,
        reconcile_s: float,
        on_connection: Callable[[bool, str], None] = lambda _connected, _reason: None,
    ) -> None:
        """``on_connection(connected, reason)`` is called in the background thread at each change."""
        self._uri = uri
        self._paths = paths
        self._reconcile_s = reconcile_s
        self._on_connection = on_connection
        self._domains = Domains({})
        self._changed = threading.Event()
        self._first_listing = threading.Event()
        self._stopping = threading.Event()
        self._broken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="libvirt-watch", daemon=True)

    @property
    def domains(self) -> Domains:
        """The last listing. Never blocks."""
        return self._domains

    def start(self) -> None:
        """Begin to connect and list."""
        self._thread.start()

    def wait_first_listing(self, timeout_s: float) -> bool:
        """Wait until domains were listed once; False when that took longer."""
        return self._first_listing.wait(timeout_s)

    def stop(self) -> None:
        """Close the connection and end the thread (waits a moment for it)."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            reason = "connection closed"
            try:
                connection = libvirt.open(self._uri)
                try:
                    self._follow(connection)
                finally:
                    _close(connection)
            except libvirt.libvirtError as error:
                reason = str(error)
            if self._stopping.is_set():
                return
            if self._domains.connected:
                failures = 0
            if failures == 0:
                self._domains = Domains(self._domains.instances, self._domains.generation)
                log.warning("libvirt at %s is not available: %s", self._uri, reason)
                self._on_connection(False, reason)
            self._stopping.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    def _follow(self, connection: libvirt.virConnect) -> None:
        """List once a ``reconcile_s`` and after each event, until the connection breaks."""
        self._broken.clear()
        connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
        connection.registerCloseCallback(self._on_close, None)
        lifecycle = connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle, None
        )
        try:
            version = _version_text(connection.getLibVersion())
            while not self._stopping.is_set() and not self._broken.is_set():
                self._changed.clear()
                self._list(connection, version)
                self._changed.wait(self._reconcile_s)
        finally:
            with contextlib.suppress(libvirt.libvirtError):
                connection.domainEventDeregisterAny(lifecycle)

    def _list(self, connection: libvirt.virConnect, version: str) -> None:
        known = self._domains.instances
        found: dict[str, VmInstance] = {}
        for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            uuid, name = domain.UUIDString(), domain.name()
            instance = known.get(uuid)
            try:
                if instance is None or instance.libvirt_name != name or not process.is_alive(self._paths, instance):
                    instance = process.find_instance(self._paths, uuid, name)
            except HostError as error:  # nothing says that it ended: keep what is known
                log.warning("domain %s cannot be looked up: %s", name, error)
            if instance is not None:
                found[uuid] = instance
        reconnected = not self._domains.connected
        self._domains = Domains(found, self._domains.generation + 1, True, version)
        self._first_listing.set()
        if reconnected:
            log.info("libvirt %s at %s: %d running domains", version, self._uri, len(found))
            self._on_connection(True, f"{len(found)} running domains")

    def _on_lifecycle(self, _connection: object, _domain: object, _event: int, _detail: int, _opaque: object) -> None:
        self._changed.set()

    def _on_close(self, _connection: object, _reason: int, _opaque: object) -> None:
        self._broken.set()
        self._changed.set()


def _close(connection: libvirt.virConnect) -> None:
    """Close a connection for good: one that still has a callback registered would stay open."""
    with contextlib.suppress(libvirt.libvirtError):
        connection.unregisterCloseCallback()
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a broken libvirt connection: %s", error)


def _version_text(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
