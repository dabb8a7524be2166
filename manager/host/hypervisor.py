"""Follows the running domains through libvirt: lifecycle events, and a full listing now and then.

All libvirt calls are made here, in threads of their own, never in a tick: a libvirtd that hangs or restarts delays the
discovery of domains but not their control.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import libvirt

from manager.errors import HostError
from manager.host import process
from manager.host.addresses import AddressBook, Contest, Interfaces
from manager.host.neighbours import read_neighbours
from manager.host.registry import HostPaths
from manager.model.host import VmInstance

_KEEPALIVE_S = 5
_KEEPALIVE_COUNT = 3
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_GATHER_S = 0.1
"""Events within so long a time lead to one listing: many VMs start at once after a reboot or a failover."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domains:
    """The running domains as last listed, by UUID. ``generation`` grows with each listing; 0: never listed yet.

    ``addresses`` are the IP addresses that libvirt and the host's neighbour table know of each, ``contested`` those
    that a domain shows although they are another's.
    """

    instances: Mapping[str, VmInstance]
    generation: int = 0
    connected: bool = False
    libvirt_version: str = "unknown"
    addresses: Mapping[str, frozenset[str]] = field(default_factory=dict)
    contested: tuple[Contest, ...] = ()


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
        neighbours: Callable[[], Mapping[str, frozenset[str]]] = read_neighbours,
    ) -> None:
        """``on_connection(connected, reason)`` is called in the background thread at each change.

        ``neighbours`` tells the IP addresses beside this host by hardware address, or raises OSError.
        """
        self._neighbours = neighbours
        self._uri = uri
        self._paths = paths
        self._reconcile_s = reconcile_s
        self._on_connection = on_connection
        self.on_arrival: Callable[[], object] = lambda: None
        """Called in the background thread once a listing has found domains that were not known."""
        self._domains = Domains({})
        self._book = AddressBook()
        self._told: dict[str, VmInstance] = {}
        self._one = threading.Lock()  # for both of them; never held while libvirt is asked
        self._changed = threading.Event()
        self._asked = threading.Event()
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

    def look_again(self) -> None:
        """List soon, as something changed that no event tells of, such as an address. Returns at once."""
        self._asked.set()
        self._changed.set()

    def started(self, uuid: str, libvirt_name: str) -> bool:
        """List a domain that libvirt has set up while it waits for its hook, and so answers nobody who asks for it.

        False: no process runs that domain. Raises HostError when that cannot be known.
        """
        instance = process.find_instance(self._paths, uuid, libvirt_name)
        if instance is None:
            return False
        with self._one:
            known = self._domains
            if known.instances.get(uuid) != instance:
                self._told[uuid] = instance
                instances = {**known.instances, uuid: instance}
                self._domains = replace(known, instances=instances, generation=known.generation + 1)
        return True

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
                with self._one:
                    self._domains = replace(self._domains, connected=False, libvirt_version="unknown")
                log.warning("libvirt at %s is not available: %s", self._uri, reason)
                self._on_connection(False, reason)
            self._stopping.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    def _follow(self, connection: libvirt.virConnect) -> None:
        """List once a ``reconcile_s`` and after events, until the connection breaks.

        Addresses of domains that were there before are looked up again where no event was the reason to list: that
        takes two calls a domain, and during a burst of events most domains are as they were.
        """
        self._broken.clear()
        connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
        connection.registerCloseCallback(self._on_close, None)
        lifecycle = connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle, None
        )
        try:
            version = _version_text(connection.getLibVersion())
            everything = True
            while not self._stopping.is_set() and not self._broken.is_set():
                self._changed.clear()
                everything = self._asked.is_set() or everything
                self._asked.clear()
                self._list(connection, version, everything)
                everything = not self._changed.wait(self._reconcile_s)
                if not everything:
                    self._stopping.wait(_GATHER_S)
        finally:
            with contextlib.suppress(libvirt.libvirtError):
                connection.domainEventDeregisterAny(lifecycle)

    def _list(self, connection: libvirt.virConnect, version: str, everything: bool) -> None:
        """List the domains and look up addresses: of all if ``everything``, else of those that are new."""
        with self._one:
            known, addresses = self._domains.instances, self._domains.addresses
            self._told.clear()
        found: dict[str, VmInstance] = {}
        domains: list[libvirt.virDomain] = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        for domain in domains:
            uuid, name = domain.UUIDString(), domain.name()
            instance = known.get(uuid)
            try:
                if instance is None or instance.libvirt_name != name or not process.is_alive(self._paths, instance):
                    instance = None if _is_starting(domain) else process.find_instance(self._paths, uuid, name)
            except HostError as error:  # nothing says that it ended: keep what is known
                log.warning("domain %s cannot be looked up: %s", name, error)
            if instance is not None:
                found[uuid] = instance
        reconnected = not self._domains.connected
        same = {uuid: addresses[uuid] for uuid in addresses if known.get(uuid) == found.get(uuid)}
        with self._one:
            before = self._domains
            found |= self._told  # what libvirt set up after it had been asked
            self._domains = Domains(found, before.generation + 1, True, version, same)
        self._first_listing.set()
        if any(before.instances.get(uuid) != instance for uuid, instance in found.items()):
            self.on_arrival()
        if reconnected:
            log.info("libvirt %s at %s: %d running domains", version, self._uri, len(found))
            self._on_connection(True, f"{len(found)} running domains")
        # Last, as it takes two calls a domain, which may be slow.
        wanted = found.keys() if everything else found.keys() - same.keys()
        neighbours = self._read_neighbours() if wanted else {}
        seen = {one.UUIDString(): _interfaces_of(one) for one in domains if one.UUIDString() in wanted}
        self._book.update(same.keys() & found.keys(), seen, neighbours)
        contested = self._book.contested if everything else self._domains.contested
        with self._one:
            self._domains = replace(self._domains, addresses=self._book.addresses, contested=contested)

    def _read_neighbours(self) -> Mapping[str, frozenset[str]]:
        try:
            return self._neighbours()
        except OSError as error:
            log.warning("the neighbour table cannot be read: %s", error)
            return {}

    def _on_lifecycle(self, _connection: object, _domain: object, _event: int, _detail: int, _opaque: object) -> None:
        self._changed.set()

    def _on_close(self, _connection: object, _reason: int, _opaque: object) -> None:
        self._broken.set()
        self._changed.set()


def _is_starting(domain: libvirt.virDomain) -> bool:
    """Whether libvirt still sets a domain up: it would undo what is written now. An event tells when it is done."""
    try:
        return tuple(domain.state()) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)
    except libvirt.libvirtError as error:  # it ended meanwhile
        log.debug("state of domain %s: %s", domain.name(), error)
        return True


def _interfaces_of(domain: libvirt.virDomain) -> Interfaces:
    """What libvirt knows of a domain's interfaces."""
    leased: frozenset[str] | None = None
    hardware: frozenset[str] = frozenset()
    try:
        leases = domain.interfaceAddresses(libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE, 0)
        leased = frozenset(str(one["addr"]) for interface in leases.values() for one in interface["addrs"] or ())
    except libvirt.libvirtError as error:  # it ended meanwhile, or its network is none of libvirt's
        log.debug("leases of domain %s: %s", domain.name(), error)
    try:
        description = ET.fromstring(domain.XMLDesc())  # noqa: S314 - libvirt's own
    except libvirt.libvirtError as error:
        log.debug("interfaces of domain %s: %s", domain.name(), error)
    else:
        hardware = frozenset(mac.get("address", "").lower() for mac in description.iterfind("devices/interface/mac"))
    return Interfaces(leased, hardware)


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
