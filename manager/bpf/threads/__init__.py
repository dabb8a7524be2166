"""The program on threads as it is shipped: the object, and its maps. equipoise_threads.bpf.c says what it does."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from manager.bpf import members, number

OBJECT = Path(__file__).parent / "equipoise_threads.bpf.o"
FIND, READ, READ_WAITS = "find_thread", "read_threads", "read_waits"
START_WATCH, STOP_WATCH = "start_watch", "stop_watch"
"""Names of the programs: the task iterator, and those that the reader runs."""
WANTED, PLACES, TIMES, CHOSEN = "thread_wanted", "thread_places", "thread_times", "thread_chosen"
WATCH_MAP, TIMER, ALARMS, JUDGED_MAP = "thread_watch", "thread_alarm", "thread_alarms", "judged_services"
"""Names of the maps."""

_INTERFACE = (Path(__file__).parent / "threads.h").read_text()

MOST_THREADS, MOST_MASK_WORDS = number(_INTERFACE, "MOST_THREADS"), number(_INTERFACE, "MOST_MASK_WORDS")
MOST_WATCHED, WHOLE = number(_INTERFACE, "MOST_WATCHED"), number(_INTERFACE, "WHOLE")
ENDED = number(_INTERFACE, "ENDED")
"""The mark of a thread that is gone."""
GONE = number(_INTERFACE, "GONE")
"""Its wait."""

INDEX = struct.Struct("=I")
"""Key of WANTED, always 0, of PLACES and CHOSEN, and value of CHOSEN: a place."""
WANTED_PLACE = struct.Struct(f"={len(members(_INTERFACE, 'wanted'))}Q")
"""Value of WANTED."""
PLACE = struct.Struct(f"={len(members(_INTERFACE, 'place'))}Q")
"""Value of PLACES; all 0: no thread."""
READING = struct.Struct(f"={len(members(_INTERFACE, 'reading'))}Q")
"""What READ and READ_WAITS are told."""
COLUMNS = tuple(re.findall(r"^\tu64 (\w+)\[MOST_THREADS\];", _INTERFACE, re.MULTILINE))
"""The value of TIMES: one after the other, 64 bits for each place."""
MOST_JUDGED = number(_INTERFACE, "MOST_JUDGED")
"""Services whose answers are watched."""
SERVICES_MAP = struct.Struct("=I")
"""Value of JUDGED_MAP: the descriptor of a map."""


def _words(name: str) -> Iterator[tuple[str, range]]:
    """Of a struct's members, each a word of 64 bits or many, where these are."""
    body = re.search(rf"struct {name} {{\n(.*?)}};", _INTERFACE, re.DOTALL)
    first = 0
    for member, times, length in re.findall(
        r"^\tu64 (\w+)(?:\[(?:(\d+) \* )?(\w+)\])?;", body[1] if body else "", re.MULTILINE
    ):
        count = int(times or 1) * number(_INTERFACE, length) if length else 1
        yield member, range(first, first + count)
        first += count


WATCH = dict(_words("watch"))
"""The value of WATCH_MAP: where each member is, in words of 64 bits."""
START = struct.Struct(f"={len(members(_INTERFACE, 'start'))}Q")
"""What START_WATCH is told."""
