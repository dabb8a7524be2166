"""`equipoise profile pair` against the interface, with two services that share what a host can do."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, profile_pair
from manager.cli.load_processes import MadeLoad
from manager.cli.options import Failure
from manager.control.load_search import OwnDelay
from manager.load import HttpOptions, LoadSpec, MemcachedOptions
from manager.model.histogram import Histogram
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, START, Api, report, status, tick, window
from tests.api.sweeping import InProcess

FULL_RPS = 1000.0
"""The most that one can do alone. Each slows the other by its part of this."""
TARGET_MS = 12.0
TARGETS = ("--drive-a", "http://192.0.2.10/", "--drive-b", "memcached://192.0.2.11")


@dataclass
class Services:
    """Runs loads in no time. ``before`` is called with the number of each run as it begins."""

    api: Api
    before: Callable[[int], object] = lambda _number: None
    other_ms: float = 5.0
    runs: list[list[LoadSpec]] = field(default_factory=list)

    def report(self) -> None:
        now = int(self.api.clock.now_s - START.timestamp())
        buckets = {str(key): many for key, many in Histogram.of([self.other_ms * 1000] * 500).buckets.items()}
        body = report(
            vms=[status(name) for name in ("web-1", "cache-1", "mail-1")],
            tick=tick(number=now),
            windows=[window("mail", end=now, count=500, buckets=buckets)],
        )
        self.api.ok("POST", f"/hosts/{HOST}/report", body)

    def run(self, specs: Sequence[LoadSpec], stop: threading.Event) -> list[MadeLoad]:
        self.before(len(self.runs))
        self.runs.append(list(specs))
        if stop.is_set():
            raise Failure("stopped before the first request")
        self.api.clock.now_s += 5
        self.report()
        if specs[0].closed_loop:
            return [MadeLoad(FULL_RPS, 5000, 5000, Histogram.of([5000.0] * 5000), False, OwnDelay(), "")]
        used = sum(spec.schedule[0].rate_rps for spec in specs) / FULL_RPS
        made = []
        for spec in specs:
            # The first one is the more sensitive.
            time_ms = 4 * (1 + used * (2 if isinstance(spec.protocol, HttpOptions) else 1))
            rate_rps = spec.schedule[0].rate_rps
            count = round(rate_rps * spec.schedule_s)
            made.append(MadeLoad(rate_rps, count, count, Histogram.of([time_ms * 1000] * count), False, OwnDelay(), ""))
        return made


@pytest.fixture
def services(sqlite_api: Api, monkeypatch: pytest.MonkeyPatch) -> Services:
    api = sqlite_api
    api.ok("PUT", f"/hosts/{HOST}", {})
    for name, vm in (("shop", "web-1"), ("search", "cache-1"), ("mail", "mail-1")):
        api.ok("PUT", f"/vms/{vm}", {"class": "critical", "host": HOST})
        tiers = [{"name": "web", "vms": [vm]}]
        api.ok("PUT", f"/applications/{name}", {"tiers": tiers, "sla": {"response_time_ms": TARGET_MS}})
    made = Services(api)
    made.report()
    monkeypatch.setattr(profile_pair, "connect", lambda _settings: ManagerClient("http://manager", "", InProcess(api)))
    monkeypatch.setattr(profile_pair, "run_loads", made.run)
    return made


def invoke(*arguments: str, first: str = "shop", second: str = "search") -> Result:
    return CliRunner().invoke(main, ["profile", "pair", first, second, *TARGETS, "--yes", *arguments])


def body_of(result: Result) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_the_map(services: Services, tmp_path: Path) -> None:
    picture = tmp_path / "pair.svg"
    result = invoke("--levels", "4", "--json", "--picture", str(picture))
    assert result.exit_code == 0, result.output
    body = body_of(result)
    assert body["peaks_rps"] == [FULL_RPS, FULL_RPS]
    # shop meets 12 ms up to 1,000 req/s of both together, search up to 2,000 req/s.
    assert {tuple(one["levels"]): one["verdict"] for one in body["map"]} == {
        (first, second): "both" if first + second <= 4 else "second" for first in range(1, 5) for second in range(1, 5)
    }
    assert body["most_together"] == [2, 2]
    assert [len(specs) for specs in services.runs] == [1, 1, *[2] * 16]
    assert isinstance(services.runs[2][0].protocol, HttpOptions)
    assert isinstance(services.runs[2][1].protocol, MemcachedOptions)
    assert picture.read_text().startswith("<?xml")


def test_the_table_and_what_it_means(services: Services) -> None:
    services.api.ok("PATCH", "/applications/search", {"sla": {"response_time_ms": 10}})
    result = invoke("--levels", "4", "--peak-a", "1000")
    assert result.exit_code == 0, result.output
    assert "shop and search: who meets the SLA" in result.output
    assert "Both meet their SLAs up to 500 req/s beside 500 req/s, shop and search." in result.output
    for cell in ("both", "only search", "none", "(none)"):
        assert cell in result.output
    assert len(services.runs[0]) == 1, "only the peak of search is measured"
    assert isinstance(services.runs[0][0].protocol, MemcachedOptions)


def test_it_goes_on_from_its_state(services: Services, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def interrupt(number: int) -> None:
        if number == 4:
            signal.raise_signal(signal.SIGTERM)

    services.before = interrupt
    result = invoke("--levels", "2", "--state", str(state), "--json")
    assert result.exit_code == 1
    assert "it ended early: interrupted; stopped at" in result.stderr
    assert len(body_of(result)["pairs"]) == 2
    services.before = lambda _number: None
    again = invoke("--levels", "2", "--state", str(state), "--json")
    assert again.exit_code == 0, again.output
    assert len(services.runs) == 5 + 2
    assert body_of(again)["map"] == body_of(invoke("--levels", "2", "--json"))["map"]
    refused = invoke("--levels", "3", "--state", str(state))
    assert "is of a profile with other options" in refused.output
    cut = {**json.loads(state.read_text()), "pairs": [{"levels": [1], "verdicts": ["met", "met"]}]}
    for text in ("{}", json.dumps(cut)):
        state.write_text(text)
        assert "is no state of a pair profile" in invoke("--state", str(state)).output


def test_it_stops_when_a_third_application_suffers(services: Services) -> None:
    def suffer(number: int) -> None:
        if number == 3:
            services.other_ms = 2 * TARGET_MS

    services.before = suffer
    result = invoke("--json")
    assert result.exit_code == 1
    assert "mail (violated)" in result.stderr
    assert len(body_of(result)["pairs"]) == 2


def test_a_load_that_cannot_be_made_ends_it(services: Services) -> None:
    def fail(number: int) -> None:
        raise Failure("cannot connect to 192.0.2.10:80")

    services.before = fail
    result = invoke("--json")
    assert result.exit_code == 1
    assert "it ended early: cannot connect to 192.0.2.10:80" in result.stderr
    assert body_of(result)["peaks_rps"] == []
    assert "Nothing is known: the peaks are not measured." in invoke().output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--levels", "1"), 2, "'--levels': 1 is not in the range 2<=x<=20"),
        (("--peak-a", "0"), 2, "'--peak-a': 0.0 is not in the range 0.01<=x<=100000"),
        (("--peak-b", "nan"), 2, "'--peak-b': 'nan' is not in the range"),
        (("--drive-b", "ftp://h"), 2, "--drive-b ftp://h is refused: use http://HOST"),
        (("--picture", "pair"), 2, "pair is refused: use a name that ends in .png"),
    ],
)
def test_bad_options(services: Services, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output


def test_pairs_of_which_there_is_no_map(services: Services) -> None:
    assert "name two" in invoke(second="shop").output
    services.api.ok("PATCH", "/applications/search", {"sla": None})
    assert "search has no SLA to compare with" in invoke().output
    services.api.ok("PATCH", "/applications/search", {"sla": {"response_time_ms": 1}})
    services.api.ok("PUT", "/hosts/kvm2", {})
    services.api.ok("PATCH", "/vms/cache-1", {"host": "kvm2"})
    services.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1")], tick=tick(number=99_999)))
    other = report(vms=[status("cache-1")], tick=tick(number=1))
    services.api.ok("POST", "/hosts/kvm2/report", other, role="other host")
    assert "they share no host" in invoke().output
