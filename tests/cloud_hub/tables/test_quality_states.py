"""States of quality rules: when an alarm begins and ends, and what is unknown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from weft.cloud_hub.tables.quality import Recent, StreamWatch
from weft.config.load import parse_rules
from weft.hub_api.status import QualityOfNode
from weft.storage.table.quality import Counted, QualityCounts, RowChecks, Tally, number_of
from weft.storage.table.schemas import StreamQuality

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
