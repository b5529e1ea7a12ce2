"""The log lines of a link's sending end."""

from __future__ import annotations

import logging

from weft.config.log_lines.clock import clock_difference
from weft.config.log_lines.repeats import left_out
from weft.config.log_lines.up_and_down import UpAndDown
from weft.config.units import approximate_duration
from weft.replication.status import LinkState

log = logging.getLogger(__name__)

CLOCK_REPEAT_S = 3600.0
"""Interval at which a clock that differs from the hub's is logged again."""
_STATES = {
    LinkState.WAITING: "not connected",
    LinkState.REFUSED: "refused by the hub",
    LinkState.CONFLICT: "identity conflict",
}


class LinkLog:
    """The lines of one link. Every call takes monotonic seconds."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._state = UpAndDown(now)
        self._clock: str | None = None
        """Clock difference in the last line; None while the clock agrees with the hub's."""
        self._clock_said_at = now

    def connected(self, url: str, cluster_id: str, now: float) -> None:
        """Log that the hub accepted the link."""
        told = self._state.up(now)
        if told is None:
            return
        after = f", after {approximate_duration(told.away_s)}{' away' if told.again else ''}, {failed(told.failures)}"
        log.info(
            "link %s: connected %sto %s, hub %s%s",
            self._name, "again " if told.again else "", url, cluster_id, after if told.again or told.failures else "",
        )  # fmt: skip

    def clock(self, offset_s: float, now: float) -> None:
        """Log that this machine's clock differs from the hub's: at once, then once an hour, and when it agrees again.

        Args:
            offset_s: seconds to add to this machine's clock to get the hub's.
        """
        difference = clock_difference(offset_s)
        if difference is None:
            if self._clock is not None:
                log.info("link %s: this machine's clock agrees with the hub's again", self._name)
        elif self._clock is None or now - self._clock_said_at >= CLOCK_REPEAT_S:
            self._clock_said_at = now
            log.warning(
                "link %s: this machine's clock is %s. The hub corrects the times of records while no time source "
                "vouches for the clock; set it, for example with `timedatectl set-ntp true`", self._name, difference,
            )  # fmt: skip
        self._clock = difference

    def failed(self, state: LinkState, reason: str, retry_s: float, now: float) -> None:
        """Log a failed attempt, or the end of a connection.

        Args:
            state: the link's state afterwards.
            reason: for people; peers wrote parts of it.
        """
        told = self._state.down(f"{state} {reason}", now)
        if told is None:
            return
        what = _STATES.get(state, str(state))
        if told.was_up:
            ended = "disconnected" if state is LinkState.WAITING else what
            what = f"{ended} after {approximate_duration(told.since_s)}"
        elif told.failures > 1:
            what += f" for {approximate_duration(told.since_s)}, {failed(told.failures)}"
        log.warning(
            "link %s: %s: %s (next try in %.1f s%s)", self._name, what, reason, retry_s, left_out(told.left_out)
        )


def failed(attempts: int) -> str:
    """Return a count of failed attempts: ``1 failed attempt``, ``2,880 failed attempts``."""
    return f"{attempts:,} failed {'attempt' if attempts == 1 else 'attempts'}"
