"""Recovery of the sessions of the last run: from the database, and from the journal behind its end."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from weft.edge_node.sessions.store import session_store
from weft.edge_node.sessions.store.database import Database, DatabaseFailed
from weft.edge_node.sessions.store.entries import Restarted, encode_entry
from weft.edge_node.sessions.store.folding import Folded, FoldedSession, FoldedShared, clip_deliveries, fold
from weft.edge_node.sessions.store.journal_reader import read_journal
from weft.edge_node.sessions.store.recent_publishes import RecentPublishes
from weft.edge_node.sessions.store.session_store import Meta
from weft.storage.segment_log import LogError, SegmentLog

logger = logging.getLogger(__name__)


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
            _tell_journal(log, journal, ends, wall_clock())
    kept = Folded(
        {client_id: each for client_id, each in folded.sessions.items() if each.record is not None},
        {name: each for name, each in folded.shared.items() if each.record is not None},
    )
    logger.info(
        "recovered %d MQTT sessions, %d changes of them from the journal, in %.3f s",
        len(kept.sessions), end - seq, monotonic() - started,
    )  # fmt: skip
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
        "miss unsent messages", meta.log_id,
    )  # fmt: skip
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


def _tell_journal(log: SegmentLog, journal: int, ends: Mapping[int, int], now: int) -> None:
    try:
        log.append(journal, now, [b""], [encode_entry(Restarted(dict(ends)))])
    except LogError as error:
        logger.error(
            "neither the database nor the log has room for what recovery found (%s). If the power failed while devices "
            "published, free some disk space and start the node again before letting them in.", error,
        )  # fmt: skip
