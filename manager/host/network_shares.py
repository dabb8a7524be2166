"""Shares of the uplinks of a host: an HTB qdisc with classes for critical VMs, batch VMs, and all other traffic.

    HANDLE: whole                 the uplink's rate
        others                    what comes from no managed VM, and what no filter knows
        critical, batch           with a class for each VM inside, which borrow from it by turns as long as its quantum

VMs are known by the source addresses of their frames. All of it is undone by removing the qdisc, which is the root one
of its interface. An interface that has a root qdisc of another tool keeps it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.files import names_in, number_of, refused
from manager.host.knob_files import KnobFiles, VmTarget, checked_number
from manager.host.registry import HostPaths
from manager.host.traffic_control import FRAME_BYTES, INGRESS, ROOT, HtbClass, Qdisc, SourceFilter, TrafficControl
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.network import (
    ANOTHER,
    BATCH_PART,
    CRITICAL_PART,
    INCOMPLETE,
    MOST_KBIT,
    NO_RATE,
    OTHERS_PART,
    USUAL_TURN,
    EgressGroup,
    UplinkPort,
)

HANDLE = 0xE951_0000
"""Of our qdisc. Most tools begin at 0x10000, and the kernel gives those without one numbers from 0x80000000 on."""
WHOLE, OTHERS, CRITICAL, BATCH = (HANDLE | minor for minor in (0x1, 0x2, 0x10, 0x20))
_FIRST_VM, _LAST_VM = HANDLE | 0x100, HANDLE | 0xFFFF
_GROUPS = {EgressGroup.BATCH: BATCH, EgressGroup.CRITICAL: CRITICAL}
_GROUP_OF = {parent: group for group, parent in _GROUPS.items()}
_PARTS = {OTHERS: OTHERS_PART, CRITICAL: CRITICAL_PART, BATCH: BATCH_PART}
_TURNS = {CRITICAL: 0, OTHERS: 1, BATCH: 2}
"""Who borrows first what others leave: the priorities of HTB."""
VM_KBIT = 8
"""Guaranteed to each VM for itself: next to nothing, so that those of a group share its part by their turns."""
FAIR_QUEUE = "fq_codel"
LOOK_EVERY = 12
"""Interfaces are examined at every so many looks, and when any come or go."""
_KBIT_PER_MBIT = 1000


class NetworkShares(KnobFiles):
    """Belongs to the control loop's thread. ``addresses`` returns the MAC addresses (6 bytes each) of a domain."""

    def __init__(self, paths: HostPaths, addresses: Callable[[str], Collection[bytes]]) -> None:
        """Nothing is opened yet."""
        self._paths = paths
        self._addresses = addresses
        self._control = TrafficControl()
        self._fair_queues = True
        self._names: tuple[str, ...] = ()
        self._candidates: dict[int, UplinkPort] = {}
        self._unexamined = LOOK_EVERY
        self._listed = False
        self._qdiscs: dict[int, list[Qdisc]] | None = None
        self._ours: dict[int, bool] = {}
        self._classes: dict[int, dict[int, HtbClass]] = {}
        self._filters: dict[int, list[SourceFilter]] = {}
        self._targets: dict[int, dict[bytes, list[int]]] = {}
        self._own: dict[tuple[int, str], HtbClass | None] = {}

    def look(self) -> None:
        """Before a round of readings: what was read before is read anew."""
        self._unexamined += 1
        self._listed = False
        self._read_anew()

    def _read_anew(self) -> None:
        self._qdiscs = None
        self._ours.clear()
        self._classes.clear()
        self._filters.clear()
        self._targets.clear()
        self._own.clear()

    def uplinks(self) -> Mapping[int, UplinkPort]:
        """The interfaces that may be uplinks, by index. Raises HostError."""
        found: dict[int, UplinkPort] = {}
        for index, uplink in self._examined().items():
            sent = None
            with contextlib.suppress(VmVanished):
                if self._is_ours(index):
                    critical = self._classes_of(index).get(CRITICAL)
                    sent = critical.sent_bytes if critical else None
            found[index] = UplinkPort(
                uplink.name, uplink.speed_kbit, uplink.physical, uplink.bridged, self._other(index), sent
            )
        return found

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        divided = [index for index in self._examined() if self._is_ours(index)]
        if vm is not None:
            if not self._addresses(vm.uuid):
                return ()
            own = [index for index in divided if self._own_class(index, vm) is not None]
            return (
                *(KnobKey(vm.uuid, Knob.EGRESS_GROUP, index) for index in divided),
                *(KnobKey(vm.uuid, Knob.EGRESS_TURN, index) for index in own),
            )
        whole = [index for index in divided if BATCH in self._classes_of(index)]
        return (
            *(KnobKey(HOST_UUID, Knob.UPLINK_RATE, index) for index in self._examined()),
            *(KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index) for index in whole),
        )

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        index = key.index
        if key.knob is Knob.UPLINK_RATE:
            return self._rate(index) if index in self._examined() else None
        if not self._is_ours(index):
            return None
        if key.knob is Knob.BATCH_EGRESS:
            batch = self._classes_of(index).get(BATCH)
            if batch is None:
                return None
            return UNLIMITED if batch.ceiling_kbit == MOST_KBIT else batch.ceiling_kbit
        return self._held_by_vm(key, vm) if vm is not None else None

    def _held_by_vm(self, key: KnobKey, vm: VmTarget) -> int | None:
        if key.knob is Knob.EGRESS_GROUP:
            return self._group(key.index, vm)
        own = self._own_class(key.index, vm)
        return None if own is None else own.quantum_bytes // FRAME_BYTES

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        wanted, index = checked_number(key, value), key.index
        if key.knob is Knob.BATCH_EGRESS:
            self._limit_batch(index, MOST_KBIT if wanted == UNLIMITED else max(wanted, 1))
            return
        try:
            with refused(f"{key.knob} {value} of interface {index}"):
                if key.knob is Knob.UPLINK_RATE:
                    self._divide(index, wanted)
                elif not self._is_ours(index):
                    raise VmVanished(f"interface {index} is not divided", errno.ENOENT)
                elif vm is not None and key.knob is Knob.EGRESS_TURN:
                    self._take_turns(index, vm, wanted * FRAME_BYTES)
                elif vm is not None:
                    self._move(index, vm, EgressGroup(wanted))
        finally:
            self._read_anew()

    @property
    def has_classes(self) -> bool:
        """Whether any VM has one, as far as is known."""
        return any(self._filters.values())

    def tidy(self, addresses: Collection[bytes]) -> None:
        """Remove classes of VMs with none of these addresses: they ended. Raises HostError."""
        for index in [index for index, filters in self._filters.items() if filters]:
            left = [held for held in self._filters.get(index, ()) if held.address not in addresses]
            if left:
                with refused(f"classes of interface {index}"):
                    self._remove(index, left)
                self._read_anew()

    def _limit_batch(self, index: int, ceiling_kbit: int) -> None:
        """One class is read, changed and read again: this is the one that changes often."""
        with refused(f"ceiling of batch VMs on interface {index}"):
            batch = self._control.htb_class(index, BATCH)
            self._put(index, BATCH, WHOLE, batch.rate_kbit, ceiling_kbit)
            self._classes_of(index)[BATCH] = self._control.htb_class(index, BATCH)

    def _divide(self, index: int, rate_kbit: int) -> None:
        """Give an uplink its classes, or its qdisc back. What is guaranteed grows or shrinks before the whole."""
        self._read_anew()
        other = self._other(index)
        if other:
            raise HostError(f"interface {index} has the qdisc {other} of another tool", errno.EBUSY)
        ours = self._is_ours(index)
        if rate_kbit == NO_RATE:
            if ours:
                self._control.delete_root(index, HANDLE)
            return
        if not ours:
            with _offered("HTB"):
                self._control.add_htb(index, HANDLE, OTHERS & 0xFFFF)
        there = self._classes_of(index) if ours else {}
        if WHOLE not in there:
            self._put(index, WHOLE, HANDLE, rate_kbit, rate_kbit)
        for handle, part in _PARTS.items():
            ceiling = there[handle].ceiling_kbit if handle in there else MOST_KBIT
            self._put(index, handle, WHOLE, max(int(rate_kbit * part), 1), ceiling)
        if OTHERS not in there:
            self._queue_fairly(index, OTHERS)
        if WHOLE in there:
            self._put(index, WHOLE, HANDLE, rate_kbit, rate_kbit)

    def _put(
        self,
        index: int,
        handle: int,
        parent: int,
        rate_kbit: int,
        ceiling_kbit: int,
        quantum_bytes: int = USUAL_TURN * FRAME_BYTES,
    ) -> None:
        turn = _TURNS.get(handle, _TURNS.get(parent, 0))
        self._control.put_class(index, HtbClass(handle, parent, rate_kbit, ceiling_kbit, turn, quantum_bytes))

    def _queue_fairly(self, index: int, handle: int) -> None:
        """Where the kernel can, flows of one class do not wait for each other."""
        if not self._fair_queues:
            return
        try:
            self._control.add_queue(index, handle, FAIR_QUEUE)
        except FileNotFoundError:
            self._fair_queues = False

    def _move(self, index: int, vm: VmTarget, group: EgressGroup) -> None:
        """The new class comes before the old one goes: what a crash leaves is neither nobody's nor whole."""
        addresses, own = self._addresses(vm.uuid), self._own_class(index, vm)
        quantum_bytes = own.quantum_bytes if own is not None else USUAL_TURN * FRAME_BYTES
        old = [held for held in self._filters_of(index) if held.address in addresses]
        parent = _GROUPS.get(group)
        if parent is not None:
            handle = self._free_class(index)
            self._put(index, handle, parent, VM_KBIT, MOST_KBIT, quantum_bytes)
            self._queue_fairly(index, handle)
            with _offered("u32 filters"):
                for address in sorted(addresses):
                    self._control.add_filter(index, HANDLE, address, handle)
        self._remove(index, old)

    def _take_turns(self, index: int, vm: VmTarget, quantum_bytes: int) -> None:
        own = self._own_class(index, vm)
        if own is None:
            raise VmVanished(f"interface {index} has no class of {vm.uuid}", errno.ENOENT)
        self._control.put_class(index, replace(own, quantum_bytes=quantum_bytes))

    def _own_class(self, index: int, vm: VmTarget) -> HtbClass | None:
        """That which filters lead a VM's packets to; None: it has none, or is not wholly there.

        Kept until all is read anew, as each of a VM's knobs needs it.
        """
        key = index, vm.uuid
        if key not in self._own:
            self._own[key] = self._find_class(index, vm)
        return self._own[key]

    def _find_class(self, index: int, vm: VmTarget) -> HtbClass | None:
        addresses = self._addresses(vm.uuid)
        by_address = self._targets_of(index)
        targets = [target for address in addresses for target in by_address.get(address, ())]
        if not targets or len(targets) != len(addresses) or len(set(targets)) > 1:
            return None
        return self._classes_of(index).get(targets[0])

    def _free_class(self, index: int) -> int:
        """One that no filter leads to. Such a class that is there was left over: it goes."""
        taken = {held.target for held in self._filters_of(index)}
        handle = next((handle for handle in range(_FIRST_VM, _LAST_VM) if handle not in taken), None)
        if handle is None:
            raise HostError(f"interface {index} has no class left", errno.ENOSPC)
        if handle in self._classes_of(index):
            self._control.delete_class(index, handle)
        return handle

    def _remove(self, index: int, filters: Collection[SourceFilter]) -> None:
        """Remove filters, and the classes of VMs that none leads to any more."""
        for held in filters:
            self._control.delete_filter(index, HANDLE, held.handle)
        removed = {held.handle for held in filters}
        kept = {held.target for held in self._filters_of(index) if held.handle not in removed}
        for handle in {held.target for held in filters} - kept:
            if handle >= _FIRST_VM and handle in self._classes_of(index):
                self._control.delete_class(index, handle)

    def _rate(self, index: int) -> int:
        if not self._is_ours(index):
            return ANOTHER if self._other(index) else NO_RATE
        classes = self._classes_of(index)
        return classes[WHOLE].rate_kbit if classes.keys() >= {WHOLE, OTHERS, CRITICAL, BATCH} else INCOMPLETE

    def _group(self, index: int, vm: VmTarget) -> int | None:
        addresses = self._addresses(vm.uuid)
        if not addresses:
            return None
        by_address = self._targets_of(index)
        if not any(by_address.get(address) for address in addresses):
            return int(EgressGroup.OTHERS)
        held = self._own_class(index, vm)
        if held is None:
            return int(EgressGroup.PARTLY)
        whole = held.rate_kbit == VM_KBIT and held.ceiling_kbit == MOST_KBIT
        if not whole or held.priority != _TURNS.get(held.parent):
            return int(EgressGroup.CHANGED)
        return int(_GROUP_OF.get(held.parent, EgressGroup.CHANGED))

    def _is_ours(self, index: int) -> bool:
        if index not in self._ours:
            roots = self._roots(index)
            self._ours[index] = any(qdisc.handle == HANDLE and qdisc.kind == "htb" for qdisc in roots)
        return self._ours[index]

    def _other(self, index: int) -> str:
        """The qdisc that another tool gave an interface, or a queue of it, as tc shows it; empty: none."""
        if self._is_ours(index):
            return ""
        made = (qdisc for qdisc in self._qdiscs_of(index) if qdisc.handle and qdisc.parent != INGRESS)
        return next((f"{qdisc.kind} {qdisc.handle >> 16:x}:" for qdisc in made), "")

    def _roots(self, index: int) -> Iterator[Qdisc]:
        return (qdisc for qdisc in self._qdiscs_of(index) if qdisc.parent == ROOT)

    def _qdiscs_of(self, index: int) -> list[Qdisc]:
        if self._qdiscs is None:
            found: dict[int, list[Qdisc]] = {}
            with refused("qdiscs"):
                for qdisc in self._control.qdiscs():
                    found.setdefault(qdisc.interface, []).append(qdisc)
            self._qdiscs = found
        return self._qdiscs.get(index, [])

    def _classes_of(self, index: int) -> dict[int, HtbClass]:
        if index not in self._classes:
            with refused(f"classes of interface {index}"):
                self._classes[index] = {held.handle: held for held in self._control.classes(index)}
        return self._classes[index]

    def _filters_of(self, index: int) -> list[SourceFilter]:
        if index not in self._filters:
            with refused(f"filters of interface {index}"):
                self._filters[index] = self._control.filters(index, HANDLE)
        return self._filters[index]

    def _targets_of(self, index: int) -> dict[bytes, list[int]]:
        """The classes that filters lead to, by address: mostly one."""
        if index not in self._targets:
            found: dict[bytes, list[int]] = {}
            for held in self._filters_of(index):
                found.setdefault(held.address, []).append(held.target)
            self._targets[index] = found
        return self._targets[index]

    def _examined(self) -> Mapping[int, UplinkPort]:
        """Interfaces that may be uplinks: hardware, and ports of bridges that are no taps. Raises HostError."""
        if self._listed:
            return self._candidates
        with refused("network interfaces"):
            names = tuple(names_in(self._paths.interfaces))
        # One whose driver was loaded anew has the name that it had, and another index.
        same = all(_index(self._paths.interfaces / each.name) == index for index, each in self._candidates.items())
        if names != self._names or not same or self._unexamined >= LOOK_EVERY:
            self._names, self._unexamined = names, 0
            self._candidates = dict(uplink for name in names if (uplink := _examine(self._paths.interfaces / name)))
        self._listed = True
        return self._candidates


def taps_with_qdiscs(paths: HostPaths) -> list[str]:
    """Names of the taps that somebody gave a qdisc, as libvirt does for ``<bandwidth>``. Raises HostError."""
    control = TrafficControl()
    with contextlib.closing(control), refused("qdiscs"):
        made = {qdisc.interface for qdisc in control.qdiscs() if qdisc.handle and qdisc.parent == ROOT}
        names = [name for name in names_in(paths.interfaces) if (paths.interfaces / name / "tun_flags").exists()]
        return [name for name in names if number_of(paths.interfaces / name / "ifindex") in made]


@contextlib.contextmanager
def _offered(what: str) -> Iterator[None]:
    """Raises HostError where the kernel does not know what it is asked for."""
    try:
        yield
    except FileNotFoundError as error:
        raise HostError(f"this kernel has no {what}", errno.EOPNOTSUPP) from error


def _examine(folder: Path) -> tuple[int, UplinkPort] | None:
    """By Documentation/ABI/testing/sysfs-class-net. None: it is no uplink, or gone."""
    with contextlib.suppress(OSError, ValueError):
        device = folder / "device"
        physical = device.exists() and not (device / "physfn").exists()  # a VF's packets are its VM's
        bridged = (folder / "brport").exists() and not (folder / "tun_flags").exists()
        index = _index(folder)
        if index is not None and (physical or bridged):
            return index, UplinkPort(folder.name, _speed_kbit(folder), physical, bridged)
    return None


def _index(folder: Path) -> int | None:
    """None of an interface that is gone."""
    with contextlib.suppress(OSError, ValueError):
        return number_of(folder / "ifindex")
    return None


def _speed_kbit(folder: Path) -> int | None:
    """None: it says none, as virtio and an interface that is down (EINVAL, or -1)."""
    with contextlib.suppress(OSError, ValueError):
        speed = number_of(folder / "speed")
        return speed * _KBIT_PER_MBIT if speed is not None and speed > 0 else None
    return None
