"""Alerts, recorded history, dashboards: promtool's word on them, and whether the metrics that they ask for are ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from manager.api.manager_metrics import duration
from manager.control.error_budget import BURN_RULES
from manager.loop.agent_metrics import AgentMetrics
from manager.store.database import _WAITS, Database
from tests.api.conftest import make_api
from tests.deploy.units import TOP

PROMETHEUS = TOP / "deploy/prometheus"
RULES = (PROMETHEUS / "equipoise-rules.yml").read_text()
RULES_TEST = (PROMETHEUS / "equipoise-rules-test.yml").read_text()
RECORDING = (PROMETHEUS / "recording.yml").read_text()
RECORDING_TEST = (PROMETHEUS / "recording-test.yml").read_text()
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in sorted((TOP / "deploy/grafana").glob("*.json"))}
ALERTS = re.findall(r"alert: (\w+)", RULES)
RECORDED = re.findall(r"record: (\S+)", RECORDING)
ASKED = re.compile(r"\b(?<!:)equipoise_\w+")
KINDS = {"stat", "timeseries"}
"""Of Grafana's kinds of panels, those that the dashboards use."""
COLUMNS = 24

with_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@pytest.fixture(scope="module")
def metrics(migrated: Callable[[str], Database]) -> dict[str, dict[str, str]]:
    """All metrics by who tells them, each with its kind."""
    page = make_api(migrated("sqlite")).call("GET", "//metrics", role="").get_data(as_text=True)
    pages = {"Manager": page, "Agent": generate_latest(AgentMetrics().registry).decode()}
    kinds = {
        who: dict(re.findall(r"^# TYPE (equipoise_\w+) (\w+)$", text, re.MULTILINE)) for who, text in pages.items()
    }
    # When a counter began to count, which the client adds to each.
    return {
        who: {name: kind for name, kind in of.items() if not name.endswith("_created")} for who, of in kinds.items()
    }


@pytest.fixture(scope="module")
def offered(metrics: dict[str, dict[str, str]]) -> frozenset[str]:
    """The names of all series that manager and agent can have."""
    found: set[str] = set()
    for name, kind in (one for of in metrics.values() for one in of.items()):
        found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return frozenset(found)


@pytest.mark.parametrize("who", ["Manager", "Agent"])
def test_metrics_are_documented_and_what_is_documented_exists(who: str, metrics: dict[str, dict[str, str]]) -> None:
    text = (TOP / "docs/reference/metrics.md").read_text()
    [table] = re.findall(rf"^## {who}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in ASKED.findall(row)]
    assert sorted(named) == sorted(metrics[who])


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@with_promtool
def test_configuration_and_rules_are_valid() -> None:
    said = promtool("check", "config", "prometheus.yml")
    assert re.findall(r"(\d+) rules found", said) == [str(len(ALERTS)), str(len(RECORDED))]
    assert len(RECORDED) >= len(ALERTS) == 20


@with_promtool
def test_each_alert_fires_when_it_should_and_else_is_silent() -> None:
    promtool("test", "rules", "equipoise-rules-test.yml")
    for alert in ALERTS:
        cases = re.findall(rf"alertname: {alert}\n +eval_time: \w+\n +exp_alerts:( \[\])?", RULES_TEST)
        assert set(cases) == {"", " []"}, alert


@with_promtool
def test_a_rule_that_is_changed_fails_its_test(tmp_path: Path) -> None:
    changed = RULES.replace("equipoise_host_silent", "equipoise_host_quiet")
    assert changed != RULES
    (tmp_path / "equipoise-rules.yml").write_text(changed)
    (tmp_path / "equipoise-rules-test.yml").write_text(RULES_TEST)
    command = ["promtool", "test", "rules", "equipoise-rules-test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "EquipoiseHostSilent" in done.stdout + done.stderr


@with_promtool
def test_each_recorded_minute_and_hour_is_what_its_name_says() -> None:
    promtool("test", "rules", "recording-test.yml")
    for name in RECORDED:
        assert f"expr: {name}\n" in RECORDING_TEST, name
        assert name.endswith("1m") or f"{name.removesuffix('1h')}1m" in RECORDED, name


@with_promtool
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("avg by (application, percentile)", "sum by (application, percentile)"),
        ("[1h]", "[30m]"),
        (" unless ", " and "),
        ("max_over", "avg_over"),
    ],
)
def test_a_recording_rule_that_is_changed_fails_its_test(one: str, other: str, tmp_path: Path) -> None:
    assert one in RECORDING
    (tmp_path / "recording.yml").write_text(RECORDING.replace(one, other))
    (tmp_path / "recording-test.yml").write_text(RECORDING_TEST)
    command = ["promtool", "test", "rules", "recording-test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr


def test_what_is_recorded_is_made_of_metrics_that_there_are(offered: frozenset[str]) -> None:
    expressions = [line for line in RECORDING.splitlines() if "expr:" in line]
    assert len(expressions) == len(RECORDED)
    asked = {name for line in expressions for name in ASKED.findall(line)}
    assert len(asked) == 10
    assert asked <= offered
    of_ours = {name for line in expressions for name in re.findall(r"\w+:equipoise_\w+:\w+", line)}
    assert of_ours <= set(RECORDED)


@with_promtool
def test_a_second_server_takes_all_that_is_recorded_and_nothing_else(offered: frozenset[str]) -> None:
    promtool("check", "config", "recording-server.yml")
    text = (PROMETHEUS / "recording-server.yml").read_text()
    [pattern] = re.findall(r"- \"{__name__=~'(.*)'}\"", text)
    assert [name for name in (*RECORDED, *offered) if re.fullmatch(pattern, name)] == RECORDED
    [of_hours] = re.findall(r"\"__name__=~'(.*)'\"", text)
    hours = [name for name in RECORDED if name.endswith("1h")]
    assert [name for name in RECORDED if re.fullmatch(of_hours, name)] == hours


def test_alerts_ask_for_metrics_that_there_are(offered: frozenset[str]) -> None:
    asked = {name for line in RULES.splitlines() if "expr:" in line for name in ASKED.findall(line)}
    assert len(asked) >= 9
    assert asked <= offered


def expressions(dashboard: Any) -> list[str]:
    variables = [one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*found, *(re.sub(r"label_values\((.*), \w+\)", r"\1", one) for one in variables)]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_ask_for_metrics_that_there_are(name: str, offered: frozenset[str]) -> None:
    for expression in expressions(DASHBOARDS[name]):
        asked = set(ASKED.findall(re.sub(r'"[^"]*"', "", expression)))
        assert asked or "up{" in expression
        assert asked <= offered


def test_a_database_that_does_not_answer_is_told_before_prometheus_stops_waiting() -> None:
    [limit_s] = re.findall(r"scrape_timeout: (\d+)s", (PROMETHEUS / "prometheus.yml").read_text())
    assert int(limit_s) > int(_WAITS["connect_timeout"]) + 2


def test_alerts_of_burning_are_those_of_the_manager() -> None:
    asked = re.findall(r'equipoise_application_burn_rate{job="equipoise-manager",window="(\w+)"}\) > ([\d.]+)', RULES)
    of_rules = [
        (duration(length_s), f"{rule.rate:g}") for rule in BURN_RULES for length_s in (rule.long_s, rule.short_s)
    ]
    assert asked == of_rules


def test_what_is_held_against_an_sla_is_the_percentile_that_it_is_about() -> None:
    shown = [one for board in DASHBOARDS.values() for one in expressions(board)] + RECORDING.splitlines()
    judged = [one for one in shown if "equipoise_application_sla_seconds" in one and "/" in one]
    assert judged
    assert all("equipoise_application_response_time_seconds" in one for one in judged)
    assert not [one for one in shown if re.search(r"equipoise_application_p\d", one)]


@with_promtool
@pytest.mark.parametrize("name", DASHBOARDS)
def test_expressions_of_dashboards_are_valid(name: str, tmp_path: Path) -> None:
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, one in enumerate(expressions(DASHBOARDS[name])):
        expression = one.replace("$__rate_interval", "5m")
        lines += [f"  - record: expression:{number}", f"    expr: {json.dumps(expression)}"]
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines) + "\n")
    promtool("check", "rules", rules)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_are_as_grafana_documents_them(name: str) -> None:
    """https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/"""
    board = DASHBOARDS[name]
    assert re.fullmatch(r"[\w-]{1,40}", board["uid"])
    assert board["id"] is None, "an import gives it one"
    assert board["schemaVersion"] >= 36
    for key, kind in {"title": str, "tags": list, "time": dict, "annotations": dict, "refresh": str}.items():
        assert isinstance(board[key], kind)
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([board["panels"], board["templating"]])))
    assert used - {"__rate_interval", "__all"} == set(variables)
    identities = [panel["id"] for panel in board["panels"]]
    assert len(set(identities)) == len(identities)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] in KINDS
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < COLUMNS
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        marks = [target["refId"] for target in panel["targets"]]
        assert marks == list("ABCDEFGH"[: len(marks)])
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
    assert len({board["uid"] for board in DASHBOARDS.values()}) == len(DASHBOARDS)
