"""The helper for restarts finds functions that would not survive them."""

from __future__ import annotations

import pytest

from tests.functions.restart import Cut, row, same_after_restarts, stateful
from weft.functions.contract import Function, Out, Row, State

ROWS = [row(at, {"n": at}) for at in range(10)]
CUTS = [Cut(3, restart=True), Cut(5, restart=False), Cut(7, restart=True, crash=True)]


class Sums(Function):
    """Adds up ``n`` by key, in place."""

    def __init__(self, *, touches: bool) -> None:
        self.state = State()
        self._touches = touches

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        state = stateful(self)
        for each in rows:
            if each.key not in state.values:
                state.set(each.key, [0])
            state.values[each.key][0] += each.values["n"]
            if self._touches:
                state.touch(each.key)
            each.values["sum"] = state.values[each.key][0]
        return rows


class Forgets(Sums):
    """Remembers something besides its state."""

    def __init__(self) -> None:
        super().__init__(touches=True)
        self._last = 0

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        for each in super().process(rows, out):
            each.values["since"], self._last = self._last, each.time
        return rows


def test_a_function_whose_memory_is_its_state_is_the_same_after_restarts() -> None:
    whole = same_after_restarts(lambda: Sums(touches=True), ROWS, CUTS)
    assert [each.values["sum"] for each in whole.emitted] == [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]


def test_changes_in_place_that_are_not_noted_are_found() -> None:
    with pytest.raises(AssertionError, match="touch"):
        same_after_restarts(lambda: Sums(touches=False), ROWS, CUTS)


def test_memory_beside_the_state_is_found() -> None:
    with pytest.raises(AssertionError):
        same_after_restarts(Forgets, ROWS, CUTS)
