"""The record of a backup, byte for byte as docs/reference/formats/backup.md has it."""

from __future__ import annotations

import msgspec

from weft.proofs.backup.view import RECORD, BackupRecord, ShardPart, TablePart, encode, read_record
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
