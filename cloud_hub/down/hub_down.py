"""Messages to edges in one hub process, by shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.cloud_hub.down.edge_queue import Draft, EdgeQueue, Remembered
from weft.cloud_hub.down.lane_writer import CannotWrite, WriterLost
from weft.cloud_hub.down.link_down import LinkDown, OpeningDown
from weft.cloud_hub.down.records import Waiting, lane_of
from weft.cloud_hub.down.shard_down import ShardDown
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.errors import CodecError
from weft.protocols.lane import NodeName
from weft.protocols.link import Frame
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError

logger = logging.getLogger(__name__)

SWEEP_S = 3600.0
"""Seconds between two looks for messages that wait for edges which are not heard of."""


class UnknownEdge(Exception):
    """The hub has never heard of an edge."""


class HubDown:
    """Messages to edges. Belongs to the event loop's thread.

    Args:
        shards: the shards of the store.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(self, shards: Shards, wall_clock: Callable[[], int]) -> None:
        self._shards, self._wall_clock = shards, wall_clock
        self._of: dict[Sequencer, ShardDown] = {}
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="messages-to-edges")

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
            raise CannotWrite(f"shard {sequencer.log.shard} cannot be loaded: {sequencer.told}")
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

    def close(self) -> None:
        """End."""
        self._sweeping.cancel()
        for shard in self._of.values():
            shard.close()
