"""Quality rules of the hub's tables: what is counted, and that each row counts once."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.tables.logs import OTHER, LogWriter, Run, rows
from tests.cloud_hub.tables.test_columns import readings
from tests.cloud_hub.tables.test_tiering import drain
from weft.cloud_hub.tables.quality import Recent, StreamWatch
from weft.config.load import parse_rules, parse_schema
from weft.config.payload_schema.model import RULES_MAX
from weft.hub_api.status import QualityOfNode
from weft.storage.object_store import ObjectStore
from weft.storage.table import quality as table_quality
from weft.storage.table.actions import TableError
from weft.storage.table.quality import Counted, KeyRun, QualityCounts, RowChecks, Tally, key_hashes, number_of, repeated
from weft.storage.table.schemas import StreamQuality, StreamSchema
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

SCHEMA = StreamSchema(3, parse_schema("temperature float, n int, s string, d decimal(6,2)"))
RULES = """
rules:
  hot: {range: {field: temperature, min: -10, max: 80.5}}
  number: {range: {field: n, max: 9}}
  money: {range: {field: d, min: 0}}
  there: {not_null: n}
  line: {not_null: line}
  fits: {fits: true}
  gone: {not_null: nothing}
  text: {range: {field: s, min: 1}}
"""


def quality(version: int, text: str = RULES) -> StreamQuality:
    return StreamQuality(version, parse_rules(text))


class Maker:
    """A process that makes the table, with what it knows."""

    tierer: Tierer

    def __init__(self, knows: StreamQuality | None, schema: StreamSchema | None = SCHEMA) -> None:
        self.knows, self.schema = knows, schema

    @classmethod
    async def start(cls, store: ObjectStore, log: LogWriter, knows: StreamQuality | None = None) -> Maker:
        made, views = cls(knows), await load_shards(store, log.cluster)
        made.tierer = Tierer(
            store, log.cluster, "default", "telemetry", views, schema=lambda: made.schema, quality=lambda: made.knows
        )
        return made

    async def write(self) -> int:
        for view in self.tierer._views:
            await view.log.extend(view.state)
        return await drain(self.tierer)

    def counts(self, text: str = RULES) -> dict[str, tuple[int, int] | None]:
        """Rule -> rows that were checked, and those that failed."""
        found = {}
        for name, rule in parse_rules(text).rules.items():
            counted = self.tierer.quality.counts.of(number_of(rule))
            found[name] = None if counted is None else (counted.rows, counted.failed)
        return found


ROWS: list[Any] = [
    {"temperature": 20, "n": 1, "s": "a", "d": "1.50"},
    {"temperature": 81, "n": 10, "d": "-0.01"},
    {"temperature": -10, "n": None},
    {"temperature": "hot", "n": 9},
    b"\xff",
    {"temperature": 80.5, "n": 1 << 62},
]


async def test_rows_that_fail_are_counted_by_rule(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(5))
    await log.append(0, readings(*ROWS))
    await log.append(1, Run(OTHER, 0, 2, topics=["plant/#"], payloads=[b'{"n": 1}', b"{}"]))
    assert await maker.write() == 8
    assert maker.counts() == {
        "hot": (8, 1),
        "number": (8, 2),
        "money": (8, 1),
        "there": (8, 3),
        "line": (8, 2),
        "fits": (8, 2),
        "gone": None,
        "text": None,
    }
    assert maker.tierer.quality.why_not == {
        "gone": "the stream's schema has no field 'nothing', and no edge names such a topic level",
        "text": "'s' has no numbers, which a range needs",
    }
    assert maker.tierer.quality.counts.unchecked(maker.tierer.done) == 0


async def test_a_check_goes_on_counting_while_others_change(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log)
    await log.append(0, readings({"n": 1}, {"n": 99}))
    await maker.write()
    assert maker.tierer.quality.counts.rows == 0, "rows before the rules are not counted"
    texts = (
        "rules: {a: {range: {field: n, max: 9}}, b: {not_null: s}}",
        "rules: {renamed: {range: {field: n, max: 9}, tolerate: 0.5}, c: {range: {field: n, max: 8}}}",
        "rules: {b: {not_null: s}}",
    )
    counted = []
    for version, text in enumerate(texts, 1):
        maker.knows = quality(version, text)
        await log.append(0, readings({"n": 9}, {"n": 99}, {"n": 1}, first=3 * version - 1))
        await maker.write()
        counted.append(maker.counts(text))
    assert counted == [{"a": (3, 1), "b": (3, 3)}, {"renamed": (6, 2), "c": (3, 2)}, {"b": (3, 3)}], (
        "a check that was withdrawn begins again"
    )
    assert maker.tierer.quality.counts.unchecked(maker.tierer.done) == 0
    names = [name for name in maker.tierer._state.transactions if name.endswith("/rule")]  # type: ignore[union-attr]
    assert len(names) == 2, "places are used again: a name in a table's log is there for good"


async def test_a_place_is_there_for_each_rule_however_often_rules_change(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log)
    for version in range(1, 4):
        rules = ", ".join(f"r{at}: {{range: {{field: n, max: {version * 100 + at}}}}}" for at in range(RULES_MAX))
        text = f"rules: {{{rules}}}"
        maker.knows = quality(version, text)
        await log.append(0, readings({"n": 1}, {"n": version * 100 + 1}, first=2 * version - 2))
        await maker.write()
        assert maker.counts(text) == {f"r{at}": (2, int(at == 0)) for at in range(RULES_MAX)}


async def test_rows_count_for_a_rule_only_where_their_maker_could_check_it(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    older, newer = "rules: {a: {not_null: n}}", "rules: {a: {not_null: n}, b: {not_null: s}}"
    makers = [await Maker.start(directory, log, known) for known in (quality(1, older), quality(2, newer), None)]
    for turn in range(6):
        await log.append(0, readings({"n": 1}, {}, first=2 * turn))
        assert await makers[turn % 3].write() == 2
    assert makers[1].counts(newer) == {"a": (8, 4), "b": (4, 4)}
    assert makers[1].tierer.quality.counts.unchecked(makers[1].tierer.done) == 2, "one maker knew no rules"
    await log.append(0, readings({"n": 1}, first=12))
    makers[1].schema = StreamSchema(7, parse_schema("s string"))
    await makers[1].write()
    await log.append(0, readings({"n": 1, "s": "x"}, first=13))
    makers[1].schema = SCHEMA
    await makers[1].write()
    assert makers[1].counts(newer) == {"a": (9, 4), "b": (6, 5)}, "without the field, rows do not count for it"


async def test_a_step_that_loses_the_race_counts_its_rows_once(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    text = "rules: {a: {not_null: n}}"
    first, other = [await Maker.start(directory, log, quality(1, text)) for _ in range(2)]
    await log.append(0, readings({"n": 1}, {}))
    await first.write()
    await log.append(0, readings({}, {}, first=2))
    await log.append(1, readings({}, {"n": 1}, {}, lane=OTHER))
    append = first.tierer.log.append

    async def raced(*given: Any) -> Any:
        first.tierer.log.append = append  # type: ignore[method-assign]
        other.tierer._views = [view for view in other.tierer._views if view.shard == 1]
        assert await other.write() == 3
        return await append(*given)

    first.tierer.log.append = raced  # type: ignore[method-assign, assignment]
    await first.write()
    assert first.counts(text) == {"a": (7, 5)}
    assert rows(directory).num_rows == 7


async def test_a_field_that_is_null_from_then_on_is_known_with_the_rows_since(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(1, "vanished_after: 3"))
    sent: list[list[Any]] = [
        [{"n": 1}, {"temperature": 1}],
        [{"n": 1}, {"temp": 1}],
        [{"temp": 1}, {"s": "x"}],
        [{"n": 1, "temperature": 2}],
    ]
    absent = []
    for number, payloads in enumerate(sent):
        await log.append(0, readings(*payloads, first=10 * number))
        await maker.write()
        counts = maker.tierer.quality.counts
        absent.append([counts.absent(name) for name in ("n", "temperature", "s", "d")])
    assert absent == [[0, 0, None, None], [0, 2, None, None], [2, 4, 0, None], [0, 0, 1, None]]


ONCE = "rules: {once: {unique: {fields: [s, n], within: 4}}, topic: {unique: [_key, payload]}}"


async def test_a_row_that_repeats_another_is_found_also_after_a_restart_and_in_another_shard(
    directory: ObjectStore,
) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(1, ONCE))
    a, b, c = ({"s": name, "n": 1} for name in "abc")
    await log.append(0, readings(a, b, a, {"s": "a"}, {"n": 1}))
    await maker.write()
    assert maker.counts(ONCE) == {"once": (5, 1), "topic": (5, 1)}, "a row without one of the values repeats nothing"
    maker = await Maker.start(directory, log, quality(1, ONCE))
    await log.append(1, readings(b, c, lane=OTHER))
    await log.append(0, readings({"s": "d", "n": 1}, a, c, a, first=5))
    await maker.write()
    # Of "a" at offset 6, the last is four offsets away. Shard 1 comes behind shard 0, whose "b" is further away.
    assert maker.counts(ONCE) == {"once": (11, 4), "topic": (11, 5)}
    await log.append(0, readings({"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}, a, first=9))
    await maker.write()
    assert maker.counts(ONCE) == {"once": (16, 4), "topic": (16, 6)}, "five offsets away is beyond `within`"


@pytest.mark.slow
async def test_two_makers_that_take_turns_know_each_others_rows(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    makers = [await Maker.start(directory, log, quality(1, ONCE)) for _ in range(2)]
    for turn in range(6):
        await log.append(0, readings({"s": "a", "n": turn // 2}, first=turn))
        await makers[turn % 2].write()
    assert makers[1].counts(ONCE) == {"once": (6, 3), "topic": (6, 3)}


async def test_rows_wait_for_no_check_of_their_keys(directory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, readings({"s": "a", "n": 1}))
    await (await Maker.start(directory, log)).write()
    maker = await Maker.start(directory, log, quality(1, ONCE))

    def fails(*_: object) -> None:
        raise TableError("a file is missing")

    with monkeypatch.context() as patch:
        patch.setattr(table_quality, "last_keys", fails)
        await log.append(0, readings({"s": "a", "n": 1}, first=1))
        assert await maker.write() == 1
    assert maker.counts(ONCE) == {"once": None, "topic": None}
    reason = "the last rows of the table cannot be read: a file is missing"
    assert maker.tierer.quality.why_not == {"once": reason, "topic": reason}
    await log.append(0, readings({"s": "a", "n": 1}, first=2))
    await maker.write()
    assert maker.counts(ONCE) == {"once": (1, 1), "topic": (1, 1)}
    assert maker.tierer.quality.why_not == {}


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), max_size=6)), max_size=3), max_size=8),
    st.integers(1, 8),
)
def test_repeated_keys_are_those_of_a_recount(commits: list[list[tuple[int, list[int]]]], within: int) -> None:
    tails: dict[int, KeyRun] = {}
    rows_of: dict[int, list[int]] = {}
    for commit in commits:
        runs = []
        for shard, keys in dict(commit).items():
            first = len(rows_of.setdefault(shard, []))
            runs.append(KeyRun(shard, first, first + len(keys), np.array(keys, np.uint64)))
        expected = []
        for run in runs:
            others = [key for shard, found in rows_of.items() if shard != run.shard for key in found[-within:]]
            mine = rows_of[run.shard]
            for key in run.keys.tolist():
                expected.append(key != 0 and (key in mine[-within:] or key in others))
                mine.append(key)
        marks, tails = repeated(tails, runs, within)
        assert [bool(mark) for part in marks for mark in part] == expected


def test_equal_values_and_no_others_have_one_number() -> None:
    texts = [*map("".join, itertools.product("ab\0", repeat=3)), "", "a", "x" * 3000, "x" * 3001, None, "a", "x" * 3000]
    batch = pa.record_batch({"t": texts, "n": [*range(len(texts) - 2), texts.index("a"), texts.index("x" * 3000)]})
    found = key_hashes(batch, ["t"])
    assert len({*found.tolist()}) == len({*texts})
    assert (found[-3], found[-2], found[-1]) == (0, found[texts.index("a")], found[texts.index("x" * 3000)])
    assert key_hashes(batch.slice(5), ["t"]).tolist() == found[5:].tolist(), "wherever a batch is cut"
    assert key_hashes(batch, ["t", "n"]).tolist()[-2:] == [
        key_hashes(batch, ["t", "n"]).tolist()[texts.index(text)] for text in ("a", "x" * 3000)
    ]
    numbers = pa.record_batch({"f": [0.0, -0.0, 1.5], "d": [Decimal("1.50"), Decimal("1.5"), None]})
    assert len({*key_hashes(numbers, ["f"]).tolist()}) == 2
    assert key_hashes(numbers, ["d"]).tolist()[2] == 0


async def test_rows_that_fail_are_marked_where_the_rules_ask_for_it(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(5))
    await log.append(0, readings({"n": 99}))
    await maker.write()
    assert "_failed" not in rows(directory).schema.names
    maker.knows = quality(6, f"quarantine: true\n{RULES}")
    await log.append(0, readings(*ROWS, first=1))
    await maker.write()
    maker.knows = quality(7)
    await log.append(0, readings({"n": 99}, first=7))
    await maker.write()
    assert rows(directory)["_failed"].to_pylist() == [
        None,
        None,
        "hot, number, money",
        "there",
        "fits",
        "there, fits",
        "number",
        None,
    ]


# --- States of quality rules: when an alarm begins and ends, and what is unknown


SECOND_US, MINUTE_NS = 1_000_000, 60_000_000_000
NOW_NS = 1_700_000_000_000_000_000
NOW_US = NOW_NS // 1000


class Stream:
    """A stream whose table grows, and the watch over it, at moments that the test says."""

    def __init__(self, text: str, rows: int = 0, failed: int = 0) -> None:
        self.watch, self.now = StreamWatch(), 0.0
        self.is_sound = True
        self.why_not: dict[str, str] = {}
        self._transactions: dict[str, int] = {}
        self.declare(text)
        if rows:
            self.grow(rows, failed)
        self._first = self._counts

    def declare(self, text: str) -> None:
        """Other rules."""
        self._declared = StreamQuality(1, parse_rules(text))
        self._counts = QualityCounts(self._transactions, "")

    def grow(self, rows: int, failed: int = 0, valued: Sequence[str] = ("t",), times: dict[str, Any] = {}) -> None:
        """A version of the table with further rows. All of the rules have the same number of failures."""
        numbers = [number_of(rule) for rule in self._declared.rules.rules.values() if rule.fresh is None]
        checks = RowChecks(1, frozenset(numbers), (), (), (("t", "t"), ("s", "s")))
        tally = Tally(checks, rows, dict.fromkeys(numbers, failed), valued={*valued}, **times)
        self._transactions = self._transactions | self._counts.after(tally, 0)
        self._counts = QualityCounts(self._transactions, "")

    def look(self, after_s: float = 2.0) -> list[tuple[str, str]]:
        """What a look some seconds later logs."""
        self.now += after_s
        events = self.watch.look(
            self._declared,
            self._counts,
            self._first,
            0,
            self.why_not,
            ("t", "s"),
            self.now,
            NOW_NS + int(self.now * 1e9),
            is_sound=self.is_sound,
        )
        return [(logging.getLevelName(each.level), each.text) for each in events]

    def status(self) -> QualityOfNode:
        found = self.watch.status("default", "telemetry")
        assert found is not None
        return found

    @property
    def state(self) -> str:
        """Of the first rule."""
        return self.status().rules[0].state


def test_an_alarm_is_one_line_when_it_begins_and_one_when_it_ends() -> None:
    stream = Stream("rules: {hot: {range: {field: t, max: 80}, tolerate: 0.05, over: 10m}}")
    assert stream.look() == []
    assert (stream.state, stream.status().rules[0].why) == ("unknown", "no row was checked yet")
    stream.grow(100, 5)
    assert (stream.look(), stream.state) == ([], "good")
    stream.grow(100, 7)
    assert stream.look() == [
        ("WARNING", "rule hot: 12 of the last 200 rows fail (6.00%), and 5.00% are tolerated: range of t: ..80")
    ]
    for _ in range(20):
        stream.grow(100, 10)
        assert (stream.look(10), stream.state) == ([], "alarm")
    logged = []
    for _ in range(40):
        stream.grow(100, 1)
        logged += stream.look(30)
    assert logged == [("INFO", "rule hot: the alarm is over")]
    (rule,) = stream.status().rules
    assert (rule.rows, rule.failed) == (6200, 252)
    assert rule.recent_failed / rule.recent_rows <= 0.05


def test_what_was_before_this_process_started_is_in_the_counts_and_not_in_the_rate() -> None:
    stream = Stream("rules: {hot: {range: {field: t, max: 80}}}", rows=1000, failed=900)
    assert (stream.look(), stream.state) == ([], "unknown")
    assert stream.status().rules[0].why == "no row came since this process began to look"
    stream.grow(10)
    assert (stream.look(), stream.state) == ([], "good")
    assert stream.status().rules[0].failed == 900


def test_a_share_of_few_rows_says_nothing_yet() -> None:
    stream = Stream("rules: {hot: {range: {field: t, max: 80}, tolerate: 0.1}}")
    stream.look()
    stream.grow(19, 3)
    assert (stream.look(), stream.state) == ([], "unknown")
    stream.grow(1)
    assert (len(stream.look()), stream.state) == (1, "alarm")


def test_a_rule_that_cannot_be_checked_is_unknown_and_says_why() -> None:
    stream = Stream("rules: {hot: {range: {field: t, max: 80}}}")
    stream.grow(10, 10)
    assert len(stream.look()) == 1
    stream.why_not["hot"] = "no such field"
    stream.grow(10, 0)
    assert stream.look() == [("INFO", "rule hot: the alarm is over: no such field")]
    assert (stream.state, stream.status().rules[0].why) == ("unknown", "no such field")


def test_a_rule_that_only_tolerates_more_goes_on() -> None:
    stream = Stream("rules: {hot: {range: {field: t, max: 80}}, cold: {range: {field: t, min: 0}}}")
    stream.grow(100, 4)
    assert len(stream.look()) == 2
    stream.declare("rules: {very-hot: {range: {field: t, max: 80}, tolerate: 0.05}}")
    assert stream.look() == [("INFO", "rule very-hot: the alarm is over")]
    assert [(rule.name, rule.rows, rule.failed) for rule in stream.status().rules] == [("very-hot", 100, 4)]


def test_a_table_that_was_made_again_counts_again() -> None:
    recent = Recent(600, 0.0, Counted(1000, 10))
    recent.note(1.0, Counted(1010, 10))
    recent.note(2.0, Counted(5, 1))
    assert recent.counted == (5, 1)


def test_the_last_rows_are_bounded_however_many_come() -> None:
    recent = Recent(600, 0.0, Counted(0, 0))
    for second in range(5000):
        recent.note(float(second), Counted(100 * second, second))
    assert len(recent._notes) < 25
    assert 600 <= recent.counted.rows / 100 <= 600 * 18 / 16
    for second in range(5000, 500_000, 1000):  # a row each quarter of an hour
        recent.note(float(second), Counted(500_000 + second // 1000, 5000))
    assert len(recent._notes) < 45
    assert 20 <= recent.counted.rows <= 22


def test_a_renamed_field_is_noticed_once_and_its_return_too() -> None:
    stream = Stream("vanished_after: 100")
    stream.grow(50)
    assert stream.look() == []
    stream.grow(99, valued=())
    assert stream.look() == []
    stream.grow(1, valued=())
    assert stream.look() == [
        ("WARNING", "field t had values, and none in the last 100 rows: it was renamed, or is no longer sent")
    ]
    stream.grow(1000, valued=("s",))
    assert stream.look() == []
    assert [(each.field, each.rows) for each in stream.status().vanished] == [("t", 1100)]
    assert stream.watch.alarms == 1
    stream.grow(1)
    assert stream.look() == [("INFO", "field t: the alarm is over: it has values again")]
    assert (stream.status().vanished, stream.watch.alarms) == ([], 0)


AGO = {"now": 0, "old": 3600, "ahead": -7200}


@pytest.mark.parametrize(
    ("times", "sound", "state", "why"),
    [
        ({}, True, "unknown", "no row was checked yet"),
        ({"time": "now", "received": "now"}, True, "good", None),
        ({"time": "now", "received": "now"}, False, "unknown", "this node's clock cannot be believed"),
        ({"time": "now", "received": "old"}, True, "alarm", "no row came for 60.0 minutes; expected one each 10m"),
        ({"time": "ahead", "received": "old"}, True, "alarm", "no row came for 60.0 minutes; expected one each 10m"),
        ({"received": "now", "doubtful": "now"}, True, "unknown", "rows come, from edge nodes whose clocks"),
        ({"time": "old", "received": "now", "doubtful": "now"}, True, "unknown", "rows come, from edge nodes"),
        ({"time": "old", "received": "now", "doubtful": "old"}, True, "alarm", "rows come, the newest of them of 2023"),
        ({"time": "now", "received": "now", "doubtful": "now"}, True, "good", None),
        ({"time": "now", "received": "ahead"}, True, "unknown", "the hub received rows at 2023-11-15T00:13:20"),
    ],
)
def test_a_table_is_fresh_by_clocks_that_can_be_believed(
    times: dict[str, str], sound: bool, state: str, why: str | None
) -> None:
    stream = Stream("rules: {newest: {fresh: 10m}}")
    stream.is_sound = sound
    stream.grow(10, times={name: NOW_US - AGO[ago] * SECOND_US for name, ago in times.items()})
    logged = stream.look(0)
    (rule,) = stream.status().rules
    assert rule.state == state
    assert (rule.why or "").startswith(why or "")
    assert [level for level, _ in logged] == (["WARNING"] if state == "alarm" else [])
    assert rule.rows is None


def test_a_table_grows_old_without_a_new_row() -> None:
    stream = Stream("rules: {newest: {fresh: 10m}}")
    stream.grow(10, times={"time": NOW_US, "received": NOW_US})
    assert stream.look() == []
    assert stream.look(599) == [("WARNING", "rule newest: no row came for 10.0 minutes; expected one each 10m")]
    assert stream.look(3600) == []
