"""Results as files, one for each experiment, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from deploy.reproduction.experiment import FigureNumbers, PlotLine, RunSetting
from manager.errors import SettingsError

TOP = Path(__file__).parents[2]
_CODE = (
    "manager/**/*.py",
    "manager/**/*.toml",
    "policies/*.py",
    *(f"deploy/reproduction/{name}" for name in ("*_figures.py", "*_tables.py", "simulated_host.py")),
)


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A run of an experiment. ``began`` is its time (RFC 3339); ``code`` tells apart which sources it ran."""

    name: str
    quick: bool
    seed: int
    code: str
    began: str
    took_s: float
    numbers: FigureNumbers

    def answers(self, setting: RunSetting, code: str) -> bool:
        """Whether a run under this setting and with this code need not be repeated: a full one answers for a quick"
        " one."""
        return self.seed == setting.seed and self.code == code and (setting.quick or not self.quick)


def code_digest(top: Path = TOP) -> str:
    """The same for the same sources of the product and of the experiments, not of how results are kept and shown."""
    digest = sha256()
    for pattern in _CODE:
        for file in sorted(top.glob(pattern)):
            digest.update(str(file.relative_to(top)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class ResultFolder:
    """The results in ``FOLDER/results``."""

    def __init__(self, folder: Path) -> None:
        """Raises SettingsError where it cannot be made or written."""
        self.folder = folder
        self._results = folder / "results"
        try:
            self._results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--out {folder} cannot be used as a folder: {error}") from error

    def load(self, name: str) -> StoredResult | None:
        """The result of an experiment, None: there is none. Raises SettingsError for a damaged file."""
        file = self._results / f"{name}.json"
        try:
            return from_json(json.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{file} is not a result of deploy/reproduce ({error}): remove it") from error

    def save(self, result: StoredResult) -> None:
        """Replace the result of its experiment, as a whole."""
        self.write(f"results/{result.name}.json", json.dumps(to_json(result), indent=1) + "\n")

    def write(self, name: str, text: str) -> Path:
        """Replace a file as a whole. Raises SettingsError."""
        file = self.folder / name
        new = file.with_name(file.name + ".new")
        try:
            new.write_text(text)
            new.replace(file)
        except OSError as error:
            raise SettingsError(f"{file} cannot be written: {error}") from error
        return file


def to_json(result: StoredResult) -> dict[str, Any]:
    """As JSON values."""
    return {
        "name": result.name,
        "quick": result.quick,
        "seed": result.seed,
        "code": result.code,
        "began": result.began,
        "took_s": round(result.took_s, 2),
        "values": {name: _rounded(value) for name, value in result.numbers.values.items() if isfinite(value)},
        "lines": [
            {"name": each.name, "points": [[_rounded(x), _rounded(y)] for x, y in each.points if isfinite(y)]}
            for each in result.numbers.lines
        ],
        "notes": list(result.numbers.notes),
    }


def from_json(body: Mapping[str, Any]) -> StoredResult:
    """Raises KeyError, TypeError or ValueError for something else."""
    numbers = FigureNumbers(
        tuple(
            PlotLine(str(one["name"]), tuple((float(x), float(y)) for x, y in one["points"])) for one in body["lines"]
        ),
        {str(name): float(value) for name, value in body["values"].items()},
        tuple(map(str, body["notes"])),
    )
    return StoredResult(
        str(body["name"]),
        bool(body["quick"]),
        int(body["seed"]),
        str(body["code"]),
        str(body["began"]),
        float(body["took_s"]),
        numbers,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
