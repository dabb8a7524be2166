"""What is known of each ``auto``, as text, so that an agent that starts again goes on from there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from manager.control.cache_demand import JudgedWays
from manager.control.ways import DEFAULT_RULES, Wait, WaysMemory

_MOST_APPLICATIONS = 1000
_MOST_WAYS = 1024


def judged_text(judged: Mapping[str, JudgedWays]) -> str:
    """JSON of ways, waits and running trials; empty where nothing is known.

    Response times are measured anew, so that the text changes with a trial only.
    """
    told = {app: _told(one.memory) for app, one in sorted(judged.items())[:_MOST_APPLICATIONS]}
    return json.dumps(told) if told else ""


def read_judged(text: str, now_s: float) -> dict[str, JudgedWays]:
    """What ``judged_text`` wrote, at ``now_s`` (seconds since the epoch); without what is none of it.

    No wait is longer than the rules', whatever the clock was then.
    """
    try:
        told = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    found = {}
    for app, fields in told.items() if isinstance(told, dict) else ():
        try:
            found[app] = JudgedWays(_memory(fields, now_s))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found


def _told(memory: WaysMemory) -> dict[str, Any]:
    waits = {name: [wait.until_s, wait.next_s] for name, wait in (("grow", memory.grow), ("shrink", memory.shrink))}
    changed_s = memory.changed_s if math.isfinite(memory.changed_s) else None
    known = {"ways": memory.ways, "before": memory.before, "base": memory.base, "shrunk": memory.shrunk}
    return {**known, "changed_s": changed_s, **waits}


def _memory(told: Mapping[str, Any], now_s: float) -> WaysMemory:
    """Raises KeyError, TypeError, ValueError, OverflowError."""
    memory = WaysMemory(_ways(told["ways"]), grow=_wait(told["grow"], now_s), shrink=_wait(told["shrink"], now_s))
    if told["changed_s"] is not None:
        memory = replace(memory, changed_s=min(_number(told["changed_s"]), now_s))
    if told["base"] is not None:
        memory = replace(memory, base=_ways(told["base"]))
    if told["before"] is not None:
        ways, time_ms = told["before"]
        memory = replace(memory, before=(_ways(ways), _number(time_ms)))
    return replace(memory, shrunk=bool(told["shrunk"]))


def _wait(told: tuple[float, float], now_s: float) -> Wait:
    until_s, next_s = map(_number, told)
    longest_s = DEFAULT_RULES.longest_retry_s
    return Wait(min(until_s, now_s + longest_s), min(next_s, longest_s))


def _ways(told: int) -> int:
    if not 1 <= told <= _MOST_WAYS:
        raise ValueError(f"{told} ways")
    return int(told)


def _number(told: float) -> float:
    number = float(told)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{number} is no time")
    return number
