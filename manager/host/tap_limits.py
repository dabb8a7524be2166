"""Limits of what VMs send at their taps: an ingress qdisc of ours with one filter. A qdisc of another tool stays."""

from __future__ import annotations

import contextlib
import errno
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping

from manager.errors import HostError, VmVanished
from manager.host import policing
from manager.host.files import refused
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.netlink import RouteSocket
from manager.host.traffic_control import INGRESS, TrafficControl
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.network import ANOTHER, INCOMPLETE, NO_RATE


class TapLimits(KnobFiles):
    """Belongs to the control loop's thread. ``taps`` returns the indexes of a domain's taps."""

    def __init__(self, taps: Callable[[str], Collection[int]]) -> None:
        """Nothing is opened yet."""
        self._taps = taps
        self._control = TrafficControl()
        self._link: RouteSocket | None = None
        self._qdiscs: Mapping[int, str] | None = None
        self._limits: Mapping[int, int] | None = None

    def look(self) -> None:
        """Before a round of readings: what was read before is read anew."""
        self._qdiscs = self._limits = None

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        indexes = sorted(self._taps(vm.uuid)) if vm is not None else ()
        return (KnobKey(vm.uuid, Knob.TAP_LIMIT, index) for index in indexes if vm is not None)

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        index = key.index
        if vm is None or index not in self._taps(vm.uuid):
            return None
        with refused(f"limit of interface {index}"):
            qdisc = self._ingress_qdiscs().get(index)
            if qdisc is None:
                return NO_RATE
            limit = self._all_limits().get(index) if qdisc == policing.KIND else None
            if limit is None:
                empty = qdisc == policing.KIND and not policing.has_filters(self._socket(), index)
                return INCOMPLETE if empty else ANOTHER
            return limit

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        wanted, index = checked_number(key, value), key.index
        held = self.held(key, vm)
        if held is None or index > policing.MOST_INDEX:
            raise VmVanished(f"the VM has no tap {index}", errno.ENODEV)
        if held == ANOTHER:
            raise HostError(f"interface {index} has an ingress qdisc of another tool", errno.EBUSY)
        try:
            with refused(f"limit of interface {index}"):
                self._set(index, held, wanted)
        finally:
            self.look()

    def _set(self, index: int, held: int, wanted: int) -> None:
        if wanted == NO_RATE:
            if held != NO_RATE:
                policing.delete_ingress(self._socket(), index)
            return
        if held > 0:
            policing.change_limit(self._socket(), index, wanted)
            return
        if held == NO_RATE:
            self._begin(index)
        try:
            policing.police(self._socket(), index, wanted)
            # An action that is about to go, as its qdisc was just removed, is taken up again with the rate it had.
            policing.change_limit(self._socket(), index, wanted)
        except OSError as error:
            with contextlib.suppress(OSError):
                policing.delete_ingress(self._socket(), index)
            if policing.lacks_policing(error):
                raise _not_offered("police actions (act_police), or u32 filters") from error
            raise

    def _begin(self, index: int) -> None:
        try:
            policing.add_ingress(self._socket(), index)
        except FileNotFoundError as error:
            raise _not_offered("ingress qdiscs (sch_ingress)") from error

    def _ingress_qdiscs(self) -> Mapping[int, str]:
        """Their kinds, by index of the interface."""
        if self._qdiscs is None:
            self._qdiscs = {held.interface: held.kind for held in self._control.qdiscs() if held.parent == INGRESS}
        return self._qdiscs

    def _all_limits(self) -> Mapping[int, int]:
        """One answer for all taps."""
        if self._limits is None:
            self._limits = policing.limits(self._socket())
        return self._limits

    def _socket(self) -> RouteSocket:
        if self._link is None:
            self._link = RouteSocket()
            weakref.finalize(self, self._link.close)
        return self._link


def _not_offered(what: str) -> HostError:
    return HostError(f"this kernel has no {what}", errno.EOPNOTSUPP)
