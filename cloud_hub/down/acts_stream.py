"""The stream of administrative acts: a copy of the cluster log as records of one lane, so that it has a table.

Entry n is record n - 1 of the lane. The log decides the order, and a number of a lane has one record, ever: a copy that
was interrupted, or that two processes make at once, neither loses nor doubles a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Callable, Sequence

import msgspec

from weft.cloud_hub.declared.acts.lines import NumberedEntry, entries, line
from weft.cloud_hub.declared.declarations import Declarations
from weft.cloud_hub.down.lane_writer import CannotWrite, LaneWriter, WriterLost
from weft.cloud_hub.shard.message_lanes import AUDIT_EDGE, AUDIT_STREAM, AUDIT_TENANT
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols import batch as batches
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.columns import columns_from_lists
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import NOTHING
from weft.storage.cluster import Cluster
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.object_store import ObjectStore, StoreError

_logger = logging.getLogger(__name__)
FIRST_LOG = 1
"""Log id of the lane, until the store is restored: then the cluster log may give numbers again, and the lane is another
one, with the moment of the restoration as its id."""
LINES_AT_ONCE = 64
RETRY_S = 5.0
LOOK_S = 60.0
"""Interval of looks in memory for entries that are not copied, such as after a change of owners."""


class ActsStream:
    """Writer of the stream in one hub process. The process that owns the lane's shard writes.

    Args:
        is_own: whether this process owns a shard.
    """

    def __init__(
        self, store: ObjectStore, cluster: Cluster, declared: Declarations, shards: Shards,
        is_own: Callable[[int], bool],
    ) -> None:  # fmt: skip
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
        self._declared.grown = self._wake.set
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
                count, wait = self._repeats.say(str(error), now()), RETRY_S
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
            raise CannotWrite(f"shard {shard} cannot be loaded: {sequencer.told}")
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
