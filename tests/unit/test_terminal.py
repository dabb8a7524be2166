"""All that commands print is text: of others nothing is markup, and nothing acts on the terminal or forges a line."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from manager import terminal
from manager.cli import main, status_commands
from manager.cli.doctor_command import print_findings
from manager.logs import formatter
from manager.model.finding import Finding, FindingStatus
from manager.plain import plain, plain_lines
from webui.site import shown

TOP = Path(__file__).parents[2]
PRINTING = ("manager/cli", "manager/sim")
HOSTILE = (
    "[/x]",
    "[bold red]met[/bold red] [link=http://example.org]x[/link] :smile:",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m",
    "\x9b31m \x85 \x7f \x00",
    "one\ntwo\r\nequipoise: forged\rover",
    "\u202egnp.exe\u2066\u2069\u200b\u200d\ufeff\u00ad",
    "\u2028\u2029",
    "\ud800",
    "\U000e0041\U000e007f",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))


def test_no_command_prints_past_the_one_place() -> None:
    """Nothing but ``manager/terminal.py`` knows of rich, and nothing calls print or click's echo."""
    found = [f"{path.relative_to(TOP)}: {what}" for folder in PRINTING for path, what in _past(TOP / folder)]
    assert found == ["manager/cli/options.py: click.echo"], "the text of an error, which is made plain there"


def _past(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                yield from ((path, name) for name in names if name.partition(".")[0] == "rich")
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}:
                    yield path, called


@given(TEXTS)
@example("a \\ b [c] ü → 日本 😀")
def test_plain_text_is_one_printable_line(text: str) -> None:
    line = plain(text)
    assert line.isprintable()
    assert plain(line) == line
    assert (line == text) is text.isprintable()
    line.encode()
    assert plain_lines(text).replace("\n", "").isprintable()


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_table_shows_its_cells_as_they_are(rows: list[list[str]]) -> None:
    table = terminal.Table("[red]a[/red]", "b", "c", title="[/x]\x1b", caption="[/y]\x1b")
    for row in rows:
        table.add_row(*row)
    with pytest.MonkeyPatch.context() as patched:
        output = io.StringIO()
        patched.setattr("sys.stdout", output)
        terminal.show(table, *rows[0])
    printed = output.getvalue()
    assert _quiet(printed)
    assert "[/x]\\x1b" in printed
    assert "[/y]\\x1b" in printed
    assert "[red]a[/red]" in printed


def _quiet(printed: str) -> bool:
    """Whether nothing in it acts on a terminal. Line feeds are those of lines."""
    return printed.replace("\n", "").isprintable()


@given(TEXTS)
def test_json_of_others_is_ascii(text: str) -> None:
    body = {"x": text}
    said: list[tuple[Callable[[Any], None], Any]] = [(terminal.say_json, body)]
    said.append((terminal.say_json_lines, json.dumps(body, ensure_ascii=False) + "\n"))
    for say, value in said:
        with pytest.MonkeyPatch.context() as patched:
            output = io.StringIO()
            patched.setattr("sys.stdout", output)
            say(value)
        assert output.getvalue().isascii()
        assert _quiet(output.getvalue())
        assert json.loads(output.getvalue()) == body


@given(TEXTS, TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_has_one_line_a_message_whatever_is_quoted(text: str, raised: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("text"))
    log = logging.Logger("of.others")
    log.addHandler(handler)
    log.warning("it said %s", text)
    try:
        raise ValueError(raised)
    except ValueError:
        log.exception("failed: %s", text)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert all(map(str.isprintable, lines))
    assert len([line for line in lines if not line.startswith("    ")]) == 2


def test_an_error_of_others_is_one_plain_line() -> None:
    hostile = "x\x1b[2J\nequipoise: all is well"
    result = CliRunner().invoke(main, ["status", "--manager-url", hostile], env={"EQUIPOISE_TOKEN": "x"})
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert _quiet(result.output)


def test_a_bug_is_told_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("\x1b[2J[/x]")
    except ValueError as error:
        terminal.print_traceback(type(error), error, error.__traceback__)
    told = capsys.readouterr().err
    assert _quiet(told)
    assert "ValueError: \\x1b[2J[/x]" in told


def test_findings_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[/x]\x1b[2J"
    print_findings([Finding("a", hostile, hostile, FindingStatus.MISSING, True, hostile, hostile)])
    assert _quiet(printed := capsys.readouterr().out)
    assert "[/x]\\x1b[2J" in printed


def test_pages_show_what_would_act() -> None:
    assert shown("a\u202eb\x1b\nc") == "a\\u202eb\\x1b\nc"
    assert shown(7) == 7


class Manager:
    """Answers each list with one item whose every text is hostile."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, path: str, **_query: str) -> Any:
        return next(iter(self.items(path.rpartition("/")[0] or path)))

    def items(self, path: str, **_query: Any) -> list[Any]:
        return [spoil(ITEMS[path.rpartition("/")[2]], self._text)]


KNOB = {"knob": "weight", "index": 0, "value": "1", "original": "1", "owned": True, "external": True}
ITEMS: dict[str, dict[str, Any]] = {
    "decisions": dict.fromkeys(("at", "host", "vm", "before", "after", "outcome", "reason", "detail"), "x")
    | {"knob": "scheduling", "index": 0},
    "hosts": {
        "name": "x",
        "mode": "x",
        "policy": "x",
        "pinning": True,
        "last_seen_at": "x",
        "silent": True,
        "clock_ahead_s": 3.0,
        "capabilities": {"warnings": ["x"]},
        "tick": {
            "mode": "y",
            "host_cpu_share": 0.5,
            "owned_knobs": 1,
            "libvirt_connected": True,
            "warp": dict.fromkeys(("mechanism", "detail", "can", "cannot"), "x") | {"vms": 2},
            "cache": {
                "groups": [
                    {
                        "name": "x",
                        "applications": ["x"],
                        "parts": [{"domain": 0, "ways": 1, "mask": "x"}],
                        "external": True,
                        "bandwidth": "x",
                    }
                ],
                "notes": ["x"],
                "vms": [
                    {
                        "vm": "x",
                        "parts": [
                            {
                                "domain": 0,
                                "occupancy_bytes": 1,
                                "bandwidth_total_bytes_per_s": 1.0,
                                "bandwidth_local_bytes_per_s": 1.0,
                            }
                        ],
                    }
                ],
            },
        },
    },
    "applications": {
        "name": "x",
        "sla": {"percentile": 95, "response_time_ms": 2},
        "window": None,
        "sla_state": "x",
        "tiers": [{"name": "x"}],
        "sources": [{"name": "x"}],
    },
    "sources": {"source": "x", "host": "x", "status": {"state": "x", "detail": "x"}},
    "events": {"at": "2026-01-01T00:00:00Z", "host": "x", "message": "x"},
    "vms": {
        "name": "x",
        "class": "x",
        "application": "x",
        "host": "x",
        "status_host": "x",
        "status": {
            "cpu_share": 0.1,
            "run_delay_share": 0.1,
            "warp_us": 5,
            "knobs": [KNOB | {"knob": one} for one in ("weight", "scheduling", "idle", "quota", "vcpu_pin", "warp")],
        },
    },
}


def spoil(value: Any, text: str) -> Any:
    """The same with ``text`` for each text but the names of knobs, which choose where something is shown."""
    if isinstance(value, dict):
        return {name: one if name == "knob" else spoil(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [spoil(one, text) for one in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize("command", ["status", "decisions"])
@given(text=TEXTS)
@example(text="[/x]")
@example(text="\x1b]52;c;\x07")
@settings(max_examples=60)
def test_what_a_manager_answers_is_text(command: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(status_commands, "connect", lambda _settings: Manager(text))
        for options in ([], ["--json"]):
            result = CliRunner().invoke(main, [command, *options], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            assert _quiet(result.output)
