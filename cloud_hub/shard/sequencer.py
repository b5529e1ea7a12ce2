"""Committer of one shard: turns pending batches into chunks, and chunks into acknowledgements.

The rules are in docs/architecture.md, "The commit at the hub". After any answer of the store except a clear success,
the log is read, and only the log decides. State changes only by applying chunks in order, as do acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import ADVICE, HubClock, OtherNodes
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.bounds import Full, Room
from weft.cloud_hub.shard.chunk_builder import ChunkBuilder
from weft.cloud_hub.shard.counters import ShardCounters
from weft.cloud_hub.shard.drafting import Attempt, Drafted, Drafting
from weft.cloud_hub.shard.lane_ends import EndedLanes, log_ends
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.retry import TROUBLE, RetryLoop, told_to_others
from weft.cloud_hub.shard.schedule import CommitPace, CommitSchedule
from weft.cloud_hub.shard.shard_sessions import ShardSessions
from weft.cloud_hub.shard.snapshots import Snapshotter
from weft.cloud_hub.shard.watermark import WatermarkGuard
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import ClockUpdate, GapRange, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.origin import Origin
from weft.protocols.shard.lane_state import NOTHING
from weft.protocols.shard.shard_state import Folded, ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.chunks.in_steps import fold_in_steps
from weft.storage.object_store import AlreadyExists

logger = logging.getLogger(__name__)


class Sequencer:
    """Commits one shard. All methods belong to one event loop.

    Order: batches of a session get offsets in the order of arrival, and are never moved behind later ones. A session's
    epoch is durable before its first batch is accepted and fences every older session, so two sessions of a lane never
    interleave. A sender that sends in seq order thus gets offsets in seq order (I2); for one that leaves a hole and
    fills it later, offsets follow its sending order.

    Args:
        clock: the node's; while it is wrong, the shard writes nothing.
        random_bits: for nonces and jitter.
        level: the cluster's level, which limits the features that may be written.
        load: loads the state, instead of ``log.load``: a shard that a split makes may have to begin first.
        moved: called when a chunk has moved edges to another shard.
        pace: of the commits of all shards of the process.
    """

    def __init__(
        self,
        log: ShardLog,
        settings: SequencerSettings,
        *,
        clock: HubClock,
        random_bits: Callable[[int], int],
        level: Callable[[], int] = lambda: 1,
        load: Callable[[], Awaitable[ShardState]] | None = None,
        moved: Callable[[], None] = lambda: None,
        pace: CommitPace | None = None,
    ) -> None:
        self.log, self._load_log, self._moved = log, load or log.load, moved
        self.turn = asyncio.Lock()
        """Held while the shard reads and writes chunks."""
        self.on_chunk: Callable[[Folded | None], None] = lambda _: None
        """Called after each chunk that was applied, and with None after the state was loaded."""
        self.counters, self._settings, self._clock = ShardCounters(), settings, clock
        self._random_bits, self._level = random_bits, level
        self._now, self._wake = asyncio.get_running_loop().time, asyncio.Event()
        self.sessions = ShardSessions(settings.pending_bytes_max, settings.ranges_per_lane_max, self._wake.set)
        self._retry_loop = RetryLoop(
            f"shard {log.shard}", settings.retry_min_s, settings.retry_max_s, random_bits,
            patience_s=settings.unavailable_after_s, on_long_trouble=partial(self.sessions.send_away, log.shard),
        )  # fmt: skip
        self._ended, self._room = EndedLanes(log), Room(settings, self.sessions.told)
        self._guard = WatermarkGuard(log, clock.boot, settings.watermark_validity_s)
        snapshot_after = settings.snapshot_interval_s, settings.snapshot_chunks
        self._snapshots = Snapshotter(log, *snapshot_after, self._now, random_bits)
        self._state = ShardState(log.cluster.cluster_id, log.shard, log.rules)
        self._loaded_n = -1
        """Number of the last chunk when the state was last loaded."""
        self.loaded = False
        """True while ``state`` is the log's. Otherwise the shard takes nothing and its content is unknown."""
        self._attempts: dict[int, Attempt] = {}
        """Attempts at chunk ``n + 1`` by nonce, by which a node recognises its own chunk in the log."""
        self._schedule, self._others = CommitSchedule(settings, pace), OtherNodes(clock)
        self._task = BackgroundTask()
        self._tried, self._looked = asyncio.Event(), asyncio.Event()
        """Set after the first attempt to load the state, and after each look at the log."""

    @property
    def state(self) -> ShardState:
        """Return the state at this node's last chunk. Callers must not change it, nor keep it across awaits."""
        return self._state

    @property
    def trouble(self) -> str | None:
        """Return the store's last failure, for the operator; None while it works."""
        return self._retry_loop.trouble

    @property
    def told(self) -> str | None:
        """Return the same for edges and readers, who may be of other tenants."""
        return self._retry_loop.told

    @property
    def is_unavailable(self) -> bool:
        """Return whether the store has failed for so long that edges should connect to another node."""
        return self._retry_loop.is_long

    @property
    def silent_s(self) -> float:
        """Return the seconds for which the store has owed this shard an answer; 0 while it owes none."""
        return self._retry_loop.silent_s

    @property
    def is_running(self) -> bool:
        """Return whether the shard's task runs: from ``start`` to ``close``."""
        return self._task.is_running

    @property
    def retries(self) -> int:
        """Return the number of retries because the store gave no answer."""
        return self._retry_loop.retries

    async def start(self) -> None:
        """Try to load the state, and begin to commit.

        A damaged log or a store that does not answer is not an error here: the shard has ``trouble``, and is not
        ``loaded`` until it is over. The node's other shards work meanwhile.
        """
        self._task.start(self._run(), name=f"sequencer-{self.log.shard}")
        await self._tried.wait()

    async def _load(self) -> None:
        self._others.look()
        self._schedule.begin_look(self._now())
        state = await self._load_log()
        self._snapshots.loaded((await self.log.manifest())[0].snapshot_n)
        self._state, self._loaded_n, self.loaded = state, state.n, True
        self.on_chunk(None)
        self._note_look(found=True)

    async def catch_up(self, age_s: float | None = None) -> None:
        """Wait until the state has all chunks that were in the log ``age_s`` ago, while the store works."""
        wanted = self._now() - (self._settings.follow_interval_s if age_s is None else age_s)
        while self.is_running and self.trouble is None and self._schedule.head_at < wanted:
            self._looked.clear()
            self._schedule.look_now()
            self._wake.set()
            await self._looked.wait()

    def _note_look(self, *, found: bool) -> None:
        self._others.looked()
        self._schedule.looked(self._now(), found=found)
        self._looked.set()

    async def close(self) -> None:
        """Stop. Pending items are not acknowledged, so their senders will offer them again."""
        await self._task.close()
        await self._snapshots.close()
        self.sessions.refuse_all(
            RefuseCode.UNAVAILABLE, "the hub is shutting down", "connect to another node, or try again"
        )

    # -- called by links

    def no_room(self, lane: Lane, topics: list[str], origins: Sequence[Origin] = ()) -> Full | None:
        """Return the bound that leaves no room for a lane with these topics and origins; None if there is room."""
        return self._room.for_lane(self._state, lane, topics, origins)

    def open(self, session: LaneSession) -> None:
        """Begin a session: ``session.opened`` gets the lane's ranges when its epoch is durable.

        If the epoch is not higher than the lane's, the session is refused instead (IDENTITY_CONFLICT).
        """
        self.sessions.told.begins(session, self._state)
        session.claim.began_late = session.is_late(self._state.lanes.get(session.lane, NOTHING))
        self.sessions.add(session)
        self.sessions.refuse_moved(self._state, [session.lane])

    def tell_origins(self, session: LaneSession, origins: Sequence[Origin]) -> Full | None:
        """Add origins of a session's batches. Return the bound that leaves no room for them; None if there is room."""
        return self._room.tell_origins(session, self._state, origins)

    def put(self, session: LaneSession, batches: Sequence[tuple[BatchHeader, memoryview]]) -> bool:
        """Accept verified batches, to be acknowledged. Return whether there is room for more (``sessions.room``)."""
        held = self._state.lanes.get(session.lane)
        # Records that fill the middle of a gap leave two gaps, so the bound on gaps applies to them too.
        is_full = held is not None and held.gaps and self._room.gaps.is_full(self._state, session.lane)
        if held is not None and is_full and any(held.splits(header.base_seq, header.end_seq) for header, _ in batches):
            self.sessions.refuse_gaps(session, held)
            return True
        self._schedule.records_came(self._now())
        return self.sessions.take_batches(session, batches, self._clock.now())

    async def put_gap(self, session: LaneSession, gap: GapRange) -> None:
        """Accept a gap notice; it is committed and acknowledged like records."""
        await self.sessions.gap_room(session)
        held = self._state.lanes.get(session.lane, NOTHING)
        if self._room.gaps.is_full(self._state, session.lane) and not held.accounts_for(gap):
            self.sessions.refuse_gaps(session, held)
        elif not self.sessions.take(session, [gap]):
            await self.sessions.room(session)

    def put_clock(self, session: LaneSession, clock: ClockUpdate) -> None:
        """Accept a clock notice; the next chunk has it, so it must come before the batches of its boot."""
        self.sessions.clock(session, clock)

    def put_mark(self, session: LaneSession, mark: Mark) -> None:
        """Accept a mark; it is committed with the next data, or alone after ``mark_interval_s`` at the latest."""
        held = self._state.lanes.get(session.lane)
        self.sessions.mark(session, mark, held.newest_mark if held is not None else None)

    def hurry(self) -> None:
        """Commit sooner, once: a link has used much of its window."""
        if self._schedule.hurry():
            self._wake.set()

    def leave(self, session: LaneSession) -> None:
        """Note the end of the link."""
        self.sessions.leave(session)

    # -- the loop

    async def _run(self) -> None:
        await self._retry_loop.run(self._first_load)
        self._retry_loop.answered()
        while True:
            try:
                is_due = await self._work_is_due()
                async with self.turn:
                    await (self._commit() if is_due else self._follow())
                self._retry_loop.answered()
            except Exception:
                # A bug, or unforeseen input. Forgetting everything is equivalent to a restart of the process: edges
                # send unacknowledged records again, and one bad link cannot stop the shard for the others.
                logger.exception("shard %d: unexpected failure, loading the state again from the store", self.log.shard)
                self.sessions.refuse_all(RefuseCode.OVERLOADED, "the hub met an internal error", "connect again later")
                await self._retry_loop.wait("an unexpected failure, see the log", "the hub met an internal error")
                await self._reload()

    async def _first_load(self) -> None:
        try:
            await self._load()
        finally:
            self._tried.set()
            self._looked.set()

    async def _work_is_due(self) -> bool:
        """Wait until a commit is due (True), or a read of other nodes' chunks (False)."""
        while True:
            sessions, schedule, look_at = self.sessions, self._schedule, self._schedule.look_at
            urgent, pending, trailing = sessions.urgent, sessions.pending, sessions.trailing
            commit_at = schedule.commit_at(sessions.pending_bytes, urgent=urgent, pending=pending, trailing=trailing)
            wait = min(commit_at, look_at) - self._now()
            if wait <= 0:
                self._retry_loop.asks()
                return commit_at <= look_at
            self._wake.clear()
            # With records waiting, the commit's time is known: only a full chunk is a reason to wake up before.
            sessions.wake_bytes = self._settings.chunk_bytes_max if urgent else 0
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _commit(self) -> None:
        """Write the pending items as at most one chunk, check the watermark, acknowledge from the state."""
        since = self._schedule.begin_commit(self._now())
        self.sessions.canaries.begin_commit(self._now())
        if self._clock.wrong() is not None:
            await self._follow()  # nothing is written, and readers go on
        while True:
            try:
                while (draft := await self._next_draft()) is not None:
                    if await self._place(draft):
                        break
            except CollectedPast:
                await self._reload()
                continue
            # A state that was loaded and not extended is the log's own, even if the log ends at the watermark.
            loaded = self._state.n == self._loaded_n
            if loaded or not await self._retry_loop.run(lambda: self._guard.passed(self._state.n)):
                break
            await self._reload()
        self.sessions.settle(self._state)  # no await between the check above and the acknowledgements
        self._snapshots.consider(self._state)
        now = self._now()
        self._schedule.end_commit(since, now, records_left=self.sessions.pending_bytes > 0)
        self._looked.set()
        if since is not None:
            self.counters.commit.observe(now - since)

    async def _next_draft(self) -> Drafted | None:
        lanes = [session.lane for session in self.sessions]
        await self._retry_loop.run(lambda: self._ended.look_up(self._state, lanes))
        began, drafted = self._schedule.pace.cpu_s(), self._draft()
        self._schedule.spent(self._schedule.pace.cpu_s() - began)
        return drafted

    def _draft(self) -> Drafted | None:
        now = self._clock.now()
        if (wrong := self._clock.wrong(now)) is not None:
            self.sessions.refuse_all(RefuseCode.UNAVAILABLE, wrong, ADVICE)  # a chunk's time is for good
            return None
        for lane, held in self._ended.states(self._state, (session.lane for session in self.sessions)):
            self.sessions.fence_by(lane, held)
        self.sessions.fence_pending(self._state)
        marks_due = self._schedule.marks_are_due(self._now(), trailing=self.sessions.trailing)
        return Drafting(
            self._state,
            lambda: ChunkBuilder(self._state, self._settings.chunk_bytes_max, self._level(), self._ended),
            lambda builder: builder.finish(now, self._random_bits(64), marks_due, self.sessions.canaries.wait),
            self.sessions.told.waits,
        ).draft(self.sessions)

    async def _place(self, drafted: Drafted) -> bool:
        """Try to make the draft the next chunk.

        Return whether a chunk of this node was placed there. If not, build it again: the state may have advanced.
        """
        draft, folded = drafted
        n, nonce, started = draft.chunk.header.n, draft.chunk.header.nonce, self._now()
        self._attempts[nonce] = Attempt(draft.openings, len(draft.data), self.sessions.canaries.last)
        try:
            await self.log.create(n, draft.data)
        except (*TROUBLE, AlreadyExists) as error:
            self.counters.unclear += 1
            logger.debug("shard %d: chunk %d is unclear (%s), reading the log", self.log.shard, n, error)
            trouble = error
        else:
            self.counters.put.observe(self._now() - started)
            self._schedule.put_chunk(started)
            return self._accept(folded)
        own = await self._retry_loop.run(self._read_on)
        if self._state.n < n:
            await self._retry_loop.wait(f"chunk {n} could not be written: {trouble}", told_to_others(trouble))
        return own

    async def _read_on(self) -> bool:
        """Apply the following chunks, up to the log's head. Return whether one of them is this node's."""
        own, foreign = False, self.counters.foreign_chunks
        self._others.look()
        self._schedule.begin_look(self._now())
        async for chunk in self.log.indexes(self._state.n + 1):
            own |= self._accept(await fold_in_steps(self._state, chunk))
        self._note_look(found=self.counters.foreign_chunks > foreign)
        return own

    def _accept(self, folded: Folded) -> bool:
        """Apply the next chunk, of any node. Return whether this node wrote it."""
        chunk = folded.chunk
        attempt = self._attempts.get(chunk.header.nonce)
        if attempt is None:
            self._others.wrote(chunk.header.created, self._state.created)
        decided = [lane for lane in self._state.conflicts if (held := folded.lanes.get(lane)) and not held.conflict]
        log_ends(self._state, folded)
        taken_over = folded.new_epochs(self._state.lanes)
        self._state.accept(folded)
        self._ended.forget(folded.lanes)
        self._attempts.clear()  # this position is decided: no attempt at it can land any more
        for session in attempt.openings if attempt else ():
            session.claim.granted = True
            self.sessions.told.settle(session, self._state.lanes.get(session.lane))
        for lane in decided:
            self.sessions.end(lane)
        self.sessions.fence(self._state, taken_over)
        if folded.moves:
            self.sessions.refuse_moved(self._state)
            self._moved()
        self.counters.count(chunk, None if attempt is None else attempt.bytes)
        if attempt is not None:
            self._schedule.wrote_chunk(self._now())
            self.sessions.canaries.placed = attempt.canary
        self.on_chunk(folded)
        return attempt is not None

    async def _follow(self) -> None:
        """Read other nodes' chunks while there is nothing to commit, for readers and to fence old sessions."""
        try:  # nothing is acknowledged here, so the log's own, rarer check of the watermark is enough
            await self._retry_loop.run(self._read_on)
        except CollectedPast:
            await self._reload()

    async def _reload(self) -> None:
        """Drop the state and load the newest, and refuse sessions that are not open yet."""
        # The attempts are forgotten, so an epoch in the loaded state could be theirs or another session's.
        self.counters.reloads += 1
        self._attempts.clear()
        self._ended.clear()
        message = "this hub node was paused and loads its state again"
        self.sessions.refuse_all(RefuseCode.OVERLOADED, message, "connect again", opening_only=True)
        await self._retry_loop.run(self._load)
        self.sessions.fence_all(self._state)
        self.sessions.refuse_moved(self._state)
