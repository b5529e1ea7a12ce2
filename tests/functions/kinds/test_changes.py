"""What ``changes`` drops repeats the last kept row."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.kinds.signals import FAR, inputs
from tests.functions.restart import SECOND, context, cuts, row, run, same_after_restarts, stateful
from tests.support.examples import given
from weft.config.functions.step import Changes
from weft.functions.contract import Gap, Row
from weft.functions.thinning import ChangesFunction

few = strategies.sampled_from([0, 0.0, 1, 1.0, True, None, "on", "off", [1], {"a": 1}, math.nan, "x" * 100])


def make(**settings: Any) -> ChangesFunction:
    return ChangesFunction(Changes(**settings), context())


def of(*values: Any) -> list[Row | Gap]:
    return [row(FAR + at * SECOND, {"x": value}, seq=at) for at, value in enumerate(values)]


def kept(rows: list[Row | Gap], **settings: Any) -> list[int]:
    return [each.seq for each in run(lambda: make(**settings), rows).emitted]


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    rows = data.draw(inputs())
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [
                {},
                {"fields": ("x",), "max_silence_s": 3.0},
                {"fields": ("x", "y"), "keys_max": 1, "missing": "reject"},
                {"by": ("y",), "missing": "drop"},
            ]
        )
    )
    same_after_restarts(lambda: make(**settings), rows, data.draw(cuts(len(rows))))


@given(strategies.lists(few, max_size=30))
def test_whole_payloads_that_differ_are_kept_and_repeats_are_not(values: list[Any]) -> None:
    rows = of(*values)
    payloads = [each.payload for each in rows if isinstance(each, Row)]
    assert kept(rows) == [at for at, each in enumerate(payloads) if at == 0 or each != payloads[at - 1]]


def test_equal_values_are_no_change_and_other_types_are_one() -> None:
    assert kept(of(1, 1.0, True, True, 1, "1", None, None, 0.0, -0.0), fields=("x",)) == [0, 2, 4, 5, 6, 8]
    rows: list[Row | Gap] = [Row(FAR, b"k", b"", {"x": math.nan}, seq=at) for at in range(3)]
    assert kept(rows, fields=("x",)) == [0]


def test_other_fields_do_not_matter() -> None:
    rows: list[Row | Gap] = [row(FAR + at, {"x": at // 3, "n": at}, seq=at) for at in range(9)]
    assert kept(rows, fields=("x",)) == [0, 3, 6]
    assert kept(rows) == list(range(9))


def test_a_field_that_is_not_there_did_not_change() -> None:
    rows: list[Row | Gap] = [
        row(FAR + at, values, seq=at)
        for at, values in enumerate([{"x": 1, "y": 1}, {"x": 1}, {"y": 2}, {"x": 1}, {"z": 1}, {"x": 2}])
    ]
    assert kept(rows, fields=("x", "y")) == [0, 2, 4, 5]
    assert run(lambda: make(fields=("x", "y"), missing="reject"), rows).out.rejected() == [
        "changes: the payload has no field x or y"
    ]


def test_silence_ends_with_the_next_row_after_max_silence() -> None:
    assert kept(of(*([1] * 10)), max_silence_s=4) == [0, 4, 8]


def test_the_row_after_a_gap_is_kept() -> None:
    rows = of(1, 1, 1)
    rows.insert(2, Gap("in", 2, 9, "budget", FAR))
    assert kept(rows) == [0, 2]


def test_changed_values_count_where_the_payload_is_yet_to_be_made() -> None:
    rows: list[Row | Gap] = [Row(FAR, b"k", None, {"x": at // 2}, seq=at) for at in range(4)]
    assert kept(rows) == [0, 2]


def test_long_values_take_no_more_memory() -> None:
    function = make()
    run(lambda: function, of("x" * 10_000))
    (entry,) = stateful(function).values.values()
    assert len(msgspec.msgpack.encode(entry)) < 64


@pytest.mark.parametrize("fields", [None, ("x",)])
def test_a_value_that_cannot_be_compared_is_told_of(fields: tuple[str, ...] | None) -> None:
    rows = [Row(FAR, b"k", None, {"x": 1 << 70}, seq=0)]
    chain = run(lambda: make(fields=fields, missing="reject"), rows)
    assert len(chain.out.rejected()) == 1
    assert chain.out.rejected()[0].startswith("changes: a value that cannot be compared")
