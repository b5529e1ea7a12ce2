"""Conflicts of identity as records of the log: a second node claims a lane's log, and completeness stands still.

A refused opening alone is no conflict: a connection that its edge gave up long ago may arrive late, too, and is refused
likewise. So a conflict is noted only when the refused node has answered the refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from weft.protocols.chunk import Chunk, ChunkFooter, ChunkHeader, Control, ControlKind, encode_footer, encode_header
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.lane_state import ConflictBody
from weft.protocols.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import AlreadyExists, StoreError

logger = logging.getLogger(__name__)


ATTEMPTS_MAX = 100
"""Number of attempts at a chunk number that other writers take first. Each is a round trip behind them."""


def conflicts(state: ShardState, refused: Mapping[Lane, int], reason: str) -> list[Control]:
    """Return the records of refused claims that the log lacks: one for each lane, until an operator has decided.

    Args:
        refused: lane -> the epoch that was refused.
        reason: for people, as the refused node got it.
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
    try:
        for _ in range(ATTEMPTS_MAX):
            state = await log.load()
            controls = conflicts(state, refused, reason)
            if not controls or await _create(log, state, controls, wall_clock(), random_bits(64)):
                break
    except (StoreError, CodecError) as error:
        logger.warning("shard %d: a conflict was not noted: %s", log.shard, error)
        return
    for control in controls:
        lane = Lane(control.tenant, control.edge, control.log_id, control.stream)
        logger.warning("lane %s: completeness stands still until an operator decides: %s", lane, reason)


async def _create(log: ShardLog, state: ShardState, controls: list[Control], now: int, nonce: int) -> bool:
    """Make a chunk of the records. Return False when another writer was first, and the log is to be read again."""
    created = max(now, state.created)
    header = ChunkHeader(state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, nonce)
    footer = ChunkFooter(header, 0, state.fold_level, [], [], controls)
    tail, crc = encode_footer(footer)
    state.fold(Chunk(header, footer, crc))  # a chunk is permanent: one that does not fit is not written
    try:
        await log.create(header.n, encode_header(header) + tail)
    except AlreadyExists:
        return False
    # A chunk number that was collected meanwhile can be created again, and no reader sees it.
    return (await log.manifest())[0].watermark <= header.n
