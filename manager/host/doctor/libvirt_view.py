"""What libvirt says about itself and the running domains, asked read-only and once."""

from __future__ import annotations

import contextlib
import threading
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from functools import partial

import libvirt

from manager.errors import DomainHangs
from manager.host.libvirt_calls import DomainCalls, version_text, virtual_disks_of

_ANSWER_S = 10.0
_DOMAIN_S = 2.0
_MANAGED_ELEMENTS = ("shares", "vcpupin", "emulatorpin", "iothreadpin", "cachetune", "memorytune")


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """A running domain: its hypervisor (``kvm``, ``qemu`` for TCG, ...) and what its own configuration tunes.

    ``disks`` are those of its configuration, ``counted`` those of which libvirt has statistics of requests.
    """

    name: str
    kind: str
    tuning: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    counted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LibvirtView:
    """``error`` non-empty: no connection, and why. ``events_error`` non-empty: no lifecycle events, and why.

    ``versions`` of libvirt, its library and the hypervisor. ``hanging``: the domains about which it does not answer,
    which are not among the others.
    """

    uri: str
    error: str = ""
    versions: str = ""
    events_error: str = ""
    domains: tuple[DomainFacts, ...] = ()
    hanging: tuple[str, ...] = ()


def look_at_libvirt(uri: str, answer_s: float = _ANSWER_S) -> LibvirtView:
    """Connect, ask and close, in a thread of its own, as libvirt has no timeout for a daemon that hangs."""
    views: list[LibvirtView] = []
    thread = threading.Thread(target=lambda: views.append(_ask(uri)), name="doctor-libvirt", daemon=True)
    thread.start()
    thread.join(answer_s)
    return views[0] if views else LibvirtView(uri, error=f"no answer within {answer_s:g} s")


def _ask(uri: str) -> LibvirtView:
    try:
        connection = libvirt.openReadOnly(uri)
    except libvirt.libvirtError as error:
        return LibvirtView(uri, error=str(error))
    calls = DomainCalls(_DOMAIN_S)
    try:
        numbers = connection.getLibVersion(), libvirt.getVersion(), connection.getVersion()
        daemon, library, hypervisor = map(version_text, numbers)
        return LibvirtView(
            uri,
            versions=f"libvirt {daemon} at {uri} (library {library}), {connection.getType()} {hypervisor}",
            events_error=_try_events(connection),
            domains=tuple(sorted(_domains(connection, calls), key=lambda domain: domain.name)),
            hanging=tuple(sorted(calls.hanging.values())),
        )
    except (libvirt.libvirtError, ValueError) as error:
        return LibvirtView(uri, error=str(error))
    finally:
        calls.close()
        with contextlib.suppress(libvirt.libvirtError):
            connection.close()


def _try_events(connection: libvirt.virConnect) -> str:
    """Register for lifecycle events and deregister; why not, where that is refused."""
    try:
        number = connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda *_arguments: None, None
        )
        connection.domainEventDeregisterAny(number)
    except libvirt.libvirtError as error:
        return str(error)
    return ""


def _domains(connection: libvirt.virConnect, calls: DomainCalls) -> list[DomainFacts]:
    facts: list[DomainFacts] = []
    for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
        try:
            facts.append(calls.ask(domain.UUIDString(), domain.name(), partial(_facts, connection, domain)))
        except DomainHangs:
            continue
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:  # it may have ended meanwhile
                raise
    return facts


def _facts(connection: libvirt.virConnect, domain: libvirt.virDomain) -> DomainFacts:
    """Raises libvirtError and ValueError."""
    facts = parse_domain(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
    seen = virtual_disks_of(connection, domain)
    return replace(facts, counted=frozenset(seen.disks if seen else ()))


def parse_domain(xml: str) -> DomainFacts:
    """The facts in a domain's XML (formatdomain.html, "CPU Tuning"). Raises ValueError when it is not such XML."""
    try:
        top = ET.fromstring(xml)  # noqa: S314 - libvirt's own
    except ET.ParseError as error:
        raise ValueError(f"a domain's XML cannot be read: {error}") from error
    tune = top.find("cputune")
    tuning = tuple(name for name in _MANAGED_ELEMENTS if tune is not None and tune.find(name) is not None)
    disks = (target.get("dev", "") for target in top.iterfind("devices/disk[@device='disk']/target"))
    return DomainFacts(top.findtext("name", ""), top.get("type", ""), tuning, tuple(filter(None, disks)))
