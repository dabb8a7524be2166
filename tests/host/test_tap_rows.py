"""Rows of connections in the program on taps: which one gives way where a row is full."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from manager.bpf import number, tap
from tests.host.packets import ACK, FIN, Connection
from tests.host.wire import GET, INTERFACE, NEEDS_BPF, OK, Wire, wire

__all__ = ["wire"]

pytestmark = NEEDS_BPF

MOST_IN_ROW = number((tap.OBJECT.parent / "tap.h").read_text(), "MOST_IN_ROW")
_MASK = (1 << 64) - 1
_SEED_AT = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Of a connection, by its hash: as row_of() and liked() of the program have it."""

    row: int
    liked: int


def place_of(seed: int, client_port: int) -> Place:
    """As hash_of() of the program has it."""
    client, guest = (ip_address(host).packed for host in ("192.0.2.1", "192.0.2.2"))
    key = struct.pack("=IHH12x4s12x4s", INTERFACE, 80, client_port, guest, client)
    hashed = seed
    for (word,) in struct.iter_unpack("=Q", key):
        hashed = (hashed ^ word) * 0xFF51AFD7ED558CCD & _MASK
        hashed ^= hashed >> 33
    hashed = hashed * 0xC4CEB9FE1A85EC53 & _MASK
    return Place(hashed >> 50, (hashed >> 32 & 0xFFFF) * MOST_IN_ROW >> 16)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Two connections more than a row has places for, of one row; they are older than the program."""

    connections: Sequence[Connection]
    replaced: Connection
    """Of as many as there are places for, the one whose place the next one likes best."""


@pytest.fixture
def crowd(wire: Wire) -> Crowd:
    settings = wire.program._settings.read(bytes(4), _SEED_AT + 8)
    assert settings is not None
    (seed,) = struct.unpack_from("=Q", settings, _SEED_AT)
    rows = defaultdict(list)
    for port in range(2, 65_536):
        place = place_of(seed, port)
        rows[place.row].append((port, place.liked))
    crowded = max(rows.values(), key=len)[: MOST_IN_ROW + 2]
    assert len(crowded) == MOST_IN_ROW + 2
    wire.accept(Connection(client_port=1))
    connections = [Connection(client_port=port) for port, _ in crowded]
    places: dict[int, Connection] = {}
    for connection, (_, liked) in zip(connections[:MOST_IN_ROW], crowded, strict=False):
        places[next(place for place in (liked, *range(MOST_IN_ROW)) if place not in places)] = connection
    return Crowd(connections, places[crowded[MOST_IN_ROW][1]])


def test_a_connection_more_than_a_row_has_places_for_takes_the_one_it_likes(wire: Wire, crowd: Crowd) -> None:
    asked = crowd.connections[: MOST_IN_ROW + 1]
    for connection in asked[:MOST_IN_ROW]:
        wire.to_guest(connection.to_guest(GET))
    assert wire.seen.waiting.count == MOST_IN_ROW
    wire.to_guest(asked[-1].to_guest(GET))
    assert wire.seen.waiting.count == MOST_IN_ROW
    wire.from_guest(crowd.replaced.from_guest(OK))
    assert wire.seen.answers == 0
    for connection in asked:
        wire.from_guest(connection.from_guest(OK))
    assert (wire.seen.answers, wire.seen.waiting.count) == (MOST_IN_ROW, 0)


def test_of_those_in_a_row_one_that_was_not_used_lately_gives_way(wire: Wire, crowd: Crowd) -> None:
    """The eighth one finds that all were used, and has that forgotten. Of those before all but one are used again."""
    for connection in crowd.connections[: MOST_IN_ROW + 1]:
        wire.to_guest(connection.to_guest(GET))
    *others, unused = (each for each in crowd.connections[:MOST_IN_ROW] if each is not crowd.replaced)
    for connection in others:
        wire.from_guest(connection.from_guest(OK))
    eighth, ninth = crowd.connections[MOST_IN_ROW:]
    wire.to_guest(ninth.to_guest(GET))
    assert (wire.seen.answers, wire.seen.waiting.count) == (len(others), 2)
    for connection in (unused, eighth, ninth):
        wire.from_guest(connection.from_guest(OK))
    assert (wire.seen.answers, wire.seen.waiting.count) == (len(others) + 2, 0)


def test_a_place_is_free_again_when_its_connection_ends(wire: Wire, crowd: Crowd) -> None:
    *staying, ended = crowd.connections[:MOST_IN_ROW]
    for connection in (*staying, ended):
        wire.to_guest(connection.to_guest(GET))
    wire.from_guest(ended.from_guest(flags=FIN | ACK))
    wire.to_guest(crowd.connections[MOST_IN_ROW].to_guest(GET))
    assert (wire.seen.unanswered, wire.seen.waiting.count) == (1, MOST_IN_ROW)
    for connection in staying:
        wire.from_guest(connection.from_guest(OK))
    assert wire.seen.answers == len(staying)
