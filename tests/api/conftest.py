"""The REST interface without a network: one application a test, a clock that stands, and a token for every role."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask_openapi3.openapi import OpenAPI
from werkzeug.test import TestResponse

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.rules import DiskRules, MemoryRules, NetworkRules, PlacementRules
from manager.serving.exchange import EXCHANGE, Exchange
from manager.store.database import Database
from manager.store.error_budgets import ErrorBudgets
from manager.store.silent_hosts import SilenceWatch
from manager.store.tokens import MACHINES, Role, create_token
from policies.equal import POLICY as EQUAL
from policies.installed import InstalledPolicy
from policies.priority import POLICY as PRIORITY
from tests.conftest import KINDS

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOST = "kvm1"
"""The host that the token of role host is for."""

CAPABILITIES = {
    "kernel": "6.1.0",
    "libvirt": "9.0.0",
    "cgroup_version": 2,
    "weights": {"minimum": 1, "maximum": 10000, "default": 100, "critical": 10000, "critical_min": 100, "batch": 1},
    "online_cpus": "0-3",
    "managed_cpus": "1-3",
    "schedstat": True,
    "warnings": ["no resctrl"],
    "idle_class": True,
    "limits_real_time": True,
    "topology": {
        "cpus": [
            {"number": 1, "core": 1, "socket": 0, "node": 0, "l3": 0, "capacity": 1.0, "isolated": False},
            {"number": 3, "core": 1, "socket": 0, "node": 0, "l3": 0, "capacity": 0.5, "isolated": True},
        ],
        "queues": [{"interface": "eth0", "irq": 40, "cpus": "0-3", "serving": "1", "managed": False}],
    },
    "warps": [{"mechanism": "slice", "available": True, "detail": "set and read back"}],
    "scheduler": "",
    "scheduler_is_ours": False,
    "limits": [],
    "needs_batch_group": True,
    "cpu_model": "Example CPU",
}


@dataclass
class Clock:
    """Seconds since the epoch; tests move it."""

    now_s: float = START.timestamp()

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Api:
    """Calls an application in the name of a role."""

    app: OpenAPI
    database: Database
    clock: Clock
    secrets: dict[str, str] = field(default_factory=dict)
    budgets: ErrorBudgets = field(default_factory=ErrorBudgets)
    silence: SilenceWatch = field(init=False)
    served: bool = False
    """Called as a server calls it for a sender that it knows, with JSON as an agent writes it."""

    def __post_init__(self) -> None:
        self.begin_to_listen()

    def begin_to_listen(self) -> None:
        """As a manager that starts, which has heard of no host yet."""
        self.silence = SilenceWatch(timedelta(seconds=30), lambda: self.clock.now_s)

    def make_tokens(self) -> None:
        """A token for every role, and those of another host and another application."""
        people = [(str(role), role, None, None) for role in Role if role not in MACHINES]
        machines = [("host", Role.HOST, HOST, None), ("other host", Role.HOST, "kvm2", None)]
        sources = [("source", Role.SOURCE, None, "shop"), ("other source", Role.SOURCE, None, "blog")]
        with self.database.registering() as session:
            for name, role, host, application in [*people, *machines, *sources]:
                made = create_token(
                    session, f"the-{name.replace(' ', '-')}", role, host, START, application=application
                )
                self.secrets[name] = made[1]

    def call(
        self, method: str, path: str, body: Any = None, role: str = "admin", *, scheme: str = "http", **headers: str
    ) -> TestResponse:
        """``path`` is below /api/v1 unless it starts with two slashes; ``role`` may be empty: no token.

        Headers are given in Python's spelling: ``If_Match``.
        """
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if role:
            given.setdefault("Authorization", f"Bearer {self.secrets[role]}")
        url = path[1:] if path.startswith("//") else f"/api/v1{path}"
        client = self.app.test_client()
        base = f"{scheme}://localhost"
        if not self.served:
            return client.open(url, base, method=method, json=body, headers=given, buffered=True)
        sent = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        if sent is not None:
            given.setdefault("Content-Type", "application/json")
        environ = {EXCHANGE: Exchange(undecided=False, trusted=True)}
        return client.open(url, base, method=method, data=sent, headers=given, environ_overrides=environ, buffered=True)

    def ok(self, method: str, path: str, body: Any = None, role: str = "admin", **headers: str) -> Any:
        """The JSON of an answer that must be a success."""
        response = self.call(method, path, body, role, **headers)
        assert response.status_code < 300, response.get_data(as_text=True)
        return response.get_json(silent=True)

    def refused(
        self, status: int, method: str, path: str, body: Any = None, role: str = "admin", **headers: str
    ) -> Any:
        """The problem of an answer that must be this error."""
        response = self.call(method, path, body, role, **headers)
        assert response.status_code == status, response.get_data(as_text=True)
        assert response.mimetype == "application/problem+json"
        return response.get_json()


def notice_silence(api: Api) -> None:
    """What a manager's job does in each interval: mark the hosts that have not reported for 30 s, or do again."""
    now = datetime.fromtimestamp(api.clock.now_s, UTC)
    api.silence.look(api.database, now, START)


def report(**changes: Any) -> dict[str, Any]:
    """An agent's report."""
    return {"agent_version": "0.1.0", "capabilities": CAPABILITIES, **changes}


def tick(**changes: Any) -> dict[str, Any]:
    """A tick as an agent reports it."""
    return {
        "number": 7,
        "at": "2026-03-01T11:59:59Z",
        "duration_ms": 12.5,
        "overruns": 1,
        "errors": 2,
        "host_cpu_share": 0.9,
        "vms_cpu_share": 0.8,
        "owned_knobs": 5,
        "mode": "enforce",
        "policy": "priority",
        "libvirt_connected": True,
        "critical_cpu_share": 0.5,
        "batch_cpu_share": 0.25,
        "batch": {"cpu_share": 0.25, "floor": 0.01, "window_s": 60.0, "raised": False},
        "guard": None,
        "observed": [],
        "assignment_revision": 3,
        "warp": None,
        "cache": None,
        "stalled_s": None,
        "discovery_age_s": None,
        "busy_pcpus": {},
        "busy_vcpus": [],
        "limited": [],
        "explanations": [],
        **changes,
    }


LAW = asdict(Law())
"""The feedback law of a host that sets nothing of it."""
DISK = asdict(DiskRules())
NETWORK = asdict(NetworkRules()) | {"uplinks": []}
MEMORY = asdict(MemoryRules())
PLACEMENT = asdict(PlacementRules()) | {"reserved_cpus": ""}
"""Its placement."""


def window(application: str = "shop", end: int = 0, count: int = 1, **changes: Any) -> dict[str, Any]:
    """A slot as an agent reports it: ``count`` response times of 5 ms until ``end`` seconds after the start."""
    buckets = {str(bucket): number for bucket, number in Histogram.of([5000.0] * count).buckets.items()}
    return {
        "application": application,
        "start": moment(end - 5),
        "end": moment(end),
        "buckets": buckets,
        "requests": count,
        "ready": None,
        **changes,
    }


def source_status(source: str, **changes: Any) -> dict[str, Any]:
    """How a source of ``shop`` is, as an agent reports it."""
    return {
        "application": "shop",
        "source": source,
        "type": "http_probe",
        "state": "ok",
        "last_sample_at": "2026-03-01T11:59:59Z",
        "accepted": 10,
        "malformed": 0,
        "refused": 0,
        "late": 0,
        "errors": 1,
        "detail": "",
        **changes,
    }


def tick_of(second: int, **changes: Any) -> dict[str, Any]:
    """A tick of the history as an agent reports it, ``second`` seconds after the start."""
    vms = [{"vm": "web-1", "cpu_share": 0.25, "run_delay_share": 0.01, "weight": 10000, "mode": "enforce"}]
    return {
        "at": moment(second),
        "policy": "priority",
        "mode": "enforce",
        "host_cpu_share": 0.9,
        "vms": vms,
        **changes,
    }


def moment(second: int) -> str:
    """So many seconds after the start, as it is answered."""
    return (START + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def status(vm: str, **changes: Any) -> dict[str, Any]:
    """A VM's status as an agent reports it."""
    return {
        "vm": vm,
        "libvirt_name": vm,
        "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10",
        "pid": 4711,
        "vcpus": 1,
        "cpu_share": 0.25,
        "run_delay_share": 0.01,
        "knobs": [
            {"knob": "weight", "index": 0, "value": "10000", "original": "100", "owned": True, "external": False},
            {"knob": "vcpu_pin", "index": 0, "value": "1", "original": "0-3", "owned": True, "external": False},
        ],
        "mode": "enforce",
        "observed": [],
        "warp_us": None,
        "migrating": False,
        **changes,
    }


def record(number: int, **changes: Any) -> dict[str, Any]:
    """A decision as an agent reports it, ``number`` seconds after the start."""
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "at": f"2026-03-01T12:{number // 60:02d}:{number % 60:02d}Z",
        "host": HOST,
        "vm": "web-1",
        "knob": "weight",
        "index": 0,
        "before": "100",
        "after": "10000",
        "reason": "priority: critical VM",
        "policy": "priority",
        "mode": "enforce",
        "outcome": "applied",
        "detail": "",
        **changes,
    }


def event(number: int, **changes: Any) -> dict[str, Any]:
    """An event as an agent reports it."""
    return {
        "id": f"00000000-0000-4000-9000-{number:012d}",
        "at": f"2026-03-01T12:{number // 60:02d}:{number % 60:02d}Z",
        "host": HOST,
        "severity": "warning",
        "kind": "tick_overrun",
        "message": "a tick took 6 s",
        "vm": None,
        **changes,
    }


def make_api(database: Database) -> Api:
    """An application for a migrated database."""
    clock = Clock()
    policies = {policy.name: InstalledPolicy(policy, "equipoise") for policy in (EQUAL, PRIORITY)}
    context = ManagerContext(database, policies, stale_s=30, min_samples=20, clock=clock)
    return Api(create_app(context), database, clock, budgets=context.budgets)


@pytest.fixture(scope="session")
def get_api(migrated: Callable[[str], Database]) -> Callable[[str], Api]:
    """The interface on a kind of database, as if new: making the application takes longer than most tests."""
    made: dict[str, Api] = {}

    def get(kind: str) -> Api:
        database = migrated(kind)
        if kind not in made:
            made[kind] = make_api(database)
        made[kind].clock.now_s = START.timestamp()
        made[kind].budgets._cached = {}
        made[kind].make_tokens()
        return made[kind]

    return get


@pytest.fixture(params=KINDS)
def api(request: pytest.FixtureRequest, get_api: Callable[[str], Api]) -> Api:
    """The interface on each kind of database."""
    return get_api(request.param)


@pytest.fixture
def sqlite_api(get_api: Callable[[str], Api]) -> Api:
    """The interface where the kind of database makes no difference."""
    return get_api("sqlite")


@pytest.fixture
def shop(api: Api) -> Api:
    """An application ``shop`` with two tiers and an SLA of 10 ms."""
    for name in ("web-1", "web-2", "db-1"):
        api.ok("PUT", f"/vms/{name}", {"class": "critical"})
    tiers = [{"name": "web", "vms": ["web-1", "web-2"]}, {"name": "db", "vms": ["db-1"]}]
    api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
    return api
