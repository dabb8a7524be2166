"""The seam between the agent and its sources of response times: real ones, or those of a simulated host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.traffic import Answered, HostServices
from manager.model.window import Window


class Telemetry(Protocol):
    """The sources that run on one host, and the slots of response times that came from them. Thread-safe.

    A slot is a window of ``slot_s`` seconds that begins at a multiple of it; the newest one ends now. It takes late
    response times until it is *closed*.
    """

    def configure(
        self,
        applications: Sequence[Application],
        slot_s: float,
        addresses: Mapping[str, frozenset[str]],
        taps: Mapping[str, frozenset[int]],
    ) -> None:
        """Run exactly the sources of these applications.

        ``addresses`` are the IP addresses of registered VMs by name, the only ones that response times are believed
        from; ``taps`` the indexes of their network interfaces whose packets pass this kernel. Sources that stay as they
        were go on undisturbed. Never raises: what cannot run is ``failing``.
        """
        ...

    def find_services(self, taps: Mapping[str, frozenset[int]]) -> None:
        """Look for services in these domains, registered or not: UUIDs, with interfaces as above. Never raises."""
        ...

    def services(self) -> HostServices:
        """The services in running domains, with what passed in about the last minute."""
        ...

    def answered(self) -> Answered:
        """What was answered until now where it is seen at taps, of applications with an SLA. Costs microseconds."""
        ...

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots of the last minutes by application, oldest first."""
        ...

    def recent(self) -> tuple[Window, ...]:
        """The slots that are not closed yet, as they are now."""
        ...

    def closed(self) -> tuple[Window, ...]:
        """The slots that were closed since the last call."""
        ...

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How each source is, by application and name."""
        ...

    def close(self) -> None:
        """End all sources."""
        ...
