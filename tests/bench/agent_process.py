"""`equipoise agent` with a stand-in for the connection to libvirt, so that it controls VMs without QEMU.

    python -m tests.bench.agent_process CALL_MS ARGUMENTS OF equipoise

Run by the benchmarks, which speak with it over pipes. Everything but ``libvirt.open`` is the real agent. Its first line
of standard input is a JSON list of running domains, each a name and a UUID. Later ones are ``start NAME UUID``: the
domain runs from now on, and a lifecycle event tells of it; and ``figures``: it answers with a line of JSON, see
``Figures``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import libvirt

from manager.cli.main import main as equipoise
from manager.loop.tick import ControlLoop, TickResult

_VERSION = 9_000_000

LifecycleCallback = Callable[[object, object, int, int, object], None]


@dataclass
class Figures:
    """Calls to libvirt by name; each tick's wall-clock and CPU time, and how many settings it changed."""

    calls: dict[str, int] = field(default_factory=dict)
    tick_ms: list[float] = field(default_factory=list)
    tick_cpu_ms: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)


class StandInDomain:
    """A running domain, as far as HypervisorWatch asks."""

    def __init__(self, name: str, uuid: str, call: Callable[[str], None]) -> None:
        self._name = name
        self._uuid = uuid
        self._call = call

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return self._uuid

    def name(self) -> str:
        return self._name

    def state(self) -> tuple[int, int]:
        self._call("state")
        return libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED

    def interfaceAddresses(self, _source: int, _flags: int) -> dict[str, Any]:  # noqa: N802 - libvirt's name
        self._call("interfaceAddresses")
        return {}

    def XMLDesc(self) -> str:  # noqa: N802 - libvirt's name
        self._call("XMLDesc")
        return "<domain/>"


class StandIn:
    """A connection. Each call that would go to libvirtd takes ``call_s`` seconds."""

    def __init__(self, call_s: float, figures: Figures) -> None:
        self._call_s = call_s
        self._figures = figures
        self._domains: list[StandInDomain] = []
        self._callback: LifecycleCallback | None = None

    def start(self, name: str, uuid: str, *, silently: bool = False) -> None:
        """A domain runs from now on."""
        domain = StandInDomain(name, uuid, self._call)
        self._domains = [*self._domains, domain]
        if self._callback is not None and not silently:
            self._callback(self, domain, libvirt.VIR_DOMAIN_EVENT_STARTED, 0, None)

    def _call(self, name: str) -> None:
        self._figures.calls[name] = self._figures.calls.get(name, 0) + 1
        time.sleep(self._call_s)

    def listAllDomains(self, _flags: int) -> list[StandInDomain]:  # noqa: N802 - libvirt's name
        self._call("listAllDomains")
        return self._domains

    def domainListGetStats(  # noqa: N802 - libvirt's name
        self, domains: list[StandInDomain], _stats: int, _flags: int
    ) -> list[tuple[StandInDomain, dict[str, int]]]:
        self._call("domainListGetStats")
        state = {"state.state": libvirt.VIR_DOMAIN_RUNNING, "state.reason": libvirt.VIR_DOMAIN_RUNNING_BOOTED}
        return [(domain, state) for domain in domains]

    def domainEventRegisterAny(self, _domain: None, _kind: int, callback: LifecycleCallback, _opaque: None) -> int:  # noqa: N802 - libvirt's name
        self._callback = callback
        return 1

    def domainEventDeregisterAny(self, _number: int) -> None:  # noqa: N802 - libvirt's name
        self._callback = None

    def setKeepAlive(self, _interval_s: int, _count: int) -> None:  # noqa: N802 - libvirt's name
        pass

    def registerCloseCallback(self, _callback: object, _opaque: None) -> None:  # noqa: N802 - libvirt's name
        pass

    def unregisterCloseCallback(self) -> None:  # noqa: N802 - libvirt's name
        pass

    def getLibVersion(self) -> int:  # noqa: N802 - libvirt's name
        return _VERSION

    def close(self) -> None:
        pass


def count_ticks(figures: Figures) -> None:
    """Let each tick of this process be counted."""
    tick = ControlLoop.tick

    def counted(loop: ControlLoop, *given: Any, **named: Any) -> TickResult:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        result = tick(loop, *given, **named)
        figures.tick_ms.append((time.perf_counter() - began_s) * 1000)
        figures.tick_cpu_ms.append((time.thread_time() - began_cpu_s) * 1000)
        figures.changes.append(len(result.outcomes))
        return result

    ControlLoop.tick = counted  # type: ignore[method-assign]


def obey(connection: StandIn, figures: Figures) -> None:
    """Do what the benchmark says; when it is gone, end as on SIGTERM, so that everything is put back."""
    for line in sys.stdin:
        words = line.split()
        if words[0] == "start":
            connection.start(words[1], words[2])
        else:
            print(json.dumps(asdict(figures)), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the agent."""
    figures = Figures()
    connection = StandIn(float(sys.argv[1]) / 1000, figures)
    for name, uuid in json.loads(sys.stdin.readline()):
        connection.start(name, uuid, silently=True)
    libvirt.open = lambda _uri: connection
    count_ticks(figures)
    threading.Thread(target=obey, args=(connection, figures), daemon=True).start()
    equipoise(sys.argv[2:])


if __name__ == "__main__":
    main()
