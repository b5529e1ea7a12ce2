"""Messages to edges in one hub process, by shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.down.edge_queue import (
    Attached,
    AttachedLinks,
    DownContext,
    DownRecord,
    Draft,
    EdgeQueue,
    Remembered,
    Settled,
    Waiting,
    decode,
    encode,
    lane_of,
    outcome_name,
)
from weft.cloud_hub.down.lane_writer import CannotWrite, LaneWriter, WriterLost
from weft.cloud_hub.part import Part
from weft.cloud_hub.shard.collector import BEFORE_NS, SPARED_NS_MAX, waiting_lanes, waits_from
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.chunk import section_entries
from weft.protocols.chunk_index import Chunk, Mark, StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.lane import DOWN_STREAM, Lane, NodeName
from weft.protocols.link import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    DownMessage,
    Frame,
    MessageOutcome,
    Messages,
    OutcomeKind,
)
from weft.protocols.shard.shard_state import Folded
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.object_store import NotFound, StoreError

# Reader of the lanes of messages in a shard's log, from the oldest message that waits.


class LogPart(NamedTuple):
    """Chunks ``[first, end]`` of a log that had the edges of a shard."""

    log: ShardLog
    first: int
    end: int


class FoundRecord(NamedTuple):
    """One record of a lane."""

    lane: Lane
    seq: int
    record: DownRecord | None


async def log_parts(log: ShardLog, end: int, other: Callable[[int], Awaitable[Sequencer]]) -> list[LogPart]:
    """Return the parts of the log up to chunk ``end`` that the shard's edges had, ascending: also of shards that were
    split.

    Args:
        other: returns the committer of another shard.

    Raises:
        StoreError: such a shard is not loaded.
    """
    parts, child = [LogPart(log, 0, end)], log.shard
    for shard in log.lineage[1:]:
        halved = await other(shard)
        split = next((each for each in halved.state.splits if each.shard == child), None)
        if split is None:
            raise StoreError(f"shard {shard}, from which shard {child} was split, is not loaded: try again")
        parts[0] = parts[0]._replace(first=split.n + 1)
        parts.insert(0, LogPart(halved.log, 0, split.n))
        child = shard
    return parts


async def read_from(parts: list[LogPart], time: int, tenants: frozenset[str]) -> AsyncIterator[FoundRecord]:
    """Yield the records of all lanes in chunks that were made at ``time`` or later, in the order of the log.

    Chunks that the collector deleted are passed over.

    Args:
        parts: those of the log, ascending.
        time: nanoseconds since 1970.

    Raises:
        StoreError, Corrupt, NotFound, CollectedPast: the log cannot be read.
    """
    only: frozenset[StreamKey] = frozenset((tenant, DOWN_STREAM) for tenant in tenants)
    for log, first, end in parts:
        await log.manifest()
        low, high = max(first, log.watermark), end + 1
        while low < high:
            middle = (low + high) // 2
            chunk = await log.index(middle, only)
            low, high = (middle + 1, high) if chunk is None or chunk.header.created < time else (low, middle)
        if low > end:
            continue
        async for chunk in log.indexes(low, only=only):
            if chunk.header.n > end:
                break
            async for found in read_chunk(log, chunk):
                yield found


async def read_chunk(log: ShardLog, chunk: Chunk) -> AsyncIterator[FoundRecord]:
    """Yield the records of all lanes in a chunk.

    Raises:
        StoreError, Corrupt, NotFound: it cannot be read.
    """
    for section in chunk.footer.streams:
        if section.stream != DOWN_STREAM:
            continue
        data, lanes = await log.section(chunk.header.n, section), chunk.footer.lanes_of(section)
        for entry in section_entries(section, data, lanes):
            update = lanes[entry.lane]
            lane = Lane(update.tenant, update.edge, update.log_id, update.stream)
            for seq, record in decode(entry):
                yield FoundRecord(lane, seq, record)
            await asyncio.sleep(0)


# The messages of one shard's edges in one hub process: a copy of what the log has of them, and the way into the log.
#
# The copy begins with a read of the log, from the oldest message that waits, and follows each chunk after it. An edge
# for which nothing waits needs no read, so a process that takes over a shard reads nothing while no message waits
# there.

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 4
"""Attempts to write a message, if other processes take the lane."""
CHUNKS_NOTED_MAX = 1024
"""Maximum number of chunks of other processes that wait to be read. With more, the whole copy is read again."""
SHARD_RETRY_S = 2.0
"""Seconds between two attempts to read the log for an edge that is linked."""
_READ_ERRORS = (StoreError, NotFound, CodecError, CollectedPast)


class OutcomeUnknown(Exception):
    """A write whose outcome is unknown: the log may have the message or not."""


class ShardDown:
    """Messages of the edges of one shard. Belongs to the event loop's thread.

    Args:
        sequencer: the shard's committer.
        other: returns the committer of another shard.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self, sequencer: Sequencer, other: Callable[[int], Awaitable[Sequencer]], wall_clock: Callable[[], int]
    ) -> None:
        self.sequencer, self._other, self._wall_clock = sequencer, other, wall_clock
        self._shared = DownContext()
        self._queues: dict[Lane, EdgeQueue] = {}
        self._writers: dict[Lane, LaneWriter[DownRecord]] = {}
        self._links = AttachedLinks()
        self._outcomes: dict[Lane, list[Settled]] = {}
        """Outcomes that have not been appended yet."""
        self._noted: list[int] = []
        """Chunks of other processes that are not read yet."""
        self._is_loading = False
        self._generation = 0
        """Number of the copy: what is read for an earlier one is dropped."""
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        sequencer.on_chunk = self._accepted

    # -- the copy

    async def queue(self, lane: Lane) -> EdgeQueue:
        """Return the queue of an edge, as the log has it at this node's last chunk.

        Raises:
            StoreError, NotFound, CodecError, CollectedPast: the log cannot be read.
        """
        while True:
            if not self._noted and (known := self._queues.get(lane)) is not None:
                return known
            async with self._lock:
                if self._noted:
                    await self._read_noted()
                elif lane not in self._queues:
                    await self._begin(lane)

    async def _begin(self, lane: Lane) -> None:
        held = self.sequencer.state.lanes.get(lane)
        if waits_from(held) is not None:
            await self._load()
            return
        newest = None if held is None else held.newest_mark
        end, time = 0 if held is None else held.ranges.end, 0 if newest is None else newest.time
        self._queues[lane] = EdgeQueue(lane, end, time, self._shared)

    async def _load(self) -> None:
        state = self.sequencer.state
        waiting = {lane: since for lane, since in waiting_lanes(state).items() if lane not in self._queues}
        ends = {lane: state.lanes[lane].ranges.end for lane in waiting}
        found = {lane: EdgeQueue(lane, ends[lane], time, self._shared) for lane, (time, _) in waiting.items()}
        self._is_loading, generation = True, self._generation
        try:
            time = min(time for time, _ in waiting.values()) - BEFORE_NS
            tenants = frozenset(lane.tenant for lane in waiting)
            parts = await log_parts(self.sequencer.log, state.n, self._other)
            async for lane, seq, record in read_from(parts, time, tenants):
                if lane in found and waiting[lane][1] <= seq < ends[lane]:
                    found[lane].apply(seq, record)
        except BaseException:
            for queue in found.values():
                queue.close()
            raise
        finally:
            self._is_loading = False
        if generation == self._generation:
            self._queues |= found
            return
        for queue in found.values():
            queue.close()

    async def _read_noted(self) -> None:
        log, n, generation = self.sequencer.log, self._noted[0], self._generation
        chunk = await log.index(n)
        if chunk is None:
            if generation == self._generation:
                self._forget()  # the collector was faster: the log says what waits now
            return
        async for lane, seq, record in read_chunk(log, chunk):
            if generation != self._generation:
                return
            if (queue := self._queues.get(lane)) is not None:
                queue.apply(seq, record)
        if self._noted[:1] == [n]:
            del self._noted[0]

    def _accepted(self, folded: Folded | None) -> None:
        """Note a chunk of another process with records of lanes that are copied; None: the state was loaded again."""
        if folded is None:
            self._forget()
            return
        footer = folded.chunk.footer
        foreign = [
            Lane(each.tenant, each.edge, each.log_id, each.stream)
            for section in footer.streams
            if section.stream == DOWN_STREAM
            for each in footer.lanes_of(section)
            if each.stream == DOWN_STREAM and each.ranges
        ]
        foreign = [lane for lane in foreign if self._is_foreign(lane, folded)]
        if not foreign:
            return
        self._noted.append(folded.chunk.header.n)
        if len(self._noted) > CHUNKS_NOTED_MAX:
            self._forget()
        for lane in foreign:
            if lane in self._links:
                self._run(self._refresh(lane))

    def _is_foreign(self, lane: Lane, folded: Folded) -> bool:
        if lane not in self._queues:
            return self._is_loading
        writer, held = self._writers.get(lane), folded.lanes.get(lane)
        return writer is None or held is None or not writer.wrote(held.epoch)

    def _forget(self) -> None:
        """Begin again: nothing is known of what the log has."""
        self._generation += 1
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self._noted.clear()
        for lane, link in self._links.items():
            link.restart()
            self._run(self._refresh(lane))

    async def _refresh(self, lane: Lane) -> None:
        """Send an edge what is new for it."""
        while (link := self._links.get(lane)) is not None:
            try:
                link.pump(await self.queue(lane))
                return
            except _READ_ERRORS as error:
                logger.warning("the messages of edge %s/%s cannot be read: %s", lane.tenant, lane.edge, error)
                await asyncio.sleep(SHARD_RETRY_S)

    # -- links

    def attach(self, lane: Lane, link: Attached) -> None:
        """Send an edge's messages over its link from now on; an earlier link of it gets no more until this one ends."""
        self._links.add(lane, link)
        self._run(self._refresh(lane))

    def detach(self, lane: Lane, link: Attached) -> None:
        """Record the end of a link."""
        if (earlier := self._links.remove(lane, link)) is not None:
            earlier.restart()
            self._run(self._refresh(lane))

    def settle(self, lane: Lane, outcomes: Iterable[MessageOutcome]) -> None:
        """Write the outcomes of messages to the log, durably. Outcomes of messages that do not wait are ignored."""
        if (queue := self._queues.get(lane)) is None:
            return
        for each in outcomes:
            held = queue.waiting.get(each.number)
            if held is None or held[1].accepted != each.accepted or each.number in queue.settling:
                continue
            queue.settling.add(each.number)
            settled = Settled(each.number, each.accepted, 0, held[1].topic, outcome_name(each.outcome), each.reason)
            if lane not in self._outcomes:
                self._outcomes[lane] = []
                self._run(self._write_outcomes(lane))
            self._outcomes[lane].append(settled)

    async def _write_outcomes(self, lane: Lane) -> None:
        """Write the outcomes that wait to be appended, again if another process takes the lane meanwhile."""
        while lane in self._outcomes and self.sequencer.is_running:
            told = list[Settled]()
            try:
                writer, queue = await self._opened(lane)
                told = self._outcomes.pop(lane, told)
                await self._append_outcomes(writer, queue, told)
            except (CannotWrite, WriterLost, *_READ_ERRORS) as error:
                logger.warning("outcomes of messages to %s/%s are not written yet: %s", lane.tenant, lane.edge, error)
                if told:
                    # Until they are tried again none of them is in a session, so no mark may go by them.
                    self._outcomes.setdefault(lane, []).extend(told)
                    self._drop(lane)
                await asyncio.sleep(SHARD_RETRY_S)

    async def _append_outcomes(self, writer: LaneWriter[DownRecord], queue: EdgeQueue, told: Sequence[Settled]) -> None:
        """Append those of the outcomes that no process has written. They are durable when this returns."""
        outcomes = [each for each in told if queue.waits(each.number, each.accepted)]
        if outcomes:
            times = [queue.now(self._wall_clock(), writer.epoch) for _ in outcomes]
            records = [each._replace(time=time) for each, time in zip(outcomes, times, strict=True)]
            end = writer.next_seq + len(records)
            await writer.append(records, queue.position(end, queue.now(self._wall_clock(), writer.epoch)))
        queue.settling.difference_update(each.number for each in told)

    async def _opened(self, lane: Lane) -> tuple[LaneWriter[DownRecord], EdgeQueue]:
        """Return the lane's writer, and its queue with all that was written before that one began: other processes may
        have had the lane. Both stay so until the caller waits for something.

        Raises:
            CannotWrite, WriterLost: the shard does not take records of the lane now.
            StoreError, NotFound, CodecError, CollectedPast: the log cannot be read.
        """
        writer = self._writer(lane)
        await writer.open()
        queue = await self.queue(lane)
        if not writer.is_open:
            raise WriterLost("another process of the hub took over the edge")
        return writer, queue

    async def sweep(self) -> None:
        """Write the outcomes of old messages to edges that do not link, since chunks are kept for them until then.

        Raises:
            CannotWrite, WriterLost: the shard does not take records now.
            StoreError, NotFound, CodecError, CollectedPast: the log cannot be read.
        """
        until = self._wall_clock() - SPARED_NS_MAX
        for lane in [lane for lane, (time, _) in waiting_lanes(self.sequencer.state).items() if time <= until]:
            queue = await self.queue(lane)
            over = list(queue.over(self._wall_clock()))
            self.settle(lane, over)
            if over or queue.waiting or queue.writing:
                continue
            # The chunks that had the messages are gone: nothing of this lane waits any more.
            writer, queue = await self._opened(lane)
            if not queue.waiting and not queue.writing:
                writer.mark(Mark(queue.now(self._wall_clock(), writer.epoch), writer.next_seq))

    def _drop(self, lane: Lane) -> None:
        """Begin again with the copy of one lane."""
        if (queue := self._queues.pop(lane, None)) is None:
            return
        queue.close()
        if (link := self._links.get(lane)) is not None:
            link.restart()
            self._run(self._refresh(lane))

    # -- publishing

    async def publish(self, lane: Lane, draft: Draft) -> Waiting | Remembered:
        """Write a message to the log. It is durable when this returns.

        Raises:
            QueueFull, KeyConflict: it is not accepted.
            CannotWrite: nothing was written.
            OutcomeUnknown: whether it was written is unknown.
            StoreError, NotFound, CodecError, CollectedPast: the log cannot be read, and nothing was written.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                writer, queue = await self._opened(lane)
            except WriterLost:
                continue
            if (known := queue.known(draft)) is not None:
                await self._written(queue, known)
                return known
            self.settle(lane, list(queue.over(self._wall_clock())))
            done = asyncio.get_running_loop().create_future()
            message = queue.accept(draft, self._wall_clock(), writer.epoch, done)
            try:
                await self._write(writer, queue, message)
            except WriterLost:
                await self._look_for(lane, message)
            if (link := self._links.get(lane)) is not None and (present := self._queues.get(lane)) is not None:
                link.pump(present)
            return message
        raise CannotWrite("other processes of the hub write to this edge at the same time: try again")

    async def _write(self, writer: LaneWriter[DownRecord], queue: EdgeQueue, message: Waiting) -> None:
        done = queue.writing[message.number][1]
        alone = not queue.waiting and len(queue.writing) == 1
        mark = Mark(message.accepted - 1, writer.next_seq) if alone else None
        try:
            written = writer.append([message], mark)
        except ValueError as error:  # it cannot be encoded
            self._failed(queue, message, done, error)
            raise
        written.add_done_callback(lambda _: self._finish(queue, message, done, written))
        await asyncio.shield(written)

    def _finish(
        self, queue: EdgeQueue, message: Waiting, done: asyncio.Future[None], written: asyncio.Future[None]
    ) -> None:
        """Tell requests with the message's key what became of it, whether its own request still waits or not."""
        error = asyncio.CancelledError() if written.cancelled() else written.exception()
        if error is not None:
            self._failed(queue, message, done, error)
            self._drop(queue.lane)  # the log may have it, though no acknowledgement has told the copy
        elif not done.done():
            done.set_result(None)

    def _failed(self, queue: EdgeQueue, message: Waiting, done: asyncio.Future[None], error: BaseException) -> None:
        self._queues.get(queue.lane, queue).failed(message)
        if not done.done():
            done.set_exception(WriterLost(str(error)))
            done.exception()

    async def _written(self, queue: EdgeQueue, message: Remembered) -> None:
        """Wait until a message of another request is durable."""
        writing = queue.writing.get(message.number)
        if writing is not None and writing[0].accepted == message.accepted:
            try:
                await asyncio.shield(writing[1])
            except WriterLost as error:
                raise OutcomeUnknown(str(error)) from error

    async def _look_for(self, lane: Lane, message: Waiting) -> None:
        """Find out whether a message is in the log, after its session ended.

        Raises:
            OutcomeUnknown: it is not among those that wait, but it may have been sent meanwhile.
        """
        try:
            queue = await self.queue(lane)
        except _READ_ERRORS as error:
            raise OutcomeUnknown(f"the message was written, and the log cannot be read: {error}") from error
        if not queue.has(message):
            raise OutcomeUnknown("another process of the hub took over the edge while the message was written")

    def _writer(self, lane: Lane) -> LaneWriter[DownRecord]:
        writer = self._writers.get(lane)
        if writer is None:
            writer = self._writers[lane] = LaneWriter(
                self.sequencer, lane, encode=encode, applied=lambda seq, record: self._apply(lane, seq, record)
            )
        return writer

    def _apply(self, lane: Lane, seq: int, record: DownRecord) -> None:
        if (queue := self._queues.get(lane)) is not None:
            queue.apply(seq, record)

    # -- the end

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("messages to edges: a task failed", exc_info=error)

    def close(self) -> None:
        """End all tasks, and give all sessions back."""
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            writer.close()


# Messages on one edge's link: those under way, and what the edge says became of them.

LINK_RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""Seconds between two looks for a shard that is not loaded: they double."""


class LinkDown:
    """The messages of one link (``edge_queue.Attached``).

    Args:
        next_number: the edge has outcomes of messages up to this number.
        tell: sends a frame.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self,
        shard: ShardDown,
        lane: Lane,
        next_number: int,
        tell: Callable[[Frame], None],
        wall_clock: Callable[[], int],
    ) -> None:
        self._shard, self._lane, self._next_number = shard, lane, next_number
        self._tell, self._wall_clock = tell, wall_clock
        self._queue: EdgeQueue | None = None
        self._last = -1
        """Highest number sent."""
        self._sent: dict[int, int] = {}
        """Messages without an outcome on this link: number -> bytes of payload."""
        self._bytes = 0
        shard.attach(lane, self)

    def restart(self) -> None:
        """Send everything again that waits: the copy of the log is another one."""
        self._queue, self._last, self._bytes = None, -1, 0
        self._sent.clear()

    def pump(self, queue: EdgeQueue) -> None:
        """Send messages, as many as may be under way."""
        if self._queue is not queue:
            self.restart()
            self._queue = queue
            queue.skip_to(self._next_number)
        chosen: list[DownMessage] = []
        now = self._wall_clock()
        for message in queue.after(self._last):
            size = len(message.payload)
            if len(self._sent) >= IN_FLIGHT_MAX or (self._sent and self._bytes + size > IN_FLIGHT_BYTES_MAX):
                break
            self._sent[message.number] = size
            self._bytes, self._last = self._bytes + size, message.number
            chosen.append(_framed(message, now))
        if chosen:
            self._tell(Messages(chosen))

    def outcomes(self, outcomes: Sequence[MessageOutcome]) -> None:
        """Handle the edge's outcomes. Outcomes of messages that were not sent on this link are ignored."""
        queue, final = self._queue, list[MessageOutcome]()
        for each in outcomes:
            if queue is None or each.number not in self._sent:
                continue
            if each.outcome == OutcomeKind.WAITING:
                queue.trouble = each.reason
                continue
            queue.trouble = ""
            self._bytes -= self._sent.pop(each.number)
            final.append(each)
        if final and queue is not None:
            self._shard.settle(self._lane, final)
            self.pump(queue)

    def close(self) -> None:
        """Note that the link has ended."""
        self._shard.detach(self._lane, self)


class OpeningDown:
    """The messages of one link from the edge's DOWN_OPEN on. While the edge's shard is not loaded they wait, and the
    link continues without: other lanes of a relay are in other shards.

    Args:
        attach: begins to send messages; raises ``CannotWrite`` while the shard is not loaded.
    """

    def __init__(self, attach: Callable[[], Awaitable[LinkDown]]) -> None:
        self._attach = attach
        self._link: LinkDown | None = None
        self._task = asyncio.create_task(self._open(), name="messages-of-a-link")

    async def _open(self) -> None:
        wait = LINK_RETRY_S
        while True:
            try:
                self._link = await self._attach()
                return
            except CannotWrite:
                pass  # the shard itself logs why, once for all its edges
            except Exception:  # the link can continue
                logger.exception("messages to an edge wait")
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_S_MAX)

    def outcomes(self, outcomes: Sequence[MessageOutcome]) -> None:
        """Take the edge's word on messages."""
        if self._link is not None:
            self._link.outcomes(outcomes)

    def close(self) -> None:
        """Note that the link has ended."""
        self._task.cancel()
        if self._link is not None:
            self._link.close()


def _framed(message: Waiting, now: int) -> DownMessage:
    left = max(0, message.expires - now)
    return DownMessage(
        message.number, message.accepted, left, message.topic, message.payload if left else b"", message.qos
    )


SWEEP_S = 3600.0
"""Seconds between two looks for old messages to edges that do not link."""


class UnknownEdge(Exception):
    """The hub has never heard of an edge."""


class HubDown(Part):
    """Messages to edges. Belongs to the event loop's thread.

    Args:
        shards: the shards of the store.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(self, shards: Shards, wall_clock: Callable[[], int]) -> None:
        self._shards, self._wall_clock = shards, wall_clock
        self._of: dict[Sequencer, ShardDown] = {}
        self._sweeping = BackgroundTask()

    def start(self) -> None:
        """Begin to settle old messages."""
        self._sweeping.start(self._sweep(), name="messages-to-edges")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for sequencer in self._shards.own:
                try:
                    await self._part(sequencer).sweep()
                except (CannotWrite, WriterLost, StoreError, NotFound, CodecError, CollectedPast) as error:
                    logger.warning("old messages of shard %d are not settled: %s", sequencer.log.shard, error)
                except Exception:  # without this task, chunks would be kept for such messages until a restart
                    logger.exception("old messages of shard %d could not be settled", sequencer.log.shard)

    async def _shard(self, edge: NodeName) -> ShardDown:
        """Return the part of the shard of an edge.

        Raises:
            CannotWrite: the shard is not loaded.
        """
        return self._part(await self._shards.get(self._shards.place(edge)))

    def _part(self, sequencer: Sequencer) -> ShardDown:
        if not sequencer.loaded:
            raise CannotWrite(f"shard {sequencer.log.shard} cannot be loaded: {sequencer.public_trouble}")
        found = self._of.get(sequencer)
        if found is None:
            for gone in [each for each in self._of if not each.is_running]:
                self._of.pop(gone).close()
            found = self._of[sequencer] = ShardDown(sequencer, self._shards.get, self._wall_clock)
        return found

    async def publish(self, edge: NodeName, draft: Draft) -> Waiting | Remembered:
        """Write a message to the log of the edge's shard. It is durable when this returns.

        Raises:
            UnknownEdge: no such edge has linked.
            QueueFull, KeyConflict, CannotWrite, OutcomeUnknown: as ``ShardDown.publish``.
            StoreError, NotFound, CodecError, CollectedPast: the log cannot be read.
        """
        shard = await self._shard(edge)
        if not shard.sequencer.state.lane_count(*edge):
            raise UnknownEdge(f"no edge {edge.edge} of tenant {edge.tenant} has linked to the hub")
        return await shard.publish(lane_of(*edge), draft)

    async def queue(self, edge: NodeName) -> EdgeQueue:
        """Return the messages of an edge; raises as ``publish``."""
        shard = await self._shard(edge)
        if not shard.sequencer.state.lane_count(*edge):
            raise UnknownEdge(f"no edge {edge.edge} of tenant {edge.tenant} has linked to the hub")
        queue = await shard.queue(lane_of(*edge))
        shard.settle(lane_of(*edge), list(queue.over(self._wall_clock())))
        return queue

    def attach(self, edge: NodeName, next_number: int, tell: Callable[[Frame], None]) -> OpeningDown:
        """Send an edge's messages over its link from now on, or as soon as its shard is loaded.

        Args:
            next_number: the edge has outcomes of messages up to this number.
        """

        async def opened() -> LinkDown:
            return LinkDown(await self._shard(edge), lane_of(*edge), next_number, tell, self._wall_clock)

        return OpeningDown(opened)

    async def close(self) -> None:
        """End."""
        await self._sweeping.close()
        for shard in self._of.values():
            shard.close()
