"""The map of pCPUs, the controls and the state of an agent, from what the interface answers."""

from __future__ import annotations

from typing import Any

import pytest

from manager.model.warp import TITLES, Mechanism
from webui.cpu_map import CpuMap, Use, draw_map
from webui.host_view import Contact, controls, grouped, heard, vm_lines

NOW_S = 1_772_366_400.0  # 2026-03-01 12:00:00 UTC


def place(number: int, **changes: Any) -> dict[str, Any]:
    found = {"number": number, "core": number, "socket": 0, "node": 0, "l3": 0, "capacity": 1.0, "isolated": False}
    return {**found, **changes}


def capabilities(cpus: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    numbers = ",".join(str(cpu["number"]) for cpu in cpus)
    return {
        "online_cpus": numbers,
        "managed_cpus": numbers,
        "topology": {"cpus": cpus, "queues": []},
        **changes,
    }


def knob(name: str, value: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "knob": name,
        "index": index,
        "value": value,
        "original": None,
        "owned": False,
        "external": False,
        **changes,
    }


def vm(name: str, vm_class: str, *knobs: dict[str, Any], host: str | None = "kvm1") -> dict[str, Any]:
    return {"name": name, "class": vm_class, "status_host": host, "status": {"knobs": list(knobs)} if host else None}


def shape(drawn: CpuMap) -> Any:
    """Titles and numbers alone, nested as the map is."""
    return [
        (socket.title, node.title, cache.title, [[cell.number for cell in core.cells] for core in cache.inside])
        for socket in drawn.boxes
        if socket.kind == "socket"
        for node in socket.inside
        for cache in node.inside  # type: ignore[union-attr]
    ]


def uses(drawn: CpuMap) -> dict[int, Use]:
    return {cell.number: cell.use for cell in drawn.cells}


def test_cpus_stand_in_their_sockets_nodes_caches_and_cores() -> None:
    cpus = [
        place(number, core=number % 4, socket=number % 4 // 2, node=number % 4 // 2, l3=number % 4 // 2 * 2)
        for number in range(8)
    ]
    assert shape(draw_map(capabilities(cpus), "", [])) == [
        ("Socket 0", "NUMA node 0", "L3 cache of pCPUs 0-1,4-5", [[0, 4], [1, 5]]),
        ("Socket 1", "NUMA node 1", "L3 cache of pCPUs 2-3,6-7", [[2, 6], [3, 7]]),
    ]


def test_each_cpu_says_what_it_is_for_by_letter_and_in_words() -> None:
    cpus = [place(number) for number in range(6)]
    cpus[4]["isolated"] = True
    cpus[3]["capacity"] = 0.5
    told = capabilities(
        cpus,
        managed_cpus="0-4",
        topology={"cpus": cpus, "queues": [{"interface": "eth0", "irq": 40, "cpus": "0-5", "serving": "0"}]},
    )
    web = vm("web", "critical", knob("vcpu_pin", "1"), knob("emulator_pin", "1"))
    crunch = vm("crunch", "batch", knob("vcpu_pin", "2"))
    drawn = draw_map(told, "0", [web, crunch])
    assert uses(drawn) == {
        0: Use.RESERVED,
        1: Use.CRITICAL,
        2: Use.BATCH,
        3: Use.SHARED,
        4: Use.ISOLATED,
        5: Use.UNMANAGED,
    }
    words = {cell.number: cell.text for cell in drawn.cells}
    assert words[1].endswith("web: vCPU 0, emulator")
    assert "serves eth0 interrupt 40" in words[0]
    assert "50 % of the speed" in words[3]
    assert [cell.mark for cell in drawn.cells] == ["R", "C", "B", "·", "I", "U"]
    assert drawn.uses == (Use.CRITICAL, Use.BATCH, Use.SHARED, Use.RESERVED, Use.ISOLATED, Use.UNMANAGED)


def test_gaps_in_the_online_cpus_are_offline() -> None:
    drawn = draw_map(capabilities([place(0), place(3)]), "", [])
    assert [cell.number for cell in drawn.cells if cell.use is Use.OFFLINE] == [1, 2]
    assert uses(drawn)[1] is Use.OFFLINE


def test_online_cpus_of_which_nothing_else_is_known_are_shown() -> None:
    told = {"online_cpus": "0-2", "managed_cpus": "0-2", "topology": {"cpus": [], "queues": []}}
    assert shape(draw_map(told, "", [])) == [("Socket 0", "NUMA node 0", "L3 cache of pCPUs 0-2", [[0], [1], [2]])]


def test_vms_without_pcpus_of_their_own_are_listed_by_where_they_may_run() -> None:
    told = capabilities([place(number) for number in range(4)])
    free = vm("free", "batch", knob("vcpu_pin", "0-3"), knob("vcpu_pin", "0-3", 1))
    fenced = vm("fenced", "batch", knob("vcpu_pin", "2-3"), knob("vcpu_pin", "2-3", 1), knob("emulator_pin", "2-3"))
    drawn = draw_map(told, "", [free, fenced])
    assert [(group.pcpus, group.vms) for group in drawn.roaming] == [(None, ("free",)), ("2-3", ("fenced",))]
    assert set(uses(drawn).values()) == {Use.SHARED}


def test_on_a_host_of_one_pcpu_nobody_is_pinned() -> None:
    drawn = draw_map(capabilities([place(0)]), "", [vm("web", "critical", knob("vcpu_pin", "0"))])
    assert uses(drawn) == {0: Use.SHARED}
    assert [(group.pcpus, group.vms) for group in drawn.roaming] == [(None, ("web",))]


def test_two_vms_on_one_cpu_are_both_told() -> None:
    told = capabilities([place(0), place(1)])
    drawn = draw_map(told, "", [vm(name, "critical", knob("vcpu_pin", "1")) for name in ("a", "b")])
    assert drawn.cells[1].label == "2 VMs"
    assert "a: vCPU 0; b: vCPU 0" in drawn.cells[1].text


@pytest.mark.parametrize(("cpus", "dense"), [(1, False), (64, False), (65, True), (256, True)])
def test_large_hosts_are_drawn_densely(cpus: int, dense: bool) -> None:
    drawn = draw_map(capabilities([place(number) for number in range(cpus)]), "", [])
    assert (len(drawn.cells), drawn.dense) == (cpus, dense)


@pytest.mark.parametrize(
    ("last_seen_at", "silent", "contact", "words"),
    [
        (None, False, Contact.NEVER, None),
        ("2026-03-01T11:59:31Z", False, Contact.LIVE, "29 s ago"),
        ("2026-03-01T11:57:00Z", False, Contact.LIVE, "3 min ago"),
        ("2026-03-01T11:59:59Z", True, Contact.SILENT, "1 s ago"),
        ("2026-02-27T12:00:00Z", True, Contact.SILENT, "2 days ago"),
        ("2026-03-01T12:00:05Z", False, Contact.LIVE, "0 s ago"),
    ],
)
def test_an_agent_is_silent_where_the_interface_says_so(
    last_seen_at: str | None, silent: bool, contact: Contact, words: str | None
) -> None:
    found = heard({"last_seen_at": last_seen_at, "silent": silent}, NOW_S)
    assert (found.contact, found.when) == (contact, words)


def test_a_line_of_a_vm_tells_what_is_in_force_and_what_others_changed() -> None:
    web = vm(
        "web",
        "critical",
        knob("weight", "9100", original="100", owned=True),
        knob("vcpu_pin", "2", original="0-3", external=True),
        knob("quota", "-1"),
    )
    batch = vm(
        "crunch", "batch", knob("weight", "1"), knob("idle", "1"), knob("vcpu_pin", "0-3"), knob("quota", "50000")
    )
    gone = vm("gone", "critical", knob("weight", "7"), host="kvm2")
    lines = {line.vm["name"]: line for line in vm_lines([batch, web, gone], "kvm1", frozenset(range(4)))}
    assert list(lines) == ["gone", "web", "crunch"]
    assert (lines["web"].weight, lines["web"].original, lines["web"].pins) == ("9100", "100", "pinned to 2")
    assert lines["web"].external == ("vCPU 0 pin",)
    assert lines["web"].settings == ()
    assert (lines["crunch"].idle, lines["crunch"].pins) == (True, "floats over all")
    assert lines["crunch"].settings == ("CPU quota: 50,000 us a period",)
    assert (lines["gone"].running, lines["gone"].weight) == (False, None)


def finding(ident: str, status: str, **changes: Any) -> dict[str, Any]:
    told = {"id": ident, "area": "A", "title": ident, "status": status, "essential": False, "detail": "d", "advice": ""}
    return {**told, **changes}


def test_controls_say_how_many_vms_they_are_in_force_for_and_what_the_kernel_has() -> None:
    batch = vm("crunch", "batch", knob("weight", "1", owned=True), knob("idle", "0", owned=True))
    lines = vm_lines([batch, vm("web", "critical", knob("weight", "9", owned=True))], "kvm1", frozenset({0}))
    found = {
        control.name: control
        for control in controls(
            lines,
            [
                finding("cpu-weight", "works"),
                finding("cpu-weight-acts", "unknown"),
                finding("cache-allocation", "missing", advice="mount it"),
                finding("resctrl", "missing"),
                finding("eevdf-slice", "works"),
                finding("bvt-kernel", "missing"),
            ],
        )
    }
    assert (found["CPU weight"].in_force, found["CPU weight"].offered) == ("2 VMs", "works")
    assert (found["Idle class for batch"].in_force, found["Idle class for batch"].offered) == ("no VM", "unknown")
    assert (found["Cache ways"].offered, found["Cache ways"].by) == ("missing", "cache-allocation")
    assert (found["Warp"].offered, found["Warp"].in_force, found["Warp"].by) == ("works", "no VM", "eevdf-slice")
    assert found["Pinning"].by == "not reported yet"


@pytest.mark.parametrize(
    ("mechanism", "warp_us", "in_force", "offered"),
    [
        ("slice", 13_288, "1 VM", "works"),
        ("sched_ext", 0, "no VM", "works"),
        ("none", None, "no VM", "missing"),
    ],
)
def test_the_control_of_warps_names_its_mechanism_and_what_it_cannot_do(
    mechanism: str, warp_us: int | None, in_force: str, offered: str
) -> None:
    web = vm("web", "critical")
    web["status"]["warp_us"] = warp_us
    told = {
        "mechanism": mechanism,
        "detail": "it was looked for",
        "can": "do this",
        "cannot": "do that",
        "vms": 1,
        "counters": {},
    }
    lines = vm_lines([web], "kvm1", frozenset({0}))
    [found] = [one for one in controls(lines, [], {"warp": told}) if one.name == "Warp"]
    assert (found.in_force, found.offered) == (in_force, offered)
    assert found.by == f"{TITLES[Mechanism(mechanism)]}: it was looked for; it can do this, it cannot do that"


def test_findings_that_ask_for_something_come_first() -> None:
    found = [
        finding("a", "works"),
        finding("b", "warning"),
        finding("c", "missing"),
        finding("d", "missing", essential=True),
    ]
    assert [(str(status), [one["id"] for one in group]) for status, group in grouped(found)] == [
        ("missing", ["d", "c"]),
        ("warning", ["b"]),
        ("works", ["a"]),
    ]
    assert grouped([]) == []


def test_each_pcpu_shows_its_use_by_class_where_vms_float_too() -> None:
    web = vm("web", "critical", knob("vcpu_pin", "0"))
    web["status"] |= {"vcpus": 1, "cpu_share": 0.15}
    crunch = vm("crunch", "batch", knob("vcpu_pin", "0-3"), knob("vcpu_pin", "0-3", 1))
    crunch["status"] |= {"vcpus": 2, "cpu_share": 0.5}
    cpus = capabilities([place(number) for number in range(4)])
    tick = {"busy_vcpus": [{"vm": "crunch", "used": [0.8, 0.9], "waited": [0.0, 0.0]}]}
    drawn = draw_map(cpus, "", [web, crunch], tick)
    cells = drawn.cells
    shares = [{part.name: round(part.share, 3) for part in cell.parts} for cell in cells]
    assert shares[0] == {"critical": 0.6, "batch": 0.2, "idle": 0.2}
    assert shares[1:] == [{"critical": 0.0, "batch": 0.5, "idle": 0.5}] * 3
    assert cells[0].text.endswith("; estimated: critical 60 %, batch 20 %")
    assert (drawn.estimated, drawn.measured, cells[0].busy) == (True, False, None), "an agent that reports no pCPUs"
    [alone] = draw_map(capabilities([place(0)]), "", [web]).cells
    assert "estimated" not in alone.text


def test_the_measured_use_of_a_pcpu_bounds_its_split_by_class() -> None:
    web = vm("web", "critical", knob("vcpu_pin", "0"))
    web["status"] |= {"vcpus": 1, "cpu_share": 0.15}
    crunch = vm("crunch", "batch", knob("vcpu_pin", "1-3"))
    crunch["status"] |= {"vcpus": 1, "cpu_share": 0.225}
    cpus = capabilities([place(number) for number in range(4)])
    drawn = draw_map(cpus, "", [web, crunch], {"busy_pcpus": {"0": 0.75, "1": 0.1, "2": 0.0}})
    shares = [{part.name: round(part.share, 3) for part in cell.parts} for cell in drawn.cells]
    assert shares == [
        {"critical": 0.6, "batch": 0.0, "other": 0.15, "idle": 0.25},
        {"critical": 0.0, "batch": 0.1, "other": 0.0, "idle": 0.9},
        {"critical": 0.0, "batch": 0.0, "other": 0.0, "idle": 1.0},
        {"critical": 0.0, "batch": 0.3, "idle": 0.7},
    ]
    assert [cell.busy for cell in drawn.cells] == [0.75, 0.1, 0.0, None]
    assert drawn.cells[0].text.endswith("; measured: 75 % busy; critical 60 %, other 15 %")
    assert drawn.cells[1].text.endswith("; measured: 10 % busy; estimated: batch 10 %")
    assert (drawn.estimated, drawn.measured) == (True, True)


def test_use_that_nothing_is_known_of_is_idle() -> None:
    [cell] = draw_map(capabilities([place(0)]), "", [vm("web", "critical", knob("vcpu_pin", "0"))]).cells
    assert {part.name: part.share for part in cell.parts} == {"critical": 0.0, "batch": 0.0, "idle": 1.0}
