"""Whether response times can be measured from the packets at taps, tried on the loopback for an instant."""

from __future__ import annotations

import socket
from contextlib import closing

from manager.errors import HostError
from manager.host.doctor.check import CheckResult, Subject, missing, not_tried, works
from manager.host.taps import TapProgram
from manager.model.traffic import TapWay

_NOTES = {
    TapWay.TCX: "",
    TapWay.PACKET_SOCKET: ": this kernel has no TCX links (Linux 6.6), which copy no packets",
}


def taps(subject: Subject) -> CheckResult:
    if subject.quick:
        return not_tried("--quick")
    try:
        with closing(TapProgram(subject.paths)) as program:
            way = program.attach(socket.if_nametoindex("lo"))
            program.traffic()
    except HostError as error:
        return missing(f"not from packets: {error}", "install bpftool, run Linux 5.14 or newer; other sources work")
    return works(f"from packets at taps, by a {way}{_NOTES[way]}")
