"""Whether the energy of processors and memory can be read (RAPL): nothing is written."""

from __future__ import annotations

from collections import Counter

from manager.host.doctor.check import CheckResult, Subject, missing, unknown, works
from manager.host.files import names_in, number_of
from manager.host.resources.rapl_domains import ENERGY_FILE, domain_parts
from manager.model.energy import EnergyPart

_BY_MODEL = "the report of savings calculates energy by a model"


def energy(subject: Subject) -> CheckResult:
    """The counter of each domain is read once. Raises OSError, ValueError."""
    parts = domain_parts(subject.paths)
    if EnergyPart.PACKAGE not in parts.values():
        zones = len(names_in(subject.paths.powercap))
        why = (
            f"none of {zones} power zones is a package of RAPL" if zones else "the kernel has no power zones (powercap)"
        )
        return missing(
            f"{why}: {_BY_MODEL}",
            "on hardware, load intel_rapl_msr (Intel, AMD since Zen); virtual machines have none: nothing to do there",
        )
    for name in parts:
        try:
            number_of(subject.paths.powercap / name / ENERGY_FILE)
        except PermissionError as error:
            return unknown(
                f"only root may read the counters: {error.strerror} for {name}/{ENERGY_FILE}", "run the doctor as root"
            )
    counts = Counter(parts.values())
    memory = f", and of the memory of {counts[EnergyPart.DRAM]}" if EnergyPart.DRAM in counts else ", memory not apart"
    packages = counts[EnergyPart.PACKAGE]
    return works(f"energy of {packages} package{'s' * (packages != 1)}{memory}")
