"""The program on threads as it is shipped: the object, and its maps. equipoise_threads.bpf.c says what it does."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from manager.bpf import members

OBJECT = Path(__file__).parent / "equipoise_threads.bpf.o"
FIND, READ = "find_thread", "read_threads"
"""Names of the programs: the task iterator, and the one that the reader runs."""
WANTED, PLACES, TIMES = "thread_wanted", "thread_places", "thread_times"
"""Names of the maps."""

_INTERFACE = (Path(__file__).parent / "threads.h").read_text()


def _number(name: str) -> int:
    """A number that threads.h defines. Raises TypeError where it does not."""
    return int(re.search(rf"^#define {name} (\w+)", _INTERFACE, re.MULTILINE)[1], 0)  # type: ignore[index]


MOST_THREADS, MOST_MASK_WORDS = _number("MOST_THREADS"), _number("MOST_MASK_WORDS")
ENDED = _number("ENDED")
"""The mark of a thread that is gone."""

INDEX = struct.Struct("=I")
"""Key of WANTED, always 0, and of PLACES."""
WANTED_PLACE = struct.Struct(f"={len(members(_INTERFACE, 'wanted'))}Q")
"""Value of WANTED."""
PLACE = struct.Struct(f"={len(members(_INTERFACE, 'place'))}Q")
"""Value of PLACES; all 0: no thread."""
READING = struct.Struct(f"={len(members(_INTERFACE, 'reading'))}Q")
"""What READ is told."""
COLUMNS = tuple(re.findall(r"^\tu64 (\w+)\[MOST_THREADS\];", _INTERFACE, re.MULTILINE))
"""The value of TIMES: one after the other, 64 bits for each place."""
