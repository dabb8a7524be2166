"""`equipoise replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from manager.api.validation import read_text
from manager.cli.options import OnePage, with_settings
from manager.errors import RecordingError, SettingsError
from manager.model.fields import timestamp
from manager.model.law import Law
from manager.model.window import SlaState
from manager.replay.policy_replay import AppSummary, Replay, WeightChange, changes, summaries
from manager.replay.policy_replay import replay as run_replay
from manager.replay.recording import Recording, read_lines
from manager.settings import Settings
from manager.sim.compare import PUBLISHED, check_policy, installed
from manager.terminal import Table, say, say_json, show

_ESTIMATED = (
    "Estimated, not measured: response times and CPU use are those recorded under the weights of then, and do not react"
    " to the weights that are shown here."
)

_EPILOG = """
POLICY
  An installed policy; `fair:published` and `isolation:published` take the feedback law exactly as printed.

OUTPUT
  Every change of a weight that the policy would have made, beside the weight that the VM had after that tick as
  recorded; and for each application how often its SLA was missed as recorded, and its VMs' weights. All of it is an
  estimate: what was recorded does not react to other weights. With --json also each tick.

EXAMPLES
  equipoise replay spike.jsonl --policy isolation
  equipoise replay spike.jsonl --policy fair --law gain=1 --law dead_band=0.1 --json | jq .changes
"""


@click.command(cls=OnePage, epilog=_EPILOG)
@with_settings("stale_s", "min_samples")
@click.argument("file", metavar="FILE")
@click.option("--policy", required=True, metavar="POLICY", help="See POLICY.")
@click.option(
    "--law", "given", multiple=True, metavar="NAME=VALUE", help="A setting of the law. [default: as recorded]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(settings: Settings, file: str, policy: str, given: tuple[str, ...], as_json: bool) -> None:
    """Show what another policy would have decided on what `equipoise record` wrote to FILE."""
    name = check_policy(policy).removesuffix(PUBLISHED)
    recording = _read(file)
    more = ("published=true",) if name != policy else ()
    law = _law(recording.assignment.host.law, (*given, *more))
    found = run_replay(recording, installed()[name], law, settings.number("stale_s"), settings.whole("min_samples"))
    if as_json:
        say_json(replay_json(found, recording))
        return
    show(*_tables(found, recording))
    for line in (*_remarks(found), _ESTIMATED):
        say(line)


def replay_json(found: Replay, recording: Recording) -> dict[str, object]:
    """All of a replay."""
    return {
        "estimated": True,
        "host": recording.assignment.host.name,
        "from": _time(recording.from_s),
        "to": _time(recording.to_s),
        "policy": found.policy,
        "law": asdict(found.law),
        "recorded_policies": _policies(recording),
        "interval_s": found.interval_s,
        "applications": [asdict(summary) for summary in summaries(found, recording)],
        "changes": [_timed(asdict(change)) for change in changes(found)],
        "ticks": [_timed(asdict(step)) for step in found.steps],
        "left_out": found.left_out,
        "notes": found.notes,
    }


def _read(file: str) -> Recording:
    try:
        with Path(file).open(encoding="utf-8") as lines:
            return read_lines(lines)
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{file}: not a recording, which is text in UTF-8") from error
    except RecordingError as error:
        raise RecordingError(f"{file}: {error}") from error


def _law(recorded: Law, given: Sequence[str]) -> Law:
    """The recorded law with what is given as NAME=VALUE in place. Raises InvalidFields, SettingsError."""
    values = {name: str(value) for name, value in asdict(recorded).items()}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise SettingsError(f"--law {one!r} is refused: use NAME=VALUE, such as gain=1")
        values[name] = value
    return read_text(Law, values)


def _tables(found: Replay, recording: Recording) -> list[Table]:
    host = recording.assignment.host.name
    made = Table(
        "when",
        "VM",
        "recorded",
        f"{found.policy} before",
        found.policy,
        "reason",
        title=f"Estimated: weights on {host}",
    )
    for change in changes(found):
        made.add_row(*_cells(change))
    first, last = found.steps[0].time_s, found.steps[-1].time_s
    apps = Table(
        "application",
        "SLA",
        "missed as recorded",
        f"weights under {', '.join(_policies(recording))} (recorded)",
        f"weights under {found.policy} (estimated)",
        title=f"{host}: {len(found.steps)} ticks from {_local(first)} until {_local(last)}",
    )
    slas = {application.name: application.sla for application in recording.assignment.applications}
    for summary in summaries(found, recording):
        sla = slas[summary.application]
        apps.add_row(
            summary.application,
            f"p{sla.percentile:g} <= {sla.response_time_ms:g} ms" if sla else "-",
            _missed(summary),
            _range(summary.recorded),
            _range(summary.replayed),
        )
    return [made, apps]


def _cells(change: WeightChange) -> tuple[str, ...]:
    numbers = (change.recorded, change.before, change.after)
    return (
        _local(change.time_s),
        change.vm,
        *("-" if number is None else str(number) for number in numbers),
        change.reason,
    )


def _remarks(found: Replay) -> list[str]:
    problems = [step.problem for step in found.steps if step.problem]
    lines = [f"{problems.count(problem)} of {len(found.steps)} ticks: {problem}" for problem in dict.fromkeys(problems)]
    if found.left_out:
        lines.append(f"left out, because not registered for the host when recorded: {', '.join(found.left_out)}")
    return lines + [f"{found.policy}: {note}" for note in found.notes]


def _missed(one: AppSummary) -> str:
    return f"{one.missed} of {one.judged} intervals" if one.judged else str(SlaState.NO_DATA).replace("_", " ")


def _range(weights: tuple[int, int] | None) -> str:
    return "-" if weights is None else f"{weights[0]} .. {weights[1]}"


def _policies(recording: Recording) -> list[str]:
    return list(dict.fromkeys(tick.policy for tick in recording.ticks))


def _timed(fields: dict[str, object]) -> dict[str, object]:
    time_s = fields.pop("time_s")
    return {"at": _time(float(str(time_s))), **fields}


def _time(time_s: float) -> str:
    return timestamp(time_s).isoformat().replace("+00:00", "Z")


def _local(time_s: float) -> str:
    return timestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
