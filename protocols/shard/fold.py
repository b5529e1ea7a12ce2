"""Effect of a chunk on a shard's state, which it does not change (docs/reference/formats/shard-state.md)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple, cast

from weft.protocols.chunk_index.footer import (
    BLOCKS_LEVEL,
    Chunk,
    ClockUpdate,
    Control,
    ControlKind,
    LaneFlag,
    LaneUpdate,
    StreamKey,
    StreamSection,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.apart import APART_LEVEL, after_apart
from weft.protocols.shard.folded import BOOTS_MAX, Folded
from weft.protocols.shard.forgotten import FORGET_LEVEL, forgotten
from weft.protocols.shard.lane_controls import controlled
from weft.protocols.shard.lane_state import NOTHING, LaneState, lane_of
from weft.protocols.shard.lowered_times import lowered_gaps, lowered_lane, lowered_skips, told_time
from weft.protocols.shard.open_gaps import after_control
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import BootClock
from weft.protocols.shard.splits import SPLIT_LEVEL, Split, in_order, is_moving, moved_to, moving, seal_of
from weft.protocols.topics import named_levels

_PARTIAL, _RELAY = int(LaneFlag.PARTIAL), int(LaneFlag.RELAY)
STEP_LANES = 4096
"""Number of lanes whose times are lowered in one step: some milliseconds."""


class Followed(NamedTuple):
    """The part of a chunk's index that a state follows."""

    sections: Sequence[StreamSection]
    controls: Sequence[Control]
    lanes: Sequence[LaneUpdate]
    clocks: Sequence[ClockUpdate]


def apply(state: ShardState, chunk: Chunk) -> None:
    """Apply chunk ``n + 1`` to the state. A refused chunk changes nothing. Raises as ``fold``."""
    state.accept(fold(state, chunk))


def fold(state: ShardState, chunk: Chunk) -> Folded:
    """Return the effect of chunk ``n + 1`` on the state, which is not changed. Raises as ``folding``."""
    steps = folding(state, chunk)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Folded", end.value)


def folding(state: ShardState, chunk: Chunk) -> Generator[None, None, Folded]:
    """Return the effect of chunk ``n + 1`` on the state, which is not changed, and must not be until the end. Yields
    where a control record takes long, so that a caller can do other work between the steps: a TIME record visits every
    lane of the shard.

    Raises:
        Corrupt: it is not the next chunk of this shard's history, an offset does not continue its stream, it holds
            records that the shard has already, or a control record does not fit.
        ValueError: the chunk's index was read without streams that the state follows.
    """
    told = _followed(chunk, state.only)
    _check(state, chunk, told.sections)
    created = max(state.created, chunk.header.created)
    folded = Folded(chunk, created, told.sections)
    for control in told.controls:
        if control.kind == ControlKind.TIME:
            yield from _set_back(state, folded, control)
        elif control.kind == ControlKind.SEAL:
            yield from _seal(state, folded, told, control)
        elif control.kind == ControlKind.APART:
            _set_apart(state, folded, told, control)
        else:
            _fold_control(state, folded, control)
    created = folded.created
    lanes, changed = state.lanes, folded.lanes
    for update in told.lanes:  # most of the work of a hub and of its followers
        lane = lane_of(update)
        known = None if lane in changed else lanes.get(lane)
        grown = None if known is None else known.grown(update, created)
        if grown is not None:  # nearly always
            changed[lane] = grown
        else:
            _fold_lane(state, folded, lane, update)
    for control in told.controls:
        if control.kind == ControlKind.FORGET and chunk.footer.fold_level >= FORGET_LEVEL:
            _forget(state, folded, control)
    for clock in told.clocks:
        log = (clock.tenant, clock.edge, clock.log_id)
        boots = folded.clocks.get(log, state.clocks.get(log, []))
        others = [boot for boot in boots if boot.boot_id != clock.boot_id]
        found = BootClock(clock.boot_id, clock.monotonic, clock.offset, clock.error)
        folded.clocks[log] = [*others, found][-BOOTS_MAX:]
    for number, data in chunk.footer.extensions.items():
        if state.only is None and number in state.rules.extensions:
            folded.extensions[number] = state.rules.extensions[number].look(state.extension(number), data)
    return folded


def _followed(chunk: Chunk, only: Collection[StreamKey] | None) -> Followed:
    footer = chunk.footer
    if footer.only is not None and (only is None or not footer.only.issuperset(only)):
        raise ValueError(f"chunk {chunk.header.n} was read without streams that the state follows")
    if only is None or (footer.only is not None and len(footer.only) == len(only)):
        return Followed(footer.streams, footer.controls, footer.lanes, footer.clocks if only is None else ())
    return Followed(
        [each for each in footer.streams if (each.tenant, each.stream) in only],
        [each for each in footer.controls if not each.stream or (each.tenant, each.stream) in only],
        [each for each in footer.lanes if (each.tenant, each.stream) in only],
        (),
    )


def _check(state: ShardState, chunk: Chunk, sections: Sequence[StreamSection]) -> None:
    header = chunk.header
    if (header.cluster_id, header.shard, header.n) != (state.cluster_id, state.shard, state.n + 1):
        raise Corrupt(
            f"expected chunk {state.n + 1} of shard {state.shard}, cluster {state.cluster_id.hex()}; found chunk "
            f"{header.n} of shard {header.shard}, cluster {header.cluster_id.hex()}"
        )
    if header.previous_footer_crc != state.footer_crc:
        raise Corrupt(f"chunk {header.n} of shard {state.shard} continues another history")
    for section in sections:
        expected = state.next_offset.get((section.tenant, section.stream), 0)
        if section.base_offset != expected:
            raise Corrupt(
                f"chunk {header.n}: {section.tenant}/{section.stream} starts at offset {section.base_offset}, "
                f"{expected} is the next"
            )


def _fold_control(state: ShardState, folded: Folded, control: Control) -> None:
    if control.kind == ControlKind.SKIP:
        key = control.tenant, control.stream
        known = folded.skips.get(key, state.skips.get(key, []))
        folded.skips[key] = snapshots.with_skip(known, control.body, state.next_offset.get(key, 0), folded.created)
        return
    if control.kind == ControlKind.FORGET:
        return  # it takes effect after the chunk's other changes
    lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
    held = folded.lanes[lane] if lane in folded.lanes else state.lanes.get(lane)
    new = controlled(control, lane, held, folded.created, folded.chunk.header.n)
    if new is held:
        return
    if held is None:
        _check_here(state, folded, lane)
    if held is None and new is not None and _has_time(state, folded.chunk):
        new = lowered_lane(new, folded.created)  # it left before its shard's time was lowered
    folded.lanes[lane] = new
    folded.others.add(lane)
    if new is None:
        folded.drops += 1
    key = lane.tenant, lane.stream
    gaps = folded.open_gaps.get(key, state.open_gaps.get(key, []))
    kept = list(after_control(gaps, lane, held, new, folded.created))
    if kept != gaps:
        folded.open_gaps[key] = kept
    if held is None and new is not None and folded.chunk.footer.fold_level >= FORGET_LEVEL:
        # A FORGET may have removed the stream's levels since. Otherwise they are there, or there is no room for them.
        _fold_fields(state, folded, lane, new.topics)


def _forget(state: ShardState, folded: Folded, control: Control) -> None:
    """Remove a stream; it remains unchanged if a lane of it would be in the state after the chunk."""
    key, changed = (control.tenant, control.stream), folded.lanes
    if any(changed.get(lane, NOTHING) is not None for lane in state.stream_lane_names(*key)):
        return
    if any(held is not None and (lane.tenant, lane.stream) == key for lane, held in changed.items()):
        return
    folded.forgotten[key] = forgotten(control.body, folded.created)


def _has_time(state: ShardState, chunk: Chunk) -> bool:
    """Return whether the log has the level of TIME records."""
    return max(state.fold_level, chunk.footer.fold_level) >= BLOCKS_LEVEL


def _set_back(state: ShardState, folded: Folded, control: Control) -> Generator[None, None, None]:
    """Lower the shard's time, and all later times of the hub's clock. About a microsecond for each lane, once. Yields
    after each ``STEP_LANES`` of them."""
    time = told_time(control, folded.chunk.header.created)
    if time >= folded.created or not _has_time(state, folded.chunk):
        return
    folded.created = time
    for count, (lane, known) in enumerate(state.lanes.items(), 1):
        if count % STEP_LANES == 0:
            yield
        held = folded.lanes.get(lane, known)
        if held is not None and (new := lowered_lane(held, time)) is not held:
            folded.lanes[lane] = new
    folded.skips |= {key: lowered_skips(skips, time) for key, skips in (state.skips | folded.skips).items()}
    folded.open_gaps |= {key: lowered_gaps(gaps, time) for key, gaps in (state.open_gaps | folded.open_gaps).items()}


def _seal(state: ShardState, folded: Folded, told: Followed, control: Control) -> Generator[None, None, None]:
    """Take the edges of one half out of the shard: they are in the new one. Yields as ``_set_back``."""
    chunk = folded.chunk
    if chunk.footer.fold_level < SPLIT_LEVEL:
        return
    seal, n = seal_of(control.body), chunk.header.n
    if told.sections or told.lanes or told.clocks or len(told.controls) > 1:
        raise Corrupt(f"chunk {n} of shard {state.shard} has a SEAL record and other things")
    if not in_order(state.splits, seal, state.shard):
        raise Corrupt(f"chunk {n} of shard {state.shard} splits it to shard {seal.shard} a second time, or too late")
    count = 0
    for edge in moving(state.edge_names(), seal.bit):
        for lane in state.edge_lane_names(*edge):
            folded.lanes[lane] = None
            folded.others.add(lane)
            count += 1
            if count % STEP_LANES == 0:
                yield
    for key, gaps in state.open_gaps.items():
        kept = [gap for gap in gaps if not is_moving(key[0], gap.edge, seal.bit)]
        if len(kept) < len(gaps):
            folded.open_gaps[key] = kept
    folded.split = Split(seal.shard, seal.bit, n, seal.nonce)


def _set_apart(state: ShardState, folded: Folded, told: Followed, control: Control) -> None:
    """Take nothing of a tenant from here on, which gets a shard of its own; or take it again."""
    if folded.chunk.footer.fold_level < APART_LEVEL:
        return
    n = folded.chunk.header.n
    if told.sections or told.lanes or told.clocks or len(told.controls) > 1:
        raise Corrupt(f"chunk {n} of shard {state.shard} has an APART record and other things")
    folded.apart = after_apart(state, control, n)


def _check_here(state: ShardState, folded: Folded, lane: Lane) -> None:
    """Refuse a lane that is new to the shard, if its edge or tenant has another shard by now."""
    if lane.tenant in state.apart:
        raise Corrupt(f"chunk {folded.chunk.header.n} of shard {state.shard} has {lane}, whose tenant is set apart")
    if state.splits and (shard := moved_to(state.splits, lane.tenant, lane.edge)) is not None:
        raise Corrupt(f"chunk {folded.chunk.header.n} of shard {state.shard} has {lane}, which moved to shard {shard}")


def _fold_lane(state: ShardState, folded: Folded, lane: Lane, update: LaneUpdate) -> None:
    partial = bool(update.flags & _PARTIAL)
    known = folded.lanes[lane] if lane in folded.lanes else state.lanes.get(lane)
    if lane in folded.lanes and known is None:
        raise Corrupt(f"chunk {folded.chunk.header.n} drops {lane} and adds to it")
    if known is None:
        _check_here(state, folded, lane)
    held = LaneState(partial=partial) if known is None else known.successor()
    held.partial &= partial
    held.hear(update)
    # A relay claims no epoch, so it must not fence the edge's own sessions.
    if not update.flags & _RELAY:
        held.epoch = max(held.epoch, update.epoch)
    doubled = held.take(update.ranges, update.gaps, update.mark)
    if doubled is not None:
        here = f"chunk {folded.chunk.header.n}"
        raise Corrupt(f"{here} holds [{doubled[0]}, {doubled[1]}) of {lane} a second time")
    if update.topics is not None:
        held.topics = update.topics
        _fold_fields(state, folded, lane, update.topics)
    if update.payload is not None:
        held.payload = update.payload
    if update.origins:
        held.add_origins(update.origins)
    # Never back: the clock of this chunk's writer may be behind that of the last one's.
    held.last_seen = folded.created
    folded.lanes[lane] = held
    folded.others.add(lane)


def _fold_fields(state: ShardState, folded: Folded, lane: Lane, topics: list[str]) -> None:
    stream = (lane.tenant, lane.stream)
    fields = folded.fields.get(stream, state.fields.get(stream, {}))
    more = snapshots.with_levels(fields, lane.edge, named_levels(topics))
    if more is not fields:
        folded.fields[stream] = more
