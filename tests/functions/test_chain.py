"""Whole chains, from payloads to payloads: how the input is cut into batches, steps and runs changes no byte.

Each function has such a test of its own. Here they stand behind each other, with ticks, gaps, rows that cannot be read,
and the ways out besides: errors, other streams, alerts.
"""

from __future__ import annotations

import asyncio
import functools
import random
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from tests.functions.restart import SECOND, Cut, context, cuts
from tests.fuzz.mqtt_codec import damage
from tests.support.examples import given as examples_given
from tests.support.examples import moving
from tests.support.slices import SLICE
from weft.config.errors import Finding
from weft.config.functions.step import Changes, Deadband, Dedupe, Redact, Route, Rule, Sample, SwingingDoor
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import Definition, chain_of, definitions
from weft.functions.chain import Chain, Outputs, paths_read
from weft.functions.contract import Function, Gap, PartialFormat, Path, PayloadError, Row, Values
from weft.functions.formats import JsonFormat
from weft.functions.registry import KINDS

START = 1_700_000_000 * SECOND
HEAD = """
node: a
data_dir: /data
streams:
  telemetry: {from: "plant/{line}/{machine}", payload: json}
  hot: {payload: json}
  other: {from_stream: telemetry, functions: [route: [{to: hot}]]}
  out:
    from_stream: telemetry
    payload: json
    functions:
"""
CHAINS = {
    "thinned": """
      - where: "default(x, 0) > -50 and line != 'c'"
      - set: {x: "x * 1.5 + 1", both.sum: "x + default(y, 0)", both.line: line}
      - deadband: {field: x, delta: 2, max_silence: 5s}
      - swinging_door: {field: both.sum, delta: 3, max_silence: 3s, by: [line]}
      - route: [{to: hot, where: "x == 1", copy: true}, {to: hot, where: "x != 2.5", copy: true}]
      - changes: {fields: [both.sum], max_silence: 20s}
""",
    "counted": """
      - dedupe: {by: [id], within: 10s, ids_max: 20}
      - sample: {every: 2}
      - window:
          {every: 2s, size: 4s, by: [line], windows_max: 9, memory: 1KiB,
          emit: {n: count(), m: mean(x), d: stddev(x), q: "quantile(x, 0.9)", p: "lttb(x, 3)"}}
      - window: {every: 10s, by: none, emit: {most: max(m), rows: sum(n), l: last(line)}}
""",
    "events": """
      - window: {gap: 2s, time: at, lateness: 1s, idle: 3s, ahead: 1m, keys_max: 3, emit: {s: sum(x), e: envelope(x)}}
      - route: [{to: hot, where: "s > 5", copy: true}, {to: hot, where: "e_max == e_min"}]
      - alert: {when: "s > 3", until: "s < 0", topic: "alerts/{key}", cleared: "{s}", every: 2s, keys: 2}
      - select: {of: s, from: window_start}
""",
    "redacted": """
      - redact: {remove: [y], replace: {id: "*"}}
      - changes: {by: [machine], keys_max: 2}
      - swinging_door: {field: x, delta: 1, time: at, keys_max: 2, missing: reject, max_silence: 2s}
      - window: {every: 1s, emit: {n: count(x), f: first(x)}, late_rows: drop, time: at, time_unit: s, lateness: 2s}
""",
}
TOPICS = (b"plant/a/1", b"plant/a/2", b"plant/b/1", b"plant/c/1", b"plant/" + b"a" * 600 + b"/1")
VALUES = strategies.one_of(
    strategies.integers(-8, 8),
    strategies.integers(-8, 8).map(lambda value: value / 4),
    strategies.sampled_from([None, True, "n/a", 1e300, -1e300, 1 << 63, -(1 << 63), 10**30, [1]]),
)
BROKEN = strategies.sampled_from([b"", b"[1, 2]", b"{", b'{"x": 1e400}', b'{"x":' + b"9" * 5_000 + b"}", b'"t"'])


@strategies.composite
def inputs(draw: strategies.DrawFn) -> list[Row | Gap]:
    """Draw rows of some devices in the order in which a node took them in, with gaps."""
    found: list[Row | Gap] = []
    time = START
    for seq in range(draw(strategies.integers(1, 30))):
        if draw(strategies.integers(0, 14)) == 0:
            found.append(Gap("telemetry", seq * 2, seq * 2 + 1, "expired", time if found else 0))
        time += draw(strategies.sampled_from([0, 1, SECOND // 4, SECOND // 2, SECOND, 2 * SECOND, 7 * SECOND]))
        values = draw(strategies.fixed_dictionaries({"x": VALUES}, optional={"y": VALUES}))
        values["id"] = draw(strategies.integers(0, 12))
        values["at"] = time / SECOND + draw(strategies.sampled_from([0.0, 0.0, -0.5, -1.5, -6.0, 3.0, 600.0]))
        payload = msgspec.json.encode(values)
        if draw(strategies.integers(0, 9)) == 0:
            payload = draw(BROKEN)
        found.append(
            Row(time, draw(strategies.sampled_from(TOPICS)), payload, {}, (), seq * 2 + 1, "telemetry", payload)
        )
    return found


class Run:
    """A chain as a node drives it, with what its steps saved."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._saved: dict[tuple[str, bytes], bytes] = {}
        self.chain: Chain = definition.make_chain()
        self._tick = self._saved_tick = 0
        self.reported: list[tuple[str, tuple[object, ...]]] = []

    async def feed(self, given: Iterable[Row | Gap], *, at_once: bool) -> None:
        """Read rows and gaps: those between two ticks at once, or each by itself."""
        batch: list[Row] = []
        out = Outputs()
        for each in given:
            is_next = batch and (
                not at_once or -(-each_time(each, batch[-1]) // SECOND) != -(-batch[-1].time // SECOND)
            )
            if isinstance(each, Gap) or is_next:
                await self._process(batch, out)
            if isinstance(each, Gap):
                self.chain.gap(each, out)
                continue
            await self._ticks(each.time, out)
            batch.append(msgspec.structs.replace(each, values={}))
        await self._process(batch, out)
        self._tell(out)

    async def pass_time(self, until: int) -> None:
        out = Outputs()
        await self._ticks(until, out)
        self._tell(out)

    async def _process(self, batch: list[Row], out: Outputs) -> None:
        if batch:
            await self.chain.process(batch.copy(), out)
            batch.clear()

    async def _ticks(self, time: int, out: Outputs) -> None:
        last = (time - 1) // SECOND * SECOND
        if last <= self._tick:
            return
        while (due := self.chain.due()) is not None and due <= last:
            await self.chain.tick(due, out)
        self._tick = last

    def _tell(self, out: Outputs) -> None:
        """Remember outputs: each way out has an order of its own, as each stream has."""
        self.reported += [("out", _seen(row)) for row in out.rows]
        self.reported += [("error", (*_seen(row), reason)) for row, reason, _ in out.rejected]
        self.reported += [("alert", tuple(alert)) for alert in out.alerts]
        self.reported += [(stream, _seen(row)) for stream, rows in out.routed.items() for row in rows]

    def save(self) -> None:
        """End a step: write what changed."""
        self._saved_tick = self._tick
        for label, state in self.chain.states():
            for key, value in state.take_changes().items():
                if value is None:
                    self._saved.pop((label, key), None)
                else:
                    self._saved[label, key] = msgspec.msgpack.encode(value)

    def restart(self) -> None:
        """Continue with new functions, from what was saved."""
        self.chain = self._definition.make_chain()
        self._tick = self._saved_tick
        states = dict(self.chain.states())
        for (label, key), value in sorted(self._saved.items()):
            states[label].load(key, msgspec.msgpack.decode(value))

    def of(self, way: str) -> list[tuple[object, ...]]:
        """Return what left by one way, in order."""
        return [each for name, each in self.reported if name == way]


def each_time(each: Row | Gap, last: Row) -> int:
    return each.time if isinstance(each, Row) else last.time


def _seen(row: Row) -> tuple[object, ...]:
    return row.time, row.key, row.payload, tuple(map(tuple, row.headers)), row.seq, row.input, row.original


async def _in_one_piece(definition: Definition, given: Sequence[Row | Gap], until: int) -> Run:
    run = Run(definition)
    await run.feed(given, at_once=True)
    await run.pass_time(until)
    return run


async def _in_pieces(definition: Definition, given: Sequence[Row | Gap], until: int, places: Sequence[Cut]) -> Run:
    run = Run(definition)
    at = 0
    for cut in places:
        await run.feed(given[at : cut.at], at_once=cut.restart)
        at = max(at, cut.at)
        run.save()
        if cut.crash:
            reported = len(run.reported)
            await run.feed(given[at : at + 3], at_once=True)
            del run.reported[reported:]
        if cut.crash or cut.restart:
            run.restart()
    await run.feed(given[at:], at_once=False)
    await run.pass_time(until)
    return run


@functools.cache
def _definition(name: str) -> Definition:
    config = parse(HEAD + CHAINS[name], "/etc/weft/edge.yaml", EdgeConfig, check).config
    (found,) = [each for each in definitions(config) if each.name == "out"]
    return found


def _is_the_same(name: str, given: Sequence[Row | Gap], places: Sequence[Cut]) -> Run:
    until = START + 10**6 * SECOND
    whole = asyncio.run(_in_one_piece(_definition(name), given, until))
    parts = asyncio.run(_in_pieces(_definition(name), given, until, places))
    for way in ("out", "error", "alert", "hot"):
        assert parts.of(way) == whole.of(way), way
    assert parts.chain.due() == whole.chain.due()
    assert parts.chain.oldest() == whole.chain.oldest()
    return whole


@pytest.mark.parametrize("name", CHAINS)
@given(data=strategies.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
def test_how_the_input_is_cut_changes_no_byte(name: str, data: strategies.DataObject) -> None:
    given = data.draw(inputs())
    _is_the_same(name, given, data.draw(cuts(len(given))))


@pytest.mark.search
@pytest.mark.parametrize("name", CHAINS)
@moving
@given(data=strategies.data())
@settings(
    max_examples=SLICE.amount(ci=40, night=600),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
def test_how_any_input_is_cut_changes_no_byte(name: str, data: strategies.DataObject) -> None:
    given = data.draw(inputs())
    _is_the_same(name, given, data.draw(cuts(len(given))))


def _read(at: float, key: bytes, payload: bytes, seq: int) -> Row:
    return Row(START + round(at * SECOND), b"plant/" + key, payload, {}, (), seq, "telemetry", payload)


def test_rows_leave_in_the_order_in_which_they_were_read() -> None:
    """By errors: of the decoder, of a function, of one behind it. To another stream: by two rules of a route."""
    payloads = [b'{"x": "n/a"}', b"{", b'{"x": 9}', b'{"x": 0}', b'{"x": null}', b"", b'{"x": 9}']
    rows = [_read(at / 100, b"a/%d" % at, payload, at) for at, payload in enumerate(payloads)]
    whole = _is_the_same("thinned", rows, [Cut(at, restart=False) for at in range(len(rows))])
    assert [each[4] for each in whole.of("error")] == [0, 1, 4, 5]
    assert [each[4] for each in whole.of("hot")] == [2, 3, 3, 6]


def test_windows_of_rows_that_were_held_back_close_in_one_order() -> None:
    """Rows that come late by the time of the node, as held ones do, move what a group of windows waits for."""
    found = [
        (7, b"a/2", -8, 6.5),
        (8, b"b/2", -1.25, 7.5),
        (10, b"c/1", 1e300, 8.5),
        (10, b"a/1", "n/a", 8.5),
        (10, b"c/1", -0.25, 610.0),
        (12, b"b/1", 5, 11.5),
        (12, b"a/1", -0.75, 6.0),
        (12, b"c/1", -2, 15.0),
        (19, b"a/2", 0.5, 17.5),
        (20, b"a/2", -7, 20.0),
    ]
    rows = [
        _read(at, key, msgspec.json.encode({"x": x, "id": 1, "at": START / SECOND + event}), seq)
        for seq, (at, key, x, event) in enumerate(found)
    ]
    for at in range(len(rows)):
        _is_the_same("redacted", rows, [Cut(at, restart=True)])


# --- Fields that rows do not have: errors, or null as SQL takes it. SQLite counts again


YAML = """
node: a
data_dir: /data
streams:
  hot: {{payload: json}}
  out:
    from: "plant/{{machine}}"
    payload: json
    functions:
      - {function}
        missing: {missing}
"""
ROWS: list[dict[str, Any]] = [
    {"t": 20.5, "a": 1},
    {"t": 30.5},
    {"t": None, "a": 0},
    {"a": 1},
    {"t": 10, "a": None},
    {"t": 99.5, "a": 0},
    {},
]


def config(function: str, missing: str = "null") -> EdgeConfig:
    return parse(YAML.format(function=function, missing=missing), "edge.yaml", EdgeConfig).config


def outputs(function: str, missing: str = "null") -> Outputs:
    (definition,) = definitions(config(function, missing))
    chain, out = definition.make_chain(), Outputs()
    rows = [
        Row((60 + at) * SECOND, b"plant/m", payload := msgspec.json.encode(each), {}, (), at, "in", payload)
        for at, each in enumerate(ROWS)
    ]

    async def run() -> None:
        await chain.process(rows, out)
        while (due := chain.due()) is not None:
            await chain.tick(due, out)

    asyncio.run(run())
    return out


def values(function: str, missing: str = "null") -> list[dict[str, Any]]:
    return [msgspec.json.decode(row.payload or b"") for row in outputs(function, missing).rows]


def sql(select: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE input (t, a)")
    db.executemany("INSERT INTO input VALUES (?, ?)", [(each.get("t"), each.get("a")) for each in ROWS])
    return db.execute(select).fetchall()


def test_a_stream_without_a_format_has_the_rows_that_are_json() -> None:
    (definition,) = definitions(
        parse(
            YAML.format(function="where: t > 25", missing="reject").replace(
                "    payload: json\n    functions", "    functions"
            ),
            "edge.yaml",
            EdgeConfig,
        ).config
    )
    chain, out = definition.make_chain(), Outputs()
    payloads = [b'{"t": 30.5, "a": 1}', b"no json", b'{"t": 9}']
    rows = [Row(1 + at, b"plant/m", each, {}, (), at, "in", each) for at, each in enumerate(payloads)]
    asyncio.run(chain.process(rows, out))
    assert [row.payload for row in out.rows] == [payloads[0]]
    assert [each.row.seq for each in out.rejected] == [1]


def test_aggregates_are_those_of_sql() -> None:
    emit = "{n: count(), nt: count(t), s: sum(t), a: mean(a), hot: sum(t > 25), least: min(t), most: max(a)}"
    (result,) = values(f"window: {{every: 1h, emit: {emit}}}")
    wanted = sql("SELECT count(*), count(t), sum(t), avg(a), sum(t > 25), min(t), max(a) FROM input")
    assert [tuple(result[name] for name in ("n", "nt", "s", "a", "hot", "least", "most"))] == wanted


@pytest.mark.parametrize(
    "condition", ["t > 25", "not t > 25", "t > 25 or a == 1", "t > 25 and a == 0", "t + a > 21", "t != 10"]
)
def test_conditions_hold_where_sql_has_them_true(condition: str) -> None:
    kept = values(f'where: "{condition}"')
    assert [(each.get("t"), each.get("a")) for each in kept] == sql(
        f"SELECT t, a FROM input WHERE {condition.replace('==', '=')}"
    )
    routed = outputs(f'route: [{{to: hot, where: "{condition}"}}]').routed
    assert len(routed["hot"]) == len(kept)


def test_new_fields_are_null() -> None:
    made = values('set: {over: "t > 25", sum: "t + a"}')
    assert [(each["over"], each["sum"]) for each in made] == sql("SELECT t > 25, t + a FROM input")
    assert [each["over"] for each in values('select: {over: "t > 25"}')] == [each["over"] for each in made]


@pytest.mark.parametrize(
    "function", ['where: "t > 25"', 'set: {over: "t > 25"}', "window: {every: 1h, emit: {n: sum(t > 25)}}"]
)
def test_such_rows_go_to_the_errors_as_before(function: str) -> None:
    out = outputs(function, "reject")
    assert [each.row.seq for each in out.rejected] == [2, 3, 6]
    assert config(function, "reject") == config(f"{function}\n        # {{}}", "reject")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("deadband: {field: t, delta: 1}", "not for deadband. deadband has a `missing` of its own, among its settings"),
        ("sql: {every: 1m, select: SELECT 1 AS x}", "not for sql"),
    ],
)
def test_functions_without_expressions_have_no_such_setting(function: str, text: str) -> None:
    found: list[Finding] = list(check(config(function)))
    assert any(at[-1] == "missing" and text in message for at, message in found)


# --- A chain decodes the fields that it needs, and gives what it would give if it decoded all of them


NAMES = ("a", "b", "value", "µ", "a b")
JSON = strategies.recursive(
    strategies.one_of(
        strategies.none(),
        strategies.booleans(),
        strategies.integers(-(2**70), 2**70),
        strategies.floats(allow_nan=False, allow_infinity=False),
        strategies.text(max_size=5),
    ),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.sampled_from((*NAMES, "c")), inner, max_size=4)
    ),
    max_leaves=6,
)
OBJECTS = strategies.dictionaries(strategies.sampled_from((*NAMES, "c", "d")), JSON, max_size=6)
READ = strategies.frozensets(
    strategies.lists(strategies.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), min_size=1
)


class Whole:
    """JSON that is always decoded as a whole."""

    def __init__(self) -> None:
        self._inner = JsonFormat()
        self.encode = self._inner.encode
        self.decode = self._inner.decode


def decoded(decode: Any, payload: bytes) -> Values | str:
    try:
        found: Values = decode(payload)
    except PayloadError as error:
        return str(error)
    return found


def only(values: Values | str, paths: frozenset[Path]) -> Values | str:
    """What is at the paths, as far as anything that follows one of them can tell."""
    if isinstance(values, str):
        return values
    found: Values = {}
    for first in {path[0] for path in paths} & set(values):
        rest = frozenset(path[1:] for path in paths if path[0] == first)
        is_whole = () in rest or not isinstance(values[first], dict)
        found[first] = values[first] if is_whole else only(values[first], rest)
    return found


@examples_given(OBJECTS | JSON, READ)
def test_the_fields_are_those_of_the_whole(value: Any, paths: frozenset[Path]) -> None:
    payload = msgspec.json.encode(value)
    format_ = JsonFormat()
    assert only(decoded(format_.decoder(paths), payload), paths) == only(decoded(format_.decode, payload), paths)


@examples_given(strategies.lists(OBJECTS.map(msgspec.json.encode), min_size=2, max_size=3), READ, strategies.integers())
def test_a_damaged_payload_is_refused_as_a_whole_one_is(kept: list[bytes], paths: frozenset[Path], seed: int) -> None:
    chance = random.Random(seed)
    format_ = JsonFormat()
    payload = damage(kept[0], chance, kept)
    whole, part = (only(decoded(decode, payload), paths) for decode in (format_.decode, format_.decoder(paths)))
    if part != whole:
        # A number that nothing looks at may be one that Python does not represent.
        assert isinstance(whole, str)
        assert "out of range" in whole


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"a":1,"d":tru}',
        b'{"a":1,"d":"\xff"}',
        b'{"a":1,"\xff":2}',
        b'{"a":1} x',
        b'{"a":1,"d":01}',
        b'{"a":1,"d":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"a":1,"d":"' + b"x" * (256 << 10) + b'"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_wrong_in_a_field_that_is_left_out_is_noticed(payload: bytes) -> None:
    format_ = JsonFormat()
    whole, part = decoded(format_.decode, payload), decoded(format_.decoder(frozenset({("a",)})), payload)
    assert isinstance(whole, str)
    assert part == whole


def made(**steps: Any) -> list[Function]:
    return [KINDS[name](settings, context()) for name, settings in steps.items()]


DEADBAND = Deadband(field_="b", delta=0.5)
PARTIAL_DECODING_CHAINS: dict[str, tuple[dict[str, Any], str | None]] = {
    "where and deadband": ({"where": "a > 0", "deadband": DEADBAND}, "a b"),
    "a condition on the topic": ({"where": 'key == "k"'}, ""),
    "select behind where": ({"where": "a > 0", "select": ("b", "d.x"), "set": {"y": "b"}}, "a b d.x"),
    "new fields behind a route": (
        {"route": Route(rules=(Rule(to="r", where="exists(c)", copy=True),)), "select": {"x": 'a if flag else m["x"]'}},
        "a c flag m.x",
    ),
    "set needs all": ({"where": "a > 0", "set": {"x": "a"}}, None),
    "reducers": (
        {
            "dedupe": Dedupe(by=("a",), within_s=1e-9),
            "changes": Changes(fields=("c.x",)),
            "sample": Sample(every=2, by=("d",)),
        },
        "a c.x d",
    ),
    "reducers of whole payloads": (
        {"dedupe": Dedupe(within_s=9.0), "changes": Changes(), "sample": Sample(every=2)},
        "",
    ),
    "swinging_door remembers rows": ({"swinging_door": SwingingDoor(field_="b", delta=0.5)}, None),
    "redact needs all": ({"where": "a > 0", "redact": Redact(remove=("b",)), "select": ("a",)}, None),
}


@pytest.mark.parametrize("name", PARTIAL_DECODING_CHAINS)
def test_a_chain_knows_what_it_reads(name: str) -> None:
    steps, expected = PARTIAL_DECODING_CHAINS[name]
    wanted = None if expected is None else {tuple(path.split(".")) for path in expected.split()}
    assert paths_read(made(**steps)) == wanted


@pytest.mark.parametrize("name", PARTIAL_DECODING_CHAINS)
async def test_a_chain_gives_the_same(name: str) -> None:
    steps, _ = PARTIAL_DECODING_CHAINS[name]
    chance = random.Random(3)
    sent = [
        msgspec.json.encode(
            {
                each: chance.choice([None, 1, -1, 2.5, "x", True, {"x": 1}, {"x": 2, "y": []}])
                for each in [*"abcdm", "flag"]
                if chance.random() < 0.9
            }
        )
        for _ in range(400)
    ] + [b"7", b"[]", b"{"]
    outputs = []
    for format_ in (JsonFormat(), Whole()):
        out = Outputs()
        chain = Chain([(f"{at}", each) for at, each in enumerate(made(**steps))], format_, format_)
        await chain.process([Row(at, b"k", payload, {}) for at, payload in enumerate(sent)], out)
        outputs.append(
            (
                [(row.time, row.payload, row.headers) for row in out.rows],
                [(each.row.time, each.row.payload, each.reason) for each in out.rejected],
                {to: [(row.time, row.payload) for row in rows] for to, rows in out.routed.items()},
            )
        )
    assert isinstance(JsonFormat(), PartialFormat)
    assert not isinstance(Whole(), PartialFormat)
    assert outputs[0] == outputs[1]
    assert outputs[0][0]


# --- Payloads that come out of chains: in the format of their stream, whatever the functions did


CONFIG = """\
node: n
data_dir: data
streams:
  sensors: {{from: "plant/{{line}}/sensors", payload: {given}}}
  other: {{}}
  warm:
    from_stream: sensors
    {own}
    functions: {functions}
"""


async def written_payloads_outputs(payloads: list[bytes], functions: str, *, given: str, own: str = "") -> Outputs:
    text = CONFIG.format(given=given, own=own, functions=functions)
    if "other" not in functions:
        text = text.replace("  other: {}\n", "")
    config = parse(text, "edge.yaml", EdgeConfig, check).config
    chain, out = chain_of(config, Flow(config), "warm"), Outputs()
    await chain.process([Row(at, b"plant/a/sensors", payload, {}) for at, payload in enumerate(payloads)], out)
    assert not out.unwritten
    return out


READINGS: list[dict[str, Any]] = [{"t": 21.5, "n": 1}, {"t": 5, "n": 2}]
WHERE = "[where: t > 20]"
ROUTE = "[set: {t: t + 1}, route: [{to: other, where: t > 20}]]"


async def test_what_no_function_changed_keeps_its_bytes() -> None:
    payload = b'{ "t": 21.50, "n": 1 }'
    assert [row.payload for row in (await written_payloads_outputs([payload], WHERE, given="json")).rows] == [payload]


async def test_what_no_function_changed_is_converted_to_the_format_of_its_stream() -> None:
    """All of it, though the functions look at one field alone."""
    found = await written_payloads_outputs(
        [cbor2.dumps(each) for each in READINGS], WHERE, given="cbor", own="payload: json"
    )
    assert [row.payload for row in found.rows] == [b'{"t":21.5,"n":1}']


async def test_a_row_that_was_changed_and_routed_is_written() -> None:
    found = await written_payloads_outputs([msgspec.json.encode(each) for each in READINGS], ROUTE, given="json")
    assert [row.payload for row in found.routed["other"]] == [b'{"t":22.5,"n":1}']
    assert [row.payload for row in found.rows] == [b'{"t":6,"n":2}']


async def test_a_routed_row_has_the_format_of_the_stream_that_routes_it() -> None:
    copies = "[route: [{to: other, where: t > 20, copy: true}]]"
    found = await written_payloads_outputs(
        [msgspec.json.encode(each) for each in READINGS], copies, given="json", own="payload: cbor"
    )
    assert [cbor2.loads(row.payload or b"") for row in found.routed["other"]] == READINGS[:1]
    assert [cbor2.loads(row.payload or b"") for row in found.rows] == READINGS
    same = await written_payloads_outputs([msgspec.json.encode(each) for each in READINGS], copies, given="json")
    assert [row.payload for row in same.routed["other"]] == [msgspec.json.encode(READINGS[0])]


async def test_what_the_format_of_the_stream_cannot_hold_goes_to_the_errors_with_what_came() -> None:
    payloads = [msgspec.json.encode(each) for each in ({"value": 5}, {"value": 5, "more": 1})]
    found = await written_payloads_outputs(payloads, "[where: value > 1]", given="json", own="payload: number")
    assert [row.payload for row in found.rows] == [b"5"]
    (rejected,) = found.rejected
    assert rejected.row.payload == payloads[1]
    assert "only the field `value`" in rejected.reason


@pytest.mark.parametrize("own", ["text", "bytes"])
async def test_json_is_text_and_anything_is_bytes(own: str) -> None:
    payload = b'{ "t": 21.50 }'
    found = await written_payloads_outputs([payload], WHERE, given="json", own=f"payload: {own}")
    assert [row.payload for row in found.rows] == [payload]
