"""Retention removes the oldest files of a table; the audit takes their rows for removed, never for missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_hub.tables.latest_tables import drain_latest, latest, new_latest
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from weft.cloud_hub.facts.streams import TableDocument
from weft.cloud_hub.tables import retention as places
from weft.cloud_hub.tables.retention import Retention
from weft.proofs.audit.audit import audit
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key, deletion_prefix
from weft.storage.object_store import ObjectStore, open_store

STREAM = ("default", "telemetry")
HOUR = 3600 * SECOND


async def filled(store: ObjectStore, hours: int = 5) -> LogWriter:
    """A file of each shard for each hour."""
    log = await LogWriter.open(store)
    for n in range(hours):
        log.created = START + n * HOUR
        await log.append(0, Run(LANE, 10 * n, 4))
        await log.append(1, Run(OTHER, 10 * n, 3))
        await drain(await new_tierer(store, log))
    return log


def retention(store: ObjectStore, log: LogWriter, at: int) -> Retention:
    return Retention(store, log.cluster, STREAM, lambda: at)


def numbers(store: ObjectStore) -> list[tuple[str, int]]:
    return sorted({(row["_edge"], row["_seq"] // 10) for row in rows(store).to_pylist()})


@pytest.mark.slow
async def test_files_go_once_their_newest_row_is_too_old_and_the_audit_says_up_to_when(directory: ObjectStore) -> None:
    log = await filled(directory)
    wanted = TableDocument(retain_s=2 * 3600)
    assert await retention(directory, log, START + 1 * HOUR).look(wanted) == 0
    assert await retention(directory, log, START + 3 * HOUR + SECOND).look(wanted) == 4
    assert numbers(directory) == [(edge, hour) for edge in ("press-1", "press-2") for hour in (2, 3, 4)]
    one = retention(directory, log, START + 4 * HOUR + SECOND)
    assert (await one.look(wanted), await one.look(wanted)) == (2, 0)
    found = await audit(directory, *STREAM, payloads=True)
    assert (found.problems, found.total("missing"), found.total("deleted")) == ([], 0, 21)
    (reported,) = found.deletions
    assert (reported.by, reported.count, reported.reason) == ("retention", 21, "retention of 2h")
    assert reported.received_until == START + 2 * HOUR
    assert len(await directory.list(deletion_prefix(*STREAM))) == 1, "one declaration, however often files go"
    await log.append(0, Run(LANE, 50, 4))
    await drain(await new_tierer(directory, log))
    table(directory).delete("_edge = 'press-1' and _seq = 51")
    assert (await audit(directory, *STREAM)).total("missing") == 1, "another missing row is a loss, as before"


@pytest.mark.slow
async def test_the_oldest_rows_of_all_shards_go_until_the_table_is_small_enough(directory: ObjectStore) -> None:
    log = await filled(directory)
    sizes = table(directory).get_add_actions(flatten=True).column("size_bytes").to_pylist()
    wanted = TableDocument(retain_bytes=sum(sizes) // 2)
    assert await retention(directory, log, START).look(wanted) == 5
    kept = numbers(directory)
    assert kept == [("press-1", 3), ("press-1", 4), ("press-2", 2), ("press-2", 3), ("press-2", 4)]
    assert (await audit(directory, *STREAM)).problems == []


@pytest.mark.slow
async def test_rows_that_are_too_scattered_for_one_declaration_go_in_parts(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await filled(directory)
    monkeypatch.setattr(places, "RANGES_MAX", 5)
    one, wanted = retention(directory, log, START + 5 * HOUR + SECOND), TableDocument(retain_s=3600)
    removed: list[tuple[int, bool]] = []
    while count := await one.look(wanted):
        removed.append((count, one.has_more))
    assert (sum(count for count, _ in removed), [more for _, more in removed]) == (10, [*[True] * 4, False])
    found = await audit(directory, *STREAM)
    assert (found.problems, found.total("missing"), found.total("deleted")) == ([], 0, 35)
    assert one.removed_until == START + 4 * HOUR
    assert 1 < len(await directory.list(deletion_prefix(*STREAM))) <= 5


@pytest.mark.slow
async def test_without_the_log_and_with_a_latest_table_it_is_the_same(directory: ObjectStore) -> None:
    log = await filled(directory)
    await retention(directory, log, START + 3 * HOUR + SECOND).look(TableDocument(retain_s=2 * 3600))
    for shard in (0, 1):
        await log.snapshot(shard)
        shard_log = ShardLog(directory, log.cluster, shard)
        manifest, etag = await shard_log.manifest()
        assert await shard_log.swap_manifest(changed(manifest, watermark=4), etag)
        for n in range(4):
            await directory.delete(chunk_key(shard, n))
    found = await audit(directory, *STREAM, payloads=True)
    assert (found.problems, found.total("deleted")) == ([], 14)
    await drain_latest(await new_latest(directory, log))
    assert [row[1] for row in latest(directory).values()] == [42]


@pytest.mark.slow
async def test_dying_at_any_step_leaves_no_row_missing(tmp_path: Path) -> None:
    wanted, prepared = TableDocument(retain_s=2 * 3600), tmp_path / "prepared"
    made = await filled(open_store(str(prepared)), 4)
    await retention(made.store, made, START + 2 * HOUR + SECOND).look(wanted)

    async def die_at(fatal: int | None, after: bool) -> int:
        log = await LogWriter.of_copy(prepared, tmp_path / f"{fatal}-{after}")
        store, boundaries = log.store, Boundaries(fatal, after)
        watched = WatchedStore(store, boundaries)
        try:
            await retention(watched, log, START + 3 * HOUR + SECOND).look(wanted)
        except Crash:
            assert fatal is not None
        assert (await audit(store, *STREAM)).problems == []
        await retention(store, log, START + 3 * HOUR + SECOND).look(wanted)
        found = await audit(store, *STREAM)
        assert (found.problems, found.total("deleted")) == ([], 14)
        return len(boundaries.calls)

    calls = await die_at(None, False)
    for fatal in range(calls):
        for after in (False, True):
            await die_at(fatal, after)
