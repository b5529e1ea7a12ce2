"""Structured log lines about refusals and failed logins, for programs that watch logs
(docs/how-to/see-who-did-what.md).

A flood of refusals must not become a flood of lines: all are counted, and some are written.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from weft.bounds.owner import Owner

logger = logging.getLogger("weft.events")

LINES_MAX, INTERVAL_S = 60, 60.0
"""Maximum number of lines in an interval; a line has some 300 bytes, so a flood writes 26 MB a day."""
AGAIN_S = 60.0
"""Shortest time between two lines about the same thing."""
KEYS_MAX = 1024
"""Maximum number of things that are remembered; the one that was longest quiet is forgotten first."""
TEXT_MAX = 200


class SecurityEvent(StrEnum):
    """The kind of an event. The words are for programs: none changes."""

    LOGIN_FAILED = "login_failed"
    """A password, token or certificate that opens nothing, or none at all."""
    ACCESS_REFUSED = "access_refused"
    """A login in force that does not open what was asked for."""
    SHARE_USED_UP = "share_used_up"
    """An owner that asked for more than its share of a bound."""


class Severity(StrEnum):
    """Urgency of an event."""

    NOTICE = "notice"
    WARNING = "warning"


_LEVELS = {Severity.NOTICE: logging.INFO, Severity.WARNING: logging.WARNING}


class _Repetition:
    __slots__ = ("next_at", "unsaid")

    def __init__(self) -> None:
        self.next_at = 0.0
        self.unsaid = 0


class Events:
    """The events of one process. Belongs to the event loop's thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(SecurityEvent, 0)
        """Number of events by kind, also of those without a line."""
        self._known: OrderedDict[tuple[SecurityEvent, Owner, str], _Repetition] = OrderedDict()
        self._began, self._lines, self._left_out = clock(), 0, 0

    def note(self, event: SecurityEvent, severity: Severity, owner: Owner, reason: str, *, on: str = "") -> None:
        """Count an event, and write its line if the bounds allow it.

        Args:
            owner: the user, token or address that is the cause, as far as it is known.
            reason: one sentence without secrets.
            on: the request, listener or setting.
        """
        self.counts[event] += 1
        now, key = self._clock(), (event, owner, reason[:TEXT_MAX])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Repetition()
            if len(self._known) > KEYS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        known.unsaid += 1
        if now - self._began >= INTERVAL_S:
            self._began, self._lines = now, 0
        if now < known.next_at or self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        told = {
            "event": event, "severity": severity, "owner": str(owner)[:TEXT_MAX], "on": on[:TEXT_MAX],
            "reason": reason[:TEXT_MAX], "times": known.unsaid, "left_out": self._left_out,
        }  # fmt: skip
        known.next_at, known.unsaid, self._left_out = now + AGAIN_S, 0, 0
        logger.log(_LEVELS[severity], "%s", json.dumps(told))
