"""A network uplink with a slow wire behind it, and clients at its other end.

A port of libvirt's bridge stands for the host's network interface. The wire is a network namespace that lets through
so much and drops what its queue does not hold, as a switch does; clients are in another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from deploy.lab.commands import CommandFailed, Runner, run

BRIDGE = "virbr0"
UPLINK = "eqp-lab-up"
CLIENTS = "eqp-lab-clients"
CLIENTS_ADDRESS = "192.168.122.250"
_WIRE = "eqp-lab-wire"
_QUEUE_MS = 20
_PREFIX_LENGTH = 24


@dataclass(frozen=True, slots=True)
class SlowWire:
    """``uplink`` is the interface of the host; programs in the network namespace ``clients`` have ``address``."""

    uplink: str = UPLINK
    clients: str = CLIENTS
    address: str = CLIENTS_ADDRESS


@contextmanager
def slow_wire(rate_mbit: float, runner: Runner = run) -> Iterator[SlowWire]:
    """Uplink, wire and clients, while the block runs; what a run that was killed left is removed first.

    Raises LabError.
    """
    _remove(runner)
    with ExitStack() as stack:
        stack.callback(_remove, runner)
        for namespace in (_WIRE, CLIENTS):
            runner(["ip", "netns", "add", namespace])
        runner(["ip", "link", "add", UPLINK, "type", "veth", "peer", "name", "host", "netns", _WIRE])
        runner(["ip", "-n", _WIRE, "link", "add", "far", "type", "veth", "peer", "name", "eth0", "netns", CLIENTS])
        runner(["ip", "-n", _WIRE, "link", "add", "switch", "type", "bridge"])
        for port in ("host", "far"):
            runner(["ip", "-n", _WIRE, "link", "set", port, "master", "switch", "up"])
        runner(["ip", "-n", _WIRE, "link", "set", "switch", "up"])
        queue = ["tbf", "rate", f"{rate_mbit:g}mbit", "burst", "16kb", "latency", f"{_QUEUE_MS}ms"]
        runner(["tc", "-n", _WIRE, "qdisc", "add", "dev", "far", "root", *queue])
        runner(["ip", "-n", CLIENTS, "addr", "add", f"{CLIENTS_ADDRESS}/{_PREFIX_LENGTH}", "dev", "eth0"])
        for link in ("lo", "eth0"):
            runner(["ip", "-n", CLIENTS, "link", "set", link, "up"])
        runner(["ip", "link", "set", UPLINK, "master", BRIDGE, "up"])
        yield SlowWire()


def _remove(runner: Runner) -> None:
    """All of it; that it is gone is no error. The interfaces go with their namespaces."""
    for namespace in (CLIENTS, _WIRE):
        if namespace in runner(["ip", "netns", "list"]).split():
            runner(["ip", "netns", "delete", namespace])
    try:
        runner(["ip", "link", "delete", UPLINK])
    except CommandFailed as error:
        if "Cannot find device" not in error.cause:
            raise
