"""The network interfaces of VMs, and which of them the host's kernel sees the packets of."""

from __future__ import annotations

import contextlib
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import libvirt

from manager.errors import HostError
from manager.host.libvirt_errors import print_no_errors
from manager.model.traffic import VmInterface

_BYPASSES = {
    "hostdev": "is a device of the VM's own (SR-IOV): its packets do not pass the host's kernel",
    "vhostuser": "is served by another process (vhost-user): its packets do not pass the host's kernel",
    "vdpa": "is a device of the VM's own (vDPA): its packets do not pass the host's kernel",
    "direct": "is a macvtap: packets on their way to the VM do not pass it where a program could see them",
    "user": "is connected by QEMU itself: it has no tap",
}


def interfaces(uri: str) -> list[VmInterface]:
    """The network interfaces of all running domains, by name. Raises HostError."""
    found: list[VmInterface] = []
    print_no_errors()
    try:
        with contextlib.closing(libvirt.open(uri)) as connection:
            domains = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            for domain in sorted(domains, key=lambda domain: domain.name()):
                with contextlib.suppress(libvirt.libvirtError):  # it ended meanwhile
                    found += interfaces_in(domain.name(), domain.XMLDesc())
    except libvirt.libvirtError as error:
        raise HostError(f"libvirt at {uri}: {error}") from error
    return found


def interfaces_in(vm: str, xml: str) -> Iterator[VmInterface]:
    """Those of a running domain by its XML. Raises HostError for what is no such XML."""
    try:
        description = ET.fromstring(xml)  # noqa: S314 - libvirt's own
    except ET.ParseError as error:
        raise HostError(f"domain {vm}: its XML cannot be read: {error}") from error
    yield from interfaces_below(vm, description)


def interfaces_below(vm: str, description: ET.Element) -> Iterator[VmInterface]:
    """Those of a running domain by its XML, which was read before."""
    for element in description.iterfind("devices/interface"):
        kind = element.get("type", "")
        target = element.find("target")
        name = target.get("dev", "") if target is not None else ""
        if kind in _BYPASSES:
            yield VmInterface(vm, name or kind, None, _BYPASSES[kind])
            continue
        try:
            yield VmInterface(vm, name, socket.if_nametoindex(name))
        except OSError:
            yield VmInterface(vm, name or kind, None, "is in no network namespace of this process")
