"""Equipoise as the demonstration uses it: `equipoise run` in a process of its own, spoken to through REST alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.lab.commands import LabError, last_lines
from deploy.lab.demo.scene import Scene, Service
from manager.errors import ManagerUnavailable
from manager.model.knob_text import knob_name, value_shown
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind
from manager.model.warp import WarpUse
from manager.protocol.client import ManagerClient

HOST = "demo"
START_S = 60.0
SETTLE_S = 30.0
STOP_S = 60.0


class Equipoise:
    """A running service with its state in ``folder``, which must not hold an earlier one's."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        """Start it and wait until the agent has reported. Raises LabError when it does not come up."""
        self._scene = scene
        self.url = f"http://127.0.0.1:{_free_port()}"
        self.token_file = folder / "admin.token"
        self.log = folder / "equipoise.log"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {
            "EQUIPOISE_STATE_DIR": str(folder),
            "EQUIPOISE_LISTEN_PORT": self.url.rpartition(":")[2],
            "EQUIPOISE_AGENT_LISTEN_PORT": str(_free_port()),
            "EQUIPOISE_HOST_NAME": HOST,
            "EQUIPOISE_INTERVAL_S": str(scene.interval_s),
            "EQUIPOISE_MANAGED_CPUS": ",".join(map(str, sorted(scene.managed_cpus))),
        }
        self.metrics_url = f"http://127.0.0.1:{environment['EQUIPOISE_AGENT_LISTEN_PORT']}/metrics"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "manager.cli", "run"],
                env=inherited | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demonstration, which then ends it in order
            )
        self._client: ManagerClient | None = None
        try:
            self._wait(self._has_reported, START_S, "its agent to report")
        except BaseException:  # Ctrl-C, too: nobody else could end it
            with suppress(LabError):  # which tells less than what went wrong
                self.stop()
            raise

    @property
    def client(self) -> ManagerClient:
        """Speaks with the manager as its admin."""
        if self._client is None:
            self._client = ManagerClient(self.url, self.token_file.read_text().strip())
        return self._client

    def register(self) -> None:
        """Register the scene: its VMs, and its applications with their SLAs."""
        for service in self._scene.services:
            self.client.request("PUT", f"/vms/{service.vm.name}", body={"class": "critical", "host": HOST})
        for vm in (*self._scene.batch, *filter(None, [self._scene.late])):
            self.client.request("PUT", f"/vms/{vm.name}", body={"class": "batch", "host": HOST})
        self.promise(self._scene.services)

    def promise(self, services: Iterable[Service]) -> None:
        """Register the applications, anew if there are others of their names."""
        sources = [{"name": "taps", "type": "tap"}] if self._scene.tapped else []
        for service in services:
            body = {
                "tiers": [{"name": service.name, "vms": [service.vm.name]}],
                "sla": {
                    "response_time_ms": service.sla_ms,
                    "percentile": 95,
                    "max_rate_rps": service.max_rate_rps,
                },
                "sources": sources,
            }
            self.client.request("PUT", f"/applications/{service.name}", body=body)

    def control(self, settings: Mapping[str, Any]) -> None:
        """Set these of the host, all others to their defaults, and wait until that is in force."""
        host = self.set_host(settings)
        policy, warp, before = host["policy"], WarpUse(host["warp"]), self._tick()["number"]

        def in_force() -> bool:
            tick = self._tick()
            settled = (
                tick["policy"] == policy
                and tick["number"] >= before + 5
                and bool(tick["warp"]) == (warp is not WarpUse.OFF)
            )
            running = [vm for vm in self.client.items("/vms") if vm["status"]]
            return bool(settled and len(running) == len(self._scene.vms))

        self._wait(in_force, SETTLE_S, f"the policy {policy} to be in force")

    def set_host(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Set these of the host, all others to their defaults; the agent learns of it within a second."""
        host: dict[str, Any] = self.client.request("PUT", f"/hosts/{HOST}", body=dict(settings)).json()
        return host

    def push(self, service: str, interval: Mapping[str, Any]) -> None:
        """Send an interval's response times, as a proxy or an application would."""
        start, end = (datetime.fromtimestamp(interval[f"{edge}_epoch_s"], UTC).isoformat() for edge in ("start", "end"))
        body = {"start": start, "end": end, "buckets": interval["buckets"]}
        self.client.request("POST", f"/applications/{service}/samples", body=body)

    def weights(self) -> dict[str, int]:
        """The CPU weight in force of each VM that runs, by name."""
        return {
            vm["name"]: int(knob["value"])
            for vm in self.client.items("/vms")
            if vm["status"]
            for knob in vm["status"]["knobs"]
            if knob["knob"] == "weight"
        }

    def knobs(self, wanted: Collection[Knob]) -> tuple[str, ...]:
        """Those settings of VMs that run and are not as usual, in words."""
        return tuple(
            f"{vm['name']}: {knob_name(knob['knob'], knob['index'])} {value_shown(knob['knob'], knob['value'])}"
            for vm in self.client.items("/vms")
            for knob in (vm["status"] or {}).get("knobs", ())
            if knob["knob"] in wanted and knob["value"] != str(Knob(knob["knob"]).spec.value.usual)
        )

    def sla_states(self) -> dict[str, str]:
        """State of each application's SLA as the manager sees it now."""
        return {item["name"]: item["sla_state"] for item in self.client.items("/applications")}

    def warp(self) -> dict[str, Any] | None:
        """By what warps are given now, and to how many VMs; None: they are switched off."""
        warp: dict[str, Any] | None = self._tick()["warp"]
        return warp

    def warp_offers(self) -> list[dict[str, Any]]:
        """The mechanisms for warps that the agent looked for."""
        offers: list[dict[str, Any]] = self.client.get(f"/hosts/{HOST}")["capabilities"]["warps"]
        return offers

    def needs_batch_group(self) -> bool | None:
        """Whether this kernel needs a batch group, once the agent's doctor has tried that; None: it cannot tell."""
        self._wait(lambda: bool(self.client.get(f"/hosts/{HOST}/findings")), START_S, "the doctor's findings")
        before = self._tick()["number"]
        self._wait(lambda: self._tick()["number"] > before + 1, SETTLE_S, "a tick after these")
        needed: bool | None = self._host()["capabilities"]["needs_batch_group"]
        return needed

    def decisions(self) -> int:
        """How many decisions were recorded."""
        return len(self.client.items("/decisions"))

    def steps(self, since_s: float, until_s: float) -> dict[str, int]:
        """How many changes took effect between two times (seconds since the epoch), by knob."""
        since, until = (datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (since_s, until_s))
        records = self.client.items("/decisions", since=since, until=until)
        return dict(Counter(record["knob"] for record in records if record["outcome"] == OutcomeKind.APPLIED))

    def stop(self) -> None:
        """End it with SIGTERM, on which it restores everything. Raises LabError when that does not end cleanly."""
        if self._client is not None:
            self._client.close()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            status = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            raise LabError(f"equipoise did not end within {STOP_S:g} s of SIGTERM; see {self.log}") from error
        if status != 0:
            raise LabError(f"equipoise ended with status {status}; its log says\n{last_lines(self.log.read_text())}")

    @property
    def pid(self) -> int:
        """Process id of `equipoise run`."""
        return self._process.pid

    def _host(self) -> dict[str, Any]:
        host: dict[str, Any] = self.client.get(f"/hosts/{HOST}")
        return host

    def _tick(self) -> dict[str, Any]:
        tick: dict[str, Any] = self._host()["tick"]
        return tick

    def _has_reported(self) -> bool:
        return self.token_file.exists() and bool(self.client.get(f"/hosts/{HOST}")["tick"])

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        reason = ""
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LabError(f"equipoise ended; its log says\n{last_lines(self.log.read_text())}")
            try:
                if condition():
                    return
            except ManagerUnavailable as error:
                reason = f" ({error})"
            time.sleep(0.2)
        raise LabError(f"waited {timeout_s:g} s in vain for {what}{reason}; see {self.log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
