"""Changes of shared tables: which versions a reader gets, and which an erasure took from it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.http.test_sharing import BOTH, HOUR, TABLE, Reader, client
from tests.cloud_hub.live import running_hub
from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest, opened
from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, table
from tests.cloud_hub.tables.test_erasure import PERSON, erased
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

TABLE_KEY = table_key("default", "telemetry")
FED = "/shares/default/schemas/latest/tables/telemetry"


@pytest.fixture
async def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def fed(store: ObjectStore, *, is_deleted: bool = False) -> LogWriter:
    """Make a log, and its latest table with a feed: a version without rows, three with changes an hour apart.

    Args:
        is_deleted: a person's row is deleted in the last one.
    """
    log = await LogWriter.open(store, shards=1)
    for n, first in enumerate((0, 10, 20)):
        gone = [b""] * 5 if n == 2 and is_deleted else None
        await log.append(0, Run(LANE, first, 10), Run(OTHER, first, 5, key=PERSON, payloads=gone))
        await changed(store, log, START + (n - 3) * HOUR)
    return log


async def changed(store: ObjectStore, log: LogWriter, at: int) -> None:
    await drain_latest(await new_latest(store, log, feed=True, clock=lambda: at))


def of_feed(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((row["_change_type"], row["_key"], row["_seq"]) for row in found.to_pylist())


async def test_changes_are_those_of_the_tables_feed(store: ObjectStore) -> None:
    await fed(store)
    newest = opened(store).version()
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(newest + 1):
            for last in range(first, newest + 1):
                path = f"{FED}/changes?startingVersion={first}&endingVersion={last}"
                status, headers, data = await reader.get(path, **BOTH)
                lines = [json.loads(line) for line in data.splitlines()]
                assert (status, headers["Delta-Table-Version"]) == (200, str(first)), lines
                assert all(first <= line["cdf"]["version"] <= last for line in lines[2:])
                files = [await reader.get(line["cdf"]["url"]) for line in lines[2:]]
                found = [row for _, _, data in files for row in of_feed(pq.read_table(io.BytesIO(data)))]
                wanted = opened(store).load_cdf(starting_version=first, ending_version=last).read_all()
                assert sorted(found) == of_feed(pa.table(wanted))
        assert (newest, len(found)) == (3, 4), "both rows of the last version, before and after"
        for path, words in (
            ("startingVersion=9", "are not versions of the table"),
            ("startingVersion=1&endingVersion=9", "are not versions of the table"),
            ("startingVersion=2&endingVersion=1", "are not versions of the table"),
        ):
            status, _, data = await reader.get(f"{FED}/changes?{path}")
            assert (status, words in json.loads(data)["message"]) == (400, True), path


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_changes_from_before_an_erasure_are_not_shared(store: ObjectStore, is_deleted: bool) -> None:
    log = await fed(store, is_deleted=is_deleted)
    await erased(store, log, _key=PERSON.decode())
    version = opened(store).version()
    await log.append(0, Run(LANE, 30, 10))
    await changed(store, log, START + HOUR)
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(version + 1):
            status, _, data = await reader.get(f"{FED}/changes?startingVersion={first}&endingVersion={first}")
            assert (status, f"only those from {version + 1} on" in json.loads(data)["message"]) == (400, True), first
        status, _, data = await reader.get(f"{FED}/changes?startingVersion={version + 1}")
        assert (status, len(data.splitlines())) == (200, 3)


async def test_changes_whose_entries_are_gone_or_had_no_feed_are_refused(store: ObjectStore) -> None:
    log = await LogWriter.open(store, shards=1)
    for n in range(4):
        await log.append(0, Run(LANE, 10 * n, 10))
        await drain(await new_tierer(store, log))
        if n == 1:
            table(store).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    newest = table(store).version()
    async with running_hub(store, shards=1, sharing=True) as hub:
        reader = Reader(hub)
        for first in range(newest - 2):
            assert (await reader.get(f"{TABLE}/changes?startingVersion={first}"))[0] == 400, first
        status, _, data = await reader.get(f"{TABLE}/changes?startingVersion={newest - 1}")
        lines = [json.loads(line) for line in data.splitlines()]
        assert (status, [line["add"]["version"] for line in lines[2:]]) == (200, [newest - 1, newest])
        table(store).create_checkpoint()
        Path(store.location(f"{TABLE_KEY}/_delta_log/{newest - 2:020d}.json")[0]).unlink()
        status, _, data = await reader.get(f"{TABLE}/changes?startingVersion={newest - 1}")
        assert (status, "no longer has them all" in json.loads(data)["message"]) == (400, True)


FOLLOWER = """\
import json, sys
import delta_sharing
profile, table, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
for form in (False, True):
    rows = delta_sharing.load_table_changes_as_pandas(f"{profile}#{table}", first, use_delta_format=form)
    rows = rows[["_change_type", "_key", "_seq", "_commit_version"]]
    print("ROWS " + json.dumps(rows.values.tolist()))
"""


@pytest.mark.slow
async def test_pandas_has_the_changes(store: ObjectStore, tmp_path: Path) -> None:
    await fed(store, is_deleted=True)
    async with running_hub(store, shards=1, sharing=True) as hub:
        shown = {"shareCredentialsVersion": 1, "endpoint": f"{hub.url}/delta-sharing", "bearerToken": ""}
        (tmp_path / "client.share").write_text(json.dumps(shown))
        said = await client(["-c", FOLLOWER, "client.share", "default.latest.telemetry", "1"], tmp_path)
    found = [json.loads(line.removeprefix("ROWS ")) for line in said.splitlines() if line.startswith("ROWS ")]
    wanted = pa.table(opened(store).load_cdf(starting_version=1).read_all()).to_pylist()
    names = ("_change_type", "_key", "_seq", "_commit_version")
    in_both = sorted([row[name] for name in names] for row in wanted)
    assert [sorted(rows) for rows in found] == [in_both, in_both]
