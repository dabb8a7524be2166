"""What is made of the guest's numbers and events."""

from __future__ import annotations

from typing import Any

from tests.kernel.inside.tail.trace import waits
from tests.kernel.tail import PARTS, table

ROW = {"vms": 2, "vcpus": 2, "pinned": True, "kind": "wake", "batch_pinned": False, "single": False, "services": 1}


def row(common: str, *p99: int, **more: Any) -> dict[str, Any]:
    services = [{"p50": 40, "p95": each // 2, "p99": each} for each in p99]
    return {**ROW, "common": common, "services_us": services, **more}


def test_the_table_has_the_service_that_waits_longer() -> None:
    rows = [row("", 300, 6900), row("idle", 400, 300), row("idle", 500, 300), row("", 200, 200, pinned=False)]
    assert list(table(rows))[2:] == [
        "| 2 x 2 | 0.0/3.5/6.9 |  | 0.0/0.2/0.4; 0.0/0.2/0.5 |",
        "| 2 x 2, critical floats | 0.0/0.1/0.2 |  |  |",
    ]


def test_the_matrix_is_whole() -> None:
    sizes = {(each["vms"], each["vcpus"], each.get("common", "")) for each in PARTS["matrix"]()}
    assert len(sizes) == 4 * 4 * 3


def test_a_long_wait_is_told_with_who_ran() -> None:
    lines = [
        "    batch0vcpu0-12  [000] d..2. 10.000000: sched_waking: comm=critical00 pid=9 prio=120 target_cpu=000",
        "    batch0vcpu0-12  [000] d..2. 10.000500: sched_switch: prev_comm=a ==> next_comm=batch0main next_pid=4",
        "    batch1vcpu0-12  [001] d..2. 10.000600: sched_switch: prev_comm=a ==> next_comm=batch1main next_pid=5",
        "     batch0main-12  [000] d..2. 10.003000: sched_switch: prev_comm=a ==> next_comm=critical00 next_pid=9",
        "    batch0vcpu0-12  [000] d..2. 10.010000: sched_waking: comm=critical00 pid=9 prio=120 target_cpu=000",
        "    batch0vcpu0-12  [000] d..2. 10.011000: sched_switch: prev_comm=a ==> next_comm=critical00 next_pid=9",
    ]
    assert list(waits("\n".join(lines))) == [{"critical": "critical00", "wait_us": 3000, "ran": {"batch0main": 1}}]
