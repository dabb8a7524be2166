"""What may be connected to: every way to write an address, and what each of them means."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.errors import SettingsError
from manager.model.reach import DEFAULT_REACH, parse_reach
from manager.settings import load_settings

ANYWHERE = parse_reach("unicast, 0.0.0.0/0, ::/0")
FORBIDDEN = [
    "127.0.0.1",
    "127.255.0.3",
    "169.254.169.254",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "100.100.100.200",
    "168.63.129.16",
]
IPV4 = st.ip_addresses(v=4)
OUTER = st.sampled_from(["mapped", "compatible", "6to4", "nat64", "local nat64", "local nat64 /48", "teredo", "isatap"])


def wrapped(kind: str, address: str) -> str:
    """An IPv6 address that stands for an IPv4 address."""
    number = int(ipaddress.IPv4Address(address))
    high, low = number >> 16, number & 0xFFFF
    return str(
        ipaddress.IPv6Address(
            {
                "mapped": f"::ffff:{address}",
                "compatible": f"::{address}",
                "6to4": f"2002:{high:x}:{low:x}::1",
                "nat64": f"64:ff9b::{address}",
                "local nat64": f"64:ff9b:1::{address}",
                "local nat64 /48": f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",
                "teredo": f"2001:0:c633:6401:0:ffff:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",
                "isatap": f"2001:db8::5efe:{address}",
            }[kind]
        )
    )


@pytest.mark.parametrize("address", [*FORBIDDEN, "::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "fd00:ec2::254"])
def test_what_is_not_one_machine_elsewhere_is_refused_by_default_and_by_wide_networks(address: str) -> None:
    assert DEFAULT_REACH.refusal(address)
    assert ANYWHERE.refusal(address), "0.0.0.0/0 and ::/0 do not mean these"


@given(OUTER, st.sampled_from(FORBIDDEN))
def test_no_form_of_it_helps(kind: str, address: str) -> None:
    for reach in (DEFAULT_REACH, ANYWHERE, parse_reach("::/0")):
        assert reach.refusal(wrapped(kind, address))


@given(IPV4 | st.ip_addresses(v=6))
def test_every_form_of_an_address_is_judged_alike(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    refused = bool(DEFAULT_REACH.refusal(str(address)))
    if isinstance(address, ipaddress.IPv4Address):
        assert bool(DEFAULT_REACH.refusal(wrapped("mapped", str(address)))) == refused
        expected = not address.is_multicast and not address.is_loopback and not address.is_link_local
        assert refused or expected
    else:
        assert bool(DEFAULT_REACH.refusal(address.exploded)) == refused
        assert bool(DEFAULT_REACH.refusal(f"{address}%7")) == refused
        special = address.is_multicast or address.is_loopback or address.is_link_local or address.is_unspecified
        assert refused or not special


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=6, network="2001:db8:1::/48"))
def test_only_what_was_said_is_reached(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert not DEFAULT_REACH.refusal(str(address))
    assert not parse_reach(f"192.0.2.0/24, {address}").refusal(str(address))
    assert parse_reach("192.0.2.0/24").refusal(str(address))
    assert parse_reach("").refusal(str(address))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["decimal", "hex", "octal", "short"]))
def test_other_ways_to_write_a_number_are_no_address_before_they_are_looked_up(number: int, form: str) -> None:
    address = ipaddress.IPv4Address(number)
    first, *_, last = str(address).split(".")
    text = {
        "decimal": str(number),
        "hex": hex(number),
        "octal": ".".join(f"0{int(part):o}" for part in str(address).split(".")),
        "short": f"{first}.{last}",
    }[form]
    assert parse_reach("unicast, loopback").refusal(text), "only what the look-up makes of it is judged"
    found = socket.inet_ntoa(socket.inet_aton(text))
    assert bool(DEFAULT_REACH.refusal(found)) == bool(DEFAULT_REACH.refusal(str(ipaddress.IPv4Address(found))))


def test_loopback_and_link_local_are_reached_if_they_are_said() -> None:
    assert not parse_reach("loopback").refusal("127.0.0.1")
    assert not parse_reach("loopback").refusal("::1")
    assert not parse_reach("127.0.0.2").refusal("127.0.0.2")
    assert parse_reach("127.0.0.2").refusal("127.0.0.1")
    assert not parse_reach("169.254.10.0/24").refusal("169.254.10.7")
    assert parse_reach("169.254.10.0/24").refusal("169.254.169.254")
    assert parse_reach("224.0.0.0/4, 0.0.0.0").refusal("224.0.0.1"), "never"


@pytest.mark.parametrize(
    "bad", ["unicats", "10.0.0.0/33", "10.0.0.1/8", "localhost", "10.0.0.0/8 192.0.2.1", "fe80::1%x y"]
)
def test_what_is_no_network_is_refused_with_the_setting(bad: str) -> None:
    with pytest.raises(SettingsError, match="probe_networks"):
        load_settings(None, {}, {"probe_networks": bad})


def test_a_refusal_names_the_setting() -> None:
    assert DEFAULT_REACH.refusal("127.0.0.1") == (
        "127.0.0.1 is loopback, which is not said in this agent's setting probe_networks"
    )
