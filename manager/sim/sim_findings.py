"""What a simulated host has of what the doctor asks for; every detail says that it is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from manager.model.finding import Finding, FindingStatus
from manager.sim.scenario import Scenario

_NONE = "nothing to do: it is not simulated"
_Row = tuple[str, str, str, FindingStatus, bool, str, str]


class SimExaminer:
    """The ``Examiner`` of a simulated host. The findings have the ids of the doctor's, see docs/reference/doctor.md."""

    def __init__(self, scenario: Scenario) -> None:
        """Of a host in that scenario."""
        self._scenario = scenario

    def look(self) -> tuple[Finding, ...]:
        """Always the same."""
        works, missing = FindingStatus.WORKS, FindingStatus.MISSING
        name, version, pcpus = self._scenario.name, self._scenario.cgroup, self._scenario.pcpus
        warned = f"a model of a host, scenario {name}: nothing that it shows was measured"
        return tuple(
            Finding(one, area, title, status, essential, f"simulated: {detail}", advice)
            for one, area, title, status, essential, detail, advice in (
                ("kernel", "Host", "Kernel", FindingStatus.WARNING, False, warned, "run an agent on a KVM host"),
                ("cgroup", "CPU weights", "CPU controller", works, True, f"cgroup v{version}, {pcpus} pCPUs", ""),
                ("cpu-weight", "CPU weights", "Weights are taken", works, True, "taken and read back", ""),
                ("cpu-weight-acts", "CPU weights", "Weights act", works, False, "they share the pCPUs", ""),
                (
                    "cpu-idle",
                    "CPU weights",
                    "Idle class for batch",
                    FindingStatus.DEGRADED,
                    False,
                    "taken, but VMs in it do not yield any sooner than with the least weight",
                    _NONE,
                ),
                ("cpu-quota", "CPU weights", "Limits", missing, False, "no limits", _NONE),
                ("affinity", "Pinning", "Pinning of threads", works, True, "vCPUs stay where they are pinned", ""),
                ("sched-ext", "Warp", "sched_ext", missing, False, "no warp", _NONE),
                *self._cache(),
                ("libvirt", "Virtualisation", "libvirt", works, True, "a model of libvirtd", ""),
            )
        )

    def _cache(self) -> Iterator[_Row]:
        works, missing, spec = FindingStatus.WORKS, FindingStatus.MISSING, self._scenario.cache
        ways = f"{spec.ways} ways in each of {spec.domains} domains" if spec else "no caches"
        for one, title, there, detail in (
            ("cache-allocation", "Cache allocation", spec is not None, ways),
            ("memory-bandwidth", "Memory bandwidth", spec is not None and spec.mba is not None, "a model of limits"),
            ("cache-monitoring", "Cache monitoring", spec is not None and spec.rmids > 0, "a model of counters"),
        ):
            if there:
                yield one, "Cache", title, works, False, detail, ""
            elif spec or one == "cache-allocation":
                yield one, "Cache", title, missing, False, "no caches" if spec is None else "none", _NONE

    def close(self) -> None:
        """A look takes no time."""
