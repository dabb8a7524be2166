"""What an agent controls and measures: a real machine, or a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from manager.host.port import HostPort
from manager.loop.findings import Examiner
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.serving.exchange import WsgiApp
from manager.settings import Settings
from manager.telemetry.telemetry_port import Telemetry


class VmArrivals(Protocol):
    """Who knows of VMs that come to run."""

    on_arrival: Callable[[], object]
    """Called in a thread of its own once some have come."""

    def started(self, uuid: str, libvirt_name: str) -> bool:
        """List a domain that libvirt has just started. False: no process runs it. Raises HostError."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """A host, its sources of response times, where these are posted, and who finds out what works there.

    ``arrivals`` None: none comes while the agent runs. ``limits``: the most that is done to it.
    """

    host: HostPort
    telemetry: Telemetry
    posts: WsgiApp
    examiner: Examiner
    arrivals: VmArrivals | None = None
    limits: AgentLimits = DEFAULT_LIMITS


MakeMachine = Callable[[Settings, ExitStack], Machine]
"""From settings; the stack takes what must be closed after the agent has stopped."""
