"""Committer of one shard: turns pending batches into chunks, and chunks into acknowledgements.

The rules are in docs/architecture.md, "The commit at the hub". After any answer of the store except a clear success,
the log is read, and only the log decides. State changes only by applying chunks in order, as do acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import ADVICE, HubClock, OtherNodes
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.chunk_builder import Attempt, ChunkBuilder, Drafted, Drafting
from weft.cloud_hub.shard.lane_ends import EndedLanes, log_ends
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.shard_sessions import Full, Room, ShardSessions
from weft.config.log_lines import Repeats, left_out
from weft.config.units import approximate_duration
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import FIRST_LEVEL, Chunk, ClockUpdate, GapRange, Mark
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, Origin
from weft.protocols.link import RefuseCode
from weft.protocols.shard.lane_state import NOTHING
from weft.protocols.shard.shard_state import Folded, ShardState
from weft.storage.chunk_log import SNAPSHOTS_TO_START, CollectedPast, ShardLog, changed, fold_in_steps
from weft.storage.histogram import Histogram
from weft.storage.object_store import AlreadyExists, NotFound, StoreError
from weft.storage.table.actions import TableError

# Counters of one shard.


@dataclass(slots=True)
class ShardCounters:
    """Counters since the start of this node."""

    chunks: int = 0
    records: int = 0
    bytes: int = 0
    foreign_chunks: int = 0
    """Chunks of other nodes."""
    unclear: int = 0
    """Number of chunk creations that did not end in a clean success."""
    reloads: int = 0
    """Number of times that the collector had passed this node."""
    put: Histogram = field(default_factory=Histogram)
    """Times that the store took to write one chunk."""
    commit: Histogram = field(default_factory=Histogram)
    """Time per commit from the first waiting batch until its acknowledgements."""

    def count(self, chunk: Chunk, own_bytes: int | None) -> None:
        """Count a chunk of the log; of this node's own with its length."""
        if own_bytes is None:
            self.foreign_chunks += 1
            return
        self.chunks += 1
        self.records += sum(section.count for section in chunk.footer.streams)
        self.bytes += own_bytes


# The times at which a shard commits and reads chunks of other nodes. Pure: the time is an argument.

HURRIED_S = 0.25
"""Longest time between two commits while a link needs acknowledgements before it may continue sending."""
LOOK_FACTOR_MAX = 16
"""Bound of the doubling interval of looks that find nothing: each look of an idle shard costs a request."""


# No fixed interval: 16 shards with a thousand lanes each would commit during half of the time.
PACED_SHARE = 0.2
"""Largest share of a process's time that its shards' commits take because records do not wait for the longest
interval."""
SPENT_FACTOR = 2
"""Processor time of a commit for each second that its chunk takes to make: applying it, acknowledgements and threads of
the store take about as long again."""
BUSY_S = 1.0
"""Time for which a shard counts as one that commits."""


class CommitPace:
    """Interval of the commits of one process's shards, by what the last ones cost. All times are seconds.

    A shard rests as long as its last commit took: a slow disk syncs for it in half of the time at most. And in one
    interval each busy shard commits once, so the interval is at least the sum of what their last commits cost, divided
    by the share of the process's time that they may take.

    Args:
        cpu_s: processor time of the event loop's thread. A clock on the wall would count other programs' time.
    """

    def __init__(self, settings: SequencerSettings, cpu_s: Callable[[], float] = lambda: 0.0) -> None:
        self.cpu_s = cpu_s
        self._most_s = settings.commit_interval_s
        self._least_s = min(settings.commit_interval_min_s or self._most_s, self._most_s)
        self._costs: dict[object, tuple[float, float]] = {}
        """Shard -> end and cost of its last commit, for those of the last ``BUSY_S``; in this order."""

    def after(self, shard: object, now: float, *, took_s: float, spent_s: float) -> float:
        """Return the interval from a commit's end to the shard's next commit.

        Args:
            shard: identity of the shard.
            now: end of the commit.
            took_s: the whole commit, with the store's answer.
            spent_s: processor time in which the chunk was made.
        """
        if self._least_s == self._most_s:
            return self._most_s
        self._costs.pop(shard, None)
        self._costs[shard] = now, spent_s * SPENT_FACTOR
        while (oldest := next(iter(self._costs))) is not shard and self._costs[oldest][0] < now - BUSY_S:
            del self._costs[oldest]
        # All shards of a process share one core. Commits take at most a fifth of it, so that links and readers keep the
        # rest.
        of_all_s = sum(cost_s for _, cost_s in self._costs.values()) / PACED_SHARE
        return min(max(self._least_s, took_s, of_all_s), self._most_s)


class CommitSchedule:
    """Times of one shard's next commit and next read of the log, in seconds of one monotonic clock.

    Args:
        pace: shared by the shards of a process; one of its own without it.
    """

    def __init__(self, settings: SequencerSettings, pace: CommitPace | None = None) -> None:
        self._settings = settings
        self.pace = pace or CommitPace(settings)
        self._interval_s = settings.commit_interval_s
        """Interval from the last commit to the next, while records wait."""
        self._begun, self._spent_s = 0.0, 0.0
        self._last_commit = self._last_chunk = float("-inf")
        self._head_at = self._look_began = self._put_began = float("-inf")
        self._idle_since = float("-inf")
        """End of the last commit or look, from which on the next look waits."""
        self._look_now = False
        self._look_factor = 1
        self._hurried = False
        self._waiting_since: float | None = None
        """Arrival of the oldest records that no commit has begun to write."""

    @property
    def look_at(self) -> float:
        """Return the time at which the shard reads chunks of other nodes."""
        return self._idle_since + (0.0 if self._look_now else self._look_factor * self._settings.follow_interval_s)

    @property
    def head_at(self) -> float:
        """Return a time whose head of the log the state has reached; minus infinity before the first look.

        It is the beginning of a look, not its end: other nodes write while the store's answer is under way.
        """
        return self._head_at

    def look_now(self) -> None:
        """Request a read at once: a reader waits for it."""
        self._look_now = True

    def commit_at(self, pending_bytes: int, *, urgent: bool, pending: bool, trailing: bool = False) -> float:
        """Return the time of the next commit; infinity while nothing is pending.

        Args:
            urgent: more than marks is pending.
            pending: anything is pending.
            trailing: a pending mark covers new records, or is its lane's first.
        """
        if pending_bytes >= self._settings.chunk_bytes_max:
            return float("-inf")
        if urgent:
            # From the last commit, not from the first batch: after a longer silence a batch does not wait.
            interval_s = self._interval_s
            # A link that has used half of its window waits for acknowledgements. At one commit a second an edge that
            # catches up would be held to its window each second: 6.8 MB/s instead of 28.5.
            return self._last_commit + (min(interval_s, HURRIED_S) if self._hurried else interval_s)
        return self._marks_at(trailing) if pending else float("inf")

    def marks_are_due(self, now: float, *, trailing: bool = False) -> bool:
        """Return whether marks alone are sufficient for a chunk; ``trailing`` as in ``commit_at``."""
        return self._marks_at(trailing) <= now

    @property
    def records_wait(self) -> bool:
        """Return whether records wait that no commit has begun to write."""
        return self._waiting_since is not None

    def records_came(self, now: float) -> None:
        """Note that records wait for a commit."""
        if self._waiting_since is None:
            self._waiting_since = now

    def hurry(self) -> bool:
        """Note that a link will soon have to stop sending before the next commit. Return whether that advances the
        commit."""
        if self._hurried or self._settings.commit_interval_s <= HURRIED_S:
            return False
        self._hurried = True
        return True

    def begin_look(self, now: float) -> None:
        """Note that a read of the log up to its head begins."""
        self._look_began = now

    def looked(self, now: float, *, found: bool) -> None:
        """Note that the log was read up to its head.

        Args:
            found: whether another node had written a chunk: the next look is then due soon.
        """
        self._head_at, self._idle_since, self._look_now = self._look_began, now, False
        # Each look costs a request to the store. A shard that no other node writes is asked more and more rarely.
        self._look_factor = 1 if found else min(2 * self._look_factor, LOOK_FACTOR_MAX)

    def wrote_chunk(self, now: float) -> None:
        """Note that a chunk of this node is in the log, with all pending marks."""
        self._last_chunk = now

    def put_chunk(self, began: float) -> None:
        """Note that the store took this node's chunk as the next one, and when its writing began.

        Then the chunk before was the head, so the commit is a look. It counts at the commit's end: only the check of
        the watermark shows whether the chunk is in the log.
        """
        self._put_began = began

    def begin_commit(self, now: float) -> float | None:
        """Return the arrival time of the oldest records that wait for this commit; None without any."""
        since, self._waiting_since = self._waiting_since, None
        self._hurried = False
        self._begun, self._spent_s = now, 0.0
        return since

    def spent(self, seconds: float) -> None:
        """Note the processor time in which a chunk of this commit was made."""
        self._spent_s += seconds

    def end_commit(self, since: float | None, now: float, *, records_left: bool) -> None:
        """Note the end of a commit.

        Args:
            since: the result of ``begin_commit``.
            records_left: True if the chunk had no room for all records, so that the oldest have waited since then.
        """
        self._last_commit = self._idle_since = now
        self._head_at = max(self._head_at, self._put_began)
        self._interval_s = self.pace.after(self, now, took_s=now - self._begun, spent_s=self._spent_s)
        if records_left and self._waiting_since is None:
            self._waiting_since = since

    def _marks_at(self, trailing: bool) -> float:
        interval_s = self._settings.mark_interval_s
        # Marks alone are worth a chunk only once a minute: each is an object that a bucket charges for.
        return self._last_chunk + (min(interval_s, self._settings.trailing_mark_s) if trailing else interval_s)


# The check, before every acknowledgement, that the collector has not passed this node.
#
# A paused node can create a chunk number again that was collected meanwhile, and would then acknowledge lost records.
# In a simulation 176 of 200 seeds lost acknowledged data without this check, 0 of 1,500 with it. It is step 4 of "The
# commit at the hub" in docs/architecture.md.

_NS = 1_000_000_000


class WatermarkGuard:
    """A copy of the manifest's watermark that is never older than its validity.

    Args:
        boot_clock: nanoseconds on a clock that counts suspend (CLOCK_BOOTTIME). With a clock that stops while the
            machine sleeps, an old copy would count as fresh.
        validity_s: V of docs/architecture.md.
    """

    def __init__(self, log: ShardLog, boot_clock: Callable[[], int], validity_s: float) -> None:
        self._log = log
        self._boot_clock = boot_clock
        self._validity = int(validity_s * _NS)
        self._looked_at: int | None = None
        self._watermark = 0

    async def passed(self, n: int) -> bool:
        """Return whether chunks that follow n may have been collected; if so, the state at n must be loaded again.

        The answer is valid until the caller's next await.

        Raises:
            StoreError: the manifest cannot be read. Nothing may be acknowledged.
            Corrupt: it does not decode.
        """
        while self._looked_at is None or self._boot_clock() - self._looked_at > self._validity:
            # The age counts from before the read: the node may be paused while the answer is in flight.
            looked_at = self._boot_clock()
            manifest, _ = await self._log.manifest()
            self._looked_at, self._watermark = looked_at, manifest.watermark
        return self._watermark > max(n, 0)


# Snapshots of a shard's state: a node starts from the newest one instead of the log's first chunk.

logger = logging.getLogger(__name__)

LANES_INLINE = 512
"""Number of lanes up to which a state is encoded on the event loop, in about 2 ms; a larger one in a thread."""
CHUNKS_MIN = 32
"""Number of chunks from which on a snapshot is due after its interval: a shard with a chunk of marks a minute would pay
for two objects more with each. A start reads this many chunks more at most."""
SNAPSHOTS_TO_LOCATE = 64
"""Maximum number of older snapshots that are kept as an index of offsets."""
WRITTEN_PER_THINNING = 8
"""Number of snapshots after which old ones are deleted, which takes a listing."""


async def write_snapshot(log: ShardLog, n: int, data: bytes, nonce: int) -> bool:
    """Store an encoded state and name it in the manifest, unless the manifest names a later one.

    Losing the swap to another node is fine: its snapshot serves as well.

    Returns:
        True if the manifest now names this snapshot.

    Raises:
        StoreError: the outcome is unknown. The next snapshot replaces this one.
    """
    manifest, etag = await log.manifest()
    # Another node was faster. The manifest never goes back to an older snapshot.
    if manifest.snapshot_n >= n:
        return False
    # Stored before it is named: a manifest that names a missing snapshot would stop every start.
    key = await log.put_snapshot(n, nonce, data)
    return await log.swap_manifest(changed(manifest, snapshot_n=n, snapshot=key), etag)


async def thin_snapshots(log: ShardLog) -> int:
    """Delete snapshots that are no longer useful, and return their number.

    The manifest's and the newest ``SNAPSHOTS_TO_START`` remain for starting nodes. ``SNAPSHOTS_TO_LOCATE`` of the
    older ones remain for ``locate``, spread over the log.
    """
    manifest, _ = await log.manifest()
    known = await log.snapshots()
    # Several, so that a damaged newest one costs a longer start and not the shard.
    newest = {key for _, key in known[-SNAPSHOTS_TO_START:]} | {manifest.snapshot}
    older = [(n, key) for n, key in known if key not in newest and n < manifest.snapshot_n]
    # The chunks behind them are deleted, so no state can be built from them.
    useless = [key for n, key in older if n < manifest.watermark - 1]
    spread = [(n, key) for n, key in older if n >= manifest.watermark - 1]
    while len(spread) > SNAPSHOTS_TO_LOCATE:
        # The one whose neighbours are closest together is the least useful index.
        least = min(range(1, len(spread) - 1), key=lambda i: spread[i + 1][0] - spread[i - 1][0])
        useless.append(spread.pop(least)[1])
    for key in useless:
        await log.store.delete(key)
    return len(useless)


class Snapshotter:
    """Decides when a snapshot is due, and writes it concurrently with commits. One per shard.

    Args:
        monotonic: seconds.
        random_bits: for the object's nonce.
    """

    def __init__(
        self,
        log: ShardLog,
        interval_s: float,
        chunks: int,
        monotonic: Callable[[], float],
        random_bits: Callable[[int], int],
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._chunks = chunks
        self._monotonic = monotonic
        self._random_bits = random_bits
        self._last_n = -1
        self._last_time = monotonic()
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    def loaded(self, snapshot_n: int) -> None:
        """Note that the state was loaded from a snapshot of chunk ``snapshot_n`` (-1: from the beginning)."""
        self._last_n, self._last_time = snapshot_n, self._monotonic()

    def consider(self, state: ShardState) -> None:
        """Start a snapshot when one is due.

        Args:
            state: just checked against the watermark. A snapshot of a state that the collector has passed would
                mislead every reader that uses snapshots as an index.
        """
        behind, waited = state.n - self._last_n, self._monotonic() - self._last_time
        # By chunks as well as by time: what counts at a start is how much has to be folded.
        due = behind >= self._chunks or (behind >= CHUNKS_MIN and waited >= self._interval_s)
        if not due or (self._task is not None and not self._task.done()):
            return
        self.loaded(state.n)
        if not state.is_whole:
            return  # the log has features that this release does not keep: a later release makes its snapshots
        self._task = asyncio.create_task(self._write(state.n, state.freeze(), len(state.lanes)))

    async def _write(self, n: int, encode: Callable[[], bytes], lanes: int) -> None:
        try:
            # A frozen copy, so the shard continues committing while a large state is encoded.
            data = encode() if lanes <= LANES_INLINE else await asyncio.to_thread(encode)
            named = await write_snapshot(self._log, n, data, self._random_bits(64))
            self._written += named
            if named and self._written % WRITTEN_PER_THINNING == 0:
                await thin_snapshots(self._log)
        except (StoreError, AlreadyExists, CodecError) as error:
            logger.warning("shard %d: no snapshot of chunk %d was made: %s", self._log.shard, n, error)

    async def close(self) -> None:
        """Wait for the snapshot that is being written."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


# Calls to a failing store, repeated without end: bounded waits, and log lines at growing intervals.

T = TypeVar("T")
TROUBLE = (StoreError, CodecError)
"""Errors after which the outcome of a store call is unknown. Stores bound their calls in time."""


# The store's own words are for the operator: what a library writes into its errors is not known, and may be names of
# other tenants.
def public_reason(error: Exception) -> str:
    """Return why something of the store cannot be read, for edges and readers: without folders, and without keys, which
    may name other tenants. The operator's log and status have the store's own words."""
    if isinstance(error, TableError):
        return "the stream's table cannot be read; the hub's operator sees why"
    # Edges and readers get no names of objects, which are the operator's concern and may say how the store is laid out.
    if isinstance(error, CodecError | NotFound):
        return "an object of the hub's store is damaged or missing; the hub's operator sees which one"
    return "the hub cannot use its store at the moment; the hub's operator sees why"


class RetryLoop:
    """The retries of one shard: doubling waits, with jitter, and no last attempt.

    Args:
        name: the shard, for log lines.
        retry_min_s, retry_max_s: shortest and longest wait; waits double in between, with jitter.
        random_bits: for the jitter.
        patience_s: time of failures from which on ``on_long_trouble`` is called after every failed attempt.
    """

    def __init__(
        self,
        name: str,
        retry_min_s: float,
        retry_max_s: float,
        random_bits: Callable[[int], int],
        *,
        patience_s: float,
        on_long_trouble: Callable[[str], None],
    ) -> None:
        self._patience_s = patience_s
        self._on_long_trouble = on_long_trouble
        self.trouble: str | None = None
        """The last failure, for the operator; None while the store works."""
        self.public_trouble: str | None = None
        """The same for edges and readers."""
        self.is_long = False
        """True from the first call of ``on_long_trouble`` until the store works again."""
        self.retries = 0
        """Number of waits since the start."""
        self._name = name
        self._retry_min_s = retry_min_s
        self._retry_max_s = retry_max_s
        self._random_bits = random_bits
        self._failures = 0
        self._now = asyncio.get_running_loop().time
        self._repeats = Repeats()
        self._trouble_since: float | None = None
        """Time of the first failure since the store last worked."""
        self._asked_at: float | None = self._now()
        """Time on the loop's clock since which the store owes the shard an answer; None while it owes none."""

    @property
    def silent_s(self) -> float:
        """Return the seconds for which the store has owed the shard an answer; 0 while it owes none."""
        return 0.0 if self._asked_at is None else self._now() - self._asked_at

    def asks(self) -> None:
        """Note that the shard begins to wait for the store."""
        self._asked_at = self._now() if self._asked_at is None else self._asked_at

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers, and return its answer.

        An answer does not end earlier trouble: a full disk can still be read.
        """
        # A call inside a longer attempt must not end the trouble of the whole attempt when it alone succeeds.
        before = self._failures, self.trouble, self.public_trouble
        while True:
            try:
                result = await call()
            except TROUBLE as error:
                await self.wait(str(error) or type(error).__name__, public_reason(error))
                continue
            self._failures, self.trouble, self.public_trouble = before
            return result

    def answered(self) -> None:
        """Note that the store works: a later failure is new trouble."""
        self._asked_at = None
        if self.trouble is not None and self._trouble_since is not None:
            away = approximate_duration(self._now() - self._trouble_since)
            logger.info("%s: the store works again, after %s", self._name, away)
        self.trouble = self.public_trouble = self._trouble_since = None
        self._failures, self.is_long = 0, False

    async def wait(self, trouble: str, public: str) -> None:
        """Wait for the next attempt.

        Args:
            trouble: the failure, for the operator.
            public: the same for edges and readers.
        """
        now = self._now()
        if self.trouble is None:
            self._repeats.clear()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        count = self._repeats.due("trouble", now)
        if count is not None:
            logger.warning("%s: trying again: %s%s", self._name, trouble, left_out(count))
        self.trouble, self.public_trouble = trouble, public
        self.retries += 1
        if now - self._trouble_since >= self._patience_s:
            self.is_long = True
            self._on_long_trouble(public)
        longest = min(self._retry_min_s * 2 ** min(self._failures, 32), self._retry_max_s)
        self._failures += 1
        # Spread out: all shards of all nodes meet the same outage at the same moment.
        await asyncio.sleep(longest * (0.5 + self._random_bits(16) / (1 << 17)))


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
        level: Callable[[], int] = lambda: FIRST_LEVEL,
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
            f"shard {log.shard}",
            settings.retry_min_s,
            settings.retry_max_s,
            random_bits,
            patience_s=settings.unavailable_after_s,
            on_long_trouble=partial(self.sessions.send_away, log.shard),
        )
        self._ended, self._room = EndedLanes(log), Room(settings, self.sessions.declarations)
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
    def public_trouble(self) -> str | None:
        """Return the same for edges and readers, who may be of other tenants."""
        return self._retry_loop.public_trouble

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
        self.sessions.declarations.begins(session, self._state)
        # Whether another owner came first is judged by the state at the opening; the lane's state changes before the
        # chunk is written.
        session.claim.began_late = session.is_late(self._state.lanes.get(session.lane, NOTHING))
        self.sessions.add(session)
        self.sessions.refuse_moved(self._state, [session.lane])

    def declare_origins(self, session: LaneSession, origins: Sequence[Origin]) -> Full | None:
        """Add origins of a session's batches. Return the bound that leaves no room for them; None if there is room."""
        return self._room.declare_origins(session, self._state, origins)

    def put(self, session: LaneSession, batches: Sequence[tuple[BatchHeader, memoryview]]) -> bool:
        """Accept verified batches, to be acknowledged. Return whether there is room for more (``sessions.room``)."""
        held = self._state.lanes.get(session.lane)
        # Records that fill the middle of a gap leave two gaps, so the bound on gaps applies to them too.
        if (
            held is not None
            and held.gaps.items
            and self._room.gaps.is_full(self._state, session.lane)
            and any(held.splits(header.base_seq, header.end_seq) for header, _ in batches)
        ):
            self.sessions.refuse_gaps(session, held)
            return True
        if not self._schedule.records_wait:
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
        self.sessions.mark(session, mark, self._state.lanes.get(session.lane))

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
        # A chunk's time can never be taken back, and tables, retention and completeness go by it.
        if self._clock.wrong() is not None:
            await self._follow()  # nothing is written, and readers continue
        while True:
            try:
                while (draft := await self._next_draft()) is not None:
                    if await self._place(draft):
                        break
            except CollectedPast:
                await self._reload()
                continue
            # A state that was loaded and not extended is the log's own, even if the log ends at the watermark.
            # Otherwise a shard whose log ends at the watermark would take itself for passed, load again and never
            # acknowledge.
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
        # Marks of busy lanes ride with records for nothing, so only idle lanes wait for the interval.
        marks_due = self._schedule.marks_are_due(self._now(), trailing=self.sessions.trailing)
        return Drafting(
            self._state,
            lambda: ChunkBuilder(self._state, self._settings.chunk_bytes_max, self._level(), self._ended),
            lambda builder: builder.finish(now, self._random_bits(64), marks_due, self.sessions.canaries.wait),
            self.sessions.declarations.waits,
        ).draft(self.sessions)

    async def _place(self, drafted: Drafted) -> bool:
        """Try to make the draft the next chunk.

        Return whether a chunk of this node was placed there. If not, build it again: the state may have advanced.
        """
        draft, folded = drafted
        n, nonce, started = draft.chunk.header.n, draft.chunk.header.nonce, self._now()
        # Remembered before the request: a request without an answer may have created the chunk, and the nonce in the
        # log tells whose it is.
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
        # The log has the word. Writing the next number without looking would make two chunks of the same records.
        own = await self._retry_loop.run(self._read_on)
        if self._state.n < n:
            await self._retry_loop.wait(f"chunk {n} could not be written: {trouble}", public_reason(trouble))
        return own

    async def _read_on(self) -> bool:
        """Apply the following chunks, up to the log's head. Return whether one of them is this node's."""
        own, foreign = False, self.counters.foreign_chunks
        self._others.look()
        self._schedule.begin_look(self._now())
        async for chunk in self.log.indexes(self._state.n + 1):
            # In steps, because a chunk of another node with thousands of lanes would hold up this process's links.
            own |= self._accept(await fold_in_steps(self._state, chunk))
        self._note_look(found=self.counters.foreign_chunks > foreign)
        return own

    def _accept(self, folded: Folded) -> bool:
        """Apply the next chunk, of any node. Return whether this node wrote it."""
        chunk = folded.chunk
        attempt = self._attempts.get(chunk.header.nonce)
        if attempt is None:
            self._others.wrote(chunk.header.created, self._state.created)
        # An operator has decided the conflict; the link of the former owner must not continue as if nothing had
        # happened.
        decided = [lane for lane in self._state.conflicts if (held := folded.lanes.get(lane)) and not held.conflict]
        log_ends(self._state, folded)
        taken_over = folded.new_epochs(self._state.lanes)
        self._state.accept(folded)
        self._ended.forget(folded.lanes)
        self._attempts.clear()  # this position is decided: no attempt at it can land any more
        for session in attempt.openings if attempt else ():
            session.claim.granted = True
            self.sessions.declarations.settle(session, self._state.lanes.get(session.lane))
        for lane in decided:
            self.sessions.end(lane)
        # A lane that another node took over with a higher epoch is ended here at once, before anything of it is
        # acknowledged.
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
