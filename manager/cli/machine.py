"""What an agent controls and measures: a real machine, or a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from manager.host.port import HostPort
from manager.loop.findings import Examiner
from manager.serving import WsgiApp
from manager.settings import Settings
from manager.telemetry.port import Telemetry


@dataclass(frozen=True, slots=True)
class Machine:
    """A host, its sources of response times, the pages that its agent serves, and who finds out what works there."""

    host: HostPort
    telemetry: Telemetry
    pages: WsgiApp
    examiner: Examiner


MakeMachine = Callable[[Settings, WsgiApp, ExitStack], Machine]
"""From settings and the page of metrics; the stack takes what must be closed after the agent has stopped."""
