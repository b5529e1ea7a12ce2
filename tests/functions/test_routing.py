"""Filters, new fields and routes: each row is somewhere, once, and as the page says."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.restart import Chain, Recorder, context, cuts, row, run, same_after_restarts
from tests.support.examples import given
from weft.config.functions.step import Alert, Route, Rule
from weft.functions.contract import Function, Row
from weft.functions.expression_code import InvalidExpression
from weft.functions.fields import SelectNew, Set, make_select
from weft.functions.registry import KINDS
from weft.functions.routing import AlertFunction, RouteFunction, Where

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


# --- An alert is published when it begins, and not with each record that it lasts


SECOND = 10**9
LEVELS = {b"plant/a/m1": {"line": "a", "machine": "m1"}, b"plant/a/m2": {"line": "a", "machine": "m2"}}


def made(**settings: Any) -> AlertFunction:
    return AlertFunction(Alert(**({"when": "t > 80", "topic": "alerts/{key}"} | settings)), context(LEVELS))


def rows(*temperatures: float, key: bytes = b"plant/a/m1") -> list[Row]:
    return [row((at + 1) * SECOND, {"t": each}, key) for at, each in enumerate(temperatures)]


def published(chain: Chain) -> list[tuple[int, bytes, Any]]:
    """Return the second, topic and payload of each message."""
    messages = [each[1:] for each in chain.out.said if each[0] == "alert"]
    return [(time // SECOND, topic, payload) for topic, payload, _, time, _ in messages]


def seconds(chain: Chain) -> list[int]:
    return [second for second, _, _ in published(chain)]


def test_an_alert_is_sent_once_for_each_time_that_it_begins() -> None:
    chain = run(made, rows(70, 81, 82, 80, 90, 91))
    assert seconds(chain) == [2, 5]
    assert [each.values["t"] for each in chain.emitted] == [70, 81, 82, 80, 90, 91]


def test_until_keeps_an_alert_up_between_two_limits() -> None:
    chain = run(lambda: made(until="t < 75", cleared="over"), rows(81, 79, 82, 74, 79, 81))
    assert seconds(chain) == [1, 4, 6]
    assert [payload for _, _, payload in published(chain)][1] == b"over"


def test_an_alert_that_lasts_is_sent_again() -> None:
    assert seconds(run(lambda: made(every_s=2), rows(81, 82, 83, 84, 85, 70, 81))) == [1, 3, 5, 7]


def test_each_key_has_its_own() -> None:
    both = sorted(rows(81, 82) + rows(70, 83, key=b"plant/a/m2"), key=lambda each: each.time)
    assert [(second, topic) for second, topic, _ in published(run(made, both))] == [
        (1, b"alerts/plant/a/m1"),
        (2, b"alerts/plant/a/m2"),
    ]


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (None, b'{"key":"plant/a/m1","time":1.0,"values":{"t":81,"who":"a/b+","motor":{"rpm":9.5}}}'),
        ({"at": "time", "machine": "machine", "over": "t - 80"}, b'{"at":1.0,"machine":"m1","over":1}'),
        ("{machine}: {t} degrees, {motor.rpm} rpm", b"m1: 81 degrees, 9.5 rpm"),
    ],
)
def test_payload_and_topic_are_made_of_the_record(payload: Any, sent: bytes) -> None:
    given_row = row(SECOND, {"t": 81, "who": "a/b+", "motor": {"rpm": 9.5}}, b"plant/a/m1")
    chain = run(lambda: made(topic="alerts/{line}/{who}/{t}", payload=payload, qos=2, retain=True), [given_row])
    assert chain.out.said == [("alert", b"alerts/a/a_b_/81", sent, 2, SECOND, True)]


def test_a_record_on_which_an_expression_fails_goes_to_the_errors_and_changes_nothing() -> None:
    chain = run(lambda: made(payload={"x": "missing"}), rows(81))
    assert chain.out.rejected() == ["alert: field missing is missing"]
    assert chain.function.state is not None
    assert chain.function.state.values == {}
    assert run(made, [row(SECOND, {})]).out.rejected() == ["alert: field t is missing"]
    assert run(lambda: made(topic="a/{who}"), rows(81)).out.rejected() == ["alert: field who is missing"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"when": "t >"}, "when: column"),
        ({"until": "1 + 1"}, "until: column 1: a condition is true or false"),
        ({"topic": "a/+/b"}, "topic: a topic to publish to has no + and no #"),
        ({"topic": "$SYS/a"}, "topic: topics that begin with $ are the node's own"),
        ({"topic": "a/{line"}, "topic: column 3: a { is alone; write names in braces: {key}"),
        ({"topic": "a/{}"}, "topic: expected a field such as rms or motor.rpm"),
        ({"payload": {"a": "b c"}}, "payload: a: column"),
        ({"cleared": "}"}, "cleared: column 1: a } is alone"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        made(**settings)
    assert reason in str(caught.value)


def test_keys_in_alert_are_bounded_and_the_oldest_goes() -> None:
    inputs = [row((at + 1) * SECOND, {"t": 90}, b"k%d" % at) for at in range(100)]
    chain = run(lambda: made(keys=3), inputs)
    assert chain.function.state is not None
    assert sorted(chain.function.state.values) == [b"k97", b"k98", b"k99"]
    assert len(published(chain)) == 100


@given(strategies.data())
def test_restarts_change_nothing_of_an_alert(data: strategies.DataObject) -> None:
    record = strategies.tuples(strategies.sampled_from([70, 78, 85]), strategies.sampled_from([b"a", b"b", b"c", b"d"]))
    drawn = data.draw(strategies.lists(record, max_size=40))
    inputs = [row(at * SECOND // 2, {"t": t}, key) for at, (t, key) in enumerate(drawn)]
    until = data.draw(strategies.sampled_from([None, "t < 75"]))
    every = data.draw(strategies.sampled_from([None, 2.0]))
    same_after_restarts(
        lambda: made(until=until, every_s=every, cleared="over", keys=2), inputs, data.draw(cuts(len(inputs)))
    )


def test_bytes_and_nan_find_their_way_into_json() -> None:
    given_row = Row(SECOND, b"k", b"", {"t": 81, "raw": b"\0\1", "x": float("nan")})
    ((_, _, payload),) = published(run(made, [given_row]))
    assert msgspec.json.decode(payload)["values"] == {"t": 81, "raw": "AAE=", "x": None}


def test_only_fields_that_are_looked_at_need_to_be_decoded() -> None:
    assert made().reads() is None, "the whole row is in the payload"
    texts = {"topic": "a/{line}/{motor.rpm}", "payload": "{time}: {rms}"}
    assert paths(made(**texts)) == {("t",), ("motor",), ("rms",)}
    assert paths(made(**texts, until="u < 1", cleared={"x": "key + v"})) == {
        (each,) for each in ("t", "motor", "rms", "u", "v")
    }


def paths(function: Function) -> set[tuple[str, ...]]:
    return set(function.reads() or ())


def test_a_topic_of_many_bytes_takes_no_more_memory() -> None:
    long = [b"plant/" + b"x" * 900 + end for end in (b"a", b"b")]
    inputs = [row(at * SECOND, {"t": 90}, key) for at, key in enumerate([*long, *long], 1)]
    chain = same_after_restarts(made, inputs, [])
    assert [topic for _, topic, _ in published(chain)] == [b"alerts/" + key for key in long]
    assert chain.function.state is not None
    assert max(map(len, chain.function.state.values)) < 200
