"""Whether a node is well, and whether it can take work: two different questions.

A node that is not healthy is to be started again. One that is not ready is to get no new clients for now; starting it
again would help nothing, and would drop those it has.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.storage.segment_log import SegmentLog


class Health:
    """Answers both questions from what the parts say. Reasons name no streams, paths or users.

    Args:
        has_lost_state: whether the sessions' database has failed.
        is_listening: whether every listener is open.
    """

    def __init__(self, log: SegmentLog, has_lost_state: Callable[[], bool], is_listening: Callable[[], bool]) -> None:
        self._log = log
        self._has_lost_state = has_lost_state
        self._is_listening = is_listening

    def unhealthy(self) -> list[str]:
        """Return why the node should be started again; empty when it should not.

        It ends by itself when the log or the database has failed, within a second. That the event loop turns is what
        any answer says.
        """
        reasons = []
        if self._log.failed is not None:
            reasons.append("a write to the log failed; the node ends, and recovers the log when it is started again")
        if self._has_lost_state():
            reasons.append("the database of sessions failed; the node ends, and recovers it when it is started again")
        return reasons

    def unready(self) -> list[str]:
        """Return why the node takes no work; empty when it does.

        A link that is down is no reason: taking messages while no hub can be reached is what a node is for. A full log
        is one: devices sent here get no acknowledgement, and another node might give it.
        """
        reasons = self.unhealthy()
        if not self._is_listening():
            reasons.append("the listeners are not open")
        if self._log.failed is None and self._log.shortage() is not None:
            reasons.append("the log is full: devices get no acknowledgements")
        return reasons
