"""Ends of lanes: a lane leaves completeness (RETIRE), later the state (DROP), and returns unchanged (ADOPT). And the
time of a shard, from which ages count, after a wrong clock (TIME).

These are control records of the log. Any process may write them, whether hub nodes run or not: like all chunks they are
created at the next number, or not at all. Before a DROP the lane's state is stored as an object of its own; a tombstone
with the ranges in the shard's state would be bounded no better than the lane. So an edge that comes back years later
sends only records that the hub never had, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import DOUBTED_NS, WRONG_NS, ClockWrong, HubClock
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.config.units import approximate_duration
from weft.protocols import chunk as chunks
from weft.protocols.batch import decode_header
from weft.protocols.chunk import section_entries
from weft.protocols.chunk_index import (
    CONTROL_BYTES_MAX,
    Chunk,
    ChunkHeader,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    StreamBlock,
    StreamKey,
    StreamSection,
    index_of,
)
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import Lane
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import TimeBody, fold
from weft.protocols.shard.lane_state import (
    ConflictBody,
    LaneState,
    Missing,
    OpenGap,
    RetireBody,
    RetiredBy,
    lane_of,
    open_gap,
)
from weft.protocols.shard.shard_state import Folded, ShardState
from weft.protocols.shard.snapshot import SKIPPED_RUNS_MAX, SKIPS_MAX, SkipBody, SkippedRun
from weft.storage.chunk_log import ShardLog, named_open_gap
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
        # As long as no lane ever left this shard, nothing has to be looked for, and a new lane costs no request.
        if not state.drops:
            return
        wanted = dict.fromkeys(lanes)
        self._found = {lane: kept for lane, kept in self._found.items() if lane in wanted}
        self._decoded = {lane: held for lane, held in self._decoded.items() if lane in self._found}
        # Bounded for each commit: lanes beyond it wait for the next, and are not taken for new ones.
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
    known_end = max(held.ranges.end, newest.seq if newest else 0)
    # Everything below what the lane has spoken of gets a reason, so that completeness has no number that nothing
    # explains.
    gaps = [GapRange(first, end, int(GapReason.OPERATOR)) for first, end in held.ranges.missing(0, known_end)]
    flags = int(LaneFlag.PARTIAL) if held.partial else 0
    return LaneUpdate(*lane, held.epoch, [], gaps, None, None, flags=flags) if gaps else None


async def write_ending(
    log: ShardLog, plan: Plan, *, wall_clock: Callable[[], int], random_bits: Callable[[int], int]
) -> Ending:
    """Write the plan's changes to the log, concurrently with any nodes that write it.

    Args:
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
        # The states are stored before the record that takes the lanes out. In the other order a crash would lose what
        # they held, and a returning edge would be stored twice.
        await _keep_dropped(log, state, ending.controls)
        sets_back = any(control.kind == ControlKind.TIME for control in ending.controls)
        # Times never go back from chunk to chunk, but for the one record that lowers a wrong one.
        created = wall_clock() if sets_back else max(wall_clock(), state.created)
        if await write_chunk(log, state, ending, created, random_bits(64)) is not None:
            return ending  # otherwise the next state shows the remaining changes
    raise StoreError(f"shard {log.shard}: other nodes took {ATTEMPTS_MAX} chunk numbers first: try again")


async def write_chunk(log: ShardLog, state: ShardState, ending: Ending, created: int, nonce: int) -> Folded | None:
    """Write changes of lanes, which may be none, as the next chunk, which has no records.

    Args:
        state: state at the log's head.
        created: nanoseconds since 1970.
        nonce: 64 random bits.

    Returns:
        The chunk's effect; None if another node's chunk, or an earlier attempt of this one, has the number.

    Raises:
        StoreError: the store did not answer.
        Corrupt: the chunk does not fit the state.
    """
    header = ChunkHeader(state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, nonce)
    index = index_of(header, state.fold_level, [], StreamBlock(ending.updates, ending.controls, []))
    tail, crc = chunks.encode_footer(index)
    folded = fold(state, chunks.Chunk(header, index, crc))  # a chunk is permanent: one that does not fit is not written
    try:
        await log.create(header.n, chunks.encode_header(header) + tail)
    except AlreadyExists:
        return None
    manifest, _ = await log.manifest()
    # A process that was paused may have created a number that the collector passed; then nothing has been recorded.
    return folded if manifest.watermark <= header.n else None


async def _keep_dropped(log: ShardLog, state: ShardState, controls: list[Control]) -> None:
    """Store the states of leaving lanes. A second attempt at the same chunk stores the same bytes."""
    lanes = [lane_of(control) for control in controls if control.kind == ControlKind.DROP]
    for at in range(0, len(lanes), LOOK_UPS_AT_ONCE):
        part = lanes[at : at + LOOK_UPS_AT_ONCE]
        await asyncio.gather(*(_keep(log, state, lane) for lane in part))


async def _keep(log: ShardLog, state: ShardState, lane: Lane) -> None:
    kept = kept_state(lane, state.lanes[lane])
    await log.put_ended(lane, state.n, kept)
    # Read back, because create-if-absent says only that a name exists, not with which bytes.
    if await log.ended(lane, state.n) != kept:
        # A log that was rolled back left it under the same name. With it, the lane would return with another state.
        raise Corrupt(f"{ended_key(log.shard, lane, state.n)} is of another history of this log: move it away")


def kept_state(lane: Lane, held: LaneState) -> bytes:
    """Return the bytes of a lane's state that are stored before the lane leaves."""
    return snapshots.encode_lane(snapshots.lane_snapshot(lane, held))


def unheard(held: LaneState, restored: int) -> Missing:
    """Return what is known of a lane that ends: an edge may have continued after its last word, if that was said before
    the store was restored to an earlier state.

    Args:
        restored: moment of that, in nanoseconds since 1970; 0 for never.
    """
    # The lane may have sent records after the backup from which this store was restored.
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
        # A repeated command changes nothing, so that it can be given again after an unclear answer.
        if retired is None or retired.by != RetiredBy.OPERATOR or (said and retired.missing != said):
            ending.controls.append(retirement(lane, RetiredBy.OPERATOR, reason, said))
            lost = given_up(lane, held)
            if lost is not None:
                ending.updates.append(lost)
    return ending


def set_back(state: ShardState, now: int, reason: str) -> Ending:
    """Plan to lower the shard's time to the present; nothing if it is not ahead.

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
        logger.warning("lane %s %s. Open gap: %s", lane, what, named_open_gap(gap).sentence)
    if len(begun) > LOGGED_MAX:
        logger.warning("and %d more lanes have open gaps", len(begun) - LOGGED_MAX)
    closed = []
    for lane, held in folded.lanes.items() if state.retired else ():
        if lane in state.retired and held is not None and held.retired is not None and open_gap(lane, held) is None:
            closed += [lane] if open_gap(lane, state.lanes[lane]) is not None else []
    for key, deletion in folded.forgotten.items():
        logger.warning("shard %d: stream %s/%s was deleted by %s: %s", state.shard, *key, deletion.by, deletion.reason)
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
            # A deleted stream is not brought back by a decision about a lane.
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
        # A token that opens lanes and says nothing would otherwise fill the state. An hour is longer than any pause of
        # an edge between opening and first record.
        if held.is_empty and held.conflict is None and silent > EMPTY_NS:
            ending.controls.append(Control(ControlKind.DROP, *lane, b""))
        # Not before its records are in the table: a retired lane no longer holds the log back.
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


# Keeper of a hub's lanes: ends lanes of edges that were not seen for the time in the settings.

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
        """Return the ends of this round. The state may continue meanwhile: only older silence is found then."""

        def is_tiered(lane: Lane) -> bool:
            return self._is_tiered(state, lane)

        now, found = self._clock.sound(), list[Control]()
        if state.created - now > WRONG_NS:
            logger.error(
                "shard %d: its time is %s in the future, from a wrong clock. Until then its chunks are not collected, "
                "and its lanes do not end: `weft hub clock` shows and lowers it",
                state.shard,
                approximate_duration((state.created - now) / _NS),
            )
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
            # By a clock that no one sets: a single jump of the wall clock must not retire a fleet. A lane has to be
            # found silent in two rounds.
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
        # Many edges that fall silent together are an outage or a wrong clock of the hub, and not many machines that
        # were scrapped on one day.
        if edges <= EDGES_FREE or len(retired) * PART_MAX <= counted:
            return found
        logger.error(
            "shard %d: %d of %d lanes were not seen for long, such as %s. So many are not retired at once: look at the "
            "hub's clock and at the edges. `weft hub retire` ends those that are gone",
            state.shard,
            len(retired),
            counted,
            retired[0],
        )
        return found._replace(controls=[each for each in found.controls if each.kind != ControlKind.RETIRE])

    def _is_tiered(self, state: ShardState, lane: Lane) -> bool:
        """Return whether the table has passed an end of each log with records of the lane from after it was last
        seen: a split may have moved it."""
        seen, lineage = state.lanes[lane].last_seen, self._lineages.get(state.shard, (state.shard,))
        # After a split the older records of a lane are in the parent's log, whose table position counts, too.
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


# Conflicts of identity as control records of the log: a second node claims a lane's log, and completeness stops.
#
# A refused opening alone is not a conflict: a connection that its edge dropped long ago may also arrive late, and is
# refused in the same way. So a conflict is recorded only when the refused node has answered the refusal.


def conflicts(state: ShardState, refused: Mapping[Lane, int], reason: str) -> list[Control]:
    """Return the control records of refused claims that the log lacks: one for each lane, until an operator has
    decided.

    Args:
        refused: lane -> the refused epoch.
        reason: for people; the refused node got the same.
    """
    found = []
    for lane, epoch in refused.items():
        held = state.lanes.get(lane)
        # The state may have moved on since the refusal: an operator may have decided, or the node may have got a higher
        # epoch.
        if held is not None and held.conflict is None and epoch <= held.epoch:
            body = msgspec.msgpack.encode(ConflictBody(epoch, reason))
            found.append(Control(ControlKind.CONFLICT, *lane, body))
    return found


async def note_conflicts(
    log: ShardLog,
    refused: Mapping[Lane, int],
    reason: str,
    *,
    wall_clock: Callable[[], int],
    random_bits: Callable[[int], int],
) -> None:
    """Write the control records of refused claims, concurrently with the nodes that write the shard. A failing store is
    not an error: the node will be refused again, and then recorded.

    Args:
        refused: lane -> the refused epoch.
        reason: for people; the refused node got the same.
    """

    async def plan(state: ShardState) -> Ending:
        return Ending(conflicts(state, refused, reason), [])

    try:
        ending = await write_ending(log, plan, wall_clock=wall_clock, random_bits=random_bits)
    except (StoreError, CodecError, ClockWrong) as error:
        logger.warning("shard %d: a conflict was not noted: %s", log.shard, error)
        return
    for control in ending.controls:
        lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
        logger.warning("lane %s: completeness is held back until an operator decides: %s", lane, reason)


# Offsets that an operator skips in a stream's table: their records cannot become rows (``weft hub skip``).
#
# The log has the range as a SKIP record, with its records and the reason. Every hub node that makes rows skips it,
# and completeness and audit report it.


class CannotSkip(Exception):
    """A range that cannot be skipped."""


async def skip(  # noqa: PLR0917
    state: ShardState, log: ShardLog, stream: StreamKey, first: int, end: int, reason: str
) -> Ending:
    """Plan to skip offsets ``[first, end)`` in a stream's table; nothing if they are skipped already.

    Raises:
        CannotSkip: the log does not have all of them, some are skipped already, or their records cannot be identified.
        StoreError, Corrupt: the log cannot be read.
    """
    log_end = state.next_offset.get(stream, 0)
    if not first < end <= log_end:
        raise CannotSkip(f"shard {log.shard} has offsets 0 to {log_end} of the stream, not {first} to {end}")
    known = state.skips.get(stream, [])
    # Repeating the command is harmless. The first record about an offset counts in every fold.
    if any(other.first <= first and end <= other.end for other in known):
        return Ending([], [])
    for other in known:
        if first < other.end and other.first < end:
            raise CannotSkip(f"offsets {other.first} to {other.end} are skipped already: leave them out")
    if len(known) >= SKIPS_MAX:
        raise CannotSkip(f"the stream has {SKIPS_MAX} skipped ranges, its limit; skip longer ranges")
    # The records are named with the offsets, so that the audit can subtract exactly those from what the edges sent.
    runs = await _runs(log, stream, first, end)
    if len(runs) > SKIPPED_RUNS_MAX:
        raise CannotSkip(f"these offsets are {len(runs)} runs of records; skip at most {SKIPPED_RUNS_MAX} at a time")
    body = msgspec.msgpack.encode(SkipBody(first, end, reason, runs))
    return Ending([Control(ControlKind.SKIP, stream[0], "", 0, stream[1], body)], [])


async def _runs(log: ShardLog, stream: StreamKey, first: int, end: int) -> list[SkippedRun]:
    """Return the records of ``[first, end)``, neighbours joined. Chunks that the collector deleted say none: of these
    records only the offsets are known."""
    joined: list[SkippedRun] = []
    begin = max(await log.locate(*stream, first), log.watermark)
    async for chunk in log.indexes(begin, only=frozenset([stream])):
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) != stream or section.base_offset + section.count <= first:
                continue
            if section.base_offset >= end:
                return joined
            for run in await _section_runs(log, chunk, section, first, end):
                last = joined[-1] if joined else None
                if last is not None and (last.edge, last.log_id, last.end) == (run.edge, run.log_id, run.first):
                    joined[-1] = msgspec.structs.replace(last, end=run.end)
                else:
                    joined.append(run)
            if section.base_offset + section.count >= end:
                return joined
    return joined


async def _section_runs(
    log: ShardLog, chunk: Chunk, section: StreamSection, first: int, end: int
) -> Iterable[SkippedRun]:
    after = section.base_offset + section.count
    if first <= section.base_offset and after <= end:
        # The index has all records of the section, which itself may be unreadable.
        return _indexed(chunk.footer.lanes_of(section), section)
    try:
        data = await log.section(chunk.header.n, section)
        return list(_entries(section, data, chunk.footer.lanes_of(section), first, end))
    except CodecError as error:
        raise CannotSkip(
            f"{error}. Which of its records these are is unknown: skip all of them, offsets "
            f"{section.base_offset} to {after}"
        ) from error


def _indexed(lanes: Iterable[LaneUpdate], section: StreamSection) -> Iterator[SkippedRun]:
    for lane in lanes:
        if (lane.tenant, lane.stream) == (section.tenant, section.stream):
            for first, end in lane.ranges:
                yield SkippedRun(lane.edge, lane.log_id, first, end)


def _entries(
    section: StreamSection, data: bytes, lanes: Sequence[LaneUpdate], first: int, end: int
) -> Iterator[SkippedRun]:
    at = section.base_offset
    for entry in section_entries(section, data, lanes):
        start, stop = max(first, at), min(end, at + entry.take)
        if start < stop:
            # Offset and sequence number count up together within an entry.
            base = decode_header(entry.batch).base_seq + entry.skip - at
            lane = lanes[entry.lane]
            yield SkippedRun(lane.edge, lane.log_id, base + start, base + stop)
        at += entry.take
