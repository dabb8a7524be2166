"""`equipoise profile load --drive` against the interface, with a service whose response times follow its load."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, profile_load
from manager.cli.batch_hold import hold, release
from manager.load import HttpOptions, IntervalResult, LoadError, LoadResult, LoadSpec
from manager.model.histogram import Histogram
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, START, Api, notice_silence, report, status, tick, tick_of, window
from tests.api.sweeping import InProcess

FULL_RPS = 1000.0
"""The most that the service can do; half as much beside a batch VM."""
TARGET_MS = 13.0
TARGET = "http://192.0.2.10/"
Before = Callable[[int], object]


@dataclass
class Service:
    """Runs a load in no time, while the clock of the interface passes and an agent reports.

    ``before`` is called with the number of each load as it begins. ``limited``: rates that cannot be generated.
    """

    api: Api
    before: Before = lambda _number: None
    limited: float = 1e9
    other_ms: float = 5.0
    specs: list[LoadSpec] = field(default_factory=list)
    fall_silent: bool = False

    @property
    def beside(self) -> bool:
        return self.api.ok("GET", "/vms/hog")["max_pcpus"] is None

    def report(self) -> None:
        now = int(self.api.clock.now_s - START.timestamp())
        vms = [
            {"vm": name, "cpu_share": share, "run_delay_share": 0.0, "weight": 100, "mode": "enforce"}
            for name, share in (("web-1", 0.2), ("hog", 0.5 if self.beside else 0.0))
        ]
        buckets = {str(key): many for key, many in Histogram.of([self.other_ms * 1000] * 500).buckets.items()}
        body = report(
            vms=[status("web-1"), status("hog"), status("mail-1")],
            ticks=[tick_of(now, vms=vms)],
            tick=tick(number=now),
            windows=[window("mail", end=now, count=500, buckets=buckets)],
        )
        self.api.ok("POST", f"/hosts/{HOST}/report", body)

    def run(
        self,
        spec: LoadSpec,
        on_interval: Callable[[IntervalResult], None] | None = None,
        stop: threading.Event | None = None,
    ) -> LoadResult:
        self.before(len(self.specs))
        self.specs.append(spec)
        if stop is not None and stop.is_set():
            raise LoadError("stopped before the first request")
        full_rps = FULL_RPS / 2 if self.beside else FULL_RPS
        offered_rps = full_rps if spec.closed_loop else spec.schedule[0].rate_rps
        rate_rps = min(offered_rps, full_rps)
        time_ms = min(4 / (1 - rate_rps / full_rps), 1000) if rate_rps < full_rps else 1000.0
        seconds, lost = int(spec.schedule_s), round((offered_rps - rate_rps) * spec.schedule_s)
        self.api.clock.now_s += spec.warmup_s
        intervals = []
        for second in range(seconds):
            self.api.clock.now_s += 1
            if self.api.clock.now_s % 5 == 0 and not self.fall_silent:
                self.report()
            histogram = Histogram.of([time_ms * 1000] * round(rate_rps))
            interval = IntervalResult(
                second,
                second + 1,
                self.api.clock.now_s,
                round(offered_rps),
                round(rate_rps),
                {},
                histogram,
                Histogram(),
            )
            intervals.append(interval)
            if on_interval:
                on_interval(interval)
        whole = Histogram().merge(*(interval.histogram for interval in intervals))
        cpu_share = 0.1 if offered_rps < self.limited else 1.0
        errors = {"queue_timeout": lost} if lost else {}
        return LoadResult(
            spec, whole.count + lost, whole.count, errors, {}, seconds, seconds, whole, None, None, Histogram(), None,
            tuple(intervals), 1.0, cpu_share,
        )  # fmt: skip


@pytest.fixture
def service(sqlite_api: Api, monkeypatch: pytest.MonkeyPatch) -> Service:
    api = sqlite_api
    api.ok("PUT", f"/hosts/{HOST}", {})
    for name, kind in (("web-1", "critical"), ("mail-1", "critical"), ("hog", "batch")):
        api.ok("PUT", f"/vms/{name}", {"class": kind, "host": HOST})
    for name, vm in (("shop", "web-1"), ("mail", "mail-1")):
        tiers = [{"name": "web", "vms": [vm]}]
        api.ok("PUT", f"/applications/{name}", {"tiers": tiers, "sla": {"response_time_ms": TARGET_MS}})
    made = Service(api)
    made.report()

    @contextmanager
    def held(
        client: ManagerClient, _reach: object, vms: dict[str, float | None], _in_force: Callable[[], object]
    ) -> Iterator[None]:
        hold(client, vms)
        try:
            yield
        finally:
            release(client, vms)

    monkeypatch.setattr(profile_load, "connect", lambda _settings: ManagerClient("http://manager", "", InProcess(api)))
    monkeypatch.setattr(profile_load, "read_token", lambda _settings: "secret")
    monkeypatch.setattr(profile_load, "held", held)
    monkeypatch.setattr(profile_load, "run", made.run)
    return made


def invoke(*arguments: str, target: str = TARGET, application: str = "shop") -> Result:
    return CliRunner().invoke(main, ["profile", "load", application, "--drive", target, "--yes", *arguments])


def body_of(result: Result) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_peak_sweep_and_search(service: Service, tmp_path: Path) -> None:
    picture = tmp_path / "shop.svg"
    result = invoke("--json", "--picture", str(picture))
    assert result.exit_code == 0, result.output
    body = body_of(result)
    [one] = body["drive"]["passes"]
    assert (one["batch"], one["complete"], one["peak_rps"]) == ("as_is", True, FULL_RPS / 2)
    # 4 / (1 - x) = 13 at x = 0.692
    assert 0.672 * 500 <= one["qos_rps"] <= 0.692 * 500
    assert [load["purpose"] for load in one["loads"]] == ["peak", *["sweep"] * 10, *["search"] * 3]
    assert service.specs[0].closed_loop
    assert [spec.schedule[0].rate_rps for spec in service.specs[1:11]] == [50 * step for step in range(1, 11)]
    assert all(load["batch_share"] == pytest.approx(0.5) for load in one["loads"][1:])
    assert (body["step_s"], body["sla_ms"], body["percentile"]) == (1, TARGET_MS, 95)
    assert body["curves"]["beside"]["bands"] == body["curves"]["all"]["bands"]
    assert 300 <= body["curves"]["all"]["met_rps"] <= 346
    assert 300 <= body["curves"]["all"]["knee_rps"] <= 450
    assert picture.read_text().startswith("<?xml")


def test_the_table_and_what_it_means(service: Service) -> None:
    result = invoke("--seconds", "5")
    assert result.exit_code == 0, result.output
    assert "loads that were tried, batch VMs as they are" in result.output
    assert "Peak: 500 req/s." in result.output
    assert "Largest load that meets the SLA: 343.8 req/s; 343.8 req/s meets it, 350 req/s does not." in result.output
    assert re.search(
        r"^400 req/s: 400 req/s answered, p95 (19\.\d|20|20\.\d) ms, violated$", result.output, re.MULTILINE
    )
    assert re.search(r"^peak: 500 req/s answered, p95 [\d.]+ ms$", result.output, re.MULTILINE)


def test_batch_vms_are_held_first_and_released(service: Service) -> None:
    result = invoke("--hold-batch", "--json")
    assert result.exit_code == 0, result.output
    held, as_is = body_of(result)["drive"]["passes"]
    assert (held["batch"], held["peak_rps"], as_is["batch"], as_is["peak_rps"]) == ("held", 1000, "as_is", 500)
    assert held["qos_rps"] == pytest.approx(692, abs=20)
    assert as_is["qos_rps"] == pytest.approx(346, abs=20)
    # The sweep of both goes up to the larger peak, but not beyond what the service no longer takes.
    assert {load["offered_rps"] for load in as_is["loads"] if load["purpose"] == "sweep"} == {
        100,
        200,
        300,
        400,
        500,
        600,
    }
    assert [load["verdict"] for load in as_is["loads"] if load["offered_rps"] == 600] == ["unreached"]
    curves = body_of(result)["curves"]
    assert curves["without"]["met_rps"] > curves["beside"]["met_rps"]
    assert service.api.ok("GET", "/vms/hog")["max_pcpus"] is None
    assert '"max_pcpus": null}' in result.stderr


def test_it_goes_on_from_its_state(service: Service, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def interrupt(number: int) -> None:
        if number == 4:
            signal.raise_signal(signal.SIGINT)

    service.before = interrupt
    result = invoke("--state", str(state), "--json")
    assert result.exit_code == 1
    assert "it ended early: interrupted; stopped at sweep, 200 req/s" in result.stderr
    assert [len(one["loads"]) for one in body_of(result)["drive"]["passes"]] == [4]
    service.before = lambda _number: None
    count = len(service.specs)
    again = invoke("--state", str(state), "--json")
    assert again.exit_code == 0, again.output
    assert len(service.specs) == count + 10
    assert service.specs[count].schedule[0].rate_rps == 200
    uninterrupted = invoke("--json")
    passes = [body_of(one)["drive"]["passes"][0] for one in (again, uninterrupted)]
    assert passes[0]["qos_rps"] == passes[1]["qos_rps"]
    nothing_left = len(service.specs)
    assert invoke("--state", str(state)).exit_code == 0
    assert len(service.specs) == nothing_left


def test_it_stops_when_another_application_suffers(service: Service) -> None:
    def suffer(number: int) -> None:
        if number == 5:
            service.other_ms = 0.95 * TARGET_MS

    service.before = suffer
    result = invoke("--json")
    assert result.exit_code == 1
    assert f"other applications on {HOST} suffer: mail (at risk)" in result.stderr
    assert len(service.specs) == 6
    [one] = body_of(result)["drive"]["passes"]
    assert (one["complete"], len(one["loads"])) == (False, 6)
    assert invoke("--stop-when", "violated").exit_code == 0
    service.other_ms = 2 * TARGET_MS
    service.report()
    count = len(service.specs)
    result = invoke("--stop-when", "violated")
    assert "mail (violated)" in result.stderr
    assert len(service.specs) == count


def test_batch_vms_are_released_when_it_ends_early(service: Service) -> None:
    def suffer(number: int) -> None:
        assert service.api.ok("GET", "/vms/hog")["max_pcpus"] == 0.01
        if number == 2:
            service.other_ms = 2 * TARGET_MS

    service.before = suffer
    result = invoke("--hold-batch")
    assert "mail (violated)" in result.stderr
    assert service.api.ok("GET", "/vms/hog")["max_pcpus"] is None


def test_what_another_user_registers_meanwhile_stays(service: Service) -> None:
    def change(number: int) -> None:
        if number == 2:
            service.api.ok("PATCH", "/vms/hog", {"max_pcpus": 3})
            raise LoadError("it broke")

    service.before = change
    assert "it ended early: it broke" in invoke("--hold-batch").stderr
    assert service.api.ok("GET", "/vms/hog")["max_pcpus"] == 3


def test_a_host_that_goes_away_ends_it(service: Service) -> None:
    def leave(number: int) -> None:
        if number == 3:
            service.fall_silent = True
            service.api.clock.now_s += 600
            notice_silence(service.api)

    service.before = leave
    result = invoke("--json")
    assert result.exit_code == 1
    assert f"the agent of {HOST} does not report" in result.stderr
    assert len(body_of(result)["drive"]["passes"][0]["loads"]) == 4


def test_a_manager_that_goes_away_ends_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise ConnectionRefusedError("Connection refused")

    service.before = lambda number: monkeypatch.setattr(InProcess, "exchange", refuse) if number == 2 else None
    service.fall_silent = True
    service.api.ok("PATCH", "/vms/hog", {"max_pcpus": 2.0})
    monkeypatch.setattr(Service, "beside", False)
    result = invoke("--json")
    assert result.exit_code == 1
    assert "the manager at http://manager does not answer: Connection refused" in result.stderr
    assert len(body_of(result)["drive"]["passes"][0]["loads"]) == 2


def test_loads_that_cannot_be_generated_are_not_judged(service: Service) -> None:
    service.limited = 240
    result = invoke("--json")
    [one] = body_of(result)["drive"]["passes"]
    assert "above 80 %" in one["peak_why"]
    # At 300 req/s and more the generator was slow, but response times met the SLA even so.
    verdicts = {load["offered_rps"]: load["verdict"] for load in one["loads"]}
    assert (verdicts[300], verdicts[400], verdicts[500]) == ("met", "limited", "limited")
    assert one["why"] == "343.8 req/s meets it, 350 req/s could not be generated well enough"
    assert "the server may take more" in invoke().output


def test_a_target_below_what_an_idle_service_gives(service: Service) -> None:
    service.api.ok("PATCH", "/applications/shop", {"sla": {"response_time_ms": 1}})
    result = invoke("--json")
    [one] = body_of(result)["drive"]["passes"]
    assert one["qos_rps"] is None
    assert "the target is below what the service gives with hardly any load" in one["why"]


def test_without_an_sla_there_is_no_search(service: Service) -> None:
    service.api.ok("PATCH", "/applications/shop", {"sla": None})
    [one] = body_of(invoke("--json"))["drive"]["passes"]
    assert (one["qos_rps"], one["why"], len(one["loads"])) == (None, "it has no SLA to compare with", 11)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--since", "1h"), 2, "--since does not go with --drive"),
        (("--until", "1h"), 2, "--until does not go with --drive"),
        (("--seconds", "1"), 2, "'--seconds': 1.0 is not in the range 2<=x<=3600"),
        (("--set-share", "0.5"), 2, "--set-share is for memcached:// targets only"),
        (("--picture", "shop.bmp"), 2, "shop.bmp is refused: use a name that ends in .png, .svg, .pdf"),
        (("--state", "/proc/state"), 1, "--state /proc/state cannot be written"),
        (("--state", "/proc/version"), 1, "--state /proc/version is no state of a load profile"),
    ],
)
def test_bad_options(service: Service, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output


def test_options_that_make_load_need_a_target(service: Service) -> None:
    for arguments in (("--seconds", "5"), ("--keys", "7"), ("--hold-batch",), ("--yes",)):
        result = CliRunner().invoke(main, ["profile", "load", "shop", *arguments])
        assert (result.exit_code, f"{arguments[0]} goes with --drive only" in result.output) == (2, True)
    result = invoke(target="ftp://h/")
    assert (result.exit_code, "--drive ftp://h/ is refused: use http://HOST" in result.output) == (2, True)


def test_what_cannot_be_driven(service: Service, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert invoke("--state", str(state)).exit_code == 0
    result = invoke("--state", str(state), "--connections", "3")
    assert "is of a profile with connections = 64, not 3: use the same options" in result.output
    result = invoke("--state", str(state), "--hold-batch")
    assert "is of a profile with hold_batch = False, not True" in result.output
    assert "there is no application named 'bank'" in invoke(application="bank").output
    service.api.ok("PATCH", "/vms/hog", {"max_pcpus": 0.01})
    assert "hog is held already" in invoke("--hold-batch").output
    service.api.ok("PATCH", "/vms/hog", {"mode": "observe", "max_pcpus": None})
    hog = status("hog", mode="observe")
    service.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1"), hog], tick=tick(number=9999)))
    assert "hog cannot be held in mode observe" in invoke("--hold-batch").output
    service.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1")], tick=tick(number=10_000)))
    assert "no batch VM runs on" in invoke("--hold-batch").output
    service.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[], tick=tick(number=10_001)))
    assert "no agent sees a VM of shop running" in invoke().output


def test_it_asks_first(service: Service) -> None:
    result = CliRunner().invoke(main, ["profile", "load", "shop", "--drive", TARGET], input="n\n")
    assert result.exit_code == 1
    assert "Its SLA will be violated meanwhile" in result.output
    assert not service.specs


def test_the_load_is_as_described(service: Service) -> None:
    invoke("--connections", "7", "--pipeline", "3", "--seed", "5", "--timeout", "1", "--settle", "1")
    spec = service.specs[1]
    assert (spec.connections, spec.pipeline, spec.seed, spec.timeout_s, spec.warmup_s) == (7, 3, 5, 1, 1)
    assert spec.protocol == HttpOptions("/")
