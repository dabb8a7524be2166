"""Single calls of libvirt, and what they answer."""

from __future__ import annotations

import contextlib
import logging
import xml.etree.ElementTree as ET

import libvirt

from manager.host.addresses import Interfaces

log = logging.getLogger(__name__)


def set_up(connection: libvirt.virConnect, domains: list[libvirt.virDomain]) -> frozenset[str]:
    """UUIDs of those that libvirt does not still set up: it would undo what is written. An event tells when it is done.

    One call about all of them, which waits for no QEMU. Those that ended meanwhile are not among them.
    """
    starting = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP
    answers = connection.domainListGetStats(
        domains, libvirt.VIR_DOMAIN_STATS_STATE, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    )
    return frozenset(
        domain.UUIDString()
        for domain, stats in answers
        if (stats.get("state.state"), stats.get("state.reason")) != starting
    )


def interfaces_of(domain: libvirt.virDomain) -> Interfaces:
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


def close(connection: libvirt.virConnect) -> None:
    """Close a connection for good: one that still has a callback registered would stay open."""
    with contextlib.suppress(libvirt.libvirtError):
        connection.unregisterCloseCallback()
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a broken libvirt connection: %s", error)


def version_text(number: int) -> str:
    """A version as libvirt encodes it: 9000000 is 9.0.0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
