"""Control records of lanes: the effect of RETIRE, ADOPT, CONFLICT and DROP on one lane."""

from __future__ import annotations

import msgspec

from weft.protocols.chunk_index.footer import Control, ControlKind
from weft.protocols.errors import Corrupt
from weft.protocols.fields import unpack
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import Conflict, ConflictBody, LaneState, RetireBody, RetiredBy, Retirement

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
                raise Corrupt(f"chunk {n} brings back {lane}, which is there")
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
    if held.conflict is not None or claim.epoch > held.epoch:
        return held
    new = held.copy()
    new.conflict = Conflict(created, claim.epoch, held.complete_up_to, held.whole_up_to, claim.reason)
    return new


def _returned(lane: Lane, body: bytes) -> LaneState:
    kept = snapshots.decode_lane(body)
    if (kept.tenant, kept.edge, kept.log_id, kept.stream) != lane:
        raise Corrupt(f"an ADOPT record of {lane} holds another lane's state")
    new = snapshots.lane_state(kept)
    if new.retired is not None and new.retired.by == RetiredBy.AGE:
        new.retired = None  # only an operator's ADOPT ends an operator's retirement
    return new
