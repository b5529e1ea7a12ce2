"""Health of a node, and its readiness for work: two different questions.

An unhealthy node must be restarted. A node that is not ready should get no new clients for now; a restart would not
help, and would disconnect its clients.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.storage.segment_log import SegmentLog


class Health:
    """Answers to both questions from the state of the parts. Reasons name no streams, paths or users.

    Args:
        has_lost_state: returns True when the sessions' database has failed.
        is_listening: returns True when every listener is open.
        has_conflict: returns True while the node acknowledges nothing because a hub refuses its identity.
    """

    def __init__(
        self,
        log: SegmentLog,
        has_lost_state: Callable[[], bool],
        is_listening: Callable[[], bool],
        *,
        has_conflict: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._has_lost_state = has_lost_state
        self._is_listening = is_listening
        self._has_conflict = has_conflict

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when there are none.

        The node ends by itself within a second when the log or the database has failed. Any answer shows that the event
        loop runs.
        """
        reasons = []
        if self._log.failed is not None:
            reasons.append("a write to the log failed; the node ends, and recovers the log when it is started again")
        if self._has_lost_state():
            reasons.append("the database of sessions failed; the node ends, and recovers it when it is started again")
        return reasons

    def unready(self) -> list[str]:
        """Return the reasons why the node accepts no work; empty when it does.

        A link that is down is not a reason: a node is meant to accept messages while no hub can be reached. A full log
        is one: devices sent here get no acknowledgement, and another node might send it.
        """
        reasons = self.unhealthy()
        if not self._is_listening():
            reasons.append("the listeners are not open")
        if self._log.failed is None and self._log.shortage() is not None:
            reasons.append("the log is full: devices get no acknowledgements")
        if self._has_conflict():
            reasons.append("another copy of the log has taken over at the hub: devices get no acknowledgements")
        return reasons
