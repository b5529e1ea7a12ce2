"""The shards of a store as one request sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from weft.cloud_hub.api.records import RecordReader, ShardsView
from weft.cloud_hub.api.streams.followers import FollowedShard, StreamFollowers
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.storage.chunk_log import ShardLog
from weft.storage.every_shard import missing_shards
from weft.storage.table.deletions import FollowedErasures

if TYPE_CHECKING:
    from weft.cloud_hub.api.history import Histories

LOADING = "it is being loaded"


class ShardViews:
    """Makes the views of one process. A failing shard is left out and named; the response reports that its part is
    missing.

    Args:
        log: returns the log of a shard, for readers.
        response_bytes_max: longest answer, in payload bytes.
    """

    def __init__(
        self, shards: Shards, log: Callable[[int], ShardLog], response_bytes_max: int, monotonic: Callable[[], float]
    ) -> None:
        self._shards, self._response_bytes_max, self._monotonic = shards, response_bytes_max, monotonic
        self._followers = StreamFollowers(log, monotonic)
        self._histories: Histories | None = None
        self._erasures: FollowedErasures | None = None

    async def of_stream(self, tenant: str, stream: str) -> ShardsView:
        """Return what all shards have of one stream. Shards of other processes are read for this stream alone."""
        held = await self._shards.held()
        others = [shard for shard in range(self._shards.count) if shard not in held]
        read = await asyncio.gather(*(self._followers.read(shard, (tenant, stream)) for shard in others))
        view = self._view([*map(_seen, held.values()), *read])
        self._followers.note((tenant, stream), is_known=any(each.has_stream(tenant, stream) for each in view.states))
        return view

    def _view(self, shards: Iterable[FollowedShard]) -> ShardsView:
        found = sorted(shards, key=lambda each: each.log.shard)
        states = [each.state for each in found if each.state is not None]
        missing = {each.log.shard: each.trouble for each in found if each.state is None}
        missing = dict.fromkeys(missing_shards(states), LOADING) | missing
        return ShardsView({each.log.shard: self._reader(each.log) for each in found}, states, missing)

    def _reader(self, log: ShardLog) -> RecordReader:
        def histories() -> Histories:
            if self._histories is None:
                from weft.cloud_hub.api.history import Histories  # imports pyarrow, which few nodes without tables need

                self._histories = Histories(log.store, log.cluster, self._monotonic)
            return self._histories

        if self._erasures is None:
            self._erasures = FollowedErasures(log.store, self._monotonic)
        return RecordReader(log, self._response_bytes_max, histories, self._erasures)


def _seen(sequencer: Sequencer) -> FollowedShard:
    state = sequencer.state if sequencer.loaded else None
    return FollowedShard(sequencer.log, state, sequencer.told or LOADING)
