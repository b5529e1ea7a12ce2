"""Documents in a store that are nested too deeply for any decoder: each is refused as damaged, with a sentence.

A decoder of nested JSON ends with a `RecursionError`, which is no error of JSON: where code does not expect it,
an audit ends with a traceback, and background work of a node with each try.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_sinks.completeness.watermark import parse_at
from spark_sinks.completeness.window_state import WindowState
from spark_sinks.errors import ReadError
from spark_sinks.pipelines.shipped.features import MAGIC, read_model
from spark_sinks.source.options import parse_position
from spark_sinks.source.tables import FollowedTable
from weft.proofs.audit.audit import read_declared
from weft.proofs.backup.view import RECORD, BackupRecord, BackupUnusable, encode, open_backup
from weft.proofs.trace import TraceError, parse_used, payload_fields
from weft.storage.hub_keys import deletion_key
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table.actions import Action, AddedFile, Lines, StateBuilder, TableError, TableProtocol
from weft.storage.table.delta_log import decode_pointer
from weft.storage.table.files import SmallFiles

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
