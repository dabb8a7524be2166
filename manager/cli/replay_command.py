"""`equipoise replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from manager.api.validation import read_text
from manager.cli.options import ManPage, json_option, with_settings
from manager.cli.recording_files import read_recording
from manager.errors import SettingsError
from manager.model.fields import timestamp
from manager.model.law import Law
from manager.replay.policy_replay import Replay, changes, summaries
from manager.replay.policy_replay import replay as run_replay
from manager.replay.recording import Recording
from manager.settings import Settings
from manager.sim.compare import PUBLISHED, check_policy, installed
from manager.terminal import Table, output

_ESTIMATED = (
    "Estimated, not measured: response times and CPU use are as recorded, and do not react to the weights shown here."
)

_EPILOG = """
POLICY
  An installed policy; `fair:published` and `isolation:published` take the feedback law exactly as printed.

OUTPUT
  Each change of a weight by the policy, beside the VM's recorded weight after that tick; and for each application how
  often its SLA was violated as recorded, and its VMs' weights. All of it is an estimate: recorded response times do not
  react to other weights. With --json also each tick.

EXAMPLES
  equipoise replay spike.jsonl --policy isolation
  equipoise replay spike.jsonl --policy fair --law gain=1 --law dead_band=0.1 --json | jq .changes
"""


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings("stale_s", "min_samples")
@click.argument("file", metavar="FILE")
@click.option("--policy", required=True, metavar="POLICY", help="See POLICY.")
@click.option("--law", "fields", multiple=True, metavar="NAME=VALUE", help="A field of the law. [default: as recorded]")
@json_option
def replay(settings: Settings, file: str, policy: str, fields: tuple[str, ...], as_json: bool) -> None:
    """Show what another policy would have decided on a FILE of `equipoise record`."""
    name = check_policy(policy).removesuffix(PUBLISHED)
    recording = read_recording(file)
    published = ("published=true",) if name != policy else ()
    law = _law(recording.assignment.host.law, (*fields, *published))
    replayed = run_replay(recording, installed()[name], law, settings.number("stale_s"), settings.whole("min_samples"))
    left_out = ", ".join(replayed.left_out)
    output(
        as_json,
        replay_json(replayed, recording),
        *_tables(replayed, recording),
        *replayed.problems,
        *([f"left out, because not registered for the host when recorded: {left_out}"] if left_out else []),
        *(f"{replayed.policy}: {note}" for note in replayed.notes),
        _ESTIMATED,
    )


def replay_json(replayed: Replay, recording: Recording) -> dict[str, object]:
    """The object that --json prints."""
    return {
        "estimated": True,
        "host": recording.assignment.host.name,
        "from": _time(recording.from_s),
        "to": _time(recording.to_s),
        "policy": replayed.policy,
        "law": asdict(replayed.law),
        "recorded_policies": recording.policies,
        "interval_s": replayed.interval_s,
        "applications": [asdict(summary) for summary in summaries(replayed, recording)],
        "changes": [_timed(asdict(change)) for change in changes(replayed)],
        "ticks": [_timed(asdict(step)) for step in replayed.steps],
        "left_out": replayed.left_out,
        "notes": replayed.notes,
    }


def _law(recorded: Law, fields: Sequence[str]) -> Law:
    """The recorded law with fields of the form NAME=VALUE replaced. Raises InvalidFields, SettingsError."""
    values = {name: str(value) for name, value in asdict(recorded).items()}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals:
            raise SettingsError(f"--law {field!r} is refused: use NAME=VALUE, such as gain=1")
        values[name] = value
    return read_text(Law, values)


def _tables(replayed: Replay, recording: Recording) -> list[Table]:
    host, policy = recording.assignment.host.name, replayed.policy
    columns = ("when", "VM", "recorded", f"{policy} before", policy, "reason")
    changed = Table(*columns, title=f"Estimated: weights on {host}")
    for change in changes(replayed):
        weights = (change.recorded, change.before, change.after)
        texts = ("-" if weight is None else str(weight) for weight in weights)
        changed.add_row(_local(change.time_s), change.vm, *texts, change.reason)
    first, last = replayed.steps[0].time_s, replayed.steps[-1].time_s
    applications = Table(
        "application",
        "SLA",
        "violated as recorded",
        f"weights under {', '.join(recording.policies)} (recorded)",
        f"weights under {policy} (estimated)",
        title=f"{host}: {len(replayed.steps)} ticks from {_local(first)} until {_local(last)}",
    )
    slas = {application.name: application.sla for application in recording.assignment.applications}
    for summary in summaries(replayed, recording):
        sla = slas[summary.application]
        applications.add_row(
            summary.application,
            f"p{sla.percentile:g} <= {sla.response_time_ms:g} ms" if sla else "-",
            f"{summary.violated} of {summary.judged} intervals" if summary.judged else "no data",
            *("-" if not weights else "{} .. {}".format(*weights) for weights in (summary.recorded, summary.replayed)),
        )
    return [changed, applications]


def _timed(fields: dict[str, object]) -> dict[str, object]:
    time_s = fields.pop("time_s")
    return {"at": _time(float(str(time_s))), **fields}


def _time(time_s: float) -> str:
    return timestamp(time_s).isoformat().replace("+00:00", "Z")


def _local(time_s: float) -> str:
    return timestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
