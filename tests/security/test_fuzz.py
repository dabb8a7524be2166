"""Parsers of what comes from outside bear everything; `python -m tests.security.fuzz` gives them more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from manager.api.auth import COOKIE
from tests.api.conftest import Api
from tests.security import fuzz as fuzzer
from tests.security.fuzz import Broken, Target, fuzz, inputs
from tests.security.targets import REQUESTS, targets

NAMES = [target.name for target in targets("")]
PATHS = ("/api/v1/vms", "/api/v1/events", "/api/v1/audit", "/api/v1/health", "/metrics", "/nowhere", "/api/v1/vms/a")


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_bears_everything(name: str, tmp_path: Path, pytestconfig: pytest.Config, seed: int) -> None:
    found = targets(str(tmp_path))
    [target] = [one for one in found if one.name == name]
    count = pytestconfig.getoption("--inputs") * target.share / sum(one.share for one in found)
    fuzz(target, round(count), seed)


def test_the_interface_bears_every_head_of_a_request(sqlite_api: Api, seed: int) -> None:
    """The whole application, with a role and without: refused at most."""
    chance = random.Random(seed)
    client = sqlite_api.app.test_client(use_cookies=False)
    for data in inputs((*REQUESTS, b"limit=1&since=2026-01-01T00:00:00Z"), 1500, chance):
        text = data.replace(b"\r", b" ").replace(b"\n", b" ").decode("latin-1")
        given = {"HTTP_COOKIE": f"{COOKIE}={text}", "HTTP_IF_MATCH": text, "HTTP_AUTHORIZATION": text}
        if chance.random() < 0.5:
            given["HTTP_AUTHORIZATION"] = f"Bearer {sqlite_api.secrets['operator']}"
        method, path = chance.choice(("GET", "DELETE", "HEAD", "BREW")), chance.choice(PATHS)
        response = client.open(path, method=method, environ_overrides={**given, "QUERY_STRING": text})
        assert response.status_code < 500, (seed, method, path, text, response.get_data(as_text=True))


def test_an_input_that_is_not_borne_is_told_with_its_seed() -> None:
    def take(data: bytes) -> None:
        data.decode("ascii")

    with pytest.raises(Broken, match=r"text, seed 7: UnicodeDecodeError: .* for b'"):
        fuzz(Target("text", (b"hello",), take, 1.0), 1000, 7)


def test_a_parser_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzzer, "HANG_S", 0.05)
    with pytest.raises(Broken, match="TimeoutError: no answer"):
        fuzz(Target("stuck", (b"a",), take, 1.0), 10, 1)


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, same, other = (list(inputs((b"hello", b"world"), 500, random.Random(seed))) for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one)) > 400
