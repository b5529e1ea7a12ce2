"""The times at which a shard commits and reads chunks of other nodes. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Callable

from weft.cloud_hub.settings import SequencerSettings

HURRIED_S = 0.25
"""Longest time between two commits while a link needs acknowledgements before it may continue sending."""
LOOK_FACTOR_MAX = 16
"""Bound of the doubling interval of looks that find nothing: each look of an idle shard costs a request."""


PACED_SHARE = 0.2
"""Largest share of a process's time that its shards' commits take because records do not wait for the longest
interval."""
SPENT_FACTOR = 2
"""Processor time of a commit for each second that its chunk takes to make: applying it, acknowledgements and threads of
the store take about as long again."""
BUSY_S = 1.0
"""Time for which a shard counts as one that commits."""


class CommitPace:
    """Interval of the commits of one process's shards, by what the last ones cost. All times are seconds.

    A shard rests as long as its last commit took: a slow disk syncs for it in half of the time at most. And in one
    interval each busy shard commits once, so the interval is at least the sum of what their last commits cost, divided
    by the share of the process's time that they may take.

    Args:
        cpu_s: processor time of the event loop's thread. A clock on the wall would count other programs' time.
    """

    def __init__(self, settings: SequencerSettings, cpu_s: Callable[[], float] = lambda: 0.0) -> None:
        self.cpu_s = cpu_s
        self._most_s = settings.commit_interval_s
        self._least_s = min(settings.commit_interval_min_s or self._most_s, self._most_s)
        self._costs: dict[object, tuple[float, float]] = {}
        """Shard -> end and cost of its last commit, for those of the last ``BUSY_S``; in this order."""

    def after(self, shard: object, now: float, *, took_s: float, spent_s: float) -> float:
        """Return the interval from a commit's end to the shard's next commit.

        Args:
            shard: identity of the shard.
            now: end of the commit.
            took_s: the whole commit, with the store's answer.
            spent_s: processor time in which the chunk was made.
        """
        if self._least_s == self._most_s:
            return self._most_s
        self._costs.pop(shard, None)
        self._costs[shard] = now, spent_s * SPENT_FACTOR
        while (oldest := next(iter(self._costs))) is not shard and self._costs[oldest][0] < now - BUSY_S:
            del self._costs[oldest]
        of_all_s = sum(cost_s for _, cost_s in self._costs.values()) / PACED_SHARE
        return min(max(self._least_s, took_s, of_all_s), self._most_s)


class CommitSchedule:
    """Times of one shard's next commit and next read of the log, in seconds of one monotonic clock.

    Args:
        pace: shared by the shards of a process; one of its own without it.
    """

    def __init__(self, settings: SequencerSettings, pace: CommitPace | None = None) -> None:
        self._settings = settings
        self.pace = pace or CommitPace(settings)
        self._interval_s = settings.commit_interval_s
        """Interval from the last commit to the next, while records wait."""
        self._begun, self._spent_s = 0.0, 0.0
        self._last_commit = self._last_chunk = float("-inf")
        self._head_at = self._look_began = self._put_began = float("-inf")
        self._idle_since = float("-inf")
        """End of the last commit or look, from which on the next look waits."""
        self._look_now = False
        self._look_factor = 1
        self._hurried = False
        self._waiting_since: float | None = None
        """Arrival of the oldest records that no commit has begun to write."""

    @property
    def look_at(self) -> float:
        """Return the time at which the shard reads chunks of other nodes."""
        return self._idle_since + (0.0 if self._look_now else self._look_factor * self._settings.follow_interval_s)

    @property
    def head_at(self) -> float:
        """Return a time whose head of the log the state has reached; minus infinity before the first look.

        It is the beginning of a look, not its end: other nodes write while the store's answer is under way.
        """
        return self._head_at

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
            interval_s = self._interval_s
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

    def begin_look(self, now: float) -> None:
        """Note that a read of the log up to its head begins."""
        self._look_began = now

    def looked(self, now: float, *, found: bool) -> None:
        """Note that the log was read up to its head.

        Args:
            found: whether another node had written a chunk: the next look is then due soon.
        """
        self._head_at, self._idle_since, self._look_now = self._look_began, now, False
        self._look_factor = 1 if found else min(2 * self._look_factor, LOOK_FACTOR_MAX)

    def wrote_chunk(self, now: float) -> None:
        """Note that a chunk of this node is in the log, with all pending marks."""
        self._last_chunk = now

    def put_chunk(self, began: float) -> None:
        """Note that the store took this node's chunk as the next one, and when its writing began.

        Then the chunk before was the head, so the commit is a look. It counts at the commit's end: only the check of
        the watermark shows whether the chunk is in the log.
        """
        self._put_began = began

    def begin_commit(self, now: float) -> float | None:
        """Return the arrival time of the oldest records that wait for this commit; None without any."""
        since, self._waiting_since = self._waiting_since, None
        self._hurried = False
        self._begun, self._spent_s = now, 0.0
        return since

    def spent(self, seconds: float) -> None:
        """Note the processor time in which a chunk of this commit was made."""
        self._spent_s += seconds

    def end_commit(self, since: float | None, now: float, *, records_left: bool) -> None:
        """Note the end of a commit.

        Args:
            since: the result of ``begin_commit``.
            records_left: True if the chunk had no room for all records, so that the oldest have waited since then.
        """
        self._last_commit = self._idle_since = now
        self._head_at = max(self._head_at, self._put_began)
        self._interval_s = self.pace.after(self, now, took_s=now - self._begun, spent_s=self._spent_s)
        if records_left and self._waiting_since is None:
            self._waiting_since = since

    def _marks_at(self, trailing: bool) -> float:
        interval_s = self._settings.mark_interval_s
        return self._last_chunk + (min(interval_s, self._settings.trailing_mark_s) if trailing else interval_s)
