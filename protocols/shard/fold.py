"""Effect of a chunk on a shard's state, which it does not change (docs/reference/formats/shard-state.md)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple, cast

import msgspec

from weft.protocols.chunk_index import (
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
from weft.protocols.ranges import Seq, unpack
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import (
    NOTHING,
    Conflict,
    ConflictBody,
    LaneState,
    OpenGap,
    RetireBody,
    RetiredBy,
    Retirement,
    after_control,
    gaps_in_order,
    lane_of,
)
from weft.protocols.shard.placement import Split, is_moving, moved_to, moving, seal_of, seals_in_order
from weft.protocols.shard.shard_state import BOOTS_MAX, Folded, ShardState
from weft.protocols.shard.snapshot import BootClock, Skip, forgotten
from weft.protocols.topics import named_levels

# Control records of lanes: the effect of RETIRE, ADOPT, CONFLICT and DROP on one lane.

_CONFLICT, _RETIRE = msgspec.msgpack.Decoder(ConflictBody), msgspec.msgpack.Decoder(RetireBody)


def controlled(control: Control, lane: Lane, held: LaneState | None, created: int, n: int) -> LaneState | None:
    """Return a lane's state after a control record: ``held`` itself if nothing changes, None if the lane leaves.

    Args:
        held: None when the lane is not in the state.
        created: moment of the record by the hub's clock.
        n: number of its chunk.

    Raises:
        Corrupt: the record's body is malformed, or it brings back a lane that is in the state.
    """
    # A control of a lane that is not here changes nothing, except that an ADOPT with a state brings the lane back.
    if held is None:
        return _returned(lane, control.body) if control.kind == ControlKind.ADOPT and control.body else None
    match control.kind:
        case ControlKind.RETIRE:
            body = unpack(_RETIRE, control.body, "a RETIRE record")
            new = held.copy()
            # An operator may add later what is missing; the moment of the retirement then remains the first one.
            time = held.retired.time if held.retired is not None and body.missing else created
            new.retired = Retirement(time, body.by, body.reason, body.missing)
            return new
        case ControlKind.ADOPT:
            if control.body:
                raise Corrupt(f"chunk {n} adopts {lane}, which was not dropped")
            return _adopted(held)
        case ControlKind.CONFLICT:
            return _in_conflict(control, held, created)
        case ControlKind.DROP:
            return None
    return held


def _adopted(held: LaneState) -> LaneState:
    new = held.copy()
    new.retired = None
    if new.conflict is not None:
        # The refused node may be the right one, so the epoch that it proposes again must count as new. Sessions of the
        # lane end at this chunk; otherwise two could continue under one epoch.
        new.epoch = max(0, min(new.epoch, new.conflict.epoch - 1))
        # A last word came from only one of the two nodes. The other one is at work.
        new.conflict = new.last_word = None
    return new


def _in_conflict(control: Control, held: LaneState, created: int) -> LaneState:
    claim = unpack(_CONFLICT, control.body, "a CONFLICT record")
    # A claim with a higher epoch would be taken, not refused, so it is none of this state any more.
    if held.conflict is not None or claim.epoch > held.epoch:
        return held
    new = held.copy()
    new.conflict = Conflict(created, claim.epoch, held.complete_up_to, held.whole_up_to, claim.reason)
    return new


def _returned(lane: Lane, body: bytes) -> LaneState:
    kept = snapshots.decode_lane(body)
    # A stored state under a wrong name would make records of one lane count as another's.
    if (kept.tenant, kept.edge, kept.log_id, kept.stream) != lane:
        raise Corrupt(f"an ADOPT record of {lane} holds another lane's state")
    new = snapshots.lane_state(kept)
    if new.retired is not None and new.retired.by == RetiredBy.AGE:
        new.retired = None  # only an operator's ADOPT ends an operator's retirement
    return new


# Times by the hub's clock that a TIME record lowers: a wrong clock wrote them, and an operator says the right time.
#
# Ages count from these times. One in the future would keep a lane for as long as the clock was ahead, and then end
# it.


# By an operator's word alone: two nodes that disagree would set the time back and forth, and each time lanes would
# count as just seen.
class TimeBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a TIME record."""

    time: Seq
    """Nanoseconds since 1970. Later times in the shard's state become this one."""
    reason: str


_TIME = msgspec.msgpack.Decoder(TimeBody)
_replace = msgspec.structs.replace


def declared_time(control: Control, created: int) -> int:
    """Return the time that a TIME record tells, at most that of its chunk (``created``): the clock of the chunk's
    writer was held against others.

    Raises:
        Corrupt: the record's body is malformed.
    """
    # Never above the chunk's own time: the record exists to lower a time, and must not be another way to raise it.
    return min(unpack(_TIME, control.body, "a TIME record").time, created)


def lowered_lane(held: LaneState, time: int) -> LaneState:
    """Return a lane's state without times of the hub's clock after ``time``; ``held`` itself if it has none."""
    retired, conflict = held.retired, held.conflict
    late = conflict is not None and conflict.time > time
    if held.last_seen <= time and not late and (retired is None or retired.time <= time):
        return held
    new = held.successor()
    if held.last_seen > time:
        new.last_seen = time
    if retired is not None and retired.time > time:
        new.retired = _replace(retired, time=time)
    if conflict is not None and conflict.time > time:
        new.conflict = _replace(conflict, time=time)
    return new


def lowered_skips(skips: Sequence[Skip], time: int) -> list[Skip]:
    """Return the skipped ranges of a stream without times after ``time``."""
    return [skip if skip.time <= time else _replace(skip, time=time) for skip in skips]


def lowered_gaps(gaps: Sequence[OpenGap], time: int) -> list[OpenGap]:
    """Return the open gaps of a stream without ends after ``time``, in their order. What ended before ``time`` by the
    right clock did not end later."""
    return gaps_in_order(gap if gap.until <= time else _replace(gap, until=time) for gap in gaps)


# Tenants that are set apart: APART records, from which on a shard takes nothing of a tenant.
#
# A tenant is set apart only while no shard has anything of it. Each shard of all tenants says so in its log first;
# then ``cluster.json`` gives the tenant a shard of its own. So a process that does not know of that shard yet cannot
# write the tenant's records elsewhere.


class ApartBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of an APART record, whose tenant is the record's."""

    apart: bool
    """False: the shard takes the tenant's lanes again, since another shard had some already."""


_BODY = msgspec.msgpack.Decoder(ApartBody)


def apart_body(*, apart: bool) -> bytes:
    """Return the body of an APART record."""
    return msgspec.msgpack.encode(ApartBody(apart))


def has_traces(state: ShardState, tenant: str) -> bool:
    """Return whether a shard has or had records or lanes of a tenant."""
    return bool(state.lane_count(tenant)) or any(key[0] == tenant for key in state.next_offset)


def after_apart(state: ShardState, control: Control, n: int) -> frozenset[str]:
    """Return the tenants of which the shard takes nothing after an APART record.

    Args:
        n: number of the chunk with the record.

    Raises:
        Corrupt: the body is malformed, or the shard has something of the tenant.
    """
    if not unpack(_BODY, control.body, "an APART record").apart:
        return state.apart - {control.tenant}
    # A writer has folded this chunk before it writes behind it, so no record of the tenant can come after. One before
    # it would be in two places.
    if has_traces(state, control.tenant):
        raise Corrupt(
            f"chunk {n} of shard {state.shard} sets tenant {control.tenant} apart, of which the shard has data"
        )
    return state.apart | {control.tenant}


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
    followed = _followed(chunk, state.only)
    _check(state, chunk, followed.sections)
    # Clocks of writers differ. A time that went back would make lanes look silent for longer than they were.
    created = max(state.created, chunk.header.created)
    folded = Folded(chunk, created, followed.sections)
    for control in followed.controls:
        if control.kind == ControlKind.TIME:
            yield from _set_back(state, folded, control)
        elif control.kind == ControlKind.SEAL:
            yield from _seal(state, folded, followed, control)
        elif control.kind == ControlKind.APART:
            _set_apart(state, folded, followed, control)
        else:
            _fold_control(state, folded, control)
    created = folded.created
    lanes, changed = state.lanes, folded.lanes
    for update in followed.lanes:  # most of the work of a hub and of its followers
        lane = lane_of(update)
        known = None if lane in changed else lanes.get(lane)
        # One run that continues what is held, and perhaps a mark: no set is copied or searched for it.
        grown = None if known is None else known.grown(update, created)
        if grown is not None:  # nearly always
            changed[lane] = grown
        else:
            _fold_lane(state, folded, lane, update)
    for control in followed.controls:
        if control.kind == ControlKind.FORGET:
            _forget(state, folded, control)
    for clock in followed.clocks:
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
    # Folding a part into a whole state would lose the rest without a sign.
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
    # The CRC covers the footer before it, and so the whole history: a log that was restored and written again is
    # noticed at its first chunk.
    if header.previous_footer_crc != state.footer_crc:
        raise Corrupt(f"chunk {header.n} of shard {state.shard} continues another history")
    for section in sections:
        expected = state.next_offset.get((section.tenant, section.stream), 0)
        # Offsets are how readers, tables and checkpoints know a record, so a repetition or a hole is refused and never
        # folded.
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
    if held is None and new is not None:
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
    if held is None and new is not None:
        # A FORGET may have removed the stream's levels since. Otherwise they are there, or there is no room for them.
        _fold_fields(state, folded, lane, new.topics)


def _forget(state: ShardState, folded: Folded, control: Control) -> None:
    """Remove a stream; it remains unchanged if a lane of it would be in the state after the chunk."""
    key, changed = (control.tenant, control.stream), folded.lanes
    # A lane may have come between the decision and the chunk. A stream with lanes is not forgotten.
    if any(changed.get(lane, NOTHING) is not None for lane in state.stream_lane_names(*key)):
        return
    if any(held is not None and (lane.tenant, lane.stream) == key for lane, held in changed.items()):
        return
    folded.forgotten[key] = forgotten(control.body, folded.created)


def _set_back(state: ShardState, folded: Folded, control: Control) -> Generator[None, None, None]:
    """Lower the shard's time, and all later times of the hub's clock. About a microsecond for each lane, once. Yields
    after each ``STEP_LANES`` of them."""
    time = declared_time(control, folded.chunk.header.created)
    if time >= folded.created:
        return
    folded.created = time
    for count, (lane, known) in enumerate(state.lanes.items(), 1):
        if count % STEP_LANES == 0:
            # 100,000 lanes take 97 ms, in which no link of this process would be answered.
            yield
        held = folded.lanes.get(lane, known)
        if held is not None and (new := lowered_lane(held, time)) is not held:
            folded.lanes[lane] = new
    folded.skips |= {key: lowered_skips(skips, time) for key, skips in (state.skips | folded.skips).items()}
    folded.open_gaps |= {key: lowered_gaps(gaps, time) for key, gaps in (state.open_gaps | folded.open_gaps).items()}


def _seal(state: ShardState, folded: Folded, followed: Followed, control: Control) -> Generator[None, None, None]:
    """Take the edges of one half out of the shard: they are in the new one. Yields as ``_set_back``."""
    chunk = folded.chunk
    seal, n = seal_of(control.body), chunk.header.n
    # What else the chunk had would have to be divided between two shards.
    if followed.sections or followed.lanes or followed.clocks or len(followed.controls) > 1:
        raise Corrupt(f"chunk {n} of shard {state.shard} has a SEAL record and other things")
    if not seals_in_order(state.splits, seal, state.shard):
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


def _set_apart(state: ShardState, folded: Folded, followed: Followed, control: Control) -> None:
    """Take nothing of a tenant from here on, which gets a shard of its own; or take it again."""
    n = folded.chunk.header.n
    if followed.sections or followed.lanes or followed.clocks or len(followed.controls) > 1:
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
    # A copy: readers hold the former state, and the chunk may still be refused.
    held = LaneState(partial=partial) if known is None else known.successor()
    # Once a lane has been opened as a whole one, its numbers are all owed. A later partial opening does not take that
    # back.
    held.partial &= partial
    held.hear(update)
    # A relay claims no epoch, so it must not fence the edge's own sessions.
    if not update.flags & _RELAY:
        held.epoch = max(held.epoch, update.epoch)
    # No writer trims wrongly but by a fault; a record that counts twice is the one thing that no reader could undo.
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
