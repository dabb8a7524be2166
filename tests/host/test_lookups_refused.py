"""What is known of a domain's interfaces stays where libvirt does not say them: a restart amid a look-up, odd XML."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import libvirt
import pytest

from manager.host.hypervisor import Domains, HypervisorWatch
from manager.host.libvirt_calls import DomainCalls
from manager.host.registry import HostPaths
from manager.model.host import VmInstance

WEB = VmInstance("u-web", "web", 101, 7)
GONE = libvirt.libvirtError("client socket is closed")


@pytest.mark.parametrize(
    "xml",
    [
        Mock(side_effect=GONE),
        Mock(side_effect=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")),
        Mock(return_value="<domain>\x01</domain>"),
    ],
    ids=["libvirtd restarts", "a path that is not UTF-8", "no XML"],
)
def test_interfaces_stay_known_where_libvirt_does_not_say_them(tmp_path: Path, xml: Mock) -> None:
    watch = HypervisorWatch("test:///default", HostPaths(tmp_path), 30.0, neighbours=dict)
    taps, hardware = {"u-web": frozenset({11})}, {"u-web": frozenset({b"\x52\x54\0\0\0\1"})}
    watch.domains = Domains({"u-web": WEB}, 1, True, taps=taps, hardware=hardware)
    domain = Mock(XMLDesc=xml, interfaceAddresses=Mock(side_effect=GONE))
    domain.UUIDString.return_value, domain.name.return_value = "u-web", "web"
    connection = Mock(domainListGetStats=Mock(side_effect=GONE))
    watch._look_up(connection, DomainCalls(5.0), DomainCalls(5.0), [domain])
    assert (watch.domains.taps, watch.domains.hardware) == (taps, hardware)
