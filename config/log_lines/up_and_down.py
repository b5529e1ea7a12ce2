"""The log lines of a thing that goes up and down: each change once, repetitions ever more rarely."""

from __future__ import annotations

import re
from typing import NamedTuple

from weft.config.log_lines.repeats import Repeats

STABLE_S = 60.0
"""A thing that stayed up this long is well again: its next trouble is new, not a repetition."""
KEY_CHARACTERS_MAX = 300
KEYS_MAX = 32
"""Maximum number of kinds of trouble remembered for one thing."""
_NUMBERS = re.compile(r"\d+")


class Up(NamedTuple):
    """A line is due: the thing is up."""

    again: bool
    """True when the link was up before."""
    away_s: float
    """Seconds for which the link was down."""
    failures: int
    """Failed attempts in that time."""


class Down(NamedTuple):
    """A line is due: the thing is not up."""

    was_up: bool
    """True when the link was up until now; otherwise one more attempt has failed."""
    since_s: float
    """Seconds for which the link was up, or has been down."""
    failures: int
    """Failed attempts since the link was up."""
    left_out: int
    """Number of lines like this one that were not written."""


class UpAndDown:
    """One thing that is up or down: a link, or the room in a log. ``now`` is monotonic seconds throughout.

    Two rules hold for all lines that are left out: a trouble's first line is written, and the newest line states
    whether the thing is up, at the latest with the first attempt ``STABLE_S`` after that has changed.
    """

    def __init__(self, now: float) -> None:
        self._repeats = Repeats(keys_max=KEYS_MAX)
        self._changed_at = now
        self._is_up = False
        self._ever_up = False
        self._said_up = False
        self._failures = 0

    def up(self, now: float) -> Up | None:
        """Note that the thing is up; None when no line is due."""
        told = Up(self._ever_up, now - self._changed_at, self._failures)
        # While a thing goes up and down, its downs are written rarely; an up is written only after a down that was
        # written.
        is_due = not self._said_up
        self._is_up = self._ever_up = self._said_up = True
        self._changed_at, self._failures = now, 0
        return told if is_due else None

    def down(self, reason: str, now: float) -> Down | None:
        """Note that the thing went down, or that an attempt to bring it up failed; None when no line is due.

        Args:
            reason: reasons that differ only in numbers count as the same.
        """
        was_up, since_s = self._is_up, now - self._changed_at
        if was_up:
            if since_s >= STABLE_S:
                self._repeats.clear()
            self._is_up, self._changed_at = False, now
        else:
            self._failures += 1
        key = f"{was_up} {_NUMBERS.sub('#', reason[:KEY_CHARACTERS_MAX])}"
        is_stale = self._said_up and not was_up and since_s >= STABLE_S
        left_out = self._repeats.say(key, now, always=is_stale)
        if left_out is None:
            return None
        self._said_up = False
        return Down(was_up, since_s, self._failures, left_out)
