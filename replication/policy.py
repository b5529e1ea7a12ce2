"""Policy of a link: when data may be sent. Rules, windows of time, bytes in a month, pace, and a hub's request for a
slower one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple
from zoneinfo import ZoneInfo

from weft.config.units import parse_window
from weft.protocols.link import Throttled
from weft.replication.flow_control import AHEAD
from weft.replication.liveness import SECOND

# Bytes of a link in a month, counted on the wire.

PERIODS_MAX = 4
"""Months whose counts are kept: a clock that was wrong for a while comes back to the right one's."""
RESERVE_PART = 2
"""Part of the budget that keeping the link alive may hold back at most."""


class BudgetRule(NamedTuple):
    """A monthly budget."""

    size: int
    """Bytes of a month, of both directions."""
    day: int
    """Day of the month on which the next month begins, 1 to 28."""
    zone: ZoneInfo


class Period(NamedTuple):
    """A month of a budget."""

    name: str
    """Date of its first day."""
    end: int
    """Time of its end, ns since 1970."""


def period_of(rule: BudgetRule, wall: int) -> Period:
    """Return the month at ``wall``, ns since 1970."""
    local = datetime.fromtimestamp(wall // SECOND, rule.zone)
    first = local.replace(day=rule.day, hour=0, minute=0, second=0, microsecond=0, fold=0)
    if first > local:
        first = (first.replace(day=1) - timedelta(days=1)).replace(day=rule.day)
    after = (first.replace(day=28) + timedelta(days=4)).replace(day=rule.day)
    return Period(first.date().isoformat(), int(after.timestamp()) * SECOND)


class BudgetCount:
    """The bytes of a link by month. They are kept over restarts by its owner: ``counts``.

    A subclass may share a budget with others (``cloud_hub.regions.budget``).
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = dict(counts or {})
        """Name of a period -> its bytes, the last used at the end."""
        self.period = Period("", 0)

    def look(self, rule: BudgetRule, wall: int) -> None:
        """Find the month at ``wall``. A clock that goes back leads to the earlier month's count."""
        period = period_of(rule, wall)
        if period != self.period:
            self.period = period
            self.counts[period.name] = self.counts.pop(period.name, 0)
            for name in list(self.counts)[:-PERIODS_MAX]:
                del self.counts[name]

    @property
    def used(self) -> int:
        """Return the bytes of this month."""
        return self.counts.get(self.period.name, 0)

    def add(self, size: int) -> None:
        """Count bytes of this month."""
        self.counts[self.period.name] = self.counts.get(self.period.name, 0) + size

    def is_spent(self, rule: BudgetRule, wall: int, rate: float) -> bool:
        """Return whether data has to wait at ``wall``.

        Args:
            rate: bytes a second that keeping the link alive costs: they are kept back until the month's end.
        """
        return self.used >= rule.size - reserve(rule, self.period.end, wall, rate)

    def why_spent(self, rule: BudgetRule) -> str:
        """Return a sentence for people about data that waits, and until when."""
        return f"the month's budget of data is used up; data waits until {local_time(self.period.end, rule.zone)}"


def reserve(rule: BudgetRule, end: int, wall: int, rate: float) -> int:
    """Return the bytes of the budget that keep the link alive until the month's end, at ``rate`` bytes a second: data
    must leave them. At most half of the budget."""
    return min(rule.size // RESERVE_PART, int(max(0, end - wall) / SECOND * rate))


# Pace of a link's data: a bucket of bytes, and transfers apart from each other. Monotonic nanoseconds.


class TokenBucket:
    """Bytes that may be sent at once: those of a second. A message may take more than there are, and those after it
    wait until they have come back, so that the mean is right without a message being cut."""

    def __init__(self, rate: int, now: int) -> None:
        self.rate = rate
        self._owed = 0
        """Bytes times ``SECOND`` that were sent beyond the rate; the bucket is empty above ``rate * SECOND``."""
        self._at = now

    def take(self, size: int, now: int) -> None:
        """Count bytes sent at ``now``."""
        self._owed = max(0, self._owed - (now - self._at) * self.rate) + size * SECOND
        self._at = now

    def refills_at(self) -> int:
        """Return the time from which bytes may be sent."""
        over = self._owed - self.rate * SECOND
        return self._at + -(-over // self.rate) if over >= 0 else self._at


class Transfers:
    """Transfers of data at least ``every`` apart. One transfer has all that waits, until nothing is left."""

    def __init__(self, every: int, now: int) -> None:
        self.every = every
        self.opens_at = now
        """Time from which data may be sent."""
        self._began: int | None = None

    def sent(self, now: int) -> None:
        """Note that data is sent: a transfer begins, if none continues."""
        if self._began is None:
            self._began = now

    def is_drained(self) -> None:
        """Note that nothing is left to send: the transfer ends."""
        if self._began is not None:
            self.opens_at = self._began + self.every
            self._began = None


# Windows of local time in which streams may be sent.

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LOOK_DAYS = 8
"""Days ahead whose windows are looked at: each day of the week, and today's again."""

JUMP_S_MAX = 86_400
"""Most that clocks skip at once: a day, as in Samoa in 2011."""


class DayWindow(NamedTuple):
    """A window of local time, from ``begin`` to before ``end``; one that does not end later than it begins ends on the
    next day."""

    begin: time
    end: time


@dataclass(frozen=True)
class StreamWindows:
    """The windows of some streams."""

    streams: tuple[str, ...]
    """Patterns of their names."""
    windows: tuple[DayWindow, ...]
    zone: ZoneInfo
    days: frozenset[int] = frozenset(range(7))
    """Days of the week on which a window begins, Monday 0."""

    @classmethod
    def of(cls, streams: tuple[str, ...], between: Iterable[str], days: Iterable[str], zone: str) -> StreamWindows:
        """Return the windows of a schedule's entry.

        Args:
            between: windows such as ``01:00-05:00``.
            days: names of days of the week, as in ``DAYS``.
            zone: name in the IANA database.
        """
        windows = tuple(DayWindow(*parse_window(text)) for text in between)
        return cls(streams, windows, ZoneInfo(zone), frozenset(map(DAYS.index, days)))

    def has(self, stream: str) -> bool:
        """Return whether the windows are those of a stream."""
        return any(fnmatchcase(stream, pattern) for pattern in self.streams)

    def state(self, wall: int) -> tuple[bool, int]:
        """Return whether a window is open at ``wall``, and a time until which that holds at least; ns since 1970."""
        now = wall // SECOND
        is_open, until = False, now + LOOK_DAYS * 86_400
        today = datetime.fromtimestamp(now, self.zone).date()
        for begin, end in self._around(today):
            if begin <= now < end:
                is_open = True
            until = min([until, *(edge for edge in (begin, end) if edge > now)])
        return is_open, until * SECOND

    def opens_at(self, wall: int) -> int:
        """Return the time from which a window is open, at ``wall`` or later; ns since 1970."""
        now = wall // SECOND
        today = datetime.fromtimestamp(now, self.zone).date()
        return SECOND * min((max(begin, now) for begin, end in self._around(today) if end > now), default=now)

    def _around(self, today: date) -> Iterator[tuple[int, int]]:
        """Iterate over the windows from yesterday on, as seconds since 1970."""
        for ahead in range(-1, LOOK_DAYS):
            day = today + timedelta(days=ahead)
            if day.weekday() in self.days:
                for begin, end in self.windows:
                    last = day if end > begin else day + timedelta(days=1)
                    closes = self._instant(last, end, fold=1)
                    yield self._begin(day, begin, closes), closes

    def _begin(self, day: date, at: time, closes: int) -> int:
        """Return seconds since 1970 of a window's begin, which is before its end.

        A window may begin in a skipped hour and end soon after it: 02:30 to 03:15. An hour later it would begin behind
        its end and never open, so it begins when the clocks jump, as a clock on the wall shows.
        """
        opens = self._instant(day, at, fold=0)
        if opens < closes:
            return opens
        after = datetime.fromtimestamp(opens, self.zone).utcoffset()
        # Behind the jump is every second with the offset of ``opens``, which is at most the jump's length behind it.
        return bisect_left(
            range(opens + 1),
            True,
            opens - JUMP_S_MAX,
            opens,
            key=lambda second: datetime.fromtimestamp(second, self.zone).utcoffset() == after,
        )

    def _instant(self, day: date, at: time, *, fold: int) -> int:
        """Return seconds since 1970.

        Where clocks go back, a window begins at the first of the two times and ends at the second. A time that clocks
        skip is taken with the offset from before, so that a window inside of the skipped hour is an hour later.
        """
        local = datetime.combine(day, at, self.zone)
        first, second = local.timestamp(), local.replace(fold=1).timestamp()
        is_skipped = first > second  # PEP 495: in a gap, fold=0 is the later of the two
        return int(first if is_skipped or fold == 0 else second)


# A hub's request for a slower pace: its tenant is at a quota. Monotonic nanoseconds.

SHOWN = 10 * SECOND
"""Time after the last wait for which a link counts as slowed: between two waits it sends some messages."""


class Throttle:
    """The last request of a connection.

    Args:
        now: time of its arrival.
    """

    def __init__(self, throttled: Throttled, now: int) -> None:
        self.until = now + throttled.wait
        """Time up to which no data is sent."""
        self.rate = throttled.bytes_per_second
        """Bytes a second that the link can expect, for the size of messages; 0 if unknown."""
        self._reason = throttled.reason

    def why(self, now: int) -> str:
        """Return why the link is slow, for people; empty when it no longer is."""
        if not self._reason or now >= self.until + SHOWN:
            return ""
        wait = max(0, self.until - now) / SECOND
        return f"throttled by the hub's quota: {self._reason}" + (f"; data waits {wait:.0f} s" if wait >= 1 else "")


# The rules of a link's policy, as an operator sets them.

PRIORITY = 10
"""Priority of a stream that no pattern matches."""
HOLES_MAX = 8
"""Most holes that ``fresh_first`` leaves in a lane: each one is a range in the sets of edge and hub."""


class Order(StrEnum):
    """Order in which a lane's records are sent."""

    STRICT = "strict"
    """Oldest first."""
    FRESH_FIRST = "fresh_first"
    """New records at once, and those that waited before them beside them."""


@dataclass(frozen=True)
class PolicyRules:
    """Rules of one link. The default ones send everything at once, the oldest record of each lane first."""

    order: Order = Order.STRICT
    history_share: float = 0.2
    """Share of the bytes that records from before the connection get, with ``fresh_first``, while new ones wait too."""
    priorities: tuple[tuple[str, int], ...] = ()
    """(pattern of stream names, priority): lanes that wait share the link in proportion. The first match counts."""
    rate: int = 0
    """Maximum number of bytes handed to the socket in a second; 0: no limit."""
    every: int = 0
    """Least time from the beginning of one transfer of data to the next, ns."""
    schedule: tuple[StreamWindows, ...] = ()
    """Times at which streams may be sent. The first entry with the stream counts; others are always sent."""
    budget: BudgetRule | None = None
    """Bytes of a month; None: no limit."""

    def priority(self, stream: str) -> int:
        """Return the priority of a stream."""
        return next((number for pattern, number in self.priorities if fnmatchcase(stream, pattern)), PRIORITY)

    def windows(self, stream: str) -> StreamWindows | None:
        """Return the windows of a stream; None if it may always be sent."""
        return next((entry for entry in self.schedule if entry.has(stream)), None)

    @property
    def chooses(self) -> bool:
        """Return whether lanes and records are sent in another order than by plain turns, the oldest record first."""
        return self.order is not Order.STRICT or bool(self.priorities or self.schedule)


# Times at which the data of a link may be sent.

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
        """Continue by other rules. What was sent counts for them too."""
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
            self._spent = self.count.is_spent(budget, wall, self.alive_rate)

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
            return "paused by an operator; `weft link resume` lets it continue"
        budget = self.rules.budget
        if self._spent and budget is not None:
            return self.count.why_spent(budget)
        if self._transfers is not None and self._transfers.opens_at > self._now:
            return f"the next transfer begins in {(self._transfers.opens_at - self._now) / SECOND:.0f} s (`every`)"
        shut = [entry for entry, is_open in self._open.items() if not is_open]
        if shut:
            streams = ", ".join(pattern for entry in shut for pattern in entry.streams)
            first = min(shut, key=lambda entry: entry.opens_at(self._wall))
            until = local_time(first.opens_at(self._wall), first.zone)
            return f"the schedule shuts {streams}; a window opens at {until}"
        return self.throttle.why(self._now) if self.throttle is not None else ""


def local_time(wall: int, zone: object) -> str:
    """Return the moment ``wall`` (ns since 1970) for people, with the name of its zone."""
    assert zone is not None
    return f"{datetime.fromtimestamp(wall // SECOND, zone):%Y-%m-%d %H:%M %Z}"  # type: ignore[arg-type]
