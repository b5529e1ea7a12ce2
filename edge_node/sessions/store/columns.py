"""Columns of the node's SQLite file as they are stored: plain, or sealed under the keys of the data directory.

A sealed row has a digest in place of its name (HMAC-SHA-256 under a key of the ring), so that it is found without being
readable, and its name in the sealed value. A digest is a BLOB and a plain name TEXT, which tells such rows apart.
"""

from __future__ import annotations

import hmac
import logging
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from weft.protocols.errors import CodecError

if TYPE_CHECKING:
    from weft.storage.segment_log.sealed.ring import KeyRing

TABLES = {
    "retained": ("topic", ("payload", "properties", "owner")),
    "sessions": ("client_id", ("record",)),
    "session_publishes": ("client_id", ("publishes",)),
    "shared_subscriptions": ("name", ("record",)),
}
"""Table -> its name column and the columns that are sealed. Others hold numbers and times."""

Key = str | bytes

logger = logging.getLogger(__name__)


class SealedRows(sqlite3.Connection):
    """A connection whose rows are sealed if it has a ring."""

    ring: KeyRing | None = None


def stored_key(database: sqlite3.Connection, table: str, name: str) -> Key:
    """Return the value of a name's column."""
    ring = _ring(database)
    if ring is None:
        return name
    return hmac.digest(ring.lookup_key, table.encode() + b"\0" + name.encode(), "sha256")


def stored(database: sqlite3.Connection, table: str, name: str, value: str | bytes | None) -> str | bytes | None:
    """Return a value as its column has it."""
    ring = _ring(database)
    if ring is None or value is None:
        return value
    return ring.cipher.seal(msgspec.msgpack.encode((name, value)), _about(table))


def read(
    database: sqlite3.Connection, table: str, key: Key, *values: str | bytes | None
) -> tuple[str, list[str | bytes | None]] | None:
    """Return a row's name and its values; None, and an error in the log, if it does not open."""
    if isinstance(key, str):
        return key, [*values]
    ring = _ring(database)
    try:
        if ring is None:
            raise CodecError("it is encrypted, and the folder has no key ring")
        opened = [
            (None, None) if value is None else _opened(ring, table, value if isinstance(value, bytes) else b"")
            for value in values
        ]
    except CodecError as error:
        logger.error("a row of %s is lost: it does not decode: %s", table, error)
        return None
    name = next(name for name, _ in opened if name is not None)
    return name, [value for _, value in opened]


def seal_all(database: SealedRows) -> int:
    """Seal the rows that were written before the folder was encrypted. Return their number."""
    if database.ring is None:
        return 0
    count = 0
    database.execute("BEGIN IMMEDIATE")
    for table, (name_column, columns) in TABLES.items():
        query = f"SELECT {name_column}, {', '.join(columns)} FROM {table} WHERE typeof({name_column}) = 'text'"  # noqa: S608
        rows = database.execute(query).fetchall()
        sets = ", ".join(f"{column} = ?" for column in (name_column, *columns))
        database.executemany(
            f"UPDATE {table} SET {sets} WHERE {name_column} = ?",  # noqa: S608 - names of this module
            [
                (
                    stored_key(database, table, name),
                    *(stored(database, table, name, value) for value in values),
                    name,
                )
                for name, *values in rows
            ],
        )
        count += len(rows)
    database.execute("COMMIT")
    if count:
        # The file and its write-ahead log would keep the plain rows in free pages.
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count


def _opened(ring: KeyRing, table: str, value: bytes) -> tuple[str, str | bytes]:
    try:
        name, plain = msgspec.msgpack.decode(ring.cipher.open(value, _about(table)), type=tuple[str, Any])
    except msgspec.MsgspecError as error:
        raise CodecError(str(error)) from None
    return name, plain


def _about(table: str) -> bytes:
    return b"row " + table.encode()


def _ring(database: sqlite3.Connection) -> KeyRing | None:
    return database.ring if isinstance(database, SealedRows) else None
