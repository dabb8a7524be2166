"""Ports of the loopback for servers that tests start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports that the kernel gives nobody else meanwhile. Who sets SO_REUSEADDR, as servers do, may listen on them.

    For as long as what listens there may be started: a port that is only known to have been free a moment ago may be
    that of somebody's connection when a server has started at last.
    """
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))  # and never listens: then others may not
            ports.append(holder.getsockname()[1])
        yield ports
