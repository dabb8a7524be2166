"""One load generator as a process of its own: a line of JSON for each interval, and one for the whole run.

Run by a demonstration as ``python -m deploy.lab.demo.load SCENE SERVICE SECONDS`` inside the load generators' group.
"""

from __future__ import annotations

import json
import sys

from deploy.lab.demo.scene import SCENES
from deploy.lab.loadgen import IntervalResult, run


def main() -> None:
    """Generate one service's load."""
    scene, name, seconds = SCENES[sys.argv[1]](), sys.argv[2], float(sys.argv[3])
    service = next(service for service in scene.services if service.name == name)
    result = run(service.load(seconds, scene.push_interval_s), on_interval=_print_interval)
    print(json.dumps({"result": result.to_json()}), flush=True)


def _print_interval(interval: IntervalResult) -> None:
    line = {
        "start_epoch_s": interval.end_epoch_s - (interval.end_s - interval.start_s),
        "end_epoch_s": interval.end_epoch_s,
        "buckets": dict(interval.histogram.buckets),
    }
    print(json.dumps({"interval": line}), flush=True)


if __name__ == "__main__":
    main()
