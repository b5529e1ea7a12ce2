"""The record of a backup, byte for byte as docs/reference/formats/backup.md has it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.proofs.backup.places import backed_up, busy, quiet
from tests.support.processes import weft
from weft.proofs.backup.backup import restore
from weft.proofs.backup.view import (
    RECORD,
    BackupRecord,
    BackupUnusable,
    ShardPart,
    TablePart,
    content_key,
    encode,
    open_backup,
    read_record,
)
from weft.proofs.verify import verify
from weft.storage.cluster import ClusterUnusable
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore

WRITTEN = b"""{
  "format": 1,
  "cluster": "e30=",
  "shards": [
    {
      "shard": 0,
      "first": 3,
      "end": 5,
      "footer_crc": 7,
      "manifest": "e30="
    },
    {
      "shard": 1,
      "first": 0,
      "end": 0,
      "footer_crc": 0,
      "manifest": null
    }
  ],
  "tables": [
    {
      "tenant": "default",
      "stream": "telemetry",
      "life": "2b1f",
      "version": 9,
      "last_checkpoint": null
    }
  ],
  "others": "contents/00",
  "started": 11,
  "finished": 12
}"""


async def test_a_record_is_written_and_read_as_the_page_says() -> None:
    record = BackupRecord(
        1,
        b"{}",
        [ShardPart(0, 3, 5, 7, b"{}"), ShardPart(1, 0, 0, 0, None)],
        [TablePart("default", "telemetry", "2b1f", 9)],
        "contents/00",
        11,
        12,
    )
    assert encode(record) == WRITTEN
    place = MemoryStore()
    await place.create(RECORD, WRITTEN)
    found = await read_record(place)
    assert found is not None
    assert found.record == record


async def test_fields_of_a_later_release_are_passed_over() -> None:
    place = MemoryStore()
    fields = msgspec.json.decode(WRITTEN)
    await place.create(RECORD, msgspec.json.encode(fields | {"more": [1]}))
    assert await read_record(place) is not None


# --- Who may write to the place of a backup gets nothing of the machine that restores it, and is noticed


NOTE = "facts/note"
SECRET = b"of another user of this machine"


@pytest.fixture
async def place(tmp_path: Path) -> Path:
    """A folder with a backup, which has one further object."""
    store = MemoryStore()
    await busy(store)
    await store.create(NOTE, b"a fact")
    folder = tmp_path / "backup"
    await backed_up(store, open_store(str(folder)))
    return folder


def change_record(place: Path, change: Callable[[Any], None]) -> None:
    record = msgspec.json.decode((place / RECORD).read_bytes())
    change(record)
    (place / RECORD).write_bytes(msgspec.json.encode(record))


def add_other(place: Path, key: str, content: str, size: int) -> None:
    """Name one more object in the list of further ones."""
    others = place / msgspec.json.decode((place / RECORD).read_bytes())["others"]
    others.write_bytes(others.read_bytes() + msgspec.json.encode([key, content, size]) + b"\n")


async def restored(place: Path) -> ObjectStore:
    view = await open_backup(open_store(str(place)))
    assert view is not None
    target = MemoryStore()
    await restore(view, target, clock=lambda: 1, note=quiet)
    return target


def content_of(place: Path, content: bytes = b"a fact") -> Path:
    return place / content_key(content)


async def test_a_symbolic_link_and_a_pipe_are_no_objects(place: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    link = place / content_key(SECRET)
    link.symlink_to(secret)
    add_other(place, "facts/stolen", content_key(SECRET), len(SECRET))
    with pytest.raises(StoreError, match="An object is a regular file, and no symbolic link"):
        await restored(place)
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(StoreError, match="not a regular file"):
        await restored(place)


async def test_a_link_to_a_folder_is_refused(place: Path, tmp_path: Path) -> None:
    (place / "contents" / "more").symlink_to(tmp_path)
    said = await asyncio.to_thread(weft, "hub", "restore", "--from", place, "--to", tmp_path / "new")
    assert "is a symbolic link, which a backup never contains" in str(said.exception)
    assert not (tmp_path / "new").exists()


async def test_an_object_is_not_read_beyond_its_length(place: Path) -> None:
    with open(content_of(place), "r+b") as file:
        file.truncate(1 << 40)  # reading it whole would end this process
    with pytest.raises(BackupUnusable, match="differs in length from the recorded 6 bytes"):
        await restored(place)
    [fault] = (await verify(open_store(str(place)))).findings
    assert (fault.place, fault.what) == (NOTE, "damaged")


async def test_other_content_is_noticed(place: Path) -> None:
    content_of(place).write_bytes(b"a fake")
    with pytest.raises(BackupUnusable, match=r"is not what contents/.* was when the backup was made"):
        await restored(place)
    [fault] = (await verify(open_store(str(place)))).findings
    assert (fault.place, fault.what) == (NOTE, "damaged")
    content_of(place).unlink()
    [fault] = (await verify(open_store(str(place)))).findings
    assert (fault.place, fault.what) == (NOTE, "missing")


@pytest.mark.parametrize(
    ("key", "content"), [("../../escaped", "contents/" + "0" * 64), (NOTE, "../../etc/passwd"), (NOTE, "contents/x")]
)
async def test_keys_that_no_store_has_are_refused_when_the_backup_is_opened(
    place: Path, key: str, content: str
) -> None:
    add_other(place, key, content, 10)
    with pytest.raises(BackupUnusable, match="a list of objects, is missing or damaged"):
        await verify(open_store(str(place)))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["shards"][0].update(shard=-1),
        lambda record: record["shards"][0].update(first=9, end=1),
        lambda record: record["tables"].append({"tenant": "../..", "stream": "x", "life": "../../..", "version": 3}),
        lambda record: record.update(cluster="W1tb" * 100_000),  # of a document that is nested without end
    ],
    ids=["shard", "chunks", "table", "cluster"],
)
async def test_a_record_that_no_hub_makes_is_refused_in_a_sentence(place: Path, change: Callable[[Any], None]) -> None:
    change_record(place, change)
    with pytest.raises((BackupUnusable, ClusterUnusable), match="is damaged"):
        await verify(open_store(str(place)))
