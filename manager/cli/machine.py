"""What an agent controls and measures: a real machine, or a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from manager.host.port import HostPort, MigrationPort
from manager.loop.guard import GuardSettings, GuardUse
from manager.loop.observer import LoopSettings
from manager.loop.watches import Examiner
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.serving.exchange import WsgiApp
from manager.settings import Settings
from manager.telemetry.telemetry_port import Telemetry


class VmArrivals(Protocol):
    """Notices VMs that start."""

    on_arrival: Callable[[], object]
    """Called in a thread of its own once VMs have started."""

    def started(self, uuid: str, libvirt_name: str) -> bool:
        """List a domain that libvirt has just started. False: no process runs it. Raises HostError."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """A host, its response times and where they are posted, what examines it, its new VMs if any come, its limits,
    and what migrates its VMs."""

    host: HostPort
    telemetry: Telemetry
    posts: WsgiApp
    examiner: Examiner
    arrivals: VmArrivals | None = None
    limits: AgentLimits = DEFAULT_LIMITS
    migrator: MigrationPort | None = None


MakeMachine = Callable[[Settings, ExitStack], Machine]
"""From settings; the stack takes what must be closed after the agent has stopped."""


def loop_settings(settings: Settings) -> LoopSettings:
    """The bounds of the loop."""
    numbers = settings.number("interval_s"), settings.number("stale_s")
    return LoopSettings(settings.text("host_name"), *numbers, settings.whole("min_samples"))


def guard_settings(settings: Settings) -> GuardSettings:
    """Those of the guard."""
    return GuardSettings(GuardUse(settings.text("guard")), settings.whole("guard_interval_ms") / 1000)
