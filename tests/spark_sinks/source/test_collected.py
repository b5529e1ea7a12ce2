"""Readers that the collector has passed: they continue from the table, or say what is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_sinks.errors import ReadError
from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.source.following import Follower, collect, offsets
from weft.storage.hub_keys import table_key

pytestmark = pytest.mark.spark


def test_a_query_that_slept_past_the_collector_goes_on_from_the_table(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    assert first == hub.expected()
    hub.write(4)
    hub.tier()
    assert collect(hub) > 0
    hub.write(1)
    query.sleep()
    at, rest = query.batch(at)
    assert sorted(first + rest) == hub.expected()
    assert offsets(at) == hub.heads()


def test_so_does_a_query_that_was_stopped(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    hub.write(4)
    hub.tier()
    assert collect(hub) > 0
    hub.write(1)
    assert sorted(first + Follower(hub).batch(at)[1]) == hub.expected()


def test_a_task_whose_chunk_was_deleted_says_how_to_go_on(hub: Hub) -> None:
    hub.write(3)
    query = Follower(hub)
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, hub.heads())
    hub.tier()
    assert collect(hub) > 0
    with pytest.raises(ReadError, match=r"chunk/.* was deleted .*; start the query again: it continues from the table"):
        [list(query.reader.read(task)) for task in tasks]
    query.sleep()
    assert query.rows(start, hub.heads()) == hub.expected()


def test_rows_that_the_table_has_lost_too_are_named(hub: Hub) -> None:
    hub.write(4)
    query = Follower(hub)
    start = query.reader.initialOffset()
    hub.tier()
    collect(hub)
    table = Path(hub.root) / table_key("default", "telemetry")
    DeltaTable(table).delete("_offset < 15")
    with pytest.raises(ReadError) as caught:
        Follower(hub).batch(start)
    said = str(caught.value)
    assert re.search(r"offsets 0 to 15 of shard \d were removed from the table, and from the log before", said)
    assert 'set .option("fail_on_data_loss", "false"), or start from offset 15' in said
    _, rest = Follower(hub, fail_on_data_loss=False).batch(start)
    fresh = Follower(hub)
    _, present = fresh.batch(fresh.reader.initialOffset())
    assert rest == present, "a query that begins now begins with what there is"
    assert set(rest) < set(hub.expected())


def test_a_table_that_was_moved_away_is_no_empty_stream(hub: Hub) -> None:
    hub.write(4)
    hub.tier()
    collect(hub)
    table = Path(hub.root) / table_key("default", "telemetry")
    table.rename(table.with_name("moved"))
    query = Follower(hub)
    with pytest.raises(ReadError, match=r"offsets 0 to \d+ of shard \d are neither in the log nor in the table"):
        query.batch(query.reader.initialOffset())
    skipping = Follower(hub, fail_on_data_loss=False)
    at, rows = skipping.batch(skipping.reader.initialOffset())
    assert offsets(at) == hub.heads()
    assert set(rows) < set(hub.expected())


def test_a_stream_without_a_table_of_all_rows_has_only_what_the_log_has(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    assert first == hub.expected()
    hub.write(2)
    hub.latest(instead=True)
    assert collect(hub) > 0
    with pytest.raises(ReadError, match="left the log, and the stream has a latest table instead of a table of all"):
        Follower(hub).batch(at)
    skipping = Follower(hub, fail_on_data_loss=False)
    at, rows = skipping.batch(at)
    assert offsets(at) == hub.heads()
    assert set(rows) < set(hub.expected()) - set(first)


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_not_mounted_has_lost_nothing(hub: Hub, fails: bool) -> None:
    hub.write(2)
    query = Follower(hub, fail_on_data_loss=fails)
    start = query.reader.initialOffset()
    end = hub.heads()
    for recent in query.reader._opened()._recent.values():
        recent.clear()  # As in a query that is more chunks behind than it remembers.
    root = Path(hub.root)
    away = root.rename(root.with_name("away"))
    with pytest.raises(ReadError, match=r"the store holds no hub"):
        query.reader.partitions(start, end)
    away.rename(root)
    assert query.rows(start, end) == hub.expected()
