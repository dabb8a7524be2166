"""Boots a guest and measures how long pinned critical vCPUs wait beside batch VMs of several vCPUs, with and without
one group above the batch VMs; what `equipoise doctor` says of this kernel; where a wait comes from.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deploy.lab.commands import LabError
from tests.kernel.machine import Machine, run_module
from tests.kernel.machines import MACHINES, of_suite, with_image

MODULE = "tests.kernel.inside.tail.main"
COMMON = ("", "weight", "idle")
NAMES = {"": "none", "weight": "least weight", "idle": "idle"}
COUNTS = range(1, 5)
TIMEOUT_S = 7200.0

Row = Mapping[str, Any]
Shape = dict[str, object]


def matrix(pinned: bool) -> list[Shape]:
    """Every number of batch VMs and of their vCPUs; first, what the emulation itself adds, by real-time vCPUs."""
    floor = {"vms": 2, "vcpus": 2, "kind": "fifo"}
    sizes = itertools.product(COUNTS, COUNTS, COMMON)
    return [floor, *({"pinned": pinned, "vms": n, "vcpus": m, "common": c} for n, m, c in sizes)]


def others() -> list[Shape]:
    """What was open: batch vCPUs pinned, all of a VM on one pCPU, several critical VMs on a pCPU, 4 x 1 again."""
    two, four = {"vms": 2, "vcpus": 2}, {"vms": 4, "vcpus": 1}
    found: list[Shape] = [{**two, "common": c, "batch_pinned": True} for c in COMMON]
    found += [{"vms": n, "vcpus": m, "batch_pinned": True} for n, m in ((2, 1), (3, 1), (4, 1), (3, 3))]
    found += [{**two, "single": True}]
    found += [{**two, "common": c, "services": 2} for c in COMMON]
    found += [{**four, "common": c} for c in COMMON for _ in range(3)]
    return found


PARTS: Mapping[str, Callable[[], list[Shape]]] = {
    "matrix": partial(matrix, pinned=True),
    "floating": partial(matrix, pinned=False),
    "others": others,
    "probe": list,
    "trace": list,
}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: p50/p95/p99 of the service that waits longer, ms; a line a shape, a column for each common group."""
    by_shape: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        by_shape.setdefault(title(row), {}).setdefault(row["common"], []).append(delays_ms(row))
    yield "| batch VMs | " + " | ".join(NAMES.values()) + " |"
    yield "| --- | " + " | ".join("---" for _ in NAMES) + " |"
    for shape, found in by_shape.items():
        cells = ["; ".join(found.get(each, [])) for each in COMMON]
        yield f"| {', '.join(filter(None, shape))} | " + " | ".join(cells) + " |"


def title(row: Row) -> tuple[str, ...]:
    return (
        f"{row['vms']} x {row['vcpus']}",
        "" if row["pinned"] else "critical floats",
        "real-time" if row["kind"] == "fifo" else "",
        "batch vCPU i on pCPU i" if row["batch_pinned"] else "",
        "each VM on one pCPU" if row["single"] else "",
        f"{row['services']} services a pCPU" if row["services"] > 1 else "",
    )


def delays_ms(row: Row) -> str:
    return "/".join(f"{max(each[name] for each in row['services_us']) / 1000:.1f}" for name in ("p50", "p95", "p99"))


def suited(suite: str | None, image: Path | None) -> Machine:
    """The guest with a kernel image, the cloud kernel of a Debian suite, or this machine's release's."""
    machine = dataclasses.replace(MACHINES["tail"], timeout_s=TIMEOUT_S)
    if image:
        return with_image(machine, image)
    if suite:
        return dataclasses.replace(machine, fetch=of_suite(suite))
    return machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/kernel/run tail", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="by default matrix and probe")
    kernel = parser.add_mutually_exclusive_group()
    kernel.add_argument("--kernel", type=Path, metavar="IMAGE", help="a vmlinuz; else this release's")
    kernel.add_argument("--suite", help="a Debian suite whose cloud kernel it is, such as trixie-backports")
    parser.add_argument("--ms", type=int, default=1000, help="of the guest's for each line (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    parts = {name: PARTS[name]() for name in options.part or ("matrix", "probe")}
    try:
        run = run_module(suited(options.suite, options.kernel), [MODULE, str(options.ms), json.dumps(parts)])
    except LabError as error:
        print(f"tests/kernel/run: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({name: [row for row in run.results if row["part"] == name] for name in parts}, indent=1))
    else:
        for name, shapes in parts.items():
            rows = [row for row in run.results if row["part"] == name]
            print(f"{name}: Linux {rows[0]['kernel']}, emulated" if rows else f"{name}: no result")
            print(*(table(rows) if shapes else map(json.dumps, rows)), sep="\n")
    if run.trouble or {row["part"] for row in run.results} != set(parts):
        print(f"tests/kernel/run: {run.trouble or 'results are missing'}\n{run.console_end}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
