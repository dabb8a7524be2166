"""The list of hosts and the page of one, from what agents reported."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from manager.store.tokens import Role
from tests.api.conftest import CAPABILITIES, HOST, notice_silence, report, status, tick, tick_of
from tests.web.desk import Desk


def seen(desk: Desk, **changes: Any) -> None:
    """An agent that reported just now, with one critical VM and one of batch."""
    for name, vm_class in (("web-1", "critical"), ("crunch", "batch")):
        desk.api.ok("PUT", f"/vms/{name}", {"class": vm_class})
    vms = [
        status("web-1"),
        status(
            "crunch",
            libvirt_uuid="6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11",
            knobs=[
                {"knob": "weight", "index": 0, "value": "1", "original": "100", "owned": False, "external": True},
                {"knob": "vcpu_pin", "index": 0, "value": "0-3", "original": None, "owned": False, "external": False},
            ],
        ),
    ]
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(), vms=vms, **changes), role="host")


def test_an_empty_list_says_what_to_do(desk: Desk) -> None:
    page = desk.browser().get("/hosts")
    assert page.status == 200
    assert "No host yet" in page.text
    assert "equipoise agent" in page.text


def test_the_worst_hosts_come_first_and_those_that_never_reported_say_so(desk: Desk) -> None:
    desk.api.ok("PUT", "/hosts/kvm0", {})
    seen(desk)
    browser = desk.browser(Role.VIEWER)
    page = browser.get("/hosts")
    assert [link.text for link in page.all("h2")[0:2]] == ["kvm1 ▲ 2 errors in the last tick", "kvm0 ○ never reported"]
    assert "No agent has ever reported from kvm0" in page.text
    desk.api.clock.now_s += 180
    notice_silence(desk.api)
    page = browser.get("/hosts")
    assert page.all("h2")[0].text == "kvm1 ✗ last seen 3 min ago"
    assert "Check that equipoise agent runs on kvm1" in page.text


def test_hosts_are_searched_grouped_and_come_in_parts(desk: Desk) -> None:
    for number in range(50):
        policy = "fair" if number < 49 else "equal"
        desk.api.ok("PUT", f"/hosts/kvm{number:02}", {"policy": policy})
    browser = desk.browser(Role.VIEWER)
    first = browser.get("/hosts?sort=name")
    assert "1 to 48 of 50" in first.text
    [following] = first.all("a", rel="next")
    last = browser.get(following["href"])
    assert "49 to 50 of 50" in last.text
    assert [heading["id"] for heading in last.all("h2")] == ["host-kvm48", "host-kvm49"]
    grouped = browser.get("/hosts?group=policy&search=KVM4")
    assert [" ".join(heading.text.split()) for heading in grouped.all("h2")] == [
        "equal 1 ○ never reported 1 never reported",
        "fair 9 ○ never reported 9 never reported",
    ]
    assert [group["id"] for group in grouped.all("details", open="")] == ["group-equal", "group-fair"]
    assert grouped.all("a", href="/hosts?policy=equal&search=KVM4&group=policy") or grouped.all(
        "a", href="/hosts?search=KVM4&group=policy&policy=equal"
    )
    assert "No matching hosts" in browser.get("/hosts?health=silent").text


def test_the_first_page_shows_few_hosts_and_leads_to_all(desk: Desk) -> None:
    for number in range(13):
        desk.api.ok("PUT", f"/hosts/kvm{number:02}", {})
    page = desk.browser(Role.VIEWER).get("/")
    assert len([item for item in page.all("li") if item.attributes.get("id", "").startswith("host-")]) == 12
    assert [link.text for link in page.all("a", class_="button", href="/hosts")] == ["All 13 hosts"]


def test_a_host_shows_its_pcpus_vms_and_health(desk: Desk) -> None:
    seen(desk)
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}")
    assert page.status == 200
    assert page.by_id("pcpu-1")["aria-label"].endswith(
        "web-1: vCPU 0; serves eth0 interrupt 40; estimated: critical 100 %"
    )
    assert "50 % of the speed" in page.by_id("pcpu-3")["aria-label"]
    assert "unmanaged" in page.by_id("pcpu-0")["class"]
    web, crunch = (" ".join(page.by_id(f"vm-{name}").text.split()) for name in ("web-1", "crunch"))
    assert "10,000 100" in web
    assert "pinned to 1" in web
    assert "25 % 1 %" in web
    assert "▲ CPU weight" in crunch
    assert "On all pCPUs: crunch" in page.text
    assert "12.5 ms, 2 errors" in page.text
    assert "Settings changed5; restored on release" in page.text
    assert "no resctrl" in page.text


@pytest.mark.parametrize(("waited", "words"), [(1.0, "▲ 50 %"), (0.1, "9.1 %")])
def test_vcpu_wait_is_marked_where_it_hurts(shop: Desk, waited: float, words: str) -> None:
    told = {"cpu_share": 0.25, "run_delay_share": waited}
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[status("web-1", **told)]), role="host")
    row = " ".join(shop.browser().get(f"/hosts/{HOST}").by_id("vm-web-1").text.split())
    assert f"25 % {words}" in row


def test_vcpu_wait_counts_no_pcpu_that_is_offline(shop: Desk) -> None:
    every_second = {**CAPABILITIES, "online_cpus": "0,2,4,6", "topology": {"cpus": [], "queues": []}}
    told = status("web-1", cpu_share=0.25, run_delay_share=1.0)
    shop.api.ok("POST", f"/hosts/{HOST}/report", report(vms=[told], capabilities=every_second), role="host")
    row = " ".join(shop.browser().get(f"/hosts/{HOST}").by_id("vm-web-1").text.split())
    assert "25 % ▲ 50 %" in row


def test_a_viewer_is_offered_nothing_to_change(desk: Desk) -> None:
    seen(desk)
    for role, offered in ((Role.VIEWER, False), (Role.OPERATOR, True)):
        source = desk.browser(role).get(f"/hosts/{HOST}").source
        assert ("Mode and policy" in source, "/control/" in source) == (offered, offered)


def test_a_silent_host_says_so_and_what_to_do(desk: Desk) -> None:
    seen(desk)
    desk.api.clock.now_s += 180
    notice_silence(desk.api)
    text = desk.browser().get(f"/hosts/{HOST}").text
    assert "Silent: last seen 3 min ago." in text
    assert "Check that equipoise agent runs on kvm1" in text


def test_what_batch_got_is_told_with_the_time_that_it_is_of(desk: Desk) -> None:
    seen(desk)
    batch = {"cpu_share": 0.05, "floor": 0.01, "window_s": 15.0, "raised": False}
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(batch=batch)), role="host")
    text = desk.browser().get(f"/hosts/{HOST}").text
    assert "Floor1 % of the host over 60 s" in text
    assert "Over the last 15 s5 % of the host" in text


def test_libvirt_that_does_not_answer_is_told(desk: Desk) -> None:
    seen(desk)
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(libvirt_connected=False)), role="host")
    assert "libvirt does not answer on kvm1" in desk.browser().get(f"/hosts/{HOST}").text


def test_a_host_without_an_agent_has_a_page(desk: Desk) -> None:
    desk.api.ok("PUT", "/hosts/kvm0", {})
    text = desk.browser().get("/hosts/kvm0").text
    assert "No agent has ever reported from kvm0" in text
    assert "The agent has not reported the host's pCPUs yet" in text


def test_an_unknown_host_is_not_found(desk: Desk) -> None:
    page = desk.browser().get("/hosts/kvm9")
    assert page.status == 404
    assert "kvm9" in page.text


def test_only_the_live_part_is_answered_to_a_fragment(desk: Desk) -> None:
    seen(desk)
    page = desk.browser().get(f"/hosts/{HOST}", HX_Request="true")
    assert not page.all("html")
    assert page.by_id("cpu-map")


def test_mode_and_policy_that_the_agent_has_not_taken_up_are_marked(desk: Desk) -> None:
    seen(desk)
    browser = desk.browser()
    assert "not yet" not in browser.get(f"/hosts/{HOST}").text
    desk.api.ok("PUT", f"/hosts/{HOST}", {"mode": "observe", "policy": "equal"})
    assert "pending: observe, equal" in browser.get(f"/hosts/{HOST}").text


def found(ident: str, state: str, detail: str, advice: str = "") -> dict[str, Any]:
    return {
        "id": ident,
        "area": "Cache",
        "title": ident,
        "status": state,
        "essential": False,
        "detail": detail,
        "advice": advice,
    }


def test_host_checks_say_what_to_do_and_controls_do_not_say_it_again(desk: Desk) -> None:
    missing = found("cache-allocation", "missing", "the CPU cannot", "mount resctrl")
    findings = {"at": "2026-03-01T11:00:00Z", "findings": [found("cpu-weight", "works", "1 to 10000"), missing]}
    seen(desk, findings=findings)
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}")
    groups = [one.attributes.get("id", "") for one in page.all("details")]
    assert [one for one in groups if one.startswith("findings-")] == ["findings-missing", "findings-works"]
    assert "open" in page.by_id("findings-missing").attributes
    assert "mount resctrl" in page.by_id("findings-missing").text
    assert " ".join(page.by_id("control-5").text.split()) == "Cache ways no VM ✗ missing cache-allocation"
    assert page.text.count("the CPU cannot") == page.text.count("mount resctrl") == 1


def test_what_is_divided_besides_the_cpu_is_told_with_whom_it_is_in_force_for(desk: Desk) -> None:
    checks = (
        ("memory-protection", "missing", "no memory.low"),
        ("memory-ceiling", "works", ""),
        ("disk-weight", "ignored", ""),
        ("disk-ceiling", "works", ""),
        ("network-shares", "works", ""),
        ("tap-limit", "missing", "no act_police"),
        ("resume-latency", "works", ""),
        ("governor", "missing", "no cpufreq"),
    )
    seen(desk, findings={"at": "2026-03-01T11:00:00Z", "findings": [found(*check) for check in checks]})
    browser = desk.browser(Role.VIEWER)
    switched_off = browser.get(f"/hosts/{HOST}")
    tags = ["memory protected", "memory ceilings", "disk weights", "disk ceilings", "uplinks divided"]
    tags += ["memory by policy", "disks by policy", "uplinks by policy"]
    tags += ["resume latency at most 0 us", "highest clock frequency"]
    assert not {tag.text for tag in switched_off.all("span", class_="tag")} & set(tags)
    rows = [" ".join(switched_off.by_id(f"control-{number}").text.split()) for number in range(7, 15)]
    assert rows == [
        "Memory protection no VM ✗ missing memory-protection",
        "Memory ceilings no VM ✓ works memory-ceiling",
        "Disk weights no VM ✗ ignored by the kernel disk-weight",
        "Disk ceilings no VM ✓ works disk-ceiling",
        "Uplink shares no VM ✓ works network-shares",
        "Limits at taps no VM ✗ missing tap-limit",
        "Resume latency no pCPU ✓ works resume-latency",
        "Governor of the clock no clock ✗ missing governor",
    ]
    switched_on = {
        "memory": {"protect": True, "ceilings": True, "steps": True},
        "disk": {"weights": True, "ceilings": True, "steps": True},
        "network": {"shares": True, "steps": True},
        "placement": {"resume_latency_us": 0, "performance_governor": True},
    }
    desk.api.ok("PUT", f"/hosts/{HOST}", switched_on)
    held = [
        {"knob": knob, "index": index, "value": value, "original": original, "owned": True, "external": False}
        for knob, index, value, original in (
            ("memory_ceiling", 0, "1073741824", "-1"),
            ("io_weight", 0, "20", "100"),
            ("disk_ceiling", 2049, "50", "-1"),
            ("egress_group", 2, "1", "0"),
        )
    ]
    vms = [status("web-1"), status("crunch", libvirt_uuid="6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11", knobs=held)]
    told = tick(power_controls={"pcpus": 3, "clocks": 1})
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=told, vms=vms), role="host")
    page = browser.get(f"/hosts/{HOST}")
    assert [tag.text for tag in page.all("span", class_="tag") if tag.text in tags] == tags
    in_force = [page.by_id(f"control-{number}").text.split("\n")[1].strip() for number in range(7, 15)]
    assert in_force == ["no VM", "1 VM", "1 VM", "1 VM", "1 VM", "no VM", "3 pCPUs", "1 clock"]


def test_before_the_agent_looked_it_is_said_how_to(desk: Desk) -> None:
    seen(desk)
    assert "Not reported yet. On the host, equipoise doctor" in desk.browser().get(f"/hosts/{HOST}").text


def test_domains_that_nobody_registered_are_listed_as_such(desk: Desk) -> None:
    domains = [
        {"libvirt_name": name, "libvirt_uuid": f"6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a{n}"}
        for n, name in ((10, "web-1"), (77, "stranger"))
    ]
    seen(desk, domains=domains)
    told = desk.browser().get(f"/hosts/{HOST}").by_id("unregistered").text
    assert "1 unregistered, never touched" in told
    assert told.endswith("stranger")


def test_batch_below_its_floor_and_the_classes_shares_are_told(desk: Desk) -> None:
    batch = {"cpu_share": 0.005, "floor": 0.01, "window_s": 60, "raised": True}
    told = tick(critical_cpu_share=0.75, batch_cpu_share=0.05, batch=batch)
    seen(desk)
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=told), role="host")
    text = desk.browser().get(f"/hosts/{HOST}").text
    assert "critical 75 %batch 5 %other 10 %idle 10 %" in text
    assert "0.5 % of the host ▲ below the floor" in text


def test_the_last_hour_as_a_file(desk: Desk) -> None:
    seen(desk, ticks=[tick_of(-10), tick_of(-5, host_cpu_share=0.5)])
    response = desk.browser().get(f"/hosts/{HOST}/history.csv").response
    assert response.mimetype == "text/csv"
    assert 'filename="kvm1.csv"' in response.headers["Content-Disposition"]
    rows = list(csv.DictReader(response.get_data(as_text=True).splitlines()))
    told = [row for row in rows if row["ticks"] != "0"]
    assert [(row["host_cpu_share"], row["critical_share"]) for row in told] == [("0.9", "0.25"), ("0.5", "0.25")]


def test_a_divided_cache_shows_who_has_which_ways(desk: Desk) -> None:
    parts = [{"domain": domain, "ways": 4, "mask": "f"} for domain in (0, 1)]
    groups = [
        {"name": "", "parts": [{"domain": 0, "ways": 8, "mask": "ff0"}]},
        {"name": "equipoise-+batch", "vms": ["crunch"], "parts": [{"domain": 0, "ways": 7, "mask": "7f0"}]},
        {"name": "equipoise-shop", "applications": ["shop"], "vms": ["web-1"], "parts": parts, "external": True},
    ]
    divided = {
        "resource": "L3",
        "ways": 12,
        "groups": groups,
        "groups_of_others": 1,
        "notes": ["shop gets 4 of 6 ways"],
    }
    desk.api.ok("PUT", f"/hosts/{HOST}", {"cache": "on"})
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick() | {"cache": divided}, vms=[]), role="host")
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}")
    assert page.status == 200
    assert "cache divided" in page.text
    assert "shop gets 4 of 6 ways" in page.text
    assert "other groups: 1" in page.text
    told = [one["aria-label"] for one in page.all("span", class_="ways", role="img")]
    assert told == [
        "4 of 12 ways in domain 0: 0-3",
        "4 of 12 ways in domain 1: 0-3",
        "7 of 12 ways in domain 0: 4-10",
        "8 of 12 ways in domain 0: 4-11",
    ]
    assert [row.text for row in page.all("th") if "modified" in row.text] == ["shop ▲ externally modified"]
    assert "1 VM" in page.by_id("control-5").text


def test_who_has_how_much_of_the_cache_and_of_the_memory(desk: Desk) -> None:
    def part(domain: int, total: float | None, size: int | None = None) -> dict[str, Any]:
        return {"domain": domain, "occupancy_bytes": size, "bandwidth_total_bytes_per_s": total}

    held = {"name": "equipoise-+held", "vms": ["crunch"], "bandwidth": "30 %"}
    memory = {"domain": 0, "bandwidth_bytes_per_s": 12e9, "maximum_bytes_per_s": 20e9, "saturated": True}
    measured = {
        "groups": [held],
        "vms": [
            {"vm": "web-1", "parts": [part(0, 2e9, 3 << 20), part(1, None)]},
            {"vm": "crunch", "parts": [part(0, 10e9)]},
        ],
        "memories": [memory, {"domain": 1}],
    }
    desk.api.ok("PUT", f"/hosts/{HOST}", {"cache": "on"})
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick() | {"cache": measured}, vms=[]), role="host")
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}")
    assert page.status == 200
    assert "Memory of domain 0: 12 GB/s, at most 20 GB/s measured, saturated" in page.text
    assert "Memory of domain 1" not in page.text
    assert "memory bandwidth held to 30 %" in page.text
    assert "1 VM" in page.by_id("control-6").text
    told = " ".join(page.by_id("traffic").text.split())
    assert told.endswith("Share of the maximum measured crunch 0 – 10 GB/s – 50 % web-1 0 3 MiB 2 GB/s – 10 %")
    assert [(one["value"], one["aria-label"]) for one in page.all("meter")] == [
        ("0.500", "crunch: 50 %"),
        ("0.100", "web-1: 10 %"),
    ]


def test_a_host_that_measures_nothing_has_no_table_of_it(desk: Desk) -> None:
    desk.api.ok("PUT", f"/hosts/{HOST}", {"cache": "on"})
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick() | {"cache": {}}, vms=[]), role="host")
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}")
    assert page.status == 200
    assert not page.all("meter")


def test_a_host_whose_loop_stands_still_says_so_until_it_ticks(desk: Desk) -> None:
    def told(stalled_s: float | None) -> bool:
        desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(stalled_s=stalled_s)), role="host")
        text = browser.get(f"/hosts/{HOST}").text
        return "is stalled: its last tick ended 34 s ago." in text

    browser = desk.browser(Role.VIEWER)
    desk.api.ok("PUT", f"/hosts/{HOST}", {})
    assert [told(None), told(34.2), told(None)] == [False, True, False]


SERVICE = {
    "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10",
    "port": 80,
    "protocol": "http",
    "protocol_share": 1.0,
    "rate_rps": 48.2,
    "p50_ms": 1.3,
    "p95_ms": 1.9,
    "p99_ms": None,
    "error_share": 0.01,
    "since": "2026-03-01T11:58:05Z",
    "window_s": 45.0,
}
BATCH_SERVICE = SERVICE | {"libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a11", "port": 9100, "protocol": "other"}
DOMAINS = [
    {"libvirt_name": "web-1", "libvirt_uuid": SERVICE["libvirt_uuid"]},
    {"libvirt_name": "crunch", "libvirt_uuid": BATCH_SERVICE["libvirt_uuid"]},
    {"libvirt_name": "stranger", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a12"},
]


def test_a_host_shows_the_services_of_its_vms(desk: Desk) -> None:
    seen(desk)
    browser = desk.browser(Role.VIEWER)
    page = browser.get(f"/hosts/{HOST}")
    assert "Services Not reported yet." in page.text
    stranger = SERVICE | {"libvirt_uuid": DOMAINS[2]["libvirt_uuid"], "port": 22}
    seen(desk, domains=DOMAINS, services={"services": [stranger, BATCH_SERVICE, SERVICE]})
    page = browser.get(f"/hosts/{HOST}")
    rows = [one["id"] for one in page.all("tr") if one.attributes.get("id", "").startswith("service-")]
    in_order = [(DOMAINS[0], 80), (DOMAINS[1], 9100), (DOMAINS[2], 22)]
    assert rows == [f"service-{domain['libvirt_uuid']}-{port}" for domain, port in in_order]
    row = " ".join(page.by_id(rows[0]).text.split())
    assert row.startswith("web-1 critical 80 http 48.2 req/s 1.3 ms 1.9 ms – 1 % 2026-03-01")
    assert "unregistered" in page.by_id(rows[2]).text
    assert "From the packets at the VMs' taps" in page.text


def test_a_host_says_why_services_cannot_be_seen(desk: Desk) -> None:
    seen(desk, domains=DOMAINS, services={"services": [], "problem": "bpftool: No such file"})
    browser = desk.browser(Role.VIEWER)
    text = browser.get(f"/hosts/{HOST}").text
    assert "Services cannot be seen: bpftool: No such file" in text
    assert "No port of a running VM" not in text
    seen(desk, domains=DOMAINS, services={"services": [], "simulated": True})
    text = browser.get(f"/hosts/{HOST}").text
    assert "Services simulated No port of a running VM has answered a request yet." in text


USE = {
    "vms": [
        {"vm": "crunch", "disks": [{"device": "vda", "read_bytes_per_s": 9e7, "written_bytes_per_s": 1e6}]},
        {
            "vm": "web-1",
            "memory_pressure": 0.31,
            "major_faults_per_s": 100.0,
            "refaults_per_s": 20.0,
            "virtual_disks": [
                {"disk": "vda", "requests_per_s": 3.0, "latency_ms": 42.0},
                {"disk": "vdb", "requests_per_s": 3.0, "latency_ms": 1.5},
            ],
        },
    ],
    "disks": [{"device": "vda", "bytes_per_s": 9.5e7, "requests_per_s": 900.0, "busy": 0.97, "latency_ms": 42.0}],
    "uplinks": [
        {
            "interface": "eth0",
            "received_bytes_per_s": 1e6,
            "sent_bytes_per_s": 2e6,
            "received_packets_per_s": 100.0,
            "sent_packets_per_s": 100.0,
            "dropped_packets_per_s": 12.0,
        }
    ],
    "memory_pressure": 0.2,
    "missing": ["disk_latency"],
}


def test_a_host_shows_memory_disk_and_network(desk: Desk) -> None:
    seen(desk)
    browser = desk.browser(Role.VIEWER)
    assert "Memory, disk and network" not in browser.get(f"/hosts/{HOST}").text
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(resources=USE)), role="host")
    page = browser.get(f"/hosts/{HOST}")
    assert (
        "Disk vda: 95 MB/s, 42 ms a request, busy 97 %. Uplink eth0: 3 MB/s, ▲ 12 packets/s lost."
        " Memory pressure of the host: 20 %. Not measured here: disk latency."
    ) in page.text
    table = " ".join(page.by_id("resources").text.split())
    assert "web-1 31 % 120 /s – 0 MB/s 42 ms 0 MB/s 0 /s" in table
    assert "crunch – – – 91 MB/s – 0 MB/s 0 /s" in table
    assert table.index("web-1") < table.index("crunch"), "those that wait come first"
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(resources={})), role="host")
    assert "No VM uses much of it or waits for it." in browser.get(f"/hosts/{HOST}").text


def test_a_vm_has_its_part_of_it(desk: Desk) -> None:
    seen(desk)
    assert desk.api.ok("GET", "/vms/web-1")["resources"] is None
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(resources=USE)), role="host")
    assert desk.api.ok("GET", "/vms/web-1")["resources"] == USE["vms"][1]
    listed = {vm["name"]: vm["resources"] for vm in desk.api.ok("GET", "/vms")["items"]}
    assert (listed["crunch"], listed["web-1"]) == (USE["vms"][0], USE["vms"][1])
    assert desk.api.ok("GET", f"/hosts/{HOST}")["tick"]["resources"] == USE


POWER = {"package_watts": 171.0, "dram_watts": 9.0}


def test_a_host_whose_power_is_measured_shows_it_and_the_parts_of_its_vms(desk: Desk) -> None:
    """Busy to 90 %, it would draw 10/19 of its 180 W idle as well, by the study's half of the peak."""
    seen(desk)
    browser = desk.browser(Role.VIEWER)
    page = browser.get(f"/hosts/{HOST}")
    assert "RAPL" not in page.by_id("vms").text
    assert "Power, measured" not in page.text
    assert desk.api.ok("GET", "/vms/web-1")["power_watts"] is None
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(power=POWER)), role="host")
    vm = desk.api.ok("GET", "/vms/web-1")
    expected_watts = 180.0 * (1 - 10 / 19) * vm["status"]["cpu_share"] / 0.9
    assert vm["power_watts"] == pytest.approx(expected_watts, abs=0.01)
    text = " ".join(browser.get(f"/hosts/{HOST}").text.split())
    assert "Power, measured (RAPL) Processors171.0 W Memory9.0 W Of both, idle part94.7 W" in text
    assert f"{expected_watts:.1f} W" in text
    assert desk.api.ok("GET", f"/hosts/{HOST}")["tick"]["power"] == POWER
    desk.api.ok("PATCH", f"/hosts/{HOST}", {"costs": {"idle_percent": 0}})
    assert desk.api.ok("GET", "/vms/web-1")["power_watts"] == pytest.approx(
        180.0 * vm["status"]["cpu_share"] / 0.9, abs=0.01
    )
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(power={"package_watts": 171.0})), role="host")
    assert "Processors171.0 W Of both" in " ".join(browser.get(f"/hosts/{HOST}").text.split())


def test_a_host_shows_how_batch_vms_fare_and_their_jobs(desk: Desk) -> None:
    seen(desk)
    job = {"deadline": "2026-03-01T13:00:00Z", "cpu_seconds": 900, "max_slowdown": 1.5}
    desk.api.ok("PUT", "/vms/crunch", {"class": "batch", "job": job})
    fares = {
        "vm": "crunch",
        "got_pcpus": 0.5,
        "wants_pcpus": 2.0,
        "would_pcpus": 1.0,
        "slowdown": 2.0,
        "alone_by": "learnt",
        "state": "at_risk",
        "done_cpu_s": 90.0,
        "needed_pcpus": 0.75,
        "too_slow": True,
    }
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(batch_vms=[fares])), role="host")
    row = " ".join(desk.browser(Role.VIEWER).get(f"/hosts/{HOST}").by_id("batch-progress").text.split())
    assert "50 %" in row
    assert "2.00 of 1.5 ▲ too slow" in row
    assert "▲ at risk" in row
    assert "90 of 900 CPU seconds done; needs 0.75 pCPUs" in row
