"""A simulated host in step with the clock, for `equipoise run --simulate`."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from manager.model.fields import adapter_of
from manager.model.law import Law
from manager.model.registration import Mode
from manager.model.rules import PlacementRules
from manager.sim.scenario import Scenario, VmSettings
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
        self._looks = 0
        self._world.look = self._look
        self.host = SimHost(self._world, speed, str(uuid.uuid4()))  # another boot: what earlier ones changed is gone
        self.telemetry = SimTelemetry(self._world, KEEP_S, self._set_slot)

    @contextmanager
    def _look(self) -> Iterator[None]:
        """Bring the world up to now, where it stays meanwhile."""
        with self._lock:
            if not self._looks:
                self._catch_up(self._now())
            self._looks += 1
            try:
                yield
            finally:
                self._looks -= 1

    def _catch_up(self, now_s: float) -> None:
        """After a long time in which nobody looked (the machine slept), or where the clock was set, the world goes on
        from where it was.
        """
        gap_s = now_s - self._at_s
        if gap_s > _LONGEST_GAP_S or gap_s < 0:
            self._behind_s += gap_s
            self._slot_begin_s = now_s
            if gap_s < -_SET_BACK_S:
                self.telemetry.forget_slots()
        else:
            while (end_s := self._slot_end()) <= now_s:
                self._advance(end_s)
                self.telemetry.add(self._world.close_slot(), self._slot_begin_s, end_s, self.speed)
                self._slot_begin_s = end_s
            self._advance(now_s)
        self._at_s = now_s
        if now_s > self._slot_begin_s:
            self.telemetry.show(self._slot_begin_s, now_s, self.speed)

    def _set_slot(self, slot_s: float) -> None:
        """Count response times in slots of another length, from the next one on."""
        self._slot_s = slot_s

    def _slot_end(self) -> float:
        number = math.floor(self._slot_begin_s / self._slot_s + 1e-6) + 1
        return number * self._slot_s

    def _advance(self, now_s: float) -> None:
        self._world.run_until((now_s - self._begin_s - self._behind_s) * self.speed)


def registrations(scenario: Scenario, host: str, policy: str) -> list[tuple[str, dict[str, object]]]:
    """Path and body of each PUT that registers the scenario with a manager, in order."""
    assignment = scenario.assignment(policy)
    bodies: list[tuple[str, dict[str, object]]] = [
        (
            f"/vms/{vm.name}",
            {"class": str(vm.vm_class), "libvirt_name": vm.name, "host": host, **_settings(scenario, vm.name)},
        )
        for vm in assignment.vms
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
    if scenario.mode is not Mode.ENFORCE:
        body["mode"] = str(scenario.mode)
    if scenario.batch_idle:
        body["batch_idle"] = True
    if scenario.placement != PlacementRules():
        body["placement"] = adapter_of(PlacementRules).dump_python(scenario.placement, mode="json", by_alias=True)
    if scenario.law != Law():
        body["law"] = dataclasses.asdict(scenario.law)
    return [*bodies, (f"/hosts/{host}", body)]


def _settings(scenario: Scenario, vm: str) -> dict[str, object]:
    """What a VM is registered with beside its class."""
    own = adapter_of(VmSettings).dump_python(scenario.settings_of(vm), mode="json", exclude_none=True)
    return {name: value for name, value in own.items() if name not in {"vm", "initial_weight"}}
