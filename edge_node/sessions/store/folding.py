"""Folding of the journal's entries into sessions, for compaction and recovery.

A crash leaves the beginning of the commit that it interrupts. The journal's entries are first in each commit
(``SegmentLog.lead``), so after a crash an entry may name records that are gone: ``settle`` reverts it, because other
records will get their sequence numbers. Records in the log always have their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.store.entries import (
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
    SharedEnded,
    SharedMoved,
    Snapshot,
    Subscribed,
    Taken,
    Unsubscribed,
    WillPublished,
    unpack_ids,
)
from weft.edge_node.sessions.store.recent_publishes import RecentPublishes, clip_runs
from weft.edge_node.sessions.store.stored import unpack_record
from weft.protocols.mqtt.packets import Will


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
