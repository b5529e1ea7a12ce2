"""Several streams read as one, without Spark: as its driver and its executors do it."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import SeveralReader, SeveralStreamReader, columns_of_several, named_streams
from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.source.following import Place

Row = tuple[str, str, int, str | None]
"""Stream, edge, number, and the topic level that only one stream has."""
OVEN = "plant/{oven}/{machine}/telemetry"


class Reader:
    """One driver process of a streaming query of several streams."""

    def __init__(self, hub: Hub, *names: str) -> None:
        given = named_streams({"store": hub.root, "streams": ",".join(names)})
        assert given is not None
        self.schema = from_arrow_schema(columns_of_several(given))
        self.reader = SeveralStreamReader(given, self.schema)

    def batch(self, start: Place, limit: int | None = None) -> tuple[Place, list[Row]]:
        """The end of the next micro-batch, as Spark keeps it, and its rows."""
        end = self.reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
        end = json.loads(json.dumps(end))
        return end, self.rows(start, end)

    def rows(self, start: Place, end: Place) -> list[Row]:
        found: list[Row] = []
        there = pickle.loads(pickle.dumps(self.reader))
        for task in self.reader.partitions(start, end):
            for rows in there.read(pickle.loads(pickle.dumps(task))):
                assert rows.schema.names == self.schema.names
                columns = [rows.column(name).to_pylist() for name in ("_stream", "_edge", "_seq")]
                ovens = rows.column("oven").to_pylist() if "oven" in rows.schema.names else [None] * rows.num_rows
                found += zip(*columns, ovens, strict=True)
        return sorted(found, key=str)


def expected(*hubs: Hub) -> list[Row]:
    return sorted(
        (
            (hub.stream, edge, seq, edge[:5] if hub.stream == "ovens" else None)
            for hub in hubs
            for edge, seq, _ in hub.expected()
        ),
        key=str,
    )


@pytest.fixture
def ovens(hub: Hub) -> Hub:
    """Two streams: telemetry, half of it in its table, and ovens with a topic level of its own."""
    found = hub.another("ovens")
    hub.write(1)
    hub.tier()
    hub.write(1)
    found.write(1, topic=OVEN)
    return found


def test_each_record_of_each_stream_is_a_row_once_within_the_limit_of_all(hub: Hub, ovens: Hub) -> None:
    reader = Reader(hub, "telemetry", "ovens")
    at = reader.reader.initialOffset()
    rows: list[Row] = []
    for _ in range(12):
        until, found = reader.batch(at, 25)
        assert len(found) <= 25
        assert found == reader.rows(at, until), "the same offsets give the same rows"
        at, rows = until, rows + found
    assert sorted(rows, key=str) == expected(hub, ovens)
    ovens.write(1, topic=OVEN)
    _, found = Reader(hub, "ovens", "telemetry").batch(at)
    assert {row[:1] for row in found} == {("ovens",)}, "the order of the names means nothing"
    assert sorted(rows + found, key=str) == expected(hub, ovens)


def test_a_stream_that_is_named_later_begins_at_its_first_record(hub: Hub, ovens: Hub) -> None:
    alone = Reader(hub, "telemetry")
    at, first = alone.batch(alone.reader.initialOffset())
    assert first == expected(hub)
    at, second = Reader(hub, "telemetry", "ovens").batch(at)
    assert second == expected(ovens)
    hub.write(1)
    at, third = Reader(hub, "ovens").batch(at)
    assert third == []
    _, fourth = Reader(hub, "ovens", "telemetry").batch(at)
    assert sorted(first + fourth, key=str) == expected(hub), "it continues where it was"


def test_a_batch_read_has_the_rows_of_all(hub: Hub, ovens: Hub) -> None:
    given = named_streams({"store": hub.root, "streams": "telemetry,ovens", "columns": "_stream,oven"})
    assert given is not None
    schema = columns_of_several(given)
    assert schema.names == ["_stream", "oven"]
    reader = SeveralReader(given, from_arrow_schema(schema))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted((row["_stream"], row["oven"]) for row in rows if row["oven"]) == sorted(
        (row[0], row[3]) for row in expected(ovens)
    )
    assert sum(row["_stream"] == "telemetry" for row in rows) == len(expected(hub))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streams": "a,a"}, "each once"),
        ({"streams": "a,b", "stream": "a"}, "leave one of the two out"),
        ({"streams": "a,b", "hub": "http://127.0.0.1:8090"}, "the option hub reads one stream"),
        ({"streams": "a,b", "starting": '{"0": 1}'}, "offsets are those of one stream"),
    ],
)
def test_what_has_a_meaning_for_one_stream_only_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ReadError, match=said):
        named_streams({"store": "hub", **options})


def test_a_checkpoint_of_one_stream_is_not_taken_for_that_of_several(hub: Hub, ovens: Hub) -> None:
    with pytest.raises(ReadError, match="expected offsets of several streams, got"):
        Reader(hub, "telemetry", "ovens").batch({"0": 3})
