"""Ends of lanes: a lane leaves completeness (RETIRE), later the state (DROP), and returns unchanged (ADOPT). And the
time of a shard, from which ages count, after a wrong clock (TIME).

These are control records of the log. Any process may write them, whether hub nodes run or not: like all chunks they are
created at the next number, or not at all. Before a DROP the lane's state is stored as an object of its own. So an edge
that comes back years later sends only records that the hub never had, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from weft.cloud_hub.clock import DOUBTED_NS
from weft.protocols import chunk as chunks
from weft.protocols.chunk import (
    ChunkFooter,
    ChunkHeader,
    ChunkIndex,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    StreamBlock,
    blocked,
)
from weft.protocols.chunk_index.footer import BLOCKS_LEVEL, CONTROL_BYTES_MAX
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import fold
from weft.protocols.shard.lane_state import LaneState, Missing, RetiredBy, lane_of
from weft.protocols.shard.lowered_times import TimeBody
from weft.protocols.shard.open_gaps import OpenGap, open_gap
from weft.protocols.shard.shard_state import Folded, RetireBody, ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.chunks.open_gaps import named
from weft.storage.hub_keys import ended_key
from weft.storage.object_store import AlreadyExists, StoreError

logger = logging.getLogger(__name__)

EMPTY_NS = 3600 * 10**9
"""Age at which an empty lane, of which only the existence is known, leaves the state. Edges send something each
minute."""
LOOK_UPS_MAX, LOOK_UPS_AT_ONCE = 1024, 64
"""Maximum number of lanes looked up in the store before one commit, and at one time."""
DROPS_MAX = 128
"""Maximum number of retired lanes that leave the state in one round: each may leave an open gap with its stream, which
takes a part of a millisecond of every node's event loop. The others leave in the next rounds."""
LOGGED_MAX = 10
"""Maximum number of lanes of one chunk in log lines."""
ATTEMPTS_MAX = 100
"""Maximum number of attempts at chunk numbers that other nodes may take first. Each attempt is one round trip behind
them."""


class Ending(NamedTuple):
    """Changes of lanes, for one chunk."""

    controls: list[Control]
    updates: list[LaneUpdate]


Plan = Callable[[ShardState], Awaitable[Ending]]
"""Function from the state at the log's head to the changes; none if there is nothing to do."""


class EndedLanes:
    """Lanes that left the state and have a link again, with the results of their look-up. Part of one sequencer."""

    def __init__(self, log: ShardLog) -> None:
        self._log = log
        self._found: dict[Lane, bytes | None] = {}
        self._decoded: dict[Lane, LaneState] = {}
        """Decoded states of the requested lanes."""

    async def look_up(self, state: ShardState, lanes: Iterable[Lane]) -> None:
        """Look up the stored states of lanes that are not in the state, of a limited number, so that the commit of
        others hardly waits.

        Args:
            lanes: the lanes with pending items. Results for any other lanes are forgotten.

        Raises:
            StoreError: the store did not answer.
        """
        if not state.drops:
            return
        wanted = dict.fromkeys(lanes)
        self._found = {lane: kept for lane, kept in self._found.items() if lane in wanted}
        self._decoded = {lane: held for lane, held in self._decoded.items() if lane in self._found}
        unknown = [lane for lane in wanted if self._unknown(state, lane)][:LOOK_UPS_MAX]
        for at in range(0, len(unknown), LOOK_UPS_AT_ONCE):
            part = unknown[at : at + LOOK_UPS_AT_ONCE]
            kept = await asyncio.gather(*(self._log.ended(lane, state.n) for lane in part))
            self._found.update(zip(part, kept, strict=True))

    def is_open(self, state: ShardState, lane: Lane) -> bool:
        """Return whether a lane still has to be looked up: until then nothing may be added to it."""
        return self._unknown(state, lane)

    def get(self, state: ShardState, lane: Lane) -> bytes | None:
        """Return the stored state of a lane that is not in the state; None without one."""
        return None if lane in state.lanes else self._found.get(lane)

    def state(self, state: ShardState, lane: Lane) -> LaneState | None:
        """Return the state of a lane that left, if it was looked up. The caller must not change it."""
        body = self.get(state, lane)
        if body is not None and lane not in self._decoded:
            self._decoded[lane] = snapshots.lane_state(snapshots.decode_lane(body))
        return None if body is None else self._decoded[lane]

    def states(self, state: ShardState, lanes: Iterable[Lane]) -> list[tuple[Lane, LaneState]]:
        """Return the states of the lanes that left, as far as they were looked up."""
        if not state.drops:
            return []
        kept = ((lane, self.state(state, lane)) for lane in dict.fromkeys(lanes))
        return [(lane, held) for lane, held in kept if held is not None]

    def forget(self, lanes: Iterable[Lane]) -> None:
        """Forget lanes that a chunk changed: they are back, or left again."""
        for lane in lanes if self._found else ():
            self._found.pop(lane, None)
            self._decoded.pop(lane, None)

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()
        self._decoded.clear()

    def _unknown(self, state: ShardState, lane: Lane) -> bool:
        return bool(state.drops) and lane not in state.lanes and lane not in self._found


def adoption(lane: Lane, body: bytes = b"") -> Control:
    """Return the control record that makes a lane count again; with ``body``, it restores a lane that left the
    state."""
    return Control(ControlKind.ADOPT, *lane, body)


def retirement(lane: Lane, by: RetiredBy, reason: str, missing: Missing = Missing.UNSAID) -> Control:
    """Return the control record that removes a lane from completeness."""
    return Control(ControlKind.RETIRE, *lane, msgspec.msgpack.encode(RetireBody(by, reason, missing)))


def given_up(lane: Lane, held: LaneState) -> LaneUpdate | None:
    """Return the gap notices, with reason OPERATOR, for all records that the edge announced and never sent; None
    without any."""
    newest = held.newest_mark
    told = max(held.ranges.end, newest.seq if newest else 0)
    gaps = [GapRange(first, end, int(GapReason.OPERATOR)) for first, end in held.ranges.missing(0, told)]
    flags = int(LaneFlag.PARTIAL) if held.partial else 0
    return LaneUpdate(*lane, held.epoch, [], gaps, None, None, flags=flags) if gaps else None


async def write_ending(
    log: ShardLog,
    plan: Plan,
    *,
    wall_clock: Callable[[], int],
    random_bits: Callable[[int], int],
    level: int = 1,
) -> Ending:
    """Write the plan's changes to the log, concurrently with any nodes that write it.

    Args:
        level: the cluster's level as far as the changes need it; the log may have a higher one.
        wall_clock: nanoseconds since 1970. It raises what makes the call end before anything is written.
        random_bits: for the chunk's nonce.

    Returns:
        The changes of this call; none if the plan found nothing to do.

    Raises:
        StoreError: the store did not answer; call again.
        Corrupt: the shard is damaged.
    """
    for _ in range(ATTEMPTS_MAX):
        state = await log.load()
        ending = await plan(state)
        if not ending.controls and not ending.updates:
            return ending
        await _keep_dropped(log, state, ending.controls)
        sets_back = any(control.kind == ControlKind.TIME for control in ending.controls)
        created = wall_clock() if sets_back else max(wall_clock(), state.created)
        header = ChunkHeader(state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, random_bits(64))
        footer: ChunkIndex
        written = max(level, state.fold_level)
        if written < BLOCKS_LEVEL:
            footer = ChunkFooter(header, 0, written, [], ending.updates, ending.controls)
        else:
            footer = blocked(header, written, [], StreamBlock(ending.updates, ending.controls, []))
        tail, crc = chunks.encode_footer(footer)
        fold(state, chunks.Chunk(header, footer, crc))  # a chunk is permanent: one that does not fit is not written
        try:
            await log.create(header.n, chunks.encode_header(header) + tail)
        except AlreadyExists:
            continue  # another node's chunk, or this one's earlier attempt: the next state shows the remaining changes
        manifest, _ = await log.manifest()
        if manifest.watermark <= header.n:
            return ending
    raise StoreError(f"shard {log.shard}: other nodes took {ATTEMPTS_MAX} chunk numbers first: try again")


async def _keep_dropped(log: ShardLog, state: ShardState, controls: list[Control]) -> None:
    """Store the states of leaving lanes. A second attempt at the same chunk stores the same bytes."""
    lanes = [lane_of(control) for control in controls if control.kind == ControlKind.DROP]
    for at in range(0, len(lanes), LOOK_UPS_AT_ONCE):
        part = lanes[at : at + LOOK_UPS_AT_ONCE]
        await asyncio.gather(*(_keep(log, state, lane) for lane in part))


async def _keep(log: ShardLog, state: ShardState, lane: Lane) -> None:
    kept = kept_state(lane, state.lanes[lane])
    await log.put_ended(lane, state.n, kept)
    if await log.ended(lane, state.n) != kept:
        # A log that was rolled back left it under the same name. With it, the lane would return with another state.
        raise Corrupt(f"{ended_key(log.shard, lane, state.n)} is of another history of this log: move it away")


def kept_state(lane: Lane, held: LaneState) -> bytes:
    """Return the bytes of a lane's state that are stored before the lane leaves."""
    return snapshots.encode_lane(snapshots.lane_snapshot(lane, held))


def unheard(held: LaneState, restored: int) -> Missing:
    """Return what is known of a lane that ends: an edge may have gone on after its last word, if that was said before
    the store was restored to an earlier state.

    Args:
        restored: moment of that, in nanoseconds since 1970; 0 for never.
    """
    return Missing.UNKNOWN if held.last_seen < restored and held.last_word is not None else Missing.UNSAID


async def retire(
    state: ShardState, lanes: Iterable[Lane], reason: str, missing: Missing = Missing.UNSAID, restored: int = 0
) -> Ending:
    """Plan an operator's retirement of lanes: remove them from completeness, and record missing records as gaps.

    Args:
        missing: the operator's statement about records that the hub never got. It may be given later, too.
        restored: as of ``unheard``.
    """
    ending = Ending([], [])
    for lane in lanes:
        held = state.lanes.get(lane)
        if held is None:
            continue  # it has left the state, and does not count
        retired = held.retired
        said = missing or (unheard(held, restored) if retired is None else Missing.UNSAID)
        if retired is None or retired.by != RetiredBy.OPERATOR or (said and retired.missing != said):
            ending.controls.append(retirement(lane, RetiredBy.OPERATOR, reason, said))
            lost = given_up(lane, held)
            if lost is not None:
                ending.updates.append(lost)
    return ending


def set_back(state: ShardState, now: int, reason: str) -> Ending:
    """Plan to lower the shard's time to the present; nothing if it is not ahead. The cluster has to be at
    ``BLOCKS_LEVEL``: earlier releases pass over the record.

    Args:
        now: nanoseconds since 1970, by a clock that was held against the store's.
    """
    if state.created - now <= DOUBTED_NS:
        return Ending([], [])
    body = msgspec.msgpack.encode(TimeBody(now, reason))
    return Ending([Control(ControlKind.TIME, "", "", 0, "", body)], [])


def open_gaps(state: ShardState, lanes: Iterable[Lane]) -> list[tuple[Lane, OpenGap]]:
    """Return the open gaps of lanes: of their retirement, and of nodes that an operator rejected."""
    found = []
    for lane in dict.fromkeys(lanes):
        held = state.lanes.get(lane)
        if held is not None and (gap := open_gap(lane, held)) is not None:
            found.append((lane, gap))
        kept = state.open_gaps.get((lane.tenant, lane.stream), ())
        found += [(lane, gap) for gap in kept if (gap.edge, gap.log_id) == (lane.edge, lane.log_id)]
    return found


def log_ends(state: ShardState, folded: Folded) -> None:
    """Log a chunk's changes of retired lanes: new open gaps, and closed ones.

    Args:
        state: the state before the chunk.
    """
    begun = []
    for control in folded.chunk.footer.controls:
        lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
        held = folded.lanes.get(lane)
        if control.kind == ControlKind.RETIRE and held is not None and (gap := open_gap(lane, held)) is not None:
            begun.append((lane, "is retired", gap))
        elif control.kind == ControlKind.ADOPT:
            kept = folded.open_gaps.get((lane.tenant, lane.stream), ())
            mine = [gap for gap in kept if gap.forked and (gap.edge, gap.log_id) == (lane.edge, lane.log_id)]
            begun += [(lane, "is decided about", gap) for gap in mine]
    for lane, what, gap in begun[:LOGGED_MAX]:
        logger.warning("lane %s %s. Open gap: %s", lane, what, named(gap).sentence)
    if len(begun) > LOGGED_MAX:
        logger.warning("and %d more lanes have open gaps", len(begun) - LOGGED_MAX)
    closed = []
    for lane, held in folded.lanes.items() if state.retired else ():
        if lane in state.retired and held is not None and held.retired is not None and open_gap(lane, held) is None:
            closed += [lane] if open_gap(lane, state.lanes[lane]) is not None else []
    for key, told in folded.forgotten.items():
        logger.warning("shard %d: stream %s/%s was deleted by %s: %s", state.shard, *key, told.by, told.reason)
    for lane in closed[:LOGGED_MAX]:
        logger.info("lane %s delivered what it had: its open gap is closed", lane)


async def adopt(state: ShardState, log: ShardLog, lanes: Iterable[Lane], missing: Missing = Missing.UNSAID) -> Ending:
    """Plan to make lanes count again, including those that left the state.

    Args:
        missing: the operator's statement about records of a rejected node.
    """
    ending = Ending([], [])
    for lane in lanes:
        held = state.lanes.get(lane)
        if held is None:
            if (lane.tenant, lane.stream) in state.forgotten:
                continue  # the lane of a deleted stream returns when its edge sends again
            kept = await log.ended(lane, state.n)
            ending.controls.extend([adoption(lane, kept), adoption(lane)] if kept is not None else [])
        elif held.retired is not None or held.conflict is not None or missing:
            ending.controls.append(adoption(lane))
            if missing:
                said = retirement(lane, RetiredBy.OPERATOR, "", missing)
                ending.controls.extend([said, adoption(lane)])
    return ending


def by_age(  # noqa: PLR0917
    state: ShardState,
    now: int,
    retired_after: int,
    dropped_after: int,
    is_tiered: Callable[[Lane], bool],
    lanes: Iterable[Lane] | None = None,
    *,
    restored: int = 0,
) -> Ending:
    """Plan the ends of lanes that were not seen for long and have all records in tables, and of empty ones.

    Args:
        now: nanoseconds since 1970 by the hub's clock.
        retired_after: nanoseconds without a sign of a lane after which it no longer counts.
        dropped_after: further nanoseconds after which it leaves the state.
        lanes: the lanes to look at; None for all.
        restored: as of ``unheard``.
    """
    ending, drops = Ending([], []), 0
    if not state.is_whole:
        return ending  # a later release has more facts about these lanes than this one would store
    for lane in state.lanes if lanes is None else lanes:
        held = state.lanes.get(lane)
        if held is None:
            continue
        silent = now - held.last_seen
        if held.is_empty and held.conflict is None and silent > EMPTY_NS:
            ending.controls.append(Control(ControlKind.DROP, *lane, b""))
        elif held.retired is None and silent > retired_after and is_tiered(lane):
            days = retired_after // (86_400 * 1_000_000_000)
            said = unheard(held, restored)
            ending.controls.append(retirement(lane, RetiredBy.AGE, f"not seen for {days} days", said))
        elif held.retired is not None and min(silent, now - held.retired.time) > dropped_after and is_tiered(lane):
            # A lane remains if no control record has room for its state, since it could not return.
            leaves = drops < DROPS_MAX and len(kept_state(lane, held)) <= CONTROL_BYTES_MAX
            ending.controls.extend([Control(ControlKind.DROP, *lane, b"")] if leaves else [])
            drops += leaves
    return ending
