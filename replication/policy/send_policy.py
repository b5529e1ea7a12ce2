"""Times at which the data of a link may be sent."""

from __future__ import annotations

from datetime import datetime

from weft.replication.liveness import SECOND
from weft.replication.policy.budget import BudgetCount, BudgetRule, reserve
from weft.replication.policy.pacing import TokenBucket, Transfers
from weft.replication.policy.rules import Order, PolicyRules
from weft.replication.policy.schedule import StreamWindows
from weft.replication.policy.throttle import Throttle
from weft.replication.send_window import AHEAD

LOOK_NS = 60 * SECOND
"""Longest time between two looks at the wall clock while it decides: it may be set meanwhile."""
MESSAGES_A_SECOND = 4
"""Messages into which the bytes of a second are cut, if they come by as many."""
MESSAGE_BYTES_MIN = 4 << 10
FRESH_AHEAD = SECOND
"""Time whose bytes may be in flight with ``fresh_first``: new records wait behind them."""
LINE_RATE = 64 << 10
"""Bytes a second of a line with ``fresh_first`` before they are measured."""


class SendPolicy:
    """The policy of one link, kept across its connections.

    ``look`` tells it the time before each message; the other calls count from there. Marks, PINGs and what opens lanes
    are sent at any time: only data and gap notices wait.
    """

    def __init__(self, rules: PolicyRules, *, is_paused: bool = False, count: BudgetCount | None = None) -> None:
        self.rules = rules
        self.is_paused = is_paused
        self.count = count or BudgetCount()
        """Bytes of this month, which the link's owner counts."""
        self.alive_rate = 0.0
        """Bytes a second that an idle link costs: part of the budget is kept for them."""
        self.version = 1
        """Raised when other lanes than before may be sent, or in another order."""
        self.line_rate = LINE_RATE
        """Bytes a second that the line carries, as its owner measures them for ``keeps_queue_short``."""
        self.throttle: Throttle | None = None
        """The hub's last request for a slower pace on this connection; None without one."""
        self._now = self._wall = 0
        self._queue_until = 0
        self._bucket: TokenBucket | None = None
        self._transfers: Transfers | None = None
        self._open: dict[StreamWindows, bool] = {}
        self._wall_due = 0
        """Wall time at which a window opens or shuts next."""
        self._streams: dict[str, tuple[int, StreamWindows | None]] = {}
        self._spent = False
        self._set(rules)

    def adopt(self, rules: PolicyRules) -> None:
        """Go on by other rules. What was sent counts for them too."""
        if rules != self.rules:
            self._set(rules)

    def _set(self, rules: PolicyRules) -> None:
        self.rules = rules
        self._streams.clear()
        if self._bucket is None or self._bucket.rate != rules.rate:
            self._bucket = TokenBucket(rules.rate, self._now) if rules.rate else None
        if self._transfers is None or self._transfers.every != rules.every:
            self._transfers = Transfers(rules.every, self._now) if rules.every else None
        self.chooses = rules.chooses
        self.keeps_queue_short = rules.order is Order.FRESH_FIRST
        self.ahead = FRESH_AHEAD if self.keeps_queue_short else AHEAD
        self.has_pace = bool(rules.rate or rules.every)
        self._open = {}
        self._wall_due = 0
        self.version += 1

    def look(self, now: int, wall: int) -> None:
        """Let time pass up to ``now`` (monotonic ns), which is ``wall`` (ns since 1970)."""
        is_back = wall < self._wall
        self._now, self._wall = now, wall
        if self.rules.schedule and (is_back or wall >= self._wall_due):
            states = {entry: entry.state(wall) for entry in self.rules.schedule}
            found = {entry: state for entry, (state, _) in states.items()}
            self._wall_due = min(until for _, until in states.values())
            if found != self._open:
                self._open = found
                self.version += 1
        budget = self.rules.budget
        self._spent = False
        if budget is not None:
            self.count.look(budget, wall)
            self._spent = self.count.used >= self._data_bytes(budget)

    def _data_bytes(self, budget: BudgetRule) -> int:
        return budget.size - reserve(budget, self.count.period.end, self._wall, self.alive_rate)

    def sent(self, size: int) -> None:
        """Note that a message of ``size`` bytes was handed to the socket."""
        if self._bucket is not None:
            self._bucket.take(size, self._now)

    def hold_until(self, at: int) -> None:
        """Let data wait until ``at``, monotonic ns: what is queued before the line lasts longer than that."""
        self._queue_until = at

    def begins(self) -> None:
        """Note that the next message has data."""
        if self._transfers is not None:
            self._transfers.sent(self._now)

    def is_drained(self) -> None:
        """Note that all that may be sent now was sent."""
        if self._transfers is not None and not self.is_held:
            self._transfers.is_drained()

    @property
    def now(self) -> int:
        """Return the time of the last ``look``."""
        return self._now

    @property
    def is_held(self) -> bool:
        """Return whether data waits now, of all lanes."""
        # Asked several times for each message: most links have no pace.
        if self.is_paused or self._spent or self._queue_until > self._now:
            return True
        if self.throttle is not None and self.throttle.until > self._now:
            return True
        return self.has_pace and self._opens_at() > self._now

    def _opens_at(self) -> int:
        at = self._bucket.refills_at() if self._bucket is not None else 0
        return max(at, self._transfers.opens_at) if self._transfers is not None else at

    def deadline(self) -> int | None:
        """Return the time for the next ``look``, monotonic ns; None if nothing changes with time alone."""
        due = []
        throttled = 0 if self.throttle is None else self.throttle.until
        due += [at for at in (self._opens_at(), self._queue_until, throttled) if at > self._now]
        if self.rules.schedule:
            due.append(self._now + min(LOOK_NS, max(0, self._wall_due - self._wall)))
        if self._spent:
            due.append(self._now + LOOK_NS)
        return min(due, default=None)

    def shuts(self, stream: str) -> bool:
        """Return whether the schedule shuts a stream now."""
        windows = self._of(stream)[1]
        return windows is not None and not self._open.get(windows, True)

    def priority(self, stream: str) -> int:
        """Return the priority of a stream."""
        return self._of(stream)[0]

    def _of(self, stream: str) -> tuple[int, StreamWindows | None]:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = self.rules.priority(stream), self.rules.windows(stream)
        return found

    def message_bytes(self, usual: int) -> int:
        """Return the bytes of a message: less than ``usual`` with a low rate, so that they come one by one, and on a
        slow line with ``fresh_first``, so that new records wait for few others."""
        rate = self.rules.rate or usual * MESSAGES_A_SECOND
        if self.throttle is not None and self.throttle.rate:
            rate = min(rate, self.throttle.rate)
        if self.keeps_queue_short:
            rate = min(rate, self.line_rate)
        return min(usual, max(MESSAGE_BYTES_MIN, rate // MESSAGES_A_SECOND))

    # -- for people

    def why_held(self) -> str:
        """Return why the link sends no data now, and until when; empty while it sends, or waits by ``rate``."""
        if self.is_paused:
            return "paused by an operator; `weft link resume` lets it go on"
        budget = self.rules.budget
        if self._spent and budget is not None:
            until = _local(self.count.period.end, budget.zone)
            return f"the month's budget of data is used up; data waits until {until}"
        if self._transfers is not None and self._transfers.opens_at > self._now:
            return f"the next transfer begins in {(self._transfers.opens_at - self._now) / SECOND:.0f} s (`every`)"
        shut = [entry for entry, is_open in self._open.items() if not is_open]
        if shut:
            streams = ", ".join(pattern for entry in shut for pattern in entry.streams)
            first = min(shut, key=lambda entry: entry.opens_at(self._wall))
            until = _local(first.opens_at(self._wall), first.zone)
            return f"the schedule shuts {streams}; a window opens at {until}"
        return self.throttle.why(self._now) if self.throttle is not None else ""


def _local(wall: int, zone: object) -> str:
    assert zone is not None
    return f"{datetime.fromtimestamp(wall // SECOND, zone):%Y-%m-%d %H:%M %Z}"  # type: ignore[arg-type]
