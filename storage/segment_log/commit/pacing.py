"""Start times of commits: at once while the node is quiet, every few milliseconds while it is busy.

A commit costs the same whether it carries one message or a hundred, so a busy node gathers. Three rules keep that from
costing a client time for nothing; ``docs/decisions/0033-commits-paced-by-load.md`` has the measurements.

- *Quiet*: the last commit began an interval ago or earlier. The next begins at once.
- *Alone*: the last commit carried a single append, and nothing was appended meanwhile. The next begins at once: a
  device that waits for each acknowledgement before it sends again would only wait longer.
- *In vain*: twice a commit waited although no append followed, and no wait has paid since. All clients then wait for
  their acknowledgements, so commits begin at once for a while.
"""

from __future__ import annotations

from weft.storage.segment_log.settings import COMMIT_BYTES_MAX

PACED_INTERVAL_S = 0.008
"""The shortest time between the beginnings of two commits of a busy node. The longest that keeps the 99th percentile of
acknowledgements below 10 ms on a disk that syncs in less than 1 ms."""
FULL_INTERVAL_S = 0.012
"""The same while commits carry ``FULL_BYTES`` and more: each writes the page again in which the last one ended. So
10,000 messages of 100 bytes a second write less than they are long."""
FULL_BYTES = 8 << 10
"""Uncompressed: from some 7,000 such messages a second on, and down to 4,500."""
WORTHWHILE_BYTES = 64 << 10
"""A commit of this size begins at once: its cost per message is low already."""
VAIN_CHANCE, PAYING_CHANCE = 0.02, 0.5
"""Probabilities of a silence as at the end of a wait, for random appends. At most the first: the wait was in vain. More
than the second: it has paid. Between the two, as with two clients of which one waits, there is no result."""
SILENCE_SHARE = 8
"""A silence shorter than this part of the interval does not count: the wait is practically over."""
VAIN_WAITS_MIN, VAIN_WAITS_MAX = 2, 7
"""Numbers of waits in vain. One may be chance. From two on, commits do not wait for ``2 ** waits`` intervals, up to 1
s: a client in a closed loop then loses less than 1 % of its rate to further trial waits."""


class Pacer:
    """The earliest time of the next commit. Pure: times are seconds of one monotonic clock, and arguments.

    Args:
        interval_s: the time after each commit; None adapts it to the load.
    """

    def __init__(self, interval_s: float | None) -> None:
        self._interval_s = interval_s
        self.opens_at = 0.0
        """The next commit does not begin earlier, unless ``bytes_max`` wait."""
        self.bytes_max = COMMIT_BYTES_MAX if interval_s is not None else WORTHWHILE_BYTES
        """A commit of this many bytes begins at once."""
        self._began_at = self._ended_at = 0.0
        self._appends = 0
        self._bytes = 0
        self._appends_before = 0
        """Number of the next commit's appends that arrived before the last commit had ended."""
        self._vain_waits = 0
        self._patient_at = 0.0
        """Commits do not wait before this time, because waiting was in vain."""

    def begin(self, now: float, appends: int, bytes_: int, first_s: float, last_s: float) -> None:
        """Note that a commit begins.

        Args:
            appends: number of appends that it carries.
            bytes_: their length, uncompressed.
            first_s: seconds since the first of them.
            last_s: seconds since the last of them.
        """
        if self._interval_s is None and appends and now - first_s < self.opens_at:
            self._judge(now, appends, last_s)
        self._began_at, self._appends, self._bytes = now, appends, bytes_

    def _judge(self, now: float, appends: int, silence_s: float) -> None:
        """Learn from a finished wait whether appends arrived in its last part."""
        # Only appends after the last acknowledgements count: clients in a closed loop send the next message at once,
        # however long the last sync took.
        came = appends - self._appends_before
        window_s = now - self._ended_at
        if came <= 0 or window_s <= 0:
            return
        # Probability that all of ``came`` appends at random times lie within this share of the wait.
        chance = max(0.0, 1 - silence_s / window_s) ** came
        if silence_s < PACED_INTERVAL_S / SILENCE_SHARE or chance > PAYING_CHANCE:
            self._vain_waits = max(0, self._vain_waits - 1)
        elif chance <= VAIN_CHANCE:
            self._vain_waits = min(self._vain_waits + 1, VAIN_WAITS_MAX)
            if self._vain_waits >= VAIN_WAITS_MIN:
                self._patient_at = now + PACED_INTERVAL_S * 2**self._vain_waits

    def end(self, now: float, waiting: int) -> None:
        """Note that the commit has ended.

        Args:
            waiting: number of appends that arrived during the commit.
        """
        self._ended_at, self._appends_before = now, waiting
        if self._interval_s is not None:
            self.opens_at = now + self._interval_s
        elif now >= self._patient_at and (waiting or self._appends > 1):
            # From its beginning: a sync that takes longer than the interval has gathered enough while it ran.
            self.opens_at = self._began_at + (FULL_INTERVAL_S if self._bytes >= FULL_BYTES else PACED_INTERVAL_S)
        else:
            self.opens_at = now
