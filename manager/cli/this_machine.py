"""This machine, with its kernel, libvirt, and sources of response times."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from manager.cli.examine import Doctor
from manager.cli.machine import Machine
from manager.cli.options import push_token
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.model.cpus import parse_cpus
from manager.model.reach import parse_reach
from manager.settings import Settings
from manager.telemetry.credentials import Credentials
from manager.telemetry.source_thread import Sources

_FIRST_LISTING_S = 10

log = logging.getLogger(__name__)


def make_machine(settings: Settings, stack: ExitStack) -> Machine:
    """A ``MakeMachine``. Raises HostError."""
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
    host = KernelHost(paths, watch, parse_cpus(settings.text("managed_cpus")))
    watch.start()
    stack.callback(watch.stop)
    if not watch.wait_first_listing(_FIRST_LISTING_S):
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
    sources.start()
    stack.callback(sources.close)
    return Machine(host, sources, sources.pages, Doctor(settings), watch, settings.limits)
