"""What happens to a host in the tests of faults: VMs, orders of the operator, and whose each setting is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from manager.model.cpus import CpuSet
from manager.model.decision import Decision
from manager.model.host import CPU_SHARES_V1, Quota, WeightScale
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, PINS, SCHEDULINGS, Knob, KnobKey
from manager.model.law import Law
from manager.model.registration import Assignment, HostSpec, VmClass, VmSpec
from manager.model.resource_use import ResourceUse, VmResources
from manager.model.topology import NicQueue, Topology
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid

Order = Callable[["Stage"], None]


def nothing(_stage: Stage) -> None:
    """Nobody orders anything and nothing happens."""


def release(stage: Stage) -> None:
    """The operator takes the host back."""
    stage.released = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """``build`` makes the VMs and registers them; before each tick is one of ``orders``, and a release at the end.

    ``free``: several placements are as good, so that a fault may lead to another one for good.
    """

    name: str
    build: Order
    orders: tuple[Order, ...]
    free: bool = False
    scale: WeightScale = CPU_SHARES_V1
    cpus: int = 4

    @property
    def all_orders(self) -> tuple[Order, ...]:
        """With the release and time to recover from what goes wrong in it."""
        return (*self.orders, release, nothing, nothing, nothing)


class Stage:
    """The host and its operator.

    ``originals`` are the values that the host is to have without us, and ``others`` those that somebody else gave a
    knob while we had it. ``meddled`` are all knobs that somebody else ever changed, ``narrowed`` all that they left to
    be given back of one, ``inherited`` where plugged vCPUs began, ``lost`` the pCPUs that ever were offline.
    ``decision`` is what the policy `told` decides.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.host = FakeHost(cpus=scenario.cpus, scale=scenario.scale)
        self.assignment = Assignment(HostSpec("h1"))
        self.now_s = 1000.0
        self.released = False
        self.starving: set[str] = set()
        self.originals: dict[KnobKey, KnobValue] = {}
        self.others: dict[KnobKey, KnobValue] = {}
        self.meddled: set[KnobKey] = set()
        self.narrowed: dict[KnobKey, KnobValue] = {}
        self.inherited: dict[KnobKey, KnobValue] = {}
        self.lost: CpuSet = frozenset()
        self.decision = Decision()
        self.use = ResourceUse()
        self._orders = scenario.all_orders
        self._owned: Set[KnobKey] = frozenset()
        scenario.build(self)
        self.originals |= self._hidden()

    def _hidden(self) -> dict[KnobKey, KnobValue]:
        return {key: value for key, value in self.host.settings().items() if key not in self.originals}

    def proceed(self, number: int, owned: Set[KnobKey]) -> None:
        """What comes before tick ``number``; ``owned`` are the knobs in the journal."""
        self._owned = owned
        self._orders[number](self)

    def pass_time(self) -> None:
        """A second goes by, in which each VM gets half a pCPU, or nothing and waits."""
        self.now_s += 1.0
        for vm in self.host.vms.values():
            if vm.instance.libvirt_name in self.starving:
                vm.delay_ns += 10**9
            else:
                vm.cpu_ns += 5 * 10**8

    def boot(
        self,
        name: str,
        vm_class: str = "critical",
        vcpus: int = 1,
        *,
        iothreads: Iterable[int] = (),
        weight: int | None = None,
        quota_us: int | None = None,
        registered: bool = True,
        **fields: object,
    ) -> None:
        """Start a VM and register it; ``weight`` and ``quota_us`` are what it has before we come."""
        uuid = self.host.boot(name, vcpus)
        vm = self.host.vms[uuid]
        vm.iothreads = dict.fromkeys(iothreads, self.host.online)
        vm.weight = weight or vm.weight
        if quota_us is not None:
            vm.quota = Quota(quota_us, vm.quota.period_us)
        self.forget(uuid)
        self.originals |= self._hidden()
        if registered:
            spec = replace(VmSpec(name, VmClass(vm_class), libvirt_name=name), **fields)  # type: ignore[arg-type]
            self.assignment = replace(self.assignment, vms=(*self.assignment.vms, spec))

    def had(self, name: str, knob: Knob, value: KnobValue, index: int = 0) -> None:
        """The operator had set a knob before we came."""
        self.host.change(KnobKey(domain_uuid(name), knob, index), value)
        self.originals = {key: one for key, one in self.originals.items() if key.uuid != domain_uuid(name)}
        self.originals |= self._hidden()

    def boot_again(self, name: str, vcpus: int = 1) -> None:
        """Another run of a registered VM."""
        self.stop(name)
        self.host.boot(name, vcpus)
        self.originals |= self._hidden()

    def stop(self, name: str) -> None:
        """A VM ends."""
        self.host.stop(name)
        self.forget(domain_uuid(name))

    def forget(self, uuid: str) -> None:
        """A VM ended: its settings with it."""
        for known in (self.originals, self.others, self.narrowed):
            for key in [key for key in known if key.uuid == uuid]:
                del known[key]
        self.meddled = {key for key in self.meddled if key.uuid != uuid}

    def runs(self, name: str) -> bool:
        """Whether a VM is there (still: it may be what went wrong)."""
        return domain_uuid(name) in self.host.vms

    def control(self, **fields: object) -> None:
        """Change how the host is controlled."""
        self.assignment = replace(self.assignment, host=replace(self.assignment.host, **fields))  # type: ignore[arg-type]

    def placement(self, **fields: object) -> None:
        """Change the host's rules of placement."""
        self.control(placement=replace(self.assignment.host.placement, **fields))  # type: ignore[arg-type]

    def decide(self, **goals: object) -> None:
        """From now on the policy `told` wants this, and nothing else."""
        self.decision = Decision(**goals)  # type: ignore[arg-type]

    def measure(self, **fields: Mapping[str, object]) -> None:
        """From now on each round of readings measures this of VMs, besides what it measured before."""
        known = {use.vm: use for use in self.use.vms}
        for name, more in fields.items():
            known[name] = replace(known.get(name, VmResources(name)), **more)  # type: ignore[arg-type]
        vms = tuple(known[name] for name in sorted(known))
        self.use = replace(self.use, vms=vms, memory_bytes=1 << 30)

    def prompt_floor(self, share: float = 0.05) -> None:
        """Batch VMs are judged by their last second alone."""
        self.control(law=Law(batch_floor=share, floor_window_s=1.0))

    def change(self, name: str, **fields: object) -> None:
        """Change a VM's registration."""
        self.assignment = replace(
            self.assignment,
            vms=tuple(
                replace(spec, **fields) if spec.name == name else spec  # type: ignore[arg-type]
                for spec in self.assignment.vms
            ),
        )

    def unregister(self, name: str) -> None:
        self.assignment = replace(self.assignment, vms=tuple(one for one in self.assignment.vms if one.name != name))

    def meddle(self, name: str, knob: Knob, value: KnobValue, index: int = 0) -> None:
        """Somebody else changes a knob, where it is there."""
        key = KnobKey(domain_uuid(name) if name else HOST_UUID, knob, index)
        if key not in self.host.settings() or self._is_of_no_uplink(key):
            return
        self.host.change(key, value)
        self.meddled.add(key)
        elsewhere = self.narrowed if knob.spec.made_here else self.originals
        (self.others if key in self._owned else elsewhere)[key] = value

    def _is_of_no_uplink(self, key: KnobKey) -> bool:
        if key.knob is Knob.EGRESS_TURN:
            return not self.host.has_class(key.uuid, key.index)
        return key.knob in {Knob.BATCH_EGRESS, Knob.EGRESS_GROUP} and key.index not in self.host.divided

    def follow_uplinks(self) -> None:
        """What others changed in classes of an uplink ends with these."""
        for known in (self.others, self.narrowed):
            for key in [key for key in known if self._is_of_no_uplink(key)]:
                del known[key]

    def narrow(self, key: KnobKey, value: KnobValue) -> None:
        """Somebody gives a thread a smaller cpuset just when it goes back to its original."""
        self.narrowed[key] = value
        self.meddled.add(key)

    def is_original(self, key: KnobKey, value: KnobValue | None) -> bool:
        """Whether that is what it is to have without us, or all it can be given of that."""
        return self.alike(value, self.originals.get(key)) or (key in self.narrowed and value == self.narrowed[key])

    def adopt(self, name: str) -> None:
        """The operator has the settings of a VM, or the host's, taken back: what they hold is the original now."""
        if not name:
            self.control(adoptions=self.assignment.host.adoptions + 1)
        for spec in self.assignment.vms:
            if spec.name == name:
                self.change(name, adoptions=spec.adoptions + 1)
        uuid = domain_uuid(name) if name else HOST_UUID
        for key in [key for key in self.others if key.uuid == uuid]:
            # What only we make has no other original, and is as they left it until it is taken again.
            (self.narrowed if key.knob.spec.made_here else self.originals)[key] = self.others.pop(key)

    def plug(self, name: str) -> None:
        """One vCPU more: without us it would run where the emulator would.

        If the agent never saw that its number was free, it looks as if somebody else had moved the one before.
        """
        if not self.runs(name):
            return
        self.host.plug_vcpu(name)
        vm = self.host.vms[domain_uuid(name)]
        key = KnobKey(vm.instance.uuid, Knob.VCPU_PIN, len(vm.vcpus) - 1)
        emulator = KnobKey(vm.instance.uuid, Knob.EMULATOR_PIN)
        self.inherited[key] = vm.emulator
        self.originals[key] = self.originals[emulator]
        if emulator in self.narrowed:
            self.narrow(key, self.narrowed[emulator])
        if key in self._owned:
            self.meddled.add(key)
            self.others[key] = vm.emulator
        self.originals |= {key: value for key, value in self._hidden().items() if key.knob in SCHEDULINGS}

    def unplug(self, name: str) -> None:
        """The last vCPU goes."""
        if self.runs(name):
            uuid = domain_uuid(name)
            self.host.unplug_vcpu(name)
            for knob in SCHEDULINGS | {Knob.VCPU_PIN}:
                key = KnobKey(uuid, knob, len(self.host.vms[uuid].vcpus))
                if key not in self.host.settings():
                    self.originals.pop(key, None)
                    self.others.pop(key, None)

    def offline(self, cpu: int) -> None:
        self.host.unplug_cpu(cpu)
        self.lost |= {cpu}

    def online(self, cpu: int) -> None:
        self.host.offline.discard(cpu)

    def interrupts(self, *irqs: int) -> None:
        """A network interface with a queue for each."""
        self.host.irqs = dict.fromkeys(irqs, self.host.online)
        queues = tuple(NicQueue("eth0", irq, self.host.online, frozenset({0})) for irq in irqs)
        self.host.topology = replace(Topology.flat(self.host.online), queues=queues)

    def alike(self, one: KnobValue | None, other: KnobValue | None) -> bool:
        """Whether two values are the same but for pCPUs that were offline, which the kernel leaves out."""
        if isinstance(one, frozenset) and isinstance(other, frozenset):
            return one - self.lost == other - self.lost
        return one == other


def is_pin(key: KnobKey) -> bool:
    """Of a VM's thread."""
    return key.knob in PINS
