"""The broker's state that survives a restart: restored at the start, and folded from the journal into the database
every few seconds."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from weft.bounds import Refusals
from weft.edge_node.sessions import retained, session_store
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.database import Database, DatabaseFailed, Done, Post
from weft.edge_node.sessions.journal import RecentPublishes, Resent, SessionJournal
from weft.edge_node.sessions.records import (
    ChangeRates,
    Restarted,
    SessionRecord,
    SharedRecord,
    StateCounters,
    StateSettings,
    encode_entry,
)
from weft.edge_node.sessions.retained import RetainedMessages
from weft.edge_node.sessions.session_store import (
    Folded,
    FoldedSession,
    FoldedShared,
    Meta,
    clip_deliveries,
    fold,
    read_journal,
)
from weft.edge_node.streams import SESSION_JOURNAL_STREAM, SESSION_TOPICS_STREAM
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, SegmentLog

# Folding of the journal into the database every few seconds, so that the log can release it.

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
                "below %d are deleted",
                self._settings.topics_log_bytes,
                floor,
            )
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
        window = self._settings.state.resent_window
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


# Recovery of the sessions of the last run: from the database, and from the journal behind its end.


class Recovered(NamedTuple):
    """Every session and shared subscription of the last run."""

    folded: Folded
    meta: Meta
    """Present meta data of the database."""


def recover(
    database: Database,
    log: SegmentLog,
    journal: int,
    window: int,
    wall_clock: Callable[[], int],
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Recovered:
    """Fold the rest of the journal into the database's state, and save the result. Blocks; before anything is appended.

    Entries about records that the crash lost are reverted here (``folding``). When the database cannot be written,
    recovery records the ends in the journal, so that the next recovery has the same result.

    Raises:
        sqlite3.Error, DatabaseFailed: the database cannot be read.
        OSError, LogFailed: the log cannot be read.
    """
    started = monotonic()
    loaded: list[tuple[Meta, Folded]] = []

    def load(db: sqlite3.Connection) -> None:
        folded = Folded(session_store.load_all(db, window), session_store.load_all_shared(db))
        loaded.append((session_store.load_meta(db), folded))

    database.run(load)
    meta, folded = loaded[-1]
    other = meta.log_id != log.log_id
    if other:
        _other_log(meta, folded)
        meta = Meta(log_id=log.log_id)
    end = log.durable_end(journal)
    ends = {stream: log.durable_end(stream) for stream in log.streams().values()}
    if meta.journal_seq > end:
        logger.error("the log ends before the position in the database of MQTT sessions: sessions are set back")
        folded.settle(ends)
    seq = min(meta.journal_seq, end)
    touched = fold(
        read_journal(log, journal, seq, end),
        lambda client_id: folded.sessions.get(client_id) or FoldedSession(None, RecentPublishes(), window),
        lambda name: folded.shared.get(name) or FoldedShared(None),
    )
    touched.settle(ends)
    folded.sessions.update(touched.sessions)
    folded.shared.update(touched.shared)
    meta.journal_seq = end
    if not _save(database, folded, meta):
        if other:
            raise DatabaseFailed(
                "the database of MQTT sessions belongs to another log and cannot be written: free some disk, or move "
                "mqtt.sqlite3 away, and start again"
            )
        meta.journal_seq = seq
        if touched.sessions or touched.shared:
            _write_restart(log, journal, ends, wall_clock())
    kept = Folded(
        {client_id: each for client_id, each in folded.sessions.items() if each.record is not None},
        {name: each for name, each in folded.shared.items() if each.record is not None},
    )
    logger.info(
        "recovered %d MQTT sessions, %d changes of them from the journal, in %.3f s",
        len(kept.sessions),
        end - seq,
        monotonic() - started,
    )
    return Recovered(kept, meta)


def _other_log(meta: Meta, folded: Folded) -> None:
    """Forget sequence numbers of another log, which are meaningless in this one; keep the subscriptions."""
    for shared in folded.shared.values():
        shared.record, shared.changed = None, True
    sessions = folded.sessions
    if not sessions:
        return
    logger.warning(
        "the database of MQTT sessions belongs to log %016x, which is not here: sessions keep their subscriptions and "
        "miss unsent messages",
        meta.log_id,
    )
    for session in sessions.values():
        session.recent, session.recent_changed = RecentPublishes(), True
        if session.record is not None:
            clip_deliveries(session.record, {})
            session.record.positions = {}
            session.record_changed = True


def _save(database: Database, folded: Folded, meta: Meta) -> bool:
    def job(db: sqlite3.Connection) -> None:
        changed = ((name, each) for name, each in folded.sessions.items() if each.record_changed or each.recent_changed)
        session_store.save(db, changed)
        session_store.save_shared(db, folded.shared.items())
        session_store.save_meta(db, meta)

    try:
        database.run(job)
    except Exception as error:
        logger.error("MQTT sessions cannot be saved, only kept in the log: %s", error)
        return False
    return True


def _write_restart(log: SegmentLog, journal: int, ends: Mapping[int, int], now: int) -> None:
    try:
        log.append(journal, now, [b""], [encode_entry(Restarted(dict(ends)))])
    except LogError as error:
        logger.error(
            "neither the database nor the log has room for what recovery found (%s). If the power failed while devices "
            "published, free some disk space and start the node again before letting them in.",
            error,
        )


# The broker's whole state that survives a restart.

CHECKS = 8
"""Number of times within ``save_interval_s`` that the state checks whether ``save_bytes`` are reached."""


class BrokerState:
    """Retained messages, sessions and the log read again. Owner's thread only.

    Between ``open`` and ``close``; ``start`` begins to save in the background.
    """

    def __init__(
        self,
        directory: str,
        log: SegmentLog,
        settings: StateSettings,
        counters: StateCounters,
        *,
        wall_clock: Callable[[], int],
        post: Post,
        refusals: Refusals,
    ) -> None:
        """Recover the state of the last run. Blocks: call it before serving clients and before any append.

        Args:
            directory: the node's data directory.
            wall_clock: ns since 1970.
            post: runs a callback on the owner's thread.
            refusals: counts refusals because of shares.

        Raises:
            OSError, sqlite3.Error, DatabaseFailed: the database can neither be read nor created again.
            LogError: the log cannot be read.
        """
        self.counters = counters
        self.refusals = refusals
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        journal, topics = log.stream(SESSION_JOURNAL_STREAM), log.stream(SESSION_TOPICS_STREAM)
        self.topics_stream = topics
        """Number of the stream of unrouted messages that only persistent sessions want."""
        self._database = Database(directory, _create_tables, post)
        try:
            self.retained = RetainedMessages(self._database, settings.limits, counters, refusals, wall_clock)
            recovered = recover(self._database, log, journal, settings.state.resent_window, wall_clock)
            folded = recovered.folded
            recent = {client_id: session.recent for client_id, session in folded.sessions.items()}
            self.backlog = Backlog(log, settings.state, counters)
            self.resent = Resent(log, self.backlog, recent, settings, counters)
            records = [session.record for session in folded.sessions.values() if session.record is not None]
            shared = [each.record for each in folded.shared.values() if each.record is not None]
            self.journal = SessionJournal(log, journal, records, shared, self.resent, settings, counters, wall_clock)
            noted = self.journal
            self.changes = ChangeRates(lambda: noted.bytes_noted, settings.state.journal_bytes_per_user, refusals)
            self._compaction = Compaction(
                self._database, log, (journal, topics), self.journal, folded, recovered.meta, settings, counters
            )
        except BaseException:
            self._database.close()
            raise

    @property
    def failed(self) -> DatabaseFailed | None:
        """Return why state cannot be stored until the node restarts; None while it can."""
        return self._database.failed

    def start(self) -> None:
        """Save in the background from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def save(self) -> None:
        """Fold everything that is durable in the log now into the database.

        Raises:
            sqlite3.Error, DatabaseFailed, OSError, LogError: that failed; the journal keeps the changes.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def saved(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.retained.flush()
        self._compaction.start(saved)
        await done

    async def close(self) -> None:
        """Save for the last time and close the database. Changes that cannot be saved stay in the journal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._save()
        await asyncio.to_thread(self._database.close)

    async def _run(self) -> None:
        settings, checks = self._settings.state, 0
        while True:
            await asyncio.sleep(settings.save_interval_s / CHECKS)
            checks += 1
            if checks >= CHECKS or self.counters.journal_bytes >= settings.save_bytes:
                checks = 0
                await self._save()

    async def _save(self) -> None:
        try:
            if self._compaction.due:
                await self.save()
            else:
                self.retained.flush()
        except Exception as error:
            logger.warning("MQTT sessions were not saved and stay in the log: %s", error)
        self.counters.database_failures = self._database.failures


def _create_tables(database: sqlite3.Connection) -> None:
    retained.create_tables(database)
    session_store.create_tables(database)
