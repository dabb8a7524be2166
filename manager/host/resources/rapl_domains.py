"""RAPL's counters of energy in the powercap tree: of packages and of the memory beside them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from manager.host.files import names_in, number_of, text_of
from manager.host.registry import HostPaths
from manager.host.resources.held_file import HeldFile
from manager.model.energy import EnergyCounter, EnergyPart

LISTED_EVERY = 12
"""Domains are looked for at every so many readings."""
ENERGY_FILE = "energy_uj"
_RANGE_FILE = "max_energy_range_uj"
_PACKAGE = re.compile(r"intel-rapl:\d+")
_BELOW_PACKAGE = re.compile(r"intel-rapl:\d+:\d+")


class _Domain(NamedTuple):
    part: EnergyPart
    range_uj: int
    file: HeldFile


def domain_parts(paths: HostPaths) -> dict[str, EnergyPart]:
    """The domains that together are all processors and their memory, by the names of their folders. Raises OSError.

    Zones of other control types repeat these (``intel-rapl-mmio``); ``core`` and ``uncore`` are in their package;
    ``psys`` is the platform, packages among it, where firmware says so at all. AMD's have the same names.
    """
    found: dict[str, EnergyPart] = {}
    for name in names_in(paths.powercap):
        if _PACKAGE.fullmatch(name) and (text_of(paths.powercap / name / "name") or "").startswith("package"):
            found[name] = EnergyPart.PACKAGE
        elif _BELOW_PACKAGE.fullmatch(name) and text_of(paths.powercap / name / "name") == "dram":
            found[name] = EnergyPart.DRAM
    return found


class RaplDomains:
    """Holds the counter of each domain open. Not thread-safe: it belongs to the control loop."""

    def __init__(self, paths: HostPaths) -> None:
        """Nothing is opened yet."""
        self._paths = paths
        self._domains: Mapping[str, _Domain] = {}
        self._unlisted = 0

    def read(self) -> dict[str, EnergyCounter]:
        """The counters that can be read now, by domain; none where there are none, or only root may."""
        if self._unlisted % LISTED_EVERY == 0:
            self._list()
        self._unlisted += 1
        found: dict[str, EnergyCounter] = {}
        for name, domain in self._domains.items():
            with contextlib.suppress(ValueError):
                text = domain.file.read()
                if text is not None:
                    found[name] = EnergyCounter(domain.part, int(text), domain.range_uj)
        return found

    def _list(self) -> None:
        parts: Mapping[str, EnergyPart] = {}
        with contextlib.suppress(OSError):
            parts = domain_parts(self._paths)
        for name in self._domains.keys() - parts.keys():
            self._domains[name].file.close()
        listed = {
            name: self._domains.get(name) or _opened(self._paths.powercap / name, part) for name, part in parts.items()
        }
        self._domains = {name: domain for name, domain in listed.items() if domain is not None}

    def close(self) -> None:
        """Close all files; may be called twice."""
        for domain in self._domains.values():
            domain.file.close()


def _opened(folder: Path, part: EnergyPart) -> _Domain | None:
    """None where the domain does not say when it begins anew."""
    with contextlib.suppress(OSError, ValueError):
        range_uj = number_of(folder / _RANGE_FILE)
        return None if not range_uj else _Domain(part, range_uj, HeldFile(folder / ENERGY_FILE))
    return None
