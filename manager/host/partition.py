"""libvirt's partition of a domain: the slice of systemd that its scope is made in when it starts.

https://libvirt.org/cgroups.html, "Using custom partitions". The definition is changed, so it counts from the next start
on, and stays when Equipoise goes; a running VM stays where it is.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from xml.dom import minidom
from xml.parsers.expat import ExpatError

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
    """The XML with that partition, or with none of its own where that is empty; all else stays. Raises HostError.

    By its DOM, which keeps the names and declarations of namespaces as they are.
    """
    try:
        document = minidom.parseString(xml)  # noqa: S318 - libvirt's own
    except ExpatError as error:
        raise _unreadable(error) from error
    top: Any = document.documentElement  # types of this library are as its attributes are: mostly optional
    resource = _child(top, "resource") or top.appendChild(document.createElement("resource"))
    before = _child(resource, "partition")
    if before is not None:
        resource.removeChild(before)
    if partition:
        resource.appendChild(document.createElement("partition")).appendChild(document.createTextNode(partition))
    if not _elements(resource):
        top.removeChild(resource)
    return str(top.toxml())


def _child(parent: Any, name: str) -> Any:
    return next((element for element in _elements(parent) if element.tagName == name), None)


def _elements(parent: Any) -> list[Any]:
    return [node for node in parent.childNodes if isinstance(node, minidom.Element)]


def _parse(xml: str) -> ET.Element:
    try:
        return ET.fromstring(xml)  # noqa: S314 - libvirt's own
    except ET.ParseError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> HostError:
    return HostError(f"a domain's XML cannot be read: {error}")


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
