"""How long pCPUs may take to resume from idle, and the governors of their clocks."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from manager.errors import HostError
from manager.host.files import cpus_of, names_in, refused, text_of
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.power import ANOTHER_GOVERNOR, ANY_LATENCY, GOVERNORS, NO_LATENCY, PERFORMANCE, ClockDomain

LATENCY_FILE, GOVERNOR_FILE = "power/pm_qos_resume_latency_us", "scaling_governor"
_OFFERED, _CPUS = "scaling_available_governors", "related_cpus"
_POLICY = "policy"
_WORDS = {"0": ANY_LATENCY, "n/a": NO_LATENCY}
"""What the kernel calls them: Documentation/ABI/testing/sysfs-devices-power."""


class PowerKnobs(KnobFiles):
    """Latencies of the pCPUs ``cpus``, and governors of the clocks that any of them has, by the number of the policy.

    A latency binds the kernel's choice of idle states (drivers/cpuidle/governor.c, cpuidle_governor_latency_req), a
    governor that of frequencies.
    """

    def __init__(self, paths: HostPaths, cpus: Callable[[], CpuSet]) -> None:
        self._paths = paths
        self._cpus = cpus
        self._seen: CpuSet = frozenset()

    def keys(self, _vm: VmTarget | None) -> Iterable[KnobKey]:
        """A pCPU that goes offline keeps its latency, and the file of it."""
        self._seen |= self._cpus()
        latencies = (KnobKey(HOST_UUID, Knob.RESUME_LATENCY, cpu) for cpu in sorted(self._seen))
        return (*latencies, *(KnobKey(HOST_UUID, Knob.GOVERNOR, number) for number in self.domains()))

    def domains(self) -> Mapping[int, ClockDomain]:
        """The clocks of these pCPUs by the number of the policy, without those that are offline. Raises HostError."""
        found: dict[int, ClockDomain] = {}
        with refused("read the policies of clock frequency"):
            for name in names_in(self._paths.cpufreq):
                number, folder = name.removeprefix(_POLICY), self._paths.cpufreq / name
                if number.isdecimal() and name != number:
                    with unless_offline():
                        found[int(number)] = ClockDomain(_cpus_in(folder), offers_performance(folder))
        managed = self._cpus()
        return {number: domain for number, domain in sorted(found.items()) if domain.cpus & managed}

    def held(self, key: KnobKey, _vm: VmTarget | None) -> int | None:
        text: str | None = None
        with refused(f"{key.knob} {key.index}"), unless_offline():
            text = text_of(self._file(key))
        if text is None:
            return None
        if key.knob is Knob.GOVERNOR:
            return GOVERNORS.index(text) if text in GOVERNORS else ANOTHER_GOVERNOR
        try:
            return _WORDS[text] if text in _WORDS else int(text)
        except ValueError as error:
            raise HostError(f"resume latency of pCPU {key.index}: {error}", errno.EIO) from error

    def put(self, key: KnobKey, value: KnobValue, _vm: VmTarget | None) -> None:
        number = checked_number(key, value)
        names = {word: text for text, word in _WORDS.items()}
        text = GOVERNORS[number] if key.knob is Knob.GOVERNOR else names.get(number, str(number))
        with refused(f"{key.knob} {key.index}"):
            self._file(key).write_text(text)

    def _file(self, key: KnobKey) -> Path:
        if key.knob is Knob.GOVERNOR:
            return self._paths.cpufreq / f"{_POLICY}{key.index}" / GOVERNOR_FILE
        return self._paths.cpu(key.index) / LATENCY_FILE


@contextlib.contextmanager
def unless_offline() -> Iterator[None]:
    """Goes on without what the block reads of a policy whose pCPUs are all offline, as after SMT was switched off: the
    kernel keeps its folder, and answers EBUSY (drivers/cpufreq/cpufreq.c, show). Raises other OSErrors.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def _cpus_in(folder: Path) -> CpuSet:
    """The pCPUs of a policy: numbers with spaces between, none of one that went."""
    try:
        return cpus_of(folder / _CPUS)
    except ValueError:
        return frozenset(int(number) for number in (text_of(folder / _CPUS) or "").split() if number.isdecimal())


def offers_performance(folder: Path) -> bool:
    """Whether a policy has the governor that asks for the highest frequency. Raises OSError."""
    return GOVERNORS[PERFORMANCE] in (text_of(folder / _OFFERED) or "").split()
