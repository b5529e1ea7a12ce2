"""The times at which a shard commits and looks for chunks of other nodes. Pure: the time is an argument."""

from __future__ import annotations

from weft.cloud_hub.settings import SequencerSettings

HURRIED_S = 0.25
"""Longest time between two commits while a link waits for acknowledgements before it may send on."""


class CommitSchedule:
    """Times of one shard's next commit and next look. They are seconds of one monotonic clock."""

    def __init__(self, settings: SequencerSettings) -> None:
        self._settings = settings
        self._last_commit = self._last_chunk = self._last_look = float("-inf")
        self._look_now = False
        self._hurried = False
        self._waiting_since: float | None = None
        """Arrival of the oldest records that no commit has begun to write."""

    @property
    def look_at(self) -> float:
        """Return the time at which the shard looks for chunks of other nodes."""
        return self._last_look + (0.0 if self._look_now else self._settings.follow_interval_s)

    @property
    def last_look(self) -> float:
        """Return the time at which the log was last read up to its head; minus infinity before the first."""
        return self._last_look

    def look_now(self) -> None:
        """Ask for a look at once: a reader waits for it."""
        self._look_now = True

    def commit_at(self, pending_bytes: int, *, urgent: bool, pending: bool, trailing: bool = False) -> float:
        """Return the time at which a commit is due; infinity while nothing is pending.

        Args:
            urgent: more than marks is pending.
            pending: anything is pending.
            trailing: a mark is pending that says something of records, or the first of its lane.
        """
        if pending_bytes >= self._settings.chunk_bytes_max:
            return float("-inf")
        if urgent:
            # From the last commit, not from the first batch: after a longer silence a batch does not wait.
            interval_s = self._settings.commit_interval_s
            return self._last_commit + (min(interval_s, HURRIED_S) if self._hurried else interval_s)
        return self._marks_at(trailing) if pending else float("inf")

    def marks_are_due(self, now: float, *, trailing: bool = False) -> bool:
        """Return whether marks alone are reason enough for a chunk; ``trailing`` as in ``commit_at``."""
        return self._marks_at(trailing) <= now

    def records_came(self, now: float) -> None:
        """Note that records wait for a commit."""
        if self._waiting_since is None:
            self._waiting_since = now

    def hurry(self) -> bool:
        """Note that a link soon may send no more before the next commit. Return whether that brings it forward."""
        if self._hurried or self._settings.commit_interval_s <= HURRIED_S:
            return False
        self._hurried = True
        return True

    def looked(self, now: float) -> None:
        """Note that the log was read up to its head."""
        self._last_look, self._look_now = now, False

    def wrote_chunk(self, now: float) -> None:
        """Note that a chunk of this node is in the log: marks that are pending went with it."""
        self._last_chunk = now

    def begin_commit(self) -> float | None:
        """Return when the oldest records came that wait for this commit; None when none do."""
        since, self._waiting_since = self._waiting_since, None
        self._hurried = False
        return since

    def end_commit(self, since: float | None, now: float, *, records_left: bool) -> None:
        """Note the end of a commit.

        Args:
            since: what ``begin_commit`` returned.
            records_left: the chunk had no room for all records, so the oldest of them wait since then.
        """
        self._last_commit = self._last_look = now
        if records_left and self._waiting_since is None:
            self._waiting_since = since

    def _marks_at(self, trailing: bool) -> float:
        interval_s = self._settings.mark_interval_s
        return self._last_chunk + (min(interval_s, self._settings.trailing_mark_s) if trailing else interval_s)
