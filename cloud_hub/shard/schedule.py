"""The times at which a shard commits and reads chunks of other nodes. Pure: the time is an argument."""

from __future__ import annotations

from weft.cloud_hub.settings import SequencerSettings

HURRIED_S = 0.25
"""Longest time between two commits while a link needs acknowledgements before it may continue sending."""
LOOK_FACTOR_MAX = 16
"""Bound of the doubling interval of looks that find nothing: each look of an idle shard costs a request."""


class CommitSchedule:
    """Times of one shard's next commit and next read of the log, in seconds of one monotonic clock."""

    def __init__(self, settings: SequencerSettings) -> None:
        self._settings = settings
        self._last_commit = self._last_chunk = self._last_look = float("-inf")
        self._look_now = False
        self._look_factor = 1
        self._hurried = False
        self._waiting_since: float | None = None
        """Arrival of the oldest records that no commit has begun to write."""

    @property
    def look_at(self) -> float:
        """Return the time at which the shard reads chunks of other nodes."""
        return self._last_look + (0.0 if self._look_now else self._look_factor * self._settings.follow_interval_s)

    @property
    def last_look(self) -> float:
        """Return the time at which the log was last read up to its head; minus infinity before the first."""
        return self._last_look

    def look_now(self) -> None:
        """Request a read at once: a reader waits for it."""
        self._look_now = True

    def commit_at(self, pending_bytes: int, *, urgent: bool, pending: bool, trailing: bool = False) -> float:
        """Return the time of the next commit; infinity while nothing is pending.

        Args:
            urgent: more than marks is pending.
            pending: anything is pending.
            trailing: a pending mark covers new records, or is its lane's first.
        """
        if pending_bytes >= self._settings.chunk_bytes_max:
            return float("-inf")
        if urgent:
            # From the last commit, not from the first batch: after a longer silence a batch does not wait.
            interval_s = self._settings.commit_interval_s
            return self._last_commit + (min(interval_s, HURRIED_S) if self._hurried else interval_s)
        return self._marks_at(trailing) if pending else float("inf")

    def marks_are_due(self, now: float, *, trailing: bool = False) -> bool:
        """Return whether marks alone are sufficient for a chunk; ``trailing`` as in ``commit_at``."""
        return self._marks_at(trailing) <= now

    def records_came(self, now: float) -> None:
        """Note that records wait for a commit."""
        if self._waiting_since is None:
            self._waiting_since = now

    def hurry(self) -> bool:
        """Note that a link will soon have to stop sending before the next commit. Return whether that advances the
        commit."""
        if self._hurried or self._settings.commit_interval_s <= HURRIED_S:
            return False
        self._hurried = True
        return True

    def looked(self, now: float, *, found: bool) -> None:
        """Note that the log was read up to its head.

        Args:
            found: whether another node had written a chunk: the next look is then due soon.
        """
        self._last_look, self._look_now = now, False
        self._look_factor = 1 if found else min(2 * self._look_factor, LOOK_FACTOR_MAX)

    def wrote_chunk(self, now: float) -> None:
        """Note that a chunk of this node is in the log, with all pending marks."""
        self._last_chunk = now

    def begin_commit(self) -> float | None:
        """Return the arrival time of the oldest records that wait for this commit; None without any."""
        since, self._waiting_since = self._waiting_since, None
        self._hurried = False
        return since

    def end_commit(self, since: float | None, now: float, *, records_left: bool) -> None:
        """Note the end of a commit.

        Args:
            since: the result of ``begin_commit``.
            records_left: True if the chunk had no room for all records, so that the oldest have waited since then.
        """
        self._last_commit = self._last_look = now
        if records_left and self._waiting_since is None:
            self._waiting_since = since

    def _marks_at(self, trailing: bool) -> float:
        interval_s = self._settings.mark_interval_s
        return self._last_chunk + (min(interval_s, self._settings.trailing_mark_s) if trailing else interval_s)
