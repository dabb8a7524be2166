"""Follows the running domains through libvirt: lifecycle events, and a full listing now and then.

All libvirt calls are made here, in threads of their own, never in a tick: a libvirtd that hangs or restarts does not
delay control. Nor does one that hangs delay discovery: a domain about which no call returns is set apart, and while
nothing returns, domains are found by their files. (A listing waits for each domain's lock, which libvirt holds while a
hook of that domain runs, or its storage does not answer.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import libvirt

from manager.errors import HostError
from manager.host import process
from manager.host.addresses import AddressBook, Contest, read_neighbours
from manager.host.libvirt_calls import (
    ITSELF,
    MOST_DISKS_HANGING,
    DomainCalls,
    Line,
    Lookups,
    Patience,
    Question,
    close,
    find_hanging,
    interfaces_of,
    set_up,
    version_text,
    virtual_disks_of,
)
from manager.host.libvirt_errors import print_no_errors
from manager.host.registry import HostPaths
from manager.model.host import Discovery, VmInstance
from manager.model.resource_use import VirtualDisksSeen

_KEEPALIVE_S = 5
_KEEPALIVE_COUNT = 3
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_ADDRESS_BYTES = 6
_GATHER_S = 0.1
"""Events within so long a time lead to one listing: many VMs start at once after a reboot or a failover."""

Answer = TypeVar("Answer")

LATE_S = 60.0
"""Discovery is late without a full listing for so long."""
PATIENCE = Patience()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domains:
    """The running domains as last listed, by UUID. ``generation`` grows with each listing; 0: never listed yet.

    ``addresses`` are the IP addresses that libvirt and the host's neighbour table know of each, ``contested`` those
    that a domain shows although they are another's, ``taps`` the indexes of interfaces whose packets pass this kernel,
    ``hardware`` the MAC addresses of its interfaces, ``disks`` the last two looks at its disks, the older one first.
    """

    instances: Mapping[str, VmInstance]
    generation: int = 0
    connected: bool = False
    libvirt_version: str = "unknown"
    addresses: Mapping[str, frozenset[str]] = field(default_factory=dict)
    contested: tuple[Contest, ...] = ()
    taps: Mapping[str, frozenset[int]] = field(default_factory=dict)
    hardware: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    disks: Mapping[str, tuple[VirtualDisksSeen, VirtualDisksSeen]] = field(default_factory=dict)


class EventLoop:
    """Runs libvirt's default event loop in a thread, which delivers lifecycle events and keepalives.

    libvirt allows one event implementation a process, registered before the first connection.
    """

    def __init__(self) -> None:
        libvirt.virEventRegisterDefaultImpl()
        print_no_errors()
        self._thread = threading.Thread(target=self._run, name="libvirt-events", daemon=True)
        self._stopping = False

    def start(self) -> None:
        """Start delivering events."""
        self._thread.start()

    def stop(self) -> None:
        """Deliver no more: a callback could crash a process that is about to end. Waits a moment for the thread."""
        self._stopping = True
        timer = libvirt.virEventAddTimeout(0, lambda _timer, _opaque: None, None)  # wakes it
        self._thread.join(timeout=2)
        libvirt.virEventRemoveTimeout(timer)

    def _run(self) -> None:
        while not self._stopping:
            libvirt.virEventRunDefaultImpl()


class HypervisorWatch:
    """Keeps ``domains`` up to date in background threads, reconnecting for as long as it takes.

    One thread follows libvirt, one looks up addresses, and one sees to it that neither holds up the rest: while
    libvirt does not answer, domains are found by their files.
    """

    def __init__(
        self,
        uri: str,
        paths: HostPaths,
        reconcile_s: float,
        on_connection: Callable[[bool, str], None] = lambda _connected, _reason: None,
        neighbours: Callable[[], Mapping[str, frozenset[str]]] = read_neighbours,
        *,
        late_s: float = LATE_S,
        patience: Patience = PATIENCE,
    ) -> None:
        """``on_connection(connected, reason)`` is called in a background thread at each change.

        ``neighbours`` returns the IP addresses beside this host by hardware address, or raises OSError. Without a full
        listing for ``late_s``, or three times ``reconcile_s``, discovery is late.
        """
        self._neighbours = neighbours
        self._uri = uri
        self._paths = paths
        self._reconcile_s = reconcile_s
        self._late_s = max(late_s, 3 * reconcile_s)
        self._patience = patience
        self._on_connection = on_connection
        self.on_arrival: Callable[[], object] = lambda: None
        """Called in a background thread once a listing has found domains that were not known."""
        self.domains = Domains({})
        """The last listing, which is replaced as a whole."""
        self._book = AddressBook()
        self._listed_s = time.monotonic()
        self._found_apart: dict[str, VmInstance] = {}
        self._lock = threading.Lock()  # for all three of them; never held while libvirt is asked
        self._changed = threading.Event()
        self._asked = threading.Event()
        self._first_listing = threading.Event()
        self._stopping = threading.Event()
        self._waiting = threading.Event()  # for an answer of libvirt, or it was stopped
        self._line = Line(self._run, self._waiting.set)
        self._left: list[Line] = []
        self._overseer = threading.Thread(target=self._oversee, name="libvirt-overseer", daemon=True)

    @property
    def discovery(self) -> Discovery:
        """How fresh that is. Never blocks for long."""
        calls = self._line.calls
        apart = calls.hanging if calls is not None else {}
        hanging = tuple(sorted(name for uuid, name in apart.items() if uuid != ITSELF))
        return Discovery(time.monotonic() - self._listed_s, self._late_s, hanging)

    def start(self) -> None:
        """Begin to connect and list."""
        self._line.thread.start()
        self._overseer.start()

    def wait_first_listing(self, timeout_s: float) -> bool:
        """Wait until domains were listed once; False when that took longer."""
        return self._first_listing.wait(timeout_s)

    def look_again(self) -> None:
        """List soon, as something changed without an event, such as an address. Returns at once."""
        self._asked.set()
        self._changed.set()

    def started(self, uuid: str, libvirt_name: str) -> bool:
        """List a domain that libvirt has set up while it waits for its hook, and so answers nobody who asks for it.

        False: no process runs that domain. Raises HostError when that cannot be known.
        """
        instance = process.find_instance(self._paths, uuid, libvirt_name)
        if instance is None:
            return False
        with self._lock:
            before = self.domains
            if before.instances.get(uuid) != instance:
                self._found_apart[uuid] = instance
                self.domains = _listed(before, {**before.instances, uuid: instance})
        return True

    def stop(self) -> None:
        """Close the connection and end the threads (waits a moment for them)."""
        self._stopping.set()
        self._changed.set()
        self._waiting.set()
        self._overseer.join(timeout=2)  # first: it may begin another line
        self._line.thread.join(timeout=2)

    def _goes_on(self, line: Line) -> bool:
        return not (self._stopping.is_set() or line.left)

    def _run(self, line: Line) -> None:
        failures = 0
        while self._goes_on(line):
            reason = "connection closed"
            try:
                with line.asking():
                    connection = libvirt.open(self._uri)
                try:
                    self._follow(line, connection)
                finally:
                    line.connection = None
                    close(connection)
            except libvirt.libvirtError as error:
                reason = str(error)
            if not self._goes_on(line):
                return
            if self.domains.connected:
                failures = 0
            if failures == 0:
                self._disconnected(reason)
            self._stopping.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    def _disconnected(self, reason: str) -> None:
        with self._lock:
            self.domains = replace(self.domains, connected=False, libvirt_version="unknown")
        log.warning("libvirt at %s is not available: %s", self._uri, reason)
        self._on_connection(False, reason)

    def _follow(self, line: Line, connection: libvirt.virConnect) -> None:
        """List once a ``reconcile_s`` and after events, until the connection breaks.

        Addresses of domains that were there before are looked up again where no event was the reason to list: that
        takes two calls a domain, and during a burst of events most domains are as they were.
        """
        line.broken.clear()
        with line.asking():
            connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
            connection.registerCloseCallback(self._on_close, line)
            lifecycle = connection.domainEventRegisterAny(
                None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle, None
            )
        line.connection, line.calls = connection, DomainCalls(self._patience.domain_s)
        disk_calls = DomainCalls(self._patience.domain_s, MOST_DISKS_HANGING)
        lookups = Lookups(partial(self._look_up, connection, line.calls, disk_calls))
        try:
            with line.asking():
                version = version_text(connection.getLibVersion())
            everything = True
            while self._goes_on(line) and not line.broken.is_set():
                self._changed.clear()
                everything = self._asked.is_set() or everything
                self._asked.clear()
                lookups.ask(self._list(line, connection, version, everything))
                everything = not self._changed.wait(self._reconcile_s)
                if not everything:
                    self._stopping.wait(_GATHER_S)
        finally:
            line.calls.close()
            disk_calls.close()
            lookups.close()
            with contextlib.suppress(libvirt.libvirtError), line.asking():
                connection.domainEventDeregisterAny(lifecycle)

    def _list(
        self, line: Line, connection: libvirt.virConnect, version: str, everything: bool
    ) -> list[libvirt.virDomain]:
        """List the domains. Returns those whose addresses are to be looked up: all if ``everything``, or new ones."""
        with self._lock:
            listed = self.domains.instances
            self._found_apart.clear()
        instances: dict[str, VmInstance] = {}
        new: list[libvirt.virDomain] = []
        with line.asking():
            domains: list[libvirt.virDomain] = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            for domain in domains:
                instance = listed.get(domain.UUIDString())
                if instance and instance.libvirt_name == domain.name() and process.may_run(self._paths, instance):
                    instances[instance.uuid] = instance
                else:
                    new.append(domain)
            ready = set_up(connection, new) if new else frozenset()
        for domain in new:
            uuid, name = domain.UUIDString(), domain.name()
            try:
                instance = process.find_instance(self._paths, uuid, name) if uuid in ready else None
            except HostError as error:  # nothing says that one listed before ended: keep it
                log.warning("domain %s cannot be looked up: %s", name, error)
                instance = listed.get(uuid)
            if instance is not None:
                instances[uuid] = instance
        if not self._goes_on(line):
            return []
        with self._lock:
            before = self.domains
            instances |= self._found_apart  # what libvirt set up after it had been asked
            now = replace(_listed(before, instances), connected=True, libvirt_version=version)
            self.domains, self._listed_s = now, time.monotonic()
        self._first_listing.set()
        if instances.items() - before.instances.items():
            self.on_arrival()
        if not before.connected:
            log.info("libvirt %s at %s: %d running domains", version, self._uri, len(instances))
            self._on_connection(True, f"{len(instances)} running domains")
        wanted = instances.keys() if everything else instances.keys() - now.addresses.keys()
        return [domain for domain in domains if domain.UUIDString() in wanted]

    def _look_up(
        self,
        connection: libvirt.virConnect,
        calls: DomainCalls,
        disk_calls: DomainCalls,
        domains: list[libvirt.virDomain],
    ) -> None:
        """Look up addresses and disks, each domain for itself. One that is set apart keeps what is known of it."""
        asked = self.domains.instances
        wanted = {domain.UUIDString() for domain in domains}
        seen = calls.ask_each(_about(domain, interfaces_of) for domain in domains)
        neighbours: Mapping[str, frozenset[str]] = {}
        try:
            neighbours = self._neighbours()
        except OSError as error:
            log.warning("the neighbour table cannot be read: %s", error)
        with self._lock:
            before = self.domains
            now = before.instances
            seen = {uuid: seen[uuid] for uuid in seen.keys() & now.keys() if now[uuid] == asked.get(uuid)}
            self._book.update(before.addresses.keys() & now.keys(), seen, neighbours)
            contested = self._book.contested if wanted >= now.keys() else before.contested
            said = [(uuid, each.taps, each.hardware) for uuid, each in seen.items()]
            taps = {**before.taps, **{uuid: taps for uuid, taps, _ in said if taps is not None}}
            macs = {uuid: _packed(hardware) for uuid, _, hardware in said if hardware is not None}
            hardware = {**before.hardware, **macs}
            self.domains = replace(
                before, addresses=self._book.addresses, contested=contested, taps=taps, hardware=hardware
            )
        self._look_at_disks(connection, disk_calls, domains, asked)

    def _look_at_disks(
        self,
        connection: libvirt.virConnect,
        calls: DomainCalls,
        domains: Iterable[libvirt.virDomain],
        asked: Mapping[str, VmInstance],
    ) -> None:
        """Each domain for itself, after addresses: QEMU has to answer. Of one that does not, nothing is known then."""
        questions = [_about(domain, partial(virtual_disks_of, connection)) for domain in domains]
        unknown: dict[str, VirtualDisksSeen | None] = dict.fromkeys(question.uuid for question in questions)
        seen = unknown | calls.ask_each(questions)
        with self._lock:
            before = self.domains
            disks = {uuid: both for uuid, both in before.disks.items() if uuid not in seen}
            for uuid, now in seen.items():
                if now is not None and uuid in asked and before.instances.get(uuid) == asked[uuid]:
                    disks[uuid] = before.disks.get(uuid, (now, now))[1], now
            self.domains = replace(before, disks=disks)

    def _oversee(self) -> None:
        """While libvirt does not answer, find domains by their files, and who keeps it; then try another connection."""
        examined_s: float | None = None
        while not self._stopping.is_set():
            self._waiting.wait()
            self._waiting.clear()
            examined_s = self._oversee_answer(examined_s)

    def _oversee_answer(self, examined_s: float | None) -> float | None:
        """Do so until no answer is waited for. ``examined_s``: since when the one was waited for that was examined."""
        while not self._stopping.wait(self._patience.listing_s / 2):
            line = self._line
            asked_s = line.asked_s
            if asked_s is None:
                break
            waited_s = time.monotonic() - asked_s
            if waited_s < self._patience.listing_s:
                continue
            self._list_by_files()
            if asked_s != examined_s:
                examined_s = asked_s
                names = {uuid: instance.libvirt_name for uuid, instance in self.domains.instances.items()}
                threading.Thread(target=find_hanging, args=(line, names), name="libvirt-examiner", daemon=True).start()
            if waited_s >= self._patience.renew_s:
                self._renew(line, waited_s)
        return examined_s

    def _list_by_files(self) -> None:
        with self._lock:
            listed = self.domains.instances
        instances = process.find_running(self._paths, listed)
        with self._lock:
            before = self.domains
            instances |= {uuid: before.instances[uuid] for uuid, _ in before.instances.items() - listed.items()}
            new = dict(instances.items() - before.instances.items())
            if instances != before.instances:
                self._found_apart |= new  # a listing that comes late may not know them
                self.domains = _listed(before, instances)
                self._changed.set()  # another listing after that one
        self._first_listing.set()
        if new:
            log.info("found by their files, while libvirt does not answer: %d domains", len(new))
            self.on_arrival()

    def _renew(self, line: Line, waited_s: float) -> None:
        """Let another line take the place of one that waits, unless too many were left behind."""
        self._left = [other for other in self._left if other.thread.is_alive()]
        if len(self._left) >= self._patience.most_left:
            return
        line.left = True
        self._left.append(line)
        self._line = Line(self._run, self._waiting.set)
        self._disconnected(f"no answer for {waited_s:.0f} s, trying another connection")
        self._line.thread.start()

    def _on_lifecycle(self, _connection: object, _domain: object, _event: int, _detail: int, _opaque: object) -> None:
        self._changed.set()

    def _on_close(self, _connection: object, _reason: int, line: Line) -> None:
        line.broken.set()
        self._changed.set()


def _listed(before: Domains, instances: Mapping[str, VmInstance]) -> Domains:
    """After a listing found these; addresses and taps of domains that ended, or began anew, are forgotten."""
    same = dict(instances.items() & before.instances.items())
    addresses = {uuid: addresses for uuid, addresses in before.addresses.items() if uuid in same}
    taps = {uuid: taps for uuid, taps in before.taps.items() if uuid in same}
    hardware = {uuid: hardware for uuid, hardware in before.hardware.items() if uuid in same}
    disks = {uuid: disks for uuid, disks in before.disks.items() if uuid in same}
    generation = before.generation + 1
    return replace(
        before,
        instances=instances,
        generation=generation,
        addresses=addresses,
        taps=taps,
        hardware=hardware,
        disks=disks,
    )


def _about(domain: libvirt.virDomain, ask: Callable[[libvirt.virDomain], Answer]) -> Question[Answer]:
    return Question(domain.UUIDString(), domain.name(), partial(ask, domain))


def _packed(hardware: Iterable[str]) -> frozenset[bytes]:
    """Addresses as frames have them, without what is none."""
    packed: set[bytes] = set()
    for address in hardware:
        with contextlib.suppress(ValueError):
            packed.add(bytes.fromhex(address.replace(":", "")))
    return frozenset(address for address in packed if len(address) == _ADDRESS_BYTES)
