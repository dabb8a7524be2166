"""A manager that answers what it is told to, and orders that it may give. For unit tests only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any

import httpx

from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.registration import (
    Application,
    Assignment,
    HostSpec,
    Mode,
    Sharing,
    Sla,
    Tier,
    VmClass,
    VmSpec,
)
from manager.model.source import Push
from manager.model.window import Ready, Window
from manager.protocol import client
from manager.protocol.assignment import ReportOut
from manager.protocol.report import ReportIn

ASSIGNMENT = {
    "slot_s": 2.0,
    "host": {"name": "h1", "mode": "observe", "policy": "equal", "pinning": False, "law": {"gain": 1.0}},
    "vms": [
        {"name": "web", "class": "critical", "libvirt_name": "shop web", "pin": True},
        {"name": "hog", "class": "batch", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10", "weight": 7},
    ],
    "applications": [
        {
            "name": "shop",
            "tiers": [{"name": "front", "vms": ["web"]}],
            "sla": {"response_time_ms": 5.0, "percentile": 99.0, "max_rate_rps": 100.0},
            "mode": None,
            "sharing": "isolation",
            "sources": [{"type": "push", "name": "lb", "allow": ["10.0.0.0/8"]}],
            "windows": [
                {
                    "start": "2026-01-31T14:00:03Z",
                    "end": "2026-01-31T14:00:05Z",
                    "buckets": {"500": 3},
                    "requests": 30,
                    "ready": {"percentile": 95, "percentile_ms": 12.5},
                }
            ],
        },
        {"name": "silent"},
    ],
}
UNDERSTOOD = Assignment(
    HostSpec("h1", Mode.OBSERVE, "equal", pinning=False, law=Law(gain=1.0)),
    (
        VmSpec("web", VmClass.CRITICAL, libvirt_name="shop web", pin=True),
        VmSpec("hog", VmClass.BATCH, libvirt_uuid="6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10", weight=7),
    ),
    (
        Application(
            "shop",
            (Tier("front", ("web",)),),
            Sla(5.0, 99.0, 100.0),
            sharing=Sharing.ISOLATION,
            sources=(Push("lb", ("10.0.0.0/8",)),),
        ),
        Application("silent"),
    ),
    slot_s=2.0,
)
END_S = 1_769_868_005.0
WINDOW = Window("shop", END_S - 2, END_S, Histogram({500: 3}), 30, Ready(95, 12.5))
Answer = Callable[[httpx.Request], httpx.Response]


def with_buckets(buckets: dict[str, int]) -> dict[str, Any]:
    changed = json.loads(json.dumps(ASSIGNMENT))
    changed["applications"][0]["windows"][0]["buckets"] = buckets
    return changed


class Wire:
    """Carries requests to a function."""

    def __init__(self, handle: Answer) -> None:
        self._handle = handle

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> client.Answer:
        request = httpx.Request(method, f"http://manager{target}", headers=dict(headers), content=body)
        try:
            found = self._handle(request)
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from error
        told = Message()
        for name, value in found.headers.items():
            told[name] = value
        return client.Answer(found.status_code, told, found.content)

    def close(self) -> None:
        """Nothing is open."""


class Manager:
    """Answers in turn what it is told to, the last one again and again; ``requests`` are those it got."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []

    def will(self, *answers: Answer | httpx.Response) -> None:
        self.answers = [one if callable(one) else lambda _, one=one: one for one in answers]

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)

    @property
    def reports(self) -> list[ReportIn]:
        return [ReportIn.model_validate_json(one.content) for one in self.requests if one.method == "POST"]


def orders(body: object = ASSIGNMENT, etag: str = '"1"') -> Answer:
    return lambda _: httpx.Response(200, json=body, headers={"ETag": etag})


def slots(digest: str, buckets: dict[str, int], etag: str) -> httpx.Response:
    """The slots of `shop` alone, and the digest of the assignment now; no other host waits for them."""
    window = ASSIGNMENT["applications"][0]["windows"][0] | {"buckets": buckets}  # type: ignore[index]
    said = {"digest": digest, "windows": {"shop": [window]}, "shared": False}
    return httpx.Response(200, json=said, headers={"ETag": etag})


def stored(_: httpx.Request) -> httpx.Response:
    return httpx.Response(
        200,
        json=dict.fromkeys(ReportOut.model_fields, 0)
        | {"slots": None, "cadence": None, "refused": [], "migrations": []},
    )


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=request)


def problem(status: int, detail: str) -> httpx.Response:
    return httpx.Response(status, json={"title": "x", "status": status, "detail": detail})
