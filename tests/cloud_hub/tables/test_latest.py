"""A latest table has what a recount of the log gives, whatever dies, and whatever the collector deleted."""

from __future__ import annotations

import os
import random
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cloud_hub.tables.latest_tables import drain_latest, latest, new_latest, opened, recounted
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore, watch_delta
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from weft.cloud_hub.tables import latest as module
from weft.cloud_hub.tables.buckets import Merged, merged
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key, latest_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableError
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings

Appended = dict[int, list[Run]]


async def fill(log: LogWriter, runs: Appended, seed: int, chunks: int = 8) -> None:
    """Lanes of several edges, out of order, with keys in common, in two shards; some records delete their key."""
    rnd = random.Random(seed)
    for _ in range(chunks):
        shard = rnd.randrange(2)
        lane = rnd.choice([LANE, LANE._replace(log_id=9)] if shard == 0 else [OTHER])
        taken = {each.first for each in runs[shard] if each.lane == lane}
        first = rnd.choice([first for first in range(0, 600, 10) if first not in taken])
        payloads = [b"" if rnd.random() < 0.3 else b"%d" % seq for seq in range(first, first + 5)]
        run = Run(lane, first, 5, key=b"plant/a/m%d/telemetry" % rnd.randrange(6), topics=TOPICS, payloads=payloads)
        # The places of runs in `recounted` are times at which the hub received them.
        log.created += SECOND
        while len(runs[shard]) < max(map(len, runs.values())):
            await _append(log, runs, shard, Run(lane._replace(edge="idle"), len(runs[shard]), 1, key=b"idle"))
        await _append(log, runs, shard, run)


async def _append(log: LogWriter, runs: Appended, shard: int, run: Run) -> None:
    await log.append(shard, run)
    runs[shard].append(run)


async def test_the_newest_row_of_each_key_is_there_and_deleted_ones_are_not(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    runs = {
        0: [
            Run(LANE, 0, 3, key=b"plant/a/m1/telemetry", topics=TOPICS),
            Run(LANE, 3, 2, key=b"plant/a/m2/telemetry"),
            Run(LANE, 5, 1, key=b"plant/a/m2/telemetry", payloads=[b""]),
            Run(OTHER, 0, 2, key=b"plant/a/m1/telemetry"),
            Run(LANE, 6, 1, key=b"plant/a/m3/telemetry"),
        ]
    }
    for run in runs[0]:
        log.created += SECOND
        await log.append(0, run)
    tierer = await new_latest(directory, log)
    await drain_latest(tierer)
    assert latest(directory) == recounted(runs)
    assert sorted(latest(directory)) == ["plant/a/m1/telemetry", "plant/a/m3/telemetry"]
    version = opened(directory).version()
    assert await tierer.step() == 0
    assert opened(directory).version() == version, "without records there is no version"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_buckets_divide_and_steps_of_any_size_agree(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "BUCKET_ROWS_MAX", 2)
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    for part in range(3):
        await fill(log, runs, seed + 100 * part, chunks=5)
        await drain_latest(await new_latest(directory, log, settings=TableSettings(file_rows_max=7)))
        assert latest(directory) == recounted(runs)
    assert len(opened(directory).file_uris()) > 1


async def die_at(root: Path, fatal: int | None, after: bool) -> list[str]:
    """Run a step that dies at boundary ``fatal``, then a new tierer; returns the boundaries that were crossed."""
    store = open_store(str(root))
    log, runs = await LogWriter.open(store), dict[int, list[Run]]({0: [], 1: []})
    await fill(log, runs, 5, chunks=4)
    await drain_latest(await new_latest(store, log))
    await fill(log, runs, 6, chunks=6)
    boundaries = Boundaries(fatal, after)
    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        patch.setattr(module, "BUCKET_ROWS_MAX", 2)
        watched: Any = WatchedStore(store, boundaries)
        tierer = await new_latest(store, log)
        tierer._store, tierer.log._store = watched, watched
        try:
            await tierer.step()
            crashed = False
        except Crash:
            crashed = True
        assert crashed == (fatal is not None)
    await drain_latest(await new_latest(store, log))
    assert latest(store) == recounted(runs)
    return boundaries.calls


@pytest.mark.slow
async def test_dying_at_any_step_leaves_what_a_recount_gives(tmp_path: Path) -> None:
    calls = await die_at(tmp_path / "whole", None, False)
    assert calls.count("create") >= 3, "two files and a version"
    for fatal in range(len(calls)):
        for after in (False, True):
            await die_at(tmp_path / f"{fatal}-{after}", fatal, after)


@pytest.mark.slow
@pytest.mark.parametrize("has_begun", [False, True])
async def test_records_of_deleted_chunks_come_from_the_table_of_all_rows(
    directory: ObjectStore, has_begun: bool
) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    await fill(log, runs, 11, chunks=6)
    if has_begun:
        await drain_latest(await new_latest(directory, log))
    await fill(log, runs, 12, chunks=6)
    await drain(await new_tierer(directory, log))
    for shard in (0, 1):
        await log.snapshot(shard)
        shard_log = ShardLog(directory, log.cluster, shard)
        manifest, etag = await shard_log.manifest()
        assert await shard_log.swap_manifest(changed(manifest, watermark=log.states[shard].n), etag)
        for n in range(log.states[shard].n):
            await directory.delete(chunk_key(shard, n))
    await fill(log, runs, 13, chunks=4)
    await drain_latest(await new_latest(directory, log))
    assert latest(directory) == recounted(runs)


async def test_another_key_and_a_level_that_no_edge_names_are_refused(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 3, topics=TOPICS))
    with pytest.raises(TableError, match="newest rows by hall, and no edge names such a topic level"):
        await (await new_latest(directory, log, ["hall"])).step()
    await directory.delete("latest/default/telemetry/_delta_log/00000000000000000000.json")
    await drain_latest(await new_latest(directory, log, ["machine", "line"]))
    assert [(row["machine"], row["line"]) for row in opened(directory).to_pyarrow_table().to_pylist()] == [("m1", "a")]
    with pytest.raises(TableError, match=r'newest rows by \["machine","line"\], and \["_key"\] is declared'):
        await (await new_latest(directory, log)).step()


async def test_files_of_hidden_rows_go_once_no_version_names_them(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    tierer = await new_latest(directory, log)
    for seq in range(3):
        log.created += SECOND
        await log.append(0, Run(LANE, seq, 1, payloads=[b""]))
        for view in tierer._views:
            await view.log.extend(view.state)
        await drain_latest(tierer)
    listed = f"{tierer.key}/_weft"
    assert len(await directory.list(listed)) == 3
    state = await tierer.take()
    assert (await tierer.forget_hidden(state), await tierer.forget_hidden(state)) == (0, 2)
    assert len(await directory.list(listed)) == 1
    assert latest(directory) == {}


async def test_tombstones_of_keys_that_never_come_again_go_after_a_week(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for seq, day in enumerate((0, 5, 10)):
        log.created = START + day * 86_400 * SECOND
        await log.append(0, Run(LANE, seq, 1, key=b"order-%d" % seq, payloads=[b""]))
        await drain_latest(await new_latest(directory, log))
    tierer = await new_latest(directory, log)
    hidden = await tierer._read_hidden(await tierer.take())
    assert hidden.column("_key").to_pylist() == ["order-1", "order-2"]


async def test_a_step_holds_no_more_than_one_buckets_rows(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUCKET_ROWS_MAX", 2)
    log, held = await LogWriter.open(directory), list[weakref.ref[pa.Table]]()
    for n in range(12):
        await log.append(0, Run(LANE, n, 1, key=b"machine-%d" % n))
    await drain_latest(await new_latest(directory, log))

    def watched(*arguments: Any) -> Merged:
        found = merged(*arguments)
        assert sum(each() is not None for each in held) <= 1, "that of the bucket before may still have a name"
        held.append(weakref.ref(found.visible))
        return found

    monkeypatch.setattr(module, "merged", watched)
    for n in range(12):
        await log.append(0, Run(LANE, 100 + n, 1, key=b"machine-%d" % n))
    await drain_latest(await new_latest(directory, log))
    assert len(held) > 3
    assert {seq for _, seq, _ in latest(directory).values()} == {*range(100, 112)}


@pytest.mark.slow
async def test_two_makers_at_once_agree(directory: ObjectStore) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    one, two = await new_latest(directory, log), await new_latest(directory, log)
    for part in range(4):
        await fill(log, runs, 20 + part, chunks=3)
        for tierer in (one, two):
            for view in tierer._views:
                await view.log.extend(view.state)
        first, second = (one, two) if part % 2 else (two, one)
        await first.step()
        await second.step()
    for tierer in (one, two):
        await drain_latest(tierer)
    assert latest(directory) == recounted(runs)


@pytest.mark.slow
async def test_the_change_feed_leads_from_each_version_to_the_next(directory: ObjectStore) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    state: dict[str, int] = {}
    seen = 0
    for part in range(5):
        await fill(log, runs, 30 + part, chunks=3)
        await drain_latest(await new_latest(directory, log, feed=True))
        found = opened(directory)
        rows = pa.table(found.load_cdf(starting_version=seen + 1).read_all()).to_pylist()
        seen = found.version()
        for row in sorted(rows, key=lambda row: row["_commit_version"]):
            if row["_change_type"] in ("delete", "update_preimage"):
                assert state.pop(row["_key"]) == row["_seq"], "a change says what was there"
        for row in rows:
            if row["_change_type"] in ("insert", "update_postimage"):
                assert row["_key"] not in state
                state[row["_key"]] = row["_seq"]
        assert state == {key: seq for key, (_, seq, _) in latest(directory).items()}
    changes = pa.table(opened(directory).load_cdf(starting_version=1).read_all()).to_pylist()
    kinds = {row["_change_type"] for row in changes}
    assert kinds == {"insert", "update_preimage", "update_postimage", "delete"}

    files = list(Path(directory.location(f"{latest_key('default', 'telemetry')}/_change_data")[0]).iterdir())
    assert files
    for file in files:
        os.utime(file, (0, 0))
    tierer = await new_latest(directory, log, feed=True)
    await tierer.take()
    await Maintenance(directory, tierer).vacuum()
    assert not [file for file in files if file.exists()], "changes are kept for as long as replaced files"
