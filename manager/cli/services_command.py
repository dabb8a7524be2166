"""`equipoise services`."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from manager.cli.options import Failure, ManPage, NumberRange, with_settings
from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.host.vm_interfaces import interfaces
from manager.model.numbers import digits
from manager.model.traffic import ServiceTraffic, TapProtocol, VmInterface
from manager.model.units import percent
from manager.settings import Settings
from manager.terminal import Table, output, progress

_EPILOG = """
WHAT IT DOES
  Shows which ports of the running VMs serve, and how fast, from the packets at their taps; nothing is needed in the
  guests, and VMs need not be registered. A response time is the time from the last byte of a request on its way to the
  VM to the first byte of the answer: the host's part and the guest's, without the network in between. A BPF program
  measures it; it looks at ports, sequence numbers and the beginnings of messages, and keeps no content and, after
  this command has ended, no addresses. Nothing is changed, and nothing stays, whatever ends the command.

  Requests are recognised by their first bytes: http, memcached (text and binary), tls. For anything else (other), what
  a client sends until the VM answers counts as one request. UNTIMED are requests whose answers cannot be matched:
  HTTP/2, the first one of each TLS connection, and, of connections that send the next one before the answer
  (pipelining), those that the command did not see from their beginning, and what waits behind 16 others. UNANSWERED
  are those whose connection ended before, or that waited for a minute; WAITING those that have no answer yet. ERRORS
  are HTTP statuses from 500 on, and memcached's SERVER_ERROR. ACCEPT is how long the guest's kernel takes to accept a
  connection, in which no process of the guest has a part: it grows with the VM's wait for pCPUs alone.

  Needs root, bpftool, and Linux 5.14 or newer. Packets that bypass the host's kernel cannot be seen: those of SR-IOV,
  vhost-user, vDPA, macvtap, and of interfaces that QEMU connects itself; the command names such interfaces.

EXAMPLES
  equipoise services                       all VMs, 10 s
  equipoise services shop-web --duration 60
  equipoise services --json | jq '.services[] | {vm, port, p95_ms}'
"""
_PAUSE_S = 0.2
_READ_S = 1.0
_PERCENTILES = (50, 95, 99)
_TIMES = ("p50_ms", "p95_ms", "p99_ms", "accept_p95_ms")


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings("libvirt_uri", "root_dir")
@click.argument("vms", nargs=-1, metavar="[DOMAIN]...")
@click.option(
    "--duration",
    "duration_s",
    type=NumberRange(0.1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to measure, 0.1 to 3600.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def services(settings: Settings, vms: tuple[str, ...], duration_s: float, as_json: bool) -> None:
    """Show which ports of running VMs serve, and their response times."""
    all_interfaces = interfaces(settings.text("libvirt_uri"))
    if missing := sorted(set(vms) - {interface.vm for interface in all_interfaces}):
        raise Failure(f"no running domain with a network interface: {', '.join(missing)}")
    chosen = [interface for interface in all_interfaces if not vms or interface.vm in vms]
    with closing(TapProgram(HostPaths(Path(settings.text("root_dir"))))) as program:
        chosen = [_attached(program, interface) for interface in chosen]
        passed_s = _wait(program, duration_s)
        sampled_share = program.sampled_share  # until now: the last reading may change it
        traffic, lost = program.traffic(), program.lost()
    by_index = {interface.index: interface for interface in chosen if interface.index is not None}
    rows = [_row(by_index[seen.interface], seen, passed_s) for seen in traffic if seen.interface in by_index]
    rows.sort(key=lambda row: (row["vm"], row["interface"], row["port"]))
    unseen = [{"vm": each.vm, "interface": each.name, "why": each.why} for each in chosen if each.index is None]
    body = {
        "duration_s": round(passed_s, 3),
        "services": rows,
        "not_visible": unseen,
        "lost": lost,
        "sampled_share": sampled_share,
    }
    output(as_json, body, _table(rows), *_notes(unseen, lost, sampled_share))


def _attached(program: TapProgram, interface: VmInterface) -> VmInterface:
    """The interface, as one that cannot be seen where it was gone before the program was attached."""
    if interface.index is None:
        return interface
    try:
        program.attach(interface.index)
    except HostError as error:
        if error.errno != errno.ENODEV:
            raise
        return VmInterface(interface.vm, interface.name, None, f"is gone: {error}")
    return interface


def _wait(program: TapProgram, duration_s: float) -> float:
    """How long it took, at least that long. Readings meanwhile have it look at a part of connections that are many."""
    read_s = began_s = time.monotonic()
    with progress("measuring", duration_s, counted=False) as bar:
        while (passed_s := time.monotonic() - began_s) < duration_s:
            bar.update(passed_s)
            time.sleep(min(_PAUSE_S, duration_s - passed_s))
            if time.monotonic() - read_s >= _READ_S:
                program.traffic()
                read_s = time.monotonic()
    return passed_s


def _row(interface: VmInterface, seen: ServiceTraffic, passed_s: float) -> dict[str, Any]:
    protocol, share = seen.protocol
    requests = sum(seen.requests.values())
    times = {f"p{percentile}_ms": _milliseconds(seen.times.percentile_us(percentile)) for percentile in _PERCENTILES}
    return {
        "vm": interface.vm,
        "interface": interface.name,
        "port": seen.port,
        "protocol": protocol,
        "protocol_share": round(share, 4),
        "requests": requests,
        "requests_per_s": round(requests / passed_s, 3),
        "answers": seen.answers,
        **times,
        "errors": seen.errors,
        "untimed": seen.untimed,
        "unanswered": seen.unanswered,
        "waiting": seen.waiting.count,
        "longest_wait_ms": _milliseconds(seen.waiting.percentile_us(100)),
        "connections": seen.connections,
        "accept_p95_ms": _milliseconds(seen.handshakes.percentile_us(95)),
    }


def _milliseconds(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us / 1000, 3)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table | str:
    if not rows:
        return "no service was seen"
    columns = ("VM", "interface", "port", "protocol", "req/s", "p50 ms", "p95 ms", "p99 ms", "accept p95 ms")
    table = Table(*columns, "errors", "untimed", "unanswered", "waiting")
    for row in rows:
        protocol = str(row["protocol"])
        if row["protocol"] is not TapProtocol.OTHER and row["protocol_share"] < 1:
            protocol += f" ({percent(row['protocol_share'])})"
        times = ("–" if row[name] is None else f"{digits(row[name])}" for name in _TIMES)
        counts = (str(row[name]) for name in ("errors", "untimed", "unanswered", "waiting"))
        table.add_row(
            row["vm"], row["interface"], str(row["port"]), protocol, f"{row['requests_per_s']:.1f}", *times, *counts
        )
    return table


def _notes(unseen: Sequence[Mapping[str, str]], lost: Mapping[str, int], sampled_share: float) -> list[str]:
    notes = [f"{each['vm']}: {each['interface']} {each['why']}" for each in unseen]
    if sampled_share < 1:
        notes.append(f"one of {1 / sampled_share:.0f} connections is looked at, and counts for as many: they are many")
    if lost["services"]:
        notes.append(f"{lost['services']} packets were of other services: 64 of an interface are seen, 1024 of all")
    if lost["times"]:
        notes.append(f"{lost['times']} response times were not counted: there was no room for more")
    return notes
