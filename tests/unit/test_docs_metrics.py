"""docs/reference/metrics.md has every metric of manager and agent, with its type and labels, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from manager.api.acceptance import LISTS, PARTS
from manager.api.context import ManagerContext
from manager.api.manager_jobs import make_jobs
from manager.api.manager_metrics import Metrics
from manager.control.claim_rules import Foul
from manager.loop.agent_metrics import AgentMetrics
from manager.model.records import OutcomeKind
from manager.settings import load_settings
from manager.store.database import Database
from manager.store.jobs import JobResult

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()

Found = dict[str, tuple[str, tuple[str, ...]]]
"""Type and labels of a metric by its name, as Prometheus sees it."""


def families(collectors: Iterable[Collector]) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    for collector in collectors:
        for family in collector.collect():
            # The client tells labels of what has values alone; a metric and a family both know theirs.
            labels = collector if isinstance(collector, MetricWrapperBase) else family
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if name.startswith("equipoise_"):
                yield name, (family.type, tuple(labels._labelnames))  # type: ignore[union-attr]


def collectors_of(registry: object) -> list[Collector]:
    return list(registry._collector_to_names)  # type: ignore[attr-defined]


def documented(title: str) -> Found:
    [body] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found: Found = {}
    for row in re.findall(r"^\| `equipoise.*\|$", body, re.MULTILINE):
        names, kind, labels, meaning = (cell.strip() for cell in row.split("|")[1:-1])
        assert meaning
        # Values are told after a colon, for some labels.
        told = tuple(re.findall(r"`(\w+)`", labels))
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found
            found[name] = (kind, told)
    return found


def test_those_of_the_agent() -> None:
    assert documented("Agent") == dict(families(collectors_of(AgentMetrics().registry)))


@pytest.fixture
def managers(migrated: Callable[[str], Database]) -> Found:
    metrics = Metrics(ManagerContext(migrated("sqlite"), {}, 30.0, 20))
    return dict(families(collectors_of(metrics._registry)))


def test_those_of_the_manager(managers: Found) -> None:
    assert documented("Manager") == managers


def test_values_of_labels_are_those_that_there_are(migrated: Callable[[str], Database]) -> None:
    jobs = make_jobs(load_settings(None, {}, {}), ManagerContext(migrated("sqlite"), {}, 30.0, 20))
    assert values("equipoise_jobs_total", "job") == {job.name for job in jobs}
    assert values("equipoise_jobs_total", "result") == {*JobResult}
    assert values("equipoise_report_items_refused_total", "field") == {*LISTS, *PARTS}
    assert values("equipoise_vm_claims_refused_total", "why") == {*Foul}
    assert values("equipoise_agent_writes_total", "result") == {*OutcomeKind}


def values(metric: str, label: str) -> set[str]:
    """The values of a metric's label, as its row tells them."""
    [told] = re.findall(rf"^\| `{metric}` \|.*`{label}`: ([\w, -]+)", PAGE, re.MULTILINE)
    return set(told.strip().split(", "))


def test_labels_and_types_are_seen(managers: Found) -> None:
    assert managers["equipoise_api_requests_total"] == ("counter", ("method", "route", "status"))
    assert managers["equipoise_job_duration_seconds"] == ("summary", ("job",))
    assert managers["equipoise_host_tick_overruns_total"] == ("counter", ("host",))
    assert dict(families(collectors_of(AgentMetrics().registry)))["equipoise_source_state"] == (
        "gauge",
        ("application", "source", "state"),
    )
