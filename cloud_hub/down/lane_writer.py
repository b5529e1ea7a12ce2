"""Writer of one lane of the hub's own, such as an edge's messages: a session of the shard, as a link has one for each
lane of its edge.

Its epoch fences every other process that writes the lane, so a number of the lane has one record, ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from weft.cloud_hub.facts.acts import NumberedEntry, entries, line
from weft.cloud_hub.facts.declarations import Declarations, Watched
from weft.cloud_hub.part import Part
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines import Repeats, left_out
from weft.protocols import batch as batches
from weft.protocols.batch import ClockReading, ClockState, columns_from_lists, decode_header
from weft.protocols.chunk_index import LaneFlag, Mark
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import AUDIT_EDGE, AUDIT_STREAM, AUDIT_TENANT, Lane
from weft.protocols.link import RefuseCode
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import NOTHING
from weft.storage.cluster import Cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import ObjectStore, StoreError

IDLE_S = 60.0
"""Seconds after its last append when a writer gives its session back."""
OPEN_S_MAX = 10.0
"""Longest wait for the epoch of a session to become durable."""


RecordT = TypeVar("RecordT")


class CannotWrite(Exception):
    """The shard does not take records of the lane now."""


class WriterLost(Exception):
    """The session ended. Whether the shard has the last records is unknown."""


class _Append(NamedTuple, Generic[RecordT]):
    first: int
    end: int
    records: Sequence[RecordT]
    done: asyncio.Future[None]


class LaneWriter(Generic[RecordT]):
    """The writer of one lane. Belongs to the event loop's thread.

    Args:
        encode: returns a batch of records, given the number of the first.
        applied: called with each record, and its seq, when it is durable.
        payload: kind of the payloads.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        lane: Lane,
        *,
        encode: Callable[[int, Sequence[RecordT]], bytes],
        applied: Callable[[int, RecordT], None],
        payload: int = 0,
    ) -> None:
        self._sequencer, self._lane = sequencer, lane
        self._encode, self._applied, self._payload = encode, applied, payload
        self._session: LaneSession | None = None
        self._opening = asyncio.Lock()
        self._pending: deque[_Append[RecordT]] = deque()
        self._next = 0
        self._used_at = 0.0

    def wrote(self, epoch: int) -> bool:
        """Return whether records of the lane under this epoch are from this writer."""
        session = self._session
        return session is not None and session.claim.granted and session.epoch == epoch

    async def open(self) -> None:
        """Make sure that the writer may append.

        Raises:
            CannotWrite: the shard has no room, or trouble.
            WriterLost: another process took the lane at the same moment.
        """
        async with self._opening:
            if self._session is not None:
                return
            sequencer = self._sequencer
            if not sequencer.loaded or sequencer.is_unavailable or not sequencer.is_running:
                raise CannotWrite(
                    f"shard {sequencer.log.shard} is not available: {sequencer.public_trouble or 'it is loaded'}"
                )
            if (full := sequencer.no_room(self._lane, [])) is not None:
                raise CannotWrite(f"{full.reason}; see {full.setting}")
            held = sequencer.state.lanes.get(self._lane, NOTHING)
            session = LaneSession(
                self._lane,
                LaneClaim(held.epoch + 1),
                [],
                self._acknowledge,
                self._refuse,
                payload=self._payload,
                flags=LaneFlag.PARTIAL,
            )
            sequencer.open(session)
            try:
                async with asyncio.timeout(OPEN_S_MAX):
                    ranges = await session.opened
            except SessionRefused as refusal:
                raise WriterLost(refusal.message) from refusal
            except TimeoutError:
                sequencer.leave(session)
                raise CannotWrite(f"shard {sequencer.log.shard} does not write: {sequencer.public_trouble}") from None
            self._session, self._next = session, ranges.end
            self._leave_later()

    @property
    def is_open(self) -> bool:
        """Return whether ``append`` may be called."""
        return self._session is not None

    @property
    def epoch(self) -> int:
        """Return the epoch of the open session."""
        assert self._session is not None, "open comes first"
        return self._session.epoch

    @property
    def next_seq(self) -> int:
        """Return the number that the next record gets."""
        return self._next

    def append(self, records: Sequence[RecordT], mark: Mark | None) -> asyncio.Future[None]:
        """Append records, which is done when the future is: they are durable then, and applied.

        The future raises ``WriterLost`` if the session ends before.

        Args:
            mark: the lane's mark from now on; None leaves it unchanged.
        """
        loop, session = asyncio.get_running_loop(), self._session
        assert session is not None, "open comes first"
        data, first = self._encode(self._next, records), self._next
        self._next += len(records)
        self._used_at = loop.time()
        done = loop.create_future()
        self._pending.append(_Append(first, self._next, records, done))
        self._sequencer.put(session, [(decode_header(data), memoryview(data))])
        if mark is not None:
            self._sequencer.put_mark(session, mark)
        return done

    def mark(self, mark: Mark) -> None:
        """Move the lane's mark; it is committed in a while, without records. ``open`` comes first."""
        assert self._session is not None, "open comes first"
        self._used_at = asyncio.get_running_loop().time() + IDLE_S
        self._sequencer.put_mark(self._session, mark)

    def _acknowledge(self, held: RangeSet) -> None:
        while self._pending and held.covers(self._pending[0].first, self._pending[0].end):
            first, _, records, done = self._pending.popleft()
            for seq, record in enumerate(records, first):
                self._applied(seq, record)
            if not done.done():
                done.set_result(None)

    def _refuse(self, _code: RefuseCode, message: str, _advice: str) -> None:
        self._session = None
        pending, self._pending = self._pending, deque()
        for each in pending:
            if not each.done.done():
                each.done.set_exception(WriterLost(message))
                each.done.exception()  # the caller may have gone

    def close(self) -> None:
        """Give the session back. What was appended is still committed."""
        if self._session is not None:
            self._sequencer.leave(self._session)
            self._refuse(RefuseCode.CLOSED, "this process no longer writes the lane", "")

    def _leave_later(self) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            left = self._used_at + IDLE_S - loop.time()
            if self._session is None:
                return
            if left > 0 or self._pending:
                loop.call_later(max(left, 1.0), look)
            else:
                self.close()

        self._used_at = loop.time()
        loop.call_later(IDLE_S, look)


# The stream of administrative acts: a copy of the cluster log as records of one lane, so that it has a table.
#
# Entry n is record n - 1 of the lane. The log decides the order, and a number of a lane has one record, ever: a copy
# that was interrupted, or that two processes make at once, neither loses nor doubles a line.

_logger = logging.getLogger(__name__)
FIRST_LOG = 1
"""Log id of the lane, until the store is restored: then the cluster log may give numbers again, and the lane is another
one, with the moment of the restoration as its id."""
LINES_AT_ONCE = 64
RETRY_S = 5.0
LOOK_S = 60.0
"""Interval of looks in memory for entries that are not copied, such as after a change of owners."""


class ActsStream(Part):
    """Writer of the stream in one hub process. The process that owns the lane's shard writes.

    Args:
        is_own: whether this process owns a shard.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        declared: Declarations,
        shards: Shards,
        is_own: Callable[[int], bool],
    ) -> None:
        self._log = ClusterLog(store, cluster.cluster_id)
        self._declared, self._shards, self._is_own = declared, shards, is_own
        self.lane = Lane(AUDIT_TENANT, AUDIT_EDGE, cluster.restored or FIRST_LOG, AUDIT_STREAM)
        self._writer: LaneWriter[NumberedEntry] | None = None
        self._of: Sequencer | None = None
        self._wake = asyncio.Event()
        self._repeats = Repeats()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, when the cluster log and the shards are known."""
        self._declared.watch(Watched.LOG, self._wake.set)
        self._task = asyncio.create_task(self._run(), name="stream-of-acts")

    async def close(self) -> None:
        """Stop. What was appended is still committed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._writer is not None:
            self._writer.close()

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            wait = LOOK_S
            try:
                await self._copy()
                self._repeats.clear()
            except (CannotWrite, WriterLost, StoreError, UnsupportedVersion) as error:
                count, wait = self._repeats.due(str(error), now()), RETRY_S
                if count is not None:
                    _logger.warning("acts wait to be copied into their stream: %s%s", error, left_out(count))
            except Exception:  # without this task, the stream would end
                wait = LOOK_S
                _logger.exception("acts could not be copied into their stream")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await (self._wake.wait() if wait == LOOK_S else asyncio.sleep(wait))

    async def _copy(self) -> None:
        shard = self._shards.place(self.lane)
        if not self._declared.position or not self._is_own(shard):
            return
        sequencer = await self._shards.get(shard)
        if not sequencer.loaded:
            raise CannotWrite(f"shard {shard} cannot be loaded: {sequencer.public_trouble}")
        if sequencer.state.lanes.get(self.lane, NOTHING).ranges.end >= self._declared.position:
            return
        writer = self._writer_of(sequencer)
        await writer.open()
        while (first := writer.next_seq + 1) <= self._declared.position:
            found = await entries(self._log, first, min(self._declared.position + 1, first + LINES_AT_ONCE))
            if not writer.is_open or writer.next_seq + 1 != first:
                raise WriterLost("another process of the hub took over the stream")
            await writer.append(found, None)

    def _writer_of(self, sequencer: Sequencer) -> LaneWriter[NumberedEntry]:
        if self._writer is None or self._of is not sequencer:
            if self._writer is not None:
                self._writer.close()
            self._of = sequencer
            self._writer = LaneWriter(
                sequencer, self.lane, encode=encode, applied=lambda _seq, _entry: None, payload=PayloadKind.JSON
            )
        return self._writer


def encode(base_seq: int, found: Sequence[NumberedEntry]) -> bytes:
    """Return a batch of lines as JSON, each with the time of its writer, and the kind of its fact as the key."""
    times = array("q", [0 if entry is None else entry.at for _, entry in found])
    columns = columns_from_lists(
        times.tobytes(),
        [b"unusable" if entry is None else entry.kind.encode() for _, entry in found],
        [msgspec.json.encode(line(*each)) for each in found],
    )
    return batches.encode(1, base_seq, columns, ClockReading(0, 0, ClockState.SYNCED))
