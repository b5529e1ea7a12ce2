"""Whole chains, from payloads to payloads: how the input is cut into batches, steps and runs changes no byte.

Each function has such a test of its own. Here they stand behind each other, with ticks, gaps, rows that cannot be read,
and the ways out besides: errors, other streams, alerts.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from tests.functions.restart import SECOND, Cut, cuts
from tests.support.examples import moving
from tests.support.slices import SLICE
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import Definition, definitions
from weft.functions.chain import Chain, Outputs
from weft.functions.contract import Gap, Row

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
