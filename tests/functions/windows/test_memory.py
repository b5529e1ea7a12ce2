"""Bounds on the memory of windows: what needs more is named and goes to the errors, and what a group needs it gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.functions.restart import SECOND, Chain, context, cuts, row, run, same_after_restarts
from tests.functions.windows.reference import Times
from tests.functions.windows.test_property import SHAPES, UNTIL, inputs, maker
from tests.support.steps import quickest_s, worked_s
from weft.config.functions.windows import Sql
from weft.functions.contract import Row
from weft.functions.sql import SqlFunction
from weft.functions.windows import WindowFunction

HOUR = 3600 * SECOND
LITTLE = 2_000
"""Bytes, for some ten rows."""


def each_second(count: int) -> list[Row]:
    return [row(at * SECOND, {"x": 1.0, "ts": at}, b"k", at) for at in range(count)]


def sql(**chosen: Any) -> Callable[[], SqlFunction]:
    return lambda: SqlFunction(Sql(every_s=60.0, select="SELECT count(*) AS n FROM input", **chosen), context())


@pytest.mark.parametrize(
    "chosen",
    [{"every": 1, "size": 300}, {"every": 1, "size": 1, "event": True, "lateness": 300, "idle": 600}],
    ids=["hopping", "late"],
)
def test_a_group_has_all_the_windows_that_its_settings_need(chosen: dict[str, Any]) -> None:
    """Five minutes, each second: 300 parts are open at once, more than a hundredth of all that may be."""
    make = maker(Times(**chosen), {"n": "count()"}, windows_max=10_000)
    found = run(make, each_second(400), until=HOUR)
    assert found.out.rejected() == []
    assert sum(each.values["n"] for each in found.emitted) == 400 * (chosen["size"])


def kept(found: Chain) -> int:
    return sum(each.values["count"] for each in found.emitted)


@pytest.mark.parametrize(
    "make",
    [maker(Times(every=60, size=60), {"points": "lttb(x, 3)"}, memory_bytes=LITTLE), sql(memory_bytes=LITTLE)],
    ids=["lttb", "sql"],
)
def test_rows_beyond_the_memory_of_all_windows_go_to_the_errors(make: Callable[[], WindowFunction]) -> None:
    rows = [row(at, {"x": 1.0}, b"device/%d" % (at % 5), at) for at in range(100)]
    found = run(make, rows, until=HOUR)
    assert 5 <= kept(found) <= LITTLE // 64
    assert kept(found) + len(found.out.rejected()) == 100
    assert all("bytes already (memory)" in reason for reason in found.out.rejected())
    assert all("or memory" in each.values["missing"] for each in found.emitted)
    # Windows that close give it back.
    later = [row(HOUR + at, {"x": 1.0}, b"device/0", 100 + at) for at in range(5)]
    again = run(make, [*rows, *later], until=2 * HOUR)
    assert again.emitted[-1].values["count"] == 5
    assert again.emitted[-1].values["complete"]
    assert again.function.store.kept_bytes == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("times", [SHAPES[1], SHAPES[4], SHAPES[7]], ids=str)
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_restarts_change_nothing_where_memory_is_short(times: Times, data: st.DataObject) -> None:
    given = data.draw(inputs())
    make = maker(times, {"points": "lttb(x, 3)", "n": "count()"}, memory_bytes=1_024)
    same_after_restarts(make, given, data.draw(cuts(len(given))), until=UNTIL)


def test_rows_of_ever_new_keys_take_no_more_time_than_others() -> None:
    make = maker(Times(every=60, size=60), {"n": "count()"}, keys_max=20_000)
    chain = Chain(make)
    chain.feed([row(1, {"x": 1}, b"device/%d" % at) for at in range(20_000)])
    more = [row(2, {"x": 1}, b"more/%d" % at) for at in range(10_000)]
    usual = worked_s(partial(chain.feed, [row(2, {"x": 1}, b"device/%d" % at) for at in range(10_000)]))
    took = quickest_s(lambda: worked_s(partial(chain.feed, more)), 5 * usual)
    assert len(chain.out.rejected()) % 10_000 == 0
    assert took <= 5 * usual, "looking through all groups for each row takes a hundred times as long"


def test_a_topic_of_many_bytes_makes_no_group() -> None:
    make = maker(Times(every=10, size=10), {"n": "count()"})
    found = run(make, [row(1, {"x": 1}, b"t" * 1_025), row(1, {"x": 1}, b"t" * 1_024)], until=HOUR)
    assert [each.key for each in found.emitted] == [b"t" * 1_024]
    assert found.out.rejected() == ["its topic has more than 1024 bytes; groups need shorter ones"]


@pytest.mark.parametrize("value", [(1 << 64) - 1, -(1 << 63), (1 << 63) + 1])
def test_integers_of_64_bits_stay_what_they_are(value: int) -> None:
    emit = {"least": "min(x)", "most": "max(x)", "first": "first(x)", "last": "last(x)"}
    make = maker(Times(every=10, size=10), emit)
    found = same_after_restarts(make, [row(1, {"x": value})], [], until=HOUR)
    assert [found.emitted[0].values[name] for name in emit] == [value] * 4
    assert all(type(found.emitted[0].values[name]) is int for name in emit)


def test_a_value_that_a_select_cannot_have_is_refused_with_its_row_alone() -> None:
    rows = [row(1, {"x": 1}), row(2, {"x": 10**30}), row(3, {"x\0y": 1, "x": 2})]
    found = run(sql(), rows, until=HOUR)
    assert [each.values["n"] for each in found.emitted] == [2]
    (reason,) = found.out.rejected()
    assert reason.startswith("it has a value that cannot be kept: ")
