"""Equipoise comes to Debian hosts, serves a fleet there, and goes without a trace."""

from __future__ import annotations

import json

import pytest

from tests.hosts.conftest import ADDRESSES, BOOTED, INSTALLED
from tests.hosts.emulated import Host
from tests.hosts.images import CHECKOUT
from tests.hosts.inventory import inventory
from tests.hosts.pages import blocks
from tests.hosts.service import Vm, changed, define, settings, until

pytestmark = pytest.mark.long

PACKAGE_S = 600.0
CRITICAL, BATCH = Vm("shop-web"), Vm("render-1")
OWNERS = """
root:root 755 /etc/equipoise
root:root 700 /etc/equipoise/credentials
root:equipoise 640 /etc/equipoise/manager.toml
root:root 644 /etc/equipoise/equipoise.toml
root:root 755 /etc/libvirt/hooks/qemu.d/equipoise
root:root 700 /run/equipoise-agent
root:root 700 /var/lib/equipoise
root:root 600 /var/lib/equipoise/journal.db
equipoise:equipoise 700 /var/lib/equipoise-manager
equipoise:equipoise 600 /var/lib/equipoise-manager/equipoise.db
root:root 755 /opt/equipoise/bin/equipoise
"""
"""Who may read and write what, once both services have run."""


MANAGER = "--config /etc/equipoise/manager.toml"
AS_MANAGER = "runuser -u equipoise -- equipoise"
API = "http://127.0.0.1:8750/api/v1"
START = f"""
set -e
systemctl enable sys-fs-resctrl.mount
systemctl enable --now equipoise-manager
{AS_MANAGER} token create {MANAGER} --role host --host $(hostname) --name agent >/etc/equipoise/token
chmod 600 /etc/equipoise/token
systemctl enable --now equipoise-agent
token=$({AS_MANAGER} token create {MANAGER} --role operator --name tests)
put() {{ curl -sS --fail-with-body -X PUT -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$@"; }}
put {API}/vms/{CRITICAL.name} -d '{{"class": "critical"}}'
put {API}/vms/{BATCH.name} -d '{{"class": "batch"}}'
"""


def test_the_package_comes_works_and_goes_without_a_trace(bare_debian_12: Host) -> None:
    host = bare_debian_12
    before = inventory(host)
    host.load(INSTALLED)
    comes_and_goes(host, before)


def test_on_debian_13_too(debian_13: Host) -> None:
    debian_13.load(BOOTED)
    before = inventory(debian_13)
    debian_13.load(INSTALLED)
    comes_and_goes(debian_13, before)


def comes_and_goes(host: Host, before: set[str]) -> None:
    """Use the package that is installed, and purge it; nothing but what was ``before`` is left."""
    units = "equipoise-manager equipoise-agent"
    assert host.run(f"systemctl is-enabled {units}", check=False).split() == ["disabled"] * 2
    assert host.run(f"systemctl is-active {units}", check=False).split() == ["inactive"] * 2
    define(host, CRITICAL, BATCH)
    originals = settings(host)
    host.run(START, timeout_s=PACKAGE_S)
    until(lambda: changed(originals, settings(host)), lambda found: len(found) > 1, "nothing is set")
    assert host.run(f"systemctl is-active {units}").split() == ["active"] * 2
    paths = " ".join(line.split()[-1] for line in OWNERS.split("\n") if line)
    assert host.run(f"stat -c '%U:%G %a %n' {paths}").strip() == OWNERS.strip()
    host.run("apt-get -qy purge equipoise", timeout_s=PACKAGE_S)
    assert changed(originals, settings(host)) == {}
    host.run("for vm in $(virsh list --all --name); do virsh -q destroy $vm; virsh -q undefine $vm; done")
    after = inventory(host)
    assert after - before == set()
    assert before - after == set()


NAME = "equipoise.example.org"
"""What the pages and the shipped settings call the manager."""
AGENT_OF_A_FLEET = f"""
manager_url = "https://{NAME}"
manager_ca_file = "/etc/equipoise/ca.pem"
token_file = "/etc/equipoise/token"
interval_s = 1
"""
WITH_CA = "curl -sS -m 60 --cacert /etc/equipoise/ca.pem"
CERTIFICATE = """
install -D -m 644 manager.pem /etc/ssl/equipoise/fullchain.pem
install -D -m 600 manager.key /etc/ssl/equipoise/key.pem
"""
PROXY = f"""
cp /{CHECKOUT}/deploy/nginx/equipoise.conf /etc/nginx/conf.d/
nginx -t
systemctl reload nginx
"""


def test_a_fleet_of_two_with_postgresql_behind_the_shipped_proxy(two_hosts: list[Host]) -> None:
    """As docs/how-to/fleet.md and security.md say; alpha is the manager's machine and a host."""
    alpha, beta = two_hosts
    for host in two_hosts:
        host.run(f"echo {ADDRESSES['alpha']} {NAME} >>/etc/hosts")
    postgresql, joining = blocks("how-to/fleet.md")[1:3]
    create, join, start = joining.splitlines()

    alpha.run(f"set -e\n{postgresql}")
    alpha.run("echo 'database_url = \"postgresql:///equipoise\"' >>/etc/equipoise/manager.toml")
    alpha.run(
        f"set -e; mkdir /root/authority; cd /root/authority\n{blocks('how-to/security.md')[0]}{CERTIFICATE}{PROXY}"
    )
    alpha.run("systemctl enable --now equipoise-manager", timeout_s=300.0)
    authority = alpha.read("/root/authority/ca.pem")

    assert "certificate" in beta.output(f"curl -sS https://{NAME}/healthz").stderr
    for host in two_hosts:
        host.write("/etc/equipoise/equipoise.toml", AGENT_OF_A_FLEET)
        token = alpha.run(create.replace("kvm7", host.name)).split()[-1]
        joins = join.replace("TOKEN", token)
        if host is beta:
            refused = host.output(joins)
            assert refused.status == 1, refused
            assert "ca.pem" in refused.stderr
        host.write("/etc/equipoise/ca.pem", authority)
        assert f"joined as {host.name}" in host.run(joins)
        assert host.run("stat -c '%U %a' /etc/equipoise/token").split() == ["root", "600"]
        host.run(start)

    reader = alpha.run(
        f"{AS_MANAGER} token create --config /etc/equipoise/manager.toml --role viewer --name reader"
    ).strip()
    hosts = f"{WITH_CA} -H 'Authorization: Bearer {reader}' https://{NAME}/api/v1/hosts"
    until(
        lambda: {host["name"]: host["last_seen_at"] for host in json.loads(beta.run(hosts))["items"]},
        lambda seen: seen.keys() == {"alpha", "beta"} and all(seen.values()),
        "both hosts report",
    )
    code = f"{WITH_CA} -o /dev/null -w '%{{http_code}}'"
    assert [beta.run(f"{code} {url}") for url in (f"https://{NAME}/readyz", f"https://{NAME}/sign-in")] == ["200"] * 2
    assert beta.run(f"{code} https://{NAME}/metrics") == "404"
    assert beta.run(f"{code} http://{NAME}/") == "301"
    stored = alpha.run("runuser -u equipoise -- psql -Atc 'SELECT name FROM hosts ORDER BY name' equipoise")
    assert stored.split() == ["alpha", "beta"]
    assert "has role host; this needs role viewer" in beta.output("equipoise status").stderr
    assert "beta" in beta.run(f"EQUIPOISE_TOKEN={reader} equipoise status")
