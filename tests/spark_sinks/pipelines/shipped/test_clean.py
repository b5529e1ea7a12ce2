"""*clean* leaves out what was sent again, and nothing else; times are the best that are known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.shipped.clean import drop_repeats, settle_times
from spark_sinks.pipelines.steps import Context
from weft.config.load import parse
from weft.config.pipelines import Pipeline

pytestmark = pytest.mark.spark
START = datetime(2026, 3, 1, 6, tzinfo=UTC)
SCHEMA = (
    "_shard int, _offset bigint, _time timestamp, _resent boolean, _edge string, _key string, payload string, "
    "at timestamp, _clock string"
)
TEXT = "name: clean\nsource: {store: s, stream: telemetry}\nsteps: [python: m:f]\nsink: {console: {}}\n"


class Log(Context):
    """A pipeline whose history is a list of rows."""

    def use(self, frame: DataFrame) -> Log:
        object.__setattr__(self, "frame", frame)
        return self

    def history(self, spark: SparkSession, **named: Any) -> DataFrame:
        found: DataFrame = self.frame  # type: ignore[attr-defined]
        found = found.where((found._time >= named["since"]) & (found._time < named["until"]))
        return found.where(found._edge.isin(named["edges"])).select(*named["columns"])


@pytest.fixture
def log(spark: SparkSession) -> Callable[..., tuple[DataFrame, Log]]:
    def make(*rows: tuple[Any, ...]) -> tuple[DataFrame, Log]:
        frame = spark.createDataFrame([*rows], SCHEMA)
        return frame, Log(parse(TEXT, "clean.yaml", Pipeline).config).use(frame)

    return make


def row(
    offset: int,
    seconds: float,
    payload: str,
    *,
    resent: bool = False,
    key: str = "m1",
    edge: str = "e1",
    at: datetime | None = None,
    clock: str = "synced",
) -> tuple[Any, ...]:
    return (0, offset, START + timedelta(seconds=seconds), resent, edge, key, payload, at, clock)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(found._offset for found in frame.select("_offset").collect())


@pytest.mark.slow
def test_a_message_that_was_sent_again_is_left_out(log: Callable[..., tuple[DataFrame, Log]]) -> None:
    frame, context = log(
        row(0, 0, "a"),
        row(1, 1, "a", resent=True),  # the repeat
        row(2, 2, "a"),  # the same value, and not sent again
        row(3, 3, "b", resent=True),  # the first attempt never came
        row(4, 4, "a", resent=True, key="m2"),
        row(5, 5, "a", resent=True, edge="e2"),
        row(6, 900, "a", resent=True),  # long after
    )
    assert offsets(drop_repeats(frame, context, within="10m")) == [0, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_micro_batch(log: Callable[..., tuple[DataFrame, Log]]) -> None:
    frame, context = log(*(row(n, n, "ab"[n // 3 % 2], resent=n % 3 > 0) for n in range(12)))
    whole = offsets(drop_repeats(frame, context, within="2s"))
    for size in (1, 5):
        cuts = [frame.where((frame._offset >= n) & (frame._offset < n + size)) for n in range(0, 12, size)]
        kept = [offsets(drop_repeats(cut, context, within="2s")) for cut in cuts]
        assert sorted(offset for each in kept for offset in each) == whole
    assert 0 < len(whole) < 12


@pytest.mark.slow
def test_the_time_of_a_reading_tells_repeats_too(log: Callable[..., tuple[DataFrame, Log]]) -> None:
    one, other = START, START + timedelta(seconds=1)
    frame, context = log(
        row(0, 0, "a", at=one), row(1, 1, "a again", at=one), row(2, 2, "b", at=other), row(3, 3, "c"), row(4, 4, "c")
    )
    assert offsets(drop_repeats(frame, context, within="10m", time="at")) == [0, 2, 3, 4]


def test_times_are_the_payloads_where_they_are_near(log: Callable[..., tuple[DataFrame, Log]]) -> None:
    near, far = START - timedelta(hours=1), START - timedelta(days=40)
    frame, context = log(
        row(0, 0, "", at=near), row(1, 0, "", at=far), row(2, 0, ""), row(3, 0, "", at=far, clock="corrected")
    )
    found = settle_times(frame, context, column="at").selectExpr("unix_seconds(time) AS s", "time_from").collect()
    base = int(START.timestamp())
    assert [(each.s - base, each.time_from) for each in found] == [
        (-3600, "payload"),
        (0, "edge"),
        (0, "edge"),
        (0, "hub"),
    ]


def test_mistakes_have_their_place(log: Callable[..., tuple[DataFrame, Log]]) -> None:
    frame, context = log()
    calls: list[tuple[Callable[[], DataFrame], str]] = [
        (lambda: drop_repeats(frame, context, within="ten"), "within: expected a duration"),
        (lambda: drop_repeats(frame.drop("_resent"), context), "drop_repeats needs the column _resent"),
        (lambda: settle_times(frame, context, column="payload"), "payload has the type string"),
        (lambda: settle_times(frame, context, column="nothing"), "nothing is not there"),
    ]
    for call, said in calls:
        with pytest.raises(PipelineError, match=said):
            call()
    assert offsets(drop_repeats(frame, context, within="1m", time="at")) == []
