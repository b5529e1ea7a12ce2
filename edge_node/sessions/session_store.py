"""Session records in SQLite: the journal, folded up to a certain entry."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from weft.edge_node.sessions.backlog import READ_BYTES, DecodedBatch
from weft.edge_node.sessions.database import Key, read, stored, stored_key
from weft.edge_node.sessions.journal import RecentPublishes, clip_runs
from weft.edge_node.sessions.records import (
    Completed,
    Ended,
    Entry,
    JournalRecord,
    Lost,
    Positions,
    Published,
    Received,
    Released,
    Restarted,
    Run,
    Sending,
    SessionRecord,
    SharedEnded,
    SharedMoved,
    SharedRecord,
    Snapshot,
    Subscribed,
    Taken,
    Unsubscribed,
    WillPublished,
    decode_entry,
    pack_record,
    unpack_ids,
    unpack_record,
    unpack_shared,
)
from weft.protocols.mqtt.packets import Will
from weft.storage.segment_log import SegmentLog

# The session journal read back from the log.

logger = logging.getLogger(__name__)


def read_journal(log: SegmentLog, stream: int, seq: int, end: int) -> Iterator[JournalRecord]:
    """Yield the durable entries in ``[seq, end)``, in order. Blocks.

    Entries that the log has lost, or that do not decode, are skipped with an error in the node's log.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    while seq < end:
        batches = log.read(stream, seq, READ_BYTES)
        if not batches:
            _lost_entries(end - seq)
            return
        for data in batches:
            batch = DecodedBatch(data)
            if seq >= end:  # later entries were appended since
                return
            if batch.base_seq > seq:
                _lost_entries(min(batch.base_seq, end) - seq)
                seq = batch.base_seq
            while seq < min(batch.end_seq, end):
                record = batch.record(seq)
                seq += 1
                try:
                    entry = decode_entry(record.payload)
                except msgspec.MsgspecError as error:
                    logger.error("a change of the session of MQTT client %r is lost: %s", record.topic, error)
                    continue
                if entry is not None:
                    yield JournalRecord(record.topic.decode(errors="replace"), entry)


def _lost_entries(count: int) -> None:
    logger.error(
        "the log has lost %d changes of MQTT sessions: clients may get messages again, or be treated as new", count
    )


# Folding of the journal's entries into sessions, for compaction and recovery.
#
# A crash leaves the beginning of the commit that it interrupts. The journal's entries are first in each commit
# (``SegmentLog.lead``), so after a crash an entry may name records that are gone: ``settle`` reverts it, because
# other records will get their sequence numbers. Records in the log always have their entries.


class _PublishedWill(NamedTuple):
    client_id: str
    version: int
    username: str | None
    will: Will
    runs: tuple[Run, ...]


class FoldedSession:
    """One client's session while entries are applied to it."""

    __slots__ = ("_doubtful", "_doubtful_will", "_window", "recent", "recent_changed", "record", "record_changed")

    def __init__(self, record: SessionRecord | None, recent: RecentPublishes, window: int) -> None:
        """Begin with the state of the database.

        Args:
            record: None when the database has no such session.
            window: number of publishes to remember.
        """
        self.record = record
        self.recent = recent
        self.record_changed = False
        self.recent_changed = False
        self._window = window
        self._doubtful: dict[int, Received] = {}
        """QoS 2 publishes received since the last ``settle`` and not released."""
        self._doubtful_will: _PublishedWill | None = None
        """The last will published since ``settle``."""

    def apply(self, entry: Entry) -> None:
        """Apply the next entry. An entry of an unknown session is skipped: its beginning was lost."""
        if isinstance(entry, Snapshot):
            self.record, self.record_changed = unpack_record(entry.record), True
        elif self.record is None:
            return
        elif isinstance(entry, Ended):
            self.record, self.recent = None, RecentPublishes()
            self._doubtful.clear()
            self.record_changed = self.recent_changed = True
        elif isinstance(entry, Published):
            self.recent.add(1, entry.packet_ids, entry.runs, self._window)
            self.recent_changed = True
        else:
            self.record_changed = True
            self._note(entry)
            change = _CHANGES.get(type(entry))
            if change is not None:
                change(self.record, entry)

    def settle(self, ends: Mapping[int, int]) -> None:
        """Note that all entries applied so far were written before a crash that left the streams with these ends."""
        self.recent.clip(ends)
        self._take_back_will(ends)
        if self.record is not None:
            self._take_back(self.record, ends)
            clip_deliveries(self.record, ends)
        self._doubtful.clear()
        self.record_changed = self.recent_changed = True

    def _note(self, entry: Entry) -> None:
        if isinstance(entry, Received):
            self._doubtful.update(dict.fromkeys(unpack_ids(entry.packet_ids), entry))
            self.recent.add(2, entry.packet_ids, (), self._window)  # the client reuses the identifiers
            self.recent_changed = True
        elif isinstance(entry, Released):
            for packet_id in unpack_ids(entry.packet_ids):
                self._doubtful.pop(packet_id, None)
        elif isinstance(entry, WillPublished):
            record = self.record
            if record is not None and record.will is not None:
                self._doubtful_will = _PublishedWill(
                    record.client_id, record.version, record.username, record.will, entry.runs
                )
                record.will = None

    def _take_back_will(self, ends: Mapping[int, int]) -> None:
        """Restore a will whose records are not all in the log: it must still be published, even if its session ended.

        Its other records stay: when a will belongs to several streams, some may then have it twice.
        """
        published, self._doubtful_will = self._doubtful_will, None
        if published is None or not _lacks(published.runs, ends):
            return
        if self.record is None:
            self.record = SessionRecord(published.client_id, published.version, 0, published.username)
        self.record.will = published.will

    def _take_back(self, record: SessionRecord, ends: Mapping[int, int]) -> None:
        """Forget QoS 2 publishes whose records are not all in the log: they were not acknowledged, and clients will
        send them again. Publishes whose records are in the log are then recognised, as at QoS 1, and not stored a
        second time.
        """
        for entry in dict.fromkeys(self._doubtful.values()):
            if _lacks(entry.runs, ends):
                lost = {packet_id for packet_id, last in self._doubtful.items() if last is entry}
                record.received -= lost
                self.recent.add(2, entry.packet_ids, clip_runs(entry.runs, ends), self._window)


class FoldedShared:
    """One shared subscription while entries are applied to it."""

    __slots__ = ("changed", "record")

    def __init__(self, record: SharedRecord | None) -> None:
        """Begin with the state of the database; None when it has no such subscription."""
        self.record = record
        self.changed = False

    def apply(self, name: str, entry: SharedMoved | SharedEnded) -> None:
        """Apply the next entry."""
        self.changed = True
        if isinstance(entry, SharedEnded):
            self.record = None
            return
        owed = self.record.owed if self.record is not None else []
        self.record = SharedRecord(name, entry.positions, owed if entry.owed is None else list(entry.owed))

    def settle(self, ends: Mapping[int, int]) -> None:
        """Revert positions beyond the ends that a crash left: other records get those numbers."""
        self.changed = True
        record = self.record
        if record is not None:
            positions = {stream: min(seq, ends.get(stream, 0)) for stream, seq in record.positions.items()}
            owed = [(stream, seq) for stream, seq in record.owed if seq < ends.get(stream, 0)]
            self.record = SharedRecord(record.name, positions, owed)


class Folded(NamedTuple):
    """Sessions and shared subscriptions that entries name, by client identifier and by filter."""

    sessions: dict[str, FoldedSession]
    shared: dict[str, FoldedShared]

    def settle(self, ends: Mapping[int, int]) -> None:
        """Apply to all of them that a crash left the streams with these ends."""
        for session in self.sessions.values():
            session.settle(ends)
        for shared in self.shared.values():
            shared.settle(ends)


def fold(
    records: Iterable[JournalRecord],
    session_of: Callable[[str], FoldedSession],
    shared_of: Callable[[str], FoldedShared],
) -> Folded:
    """Apply entries in order, and revert changes about lost records where a later run recorded a crash.

    Args:
        session_of: returns a session's earlier state; called once for each.
        shared_of: the same for shared subscriptions.
    """
    folded = Folded({}, {})
    for key, entry in records:
        if isinstance(entry, Restarted):
            folded.settle(entry.ends)
        elif isinstance(entry, SharedMoved | SharedEnded):
            shared = folded.shared.get(key)
            if shared is None:
                shared = folded.shared[key] = shared_of(key)
            shared.apply(key, entry)
        else:
            session = folded.sessions.get(key)
            if session is None:
                session = folded.sessions[key] = session_of(key)
            session.apply(entry)
    return folded


def clip_deliveries(record: SessionRecord, ends: Mapping[int, int]) -> None:
    """Forget deliveries of records that were not durable and were lost: other records get their numbers."""
    record.positions = {stream: min(seq, ends.get(stream, 0)) for stream, seq in record.positions.items()}
    record.inflight = {
        packet_id: sent for packet_id, sent in record.inflight.items() if sent.seq < ends.get(sent.stream, 0)
    }
    record.done = {(stream, seq) for stream, seq in record.done if seq < ends.get(stream, 0)}
    record.began = {
        text: {stream: min(seq, ends.get(stream, 0)) for stream, seq in began.items()}
        for text, began in record.began.items()
    }
    _drop_passed(record)


def _lacks(runs: Iterable[Run], ends: Mapping[int, int]) -> bool:
    return any(first + count > ends.get(stream, 0) for stream, first, count in runs)


def _drop_passed(record: SessionRecord) -> None:
    """Forget the starts of filters that the positions have reached."""
    if not record.began:
        return
    left = ((text, _not_passed(began, record.positions)) for text, began in record.began.items())
    record.began = {text: began for text, began in left if began}


def _not_passed(began: Mapping[int, int], positions: Mapping[int, int]) -> dict[int, int]:
    return {stream: seq for stream, seq in began.items() if seq > positions.get(stream, 0)}


def _subscribed(record: SessionRecord, entry: Subscribed) -> None:
    record.subscriptions[entry.filter] = entry.subscription()
    record.identifiers.pop(entry.filter, None)
    if entry.identifier is not None:
        record.identifiers[entry.filter] = entry.identifier
    began = _not_passed(entry.began, record.positions)  # only for this filter: a packet may bring thousands
    if began:
        record.began[entry.filter] = began
    else:
        record.began.pop(entry.filter, None)


def _unsubscribed(record: SessionRecord, entry: Unsubscribed) -> None:
    record.began.pop(entry.filter, None)
    record.subscriptions.pop(entry.filter, None)
    record.identifiers.pop(entry.filter, None)


def _received(record: SessionRecord, entry: Received) -> None:
    record.received.update(unpack_ids(entry.packet_ids))


def _released(record: SessionRecord, entry: Released) -> None:
    record.received.difference_update(unpack_ids(entry.packet_ids))


def _sending(record: SessionRecord, entry: Sending) -> None:
    for packet_id, sent in entry.deliveries.items():
        record.inflight.pop(packet_id, None)  # a reused identifier comes last in the order of sending
        record.inflight[packet_id] = sent


def _taken(record: SessionRecord, entry: Taken) -> None:
    for packet_id in unpack_ids(entry.packet_ids):
        sent = record.inflight.get(packet_id)
        if sent is not None:
            record.inflight[packet_id] = msgspec.structs.replace(sent, released=True)


def _completed(record: SessionRecord, entry: Completed) -> None:
    for packet_id in unpack_ids(entry.packet_ids):
        sent = record.inflight.pop(packet_id, None)
        if sent is not None and sent.seq >= record.positions.get(sent.stream, 0):
            record.done.add((sent.stream, sent.seq))


def _positions(record: SessionRecord, entry: Positions) -> None:
    record.positions.update(entry.positions)
    if record.done:
        record.done = {(stream, seq) for stream, seq in record.done if seq >= record.positions.get(stream, 0)}
    _drop_passed(record)


def _lost(record: SessionRecord, entry: Lost) -> None:
    record.lost_at = entry.at


_CHANGES: dict[type[Entry], Callable[[SessionRecord, Any], None]] = {
    Subscribed: _subscribed,
    Unsubscribed: _unsubscribed,
    Received: _received,
    Released: _released,
    Sending: _sending,
    Taken: _taken,
    Completed: _completed,
    Positions: _positions,
    Lost: _lost,
}


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
