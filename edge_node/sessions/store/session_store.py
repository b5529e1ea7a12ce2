"""Session records in SQLite: the journal, folded up to a certain entry."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable

import msgspec
import sqlite_utils

from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.store.folding import FoldedSession, FoldedShared
from weft.edge_node.sessions.store.recent_publishes import RecentPublishes
from weft.edge_node.sessions.store.stored import pack_record, unpack_record, unpack_shared

logger = logging.getLogger(__name__)


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


def create_tables(database: sqlite_utils.Database) -> None:
    """Create the tables of sessions. Their JSON can be read and queried with any SQLite tool."""
    sessions, recent, meta = database["sessions"], database["session_publishes"], database["session_meta"]
    sessions.create({"client_id": str, "record": str}, pk="client_id", if_not_exists=True)  # type: ignore[union-attr]
    recent.create({"client_id": str, "publishes": bytes}, pk="client_id", if_not_exists=True)  # type: ignore[union-attr]
    shared = database["shared_subscriptions"]
    shared.create({"name": str, "record": str}, pk="name", if_not_exists=True)  # type: ignore[union-attr]
    meta.create({"name": str, "value": str}, pk="name", if_not_exists=True)  # type: ignore[union-attr]


def load_all_shared(database: sqlite_utils.Database) -> dict[str, FoldedShared]:
    """Return all shared subscriptions by their filters. A row that does not decode is logged as an error."""
    rows = database.execute("SELECT name, record FROM shared_subscriptions")
    return {name: FoldedShared(_shared(name, text)) for name, text in rows}


def load_shared(database: sqlite_utils.Database, name: str) -> FoldedShared:
    """Return one shared subscription, or an empty one."""
    row = _one(database.conn, "SELECT record FROM shared_subscriptions WHERE name = ?", name)
    return FoldedShared(None if row is None else _shared(name, row))


def save_shared(database: sqlite_utils.Database, shared: Iterable[tuple[str, FoldedShared]]) -> None:
    """Write these changed shared subscriptions."""
    changed = [(name, each.record) for name, each in shared if each.changed]
    gone = [(name,) for name, record in changed if record is None]
    kept = [(name, pack_record(record).decode()) for name, record in changed if record is not None]
    database.conn.executemany("DELETE FROM shared_subscriptions WHERE name = ?", gone)
    database.conn.executemany("INSERT OR REPLACE INTO shared_subscriptions VALUES (?, ?)", kept)


def load_meta(database: sqlite_utils.Database) -> Meta:
    """Return the meta data; defaults for an empty table."""
    found = dict(database.execute("SELECT name, value FROM session_meta").fetchall())
    return msgspec.convert({name: json.loads(value) for name, value in found.items()}, Meta)


def save_meta(database: sqlite_utils.Database, meta: Meta) -> None:
    """Replace the meta data."""
    rows = [(name, json.dumps(value)) for name, value in msgspec.to_builtins(meta).items()]
    database.conn.executemany("INSERT OR REPLACE INTO session_meta VALUES (?, ?)", rows)


def load_all(database: sqlite_utils.Database, window: int) -> dict[str, FoldedSession]:
    """Return all sessions by client identifier. A row that cannot be decoded is skipped with an error in the log."""
    found: dict[str, FoldedSession] = {}
    for client_id, text in database.execute("SELECT client_id, record FROM sessions"):
        try:
            found[client_id] = FoldedSession(unpack_record(text), RecentPublishes(), window)
        except msgspec.MsgspecError as error:
            logger.error("the session of MQTT client %r is lost: its record does not decode: %s", client_id, error)
    for client_id, data in database.execute("SELECT client_id, publishes FROM session_publishes"):
        if client_id in found:
            found[client_id].recent = _recent(client_id, data)
    return found


def load(database: sqlite_utils.Database, client_id: str, window: int) -> FoldedSession:
    """Return one session, or an empty one."""
    row = _one(database.conn, "SELECT record FROM sessions WHERE client_id = ?", client_id)
    recent = _one(database.conn, "SELECT publishes FROM session_publishes WHERE client_id = ?", client_id)
    record: SessionRecord | None = None
    try:
        record = unpack_record(row) if row is not None else None
    except msgspec.MsgspecError as error:
        logger.error("the session of MQTT client %r is lost: its record does not decode: %s", client_id, error)
    return FoldedSession(record, RecentPublishes() if recent is None else _recent(client_id, recent), window)


def save(database: sqlite_utils.Database, sessions: Iterable[tuple[str, FoldedSession]]) -> int:
    """Write these changed sessions. Return the number of rows."""
    connection = database.conn
    gone, kept, recent = [], [], []
    for client_id, session in sessions:
        if session.record is None:
            gone.append((client_id,))
            continue
        if session.record_changed:
            kept.append((client_id, pack_record(session.record).decode()))
        if session.recent_changed:
            recent.append((client_id, session.recent.pack()))
    connection.executemany("DELETE FROM sessions WHERE client_id = ?", gone)
    connection.executemany("DELETE FROM session_publishes WHERE client_id = ?", gone)
    connection.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?)", kept)
    connection.executemany("INSERT OR REPLACE INTO session_publishes VALUES (?, ?)", recent)
    return len(gone) + len(kept) + len(recent)


def _one(connection: sqlite3.Connection, query: str, key: str) -> bytes | None:
    row = connection.execute(query, (key,)).fetchone()
    return None if row is None else row[0]


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
