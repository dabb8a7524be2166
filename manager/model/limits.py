"""The most that an agent does to its host, whatever the manager assigns: in its own settings, out of others' reach."""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.knob_spec import Control, KnobValue
from manager.model.knobs import KnobKey
from manager.model.registration import Mode

RISKY = frozenset(
    {Control.REAL_TIME, Control.SCHEDULER, Control.INTERRUPTS, Control.POWER, Control.MOUNT, Control.MIGRATE}
)
"""What reaches beyond registered VMs, or can take a pCPU from all others: only where it is allowed."""
USUAL = frozenset(Control) - RISKY
LEAST_PCPUS = 0.1


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """``min_pcpus``: no VM is limited to less CPU time than that of so many pCPUs."""

    max_mode: Mode = Mode.ENFORCE
    allowed: frozenset[Control] = USUAL
    min_pcpus: float = LEAST_PCPUS

    def refusal(self, key: KnobKey, value: KnobValue) -> str:
        """Why a knob must not be given a value, empty where it may. The last word before a write."""
        if self.max_mode is not Mode.ENFORCE:
            return f"{LIMITED}: max_mode = {self.max_mode}"
        control = key.knob.spec.control_for(value)
        return "" if control in self.allowed else f"{LIMITED}: {self.how_to_allow(control)}"

    def how_to_allow(self, control: Control) -> str:
        """Which setting forbids something that is not allowed."""
        return f"allow has no {control}" if control in RISKY else f"deny has {control}"

    def in_words(self) -> tuple[str, ...]:
        """What this agent will not do."""
        denied = [control for control in Control if control not in self.allowed]
        words = [f"mode at most {self.max_mode}"] if self.max_mode is not Mode.ENFORCE else []
        words += [f"not allowed: {', '.join(denied)}"] if denied else []
        words += [f"VMs limited to {self.min_pcpus:g} pCPUs or more"] if self.min_pcpus else []
        return tuple(words)


LIMITED = "limited by this agent's settings"
DEFAULT_LIMITS = AgentLimits()
EVERYTHING = AgentLimits(allowed=frozenset(Control), min_pcpus=0.0)
"""For hosts where nothing can be harmed, such as simulated ones."""


def parse_allow(text: str) -> frozenset[Control]:
    """The setting ``allow``: some of what is not usual. Raises ValueError."""
    return _controls(text, RISKY)


def parse_deny(text: str) -> frozenset[Control]:
    """The setting ``deny``: any of all. Raises ValueError."""
    return _controls(text, frozenset(Control))


def _controls(text: str, known: frozenset[Control]) -> frozenset[Control]:
    names = frozenset(filter(None, (part.strip() for part in text.split(","))))
    unknown = sorted(names - known)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(control for control in Control if control in known)}")
    return frozenset(map(Control, names))
