"""The commands of docs/get-started/guide.md, taken from the file and run in order, keep what the guide promises."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import pytest

from tests.hosts.emulated import Host
from tests.hosts.images import CHECKOUT, WHEELS
from tests.hosts.pages import blocks
from tests.hosts.service import Vm, changed, define, settings, until

pytestmark = pytest.mark.long

GUIDE = "get-started/guide.md"
INSTALL_S = 1200.0
BRIDGE = "192.168.122.1"
"""The host's own address in libvirt's network, where its NGINX answers: no VM runs a service here."""
REPLACED = {
    # Without a network: the machine has the packages, and the wheels are those that pip would build and load.
    "deploy/install": f"cd /{CHECKOUT} && deploy/install --no-packages --wheels /{WHEELS}",
    "http://192.0.2.10/": f"http://{BRIDGE}/",
}
PASSWORD = "correct horse battery staple"
VMS = ("shop-web", "render-1")


@dataclass(slots=True)
class Reader:
    """Somebody at the host's root shell, who runs what the guide says with own names and addresses."""

    host: Host
    left: list[str] = field(default_factory=lambda: blocks(GUIDE))

    def next(self, expected: str, *, stdin: str = "", timeout_s: float = 300.0, check: bool = True) -> str:
        """Run the guide's next block, which has this text in it; its output. Variables stay from block to block."""
        block = self.left.pop(0)
        assert expected in block, f"the guide says {block!r} where its test expects {expected!r}"
        for text, own in REPLACED.items():
            block = block.replace(text, own)
        shell = "set -ea; if [ -e ~/variables ]; then . ~/variables; fi"
        return self.host.run(f"{shell}\n{block}\nexport -p >~/variables", stdin=stdin, timeout_s=timeout_s, check=check)

    def answers(self, expected: str) -> list[dict[str, object]]:
        """Run the next block, all of requests; their answers."""
        decoder, text, found = json.JSONDecoder(), self.next(expected).strip(), []
        while text:
            answer, end = decoder.raw_decode(text)
            assert "error" not in answer, answer
            found.append(answer)
            text = text[end:].strip()
        return found


@pytest.fixture
def reader(bare_debian_12: Host) -> Reader:
    """A reader before a host that runs the two VMs, without Equipoise."""
    define(bare_debian_12, *map(Vm, VMS))
    return Reader(bare_debian_12)


def test_its_commands_do_what_it_says(reader: Reader) -> None:
    host = reader.host
    originals = settings(host)

    reader.next("deploy/install", timeout_s=INSTALL_S)
    assert host.run("systemctl is-active equipoise-manager equipoise-agent").split() == ["active"] * 2
    said = reader.next("user create", stdin=f"{PASSWORD}\n{PASSWORD}\n")
    assert "created admin" in said
    doctor = reader.next("equipoise doctor", check=False)
    # An emulated pCPU stands still at times, which its kernel takes for CPU time of whatever it runs.
    assert re.search(r"^(Nothing essential is broken|Broken and essential: cpu-weight-acts)\.", doctor, re.MULTILINE), (
        doctor
    )
    assert settings(host) == originals  # nothing has changed on it so far

    reader.next("api=")
    [observing] = reader.answers('{"mode": "observe"}')
    assert observing["mode"] == "observe"
    registered = reader.answers("vms/shop-web")
    assert [vm["class"] for vm in registered] == ["critical", "batch"]
    reader.answers("applications/shop")

    status = f". ~/variables; {reader.left[0]}"
    until(lambda: host.run(status, timeout_s=300.0), lambda shown: re.search(r"p95 \d", shown) is not None, "status")
    reader.next("equipoise status")
    plan = reader.next("equipoise plan")
    assert all(name in plan for name in VMS), plan
    assert settings(host) == originals  # observing writes nothing

    reader.next("equipoise enforce")
    enforced = changed(originals, settings(host))
    assert enforced, "nothing is set"
    reader.next("equipoise release")
    assert changed(originals, settings(host)) == {}
    [fair] = reader.answers('{"policy": "fair"}')
    assert fair["policy"] == "fair"
    assert not reader.left
