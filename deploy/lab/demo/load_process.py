"""One load generator as a process of its own: a line of JSON for each interval, and one for the whole run.

Run by a demonstration as ``python -m deploy.lab.demo.load_process SPEC`` inside the load generators' group; SPEC is
JSON, see ``to_json``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from manager.load import HttpOptions, IntervalResult, LoadSpec, MemcachedOptions, Phase, run


def main() -> None:
    """Generate one service's load."""
    result = run(of_json(sys.argv[1]), on_interval=_print_interval)
    print(json.dumps({"result": result.to_json()}), flush=True)


def to_json(spec: LoadSpec) -> str:
    """The load as text that this module's command line takes."""
    return json.dumps({**asdict(spec), "http": isinstance(spec.protocol, HttpOptions)})


def of_json(text: str) -> LoadSpec:
    """The inverse of ``to_json``."""
    fields: dict[str, Any] = json.loads(text)
    options = fields.pop("protocol")
    if fields.pop("http"):
        headers = tuple((name, value) for name, value in options["headers"])
        protocol: HttpOptions | MemcachedOptions = HttpOptions(options["path"], headers)
    else:
        protocol = MemcachedOptions(**options)
    schedule = tuple(Phase(**phase) for phase in fields.pop("schedule"))
    return LoadSpec(protocol=protocol, schedule=schedule, **fields)


def _print_interval(interval: IntervalResult) -> None:
    line = {
        "start_epoch_s": interval.end_epoch_s - (interval.end_s - interval.start_s),
        "end_epoch_s": interval.end_epoch_s,
        "buckets": dict(interval.histogram.buckets),
    }
    print(json.dumps({"interval": line}), flush=True)


if __name__ == "__main__":
    main()
