"""The program on taps that tests share is as new for each of them."""

from __future__ import annotations

from tests.host.packets import Connection, binary
from tests.host.wire import NEEDS_BPF, LoadedTap, Wire

pytestmark = NEEDS_BPF


def test_what_a_test_leaves_in_the_maps_is_gone_for_the_next(loaded_tap: LoadedTap) -> None:
    wire = Wire(loaded_tap.as_new())
    wire.turn(wire.accept(Connection()))
    pipelining = wire.accept(Connection(port=11211))
    for opaque in (1, 2):
        wire.to_guest(pipelining.to_guest(binary(opaque)))
    assert (len(wire.all), len(wire.program.attached)) == (2, 0)
    left = {"tap_connections", "tap_interfaces", "tap_orders", "tap_services", "tap_times", "tap_vacancies"}
    assert left <= loaded_tap.used()
    loaded_tap.as_new()
    assert loaded_tap.used() == {"tap_settings"}
    assert Wire(loaded_tap.program).all == []
