"""Rows of the table are the records of the log: once each, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, expected, rows, table
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import DeltaState, TableError, app_id
from weft.storage.table.delta_log import TableLog
from weft.storage.table_writer.settings import TableDiverged, TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer


@pytest.fixture
async def log(store: ObjectStore) -> LogWriter:
    return await LogWriter.open(store)


async def new_tierer(store: ObjectStore, log: LogWriter, stream: str = "telemetry", **settings: Any) -> Tierer:
    """As a node that has just started has it."""
    views = await load_shards(store, log.cluster)
    return Tierer(store, log.cluster, "default", stream, views, settings=TableSettings(**settings))


async def drain(tierer: Tierer) -> int:
    moved = 0
    while rows := await tierer.step():
        moved += rows
    return moved


async def test_rows_of_all_shards_arrive_once_in_offset_order(store: ObjectStore, log: LogWriter) -> None:
    first, second, third = Run(LANE, 0, 5, topics=TOPICS), Run(LANE, 5, 4), Run(OTHER, 0, 3)
    await log.append(0, first)
    await log.append(1, third)
    await log.append(0, second)
    tierer = await new_tierer(store, log)
    assert await drain(tierer) == 12
    assert contents(store) == expected({0: [first, second], 1: [third]})
    assert tierer.positions == {0: 9, 1: 3}


async def test_a_row_says_where_it_comes_from(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 3, 1, topics=TOPICS, resent=True))
    await drain(await new_tierer(store, log))
    row = rows(store).to_pylist()[0]
    assert (row["_edge"], row["_log"], row["_seq"], row["_offset"], row["_shard"]) == (
        "press-1",
        "0000000000000007",
        3,
        0,
        0,
    )
    assert (row["line"], row["machine"], row["_key"]) == ("a", "m1", "plant/a/m1/telemetry")
    assert (row["_resent"], row["_clock"], row["payload"]) == (True, "synced", b"press-1/7/3")


async def test_later_steps_continue_and_an_idle_one_does_nothing(store: ObjectStore, log: LogWriter) -> None:
    runs = [Run(LANE, 10 * i, 10) for i in range(4)]
    tierer = await new_tierer(store, log)
    for run in runs:
        await log.append(0, run)
        for view in tierer._views:
            await view.log.extend(view.state)
        assert await drain(tierer) == 10
    version = table(store).version()
    assert await tierer.step() == 0
    assert table(store).version() == version
    assert contents(store) == expected({0: runs})


async def test_a_restarted_tierer_goes_on_where_the_table_is(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 0, 5))
    await drain(await new_tierer(store, log))
    await log.snapshot(0)
    await log.append(0, Run(LANE, 5, 5))
    assert await drain(await new_tierer(store, log)) == 5
    assert await drain(await new_tierer(store, log)) == 0
    assert contents(store) == expected({0: [Run(LANE, 0, 10)]})


async def test_a_step_is_bounded_and_may_end_inside_a_section(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 0, 7), Run(OTHER, 0, 7))
    await log.append(0, Run(LANE, 7, 7))
    tierer = await new_tierer(store, log, file_rows_max=3)
    assert [await tierer.step() for _ in range(8)] == [3, 3, 3, 3, 3, 3, 3, 0]
    assert contents(store) == expected({0: [Run(LANE, 0, 7), Run(OTHER, 0, 7), Run(LANE, 7, 7)]})


async def test_bytes_bound_a_step_too(store: ObjectStore, log: LogWriter) -> None:
    for i in range(4):
        await log.append(0, Run(LANE, i, 1, payload_bytes=1000))
    tierer = await new_tierer(store, log, file_bytes_max=1500)
    assert [await tierer.step() for _ in range(3)] == [2, 2, 0]


async def test_streams_have_tables_of_their_own(store: ObjectStore, log: LogWriter) -> None:
    alarms = Run(LANE._replace(stream="alarms"), 0, 2)
    await log.append(0, Run(LANE, 0, 3), alarms)
    await drain(await new_tierer(store, log))
    await drain(await new_tierer(store, log, "alarms"))
    assert contents(store) == expected({0: [Run(LANE, 0, 3)]})
    assert contents(store, "alarms") == expected({0: [alarms]})


async def test_statistics_find_an_offset(store: ObjectStore, log: LogWriter) -> None:
    await log.append(1, Run(LANE, 100, 10))
    await drain(await new_tierer(store, log))
    actions = table(store).get_add_actions(flatten=True)
    found = {name: actions.column(name).to_pylist()[0] for name in actions.column_names}
    assert (found["min._offset"], found["max._offset"], found["num_records"]) == (0, 9, 10)
    assert (found["min._seq"], found["max._seq"], found["min._shard"], found["max._shard"]) == (100, 109, 1, 1)
    assert (found["max._time"] - found["min._time"]).total_seconds() == 9


async def test_any_engine_may_read_and_write_the_table(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 0, 3, topics=TOPICS))
    await drain(await new_tierer(store, log))
    protocol = table(store).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


async def test_files_are_zstd_parquet_sorted_by_offset(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 100))
    await log.append(0, Run(OTHER, 0, 100))
    await drain(await new_tierer(directory, log))
    (uri,) = table(directory).file_uris()
    file = pq.ParquetFile(uri)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read(["_offset"]).column(0).to_pylist() == list(range(200))


class TestSchema:
    async def test_a_new_level_becomes_a_column_and_old_rows_are_null_there(
        self, store: ObjectStore, log: LogWriter
    ) -> None:
        await log.append(0, Run(LANE, 0, 1, b"plant/a/m1/telemetry", ["plant/{line}/+/telemetry"]))
        await drain(await new_tierer(store, log))
        await log.append(0, Run(LANE, 1, 1, b"plant/b/m2/telemetry", TOPICS))
        await drain(await new_tierer(store, log))
        found = rows(store).select(["line", "machine"]).to_pylist()
        assert found == [{"line": "a", "machine": None}, {"line": "b", "machine": "m2"}]

    async def test_levels_that_differ_in_case_or_name_a_fixed_column(self, store: ObjectStore, log: LogWriter) -> None:
        await log.append(0, Run(LANE, 0, 1, b"a/b/c/d", ["{Line}/{payload}/{line}/{_offset}"]))
        await drain(await new_tierer(store, log))
        names = table(store).schema().to_arrow().names
        assert len({name.lower() for name in names}) == len(names)
        assert contents(store) == expected({0: [Run(LANE, 0, 1)]})

    async def test_a_column_of_the_tables_owner_is_left_alone(self, store: ObjectStore, log: LogWriter) -> None:
        from deltalake.schema import Field, PrimitiveType

        await log.append(0, Run(LANE, 0, 1, topics=TOPICS))
        await drain(await new_tierer(store, log))
        table(store).alter.add_columns([Field("machine_age", PrimitiveType("integer"))])
        await log.append(0, Run(LANE, 1, 1))
        assert await drain(await new_tierer(store, log)) == 1
        assert rows(store).column("machine_age").to_pylist() == [None, None]


class TestRaces:
    @pytest.mark.parametrize(
        "store", ["directory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])], indirect=True
    )
    async def test_two_tierers_at_once_double_nothing(self, store: ObjectStore, log: LogWriter) -> None:
        runs = [Run(LANE, 5 * i, 5) for i in range(6)]
        for run in runs:
            await log.append(0, run)
        tierers = [await new_tierer(store, log, file_rows_max=4) for _ in range(2)]

        async def work(tierer: Tierer) -> None:
            while tierer.positions.get(0) != 30:
                with contextlib.suppress(TableError):
                    await tierer.step()

        await asyncio.gather(*map(work, tierers))
        assert contents(store) == expected({0: runs})

    async def test_a_tierer_that_knows_less_of_the_log_than_the_table(self, store: ObjectStore, log: LogWriter) -> None:
        await log.append(0, Run(LANE, 0, 2))
        behind = await new_tierer(store, log)
        await log.append(0, Run(LANE, 2, 2))
        await drain(await new_tierer(store, log))
        assert await drain(behind) == 0
        assert behind.positions == {0: 4}
        assert contents(store) == expected({0: [Run(LANE, 0, 4)]})

    async def test_a_foreign_commit_costs_a_retry(self, directory: ObjectStore, monkeypatch: Any) -> None:
        log = await LogWriter.open(directory)
        await log.append(0, Run(LANE, 0, 2))
        append, tries = TableLog.append, []

        async def append_second(self: TableLog, *arguments: Any) -> DeltaState:
            tries.append(arguments)
            if len(tries) == 1:
                table(directory).alter.set_table_description("somebody else was here")
            return await append(self, *arguments)

        monkeypatch.setattr(TableLog, "append", append_second)
        assert await drain(await new_tierer(directory, log)) == 2
        assert tries[0][1] == tries[1][1], "the file that is in the store already is used again"
        assert contents(directory) == expected({0: [Run(LANE, 0, 2)]})


class TestRefusals:
    async def test_a_table_that_is_ahead_of_the_log(self, store: ObjectStore, log: LogWriter) -> None:
        await log.append(0, Run(LANE, 0, 5))
        await drain(await new_tierer(store, log))
        await store.delete("shard-0/chunk/" + "0" * 20)
        await LogWriter(store, log.cluster).append(0, Run(LANE, 0, 2))
        with pytest.raises(TableError, match="restored to an earlier state"):
            await (await new_tierer(store, log)).step()
        assert contents(store) == expected({0: [Run(LANE, 0, 5)]})

    async def test_a_table_whose_log_was_restored_and_has_grown_past_it(
        self, store: ObjectStore, log: LogWriter
    ) -> None:
        first = Run(LANE, 0, 5)
        await log.append(0, first)
        await log.append(0, Run(LANE, 5, 5))
        await drain(await new_tierer(store, log))
        before = contents(store)
        # A backup of the log from before the second chunk, and then other records than those in the table.
        await store.delete("shard-0/chunk/" + "1".rjust(20, "0"))
        restored = LogWriter(store, log.cluster)
        restored.states[0] = await ShardLog(store, log.cluster, 0).load()
        for seq in range(5, 25, 4):
            await restored.append(0, Run(LANE, seq, 4, payload_bytes=50))
        for _ in range(2):
            with pytest.raises(TableDiverged, match=r"another chunk 1 than the log's.*Move the table away"):
                await (await new_tierer(store, log)).step()
        assert contents(store) == before

    async def test_a_table_whose_place_in_the_log_was_collected_is_none_of_them(
        self, store: ObjectStore, log: LogWriter
    ) -> None:
        for seq in range(0, 20, 5):
            await log.append(0, Run(LANE, seq, 5))
        await drain(await new_tierer(store, log))
        await log.append(0, Run(LANE, 20, 5))
        await log.snapshot(0)
        shard = ShardLog(store, log.cluster, 0)
        manifest, etag = await shard.manifest()
        assert await shard.swap_manifest(msgspec.structs.replace(manifest, watermark=4), etag)
        for n in range(4):
            await store.delete(f"shard-0/chunk/{n:020d}")
        assert await drain(await new_tierer(store, log)) == 5
        assert contents(store) == expected({0: [Run(LANE, 0, 25)]})

    async def test_offsets_that_the_log_lost(self, store: ObjectStore, log: LogWriter) -> None:
        await log.append(0, Run(LANE, 0, 5))
        await log.append(0, Run(LANE, 5, 5))
        tierer = await new_tierer(store, log)
        await store.delete("shard-0/chunk/" + "0" * 20)
        with pytest.raises(TableError, match="lacks offsets 0 to"):
            await tierer.step()

    async def test_another_clusters_positions_do_not_count(self, store: ObjectStore, log: LogWriter) -> None:
        await log.append(0, Run(LANE, 0, 5))
        await drain(await new_tierer(store, log))
        ours = app_id(log.cluster.cluster_id, "telemetry", 0)
        assert table(store).transaction_version(ours) == 5
        assert table(store).transaction_version(app_id(bytes(16), "telemetry", 0)) is None
