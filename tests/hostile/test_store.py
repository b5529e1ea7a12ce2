"""Forged entries of hub processes in the store: they hide no process and cost little, and no edge's token goes
where its operator did not send it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from spark_sinks.completeness.watermark import parse_at
from spark_sinks.completeness.window_state import WindowState
from spark_sinks.errors import ReadError
from spark_sinks.pipelines.shipped.features import MAGIC, read_model
from spark_sinks.source.options import parse_position
from spark_sinks.source.tables import FollowedTable
from tests.cloud_hub import virtual_time
from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.cloud_hub.test_cluster import SHARDS, Process
from tests.cloud_hub.virtual_time import now_ns
from tests.support.waiting import until
from weft.cloud_hub.cluster import KNOWN_BEATS, NAMED_MAX, READY, NotFinalized, finalize
from weft.proofs.audit.audit import read_declared
from weft.proofs.backup.view import RECORD, BackupRecord, BackupUnusable, encode, open_backup
from weft.proofs.trace import TraceError, parse_used, payload_fields
from weft.protocols.chunk_index import FIRST_LEVEL
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import deletion_key
from weft.storage.object_store import Object, ObjectStore, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import (
    BEAT_S,
    ENTRIES_MAX,
    ENTRY_BYTES_MAX,
    REST_MAX,
    RUNNING_MAX,
    Entries,
    NodeEntry,
    decode_entry,
    running,
)
from weft.storage.table.actions import Action, AddedFile, Lines, StateBuilder, TableError, TableProtocol
from weft.storage.table.delta_log import decode_pointer
from weft.storage.table.files import SmallFiles

TOKEN = "the-secret-of-an-edge"
BEAT = 0.2


def entry(number: int, **others: object) -> NodeEntry:
    made = NodeEntry(f"0-{number}", "", "weft", 3, 1, name=f"http://forged-{number}:1", host="forged")
    return msgspec.structs.replace(made, **others)


class CountingStore(MemoryStore):
    """A store that counts what is read."""

    gets = 0

    async def get(self, key: str) -> Object:
        self.gets += 1
        return await super().get(key)


def test_two_thousand_entries_hide_no_process_and_cost_a_bounded_number_of_requests() -> None:
    async def main() -> None:
        store = CountingStore()
        for number in range(2000):  # their names come before all others
            await store.create(
                hub_keys.node_key(f"0{number:05d}"), msgspec.json.encode(entry(number, seen=now_ns(), name=""))
            )
        first = await Process(store, "a").start()
        second = await Process(store, "b").start()
        await asyncio.sleep(200)
        before = store.gets
        await asyncio.sleep(10 * BEAT_S)
        assert store.gets - before <= 2 * 11 * (REST_MAX + 1)
        assert len(first.own) == len(second.own) == SHARDS // 2, "each knows of the other"
        assert first.owners.state == second.owners.state == READY

    virtual_time.run(main())


@pytest.mark.slow
def test_a_look_reads_and_keeps_a_bounded_number_of_entries_and_those_that_stand_still_are_removed() -> None:
    entries, now, removed = Entries("own", still_s=200.0, forget_s=400.0), 0.0, set[str]()
    names = {f"{number:04d}" for number in range(3000)}
    for look in range(150):
        now += 5.0
        chosen = entries.choose(names, now)
        assert len(chosen) <= ENTRIES_MAX + REST_MAX
        # Every second one is written all the time.
        contents = {name: b"%d" % (look if int(name) % 2 == 0 else 0) for name in chosen}
        gone = entries.note(contents, names, now)
        names.difference_update(gone)
        removed.update(gone)
        assert len(entries.seen(now)) <= 2 * ENTRIES_MAX
    assert removed == {f"{number:04d}" for number in range(1, 3000, 2)}
    assert sum(seen.age_s == 0 for seen in entries.seen(now).values()) >= ENTRIES_MAX


@pytest.mark.parametrize(
    "forged",
    [
        {"advertise": "ftp://hub"},
        {"advertise": "https://"},
        {"advertise": "https://user:secret@hub"},
        {"advertise": "https://hub\nX: y"},
        {"advertise": "https://hub:99999"},
        {"advertise": "u" * 9999},
        {"name": "\x1b]0;title\x07"},
        {"host": "h" * 999},
        {"software": "s\n"},
        {"state": "\x00"},
        {"id": "i" * 999},
        {"url": "\u202e"},
        {"weight": 0.0},
        {"weight": 1e300},
        {"interval_s": 1e9},
        {"port": 1 << 20},
    ],
)
def test_an_entry_with_a_field_that_no_process_writes_counts_as_damaged(forged: dict[str, object]) -> None:
    assert decode_entry(msgspec.json.encode(entry(1))) is not None
    assert decode_entry(msgspec.json.encode(entry(1, **forged))) is None


async def test_the_way_forward_names_what_stands_in_it_however_much_that_is() -> None:
    store = MemoryStore()
    await open_cluster(store, 4, release_level=FIRST_LEVEL)
    await store.create(hub_keys.node_key("damaged"), b"\xff")
    await store.create(hub_keys.node_key("long"), bytes(ENTRY_BYTES_MAX + 1))
    with pytest.raises(NotFinalized) as refused:
        await finalize(store, FIRST_LEVEL + 1, 1)
    assert "node damaged at an unknown address, an entry that does not decode" in str(refused.value)
    assert f"node long at an unknown address, an entry of {ENTRY_BYTES_MAX + 1} bytes" in str(refused.value)
    assert "remove it from the store, below `nodes/`" in str(refused.value)
    for number in range(RUNNING_MAX):
        await store.create(hub_keys.node_key(f"{number:05d}"), b"")
    with pytest.raises(NotFinalized) as refused:
        await finalize(store, FIRST_LEVEL + 1, 1)
    assert f"; and {RUNNING_MAX + 1 - NAMED_MAX} more. " in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert len(await running(store, 1)) == RUNNING_MAX + 1


class Thief:
    """A server that notes the tokens which come to it."""

    def __init__(self) -> None:
        self.tokens = 0
        self.came = asyncio.Event()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tokens += TOKEN.encode() in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        self.came.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._take, "127.0.0.2")
        async with server:
            yield f"http://127.0.0.2:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def forging(store: ObjectStore, url: str, shards: int) -> AsyncIterator[None]:
    """Write an entry again and again that wants all shards, and all edges at a URL."""

    async def write() -> None:
        key, etag, beat = hub_keys.node_key("f" * 16), "", 0
        while True:
            beat += 1
            forged = entry(
                1,
                seen=time.time_ns(),
                id="f" * 16,
                beat=beat,
                name="http://forged:1",
                advertise=url,
                weight=4096.0,
                interval_s=BEAT,
                shards=tuple(range(shards)),
            )
            data = msgspec.json.encode(forged)
            etag = await (store.swap(key, data, etag) if etag else store.create(key, data))
            await asyncio.sleep(BEAT / 2)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("redirects", [(), ("127.0.0.2",)])
async def test_an_edge_takes_its_token_nowhere_else_and_is_served(tmp_path: Path, redirects: tuple[str, ...]) -> None:
    """With the thief's host among the link's own, its token goes there: without that, the test would show nothing."""
    store, log, thief = open_store(str(tmp_path)), EdgeLog(), Thief()
    identity = LinkIdentity("default", "press-1", 0xABC, "weft 0.1.0")
    async with running_hub(store, shards=4, beat_interval_s=BEAT) as hub, thief.listening() as url:
        async with forging(store, url, 4):
            await until(lambda: not any(view.own for view in hub.status().shards), KNOWN_BEATS * BEAT + 20)
            log.append(*records(0, [b"1"]))
            async with running_link(hub, log, identity, TOKEN, redirects=redirects) as status:
                await until(lambda: status.records_acked == 1)
                log.append(*records(1, [b"2"]))
                await until(lambda: status.records_acked == 2)
                if redirects:
                    await until(thief.came.is_set)
                await asyncio.sleep(3 * BEAT)  # the time in which a token might come that must not
    assert (thief.tokens > 0) is bool(redirects)


# --- Documents in a store that are nested too deeply for any decoder: each is refused as damaged, with a sentence
#
# A decoder of nested JSON ends with a `RecursionError`, which is no error of JSON: where code does not expect it, an
# audit ends with a traceback, and background work of a node with each try.


DEPTH = 100_000
DEEP = b"[" * DEPTH + b"]" * DEPTH
TEXT = DEEP.decode()
STREAM = ("default", "telemetry")


def test_lineage_positions_and_states_of_queries_say_what_they_expected() -> None:
    with pytest.raises(TraceError, match="expected the value of a column _from"):
        parse_used(TEXT)
    assert payload_fields(TEXT) == {}
    with pytest.raises(ReadError, match="expected"):
        parse_position("start", f'{{"0": {TEXT}}}')
    with pytest.raises(ReadError, match="expected offsets by shard"):
        parse_at(f'{{"0": {TEXT}}}')
    with pytest.raises(ReadError, match="the state of the windows is damaged"):
        WindowState.decode(f'{{"format": 1, "more": {TEXT}}}', "source", 1)


def test_a_model_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(MAGIC + DEEP + b"\n")
    with pytest.raises(ValueError, match="is not a model file"):
        read_model(str(path))


async def test_a_declared_deletion_is_refused_by_its_key() -> None:
    store = MemoryStore()
    await store.create(deletion_key(*STREAM, 0), b'{"format": 1, "more": ' + DEEP + b"}")
    with pytest.raises(TableError, match=r"deletions?/.*, a declared deletion, is damaged"):
        await read_declared(store, *STREAM)


@pytest.mark.parametrize("more", [b"", b'"format": 1, "more": '])
async def test_a_record_of_a_backup_is_refused(more: bytes) -> None:
    store = MemoryStore()
    await store.create(RECORD, b"{" + more + DEEP + b"}" if more else DEEP)
    with pytest.raises(BackupUnusable, match="is damaged"):
        await open_backup(store)


async def test_a_backups_list_of_objects_is_refused() -> None:
    store = MemoryStore()
    await store.create(RECORD, encode(BackupRecord(1, b"{}", [], [], "contents/00", 1, 2)))
    await store.create("contents/00", DEEP)
    with pytest.raises(BackupUnusable, match="a list of objects, is missing or damaged"):
        await open_backup(store)


def test_actions_of_a_tables_log_are_refused_and_statistics_passed_over() -> None:
    with pytest.raises(TableError, match="an action that cannot be read"):
        list(Lines(files=True).take(b'{"add": ' + DEEP + b"}\n"))
    with pytest.raises(TableError, match="an action that cannot be read"):
        list(Lines(files=False).take(b'{"metaData": {"id": ' + DEEP + b"}}\n"))
    added = AddedFile("a.parquet", 10, f'{{"numRecords": 1, "more": {TEXT}}}')
    small, whole = SmallFiles(1 << 20), FollowedTable("weft/")
    for follower in (small, whole):
        follower.take(Action(add=added))
    assert not small.files
    assert [file.may_hold(3, 0, 9) for file in whole.index()] == [True], "such a file may have any row"
    assert decode_pointer(b'{"version": 3, "more": ' + DEEP + b"}").version == -1


@pytest.mark.parametrize("schema", [TEXT, f'{{"fields": {TEXT}}}', '{"fields": [{"name": 1}]}', "{}", "\ud800"])
def test_a_tables_schema_is_refused(schema: str) -> None:
    builder = StateBuilder("weft/", 3, TableProtocol(), {"schemaString": schema})
    with pytest.raises(TableError, match="version 3 of the table has a schema that cannot be read"):
        builder.state().columns()
