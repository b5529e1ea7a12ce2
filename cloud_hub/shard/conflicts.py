"""Conflicts of identity as control records of the log: a second node claims a lane's log, and completeness stops.

A refused opening alone is not a conflict: a connection that its edge dropped long ago may also arrive late, and is
refused in the same way. So a conflict is recorded only when the refused node has answered the refusal.
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
    """Return the control records of refused claims that the log lacks: one for each lane, until an operator has
    decided.

    Args:
        refused: lane -> the refused epoch.
        reason: for people; the refused node got the same.
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
        logger.warning("lane %s: completeness stands still until an operator decides: %s", lane, reason)
