"""The neighbour table of a real kernel, in a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manager.host.addresses import read_neighbours

TOP = Path(__file__).parents[2]
SCRIPT = """
set -e
ip link add veth0 type veth peer name veth1
ip link set veth0 up
ip link set veth1 up
ip address add 192.0.2.1/24 dev veth0
ip neigh add 192.0.2.10 lladdr 52:54:00:00:00:0a dev veth0 nud reachable
ip neigh add 192.0.2.11 lladdr 52:54:00:00:00:0a dev veth0 nud stale
ip neigh add 2001:db8::a lladdr 52:54:00:00:00:0a dev veth0 nud permanent
ip neigh add 192.0.2.12 lladdr 52:54:00:00:00:0c dev veth0 nud noarp
ip neigh add 192.0.2.13 dev veth0 nud failed
for i in $(seq 2000); do
  echo "neigh add 198.18.$((i / 250)).$((i % 250 + 1)) lladdr 52:54:00:01:$(printf %02x:%02x $((i / 250)) $((i % 250))) dev veth0 nud permanent"
done | ip -batch -
exec "$1" -c 'import json; from manager.host.addresses import read_neighbours
print(json.dumps({mac: sorted(ips) for mac, ips in read_neighbours().items()}))'
"""  # noqa: E501


def test_all_usable_entries_are_read_however_many_there_are() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("NOT TESTED: a network of our own needs root, unshare and ip")
    ended = subprocess.run(
        ["unshare", "--net", "bash", "-c", SCRIPT, "bash", sys.executable],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["52:54:00:00:00:0a"] == ["192.0.2.10", "192.0.2.11", "2001:db8::a"]
    assert "52:54:00:00:00:0c" not in found
    assert len([mac for mac in found if mac.startswith("52:54:00:01:")]) == 2000
    assert found["52:54:00:01:07:f9"] == ["198.18.7.250"]


def test_it_can_be_read_without_privileges_and_holds_addresses() -> None:
    for hardware, addresses in read_neighbours().items():
        assert hardware == "" or hardware.count(":") >= 5
        assert addresses
