"""Keeper of a hub's lanes: ends those of edges that were not seen for long, as the settings say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.protocols.chunk import ControlKind
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError

logger = logging.getLogger(__name__)

INTERVAL_S = 3600.0
"""Interval at which lanes are looked through. A round reads the state of every shard once."""
_NS = 1_000_000_000
_NEVER = 1 << 63

TablePosition = Callable[[str, str, int], int | None]
"""From tenant, stream and shard: the offset below which all records are in the table; None while that is unknown."""


class LaneKeeper:
    """The rounds of one hub process. Several may run on one store: what one has ended, the others find ended.

    Args:
        logs: the logs of all shards.
        position: how far the tables are. A lane ends only after all of it is in its table.
        settings: ``retired_after_s`` and ``dropped_after_s``.
        wall_clock: nanoseconds since 1970.
        random_bits: for nonces.
    """

    def __init__(
        self,
        logs: Sequence[ShardLog],
        position: TablePosition,
        settings: HubSettings,
        *,
        wall_clock: Callable[[], int],
        random_bits: Callable[[int], int],
    ) -> None:
        self._logs = logs
        self._position = position
        after_s = settings.retired_after_s
        self._retired_after = _NEVER if after_s is None else int(after_s * _NS)
        self._dropped_after = _NEVER if after_s is None else int(settings.dropped_after_s * _NS)
        self._wall_clock = wall_clock
        self._random_bits = random_bits
        self._ends: dict[tuple[str, str, int], tuple[int, int]] = {}
        """Per stream and shard, an end that the log had, and when: a table need not reach an end that moves on."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.create_task(self._run(), name="lane-keeper")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Do one round."""
        for log in self._logs:
            try:
                ending = await lane_ends.write_ending(
                    log, self._plan, wall_clock=self._wall_clock, random_bits=self._random_bits
                )
            except (StoreError, CodecError) as error:
                logger.warning("shard %d: lanes were not looked through: %s", log.shard, error)
                continue
            except Exception:
                # A mistake of ours must not end the rounds for good, nor those of the other shards.
                logger.exception("shard %d: lanes were not looked through", log.shard)
                continue
            for control in ending.controls:
                did = "no longer counts" if control.kind == ControlKind.RETIRE else "left the state"
                lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
                logger.info("lane %s was not seen for long: it %s", lane, did)

    async def _plan(self, state: ShardState) -> lane_ends.Ending:
        def is_tiered(lane: Lane) -> bool:
            return self._is_tiered(state, lane)

        return lane_ends.by_age(state, self._wall_clock(), self._retired_after, self._dropped_after, is_tiered)

    def _is_tiered(self, state: ShardState, lane: Lane) -> bool:
        """Return whether the table has come past an end that the log had after the lane was last seen."""
        key = lane.tenant, lane.stream, state.shard
        end, then = self._ends.get(key, (0, -1))
        if then <= state.lanes[lane].last_seen:
            end = state.next_offset.get((lane.tenant, lane.stream), 0)
            self._ends[key] = end, state.created
        position = self._position(*key)
        return end == 0 or (position is not None and position >= end)
