"""The next chunk of a shard from the items of its sessions: a session with items that no chunk can hold is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.cloud_hub.shard.chunk_builder import ChunkBuilder, Draft
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.shard_sessions import ShardSessions
from weft.protocols.link import RefuseCode
from weft.protocols.shard.fold import fold
from weft.protocols.shard.shard_state import Folded, ShardState

logger = logging.getLogger(__name__)

Finish = Callable[[ChunkBuilder], Draft | None]


class Drafted(NamedTuple):
    """A chunk ready for creation, and its effect on the state.

    It is folded before it is written: a chunk is permanent, and an invalid one would end the shard's log.
    """

    draft: Draft
    folded: Folded


class Attempt(NamedTuple):
    """A chunk creation of this node with an unknown outcome."""

    openings: list[LaneSession]
    bytes: int
    canary: int = 0
    """Number of the last canary that came before it."""


class Drafting:
    """Drafts of one state.

    Args:
        builder: makes a builder of the next chunk.
        finish: finishes a builder's chunk.
        tells_origins: whether the state may lack some of a session's origins.
    """

    def __init__(
        self,
        state: ShardState,
        builder: Callable[[], ChunkBuilder],
        finish: Finish,
        tells_origins: Callable[[LaneSession], bool],
    ) -> None:
        self._state = state
        self._tells_origins = tells_origins
        self._builder = builder
        self._finish = finish

    def draft(self, sessions: ShardSessions) -> Drafted | None:
        """Return the next chunk, or None if there is nothing to write.

        Sessions that cannot make a chunk even alone are refused. If only all together cannot, the longest waiting one
        gets a chunk for itself.

        Raises:
            Exception: no session is the cause.
        """
        waiting = list(sessions)
        try:
            return self._of(waiting)
        except Exception as error:
            causes = [session for session in waiting if self._fails(session)]
            if not causes and len(waiting) < 2:
                raise
            logger.exception("shard %d: no chunk of %d sessions can be made", self._state.shard, len(waiting))
            for session in causes:
                message = f"lane {session.lane} has what the hub cannot write: {type(error).__name__}"
                sessions.refuse(session, RefuseCode.OVERLOADED, message, "report this, with the hub's log")
            return self._of(list(sessions)) if causes else self._of(waiting[:1])

    def _of(self, sessions: Sequence[LaneSession]) -> Drafted | None:
        builder = self._builder()
        for session in sessions:
            builder.add(session, tells_origins=self._tells_origins(session))
        draft = self._finish(builder)
        return None if draft is None else Drafted(draft, fold(self._state, draft.chunk))

    def _fails(self, session: LaneSession) -> bool:
        try:
            self._of([session])
        except Exception:
            return True
        return False
