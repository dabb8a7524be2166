"""A simulated host in step with the clock, for `equipoise run --simulate`."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from manager.model.host import Capabilities, CpuTimes, Discovery, VmInstance, VmState
from manager.model.knobs import Family, KnobKey, KnobValue
from manager.model.law import Law
from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.window import Window
from manager.sim.live_cache import LiveCache
from manager.sim.scenario import Scenario
from manager.sim.sim_host import SimHost
from manager.sim.telemetry import SimTelemetry
from manager.sim.world import World

KEEP_S = 600.0
_LONGEST_GAP_S = 60.0
_SET_BACK_S = 1.0


class LiveSimulation:
    """Advances a world as time passes, whenever somebody looks: it needs no thread of its own. Thread-safe.

    With a ``speed`` above 1 the world's seconds pass faster: loads change sooner, and rates and CPU times are shown per
    second of the world, so that rates and shares look as at speed 1; response times are those of the world.
    """

    def __init__(
        self, scenario: Scenario, speed: float = 1.0, now: Callable[[], float] = time.time, seed: int | None = None
    ) -> None:
        """``now`` answers seconds since the epoch. Raises ValueError for a speed outside 0.1 to 100."""
        if not 0.1 <= speed <= 100:
            raise ValueError(f"speed = {speed!r} is refused: use 0.1 to 100")
        self.scenario = scenario
        self.speed = speed
        self._now = now
        self._world = World(scenario, seed)
        self._lock = threading.RLock()
        self._begin_s = self._at_s = now()
        self._behind_s = 0.0
        self._slot_s = scenario.interval_s
        self._slot_begin_s = self._begin_s
        self._sim_host = SimHost(self._world, speed)
        self._sim_telemetry = SimTelemetry(self._world, KEEP_S)
        self.host = LiveHost(self, self._sim_host)
        self.telemetry = LiveTelemetry(self, self._sim_telemetry)

    def look(self) -> threading.RLock:
        """Bring the world up to now, and return the lock under which it may then be looked at.

        After a long time in which nobody looked (the machine slept), or where the clock was set, the world goes on from
        where it was.
        """
        with self._lock:
            now_s = self._now()
            gap_s = now_s - self._at_s
            if gap_s > _LONGEST_GAP_S or gap_s < 0:
                self._behind_s += gap_s
                self._slot_begin_s = now_s
                if gap_s < -_SET_BACK_S:
                    self._sim_telemetry.forget_slots()
            else:
                while (end_s := self._slot_end()) <= now_s:
                    self._advance(end_s)
                    slots = self._world.close_slot()
                    self._sim_telemetry.add(slots, self._slot_begin_s, end_s, self.speed)
                    self._slot_begin_s = end_s
                self._advance(now_s)
            self._at_s = now_s
            if now_s > self._slot_begin_s:
                self._sim_telemetry.show(self._slot_begin_s, now_s, self.speed)
            return self._lock

    def set_slot(self, slot_s: float) -> None:
        """Count response times in slots of another length, from the next one on."""
        with self.look():
            self._slot_s = slot_s

    def _slot_end(self) -> float:
        number = math.floor(self._slot_begin_s / self._slot_s + 1e-6) + 1
        return number * self._slot_s

    def _advance(self, now_s: float) -> None:
        self._world.run_until((now_s - self._begin_s - self._behind_s) * self.speed)


class LiveHost:
    """The ``HostPort`` of a live simulation."""

    def __init__(self, live: LiveSimulation, host: SimHost) -> None:
        """Made by the simulation."""
        self._live = live
        self._host = host
        self._boot_id = str(uuid.uuid4())

    @property
    def capabilities(self) -> Capabilities:
        """As of the scenario."""
        return self._host.capabilities

    @property
    def connected(self) -> bool:
        """Whether the simulated libvirtd is there."""
        with self._live.look():
            return self._host.connected

    @property
    def discovery(self) -> Discovery:
        """As of the simulated host."""
        return self._host.discovery

    @property
    def boot_id(self) -> str:
        """New with each simulation: what an earlier one had changed is gone."""
        return self._boot_id

    @property
    def itself(self) -> VmInstance:
        """As of the simulated host."""
        return self._host.itself

    @property
    def cache(self) -> LiveCache | None:
        """None where the scenario has none."""
        return None if self._host.cache is None else LiveCache(self._live.look, self._host.cache)

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:
        """As of the simulated host: none."""
        return self._host.knobs(instance, family)

    def warp_counters(self) -> Mapping[str, int]:
        """As of the simulated host: none."""
        return self._host.warp_counters()

    def running(self) -> Mapping[str, VmInstance]:
        """The running VMs by UUID."""
        with self._live.look():
            return self._host.running()

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """None: nothing of a simulated VM comes over a network."""
        return {}

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these runs of VMs are over."""
        with self._live.look():
            return self._host.ended(instances)

    def read(self, instance: VmInstance) -> VmState:
        """Settings and counters now. Raises VmVanished, HostError."""
        with self._live.look():
            return self._host.read(instance)

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob. Raises VmVanished, HostError."""
        with self._live.look():
            return self._host.write(instance, key, value)

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Nothing is held open."""

    def cpu_times(self) -> CpuTimes:
        """CPU time of all pCPUs."""
        with self._live.look():
            return self._host.cpu_times()


class LiveTelemetry:
    """The ``Telemetry`` of a live simulation."""

    def __init__(self, live: LiveSimulation, telemetry: SimTelemetry) -> None:
        """Made by the simulation."""
        self._live = live
        self._telemetry = telemetry

    def configure(
        self, applications: Sequence[Application], slot_s: float, addresses: Mapping[str, frozenset[str]]
    ) -> None:
        """Tell of these applications only, in slots of that length."""
        self._live.set_slot(slot_s)
        with self._live.look():
            self._telemetry.configure(applications, slot_s, addresses)

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots of the last minutes by application, oldest first; the newest ends now."""
        with self._live.look():
            return self._telemetry.slots()

    def recent(self) -> tuple[Window, ...]:
        """The slots that are still going on."""
        with self._live.look():
            return self._telemetry.recent()

    def closed(self) -> tuple[Window, ...]:
        """The slots that ended since the last call."""
        with self._live.look():
            return self._telemetry.closed()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """A simulated source for each application."""
        with self._live.look():
            return self._telemetry.statuses()

    def close(self) -> None:
        """Nothing runs by itself."""


def registrations(scenario: Scenario, host: str, policy: str) -> list[tuple[str, dict[str, object]]]:
    """Path and body of each PUT that registers the scenario with a manager, in order."""
    assignment = scenario.assignment(policy)
    bodies: list[tuple[str, dict[str, object]]] = [
        (f"/vms/{vm.name}", {"class": str(vm.vm_class), "libvirt_name": vm.name, "host": host}) for vm in assignment.vms
    ]
    for app in assignment.applications:
        body: dict[str, object] = {"tiers": [{"name": tier.name, "vms": list(tier.vms)} for tier in app.tiers]}
        if app.sla is not None:
            body["sla"] = dataclasses.asdict(app.sla)
        if app.sharing is not None:
            body["sharing"] = str(app.sharing)
        if app.cache is not None:
            body["cache"] = app.cache
        bodies.append((f"/applications/{app.name}", body))
    body = {"policy": policy, "pinning": scenario.pinning, "cache": str(assignment.host.cache)}
    if scenario.law != Law():
        body["law"] = dataclasses.asdict(scenario.law)
    return [*bodies, (f"/hosts/{host}", body)]
