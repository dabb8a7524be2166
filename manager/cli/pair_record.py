"""What a colocation map has measured so far: in memory, in its state file, as JSON and for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from manager.control.load_search import LoadVerdict
from manager.control.pair_map import PairPoint, PairVerdict, most_together, pair_map
from manager.errors import SettingsError
from manager.model.units import per_second
from manager.private import replace_file
from manager.terminal import Table

_FORMAT = "equipoise pair profile 1"


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair of levels and what came of it, of the first and the second application each."""

    levels: tuple[int, int]
    rates_rps: tuple[float, float]
    percentiles_ms: tuple[float | None, float | None]
    verdicts: tuple[LoadVerdict, LoadVerdict]
    why: tuple[str, str]

    @property
    def point(self) -> PairPoint:
        """What the map is made of."""
        return PairPoint(self.levels, self.verdicts)


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What was measured so far, and with what. ``peaks_rps``: of both alone, or as they were given."""

    settings: Mapping[str, Any]
    levels: int
    peaks_rps: tuple[float, ...] = ()
    pairs: tuple[MeasuredPair, ...] = field(default_factory=tuple)

    @property
    def points(self) -> list[PairPoint]:
        """What the map is made of."""
        return [pair.point for pair in self.pairs]


def rates_of(record: PairRecord, levels: tuple[int, int]) -> tuple[float, float]:
    """The loads of two levels in requests per second."""
    first, second = (peak * level / record.levels for peak, level in zip(record.peaks_rps, levels, strict=True))
    return first, second


def names_of(record: PairRecord) -> tuple[str, str]:
    """The two applications."""
    return record.settings["a"]["application"], record.settings["b"]["application"]


def cell(record: PairRecord, verdict: PairVerdict) -> str:
    """A verdict in words."""
    first, second = names_of(record)
    words = {
        PairVerdict.BOTH: "both",
        PairVerdict.FIRST: f"only {first}",
        PairVerdict.SECOND: f"only {second}",
        PairVerdict.NONE: "none",
        PairVerdict.UNKNOWN: "?",
    }
    return words[verdict]


def report(record: PairRecord) -> Iterator[Table | str]:
    """The map as a table, and what it means."""
    first, second = names_of(record)
    if len(record.peaks_rps) < 2:
        yield "Nothing is known: the peaks are not measured."
        return
    known, measured = pair_map(record.levels, record.points), {pair.levels for pair in record.pairs}
    steps = range(1, record.levels + 1)
    columns = (per_second(rates_of(record, (1, step))[1]) for step in steps)
    table = Table(f"{first} \\ {second}", *columns, title=f"{first} and {second}: who meets the SLA")
    for row in steps:
        cells = []
        for column in steps:
            verdict = known.get((row, column))
            text = "-" if verdict is None else cell(record, verdict)
            cells.append(text if (row, column) in measured or verdict is None else f"({text})")
        table.add_row(per_second(rates_of(record, (row, 1))[0]), *cells)
    yield table
    together = most_together(known)
    if together is None:
        yield "At no pair of loads that was tried do both meet their SLAs."
    else:
        rates = " beside ".join(map(per_second, rates_of(record, together)))
        yield f"Both meet their SLAs up to {rates}, {first} and {second}."


def pair_json(record: PairRecord, ended: str) -> dict[str, Any]:
    """The object that --json prints."""
    known = pair_map(record.levels, record.points)
    return {
        "settings": dict(record.settings),
        "peaks_rps": list(record.peaks_rps),
        "levels": record.levels,
        "pairs": [{**asdict(pair), "verdict": pair.point.verdict} for pair in record.pairs],
        "map": [{"levels": list(levels), "verdict": verdict} for levels, verdict in sorted(known.items())],
        "most_together": most_together(known),
        "ended": ended,
    }


def write_pairs(file: Path, record: PairRecord) -> None:
    """Replace the state file. Raises SettingsError."""
    try:
        replace_file(file, json.dumps({"format": _FORMAT, **asdict(record)}, indent=1).encode())
    except OSError as error:
        raise SettingsError(f"--state {file} cannot be written: {error.strerror}") from error


def read_pairs(file: Path, settings: Mapping[str, Any]) -> PairRecord:
    """What a state file holds, or nothing measured yet where there is none.

    Raises SettingsError for a file of something else, or of a map with other settings.
    """
    levels = int(settings["levels"])
    try:
        body = json.loads(file.read_text())
        if body["format"] != _FORMAT:
            raise ValueError
        pairs = tuple(map(_pair_of, body["pairs"]))
        peaks_rps, before = tuple(map(float, body["peaks_rps"])), body["settings"]
    except FileNotFoundError:
        return PairRecord(settings, levels)
    except OSError as error:
        raise SettingsError(f"--state {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, LookupError) as error:
        raise SettingsError(f"--state {file} is no state of a pair profile: name another file") from error
    if before != json.loads(json.dumps(settings)):
        raise SettingsError(f"--state {file} is of a profile with other options: use the same, or name another file")
    return PairRecord(settings, levels, peaks_rps, pairs)


def _pair_of(body: Mapping[str, Any]) -> MeasuredPair:
    first, second = body["verdicts"]
    return MeasuredPair(
        (body["levels"][0], body["levels"][1]),
        (body["rates_rps"][0], body["rates_rps"][1]),
        (body["percentiles_ms"][0], body["percentiles_ms"][1]),
        (LoadVerdict(first), LoadVerdict(second)),
        (body["why"][0], body["why"][1]),
    )
