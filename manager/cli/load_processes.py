"""Loads at the same time, each made by a process of its own, so that none delays another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from manager.cli.options import Failure
from manager.control.load_search import OwnDelay
from manager.load import HttpOptions, LoadSpec
from manager.load.result import GENERATED, MAX_CPU_SHARE
from manager.load.spec import KEY_FIELD
from manager.model.histogram import Histogram

_LOOK_S = 0.1
_END_S = 30.0


@dataclass(frozen=True, slots=True)
class MadeLoad:
    """What `equipoise load` printed. ``own``: what it had to do with it; ``why`` says what was in the way."""

    rate_rps: float
    sent: int
    answered: int
    histogram: Histogram
    shortfall: bool
    own: OwnDelay
    why: str


def arguments(spec: LoadSpec) -> list[str]:
    """The options of `equipoise load` for a load of one phase."""
    options = {
        "--duration": spec.schedule_s,
        "--warmup": spec.warmup_s,
        "--connections": spec.connections,
        "--pipeline": spec.pipeline,
        "--seed": spec.seed,
        "--timeout": spec.timeout_s,
        "--connect-timeout": spec.connect_timeout_s,
        "--zipf": spec.protocol.zipf,
    }
    if not spec.closed_loop:
        options["--rate"] = spec.schedule[0].rate_rps
    words = [spec.target_text, *(word for name, value in options.items() for word in (name, repr(value)))]
    if spec.closed_loop:
        words.append("--closed")
    if not isinstance(spec.protocol, HttpOptions):
        protocol = spec.protocol
        words += ["--keys", str(protocol.keys), "--value-bytes", str(protocol.value_bytes)]
        return [*words, "--set-share", repr(protocol.set_share)]
    if KEY_FIELD in spec.protocol.path:
        words += ["--keys", str(spec.protocol.keys)]
    return [*words, *(word for name, value in spec.protocol.headers for word in ("--header", f"{name}: {value}"))]


def run_loads(specs: Sequence[LoadSpec], stop: threading.Event) -> list[MadeLoad]:
    """Make these loads together. Setting ``stop`` ends them. Raises Failure when one could not be made."""
    with ExitStack() as stack:
        made = []
        for spec in specs:
            command = [sys.executable, "-P", "-m", "manager.cli", "load", *arguments(spec), "--json"]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(_end, process)
            made.append(process)
        outputs = [_output(process, stop) for process in made]
    return [made_load(json.loads(output)) for output in outputs]


def _output(process: subprocess.Popen[str], stop: threading.Event) -> str:
    while True:
        if stop.is_set():
            process.send_signal(signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=_END_S if stop.is_set() else _LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        if not output:
            raise Failure(errors.strip().removeprefix("equipoise: ") or "a load generator ended without a result")
        return output


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # nothing if it has ended
    process.communicate()


def made_load(document: dict[str, Any]) -> MadeLoad:
    """The JSON of `equipoise load`."""
    failed = document["answered"] < GENERATED * document["sent"]
    why = document["shortfall"] or ("many requests had no good answer" if failed else "")
    late_us = (document["lateness"]["p99_us"] or 0.0) if document["client_limited"] else 0.0
    return MadeLoad(
        document["rate_rps"],
        document["sent"],
        document["answered"],
        Histogram({int(bucket): count for bucket, count in document["histogram"]["buckets"].items()}),
        bool(why),
        OwnDelay(document["cpu_share"] > MAX_CPU_SHARE, late_us / 1000),
        why or "; ".join(document["client_limits"]),
    )
