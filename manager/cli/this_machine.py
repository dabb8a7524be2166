"""This machine, with its kernel, libvirt, and sources of response times."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path

from manager.cli.machine import Machine
from manager.cli.options import environment, push_token
from manager.errors import HostError, SettingsError
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.live_migration import LiveMigration
from manager.host.registry import HostPaths
from manager.host.thread_times import ThreadTimes
from manager.model.cpus import parse_cpus
from manager.model.fields import adapter_of
from manager.model.finding import Finding, FindingStatus
from manager.model.reach import parse_reach
from manager.settings import Settings
from manager.telemetry.credentials import Credentials
from manager.telemetry.source_thread import Sources

_FIRST_LISTING_S = 10
_LONGEST_S = 120
_PEER_URI = "qemu+tls://{host}/system"
_BATCH_GROUP = "batch-group"
_ONCE = frozenset({"cpu-weight-acts", _BATCH_GROUP})
_MOST_TRIES = 24
_NEEDED = {FindingStatus.DEGRADED: True, FindingStatus.WORKS: False}

log = logging.getLogger(__name__)


class Doctor:
    """An ``Examiner`` that runs `equipoise doctor` in another process, which costs the agent neither ticks nor memory.

    Only the first look tries what takes CPU time from VMs; later ones repeat its findings of that. But while it cannot
    tell whether batch VMs need a group, because the pCPUs are busy, later ones try again: 24 in all, which is a day.
    """

    def __init__(self, settings: Settings, host: KernelHost | None = None) -> None:
        """``host`` gets what was found out about its kernel."""
        self._variables = environment(settings)
        self._host = host
        self._tried: dict[str, Finding] = {}
        self._tries = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def look(self) -> tuple[Finding, ...]:
        """All findings. Raises HostError."""
        tries = not self._tried or (self._cannot_tell(_BATCH_GROUP) and self._tries < _MOST_TRIES)
        options = [] if tries else ["--gentle"]
        findings = self._run([sys.executable, "-P", "-m", "manager.cli", "doctor", "--json", *options])
        if tries:
            self._tries += 1
            for finding in findings:
                if finding.id in _ONCE and (finding.id not in self._tried or self._cannot_tell(finding.id)):
                    self._tried[finding.id] = finding
            if self._host is not None and (tried := self._tried.get(_BATCH_GROUP)):
                self._host.needs_batch_group = _NEEDED.get(tried.status)
        return tuple(self._tried.get(finding.id, finding) for finding in findings)

    def _cannot_tell(self, finding: str) -> bool:
        return finding in self._tried and self._tried[finding].status is FindingStatus.UNKNOWN

    def close(self) -> None:
        """End a running look: the doctor removes its scratch places on SIGTERM."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.terminate()

    def _run(self, command: list[str]) -> tuple[Finding, ...]:
        process = self._start(command)
        try:
            output, errors = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise HostError(f"the doctor took longer than {_LONGEST_S} s") from error
        try:
            return adapter_of(tuple[Finding, ...]).validate_python(json.loads(output)["findings"])
        except (ValueError, KeyError, TypeError) as error:
            reason = (errors.strip().splitlines() or [str(error)])[-1]
            raise HostError(f"the doctor did not answer: {reason}") from error

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise HostError("the doctor was stopped")
            try:
                # In its own group, it does not get the terminal's Ctrl-C: the agent ends it.
                self._process = subprocess.Popen(
                    command,
                    env=self._variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",  # of what it says of an error any byte may be in a path or a name
                    process_group=0,
                )
            except OSError as error:
                raise HostError(f"the doctor cannot be started: {error}") from error
            return self._process


def open_host(
    settings: Settings, stack: ExitStack, times: ThreadTimes | None = None
) -> tuple[KernelHost, HypervisorWatch, bool]:
    """The host, its domains, and whether libvirt listed them. ``times``: see ``KernelHost``. Raises HostError."""
    paths = HostPaths(Path(settings.text("root_dir")))
    events = EventLoop()
    events.start()
    stack.callback(events.stop)
    watch = HypervisorWatch(
        settings.text("libvirt_uri"),
        paths,
        settings.number("reconcile_s"),
        late_s=settings.number("discovery_limit_s"),
    )
    host = KernelHost(paths, watch, parse_cpus(settings.text("managed_cpus")), times)
    host.resources.counts_work = settings.text("count_instructions") == "on"
    watch.start()
    stack.callback(watch.stop)
    return host, watch, watch.wait_first_listing(_FIRST_LISTING_S)


def _thread_times(settings: Settings, stack: ExitStack) -> ThreadTimes | None:
    """None where the kernel, or rights, do not allow it."""
    try:
        return stack.enter_context(closing(ThreadTimes(HostPaths(Path(settings.text("root_dir"))))))
    except HostError as error:
        log.warning("times of vCPUs are read from files, which costs more CPU time: %s", error)
        return None


def _migrator(settings: Settings) -> LiveMigration:
    """Raises SettingsError for a setting that names no host."""
    uri = settings.text("migration_uri")
    if "{host}" not in uri:
        raise SettingsError(f"setting migration_uri: {uri!r} is refused; use one with {{host}}, such as {_PEER_URI}")
    return LiveMigration(settings.text("libvirt_uri"), uri)


def make_machine(settings: Settings, stack: ExitStack) -> Machine:
    """A ``MakeMachine``. Raises HostError, SettingsError."""
    host, watch, listed = open_host(settings, stack, _thread_times(settings, stack))
    if not listed:
        log.warning("libvirt at %s does not answer; going on with the VMs in the journal", settings.text("libvirt_uri"))
    sources = Sources(
        settings.text("syslog_listen_host"),
        settings.whole("syslog_listen_port"),
        watch.look_again,
        push_token=push_token(settings),
        samples_per_s=settings.number("samples_per_s"),
        log_dirs=settings.log_dirs,
        reach=parse_reach(settings.text("probe_networks")),
        credentials=Credentials(Path(settings.text("credentials_dir"))),
    )
    sources.finds_services = settings.text("find_services") == "on"
    sources.start()
    stack.callback(sources.close)
    return Machine(host, sources, sources.pages, Doctor(settings, host), watch, settings.limits, _migrator(settings))
