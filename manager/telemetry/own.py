"""Which addresses are this machine's own."""

from __future__ import annotations

import ipaddress
import socket


def is_own_address(address: str) -> bool:
    """Whether who has this IP address is this machine, by loopback or any other of its addresses.

    To one of its own addresses Linux routes from that very address. Nothing is sent.
    """
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback:
        return True
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # there is no way to it, so it is elsewhere
