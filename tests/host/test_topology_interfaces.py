"""What is discovered of network interfaces: which vectors are queues, and which CPUs these may interrupt."""

from __future__ import annotations

import pytest

from tests.host.tree import Tree

VECTORS = {
    "mlx5": (["mlx5_async0@pci:0000:00:03.0", "mlx5_comp0@pci:0000:00:03.0", "mlx5_comp1@pci:0000:00:03.0"], [1, 2]),
    "mlx4": (["mlx4-async@pci:0000:00:03.0", "mlx4-1@0000:00:03.0", "eth0-0"], [1, 2]),
    "i40e": (["i40e-0000:00:03.0:misc", "i40e-eth0-TxRx-0", "i40e-eth0-TxRx-1"], [1, 2]),
    "iavf": (["iavf-0000:00:03.0:mbx", "iavf-eth0-TxRx-0"], [1]),
    "ixgbe": (["eth0-TxRx-0", "eth0-TxRx-1", "eth0"], [0, 1]),
    "e1000e": (["eth0-rx-0", "eth0-tx-0", "eth0"], [0, 1]),
    "e1000": (["eth0"], [0]),
    "bnxt_en": (["eth0-TxRx-0", "eth0-TxRx-1"], [0, 1]),
    "ena": (["ena-mgmnt@pci:0000:00:03.0", "eth0-Tx-Rx-0"], [1]),
    "nfp": (["eth0-lsc", "eth0-exn", "eth0-rxtx-0"], [2]),
    "vmxnet3": (["eth0-rxtx-0", "eth0-event-1"], [0]),
    "virtio": (["virtio0-config", "virtio0-input.0", "virtio0-output.0", "virtio0-control"], [1, 2]),
    "virtio with one vector for all queues": (["virtio0-config", "virtio0-virtqueues"], [1]),
    "a vector that nobody took": (["", "eth0-TxRx-0"], [1]),
    "shared with another device": (["ehci_hcd:usb1,eth0"], [0]),
    "an interface that is down": (["mlx5_async0@pci:0000:00:03.0", ""], []),
    "names of the old interface name": (["eth1", "eth1-TxRx-0"], [1]),
}


@pytest.mark.parametrize("driver", VECTORS)
def test_which_vectors_are_queues(tree: Tree, driver: str) -> None:
    actions, queues = VECTORS[driver]
    tree.interface("eth0", "0000:00:03.0", range(40, 40 + len(actions)))
    for number, action in enumerate(actions):
        tree.add(f"sys/kernel/irq/{40 + number}/actions: {action}")
    assert [queue.irq - 40 for queue in tree.discover().queues] == queues


def test_an_interface_that_is_named_as_a_control_vector_keeps_its_queues(tree: Tree) -> None:
    tree.interface("mgmt", "0000:00:03.0", [40, 41])
    tree.add("sys/kernel/irq/40/actions: mgmt-TxRx-0\nsys/kernel/irq/41/actions: i40e-0000:00:03.0:misc")
    assert [queue.irq for queue in tree.discover().queues] == [40]


def test_vectors_without_names_are_kept(tree: Tree) -> None:
    tree.interface("eth0", "0000:00:03.0", [41, 9])
    found = tree.discover().queues
    assert [(queue.irq, queue.interface, queue.cpus, queue.serving) for queue in found] == [
        (9, "eth0", frozenset(range(8)), {1}),
        (41, "eth0", frozenset(range(8)), {1}),
    ]
    assert tree.discover().interrupted == {1}


def test_a_virtio_interface_has_the_vectors_of_its_parent(tree: Tree) -> None:
    tree.interface("eth0", "0000:00:03.0/virtio2", [40])
    assert [queue.irq for queue in tree.discover().queues] == [40]


def test_a_usb_interface_has_none_although_its_controller_does(tree: Tree) -> None:
    tree.interface("usb0", "0000:00:14.0/1-1:1.0", [40])
    assert tree.discover().queues == ()


def test_an_interface_without_msi(tree: Tree) -> None:
    tree.interface("eth0", "0000:00:03.0")
    tree.add("PCI/0000:00:03.0/irq: 16\nproc/irq/16/smp_affinity_list: 0-63")
    (queue,) = tree.discover().queues
    assert (queue.irq, queue.cpus, queue.serving) == (16, frozenset(range(8)), frozenset(range(8)))
    tree.add("PCI/0000:00:03.0/irq: 0")
    assert tree.discover().queues == ()


def test_queues_are_in_order_of_their_interrupts(tree: Tree) -> None:
    tree.interface("eth0", "0000:00:03.0", [40, 42])
    tree.interface("eth1", "0000:00:04.0", [39, 41])
    assert [(queue.irq, queue.interface[-1]) for queue in tree.discover().queues] == [
        (39, "1"),
        (40, "0"),
        (41, "1"),
        (42, "0"),
    ]


def test_interfaces_without_hardware_have_no_queues(tree: Tree) -> None:
    tree.add("sys/class/net/{lo,br0,vnet0}/ifindex: 1\nsys/class/net/bonding_masters: bond0")
    tree.add("sys/class/net/bond0 -> ../../devices/virtual/net/bond0")
    assert tree.discover().queues == ()


def test_ports_of_one_function_share_its_vectors_and_each_is_listed_once(tree: Tree) -> None:
    for name in ("eth0", "eth1"):
        tree.interface(name, "0000:00:03.0", [40, 41, 42])
    tree.add(
        "sys/kernel/irq/40/actions: eth0-0\nsys/kernel/irq/41/actions: eth1-0\nsys/kernel/irq/42/actions: mlx4-1@x"
    )
    assert [(queue.irq, queue.interface) for queue in tree.discover().queues] == [
        (40, "eth0"),
        (41, "eth1"),
        (42, "eth0"),
    ]


@pytest.mark.parametrize(
    ("allowed", "effective", "cpus", "serving"),
    [
        ("0-3", "2", {0, 1, 2, 3}, {2}),
        ("0-3", None, {0, 1, 2, 3}, {0, 1, 2, 3}),
        ("0-3", "", {0, 1, 2, 3}, {0, 1, 2, 3}),
        ("0-3", "x", {0, 1, 2, 3}, {0, 1, 2, 3}),
        (None, "2", {2}, {2}),
        ("x", "2", {2}, {2}),
        ("0-255", "200", set(range(8)), set()),
        (None, None, None, None),
    ],
)
def test_affinities(
    tree: Tree, allowed: str | None, effective: str | None, cpus: set[int] | None, serving: set[int] | None
) -> None:
    tree.interface("eth0", "0000:00:03.0", [40])
    for name, text in (("smp", allowed), ("effective", effective)):
        if text is None:
            tree.remove(f"proc/irq/40/{name}_affinity_list")
        else:
            tree.add(f"proc/irq/40/{name}_affinity_list: {text}")
    assert [(queue.cpus, queue.serving) for queue in tree.discover().queues] == (
        [] if cpus is None else [(cpus, serving)]
    )


def test_an_affinity_that_is_read_only_is_the_kernels(tree: Tree) -> None:
    tree.interface("eth0", "0000:00:03.0", [40, 41])
    tree.add("proc/irq/41/smp_affinity_list (0444): 0-7")
    assert [queue.managed for queue in tree.discover().queues] == [False, True]


def test_a_links_loop_is_no_hardware(tree: Tree) -> None:
    tree.add("sys/class/net/eth0/device -> device")
    assert tree.discover().queues == ()
