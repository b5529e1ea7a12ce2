"""Folding of the journal into the database every few seconds, so that the log can release it."""

from __future__ import annotations

import logging
import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.edge_node.sessions.store import session_store
from weft.edge_node.sessions.store.database import Database, Done
from weft.edge_node.sessions.store.folding import Folded, fold
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.store.journal_reader import read_journal
from weft.edge_node.sessions.store.session_store import Meta
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

MARKS = 64
"""Number of marks of the log's growth that are kept per ``topics_log_bytes``."""

logger = logging.getLogger(__name__)


Reader = tuple[str, str]
"""(``session`` or ``shared``, client identifier or filter)"""


class _Outcome(NamedTuple):
    meta: Meta
    bytes_noted: int
    needs: dict[Reader, int | None]
    """Reader -> the first record of the unrouted topics that it still needs; None for a reader that needs none."""
    rows: int
    topics_end: int


class Compaction:
    """Compaction of the durable part of the journal into the tables, on the database's thread, and its release.

    So the tables never hold changes that a crash can remove from the log. All other work is on the owner's thread.
    """

    def __init__(  # noqa: PLR0917
        self,
        database: Database,
        log: SegmentLog,
        streams: tuple[int, int],
        journal: SessionJournal,
        folded: Folded,
        meta: Meta,
        settings: StateSettings,
        counters: StateCounters,
    ) -> None:
        """Continue after recovery.

        Args:
            streams: numbers of the journal and of the unrouted topics.
            folded: result of recovery.
            meta: position of the database in the journal.
        """
        self._database = database
        self._log = log
        self._journal_stream, self._topics_stream = streams
        self._journal = journal
        self._settings = settings
        self._counters = counters
        self._meta = meta
        self._log_bytes_before = meta.log_bytes - log.stats().bytes_written
        self._needs: dict[Reader, int] = {}
        self._note_needs(_needs(folded, self._topics_stream))
        self._waiting: deque[Done] = deque()
        """The first belongs to the save under way."""
        self._outcome: _Outcome | None = None
        self._abandoned_below = 0
        self._topics_end = log.durable_end(self._topics_stream)
        """End up to which ``_needs`` has all sessions with needs: later sessions begin behind it."""
        self.release()

    def start(self, done: Done) -> None:
        """Save the changes that are durable by now; ``done`` is called back afterwards. A save waits for the one under
        way."""
        self._waiting.append(done)
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        end, noted = self._log.durable_end(self._journal_stream), self._journal.bytes_noted
        meta, topics_end = self._marked(self._meta), self._log.durable_end(self._topics_stream)
        self._database.submit(lambda database: self._save(database, meta, end, noted, topics_end), self._finished)

    @property
    def due(self) -> bool:
        """Return whether there are changes to save."""
        ends = map(self._log.durable_end, (self._journal_stream, self._topics_stream))
        marks = self._meta.topics_marks
        return tuple(ends) != (self._meta.journal_seq, marks[-1][1] if marks else 0)

    def release(self) -> None:
        """Release journal records that the tables have, and unrouted messages that no session needs or that are too
        old."""
        self._log.release(self._journal_stream, RangeSet([(0, self._meta.journal_seq)]))
        end = self._topics_end
        needed = min(self._needs.values(), default=end)
        oldest = self._meta.log_bytes - self._settings.topics_log_bytes
        marks = self._meta.topics_marks
        place = bisect_right(marks, oldest, key=lambda mark: mark[0])
        floor = marks[place - 1][1] if place else 0
        if floor > max(needed, self._abandoned_below):
            self._counters.topics_abandoned += floor - max(needed, self._abandoned_below)
            logger.warning(
                "messages of topics without a stream, kept for absent MQTT sessions, are %d bytes of log old: messages "
                "below %d are deleted", self._settings.topics_log_bytes, floor,
            )  # fmt: skip
            self._abandoned_below = floor
        self._log.release(self._topics_stream, RangeSet([(0, min(max(needed, floor), end))]))
        self._meta.topics_marks = marks[max(0, place - 1) :]

    def _marked(self, meta: Meta) -> Meta:
        """Return the meta data with the present size of the log and of the unrouted topics."""
        log_bytes = self._log_bytes_before + self._log.stats().bytes_written
        marks, mark = meta.topics_marks, (log_bytes, self._log.durable_end(self._topics_stream))
        if not marks or log_bytes - marks[-1][0] >= self._settings.topics_log_bytes // MARKS:
            marks = [*marks, mark]
        return msgspec.structs.replace(meta, log_bytes=log_bytes, topics_marks=marks)

    def _save(self, database: sqlite3.Connection, meta: Meta, end: int, noted: int, topics_end: int) -> None:
        """Fold the journal into the tables, on the database's thread. Each run starts from the beginning."""
        window = self._settings.resent_window
        records = read_journal(self._log, self._journal_stream, meta.journal_seq, end)
        folded = fold(
            records,
            lambda client_id: session_store.load(database, client_id, window),
            lambda name: session_store.load_shared(database, name),
        )
        saved = msgspec.structs.replace(meta, journal_seq=end)
        rows = session_store.save(database, folded.sessions.items())
        session_store.save_shared(database, folded.shared.items())
        session_store.save_meta(database, saved)
        self._outcome = _Outcome(saved, noted, _needs(folded, self._topics_stream), rows, topics_end)

    def _finished(self, error: BaseException | None) -> None:
        if error is None:
            self._take_over()
        self._waiting.popleft()(error)
        if self._waiting:
            self._begin()

    def _take_over(self) -> None:
        outcome = self._outcome
        assert outcome is not None
        self._meta, self._topics_end = outcome.meta, outcome.topics_end
        self._counters.sessions_saved += outcome.rows
        self._counters.journal_bytes = self._journal.bytes_noted - outcome.bytes_noted
        self._note_needs(outcome.needs)
        self.release()

    def _note_needs(self, needs: Mapping[Reader, int | None]) -> None:
        for reader, needed in needs.items():
            if needed is None:
                self._needs.pop(reader, None)
            else:
                self._needs[reader] = needed


def _needs(folded: Folded, stream: int) -> dict[Reader, int | None]:
    needs: dict[Reader, int | None] = {
        ("session", client_id): first_needed(each.record, stream) for client_id, each in folded.sessions.items()
    }
    return needs | {("shared", name): _first_of_shared(each.record, stream) for name, each in folded.shared.items()}


def _first_of_shared(record: SharedRecord | None, stream: int) -> int | None:
    if record is None:
        return None
    return min((seq for of, seq in record.owed if of == stream), default=record.positions.get(stream, 0))


def first_needed(record: SessionRecord | None, stream: int) -> int | None:
    """Return the first record of a stream that a session still needs; None for one that reads nothing (any more)."""
    if record is None or not record.expiry_interval:
        return None
    position = record.positions.get(stream, 0)
    return min((sent.seq for sent in record.inflight.values() if sent.stream == stream), default=position)
