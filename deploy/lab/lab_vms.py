"""The lab's VMs as libvirt sees them: description, domain XML, starting, waiting, pausing, removing.

They have no disk, and their names begin with ``PREFIX``: once destroyed nothing of them is left. They are transient but
for those that are to be stopped and started again. Their XML sets no CPU tuning, since that is what is to be tested on
them.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import libvirt

from deploy.lab.accelerator import Accelerator
from deploy.lab.commands import LabError, last_lines
from deploy.lab.guest import DEFAULT_BASE, Guest

PREFIX = "eqp-lab-"
URI = "qemu:///system"
NETWORK = "default"
POLL_S = 0.05
PROBE_TIMEOUT_S = 1.0

BOOT_OPTIONS = (
    # A stall in the guest is what the lab is about: no reports of it on the console, each of which costs CPU time.
    "console=ttyS0 quiet panic=-1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
)
# Emulated TSCs differ a little at boot; without this flag a guest with several vCPUs falls back to reading the time
# from the HPET, that is through QEMU's main loop. The timer check fails on a busy host; mitigations protect nobody.
TCG_BOOT_OPTIONS = "tsc=reliable no_timer_check mitigations=off"
# The CPU is all that TCG can emulate (RDRAND spares the boot a wait for entropy) without cmpxchg16b, under which
# kernels with several vCPUs panicked on QEMU 7.2, and without five-level page tables, which only lengthen every walk.
TCG_DISABLED_FEATURES = ("cx16", "la57")


class GuestRole(StrEnum):
    """What a guest does once it has booted."""

    MEMCACHED = "memcached"
    NGINX = "nginx"
    BATCH = "batch"
    ANTAGONIST = "antagonist"


ROLE_OPTIONS: Mapping[GuestRole, frozenset[str]] = {
    GuestRole.MEMCACHED: frozenset({"cache_mib"}),
    GuestRole.NGINX: frozenset({"gzip_kib", "access_log"}),
    GuestRole.BATCH: frozenset({"on_ms", "off_ms", "busy_vcpus"}),
    GuestRole.ANTAGONIST: frozenset({"kind", "threads", "mib", "mib_per_s", "write_percent", "bytes", "to"}),
}
MEMCACHED_PORT = 11211
HTTP_PORT = 80


@dataclass(frozen=True, slots=True)
class LabVm:
    """One VM. ``options`` are those of its role, described in guest/init; ``mac`` None means one made of the address.

    ``cpus`` are the pCPUs it is confined to, in the kernel's list format; empty means all. vCPUs can be plugged up to
    ``max_vcpus``; 0: no more than it starts with. ``disk`` is a raw image that it has as its only disk, past the
    host's page cache. A ``persistent`` one is defined in libvirt and starts anew when it
    reboots; others are gone when they end.

    Raises LabError for a name without ``PREFIX``, an address that is none, an option that the role does not have, a
    value that a kernel command line cannot hold, or fewer vCPUs at most than at first.
    """

    name: str
    role: GuestRole
    ip: str
    mac: str | None = None
    vcpus: int = 1
    memory_mib: int = 256
    cpus: str = ""
    max_vcpus: int = 0
    persistent: bool = False
    disk: Path | None = None
    options: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"{PREFIX}[a-z0-9-]+", self.name):
            raise LabError(f"{self.name}: names of lab VMs are {PREFIX} and small letters, digits and dashes")
        try:
            ipaddress.IPv4Address(self.ip)
        except ValueError as error:
            raise LabError(f"{self.name}: {error}") from error
        if self.max_vcpus and self.max_vcpus < self.vcpus:
            raise LabError(f"{self.name}: at most {self.max_vcpus} vCPUs, but {self.vcpus} at first")
        unknown = set(self.options) - ROLE_OPTIONS[self.role]
        if unknown:
            raise LabError(f"{self.name}: the role {self.role} has no option {', '.join(sorted(unknown))}")
        for option, value in self.options.items():
            if not str(value) or set(str(value)) & set(' \t\n"'):
                raise LabError(f"{self.name}: {value!r} is no value for {option}")

    @property
    def mac_address(self) -> str:
        """``mac``, or one in QEMU's range that holds the last three octets of the IP address."""
        last = ipaddress.IPv4Address(self.ip).packed[1:]
        return self.mac or ":".join(f"{octet:02x}" for octet in (0x52, 0x54, 0x00, *last))


def command_line(vm: LabVm, accelerator: Accelerator, prefix_length: int = 24) -> str:
    """The guest's kernel command line."""
    options = {"role": vm.role, "ip": f"{vm.ip}/{prefix_length}", **vm.options}
    words = [BOOT_OPTIONS]
    if accelerator is Accelerator.TCG:
        words.append(TCG_BOOT_OPTIONS)
    return " ".join([*words, *(f"equipoise.{name}={options[name]}" for name in options)])


def domain_xml(vm: LabVm, guest: Guest, accelerator: Accelerator, serial_log: Path, prefix_length: int = 24) -> str:
    """The libvirt domain of a VM, https://libvirt.org/formatdomain.html."""
    kvm = accelerator is Accelerator.KVM
    domain = ET.Element("domain", type="kvm" if kvm else "qemu")
    _add(domain, "name", vm.name)
    _add(domain, "memory", str(vm.memory_mib), unit="MiB")
    vcpu = _add(domain, "vcpu", str(vm.max_vcpus or vm.vcpus), **({"cpuset": vm.cpus} if vm.cpus else {}))
    if vm.max_vcpus:
        vcpu.set("current", str(vm.vcpus))
    system = _add(domain, "os")
    _add(system, "type", "hvm", arch="x86_64", machine="pc")
    _add(system, "kernel", str(guest.kernel))
    _add(system, "initrd", str(guest.initrd))
    _add(system, "cmdline", command_line(vm, accelerator, prefix_length))
    features = _add(domain, "features")
    _add(features, "acpi")
    _add(features, "apic")
    if kvm:
        _add(domain, "cpu", mode="host-passthrough")
    else:
        cpu = _add(domain, "cpu", mode="maximum")
        for feature in TCG_DISABLED_FEATURES:
            _add(cpu, "feature", policy="disable", name=feature)
    _add(domain, "clock", offset="utc")
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _add(domain, event, "restart" if vm.persistent and event == "on_reboot" else "destroy")
    devices = _add(domain, "devices")
    _add(devices, "controller", type="usb", model="none")
    if vm.disk is not None:
        disk = _add(devices, "disk", type="file", device="disk")
        _add(disk, "driver", name="qemu", type="raw", cache="none", io="native")
        _add(disk, "source", file=str(vm.disk))
        _add(disk, "target", dev="vda", bus="virtio")
    interface = _add(devices, "interface", type="network")
    _add(interface, "mac", address=vm.mac_address)
    _add(interface, "source", network=NETWORK)
    _add(interface, "model", type="virtio")
    _add(interface, "rom", enabled="no")  # nothing is booted from the network
    serial = _add(devices, "serial", type="file")
    _add(serial, "source", path=str(serial_log))
    _add(serial, "target", port="0")
    _add(devices, "memballoon", model="none")
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def _add(parent: ET.Element, tag: str, text: str | None = None, /, **attributes: str) -> ET.Element:
    child = ET.SubElement(parent, tag, attributes)
    child.text = text
    return child


def connect() -> libvirt.virConnect:
    """A connection to the system's libvirtd. Raises LabError when it does not answer."""
    # Without a handler libvirt prints every error, also those that are caught, to standard error.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    try:
        return libvirt.open(URI)
    except libvirt.libvirtError as error:
        raise LabError(f"libvirtd does not answer at {URI}: {error}; deploy/lab/setup.sh starts it") from error


class LabHost:
    """Lab VMs on one host. ``base`` is where their serial consoles are logged."""

    def __init__(
        self, connection: libvirt.virConnect, guest: Guest, accelerator: Accelerator, base: Path = DEFAULT_BASE
    ) -> None:
        self._connection = connection
        self._guest = guest
        self._accelerator = accelerator
        self._logs = base / "log"
        self._logs.mkdir(parents=True, exist_ok=True)

    def start(self, vm: LabVm) -> None:
        """Start a VM, which then boots; see ``wait_ready``.

        Raises LabError when its name or address is taken, the address does not fit the network, or libvirt refuses.
        """
        if self._find(vm.name) is not None:
            raise LabError(f"a VM named {vm.name} is there already")
        for domain in self._domains():
            if _has_mac(domain, vm.mac_address):
                raise LabError(f"{vm.name}: {domain.name()} has its address, {vm.ip} or {vm.mac_address}")
        self._serial_log(vm).unlink(missing_ok=True)
        xml = domain_xml(vm, self._guest, self._accelerator, self._serial_log(vm), self._prefix_length(vm))
        try:
            if vm.persistent:
                self._connection.defineXML(xml).create()
            else:
                self._connection.createXML(xml)
        except libvirt.libvirtError as error:
            raise LabError(f"{vm.name}: libvirt does not start it: {error}") from error

    def wait_ready(self, vm: LabVm, timeout_s: float = 60.0) -> float:
        """Wait until the VM serves (batch: until its load runs) and return the seconds that took.

        Raises LabError with the end of its console when it ends before, or is not ready in time.
        """
        began = time.monotonic()
        while not self._is_ready(vm):
            if self._find(vm.name) is None:
                raise LabError(f"{vm.name} has ended instead of getting ready; its console says\n{self.console(vm)}")
            if time.monotonic() - began > timeout_s:
                raise LabError(
                    f"{vm.name} is not ready after {timeout_s:g} s; its console says\n{self.console(vm) or '(nothing)'}"
                )
            time.sleep(POLL_S)
        return time.monotonic() - began

    def suspend(self, vm: LabVm) -> None:
        """Stop the VM's vCPUs where they are. Raises LabError."""
        self._do(vm, "suspend")

    def resume(self, vm: LabVm) -> None:
        """Let a suspended VM's vCPUs run on. Raises LabError."""
        self._do(vm, "resume")

    def destroy(self, vm: LabVm) -> None:
        """Remove a VM at once; that it is gone already is no error."""
        self._destroy(self._find(vm.name))

    def destroy_all(self, prefix: str = PREFIX) -> tuple[str, ...]:
        """Remove all VMs whose names begin with ``prefix``, which begins with ``PREFIX``, and return their names."""
        if not prefix.startswith(PREFIX):
            raise LabError(f"{prefix!r} would reach VMs outside the lab")
        doomed = {domain.name(): domain for domain in self._domains() if domain.name().startswith(prefix)}
        with ThreadPoolExecutor() as pool:  # libvirt takes up to seconds for each, most of them waiting
            list(pool.map(self._destroy, doomed.values()))
        return tuple(sorted(doomed))

    def stats(self, name: str, kinds: int) -> dict[str, Any]:
        """Statistics of a VM that runs, of those kinds (``VIR_DOMAIN_STATS_…``). Raises LabError."""
        domain = self._find(name)
        if domain is None:
            raise LabError(f"{name} does not run")
        ((_, stats),) = self._connection.domainListGetStats([domain], kinds)
        return dict(stats)

    def console(self, vm: LabVm) -> str:
        """The last lines of the VM's serial console."""
        try:
            return last_lines(self._serial_log(vm).read_text(errors="replace"))
        except FileNotFoundError:
            return ""

    def _serial_log(self, vm: LabVm) -> Path:
        return self._logs / f"{vm.name}.log"

    def _domains(self) -> list[libvirt.virDomain]:
        try:
            return list(self._connection.listAllDomains())
        except libvirt.libvirtError as error:
            raise LabError(f"libvirtd does not answer: {error}") from error

    def _find(self, name: str) -> libvirt.virDomain | None:
        return next((domain for domain in self._domains() if domain.name() == name), None)

    def _do(self, vm: LabVm, action: str) -> None:
        domain = self._find(vm.name)
        if domain is None:
            raise LabError(f"{vm.name} does not run")
        try:
            getattr(domain, action)()
        except libvirt.libvirtError as error:
            raise LabError(f"{vm.name}: cannot {action}: {error}") from error

    @staticmethod
    def _destroy(domain: libvirt.virDomain | None) -> None:
        if domain is None:
            return
        kept = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        undefine = partial(domain.undefineFlags, kept)
        for step in (domain.destroy, *([undefine] if _is_persistent(domain) else [])):
            try:
                step()
            except libvirt.libvirtError as error:
                # It may have ended between being found and being destroyed.
                if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
                    raise LabError(f"cannot remove a VM: {error}") from error

    def _prefix_length(self, vm: LabVm) -> int:
        """Prefix length of the libvirt network, which must contain the VM's address and not lend it to another VM."""
        try:
            network = self._connection.networkLookupByName(NETWORK)
            address = ET.fromstring(network.XMLDesc()).find("ip")  # noqa: S314 - libvirt's own XML
            leases = network.DHCPLeases()
        except libvirt.libvirtError as error:
            raise LabError(f"libvirt's network {NETWORK}: {error}; deploy/lab/setup.sh starts it") from error
        if address is None:
            raise LabError(f"libvirt's network {NETWORK} has no addresses")
        subnet = network_of(address)
        if ipaddress.IPv4Address(vm.ip) not in subnet:
            raise LabError(f"{vm.name}: {vm.ip} is not in {subnet} of libvirt's network {NETWORK}")
        if any(lease["ipaddr"] == vm.ip for lease in leases):
            raise LabError(f"{vm.name}: {vm.ip} is lent to another VM by DHCP; choose another address")
        return subnet.prefixlen

    def _is_ready(self, vm: LabVm) -> bool:
        match vm.role:
            case GuestRole.MEMCACHED:
                return memcached_answers(vm.ip)
            case GuestRole.NGINX:
                return http_answers(vm.ip)
            case GuestRole.BATCH | GuestRole.ANTAGONIST:
                return f"equipoise-guest ready role={vm.role}" in self.console(vm)


def _is_persistent(domain: libvirt.virDomain) -> bool:
    try:
        return bool(domain.isPersistent())
    except libvirt.libvirtError:
        return False  # it is gone


def _has_mac(domain: libvirt.virDomain, mac_address: str) -> bool:
    try:
        xml = domain.XMLDesc()
    except libvirt.libvirtError:
        return False  # it is gone
    return f"<mac address='{mac_address}'/>" in xml


def network_of(address: ET.Element) -> ipaddress.IPv4Network:
    """The subnet that an ``<ip>`` element of a libvirt network describes, by netmask or prefix length."""
    length = address.get("prefix") or address.get("netmask") or "24"
    return ipaddress.IPv4Network(f"{address.get('address')}/{length}", strict=False)


def memcached_answers(ip: str) -> bool:
    """Whether a memcached at this address answers the ``version`` command."""
    try:
        with socket.create_connection((ip, MEMCACHED_PORT), PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(64).startswith(b"VERSION ")
    except OSError:
        return False


def http_answers(ip: str) -> bool:
    """Whether a web server at this address answers a request for ``/`` with success."""
    connection = http.client.HTTPConnection(ip, HTTP_PORT, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
