"""Whether uplinks can be divided and taps limited, tried on the loopback of a network namespace that ends with it."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from functools import partial

from manager.errors import HostError
from manager.host.doctor.check import CheckResult, Subject, degraded, missing, unknown, warning, works
from manager.host.files import LIBC, succeeded
from manager.host.knob_files import VmTarget
from manager.host.network_shares import FAIR_QUEUE, HANDLE, OTHERS, WHOLE, NetworkShares, taps_with_qdiscs
from manager.host.tap_limits import TapLimits
from manager.host.traffic_control import HtbClass, TrafficControl
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import MOST_KBIT

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET, of which unshare(2) gives the calling thread one
_LOOPBACK = 1
_ADVICE = "load {}, or run a kernel that has it; without it uplinks stay as they are"
_MODULES = {"HTB": "sch_htb", "u32": "cls_u32"}


def shares(subject: Subject) -> CheckResult:
    """By what the kernel takes, and what is at the uplinks. Raises HostError."""
    try:
        lacking = _lacking(_refused)
    except PermissionError:
        return unknown("could not be tried: no network namespace of its own", "run `equipoise doctor` as root")
    except OSError as error:
        return unknown(f"could not be tried: {error}", "run `equipoise doctor` as root")
    for what, module in _MODULES.items():
        if what in lacking:
            return missing(f"this kernel has no {what}", _ADVICE.format(module))
    uplinks = NetworkShares(subject.paths, lambda _uuid: ()).uplinks().values()
    taken = [f"{uplink.name} ({uplink.other_qdisc})" for uplink in uplinks if uplink.physical and uplink.other_qdisc]
    ports = sorted(uplink.name for uplink in uplinks if uplink.physical and uplink.bridged)
    words = [f"uplinks can be divided: {', '.join(ports)}" if ports else "uplinks can be divided"]
    if not ports:
        words.append("no hardware is a port of a bridge, so they are to be named in the settings")
    taps = taps_with_qdiscs(subject.paths)
    if taps:
        words.append(f"{', '.join(taps)} keep qdiscs of their own, as libvirt's <bandwidth> makes them")
    if taken:
        return warning(
            f"{'; '.join(words)}; not divided, because another tool gave them qdiscs: {', '.join(sorted(taken))}",
            "remove that qdisc (tc qdisc del dev NAME root) where Equipoise is to divide the uplink",
        )
    if FAIR_QUEUE in lacking:
        words.append(f"no {FAIR_QUEUE}: flows of one VM wait for each other")
        return degraded("; ".join(words), f"load sch_{FAIR_QUEUE}")
    return works("; ".join(words))


def tap_limit(_subject: Subject) -> CheckResult:
    """By what the kernel takes."""
    try:
        lacking = _lacking(_refused_at_taps)
    except OSError as error:
        return unknown(f"could not be tried: {error}", "run `equipoise doctor` as root")
    if lacking:
        return missing(
            f"this kernel has no {lacking.pop()}",
            "load sch_ingress, cls_u32 and act_police, or run a kernel that has them",
        )
    return works("what batch VMs send at their taps can be limited")


def _lacking(try_all: Callable[[], set[str]]) -> set[str]:
    """What this kernel does not have of all that is used. Raises OSError."""
    lacking: set[str] = set()
    failures: list[OSError] = []

    def attempt() -> None:
        try:
            succeeded(LIBC.unshare(_NEW_NETWORK))
            lacking.update(try_all())
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=attempt, name="network-namespace")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return lacking


def _refused_at_taps() -> set[str]:
    """In the namespace of this thread. Raises OSError."""
    limits, key = TapLimits(lambda _uuid: {_LOOPBACK}), KnobKey(HOST_UUID, Knob.TAP_LIMIT, _LOOPBACK)
    try:
        limits.write(key, MOST_KBIT, VmTarget(HOST_UUID, None, ()))
    except HostError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise OSError(error.errno, str(error)) from error
        return {str(error).rpartition("has no ")[2]}
    return set()


def _refused() -> set[str]:
    """In the namespace of this thread. Raises OSError."""
    control = TrafficControl()
    with contextlib.closing(control):
        try:
            control.add_htb(_LOOPBACK, HANDLE, OTHERS & 0xFFFF)
        except FileNotFoundError:
            return {"HTB"}
        control.put_class(_LOOPBACK, HtbClass(WHOLE, HANDLE, 1000, 1000, 0))
        refused: set[str] = set()
        attempts: tuple[tuple[str, Callable[[], None]], ...] = (
            ("u32", partial(control.add_filter, _LOOPBACK, HANDLE, bytes(6), WHOLE)),
            (FAIR_QUEUE, partial(control.add_queue, _LOOPBACK, WHOLE, FAIR_QUEUE)),
        )
        for what, act in attempts:
            try:
                act()
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.EOPNOTSUPP}:
                    raise
                refused.add(what)
        return refused
