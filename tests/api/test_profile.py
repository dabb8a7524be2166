"""`equipoise profile cache` against the interface, with agents whose caches have a curve that is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from manager.cli import main, profile_command
from manager.cli.sweep import Sweep, SweepTarget, Swept, examine
from manager.control.knee import curve_of
from manager.errors import EquipoiseError
from manager.protocol.client import Answer
from tests.api.conftest import HOST, Api, status
from tests.api.sweeping import Agents, InProcess, cache_of, group, slow_ms

CACHE = "/applications/shop"


@pytest.fixture
def agents(sqlite_api: Api) -> Agents:
    """An application under load on one host that divides its cache."""
    api = sqlite_api
    for name in ("web-1", "web-2"):
        api.ok("PUT", f"/vms/{name}", {"class": "critical"})
    api.ok("PUT", "/vms/hog", {"class": "batch"})
    tiers = [{"name": "web", "vms": ["web-1"]}]
    api.ok("PUT", CACHE, {"tiers": tiers, "sla": {"response_time_ms": 9}, "cache": "auto"})
    api.ok("PUT", f"/hosts/{HOST}", {"cache": "on"})
    made = Agents(api)
    made.pause(30)
    return made


def look(agents: Agents, *ways: int) -> SweepTarget:
    return examine(agents.client(), "shop", ways, agents.timing())


def sweep(agents: Agents, *ways: int, settle_s: float = 10, client: Any = None) -> tuple[Swept, list[str]]:
    told: list[str] = []
    target = look(agents, *ways)
    made = Sweep(client or agents.client(), target, agents.timing(), lambda text, _: told.append(text))
    return made.run(settle_s, 30), told


def registered(agents: Agents) -> str | None:
    found: str | None = agents.api.ok("GET", CACHE)["cache"]
    return found


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises((click.ClickException, EquipoiseError)) as caught:
        act()
    return caught.value.message if isinstance(caught.value, click.ClickException) else str(caught.value)


def test_all_ways_are_swept_from_many_to_few_and_the_knee_is_found(agents: Agents) -> None:
    swept, told = sweep(agents)
    assert (swept.ended, swept.left, swept.kept) == ("", "", False)
    assert agents.had == [4, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert registered(agents) == "auto"
    for step in swept.steps:
        assert step.window is not None
        assert step.window.histogram.count == 600, "30 s of whole slots"
        assert len(step.times_ms) == 6
        p95_ms = step.window.percentile_ms(95)
        assert p95_ms == pytest.approx(slow_ms(step.ways) * 0.975, rel=0.03), "nothing from before it had settled"
    curve = curve_of({step.ways: step.times_ms for step in swept.steps})
    assert curve.knee == 6, curve.why
    assert told[0] == "9 ways (1 of 9)"
    assert "of 6 windows" in told[1]
    agents.pause(10)
    assert agents.had[-1] == 4, "its agent makes of auto what it did"


def test_what_comes_before_it_has_settled_would_count_without_the_wait(agents: Agents) -> None:
    swept, _ = sweep(agents, 9, 8, settle_s=0)
    assert all(max(step.times_ms) > 40 for step in swept.steps)


def test_a_response_time_that_depends_on_nothing_has_no_knee(agents: Agents) -> None:
    agents.slow_ms = lambda _ways: 7.0
    swept, _ = sweep(agents)
    curve = curve_of({step.ways: step.times_ms for step in swept.steps})
    assert (len(swept.steps), curve.knee) == (9, None)
    assert "does not depend" in curve.why


def test_ways_that_are_not_to_be_had_are_left_out(agents: Agents) -> None:
    agents.most = 7
    agents.shape = lambda _host, cache: cache | {"notes": ["shop gets 7 of 9 ways in domain 0"]}
    swept, told = sweep(agents, 9, 7, 2)
    assert swept.ended == ""
    lacks = f"not available on {HOST}, it gets 7: shop gets 7 of 9 ways in domain 0"
    assert [(step.ways, step.lacks, len(step.times_ms)) for step in swept.steps] == [
        (9, lacks, 0),
        (7, "", 6),
        (2, "", 6),
    ]
    assert told[1] == f"9 ways: {lacks}"


def test_it_is_swept_on_all_its_hosts_at_once(agents: Agents) -> None:
    api = agents.api
    api.ok("PATCH", CACHE, {"tiers": [{"name": "web", "vms": ["web-1", "web-2"]}]})
    api.ok("PUT", "/hosts/kvm2", {"cache": "on"})
    agents.hosts = (HOST, "kvm2")
    agents.pause(10)
    target = look(agents, 6, 2)
    assert target.hosts == (HOST, "kvm2")
    swept, _ = sweep(agents, 6, 2)
    assert [(step.ways, len(step.times_ms)) for step in swept.steps] == [(6, 6), (2, 6)]
    agents.shape = lambda host, cache: cache | {"ways": 20} if host == "kvm2" else cache
    assert f"different caches, so a number of ways differs in size: {HOST}, kvm2" in refusal(lambda: look(agents))
    api.ok("PATCH", "/hosts/kvm2", {"cache": "off"})
    assert "the cache of kvm2 is not divided" in refusal(lambda: look(agents))


def foreign_change(agents: Agents, body: dict[str, Any]) -> None:
    agents.api.ok("PATCH", CACHE, body)


def test_somebody_elses_value_ends_it_and_stays(agents: Agents) -> None:
    agents.also[8] = lambda: foreign_change(agents, {"cache": "40%"})
    swept, _ = sweep(agents)
    assert (swept.ended, swept.left, swept.kept) == ("another user changed shop meanwhile", "", True)
    assert registered(agents) == "40%"
    assert [step.ways for step in swept.steps] == [9]


def test_another_change_ends_it_too_and_is_not_undone(agents: Agents) -> None:
    agents.also[8] = lambda: foreign_change(agents, {"sla": {"response_time_ms": 3}})
    swept, _ = sweep(agents)
    assert (swept.ended, swept.left, swept.kept) == ("another user changed shop meanwhile", "", False)
    assert registered(agents) == "auto"
    assert agents.api.ok("GET", CACHE)["sla"]["response_time_ms"] == 3


def test_a_change_between_the_look_and_the_first_write_is_not_overwritten(agents: Agents) -> None:
    target = look(agents)
    foreign_change(agents, {"cache": "2 ways"})
    swept = Sweep(agents.client(), target, agents.timing(), lambda _text, _done: None).run(10, 30)
    assert "412" in swept.ended
    assert (registered(agents), swept.kept, swept.steps) == ("2 ways", True, ())


def put_host(agents: Agents, body: dict[str, Any]) -> None:
    agents.api.ok("PATCH", f"/hosts/{HOST}", body)


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda agents: put_host(agents, {"mode": "observe"}), f"{HOST} is in mode observe"),
        (lambda agents: put_host(agents, {"cache": "off"}), f"the cache of {HOST} is not divided"),
        (lambda agents: setattr(agents, "mute", True), f"the agent of {HOST} does not report any more"),
        (lambda agents: setattr(agents, "count", 0), "is shop still under load?"),
        (lambda agents: setattr(agents, "shape", lambda _host, _cache: cache_of(3)), "no longer has 8 ways"),
        (lambda agents: setattr(agents, "pause", lambda _seconds: True), "interrupted"),
    ],
)
def test_what_ends_it_has_the_former_value_put_back(
    agents: Agents, happens: Callable[[Agents], None], says: str
) -> None:
    timing = agents.timing()
    late = replace(timing, pause=lambda seconds: agents.pause(seconds))  # noqa: PLW0108 - it may be another by then
    agents.timing = lambda: late  # type: ignore[method-assign]
    agents.also[8] = lambda: happens(agents)
    swept, _ = sweep(agents)
    assert says in swept.ended
    assert (registered(agents), swept.left, swept.kept) == ("auto", "", False)
    assert [step.ways for step in swept.steps] == [9]


class Failing(InProcess):
    """Answers no request that the function picks."""

    def __init__(self, api: Api, picks: Callable[[str, str, bytes | None], bool]) -> None:
        super().__init__(api)
        self.picks = picks

    def exchange(self, method: str, target: str, headers: Any, body: bytes | None) -> Answer:
        if self.picks(method, target, body):
            return Answer(503, {}, b"{}")
        return super().exchange(method, target, headers, body)


@dataclass
class Outage:
    """Requests that fail: those that ``match``, from the ``first`` on, so ``many``."""

    match: Callable[[str, str, bytes | None], bool]
    many: int
    seen: int = 0

    def __call__(self, method: str, target: str, body: bytes | None) -> bool:
        hit = self.match(method, target, body)
        self.seen += hit
        return hit and self.seen <= self.many


def failing(agents: Agents, outage: Outage) -> Any:
    client = agents.client()
    client._network = Failing(agents.api, outage)
    return client


def back(method: str, _target: str, body: bytes | None) -> bool:
    return method == "PATCH" and body == b'{"cache": "auto"}'


@pytest.mark.parametrize(
    "match",
    [
        lambda method, _target, _body: method == "PATCH",
        lambda method, target, _body: "/windows" in target,
        lambda method, target, _body: target.endswith("/assignment"),
        lambda method, target, _body: target.endswith(f"/hosts/{HOST}"),
        lambda method, target, body: b"8 ways" in (body or b""),
    ],
)
def test_a_manager_that_fails_ends_it_and_the_value_goes_back(
    agents: Agents, match: Callable[[str, str, bytes | None], bool]
) -> None:
    swept, _ = sweep(agents, client=failing(agents, Outage(match, 1)))
    assert "503" in swept.ended
    assert (registered(agents), swept.left, swept.kept) == ("auto", "", False)


def test_putting_back_is_tried_again_and_said_where_it_fails(agents: Agents) -> None:
    swept, _ = sweep(agents, 9, 8, client=failing(agents, Outage(back, 4)))
    assert (registered(agents), swept.ended, swept.left) == ("auto", "", "")
    swept, told = sweep(agents, 9, 8, client=failing(agents, Outage(back, 100)))
    assert "503" in swept.left
    assert registered(agents) == "8 ways"
    assert told[-1].startswith("the former value could not be restored: ")


def test_even_a_fault_of_ours_puts_it_back(agents: Agents) -> None:
    def tell(text: str, _done: int) -> None:
        if text.startswith("8 ways ("):
            raise BrokenPipeError

    target = look(agents)
    with pytest.raises(BrokenPipeError):
        Sweep(agents.client(), target, agents.timing(), tell).run(10, 30)
    assert registered(agents) == "auto"


def patched(path: str, **body: Any) -> Callable[[Agents], None]:
    return lambda agents: agents.api.ok("PATCH", path, body)


def shaped(**changes: Any) -> Callable[[Agents], None]:
    return lambda agents: setattr(agents, "shape", lambda _host, cache: cache | changes)


def without_cat(agents: Agents) -> None:
    none = {"resource": "", "ways": 0, "groups": [], "notes": ["this host has no resctrl: its cache is not divided"]}
    shaped(**none)(agents)


def batch_only(agents: Agents) -> None:
    agents.api.ok("PATCH", CACHE, {"tiers": [{"name": "web", "vms": ["hog"]}]})


def not_running(agents: Agents) -> None:
    agents.api.ok("PATCH", CACHE, {"tiers": [{"name": "web", "vms": ["web-2"]}]})


def observed_vm(agents: Agents) -> None:
    agents.mute = True
    body = {"agent_version": "0.1.0", "vms": [status("web-1", mode="observe")]}
    agents.api.ok("POST", f"/hosts/{HOST}/report", body, role="host")


def old_agent(agents: Agents) -> None:
    agents.shape = lambda _host, _cache: None


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (patched(CACHE, sla=None), ["shop has no SLA", 'PATCH /api/v1/applications/shop {"sla"']),
        (batch_only, ["shop has no critical VM"]),
        (not_running, ["no agent sees a critical VM of shop running: start one of web-2"]),
        (patched(f"/hosts/{HOST}", mode="released"), ["mode released", f"`equipoise enforce --host {HOST}`"]),
        (patched(f"/hosts/{HOST}", mode="observe"), ["mode observe, in which nothing is written"]),
        (patched(f"/hosts/{HOST}", cache="off"), ["is not divided", f'PATCH /api/v1/hosts/{HOST} {{"cache": "on"}}']),
        (observed_vm, ["web-1 gets no ways in mode observe", "`equipoise enforce --vm web-1`"]),
        (lambda agents: setattr(agents, "mute", True), [f"the agent of {HOST} does not report any more"]),
        (old_agent, ["is too old to"]),
        (without_cat, ["has no resctrl", "Intel CAT, AMD QoS, Arm MPAM", "`equipoise doctor`", "cache-allocation"]),
        (shaped(groups=[group("equipoise-bar", ["bar", "shop"], 3, 3)]), ["shop shares a group with bar", "CLOSIDs"]),
        (
            shaped(groups=[group("equipoise-shop", ["shop"], 3, 3) | {"external": True}]),
            [f"`equipoise adopt --host {HOST}`"],
        ),
        (shaped(ways=3), ["at least two numbers of ways are compared, and shop can have 1 to 1"]),
        (lambda agents: (setattr(agents, "count", 0), agents.pause(60)), ["too few response times now"]),
        (lambda agents: (setattr(agents, "count", 5), agents.pause(60)), ["too few response times now"]),
    ],
)
def test_what_cannot_be_swept_is_refused_with_what_to_do(
    agents: Agents, happens: Callable[[Agents], None], says: list[str]
) -> None:
    before = [agents.api.ok("GET", path) for path in (CACHE, f"/hosts/{HOST}")]
    assert before[0]["cache"] == "auto"
    happens(agents)
    told = refusal(lambda: look(agents))
    assert all(words in told for words in says), told
    assert registered(agents) == "auto"


def test_what_was_never_told_of_is_refused(agents: Agents) -> None:
    api = agents.api
    assert "404" in refusal(lambda: examine(agents.client(), "ghost", (), agents.timing()))
    api.ok("PUT", "/applications/bar", {"tiers": [{"name": "web", "vms": ["web-2"]}], "sla": {"response_time_ms": 9}})
    api.ok("PUT", "/hosts/kvm2", {"cache": "on"})
    api.ok("POST", "/hosts/kvm2/report", {"agent_version": "1", "vms": [status("web-2")]}, role="other host")
    refused = refusal(lambda: examine(agents.client(), "bar", (), agents.timing()))
    assert refused == "the agent of kvm2 has never reported: is it running?"
    api.ok("PATCH", CACHE, {"tiers": []})
    api.ok("PATCH", "/applications/bar", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    assert "bar has no response times" in refusal(lambda: examine(agents.client(), "bar", (), agents.timing()))


def test_others_keep_their_ways(agents: Agents) -> None:
    def with_bar(_host: str, cache: dict[str, Any]) -> dict[str, Any]:
        # bar has the ways above the lowest six in domain 0, and in domain 1 those of the rest
        parts = [group("", [], 0x700, 0x7FF), group("equipoise-bar", ["bar"], 0x0C0, 0x7FF)]
        return cache | {"groups": [*parts, group("equipoise-shop", ["shop"], 0x00F, 0x7FF)]}

    agents.shape = with_bar
    assert look(agents).ways == (7, 6, 5, 4, 3, 2, 1)
    assert "can have 1 to 7" in refusal(lambda: look(agents, 9, 2))
    assert "at least two" in refusal(lambda: look(agents, 3))


class Stop:
    """An event that nobody sets; waiting for it lets the agents tick."""

    def __init__(self, agents: Agents) -> None:
        self.wait = agents.pause


@pytest.fixture
def call(agents: Agents, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """The command, in the time of the agents."""

    @contextmanager
    def stop_signal(*_more: object) -> Iterator[Stop]:
        yield Stop(agents)

    for name in ("EQUIPOISE_CONFIG", "EQUIPOISE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(profile_command, "connect", lambda _settings: agents.client())
    monkeypatch.setattr(profile_command, "stop_signal", stop_signal)
    monkeypatch.setattr(profile_command.time, "monotonic", agents.api.clock)
    state = ("--state-dir", str(tmp_path))
    return lambda *arguments, **more: CliRunner().invoke(main, ["profile", "cache", "shop", *state, *arguments], **more)


TABLE = """\
ways response times rate p95 p99 curve SLA
1 600 20/s 13.8 ms 14 ms 13.8 ms VIOLATED
4 600 20/s 7.87 ms 8.02 ms 7.79 ms met
6 600 20/s 3.91 ms 3.98 ms 3.91 ms met <- knee
9 600 20/s 3.91 ms 3.98 ms 3.87 ms met
"""


def test_the_command_prints_a_table(agents: Agents, call: Callable[..., Result], tmp_path: Path) -> None:
    agents.capabilities = agents.capabilities | {"warnings": ["simulated host: scenario cache-thrash"]}
    result = call("--ways", "1,4,6,9", "--yes")
    assert result.exit_code == 0, result.output
    rows = [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in result.stdout.splitlines()]
    rows = [row for row in rows if row[:1].isdigit() or row.startswith("ways")]
    assert "\n".join(rows) + "\n" == TABLE
    assert result.stdout.splitlines()[-4:] == [
        "Knee, by p95: 6 ways: 9 ways in place of 1 bring 9.9 ms of 13.8 ms; more bring 0.0387 ms.",
        "The SLA, p95 <= 9 ms, was met from 4 ways on.",
        f"{HOST}: simulated host: scenario cache-thrash",
        "The cache of shop is auto again.",
    ]
    assert f"shop on {HOST}: 9, 6, 4, 1 ways, about 4 min" in result.stderr
    command = f"""curl -X PATCH -H "Authorization: Bearer $(cat {tmp_path}/admin.token)" """
    command += "-H 'Content-Type: application/json' http://127.0.0.1:8750/api/v1/applications/shop"
    assert f'{command} -d \'{{"cache": "auto"}}\'' in result.stderr


def test_the_command_prints_json(agents: Agents, call: Callable[..., Result]) -> None:
    result = call("--ways", "1-9", "--yes", "--json", "--knee", "30", env={"EQUIPOISE_TOKEN": "secret"})
    found = json.loads(result.stdout)
    assert (found["knee"], found["former"], found["restored"], found["ended"]) == (5, "auto", True, "")
    assert [step["ways"] for step in found["steps"]] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (found["fewest_for_sla"], found["hosts"], found["percentile"]) == (4, [HOST], 95)
    assert "$EQUIPOISE_TOKEN" in found["restore"]
    assert "secret" not in result.output


def test_a_dry_run_and_a_no_change_nothing(agents: Agents, call: Callable[..., Result]) -> None:
    result = call("--dry-run")
    assert (result.exit_code, agents.had) == (0, [4])
    assert "9, 8, 7, 6, 5, 4, 3, 2, 1 ways, about 9 min" in result.stderr
    result = call(input="n\n")
    assert (result.exit_code, agents.had) == (1, [4])
    assert call("--ways", "9,1", input="y\n").exit_code == 0


def test_the_command_fails_where_it_ended_early(agents: Agents, call: Callable[..., Result]) -> None:
    agents.also[8] = lambda: setattr(agents, "count", 0)
    result = call("--yes")
    assert result.exit_code == 1
    assert "It ended early: no response times came with 8 ways" in result.stdout
    assert "equipoise: no response times came with 8 ways" in result.stderr
    assert registered(agents) == "auto"


@pytest.mark.parametrize("ways", ["0-3", "x", "3-2", "65", "2;4"])
def test_ways_that_are_none_are_refused(call: Callable[..., Result], ways: str) -> None:
    result = call("--ways", ways)
    assert result.exit_code == 2
    assert "numbers from 1 to 64" in result.stderr
