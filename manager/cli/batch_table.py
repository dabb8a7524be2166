"""How `equipoise status` shows batch VMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manager.model.units import percent
from manager.terminal import Table


def batch_table(vms: Sequence[dict[str, Any]]) -> Table | None:
    """Progress and jobs of batch VMs, as the interface has them; None where nothing is known of any."""
    known = [vm for vm in vms if vm.get("batch")]
    if not known:
        return None
    table = Table("VM", "host", "got", "alone", "progress", "slowdown", "deadline", title="Batch VMs (pCPUs)")
    for vm in known:
        fares, job = vm["batch"], vm.get("job") or {}
        slowdown, most = fares["slowdown"], job.get("max_slowdown")
        table.add_row(
            vm["name"],
            vm["status_host"],
            f"{fares['got_pcpus']:.2f}",
            f"{fares['would_pcpus']:.2f} ({fares['alone_by']})",
            percent(1 / slowdown) if slowdown else "no work",
            (f"{slowdown:.2f}" if slowdown else "-")
            + (f" of {most:g}" if most else "")
            + " TOO SLOW" * fares["too_slow"],
            _deadline(fares, job),
        )
    return table


def _deadline(fares: dict[str, Any], job: dict[str, Any]) -> str:
    if fares["state"] is None or not job.get("deadline"):
        return "-"
    needs = f", needs {fares['needed_pcpus']:.2f} pCPUs" if fares["needed_pcpus"] else ""
    state = fares["state"].replace("_", " ")
    shown = state if fares["state"] in {"on_track", "done"} else state.upper()
    return f"{job['deadline']} {shown}: {fares['done_cpu_s']:.0f} of {job['cpu_seconds']:.0f} CPU seconds{needs}"
