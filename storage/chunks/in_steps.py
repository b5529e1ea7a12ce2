"""The fold of a chunk on an event loop, in steps of bounded length."""

from __future__ import annotations

import asyncio
from typing import cast

from weft.protocols.chunk import Chunk
from weft.protocols.shard.fold import folding
from weft.protocols.shard.folded import Folded
from weft.protocols.shard.shard_state import ShardState


async def fold_in_steps(state: ShardState, chunk: Chunk) -> Folded:
    """Return what ``fold`` returns. The loop does other work between the steps of a long one, which must not change the
    state. Raises as ``fold``."""
    steps = folding(state, chunk)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Folded", end.value)
        await asyncio.sleep(0)


async def apply_in_steps(state: ShardState, chunk: Chunk) -> None:
    """Apply chunk ``n + 1`` to the state. A refused chunk changes nothing. Raises as ``fold``."""
    state.accept(await fold_in_steps(state, chunk))
