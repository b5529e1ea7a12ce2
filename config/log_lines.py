"""Lines of a log: repetitions at growing intervals, a bound on floods, and what goes up and down."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weft.config.units import approximate_duration

# Repetitions in a log: a line is written the first time, and then at growing intervals with a count.

FIRST_INTERVAL_S = 60.0
"""Wait before the second line. A link that is tried every 30 s would write 2,880 lines a day without it."""
INTERVAL_S_MAX = 3600.0
"""Longest wait: the last hour of a log shows that the trouble continues."""
KEYS_MAX = 1024
"""Maximum number of keys remembered. The key asked about longest ago is forgotten first; its next line is then
written."""


@dataclass(slots=True)
class _Line:
    next_at: float
    interval_s: float
    left_out: int = 0


class Repeats:
    """A filter of repeated lines. Keys are texts that are equal for lines of the same meaning.

    ``now`` is monotonic seconds throughout.
    """

    def __init__(
        self, first_s: float = FIRST_INTERVAL_S, longest_s: float = INTERVAL_S_MAX, keys_max: int = KEYS_MAX
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._keys_max = keys_max
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def due(self, key: str, now: float, *, always: bool = False) -> int | None:
        """Return the number of repetitions left out since the last line; None when this one is left out too.

        Args:
            always: write the line in any case; the intervals grow from here.
        """
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(now + self._first_s, self._first_s)
            if len(self._lines) > self._keys_max:
                self._lines.popitem(last=False)
            return 0
        self._lines.move_to_end(key)
        if now >= line.next_at + self._longest_s:
            # It has been quiet for so long that this is news, but every repetition is counted.
            line.interval_s = self._first_s / 2
        if now < line.next_at and not always:
            line.left_out += 1
            return None
        left_out, line.left_out = line.left_out, 0
        line.interval_s = min(2 * line.interval_s, self._longest_s)
        line.next_at = now + line.interval_s
        return left_out

    def forget(self, key: str) -> None:
        """Let the next ``say`` of a key be the first, because its trouble is over."""
        self._lines.pop(key, None)

    def clear(self) -> None:
        """Forget every key."""
        self._lines.clear()


def left_out(count: int) -> str:
    """Return the part of a line about left-out repetitions; empty for none."""
    return f"; {count:,} more like this since the last line" if count else ""


# A bound on log lines, so that a flood of bad connections cannot fill the disk with messages about them.

LINES_MAX = 200
"""Maximum number of lines of one logger in an interval; metrics count all of them."""
INTERVAL_S = 10.0


class Throttle(logging.Filter):
    """A filter that passes the first lines of each interval. The next interval's first line says how many were left
    out."""

    def __init__(
        self, lines_max: int = LINES_MAX, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._interval_s = interval_s
        self._clock = clock
        self._began = -interval_s
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is within the bound. One thread at a time."""
        now = self._clock()
        if now - self._began >= self._interval_s:
            left_out, self._began, self._lines = self._lines - self._lines_max, now, 0
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out:,} lines before this one were left out)"
                record.args = None
        self._lines += 1
        return self._lines <= self._lines_max


# Words for a machine's clock that differs from a hub's.

CLOCK_DIFFERS_S = 10.0
"""Smallest difference that is reported. Time services keep a clock within a second, and a slow link's
estimate is right within a few."""


def clock_difference(offset_s: float | None) -> str | None:
    """Return the difference of this machine's clock in words; None while it is small or unknown.

    Args:
        offset_s: seconds to add to this machine's clock to get the hub's.
    """
    if offset_s is None or abs(offset_s) < CLOCK_DIFFERS_S:
        return None
    return f"{approximate_duration(abs(offset_s))} {'behind' if offset_s > 0 else 'ahead of'} the hub's"


# Log lines about closed clients: lines that many clients cause at once, or one again and again, are joined.

KEYED_CHARACTERS_MAX = 300
"""Length of the beginning that distinguishes a reason from others; clients can make a reason as long as a frame."""
_OF_ONE_ATTEMPT = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|0x[0-9a-f]+|[0-9]+""")
"""Parts of a reason that differ from attempt to attempt, and that a client may choose."""
NAMES_MAX = 8
"""Names in such reasons of one address that have lines of their own: they show which devices of a site have an old
password."""
ADDRESSES_MAX = 1024
"""Addresses whose names are remembered; the one seen longest ago is forgotten first."""

_NOT_STORED = re.compile(r"(what (it sent|was published|was declared) could not be stored|released)\b")


class DisconnectLog:
    """Filter of such lines: the first is written, and then one after 1, 2, 4 minutes with a count.

    A device that is refused comes back each second. Fifty of them on a full disk would write megabytes in an hour,
    perhaps on the same disk; and addresses that need no password to fail could fill it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without any line written.

        Args:
            clock: the loop's, in seconds.
        """
        self._clock = clock
        self._not_stored = Repeats()
        self._strangers = Repeats()
        self._names: OrderedDict[str, set[str]] = OrderedDict()
        """Address and kind of reason -> names in it."""

    def closed(
        self, log: logging.Logger, who: str, reason: str, level: int = logging.WARNING, stranger_at: str | None = None
    ) -> None:
        """Log why a client was closed. Warnings with the same text are joined.

        A failure to store is one line for all clients that meet it. A refused client is one line for all of its address
        with such a reason, apart from the first few names in it.

        Args:
            who: beginning of the line, with the client's name.
            stranger_at: address that costs are charged to, of a refused client.
        """
        count: int | None = 0
        kind = f"{log.name} {_OF_ONE_ATTEMPT.sub('', reason[:KEYED_CHARACTERS_MAX])}"
        if level < logging.WARNING:
            pass
        elif _NOT_STORED.match(reason):
            count = self._not_stored.due(kind, self._clock())
        elif stranger_at is not None:
            count = self._strangers.due(self._stranger(f"{stranger_at} {kind}", reason), self._clock())
        if count is not None:
            log.log(level, "%s: %s%s", who, reason, left_out(count))

    def _stranger(self, kind: str, reason: str) -> str:
        """Return the common key of the lines that are joined."""
        name = "".join(part for part in _OF_ONE_ATTEMPT.findall(reason[:KEYED_CHARACTERS_MAX]) if part[0] in "'\"")
        names = self._names.setdefault(kind, set())
        self._names.move_to_end(kind)
        if len(self._names) > ADDRESSES_MAX:
            self._names.popitem(last=False)
        if name not in names and len(names) >= NAMES_MAX:
            return kind
        names.add(name)
        return f"{kind} {name}"


# The log lines of a thing that goes up and down: each change once, repetitions ever more rarely.

STABLE_S = 60.0
"""A thing that stayed up this long is well again: its next trouble is new, not a repetition."""
KEY_CHARACTERS_MAX = 300
THINGS_MAX = 32
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
        self._repeats = Repeats(keys_max=THINGS_MAX)
        self._changed_at = now
        self._is_up = False
        self._ever_up = False
        self._logged_up = False
        self._failures = 0

    def up(self, now: float) -> Up | None:
        """Note that the thing is up; None when no line is due."""
        change = Up(self._ever_up, now - self._changed_at, self._failures)
        # While a thing goes up and down, its downs are written rarely; an up is written only after a down that was
        # written.
        is_due = not self._logged_up
        self._is_up = self._ever_up = self._logged_up = True
        self._changed_at, self._failures = now, 0
        return change if is_due else None

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
        is_stale = self._logged_up and not was_up and since_s >= STABLE_S
        left_out = self._repeats.due(key, now, always=is_stale)
        if left_out is None:
            return None
        self._logged_up = False
        return Down(was_up, since_s, self._failures, left_out)
