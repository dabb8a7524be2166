"""Calls about many domains, which are handed to another thread together: what hangs or fails is one domain's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from manager.errors import DomainHangs
from manager.host.libvirt_calls import DomainCalls, Question
from tests.host.conftest import until

MANY = [f"vm-{number}" for number in range(20)]


def about(names: list[str], act: Callable[[str], str]) -> list[Question[str]]:
    return [Question(name, name, lambda name=name: act(name)) for name in names]  # type: ignore[misc]


def test_all_are_asked_in_one_thread_in_their_order() -> None:
    asked: list[tuple[str, int]] = []

    def act(name: str) -> str:
        asked.append((name, threading.get_ident()))
        return name.upper()

    answers = DomainCalls(5.0).ask_each(about(MANY, act))
    assert answers == {name: name.upper() for name in MANY}
    assert [name for name, _ in asked] == MANY
    [thread] = {thread for _, thread in asked}
    assert thread != threading.get_ident()


def test_one_that_hangs_keeps_no_other_from_its_answer() -> None:
    calls, go_on, asked = DomainCalls(0.1), threading.Event(), list[str]()

    def act(name: str) -> str:
        asked.append(name)
        if name == "vm-7":
            go_on.wait()
        return "answer"

    answers = calls.ask_each(about(MANY, act))
    assert answers.keys() == set(MANY) - {"vm-7"}
    assert calls.hanging == {"vm-7": "vm-7"}
    with pytest.raises(DomainHangs):
        calls.ask("vm-7", "vm-7", lambda: "not tried")
    go_on.set()
    until(lambda: not calls.hanging, "it answers after all")
    assert asked == MANY, "the thread that was left behind asks nobody else"
    assert "vm-7" not in answers
    assert calls.ask("vm-7", "vm-7", lambda: "tried") == "tried"


def test_slow_answers_do_not_count_together() -> None:
    def slow(_name: str) -> str:
        time.sleep(0.05)
        return "answer"

    calls = DomainCalls(0.2)
    assert len(calls.ask_each(about(MANY, slow))) == len(MANY)
    assert not calls.hanging


def test_others_ask_in_between() -> None:
    calls, answered = DomainCalls(5.0), list[str]()

    def slow(name: str) -> str:
        time.sleep(0.05)
        answered.append(name)
        return "answer"

    many = threading.Thread(target=calls.ask_each, args=[about(MANY, slow)])
    many.start()
    until(lambda: bool(answered), "the first one has answered")
    calls.ask("other", "other", lambda: answered.append("other"))
    many.join()
    assert answered.index("other") < len(MANY)


def test_whoever_asks_gets_what_an_action_raises() -> None:
    def act(name: str) -> str:
        if name == "vm-3":
            raise RuntimeError(name)
        return "answer"

    calls = DomainCalls(5.0)
    with pytest.raises(RuntimeError, match="vm-3"):
        calls.ask_each(about(MANY, act))
    assert calls.ask("vm-3", "vm-3", lambda: "answer") == "answer"


def test_nothing_is_asked_once_it_is_closed() -> None:
    calls = DomainCalls(5.0)
    calls.close()
    assert calls.ask_each(about(MANY, str.upper)) == {}
