"""Keeper of a hub's lanes: ends lanes of edges that were not seen for the time in the settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import WRONG_NS, ClockWrong, HubClock
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.config.units import approximate_duration
from weft.protocols.chunk import Control, ControlKind
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError

logger = logging.getLogger(__name__)

INTERVAL_S = 3600.0
"""Interval at which lanes are checked."""
SLICE_LANES = 2_000
"""Number of lanes that are looked at without a pause: about a millisecond."""
TWICE_NS = 3_590 * 1_000_000_000
"""Time between two looks that both found a lane silent, before it ends. A clock that is set meanwhile, a store that is
restored or a hub that was down for long shows by then: present edges have sent something."""
PART_MAX, EDGES_FREE = 10, 3
"""A round ends at most one lane in so many of a shard, or those of a few edges. A fleet that falls silent at once is an
outage, or a wrong clock."""
EDGES_NAMED = 5
"""Number of edges that the line of a round names."""
_NS = 1_000_000_000
_NEVER = 1 << 63

TablePosition = Callable[[str, str, int], int | None]
"""Function from tenant, stream and shard to the offset below which all records are in the table; None while unknown."""


class LaneKeeper:
    """The rounds of one hub process. Several may run on one store: the others find the lanes that one has ended.

    Args:
        logs: the logs of all shards.
        held: returns the state of a shard as this process has it, some minutes old at most; None while it has none.
            Only a shard with lanes to end is read from the store.
        position: position of the tables. A lane ends only after all of it is in its table.
        settings: ``retired_after_s`` and ``dropped_after_s``.
        clock: the node's; while it is wrong, no lane ends.
        random_bits: for nonces.
        noted: from act, target and reason, returns the context that writes the lines of a round that retires lanes;
            what it raises prevents the round.
    """

    def __init__(
        self,
        logs: Iterable[ShardLog],
        held: Callable[[int], ShardState | None],
        position: TablePosition,
        settings: HubSettings,
        *,
        clock: HubClock,
        random_bits: Callable[[int], int],
        noted: Callable[[str, str, str], AbstractAsyncContextManager[None]] = lambda *_: nullcontext(),
    ) -> None:
        self._logs = logs
        self._held = held
        self._position = position
        after_s = settings.retired_after_s
        self._retired_after = _NEVER if after_s is None else int(after_s * _NS)
        self._dropped_after = _NEVER if after_s is None else int(settings.dropped_after_s * _NS)
        self._clock = clock
        self._random_bits = random_bits
        self._noted = noted
        self._ends: dict[tuple[str, str, int], tuple[int, int]] = {}
        """Per stream and shard, an end of the log and its time: a table need not reach the present end, which moves
        on."""
        self._restored = max((log.cluster.restored for log in logs), default=0)
        self._silent: dict[int, dict[Lane, int]] = {}
        """Shard -> the lanes that the last look found silent for too long, and the boot time of the first such look."""
        self._lineages: dict[int, tuple[int, ...]] = {}
        """Shard -> itself, and those that had its lanes before."""
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start the rounds."""
        self._task.start(self._run(), name="lane-keeper")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Do one round."""
        self._lineages = {log.shard: log.lineage for log in self._logs}
        for log in self._logs:
            try:
                if not (planned := await self._planned(log.shard)):
                    continue
                async with self._lines(log.shard, planned):
                    ending = await lane_ends.write_ending(
                        log, self._plan, wall_clock=self._clock.sound, random_bits=self._random_bits
                    )
            except (StoreError, CodecError, ClockWrong) as error:
                logger.warning("shard %d: lanes were not looked through: %s", log.shard, error)
                continue
            except Exception:
                # A bug must not end the rounds for good, nor those of the other shards.
                logger.exception("shard %d: lanes were not looked through", log.shard)
                continue
            for control in ending.controls:
                did = "no longer counts" if control.kind == ControlKind.RETIRE else "left the state"
                logger.info("lane %s was not seen for long: it %s", lane_of(control), did)

    async def _planned(self, shard: int) -> Sequence[Control]:
        """Return the ends of this round in a shard, by the state as this process has it."""
        state = self._held(shard)
        return () if state is None else (await self._plan(state)).controls

    def _lines(self, shard: int, planned: Sequence[Control]) -> AbstractAsyncContextManager[None]:
        """Return the context of a round: with lines in the record if lanes retire, as that changes completeness."""
        edges = sorted({f"{each.tenant}/{each.edge}" for each in planned if each.kind == ControlKind.RETIRE})
        if not edges:
            return nullcontext()
        more = f" and {len(edges) - EDGES_NAMED} more" if len(edges) > EDGES_NAMED else ""
        target = f"shard {shard}: lanes of {', '.join(edges[:EDGES_NAMED])}{more}"
        return self._noted(
            "retirement by age", target, f"not seen for {approximate_duration(self._retired_after / _NS)}"
        )

    async def _plan(self, state: ShardState) -> lane_ends.Ending:
        """Return the ends of this round. The state may go on meanwhile: only older silence is found then."""

        def is_tiered(lane: Lane) -> bool:
            return self._is_tiered(state, lane)

        now, found = self._clock.sound(), list[Control]()
        if state.created - now > WRONG_NS:
            logger.error(
                "shard %d: its time is %s in the future, from a wrong clock. Until then its chunks are not collected, "
                "and its lanes do not end: `weft hub clock` shows and lowers it", state.shard,
                approximate_duration((state.created - now) / _NS),
            )  # fmt: skip
        lanes = list(state.lanes)
        for at in range(0, len(lanes), SLICE_LANES):
            part = lanes[at : at + SLICE_LANES]
            ending = lane_ends.by_age(
                state, now, self._retired_after, self._dropped_after, is_tiered, part, restored=self._restored
            )
            found += ending.controls
            await asyncio.sleep(0)
        found = [each for each in found if lane_of(each) in state.lanes]
        drops = [each for each in found if each.kind == ControlKind.DROP and not state.lanes[lane_of(each)].is_empty]
        late = {lane_of(each) for each in drops[lane_ends.DROPS_MAX :]}
        kept = [each for each in found if each.kind != ControlKind.DROP or lane_of(each) not in late]
        return self._bounded(state, self._seen_twice(state, lane_ends.Ending(kept, [])))

    def _seen_twice(self, state: ShardState, found: lane_ends.Ending) -> lane_ends.Ending:
        """Return the ends of lanes that an earlier look found silent, too, and of those that never had anything."""
        now, before = self._clock.boot(), self._silent.get(state.shard, {})
        silent, controls = dict[Lane, int](), []
        for control in found.controls:
            lane = lane_of(control)
            since = silent[lane] = before.get(lane, now)
            if state.lanes[lane].is_empty or now - since >= TWICE_NS:
                controls.append(control)
        self._silent[state.shard] = silent
        return found._replace(controls=controls)

    def _bounded(self, state: ShardState, found: lane_ends.Ending) -> lane_ends.Ending:
        """Return the ends without the retirements, where these are a large part of the shard."""
        retired = [lane_of(control) for control in found.controls if control.kind == ControlKind.RETIRE]
        counted = len(state.lanes) - len(state.retired)
        edges = len({(lane.tenant, lane.edge) for lane in retired})
        if edges <= EDGES_FREE or len(retired) * PART_MAX <= counted:
            return found
        logger.error(
            "shard %d: %d of %d lanes were not seen for long, such as %s. So many are not retired at once: look at the "
            "hub's clock and at the edges. `weft hub retire` ends those that are gone", state.shard, len(retired),
            counted, retired[0],
        )  # fmt: skip
        return found._replace(controls=[each for each in found.controls if each.kind != ControlKind.RETIRE])

    def _is_tiered(self, state: ShardState, lane: Lane) -> bool:
        """Return whether the table has passed an end of each log with records of the lane from after it was last
        seen: a split may have moved it."""
        seen, lineage = state.lanes[lane].last_seen, self._lineages.get(state.shard, (state.shard,))
        above = [self._held(shard) for shard in lineage[1:]]
        return all(each is not None and self._is_passed(each, lane, seen) for each in (state, *above))

    def _is_passed(self, state: ShardState, lane: Lane, seen: int) -> bool:
        key = lane.tenant, lane.stream, state.shard
        end, then = self._ends.get(key, (0, -1))
        if then <= seen or then > state.created:  # later ones were lowered meanwhile
            end = state.next_offset.get((lane.tenant, lane.stream), 0)
            self._ends[key] = end, state.created
        position = self._position(*key)
        return end == 0 or (position is not None and position >= end)
