"""The most that an agent does to its host, whatever the manager assigns: in its own settings, out of others' reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from manager.model.host import KnobKey, KnobValue
from manager.model.records import Knob
from manager.model.registration import Mode
from manager.model.scheduling import is_real_time


class Control(StrEnum):
    """What can be done to a host, in the words of the settings ``allow`` and ``deny``.

    ``mount``: to mount resctrl, which ``cache`` needs where it is not mounted. ``nice``: nice values of vCPUs.
    """

    WEIGHT = "weight"
    PIN = "pin"
    IDLE = "idle"
    QUOTA = "quota"
    NICE = "nice"
    WARP = "warp"
    CACHE = "cache"
    REAL_TIME = "real-time"
    SCHEDULER = "scheduler"
    INTERRUPTS = "interrupts"
    MOUNT = "mount"


RISKY = frozenset({Control.REAL_TIME, Control.SCHEDULER, Control.INTERRUPTS, Control.MOUNT})
"""What reaches beyond registered VMs, or can take a pCPU from all others: only where it is allowed."""
USUAL = frozenset(Control) - RISKY
LEAST_PCPUS = 0.1

_CONTROLS: Mapping[Knob, Control] = {
    Knob.IDLE: Control.IDLE,
    Knob.QUOTA: Control.QUOTA,
    Knob.WEIGHT: Control.WEIGHT,
    Knob.VCPU_PIN: Control.PIN,
    Knob.EMULATOR_PIN: Control.PIN,
    Knob.IOTHREAD_PIN: Control.PIN,
    Knob.IRQ_AFFINITY: Control.INTERRUPTS,
    Knob.WARP: Control.WARP,
    Knob.BVT_WARP: Control.WARP,
    Knob.GROUP_IDENTITY: Control.WARP,
    Knob.SLICE: Control.WARP,
    Knob.SCHEDULER: Control.SCHEDULER,
    Knob.SCHEDULING: Control.NICE,
    Knob.RT_RUNTIME: Control.REAL_TIME,
    Knob.VCPU_RT_RUNTIME: Control.REAL_TIME,
    Knob.CACHE_WAYS: Control.CACHE,
    Knob.CACHE_GROUP: Control.CACHE,
}


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
        control = _CONTROLS[key.knob]
        if key.knob is Knob.SCHEDULING and isinstance(value, int) and is_real_time(value):
            control = Control.REAL_TIME
        return "" if control in self.allowed else f"{LIMITED}: {self.how_to_allow(control)}"

    def how_to_allow(self, control: Control) -> str:
        """Which setting forbids something that is not allowed."""
        return f"allow has no {control}" if control in RISKY else f"deny has {control}"

    def in_words(self) -> tuple[str, ...]:
        """What this agent will not do."""
        denied = [control for control in Control if control not in self.allowed]
        told = [f"mode at most {self.max_mode}"] if self.max_mode is not Mode.ENFORCE else []
        told += [f"not allowed: {', '.join(denied)}"] if denied else []
        told += [f"VMs limited to {self.min_pcpus:g} pCPUs or more"] if self.min_pcpus else []
        return tuple(told)


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
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(one for one in Control if one in known)}")
    return frozenset(map(Control, names))
