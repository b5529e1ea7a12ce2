"""Filters, new fields and routes: each row is somewhere, once, and as the page says."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.restart import Recorder, context, cuts, row, same_after_restarts
from tests.support.examples import given
from weft.config.functions.step import Route, Rule
from weft.functions.contract import Row
from weft.functions.expression_code import InvalidExpression
from weft.functions.fields import SelectNew, Set, make_select
from weft.functions.registry import KINDS
from weft.functions.routing import RouteFunction, Where

VALUES = strategies.one_of(
    strategies.integers(-5, 5),
    strategies.floats(),
    strategies.text(max_size=3),
    strategies.none(),
    strategies.booleans(),
)
ROWS = strategies.lists(
    strategies.dictionaries(strategies.sampled_from(["a", "b", "c"]), VALUES, max_size=3), max_size=12
).map(lambda found: [row(at * 10**9 + 1, values, seq=at) for at, values in enumerate(found)])


class Drops(Recorder):
    def drop(self, row: Row, reason: str) -> None:
        self.said.append(("drop", row.seq, reason))


def numbers(out: Recorder, kind: str) -> list[int]:
    return [each[1] if kind == "drop" else each[1][5] for each in out.said if each[0] == kind]


@given(ROWS)
def test_where_keeps_drops_or_rejects_each_row_in_order(rows: list[Row]) -> None:
    out = Drops()
    before = {each.seq: copy.deepcopy(each) for each in rows}
    kept = Where("a > 1", context()).process(list(rows), out)

    def is_number(each: Row) -> bool:
        return isinstance(each.values.get("a"), int | float)

    assert [each.seq for each in kept] == [each.seq for each in rows if is_number(each) and each.values["a"] > 1]
    assert numbers(out, "reject") == [each.seq for each in rows if not is_number(each)]
    assert numbers(out, "drop") == [each.seq for each in rows if is_number(each) and not each.values["a"] > 1]
    assert all(each.payload == before[each.seq].payload for each in kept)


@given(ROWS)
def test_select_keeps_the_fields_that_are_there(rows: list[Row]) -> None:
    out = Recorder()
    before = {each.seq: dict(each.values) for each in rows}
    done = make_select(("c", "a"), context()).process(list(rows), out)
    for each in done:
        assert list(each.values.items()) == [
            (name, before[each.seq][name]) for name in "ca" if name in before[each.seq]
        ]
        assert each.values
        assert each.payload is None
    assert numbers(out, "reject") == [seq for seq, values in before.items() if not {"a", "c"} & set(values)]
    assert len(done) + len(out.said) == len(rows)


@given(ROWS)
def test_set_makes_all_fields_or_rejects_the_row_as_it_came(rows: list[Row]) -> None:
    out = Recorder()
    before = {each.seq: msgspec.msgpack.encode((each.values, each.payload)) for each in rows}
    done = Set({"a": "b * 2", "d.e": "a", "s": '"x"'}, context()).process(list(rows), out)
    for each in done:
        old, _ = msgspec.msgpack.decode(before[each.seq])
        assert msgspec.msgpack.encode(each.values["d"]["e"]) == msgspec.msgpack.encode(old["a"])
        assert each.values["a"] == old["b"] * 2
        assert each.payload is None
    for _, seen, _ in out.said:
        assert msgspec.msgpack.encode((msgspec.msgpack.decode(seen[3]), seen[2])) == before[seen[5]]
    assert sorted([*(each.seq for each in done), *numbers(out, "reject")]) == list(before)


def default(each: Row) -> Any:
    found = each.values.get("c")
    return 0 if found is None else found


def copied(each: Row) -> bool:
    return isinstance(default(each), int | float) and default(each) >= 0


@given(ROWS)
def test_each_row_is_taken_by_one_rule_goes_on_or_is_rejected(rows: list[Row]) -> None:
    out = Recorder()
    rules = (
        Rule(to="copies", where="default(c, 0) >= 0", copy=True),
        Rule(to="high", where="a > 0"),
        Rule(to="flags", where="b == True"),
    )
    left = RouteFunction(Route(rules=rules), context()).process(list(rows), out)
    routed: dict[str, list[int]] = {"copies": [], "high": [], "flags": []}
    for kind, seen, where in out.said:
        if kind == "route":
            routed[where].append(seen[5])
    assert routed["copies"] == [each.seq for each in rows if copied(each)]
    once = [*routed["high"], *routed["flags"], *numbers(out, "reject"), *(each.seq for each in left)]
    assert sorted(once) == [each.seq for each in rows]
    assert all(isinstance(default(rows[seq]), int | float) for seq in [*routed["high"], *(each.seq for each in left)])
    assert [each.seq for each in left] == sorted(each.seq for each in left)
    assert all(isinstance(rows[seq].values["a"], int | float) and rows[seq].values["a"] > 0 for seq in routed["high"])


def test_a_copy_is_not_changed_by_what_follows() -> None:
    out = Keeps()
    rows = [row(1, {"a": 1, "m": {"x": 1}})]
    rows[0].payload = None
    (left,) = RouteFunction(Route(rules=(Rule(to="raw", copy=True),)), context()).process(rows, out)
    Set({"a": "2", "m.x": "2"}, context()).process([left], out)
    assert out.routed[0].values == {"a": 1, "m": {"x": 1}}
    assert left.values == {"a": 2, "m": {"x": 2}}


class Keeps(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.routed: list[Row] = []

    def route(self, row: Row, stream: str) -> None:
        self.routed.append(row)


def test_a_rule_that_no_row_reaches_is_refused() -> None:
    rules = (Rule(to="a"), Rule(to="b", where="x > 1"))
    with pytest.raises(ValueError, match=r"no row reaches rules\[1\]"):
        RouteFunction(Route(rules=rules), context())
    with pytest.raises(InvalidExpression, match=r"rules\[0\].where: column 1: lambda"):
        RouteFunction(Route(rules=(Rule(to="a", where="lambda: 1"),)), context())


def test_levels_of_the_topic_come_from_the_context() -> None:
    known = context({b"plant/l1": {"line": "l1"}, b"plant/l2": {"line": "l2"}})
    rows = [row(at, {"line": "field"}, key) for at, key in enumerate([b"plant/l1", b"plant/l2", b"other"])]
    out = Recorder()
    assert Where('line == "l2"', known).process(rows, out) == [rows[1]]
    assert out.rejected() == ["the topic has no level line"]


SETTINGS: dict[str, Any] = {
    "where": "a > 1 or b",
    "set": {"d": "default(a, b)"},
    "select": {"x": "a", "y.z": "key"},
    "route": Route(rules=(Rule(to="s", where="a > 1", copy=True), Rule(to="t", where="b == 1"))),
}


@pytest.mark.parametrize("name", SETTINGS)
@given(ROWS, strategies.data())
def test_restarts_change_nothing(name: str, rows: list[Row], data: strategies.DataObject) -> None:
    same_after_restarts(lambda: KINDS[name](SETTINGS[name], context()), rows, data.draw(cuts(len(rows))))


@pytest.mark.parametrize("expression", ["x", "x + len(line)"])
@pytest.mark.parametrize("name", ["OIL_LEVELS", "LEVELS.E0", "{computed}", "a'\"\\\n{}"])
def test_a_field_may_have_any_name(name: str, expression: str) -> None:
    """Also one that looks like a part of the code that is made for it."""
    around = context({b"k": {"line": ""}})
    top, _, inner = name.partition(".")
    expected = {inner: 1} if inner else 1
    for only in (False, True):
        function = SelectNew({name: expression}, around) if only else Set({name: expression}, around)
        (found,) = function.process([row(1, {"x": 1})], Recorder())
        assert found.values == ({} if only else {"x": 1}) | {top: expected}
