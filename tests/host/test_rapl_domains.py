"""RAPL's counters of energy in trees as the kernel makes them: they wrap, go, or only root may read them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.control.power_shares import energy_used
from manager.host.doctor import energy_check
from manager.host.registry import HostPaths
from manager.host.resources import held_file
from manager.host.resources.host_counters import HostCounterFiles
from manager.host.resources.rapl_domains import LISTED_EVERY, RaplDomains
from manager.model.energy import EnergyCounter, EnergyPart
from manager.model.resource_use import HostCounters
from tests.host.conftest import descriptors
from tests.host.test_doctor_trees import look, subject_of, write

RANGE_UJ = 262_143_328_850
XEON = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "dram",
}
LAPTOP = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:1": "psys",
    "intel-rapl-mmio:0": "package-0",
}
EPYC = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core"}
DIES = {"intel-rapl:0": "package-0-die-0", "intel-rapl:1": "package-0-die-1"}


class Powercap:
    """A powercap tree: counters that only the kernel changes, and that begin again at 0 after their range."""

    def __init__(self, root: Path, zones: dict[str, str]) -> None:
        self.root, self.folder = root, root / "sys/class/powercap"
        self.zones = zones
        write(root, {f"sys/class/powercap/{name}/name": f"{kind}\n" for name, kind in zones.items()})
        write(root, {f"sys/class/powercap/{name}/max_energy_range_uj": f"{RANGE_UJ}\n" for name in zones})
        write(root, {"sys/class/powercap/intel-rapl/enabled": "1\n"})
        for name in zones:
            self.use(name, 0)

    def use(self, name: str, energy_uj: int) -> None:
        """So much so far, since the machine started."""
        with (self.folder / name / "energy_uj").open("w") as file:  # the same file, which is held open
            file.write(f"{energy_uj % RANGE_UJ}\n")

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name)


@pytest.fixture
def xeon(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path, XEON)


@pytest.fixture
def domains(xeon: Powercap) -> Iterator[RaplDomains]:
    opened = RaplDomains(HostPaths(xeon.root))
    yield opened
    opened.close()


def at(monotonic_s: float, energy: dict[str, EnergyCounter]) -> HostCounters:
    return HostCounters(monotonic_s, energy=energy)


@pytest.mark.parametrize(
    ("zones", "counted"),
    [
        (XEON, {"intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl:1:0"}),
        (LAPTOP, {"intel-rapl:0"}),
        (EPYC, {"intel-rapl:0"}),
        (DIES, {"intel-rapl:0", "intel-rapl:1"}),
        ({"intel-rapl:0": "psys"}, set()),
        ({}, set()),
    ],
)
def test_nothing_is_counted_twice(tmp_path: Path, zones: dict[str, str], counted: set[str]) -> None:
    assert RaplDomains(HostPaths(Powercap(tmp_path, zones).root)).read().keys() == counted


def test_counters_are_read_through_files_that_stay_open(xeon: Powercap, domains: RaplDomains) -> None:
    first = domains.read()
    held = descriptors()
    xeon.use("intel-rapl:0", 700_000_000)
    xeon.use("intel-rapl:1:0", 50_000_000)
    assert domains.read()["intel-rapl:0"] == EnergyCounter(EnergyPart.PACKAGE, 700_000_000, RANGE_UJ)
    used = energy_used(at(5.0, domains.read()), at(0.0, first))
    assert used == (700.0, 50.0, 5.0)
    assert descriptors() == held
    domains.close()
    assert descriptors() == held - len(XEON)


def test_a_counter_that_begins_again_at_0_loses_nothing(xeon: Powercap, domains: RaplDomains) -> None:
    xeon.use("intel-rapl:0", RANGE_UJ - 100_000_000)
    before = domains.read()
    xeon.use("intel-rapl:0", RANGE_UJ + 400_000_000)
    used = energy_used(at(5.0, domains.read()), at(0.0, before))
    assert used is not None
    assert used.package_j == pytest.approx(500.0)


def test_a_domain_that_goes_gives_no_energy_until_it_is_left_out(xeon: Powercap, domains: RaplDomains) -> None:
    """As where a processor goes offline: the kernel closes its files, and what is held answers ENODEV."""
    before = domains.read()
    xeon.remove("intel-rapl:1:0")
    xeon.remove("intel-rapl:1")
    domains.close()  # files of this tree outlive their names, those of the kernel's do not
    after = domains.read()
    assert after.keys() == {"intel-rapl:0", "intel-rapl:0:0"}
    assert energy_used(at(5.0, after), at(0.0, before)) is None
    assert energy_used(at(10.0, domains.read()), at(5.0, after)) == (0.0, 0.0, 5.0)


def test_domains_that_come_are_found_after_a_while(tmp_path: Path) -> None:
    domains = RaplDomains(HostPaths(tmp_path))
    assert domains.read() == {}
    Powercap(tmp_path, EPYC)
    found = [domains.read().keys() for _ in range(LISTED_EVERY)]
    assert found[-2:] == [set(), {"intel-rapl:0"}]


def test_what_a_user_may_not_read_is_left_out_and_said(xeon: Powercap, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets only root read energy, since Linux 5.10 (CVE-2020-8694); root reads all of a tree of files."""
    opened = os.open

    def refuse(path: str | os.PathLike[str], *arguments: int) -> int:
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(held_file.os, "open", refuse)
    assert RaplDomains(HostPaths(xeon.root)).read() == {}


@pytest.mark.parametrize("text", ["", "many\n"])
def test_a_domain_without_sense_is_left_out(xeon: Powercap, text: str) -> None:
    write(xeon.root, {"sys/class/powercap/intel-rapl:0/energy_uj": text})
    write(xeon.root, {"sys/class/powercap/intel-rapl:1/max_energy_range_uj": text or "0\n"})
    assert RaplDomains(HostPaths(xeon.root)).read().keys() == {"intel-rapl:0:0", "intel-rapl:1:0"}


def test_the_host_is_read_with_its_energy(xeon: Powercap) -> None:
    files = HostCounterFiles(HostPaths(xeon.root), dict)
    held = descriptors()
    assert files.read(()).energy.keys() == XEON.keys()
    files.close()
    assert descriptors() == held


@pytest.mark.parametrize(
    ("zones", "status", "said"),
    [
        (XEON, "works", "energy of 2 packages, and of the memory of 2"),
        (EPYC, "works", "energy of 1 package, memory not apart"),
        ({"intel-rapl:0": "psys"}, "missing", "is a package of RAPL"),
    ],
)
def test_the_doctor_says_whether_it_can_be_read(tmp_path: Path, zones: dict[str, str], status: str, said: str) -> None:
    found = look("rapl", subject_of(Powercap(tmp_path, zones).root))
    assert (found.status, said in found.detail) == (status, True), found


def test_the_doctor_says_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look("rapl", subject_of(tmp_path))
    assert (found.status, "no power zones" in found.detail) == ("missing", True), found
    Powercap(tmp_path, XEON)

    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(energy_check, "number_of", refuse)
    found = look("rapl", subject_of(tmp_path))
    assert (found.status, "only root may read" in found.detail) == ("unknown", True), found
