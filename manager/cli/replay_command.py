"""`equipoise replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from manager.api.validation import read_text
from manager.cli.options import ManPage, json_option, with_settings
from manager.cli.recording_files import read_recording
from manager.cli.times import local_time
from manager.cli.twin_commands import make_twin, seeds_option
from manager.errors import SettingsError, TwinRefused
from manager.model.fields import timestamp
from manager.model.law import Law
from manager.replay.policy_replay import Replay, changes, summaries
from manager.replay.policy_replay import replay as run_replay
from manager.replay.recording import Recording
from manager.settings import Settings
from manager.sim.compare import PUBLISHED, check_policy, installed
from manager.sim.oracle import ORACLE
from manager.sim.twin_prediction import ClosedLoop, predict
from manager.sim.twin_report import closed_loop_json, closed_loop_table, refusal_lines
from manager.terminal import Table, output, progress

_ESTIMATED = (
    "Estimated, not measured: in the open loop, response times and CPU use are as recorded, and do not react to the"
    " weights shown here."
)

_EPILOG = """
POLICY
  An installed policy; `fair:published` and `isolation:published` take the feedback law exactly as printed.

CLOSED LOOP
  The host's twin, calibrated from FILE as by `equipoise sim calibrate`, is run under the policy with several seeds, and
  the SLA's percentile that would have been is set beside the one measured: «74 ms, 68 to 81», an interval that holds
  what differs between seeds and the twin's own error. Where the twin refuses, the reason is printed, and only the
  open loop is left. --open-loop leaves out the simulation.

OUTPUT
  The closed loop; then the open loop: each change of a weight by the policy, beside the VM's recorded weight after that
  tick; and for each application how often its SLA was violated as recorded, and its VMs' weights. In the open loop
  recorded response times do not react to other weights. With --json also each tick; `closed_loop` is null where
  `closed_loop_refused` says why.

EXAMPLES
  equipoise replay spike.jsonl --policy isolation
  equipoise replay spike.jsonl --policy fair --law gain=1 --law dead_band=0.1 --json | jq .changes
"""


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings("stale_s", "min_samples")
@click.argument("file", metavar="FILE")
@click.option("--policy", required=True, metavar="POLICY", help="See POLICY.")
@click.option("--law", "fields", multiple=True, metavar="NAME=VALUE", help="A field of the law. [default: as recorded]")
@seeds_option
@click.option("--open-loop", is_flag=True, help="Simulate nothing.")
@json_option
def replay(
    settings: Settings,
    file: str,
    policy: str,
    fields: tuple[str, ...],
    seeds: int,
    open_loop: bool,
    as_json: bool,
) -> None:
    """Show what another policy would have done, and decided, on a FILE of `equipoise record`."""
    name = check_policy(policy).removesuffix(PUBLISHED)
    if name == ORACLE:
        raise SettingsError(f"policy {ORACLE!r} is refused: it knows the future of scenarios only")
    recording = read_recording(file)
    published = ("published=true",) if name != policy else ()
    law = _law(recording.assignment.host.law, (*fields, *published))
    replayed = run_replay(recording, installed()[name], law, settings.number("stale_s"), settings.whole("min_samples"))
    left_out = ", ".join(replayed.left_out)
    closed, refused = (None, "not asked for") if open_loop else _closed_loop(recording, name, law, seeds)
    body = {
        "closed_loop": None if closed is None else _timed_loop(closed),
        "closed_loop_refused": refused or None,
    }
    shown: list[Table | str] = [f"No closed loop: {refused}"] if refused and not open_loop else []
    if closed:
        shown += [closed_loop_table(closed, recording.ticks[-1].policy), *refusal_lines(closed.refused)]
    output(
        as_json,
        replay_json(replayed, recording) | body,
        *shown,
        *_tables(replayed, recording),
        *replayed.problems,
        *([f"left out, because not registered for the host when recorded: {left_out}"] if left_out else []),
        *(f"{replayed.policy}: {note}" for note in replayed.notes),
        _ESTIMATED,
    )


def _closed_loop(recording: Recording, policy: str, law: Law, seeds: int) -> tuple[ClosedLoop | None, str]:
    """What would have been, or why that cannot be said."""
    try:
        twin = make_twin(recording, seeds)
        with progress(f"{policy} in the twin", seeds) as bar:
            return predict(twin, policy, law, on_step=bar.advance), ""
    except TwinRefused as error:
        return None, str(error)


def _timed_loop(found: ClosedLoop) -> dict[str, object]:
    body = closed_loop_json(found)
    return body | {"since": _time(found.start_s), "until": _time(found.end_s)}


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
    return local_time(timestamp(time_s))
