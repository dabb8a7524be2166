"""``tests/kernel/run tail``, inside the guest. Each result is a line on the port of the reports."""

from __future__ import annotations

import json
import os
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manager.host.doctor import batch_group_check
from manager.host.doctor.check import CheckResult, Subject
from manager.host.registry import HostPaths
from tests.kernel.guest.relay import PORT
from tests.kernel.inside.tail.experiment import CGROUPS, Shape, run
from tests.kernel.inside.tail.trace import trace

TRACED = (Shape(2, 2), Shape(2, 2, "weight"), Shape(2, 2, "idle"), Shape(2, 1))


def probe() -> CheckResult:
    """What the doctor says of this kernel."""
    (CGROUPS / "cgroup.subtree_control").write_text("+cpu")
    nowhere = Path("/nowhere")
    subject = Subject(HostPaths(Path("/")), "test:///default", nowhere, nowhere, "journal.db")
    return batch_group_check.batch_group(subject)


def results(part: str, duration_ms: int, shapes: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """Of ``probe``, ``trace``, or shapes."""
    if part == "probe":
        for _ in range(2):
            found = probe()
            yield {"status": str(found.status), "detail": found.detail}
    elif part == "trace":
        for shape in TRACED:
            for each in trace(shape):
                yield {"vms": shape.vms, "vcpus": shape.vcpus, "common": shape.common, **each}
    else:
        for shape in shapes:
            yield run(Shape(**shape), duration_ms)


def main() -> None:
    port = os.open(os.environ[PORT], os.O_WRONLY | os.O_NOCTTY)
    tty.setraw(port)
    for part, shapes in json.loads(sys.argv[2]).items():
        for result in results(part, int(sys.argv[1]), shapes):
            line = json.dumps({"result": {"part": part, "kernel": os.uname().release, **result}}).encode() + b"\n"
            while line:
                line = line[os.write(port, line) :]


if __name__ == "__main__":
    main()
