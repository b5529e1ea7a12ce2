"""The broker's whole state that survives a restart."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable

from weft.bounds import Refusals
from weft.edge_node.sessions.store import retained, session_store
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.store.change_rates import ChangeRates
from weft.edge_node.sessions.store.compaction import Compaction
from weft.edge_node.sessions.store.database import Database, DatabaseFailed, Post
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.store.recovery import recover
from weft.edge_node.sessions.store.resent import Resent
from weft.edge_node.sessions.store.retained import RetainedMessages
from weft.edge_node.sessions.store.settings import StateCounters, StateSettings
from weft.edge_node.streams import SESSION_JOURNAL_STREAM, SESSION_TOPICS_STREAM
from weft.storage.segment_log import SegmentLog

CHECKS = 8
"""Number of times within ``save_interval_s`` that the state checks whether ``save_bytes`` are reached."""

logger = logging.getLogger(__name__)


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
            self.retained = RetainedMessages(self._database, settings, counters, refusals, wall_clock)
            recovered = recover(self._database, log, journal, settings.resent_window, wall_clock)
            folded = recovered.folded
            recent = {client_id: session.recent for client_id, session in folded.sessions.items()}
            self.backlog = Backlog(log, settings, counters)
            self.resent = Resent(log, self.backlog, recent, settings, counters)
            records = [session.record for session in folded.sessions.values() if session.record is not None]
            shared = [each.record for each in folded.shared.values() if each.record is not None]
            self.journal = SessionJournal(log, journal, records, shared, self.resent, settings, counters, wall_clock)
            noted = self.journal
            self.changes = ChangeRates(lambda: noted.bytes_noted, settings.journal_bytes_per_user, refusals)
            self._compaction = Compaction(
                self._database, log, (journal, topics), self.journal, folded, recovered.meta, settings,
                counters,
            )  # fmt: skip
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
        settings, checks = self._settings, 0
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
