"""Log lines about a segment log that is full or nearly so: at the beginning, at growing intervals, and at the end."""

from __future__ import annotations

import logging

from weft.config.log_lines.repeats import Repeats
from weft.config.log_lines.up_and_down import STABLE_S, UpAndDown
from weft.config.units import approximate_duration

logger = logging.getLogger(__name__)


class ShortageLog:
    """The state of the shortage, updated once a second. ``now`` is monotonic seconds.

    With a link that is slower than the devices, a full log repeatedly has room for a moment: both lines are then
    written ever more rarely, as for links.
    """

    def __init__(self, now: float) -> None:
        self._state = UpAndDown(now)
        self._state.up(now)
        self._is_full = False
        self._full_since = now
        self._low = Repeats()
        self._was_low = False

    def full(self, shortage: str | None, now: float) -> None:
        """Handle the reason why the log refuses records; None while it does not."""
        if shortage is None:
            if self._is_full and (over := self._state.up(now)) is not None:
                after = approximate_duration(over.away_s)
                logger.warning("the log has room again: devices are acknowledged, after %s", after)
        elif not self._is_full or now - self._full_since >= STABLE_S:
            if not self._is_full:
                self._full_since = now
            if (told := self._state.down(shortage, now)) is not None:
                since = "" if told.was_up else f", for {approximate_duration(told.since_s)} now"
                logger.error("devices get no acknowledgements%s: %s", since, shortage)
        self._is_full = shortage is not None

    def low(self, warning: str | None, now: float) -> None:
        """Handle a warning that little space is left; None while there is enough."""
        if warning is not None and not self._was_low and self._low.say("low", now) is not None:
            logger.warning("%s", warning)
        self._was_low = warning is not None
