"""Session records in SQLite: the journal, folded up to a certain entry."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.store.columns import Key, read, stored, stored_key
from weft.edge_node.sessions.store.folding import FoldedSession, FoldedShared
from weft.edge_node.sessions.store.recent_publishes import RecentPublishes
from weft.edge_node.sessions.store.stored import pack_record, unpack_record, unpack_shared

logger = logging.getLogger(__name__)


_TABLES = (
    "sessions (client_id TEXT PRIMARY KEY, record TEXT)",
    "session_publishes (client_id TEXT PRIMARY KEY, publishes BLOB)",
    "shared_subscriptions (name TEXT PRIMARY KEY, record TEXT)",
    "session_meta (name TEXT PRIMARY KEY, value TEXT)",
)


class Meta(msgspec.Struct):
    """Meta data of the tables of sessions."""

    log_id: int = 0
    """Id of the log of the sequence numbers."""
    journal_seq: int = 0
    """Entries of the journal below this one are in the tables."""
    log_bytes: int = 0
    """Bytes ever written to the log, as far as counted."""
    topics_marks: list[tuple[int, int]] = []
    """(log_bytes, next seq of the stream of unrouted topics), ascending: they give the age of its records in bytes of
    log."""


def create_tables(database: sqlite3.Connection) -> None:
    """Create the tables of sessions. Their JSON can be read and queried with any SQLite tool,
    unless the folder is encrypted."""
    for columns in _TABLES:
        database.execute(f"CREATE TABLE IF NOT EXISTS {columns}")


def load_all_shared(database: sqlite3.Connection) -> dict[str, FoldedShared]:
    """Return all shared subscriptions by their filters. A row that does not decode is logged as an error."""
    rows = _rows(database, "shared_subscriptions", "SELECT name, record FROM shared_subscriptions")
    return {name: FoldedShared(_shared(name, text)) for name, text in rows}


def load_shared(database: sqlite3.Connection, name: str) -> FoldedShared:
    """Return one shared subscription, or an empty one."""
    row = _one(database, "shared_subscriptions", "SELECT name, record FROM shared_subscriptions WHERE name = ?", name)
    return FoldedShared(None if row is None else _shared(name, row))


def save_shared(database: sqlite3.Connection, shared: Iterable[tuple[str, FoldedShared]]) -> None:
    """Write these changed shared subscriptions."""
    changed = [(name, each.record) for name, each in shared if each.changed]
    table = "shared_subscriptions"
    gone = [(stored_key(database, table, name),) for name, record in changed if record is None]
    kept = [_row(database, table, name, pack_record(record).decode()) for name, record in changed if record is not None]
    database.executemany("DELETE FROM shared_subscriptions WHERE name = ?", gone)
    database.executemany("INSERT OR REPLACE INTO shared_subscriptions VALUES (?, ?)", kept)


def load_meta(database: sqlite3.Connection) -> Meta:
    """Return the meta data; defaults for an empty table."""
    found = dict(database.execute("SELECT name, value FROM session_meta").fetchall())
    return msgspec.convert({name: json.loads(value) for name, value in found.items()}, Meta)


def save_meta(database: sqlite3.Connection, meta: Meta) -> None:
    """Replace the meta data."""
    rows = [(name, json.dumps(value)) for name, value in msgspec.to_builtins(meta).items()]
    database.executemany("INSERT OR REPLACE INTO session_meta VALUES (?, ?)", rows)


def load_all(database: sqlite3.Connection, window: int) -> dict[str, FoldedSession]:
    """Return all sessions by client identifier. A row that cannot be decoded is skipped with an error in the log."""
    found: dict[str, FoldedSession] = {}
    for client_id, text in _rows(database, "sessions", "SELECT client_id, record FROM sessions"):
        try:
            found[client_id] = FoldedSession(unpack_record(text), RecentPublishes(), window)
        except msgspec.MsgspecError as error:
            logger.error("the session of MQTT client %r is lost: its record does not decode: %s", client_id, error)
    query = "SELECT client_id, publishes FROM session_publishes"
    for client_id, data in _rows(database, "session_publishes", query):
        if client_id in found:
            found[client_id].recent = _recent(client_id, data)
    return found


def load(database: sqlite3.Connection, client_id: str, window: int) -> FoldedSession:
    """Return one session, or an empty one."""
    row = _one(database, "sessions", "SELECT client_id, record FROM sessions WHERE client_id = ?", client_id)
    query = "SELECT client_id, publishes FROM session_publishes WHERE client_id = ?"
    recent = _one(database, "session_publishes", query, client_id)
    record: SessionRecord | None = None
    try:
        record = unpack_record(row) if row is not None else None
    except msgspec.MsgspecError as error:
        logger.error("the session of MQTT client %r is lost: its record does not decode: %s", client_id, error)
    return FoldedSession(record, RecentPublishes() if recent is None else _recent(client_id, recent), window)


def save(database: sqlite3.Connection, sessions: Iterable[tuple[str, FoldedSession]]) -> int:
    """Write these changed sessions. Return the number of rows."""
    gone, kept, recent = [], [], []
    for client_id, session in sessions:
        if session.record is None:
            gone.append(client_id)
            continue
        if session.record_changed:
            kept.append(_row(database, "sessions", client_id, pack_record(session.record).decode()))
        if session.recent_changed:
            recent.append(_row(database, "session_publishes", client_id, session.recent.pack()))
    for table in ("sessions", "session_publishes"):
        keys = [(stored_key(database, table, client_id),) for client_id in gone]
        database.executemany(f"DELETE FROM {table} WHERE client_id = ?", keys)  # noqa: S608
    database.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?)", kept)
    database.executemany("INSERT OR REPLACE INTO session_publishes VALUES (?, ?)", recent)
    return len(gone) + len(kept) + len(recent)


def _row(database: sqlite3.Connection, table: str, name: str, value: str | bytes) -> tuple[Key, str | bytes | None]:
    return stored_key(database, table, name), stored(database, table, name, value)


def _rows(database: sqlite3.Connection, table: str, query: str) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the rows that can be read."""
    for key, value in database.execute(query):
        row = read(database, table, key, value)
        if row is not None:
            yield row[0], row[1][0]


def _one(database: sqlite3.Connection, table: str, query: str, name: str) -> Any:
    row = database.execute(query, (stored_key(database, table, name),)).fetchone()
    found = None if row is None else read(database, table, *row)
    return None if found is None else found[1][0]


def _shared(name: str, data: bytes | str) -> SharedRecord | None:
    try:
        return unpack_shared(data)
    except msgspec.MsgspecError as error:
        logger.error("the position of shared subscription %r is lost: its record does not decode: %s", name, error)
        return None


def _recent(client_id: str, data: bytes) -> RecentPublishes:
    try:
        return RecentPublishes.unpack(data)
    except msgspec.MsgspecError as error:
        logger.error("repeats by MQTT client %r are not recognised: its row does not decode: %s", client_id, error)
        return RecentPublishes()
