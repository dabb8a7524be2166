"""The network interfaces in a domain's XML."""

from __future__ import annotations

import pytest

from manager.errors import HostError
from manager.host.vm_interfaces import interfaces_in

LOOPBACK = 1
XML = """<domain><devices>
<interface type='network'><target dev='lo'/></interface><interface type='bridge'><target dev='vnet-gone'/></interface>
<interface type='hostdev'/><interface type='vhostuser'><target dev='vhu0'/></interface><interface type='user'/>
</devices></domain>"""


def test_interfaces_of_a_domain_and_why_some_cannot_be_seen() -> None:
    found = list(interfaces_in("web", XML))
    assert [(each.name, each.index) for each in found] == [
        ("lo", LOOPBACK),
        ("vnet-gone", None),
        ("hostdev", None),
        ("vhu0", None),
        ("user", None),
    ]
    assert [each.why.partition(":")[0] for each in found][2:] == [
        "is a device of the VM's own (SR-IOV)",
        "is served by another process (vhost-user)",
        "is connected by QEMU itself",
    ]
    with pytest.raises(HostError, match="domain web: its XML cannot be read"):
        list(interfaces_in("web", "<domain"))
