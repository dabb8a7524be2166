"""Forms made from shapes: what they show, what they send, and that both are judged as the interface judges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from werkzeug.datastructures import MultiDict

from manager.api.schemas.access_shapes import TokenIn, UserIn
from manager.model.fields import adapter_of, json_fields
from manager.model.registration import ApplicationIn, HostIn, VmIn
from webui.filled import check, differences, press, read_form, shown
from webui.forms import FieldGroup, Input, Look, inputs_of, parts_of, summary_of
from webui.words import label_of, range_words

SHAPES = (VmIn, ApplicationIn, HostIn, TokenIn, UserIn)

SHOP: dict[str, Any] = {
    "tiers": [{"name": "web", "vms": ["web-1", "web-2"]}, {"name": "db", "vms": []}],
    "sla": {"response_time_ms": 12.5, "percentile": 99.0, "max_rate_rps": None},
    "mode": "observe",
    "sharing": None,
    "warp_us": 12_000,
    "cache": "6 ways",
    "sources": [
        {"name": "log", "host": None, "type": "nginx_syslog", "tag": "shop", "time": "upstream_response_time"},
        {"name": "file", "host": "kvm7", "type": "nginx_file", "path": "/var/log/a.log", "time": "request_time"},
        {
            "name": "probe",
            "host": None,
            "type": "memcached_probe",
            "address": "10.0.0.1",
            "port": 11211,
            "rate_rps": 10.0,
            "timeout_s": 5.0,
        },
        {
            "name": "web",
            "host": None,
            "type": "http_probe",
            "url": "http://a.b/",
            "rate_rps": 5.0,
            "timeout_s": 10.0,
            "credential": None,
        },
        {
            "name": "prom",
            "host": None,
            "type": "prometheus",
            "url": "http://p/",
            "query": 'a{b="c"}\n[1m]',
            "percentile": None,
            "rate_query": None,
            "every_s": 5.0,
            "timeout_s": 5.0,
            "credential": "prometheus-main",
        },
        {"name": "push", "host": None, "type": "push", "allow": ["10.0.0.0/8", "192.168.0.1"]},
    ],
}
VM: dict[str, Any] = {
    "class": "critical",
    "libvirt_name": "the cache",
    "libvirt_uuid": None,
    "host": None,
    "weight": 500,
    "pin": False,
    "cpus": "0-3,8",
    "max_pcpus": 1.5,
    "mode": None,
    "warp_us": "auto",
    "scheduling": {"policy": "other", "priority": None, "nice": -5, "limit": None},
    "job": None,
}


def sent(model: type, body: dict[str, Any]) -> MultiDict[str, str]:
    """What a browser sends of a form that shows ``body``."""
    given: MultiDict[str, str] = MultiDict()
    for field, _ in inputs_of(parts_of(model, body)):
        if field.kind == "lines":
            given.add(field.path, "\r\n".join(field.values))
        elif field.kind == "check":
            if field.values == ("true",):
                given.add(field.path, "true")
        else:
            for value in field.values:
                given.add(field.path, value)
    return given


def of(parts: Any, path: str) -> Input:
    """The field of a path."""
    [found] = [field for field, _ in inputs_of(parts) if field.path == path]
    return found


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ApplicationIn, SHOP),
        (
            ApplicationIn,
            {"tiers": [], "sla": None, "mode": None, "sharing": None, "warp_us": None, "cache": None, "sources": []},
        ),
        (VmIn, VM),
        (HostIn, json_fields(HostIn())),
        (
            HostIn,
            json_fields(adapter_of(HostIn).validate_python({"pinning": False, "law": {"published": True, "gain": 1}})),
        ),
    ],
)
def test_a_form_that_nobody_changed_sends_what_it_showed(model: type, body: dict[str, Any]) -> None:
    assert read_form(model, sent(model, body)) == body
    assert check(model, body) == {}


@pytest.mark.parametrize("model", SHAPES)
def test_every_field_of_a_shape_has_a_control_with_a_label(model: type) -> None:
    fields = [
        field for field, _ in inputs_of(parts_of(model, {"tiers": [{}], "sources": [{"type": kind} for kind in KINDS]}))
    ]
    assert {name.split(".")[0].split("[")[0] for name in (field.path for field in fields)} == set(
        adapter_of(model).json_schema()["properties"]
    )
    assert all(field.label and "_" not in field.label for field in fields)
    assert len({field.path for field in fields}) == len(fields)


KINDS = ("nginx_syslog", "nginx_file", "memcached_probe", "http_probe", "prometheus", "push", "tap")


def test_rows_can_be_of_each_kind_that_the_shape_knows() -> None:
    [rows] = [part for part in parts_of(ApplicationIn, SHOP) if part.path == "sources"]
    assert isinstance(rows, FieldGroup)
    assert sorted(kind for kind, _ in rows.kinds) == sorted(KINDS)
    assert [row.label for row in rows.parts][:2] == ["NGINX by syslog", "NGINX log file"]


@pytest.mark.parametrize(
    ("model", "field", "text", "value"),
    [
        (VmIn, "weight", "12", 12),
        (VmIn, "weight", " 12 ", 12),
        (VmIn, "weight", "", None),
        (VmIn, "weight", "12.5", 12.5),
        (VmIn, "weight", "many", "many"),
        (VmIn, "weight", "1_000", "1_000"),
        (VmIn, "max_pcpus", "nan", "nan"),
        (VmIn, "max_pcpus", "1e3", 1000.0),
        (VmIn, "warp_us", "12000", 12_000),
        (VmIn, "warp_us", "auto", "auto"),
        (VmIn, "max_pcpus", "1,5", "1,5"),
        (VmIn, "pin", "true", True),
        (VmIn, "pin", "", None),
        (VmIn, "pin", "perhaps", "perhaps"),
        (VmIn, "mode", "", None),
        (HostIn, "pinning", None, False),
        (HostIn, "pinning", "true", True),
    ],
)
def test_text_becomes_a_value_of_the_fields_kind_or_stays_text(
    model: type, field: str, text: str | None, value: object
) -> None:
    given: MultiDict[str, str] = MultiDict() if text is None else MultiDict({field: text})
    read = read_form(model, given)[field]
    assert read == value
    assert type(read) is type(value)


def test_what_was_entered_wrongly_is_shown_again_with_the_interfaces_own_message() -> None:
    body = read_form(VmIn, MultiDict({"class": "critical", "weight": "many", "max_pcpus": "0"}))
    errors = check(VmIn, body)
    assert set(errors) == {"weight", "max_pcpus"}
    field = of(parts_of(VmIn, body, errors), "weight")
    assert field.values == ("many",)
    assert '"many" is refused' in field.error
    assert "at least 1 and at most 262144" in field.error


def test_an_error_inside_of_a_list_stands_at_the_field_that_shows_the_list() -> None:
    errors = {"tiers[0].vms[1]": "is not registered", "tiers[1]": "twice", "body": "no"}
    look = Look(choices={"tiers[].vms": (("web-1", "web-1"), ("web-2", "web-2"))})
    parts = parts_of(ApplicationIn, SHOP, errors, look)
    assert of(parts, "tiers[0].vms").error == "is not registered"
    assert of(parts, "tiers[0].vms").kind == "many"
    assert summary_of(parts, errors) == [
        ("tiers[0].vms", "Tier 1: VMs", "is not registered"),
        ("", "Tiers", "twice"),
        ("", "Body", "no"),
    ]


def test_an_optional_group_is_left_out_when_nothing_but_defaults_stands_in_it() -> None:
    assert read_form(ApplicationIn, MultiDict({"sla.percentile": "95"}))["sla"] is None
    only_rate = read_form(ApplicationIn, MultiDict({"sla.percentile": "95", "sla.max_rate_rps": "10"}))
    assert only_rate["sla"] == {"percentile": 95, "max_rate_rps": 10}
    assert check(ApplicationIn, only_rate)["sla.response_time_ms"].startswith("is required")


def test_scheduling_is_left_out_until_a_policy_is_chosen_and_then_says_what_it_lacks() -> None:
    unfilled = of(parts_of(VmIn, {}), "scheduling.policy")
    assert (unfilled.values, unfilled.choices[0]) == (("",), ("", "choose"))
    assert read_form(VmIn, MultiDict({"class": "critical", "scheduling.policy": ""}))["scheduling"] is None
    body = read_form(VmIn, MultiDict({"class": "critical", "scheduling.policy": "fifo"}))
    errors = check(VmIn, body)
    assert list(errors) == ["scheduling.limit"]
    assert of(parts_of(VmIn, body, errors), "scheduling.limit").error.endswith("at least 0.05 and at most 0.9")
    body = read_form(VmIn, MultiDict({"class": "critical", "scheduling.policy": "rr", "scheduling.limit": "0.25"}))
    assert check(VmIn, body) == {}
    assert body["scheduling"] == {"policy": "rr", "priority": None, "nice": None, "limit": 0.25}


def test_numbers_of_rows_may_have_gaps() -> None:
    given = MultiDict({"tiers[7].name": "db", "tiers[2].name": "web"})
    assert [tier["name"] for tier in read_form(ApplicationIn, given)["tiers"]] == ["web", "db"]


def test_a_source_of_an_unknown_kind_is_refused_at_its_type() -> None:
    body = read_form(ApplicationIn, MultiDict({"sources[0].type": "oracle", "sources[0].name": "a"}))
    assert set(check(ApplicationIn, body)) == {"sources[0].type"}
    parts_of(ApplicationIn, body)


@pytest.mark.parametrize(
    ("button", "tiers", "sources", "focus"),
    [
        ("add tiers", ["web", "db", None], 6, "tiers[2]"),
        ("add sources push", ["web", "db"], 7, "sources[6]"),
        ("remove tiers[0]", ["db"], 6, "tiers"),
        ("remove tiers[9]", ["web", "db"], 6, "tiers"),
        ("add mode", ["web", "db"], 6, ""),
        ("remove everything[0]", ["web", "db"], 6, ""),
        ("add tiers.vms", ["web", "db"], 6, ""),
        ("add sla.percentile", ["web", "db"], 6, ""),
        ("", ["web", "db"], 6, ""),
    ],
)
def test_buttons_add_and_remove_rows(button: str, tiers: list[str | None], sources: int, focus: str) -> None:
    before = json.dumps(SHOP)
    body, at = press(SHOP, button)
    assert [tier.get("name") for tier in body["tiers"]] == tiers
    assert len(body["sources"]) == sources
    assert at == focus
    assert json.dumps(SHOP) == before


def test_a_new_row_gets_the_focus() -> None:
    body, focus = press(SHOP, "add tiers")
    focused = [
        field.path for field, _ in inputs_of(parts_of(ApplicationIn, body, {}, Look(focus=focus))) if field.focus
    ]
    assert focused == ["tiers[2].name"]


def test_rows_inside_of_a_group_can_be_added_and_removed() -> None:
    before = {"mode": "observe", "network": {"shares": True, "uplinks": [{"interface": "eth0"}]}}
    look = Look(folded=frozenset({"memory", "network"}))
    added, focus = press(before, "add network.uplinks")
    assert added == {"mode": "observe", "network": {"shares": True, "uplinks": [{"interface": "eth0"}, {}]}}
    groups = {part.path: part for part in parts_of(HostIn, added, {}, replace(look, focus=focus))}
    assert [field.path for field, _ in inputs_of(tuple(groups.values())) if field.focus] == [
        "network.uplinks[1].interface"
    ]
    left, focus = press(added, "remove network.uplinks[0]")
    assert left["network"] == {"shares": True, "uplinks": [{}]}
    after = {part.path: part for part in parts_of(HostIn, left, {}, replace(look, focus=focus))}
    for shown_groups in (groups, after):
        opened = {path: group.open for path, group in shown_groups.items() if isinstance(group, FieldGroup)}
        assert opened == {
            "law": False,
            "placement": False,
            "memory": False,
            "disk": False,
            "network": True,
            "costs": False,
        }
    assert before["network"] == {"shares": True, "uplinks": [{"interface": "eth0"}]}


@pytest.mark.parametrize(
    ("model", "path", "words"),
    [
        (HostIn, "network.uplinks", "an uplink"),
        (ApplicationIn, "tiers", "a tier"),
    ],
)
def test_the_button_that_adds_a_row_says_of_what(model: type, path: str, words: str) -> None:
    def groups(parts: Any) -> Iterator[FieldGroup]:
        for part in parts:
            if isinstance(part, FieldGroup):
                yield part
                yield from groups(part.parts)

    [rows] = [group for group in groups(parts_of(model, {})) if group.path == path]
    assert rows.kinds == (("", words),)


def test_what_few_need_is_folded_and_opens_where_something_is_wrong_or_set() -> None:
    look = Look(folded=frozenset({"weight", "law"}))
    for body in ({}, {"weight": 1}):
        [more] = [
            part for part in parts_of(VmIn, body, {}, look) if isinstance(part, FieldGroup) and part.path == "more"
        ]
        assert more.open is bool(body)
    law = {part.path: part for part in parts_of(HostIn, {}, {"law.gain": "no"}, look) if isinstance(part, FieldGroup)}
    assert law["law"].folded
    assert law["law"].open
    assert not law["placement"].folded


def test_choices_keep_what_is_registered_even_if_it_is_gone() -> None:
    look = Look(choices={"policy": (("fair", "fair"),)})
    field = of(parts_of(HostIn, {"policy": "gone"}, {}, look), "policy")
    assert field.values == ("gone",)
    assert field.choices == (("fair", "fair"), ("gone", "gone"))


def test_the_empty_choice_says_what_null_means() -> None:
    assert of(parts_of(VmIn, {}), "mode").choices[0] == ("", "inherited from application and host")
    assert of(parts_of(VmIn, {}), "class").choices[0] == ("", "choose")
    assert of(parts_of(VmIn, {"class": "batch"}), "class").choices[0][0] == "critical"
    assert of(parts_of(VmIn, {}), "host").help == "Host it runs on; empty: wherever it is found"


def test_passwords_are_never_quoted() -> None:
    for password in ("secret", "secret is refused: " * 11):
        errors = check(UserIn, {"name": "eve", "role": "viewer", "password": password})
        assert set(errors) == {"password"}
        assert "secret" not in errors["password"]
        assert "characters" in errors["password"]


def test_passwords_keep_their_spaces() -> None:
    assert read_form(UserIn, MultiDict({"name": " eve ", "password": " a b "}))["password"] == " a b "
    assert of(parts_of(UserIn, {}), "password").kind == "secret"


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": None}, {"a": 2.0, "b": True}, [("a", "1", "2"), ("b", "–", "yes")]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", "1", "2")]),
        ({"a": {"b": 1}}, {"a": None}, [("a", "B: 1", "–")]),
        ({"t": [{"n": "x"}]}, {"t": [{"n": "y"}, {"n": "z"}]}, [("t[0].n", "x", "y"), ("t[1]", "–", "N: z")]),
        ({"v": ["x"]}, {"v": ["x", "y"]}, [("v", "x", "x, y")]),
    ],
)
def test_differences_are_named_by_field(ours: Any, theirs: Any, found: list[tuple[str, str, str]]) -> None:
    assert differences(ours, theirs) == found


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("sla.response_time_ms", "Response time (ms)"),
        ("law.max_age_s", "Max age (s)"),
        ("sources[3].rate_rps", "Rate (req/s)"),
        ("tiers[0].vms[2]", "VMs"),
        ("weight", "Weight"),
        ("min_samples", "Min samples"),
        ("memory.ceilings", "Hold back batch VMs that grow"),
        ("disk.ceilings", "Hold back batch VMs that make a disk slow"),
        ("law.batch_floor", "Batch floor (share of the host's CPU)"),
        ("network.batch_floor", "Batch VMs keep at least (part of the rate)"),
        ("network.batch_tap_mbit", "A batch VM sends at most, at each tap (Mbit/s)"),
        ("network.uplinks[1].rate_mbit", "Rate (Mbit/s)"),
    ],
)
def test_labels_are_words_with_units(path: str, label: str) -> None:
    assert label_of(path) == label


def test_fields_of_a_host_that_mean_different_things_are_called_by_different_names() -> None:
    labels = [f"{row}{field.label}" for field, row in inputs_of(parts_of(HostIn, {"network": {"uplinks": [{}, {}]}}))]
    assert len(set(labels)) == len(labels)


def test_help_begins_with_a_capital_unless_its_first_word_has_one() -> None:
    parts = parts_of(HostIn, {})
    assert of(parts, "placement.reserved_cpus").help.startswith("pCPU numbers")
    assert of(parts, "placement.moves_per_min").help.startswith("vCPUs of placed VMs")
    assert of(parts, "disk.ceilings").help.startswith("Hold back batch VMs")


def test_ranges_are_said_in_words() -> None:
    assert range_words({"type": "integer", "minimum": 1, "maximum": 262144}) == "a whole number, 1 to 262,144"
    assert (
        range_words({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100}) == "more than 0, less than 100"
    )
    assert range_words({"type": "string"}) == ""


def test_values_are_shown_as_a_person_reads_them() -> None:
    assert [shown(value) for value in (None, "", [], True, False, 95.0, "x", ["a", "b"])] == [
        "–", "–", "–", "yes", "no", "95", "x", "a, b",
    ]  # fmt: skip
