"""Conflicts of identity as records of the log: a second node claims a lane's log, and completeness stands still.

A refused opening alone is no conflict: a connection that its edge gave up long ago may arrive late, too, and is refused
likewise. So a conflict is noted only when the refused node has answered the refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from weft.cloud_hub.clock import ClockWrong
from weft.cloud_hub.shard.lane_ends import Ending, write_ending
from weft.protocols.chunk import Control, ControlKind
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import ConflictBody
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError

logger = logging.getLogger(__name__)


def conflicts(state: ShardState, refused: Mapping[Lane, int], reason: str) -> list[Control]:
    """Return the records of refused claims that the log lacks: one for each lane, until an operator has decided.

    Args:
        refused: lane -> the epoch that was refused.
        reason: for people, as the refused node got it.
        wall_clock: nanoseconds since 1970; it may raise ``ClockWrong``.
    """
    found = []
    for lane, epoch in refused.items():
        held = state.lanes.get(lane)
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
    """Write the records of refused claims, beside the nodes that write the shard. A store in trouble is no error: the
    node is refused again, and that is noted.

    Args:
        refused: lane -> the epoch that was refused.
        reason: for people, as the refused node got it.
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
        logger.warning("lane %s: completeness stands still until an operator decides: %s", lane, reason)
