"""Whether pCPUs take a limit of resume latency, and have the governor of the highest frequency: nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping

from manager.errors import HostError
from manager.host.doctor.check import CheckResult, Subject, ignored, missing, works
from manager.host.files import names_in
from manager.host.power_knobs import PowerKnobs
from manager.model.cpus import format_cpus
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.power import ANOTHER_GOVERNOR

_WITHOUT_PM = "use a kernel with CONFIG_PM, on hardware"


def resume_latency(subject: Subject) -> CheckResult:
    """The limit that a managed pCPU has is written again. Raises OSError, HostError, ValueError."""
    cpus = subject.managed_online()
    files = PowerKnobs(subject.paths, lambda: cpus)
    held = {key: value for key, value in files.read(None).items() if key.knob is Knob.RESUME_LATENCY}
    if not held:
        return missing("pCPUs have no pm_qos_resume_latency_us", _WITHOUT_PM)
    refusal = _written_again(files, held)
    if refusal:
        return ignored(f"the limit that a pCPU has cannot be written: {refusal}", _WITHOUT_PM)
    idle = {cpu for cpu in cpus if names_in(subject.paths.cpu(cpu) / "cpuidle")}
    if not idle:
        return ignored("limits are taken, and the kernel chooses no idle states here", "nothing to do: none is slow")
    return works(f"limits are taken, and idle states chosen by them on pCPUs {format_cpus(frozenset(idle))}")


def governor(subject: Subject) -> CheckResult:
    """The governor that a managed pCPU has is written again. Raises OSError, HostError, ValueError."""
    cpus = subject.managed_online()
    files = PowerKnobs(subject.paths, lambda: cpus)
    domains = files.domains()
    if not domains:
        return missing("the kernel does not change the clock frequency", "nothing to do: the hardware does, or nobody")
    without = [number for number, domain in domains.items() if not domain.performance]
    if without:
        return missing(f"no governor `performance` on {len(without)} of {len(domains)} policies", "load its module")
    governors = {key: value for key, value in files.read(None).items() if key.knob is Knob.GOVERNOR}
    refusal = _written_again(files, {key: value for key, value in governors.items() if value != ANOTHER_GOVERNOR})
    if refusal:
        return ignored(f"the governor that a pCPU has cannot be written: {refusal}", "see the kernel's log")
    return works(f"`performance` can be set on {len(domains)} policies")


def _written_again(files: PowerKnobs, held: Mapping[KnobKey, KnobValue]) -> str:
    """Why what the first of these holds cannot be written again, empty where it can."""
    for key, value in held.items():
        try:
            return "" if files.write(key, value, None) == value else "another one was read back"
        except HostError as error:
            return str(error)
    return ""
