"""What is on a machine: files, users, groups and units, to be compared before and after."""

from __future__ import annotations

from tests.hosts.emulated import Host

# Not what only lives while the machine does, nor what Debian's own programs write as time goes by.
LEFT_OUT = (
    *("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/root", "/srv", "/var/backups"),
    *("/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/var/lib/libvirt", "/var/lib/postgresql"),
    *("/var/lib/chrony", "/var/lib/private", "/var/lib/logrotate", "/etc/.pwd.lock", "/lost+found"),
    "/etc/apparmor.d/libvirt",  # profiles of VMs, which libvirt leaves
)
# Copies that shadow's programs make of their files before they change these.
COPIES = ("passwd-", "group-", "shadow-", "gshadow-", "subuid-", "subgid-")
PRUNED = " ".join(f"-path {path} -prune -o" for path in LEFT_OUT)
# Of what is left out above: whatever has our name.
LIST = f"""
set -e
find / {PRUNED} -printf '%y %m %u:%g %p -> %l\\n' \
    | grep -vE ' /etc/({"|".join(COPIES)}) '
find /etc {PRUNED} -type f {" ".join(f"! -name {name}" for name in COPIES)} -exec sha256sum {{}} +
find / -path /proc -prune -o -path /srv -prune -o -name '*equipoise*' -print
systemctl list-unit-files --no-legend --plain --no-pager
systemctl list-units --all --no-legend --plain --no-pager '*equipoise*'
getent passwd
getent group
"""


def inventory(host: Host) -> set[str]:
    """Each file with its owner and mode, each file's content below /etc, each user, group and unit."""
    return set(host.run(LIST, timeout_s=300.0).splitlines())
