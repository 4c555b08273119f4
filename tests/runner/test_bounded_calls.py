"""Calls that may not return: each has its time, and leaves the others alone."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from specdec_hal.runner.bounded_calls import BoundedCalls
from specdec_hal.structured.backend import GrammarTimeoutError


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "specdec-grammars"]


def test_results_and_errors_are_in_order_and_of_one_other_thread() -> None:
    calls = BoundedCalls(60.0)
    found = calls.run([threading.get_ident, partial(int, "a"), threading.get_ident])
    assert found[0] == found[2] != threading.get_ident() and isinstance(found[1], ValueError)
    assert calls.run([threading.get_ident]) == found[:1] and calls.run([]) == []


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_call_that_does_not_return_ends_alone(at: int) -> None:
    others = threads()  # of earlier tests
    calls, gate, made = BoundedCalls(0.2), threading.Event(), list[Any]()

    def call(number: int) -> int:
        if number == at:
            gate.wait(60)
        made.append(number)
        return number

    found = calls.run([partial(call, number) for number in range(4)])
    assert isinstance(found.pop(at), GrammarTimeoutError) and found == [one for one in range(4) if one != at]
    before = [thread for thread in threads() if thread not in others]
    gate.set()
    for thread in before:
        thread.join(0.2)
    assert len([thread for thread in before if thread.is_alive()]) <= 1, "the one left behind ends"
    assert sorted(made) == [0, 1, 2, 3], "it has made no call again"
    assert calls.run([partial(call, 9)]) == [9]


def test_its_thread_ends_with_it() -> None:
    calls = BoundedCalls(None)
    (ident,) = calls.run([threading.get_ident])
    (thread,) = [one for one in threads() if one.ident == ident]
    del calls
    thread.join(60)
    assert not thread.is_alive()
