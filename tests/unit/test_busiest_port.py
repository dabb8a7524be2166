"""Which port is an application's service, where nobody has said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.busiest_port import CLEARLY, MEMORY_S, PortChoice

Step = dict[int, int]


def chosen(*steps: Step, every_s: float = 1.0) -> int | None:
    choice = PortChoice()
    for requests in steps:
        choice = choice.after(requests, every_s)
    return choice.port


@pytest.mark.parametrize(
    ("steps", "port"),
    [
        ([], None),
        ([{}], None),
        ([{22: 1}], None),
        ([{22: 1}, {80: 50}], 80),
        ([{22: 4}, {80: 5}], 22),
        ([{22: 4}, {80: 9}], 80),
        ([{80: 100}, {22: 30}, {}], 80),
        ([{80: 10, 443: 10}], 80),
    ],
)
def test_the_port_with_clearly_the_most_requests(steps: Sequence[Step], port: int | None) -> None:
    assert chosen(*steps) == port


def test_what_was_long_ago_counts_for_nothing() -> None:
    assert chosen({80: 1000}, {}, {443: 10}, every_s=5 * MEMORY_S) == 443


def test_a_port_stays_while_nobody_asks() -> None:
    assert chosen({80: 1000}, *[{}] * 100, every_s=MEMORY_S) == 80


@given(st.lists(st.dictionaries(st.sampled_from([22, 80, 443]), st.integers(0, 1000)), max_size=30))
def test_no_other_port_has_clearly_more(steps: list[Step]) -> None:
    choice = PortChoice()
    for requests in steps:
        choice = choice.after(requests, 1.0)
        if choice.port is not None:
            assert max(choice.recent.values()) < CLEARLY * choice.recent[choice.port] or choice.port == max(
                sorted(choice.recent), key=lambda port: choice.recent[port]
            )
