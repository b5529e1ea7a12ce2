"""Record of a backup: its contents, and their ends. It is replaced after everything that it names is there."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from weft.storage import hub_keys
from weft.storage.object_store import NotFound, ObjectStore

RECORD = hub_keys.BACKUP
FORMAT = 1


class BackupUnusable(RuntimeError):
    """A backup that cannot be made, continued or read. The message says what to do."""


class ShardPart(msgspec.Struct, frozen=True):
    """One shard of a backup."""

    shard: int
    first: int
    """Number of the first chunk; those before it were collected at the hub."""
    end: int
    """Number after the last chunk."""
    footer_crc: int
    """Checksum of the last chunk's footer, which identifies the log's history; 0 without a chunk."""
    manifest: bytes | None
    """The shard's manifest; None where the hub had none yet."""


class TablePart(msgspec.Struct, frozen=True):
    """One table of a backup."""

    tenant: str
    stream: str
    life: str
    """Identifier that the table got when it was made: one that was moved away and made again has another."""
    version: int
    last_checkpoint: bytes | None = None
    """The log's pointer to its newest checkpoint, if that is of ``version`` at most."""


class BackupRecord(msgspec.Struct, frozen=True):
    """The contents of a backup."""

    format: int
    cluster: bytes
    """The store's ``cluster.json``."""
    shards: list[ShardPart]
    tables: list[TablePart]
    others: str
    """Key of the list of further objects, in the backup."""
    started: int
    """Nanoseconds since 1970: records that were acknowledged before this moment are in the backup."""
    finished: int


class FoundRecord(NamedTuple):
    """A record as read."""

    record: BackupRecord
    etag: str


async def read_record(store: ObjectStore) -> FoundRecord | None:
    """Return the record of a backup; None if there is none.

    Raises:
        BackupUnusable: a later release wrote it, or it is damaged.
        StoreError: the store did not answer.
    """
    try:
        found = await store.get(RECORD)
    except NotFound:
        return None
    try:
        version = msgspec.json.decode(found.data, type=dict[str, msgspec.Raw]).get("format")
        if version is not None and msgspec.json.decode(version) != FORMAT:
            raise BackupUnusable(
                f"{RECORD} has format {bytes(version).decode()}, this release knows {FORMAT}: use the release that "
                "made the backup"
            )
        return FoundRecord(msgspec.json.decode(found.data, type=BackupRecord), found.etag)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupUnusable(f"{RECORD} is damaged: {error}. Make the backup in a new place") from error


def encode(record: BackupRecord) -> bytes:
    """Return the record's bytes."""
    return msgspec.json.format(msgspec.json.encode(record))
