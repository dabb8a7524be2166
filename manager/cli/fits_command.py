"""`equipoise fits`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import click

from manager.cli.options import (
    CLIENT_SETTINGS,
    Failure,
    ManPage,
    NumberRange,
    ObjectName,
    connect,
    json_option,
    with_settings,
)
from manager.errors import ManagerRefused, ManagerUnavailable
from manager.model.numbers import digits
from manager.model.registration import VmClass
from manager.model.units import per_second, percent
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import Table, output, progress

ANSWER_S = 120.0
_TRIES, _PAUSE_S = 24, 5.0
_ORDER = ("yes", "unsure", "no", "error")
_EPILOG = """
WHAT IT DOES
  Asks the manager whether a VM may come to a host, and changes nothing. The host's twin, made of its last --minutes,
  runs with one VM more and predicts the SLA's percentile of each application there, with an interval; where history
  does not suffice for a twin it says what is missing. Consolidation factors are what VMs want of the CPU (what they
  ran and waited for) over the pCPUs, of critical VMs and of all.

THE VM
  A registered one: its class, its vCPUs, what it wants and the application that it serves are taken from what is known
  of it, and options count before that. For any other VM give --class and --vcpus.

VERDICT
  no, where an SLA would not be met by its whole interval, would be violated in 5 points more of the intervals, or where
  one that is not met now gets worse; also where critical VMs would want more than all pCPUs. unsure, where a target is
  within an interval, or something is not known. yes otherwise.

  Of a batch VM the interference tables of the applications there speak, too (`equipoise profile table`): whether the
  present load of each is one that met its SLA beside as much batch load, on hosts of that type; with --batch-loss, or
  max_slowdown of a registered VM, also whether batch VMs lost no more than that. Where the tables and the twin
  disagree, the more careful verdict counts, and both are said.

FLEET
  With --fleet all hosts are asked that report and on which it does not run. They are listed with the best first: by
  verdict, then by how far the worst application's predicted percentile, at the end of its interval, stays below its
  target, then by the consolidation factor of all VMs.

OUTPUT
  The verdict with its reasons, consolidation factors, and a line for each application; with --fleet a line for each
  host. With --json the answer of the REST interface, with --fleet an object with vm, best (a host; null: none) and
  hosts, each an answer or an object with host and error. Response times with the VM are simulated, interference tables
  measured.

EXAMPLES
  equipoise fits render-7 --host kvm3
  equipoise fits render-7 --fleet
  equipoise fits new --class batch --vcpus 4 --demand 2.5 --fleet --json | jq -r .best
"""


@click.command("fits", cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("vm", metavar="VM")
@click.option(
    "--host", type=ObjectName(), default="", metavar="NAME", help="May it come to this host? [default: the only one]"
)
@click.option("--fleet", is_flag=True, help="Where would it fit best?")
@click.option("--class", "vm_class", type=click.Choice([str(each) for each in VmClass]), help="Its class.")
@click.option("--vcpus", type=click.IntRange(1, 256), metavar="N", help="Its vCPUs.")
@click.option("--demand", type=NumberRange(0.01, 256), metavar="PCPUS", help="CPU seconds a second that it wants.")
@click.option("--like", metavar="APPLICATION[/TIER]", help="It serves requests as that one does.")
@click.option("--rate", type=NumberRange(0.01, 1e5), metavar="RPS", help="Requests per second.")
@click.option(
    "--batch-loss", type=NumberRange(5, 100), metavar="PERCENT", help="CPU time that batch VMs may lose at most."
)
@click.option("--policy", metavar="POLICY", help="An installed policy. [default: the one in force]")
@click.option("--minutes", type=NumberRange(1, 60), default=60.0, show_default=True, help="History to simulate from.")
@json_option
def fits(settings: Settings, vm: str, host: str, fleet: bool, as_json: bool, **asked: Any) -> None:
    """Say whether VM fits on a host, or where in the fleet it fits best."""
    if host and fleet:
        raise click.UsageError("--host does not go with --fleet")
    refuse_impossible(asked["vm_class"], asked["vcpus"], asked["demand"], asked["like"])
    client = connect(settings, answer_s=ANSWER_S)
    body = _question(client, vm, asked)
    if fleet:
        _fleet(client, vm, body, as_json)
        return
    answer = ask(client, host or _only_host(client), body)
    output(as_json, answer, *_lines(answer))


def refuse_impossible(vm_class: str | None, vcpus: int | None, demand: float | None, like: str | None) -> None:
    """Refuse options of a VM that do not go together, before anything is asked or computed. Raises click.UsageError."""
    if demand is not None and vcpus is not None and demand > vcpus:
        raise click.UsageError(f"--demand {demand:g} is refused: use 0.01 to {vcpus}, the vCPUs that --vcpus says")
    if like and vm_class == VmClass.BATCH:
        raise click.UsageError(f"--like {like} is refused with --class batch: batch VMs serve no requests")
    if like and demand is not None:
        raise click.UsageError(f"--demand {demand:g} is refused with --like: requests take what they took; use --rate")


def ask(client: ManagerClient, host: str, body: dict[str, Any]) -> dict[str, Any]:
    """The manager's answer, waiting while it computes another one. Raises ManagerUnavailable."""
    for left in reversed(range(_TRIES)):
        try:
            answer = client.change("POST", f"/hosts/{host}/admission", body)
        except ManagerRefused as refused:
            if refused.status != HTTPStatus.SERVICE_UNAVAILABLE or not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return answer
    raise Failure("the manager computes other admissions: try again")


def best_first(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers, and errors, of hosts in the order in which the VM should go there."""
    return sorted(answers, key=_rank)


def _rank(answer: dict[str, Any]) -> tuple[int, float, float, str]:
    verdict = _ORDER.index(answer.get("verdict", "error"))
    factors = answer.get("consolidation")
    total = factors["total_with"] if factors else None
    return verdict, _worst(answer), float("inf") if total is None else total, answer["host"]


def _worst(answer: dict[str, Any]) -> float:
    """Of all predicted applications the largest end of an interval over its target.

    Infinite where none is predicted, or one would answer nothing.
    """
    parts = [
        app["with"]["high_ms"] / app["target_ms"] if app["with"] else float("inf")
        for app in answer.get("applications", ())
        if app["target_ms"]
    ]
    return max(parts, default=float("inf"))


def _question(client: ManagerClient, vm: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The body of the request: of a registered VM its name, of another one all that is given."""
    given = {
        "class": asked["vm_class"],
        "vcpus": asked["vcpus"],
        "demand_pcpus": asked["demand"],
        "like": asked["like"],
        "rate_rps": asked["rate"],
        "max_batch_loss": None if asked["batch_loss"] is None else asked["batch_loss"] / 100,
        "policy": asked["policy"],
        "minutes": asked["minutes"],
    }
    body = {name: value for name, value in given.items() if value is not None}
    if any(each["name"] == vm for each in client.items("/vms")):
        return {"vm": vm, **body}
    if "class" not in body or "vcpus" not in body:
        raise click.UsageError(f"VM {vm!r} is not registered: say what it is with --class and --vcpus")
    return body


def _only_host(client: ManagerClient) -> str:
    hosts = [str(each["name"]) for each in client.items("/hosts")]
    if len(hosts) != 1:
        raise click.UsageError(f"there are {len(hosts)} hosts: choose one with --host, or ask of all with --fleet")
    return hosts[0]


def _fleet(client: ManagerClient, vm: str, body: dict[str, Any], as_json: bool) -> None:
    runs_on = {each["status_host"] for each in client.items("/vms") if each["name"] == body.get("vm")}
    hosts = [
        each["name"]
        for each in client.items("/hosts")
        if each["name"] not in runs_on and each["last_seen_at"] and not each["silent"]
    ]
    if not hosts:
        raise Failure("no other host reports: there is none to ask about")
    answers: list[dict[str, Any]] = []
    with progress("hosts", len(hosts)) as bar:
        for host in hosts:
            try:
                answers.append(ask(client, host, body))
            except ManagerUnavailable as error:  # of this host: its twin may take longer than others
                answers.append({"host": host, "error": str(error)})
            bar.advance()
    answers = best_first(answers)
    best = answers[0]["host"] if answers[0].get("verdict") == "yes" else None
    table = Table(
        "host", "verdict", "worst / target", "critical", "total", "reason", title=f"Where {vm} fits (simulated)"
    )
    for answer in answers:
        worst, factors = _worst(answer), answer.get("consolidation")
        table.add_row(
            answer["host"],
            answer.get("verdict", "error"),
            f"{worst:.2f}" if worst < float("inf") else "-",
            _factor(factors and factors["critical_with"]),
            _factor(factors and factors["total_with"]),
            answer.get("error") or "; ".join(answer["reasons"]),
        )
    shown = f"{vm} fits best on {best}." if best else f"No host is known to have room for {vm}."
    output(as_json, {"vm": vm, "best": best, "hosts": answers}, shown, table)
    if all("error" in answer for answer in answers):
        raise Failure("no host was judged: the errors say why")


def _lines(answer: dict[str, Any]) -> Iterator[str | Table]:
    judged = any(each["verdict"] for each in answer["tables"])
    how = "simulated" if answer["simulated"] else "by interference tables" if judged else "by arithmetic alone"
    yield f"{answer['host']}: {answer['verdict']}, {how}"
    yield from (f"  {reason}" for reason in answer["reasons"])
    factors = answer["consolidation"]
    if factors:
        critical, total = (
            f"{name} {_factor(factors[f'{name}_without'])}, with it {_factor(factors[f'{name}_with'])}"
            for name in ("critical", "total")
        )
        yield f"  consolidation factor: {critical}; {total} (of {factors['pcpus']} pCPUs)"
    gets = answer["vm"]["gets_pcpus"]
    if gets is not None:
        yield f"  it wants {answer['vm']['wants_pcpus']:.2f} pCPUs and gets {gets:.2f}"
    if answer["applications"]:
        yield _table(answer)
    if answer["tables"]:
        yield _measured(answer)
    yield from (f"{each['application']} is not predicted: {each['reason']}" for each in answer["refused"])
    if answer["verdict"] != "unsure":  # else it is among the reasons
        yield from (f"missing: {text}" for text in answer["missing"])


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(answer: dict[str, Any]) -> Table:
    title = f"Simulated: {answer['host']} under {answer['policy']}, {answer['seeds']} seeds"
    table = Table("application", "SLA", "without it", "with it", "violated without", "violated with", title=title)
    for app in answer["applications"]:
        table.add_row(
            app["application"],
            f"p{app['percentile']:g} <= {app['target_ms']:g} ms",
            _span(app["without"]),
            _span(app["with"]),
            percent(app["violated_without"], 1) if app["without"] else "-",
            percent(app["violated_with"], 1),
        )
    return table


def _measured(answer: dict[str, Any]) -> Table:
    title = f"Measured: interference tables, {answer['tables'][0]['batch']} batch load with it"
    table = Table("application", "present load", "largest load", "verdict", "reason", title=title)
    for each in answer["tables"]:
        loads = (each["rate_rps"], each["load_rps"])
        rates = ("-" if rate is None else per_second(rate) for rate in loads)
        table.add_row(each["application"], *rates, each["verdict"] or "-", each["reason"])
    return table


def _span(span: dict[str, float] | None) -> str:
    return f"{digits(span['ms'])} ms, {digits(span['low_ms'])} to {digits(span['high_ms'])}" if span else "-"
