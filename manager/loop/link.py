"""The agent's talk with the manager: what to control comes in, what was done goes out, both through REST."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from manager.api.convert import assignment_of, event_body, record_body
from manager.api.schemas import (
    AssignmentOut,
    CapabilitiesBody,
    EventBody,
    RecordBody,
    ReportIn,
    ReportOut,
    TickStatus,
    VmStatus,
)
from manager.client import ManagerClient
from manager.errors import ManagerUnavailable
from manager.loop.outbox import Outbox
from manager.model.registration import Assignment
from manager.model.window import Window

_BATCH = 500

Body = TypeVar("Body", RecordBody, EventBody)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the manager last said. ``assignment`` None: it never said anything, and there is no cache of it."""

    assignment: Assignment | None = None
    windows: Mapping[str, Window] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be told of the last tick; ``vms`` None means unchanged."""

    capabilities: CapabilitiesBody
    tick: TickStatus | None
    vms: list[VmStatus] | None


class ManagerLink:
    """Exchanges with one manager. Belongs to one thread."""

    def __init__(self, client: ManagerClient, host_name: str, agent_version: str, cache: Path, outbox: Outbox) -> None:
        """``cache`` is the file that keeps the last assignment for a start without the manager."""
        self._client = client
        self._host = host_name
        self._version = agent_version
        self._cache = cache
        self._outbox = outbox
        self._etag = ""
        self._orders = Orders()
        self._saved: Assignment | None = None

    def cached_orders(self) -> Orders:
        """What the manager said before this start, without windows, which are stale by now."""
        try:
            body = AssignmentOut.model_validate_json(self._cache.read_bytes())
        except FileNotFoundError:
            return Orders()
        except (OSError, ValidationError) as error:
            log.warning("the cached assignment %s is unusable and ignored: %s", self._cache, error)
            return Orders()
        assignment, _ = assignment_of(body)
        if assignment.host.name != self._host:
            return Orders()
        self._saved = assignment
        self._orders = Orders(assignment)
        return self._orders

    def fetch(self) -> Orders:
        """The current orders. Raises ManagerUnavailable."""
        headers = {"If-None-Match": self._etag} if self._etag else {}
        response = self._client.request("GET", f"/hosts/{self._host}/assignment", headers=headers)
        if response.status_code == 304:
            return self._orders
        try:
            body = AssignmentOut.model_validate_json(response.content)
        except ValidationError as error:
            raise ManagerUnavailable(f"the manager's assignment is not understood: {error}") from error
        assignment, windows = assignment_of(body)
        if assignment != self._saved and self._save(response.content):
            self._saved = assignment
        self._orders = Orders(assignment, windows)
        self._etag = response.headers.get("ETag", "")
        return self._orders

    def send(self, report: Report) -> None:
        """Report the last tick and the waiting records, oldest first, until none wait.

        Raises ManagerUnavailable; what was not acknowledged stays in the outbox.
        """
        while True:
            last, decisions, events = self._outbox.peek(_BATCH)
            body = ReportIn(
                agent_version=self._version,
                capabilities=report.capabilities,
                tick=report.tick,
                vms=report.vms,
                decisions=_valid(decisions, record_body),
                events=_valid(events, event_body),
            )
            response = self._client.request(
                "POST", f"/hosts/{self._host}/report", body=body.model_dump(mode="json", by_alias=True)
            )
            try:
                ReportOut.model_validate_json(response.content)
            except ValidationError as error:
                raise ManagerUnavailable(f"the answer to a report is not a manager's: {error}") from error
            self._outbox.drop_through(last)
            if len(decisions) + len(events) < _BATCH:
                return

    def _save(self, content: bytes) -> bool:
        """Replace the cache as a whole; when it cannot be written that is logged, and tried again next time."""
        temporary = self._cache.with_suffix(".new")
        try:
            temporary.write_bytes(content)
            temporary.replace(self._cache)
        except OSError as error:
            log.warning("the assignment cannot be cached in %s: %s", self._cache, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        return True


def _valid(rows: list[dict[str, Any]], convert: Callable[[Mapping[str, Any]], Body]) -> list[Body]:
    """The rows the interface takes. One that it does not take is logged and left out: it must not hold up the rest."""
    bodies: list[Body] = []
    for row in rows:
        try:
            bodies.append(convert(row))
        except ValidationError as error:
            log.error("a record cannot be reported and is dropped: %s: %s", row, error)
    return bodies
