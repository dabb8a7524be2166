"""libvirt's partition of a domain: the slice of systemd that its scope is made in when it starts.

https://libvirt.org/cgroups.html, "Using custom partitions". The definition is changed, so it counts from the next start
on, and stays when Equipoise goes; a running VM stays where it is.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from enum import StrEnum

import libvirt

from manager.errors import HostError
from manager.host.batch_group import PARTITION
from manager.host.libvirt_errors import print_no_errors

_DEFAULTS = ("", "/machine")
_WHOLE = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE


class Partitioned(StrEnum):
    """Where a domain is to start."""

    DEFAULT = "default"
    BATCH = "batch"
    OTHER = "other"
    """In another partition: it is left alone."""
    TRANSIENT = "transient"
    """It has no definition that could be changed."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Definition:
    """A domain's partition as defined."""

    name: str
    state: Partitioned
    partition: str = ""


def partition_in(xml: str) -> str:
    """The partition in a domain's XML, empty for none. Raises HostError for what is no such XML."""
    return (_parse(xml).findtext("resource/partition") or "").strip()


def with_partition(xml: str, partition: str) -> str:
    """The XML with that partition, or with none of its own where that is empty; all else stays. Raises HostError."""
    top = _parse(xml)
    resource = top.find("resource")
    if resource is None:
        resource = ET.SubElement(top, "resource")
    element = resource.find("partition")
    if partition:
        element = ET.SubElement(resource, "partition") if element is None else element
        element.text = partition
    elif element is not None:
        resource.remove(element)
    if not len(resource):
        top.remove(resource)
    return ET.tostring(top, encoding="unicode")


def _parse(xml: str) -> ET.Element:
    try:
        for _, (prefix, uri) in ET.iterparse(io.StringIO(xml), events=["start-ns"]):  # noqa: S314 - libvirt's own
            ET.register_namespace(prefix, uri)  # such as qemu: it is written as it was
        return ET.fromstring(xml)  # noqa: S314 - libvirt's own
    except ET.ParseError as error:
        raise HostError(f"a domain's XML cannot be read: {error}") from error


class Definitions:
    """The definitions of a libvirtd's domains. All methods raise HostError."""

    def __init__(self, uri: str) -> None:
        """Connect."""
        print_no_errors()
        try:
            self._connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            raise HostError(f"libvirt at {uri}: {error}") from error

    def look(self, name: str) -> Definition:
        """Where a domain is to start."""
        try:
            domain = self._find(name)
            if domain is None:
                return Definition(name, Partitioned.ABSENT)
            if not domain.isPersistent():
                return Definition(name, Partitioned.TRANSIENT)
            partition = partition_in(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
        except libvirt.libvirtError as error:
            raise HostError(f"domain {name}: {error}") from error
        if partition == PARTITION:
            return Definition(name, Partitioned.BATCH, partition)
        default = partition in _DEFAULTS
        return Definition(name, Partitioned.DEFAULT if default else Partitioned.OTHER, partition)

    def define(self, name: str, *, batch: bool) -> None:
        """Let a domain start in the batch group, or where libvirt puts it by default."""
        try:
            domain = self._connection.lookupByName(name)
            self._connection.defineXML(with_partition(domain.XMLDesc(_WHOLE), PARTITION if batch else ""))
        except libvirt.libvirtError as error:
            raise HostError(f"domain {name}: {error}") from error

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _find(self, name: str) -> libvirt.virDomain | None:
        try:
            return self._connection.lookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
