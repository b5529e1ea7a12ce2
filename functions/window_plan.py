"""Settings of windows in nanoseconds, checked against each other."""

from __future__ import annotations

import ast
import functools
import heapq
import math
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from weft.config.functions.windows import Grid, Windowing, grid_problem
from weft.functions.contract import Row, names_in

# Reasons why a window cannot take a row.


class Refusal(Exception):
    """A row that a window cannot take, with a reason for people. It goes to the stream of errors."""


class Late(Refusal):
    """A row that arrived after all its windows were closed."""


class Full(Refusal):
    """A row that needs a new window when the bound on windows is reached."""


# Times of events from devices, and window bounds for tables.

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT_TIME_END = int(datetime(2250, 1, 1, tzinfo=UTC).timestamp()) * SECOND
"""End of the times of events. 64 bits of nanoseconds reach to 2262, and windows end later than they begin."""
CLOCK_SET = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) * SECOND
"""Time before which a node's clock is not set: boards without a battery begin in 1970 or 2000."""
_UNITS = {"s": SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1}


def nanoseconds(seconds: float) -> int:
    """Return a duration of the settings in ns."""
    return round(seconds * SECOND)


def whole_second(time: int) -> int:
    """Return the first whole second that is not before a time: the first tick that can see it."""
    return -(-time // SECOND) * SECOND


def event_time_reader(field: str, unit: str, zone: str = "UTC") -> Callable[[Any], int]:
    """Return a function from a field's value to ns since 1970.

    Numbers are of the given unit since 1970. Text is ISO 8601, and of a zone where it names no offset. By default this
    is UTC: with a local summer time, two hours of each year have the same times, and both are taken for the first.
    """
    factor = _UNITS[unit]
    assumed = UTC if zone == "UTC" else ZoneInfo(zone)

    def read(value: Any) -> int:
        if type(value) is int:
            time = value * factor
        elif type(value) is float:
            if not math.isfinite(value):
                raise Refusal(f"{field} is {value}, which is not a valid time")
            # Split, as a float of seconds times 10**9 would lose the last digits of its fraction.
            whole = math.floor(value)
            time = whole * factor + round((value - whole) * factor)
        elif type(value) is str:
            time = _from_text(field, value, assumed)
        else:
            raise Refusal(f"{field} is of type {type(value).__name__}; expected a time, as number or ISO 8601 text")
        if not 0 <= time < EVENT_TIME_END:
            raise Refusal(f"{field} is {value!r}, which is outside 1970 to 2250; check the time's unit ({unit})")
        return time

    return read


def _from_text(field: str, text: str, assumed: tzinfo) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"{field} is {text[:40]!r}; expected a time such as 2026-01-31T12:00:00Z") from None
    # PEP 495: fold 0 is the first of two, and the offset before the change where clocks were set forward.
    since = (moment if moment.tzinfo else moment.replace(tzinfo=assumed)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000


@functools.lru_cache(maxsize=1024)
def iso_text(time: int, digits: int) -> str:
    """Return a time as ISO 8601 in UTC with so many digits of a second: a form that SQL engines cast to a timestamp.

    All texts of one stream have the same digits, so that they sort like the times.
    """
    whole, fraction = divmod(time, SECOND)
    text = (_EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:09}"[: len(text) + 1 + digits] + "Z" if digits else f"{text}Z"


def digits_of(*durations: int) -> int:
    """Return the number of digits of a second that multiples of some durations in ns need: 0, 3, 6 or 9."""
    step = math.gcd(*durations, SECOND)
    return next(digits for digits in (0, 3, 6, 9) if step % 10 ** (9 - digits) == 0)


PARTS_MAX = 10_000
"""Maximum number of parts (``every``) of one hopping window."""
LONGER = 86_400 * 10**9
"""Most by which setting the clocks makes a window longer: zones have crossed the date line."""
_SESSION_DIGITS = 6


class WindowError(ValueError):
    """Contradicting settings of a window; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Times of windows in ns."""

    every: int
    """Distance between two starts; 0 for sessions."""
    size: int
    offset: int
    gap: int
    """Silence that ends a session; 0 for windows of fixed length."""
    longest: int
    by_event: bool
    lateness: int
    idle: int
    """Silence of a group after which its windows close."""
    ahead: int
    digits: int
    """Digits of a second in the bounds of windows."""
    grid: Grid | None = None
    """Windows by the clocks of a zone; None for those of UTC."""

    @property
    def is_hopping(self) -> bool:
        """Return whether windows overlap."""
        return self.size > self.every

    @property
    def span(self) -> int:
        """Return the longest window."""
        if self.grid is not None:
            return self.size + LONGER
        return self.longest + self.gap if self.gap else self.size

    @property
    def open_at_once(self) -> int:
        """Return the number of open windows, or parts of them, of a group with continuous rows."""
        return (self.size + self.lateness) // self.every + 2 if self.every else 0

    @property
    def remember(self) -> int:
        """Return the time for which a group without open windows is remembered, so that late rows are recognised."""
        return max(3600 * 10**9, 10 * (self.idle + self.lateness))

    @classmethod
    def of(cls, settings: Windowing) -> Plan:
        """Return the plan of some settings.

        Raises:
            WindowError: they contradict each other.
        """
        _check(settings)
        every, size, offset = (
            nanoseconds(each or 0) for each in (settings.every_s, settings.size_s, settings.offset_s)
        )
        grid = _grid(settings, every, offset)
        gap, lateness = nanoseconds(settings.gap_s or 0), nanoseconds(settings.lateness_s)
        size = size or every
        if every and size % every:
            raise WindowError("size is not a multiple of every; windows are put together from parts of that length")
        if every and size // every > PARTS_MAX:
            raise WindowError(f"size is more than {PARTS_MAX:,} times every; set a longer every")
        return cls(
            every=every,
            size=size,
            offset=offset,
            gap=gap,
            longest=nanoseconds(settings.longest_s),
            by_event=settings.time is not None,
            lateness=lateness,
            idle=(gap or size) + lateness if settings.idle_s is None else nanoseconds(settings.idle_s),
            ahead=nanoseconds(settings.ahead_s),
            digits=_SESSION_DIGITS if gap else digits_of(every, offset),
            grid=grid,
        )


def _grid(settings: Windowing, every: int, offset: int) -> Grid | None:
    if settings.zone is None:
        return None
    if settings.gap_s is not None or settings.size_s not in (None, settings.every_s):
        other = "gap" if settings.gap_s is not None else "size"
        raise WindowError(f"zone does not go with {other}: only windows that follow each other have a local time")
    grid = Grid(every // 1_000, offset // 1_000, settings.zone)
    problem = grid_problem(grid.every_us, grid.offset_us, grid.zone)
    if problem is None and (every % 1_000_000_000 or offset % 1_000_000_000):
        problem = "offset", "is not a whole number of seconds, and a zone needs one"
    if problem is not None:
        raise WindowError(" ".join(problem))
    return grid


def _check(settings: Windowing) -> None:
    if settings.gap_s is None and settings.every_s is None:
        raise WindowError("a window needs every (such as 1m), or gap (such as 30s) for sessions")
    if settings.gap_s is not None:
        for name, value in (("every", settings.every_s), ("size", settings.size_s), ("offset", settings.offset_s)):
            if value:
                raise WindowError(f"{name} does not go with gap: a session begins and ends with its rows")
        if settings.longest_s <= settings.gap_s:
            raise WindowError("longest is not longer than gap")
    if settings.offset_s and settings.every_s and settings.offset_s >= settings.every_s:
        raise WindowError("offset is not shorter than every")
    if settings.time is None and (settings.lateness_s or settings.idle_s is not None):
        raise WindowError(
            "lateness and idle need time, the field with the time of the event: by the node's own time no row is late"
        )
    if len(settings.by) > 1 and "none" in settings.by:
        raise WindowError("by: none must be alone")
    if len(set(settings.by)) < len(settings.by):
        raise WindowError("by names something twice")


# Shares of the topics in the rows that one window keeps: in a full window, the topic with the most loses rows.

_INT_BYTES = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_BIN_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
NAMED_MAX = 16
"""Maximum number of topics with their own count of a window's cut rows. Further topics share one count."""
NAME_CHARACTERS_MAX = 100
OTHERS = ""
"""Name under which the cut rows of further topics are counted."""


def topic_of(item: bytes) -> bytes:
    """Return the topic of a kept row: packed are its time, its topic, and more.

    Rows may have a megabyte, so the data behind the topic is not decoded.
    """
    at = 1 + _INT_BYTES.get(item[1], 1)
    length = _BIN_LENGTH_BYTES[item[at]]
    start = at + 1 + length
    return item[start : start + int.from_bytes(item[at + 1 : start])]


class _Share:
    """Rows of one topic."""

    __slots__ = ("chunks", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.chunks: list[int] = []
        """Numbers of the pieces that have some of them, ascending."""


class Shares:
    """Weights of the topics in a window, and the pieces of kept rows that have them.

    All of it is derived from the kept rows, so a start after a crash has the same.
    """

    def __init__(self) -> None:
        self._of: dict[bytes, _Share] = {}
        self._heap: list[tuple[int, bytes]] | None = None
        """Topics by weight, the largest first, with outdated entries. None until a row is cut."""

    def add(self, topic: bytes, chunk: int, weight: int) -> None:
        """Count a row that is kept in a piece."""
        share = self._of.get(topic)
        if share is None:
            share = self._of[topic] = _Share()
        share.weight += weight
        if not share.chunks or share.chunks[-1] != chunk:
            share.chunks.append(chunk)
        self._note(topic, share)

    def take(self, topic: bytes, weight: int) -> None:
        """Count a removed row."""
        share = self._of[topic]
        share.weight -= weight
        if share.weight:
            self._note(topic, share)
        else:
            del self._of[topic]

    def weight(self, topic: bytes) -> int:
        """Return the weight of a topic's rows."""
        share = self._of.get(topic)
        return share.weight if share is not None else 0

    def chunks(self, topic: bytes) -> list[int]:
        """Return the pieces that may have rows of a topic, ascending. The caller removes those that have none."""
        return self._of[topic].chunks

    def largest(self) -> bytes:
        """Return the topic of the greatest weight, at equal weights the least by its bytes. There must be one."""
        heap = self._heap
        if heap is None or len(heap) > 2 * len(self._of) + 64:
            heap = self._heap = [(-share.weight, topic) for topic, share in self._of.items()]
            heapq.heapify(heap)
        while self.weight(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def _note(self, topic: bytes, share: _Share) -> None:
        if self._heap is not None:
            heapq.heappush(self._heap, (-share.weight, topic))


def count_cut(counts: dict[str, int], topic: bytes, number: int = 1) -> None:
    """Count rows of a topic that were cut."""
    add_counts(counts, {topic.decode(errors="replace")[:NAME_CHARACTERS_MAX]: number})


def add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    """Add other counts of cut rows."""
    for name, number in more.items():
        at = name if name in counts or len(counts) < NAMED_MAX else OTHERS
        counts[at] = counts.get(at, 0) + number


def counts_text(counts: dict[str, int]) -> str:
    """Return the topics whose rows were cut, for people: most first. Empty where they are unknown."""
    names = sorted(counts, key=lambda name: (name == OTHERS, -counts[name], name))
    return ", ".join(f"{name or 'others'} {counts[name]:,}" for name in names)


# Groups of rows and their open windows in memory. ``State`` has the same as plain values.

_START = struct.Struct(">q")
PANE, GROUP, CHUNK, GAPS = b"w", b"g", b"k", b"!"
"""First byte of a key of ``State``: an open window, a group's memory, kept rows, gaps."""

FIRST, COUNT, START, LAST = 0, 1, 2, 3
"""Indexes in the numbers of a window: ingest time of its oldest row, number of its rows; for a session, the times of
its first and last event."""
GREATEST, CLOSED, LATE, SEEN = 0, 1, 2, 3
"""Indexes in a group's memory: greatest time of an event, greatest end of an emitted window, number of late rows since
then, and ingest time of the last row."""
NEVER, ALWAYS = -(1 << 63), (1 << 63) - 1
"""Times before and after all other times."""


class Pane:
    """An open window, or a part shared by overlapping windows."""

    __slots__ = ("chunks", "key", "numbers", "shares", "start", "tail")

    def __init__(self, start: int, key: bytes, numbers: list[Any], shares: Shares | None = None) -> None:
        self.start = start
        """First time of the window; for a session, the time of the row that opened it."""
        self.key = key
        self.numbers = numbers
        self.chunks = 0
        """Number of pieces with its kept rows, if rows are kept."""
        self.tail: list[Any] = []
        """Last piece."""
        self.shares = shares
        """Shares of the topics in them; None where topics do not displace each other."""


class Group:
    """Rows that share windows."""

    __slots__ = (
        "closing",
        "due",
        "end",
        "fields",
        "gid",
        "key",
        "memory",
        "memory_key",
        "name",
        "next",
        "pane",
        "panes",
        "start",
    )

    def __init__(self, gid: bytes, name: Any, key: bytes, fields: dict[str, Any], memory: list[int] | None) -> None:
        self.gid = gid
        """Bytes that identify the group."""
        self.name = name
        """Text, or texts, for the look-up by rows; None where its values are not all text."""
        self.key = key
        """Key of its outputs."""
        self.fields = fields
        """Values that define the group, in the form of its outputs."""
        self.memory = memory
        """Numbers that outlive its windows; None where none must."""
        self.memory_key = GROUP + gid if memory is not None else b""
        """Key of the memory in ``State``."""
        self.panes: list[Pane] = []
        """Open windows, by start."""
        self.next = NEVER
        """Time at or before the end of the window that closes next."""
        self.closing = 0
        """Number of its closed windows that wait to be emitted."""
        self.due: int | None = None
        """Tick for which it is in the schedule."""
        # The window of the last row, checked first for the next one, and its range of times.
        self.pane: Pane | None = None
        self.start = self.end = 0

    def turn_to(self, pane: Pane, start: int, end: int) -> None:
        """Set the window to check first for the next row: it takes times from ``start`` to ``end``."""
        self.pane, self.start, self.end = pane, start, end

    def turn_away(self) -> None:
        """Clear the window to check first."""
        self.pane, self.start, self.end = None, 0, 0


def pane_key(start: int, gid: bytes) -> bytes:
    """Return the key of a window in ``State``."""
    return PANE + _START.pack(start) + gid


def of_pane_key(key: bytes) -> tuple[int, bytes]:
    """Return start and group of a window's key."""
    return _START.unpack_from(key, 1)[0], key[9:]


def chunk_key(pane: Pane, number: int) -> bytes:
    """Return the key of a piece of kept rows. Pieces of a window are numbered from 0."""
    return CHUNK + number.to_bytes(4) + pane.key[1:]


def of_chunk_key(key: bytes) -> tuple[int, bytes]:
    """Return the number of a piece, and the key of its window."""
    return int.from_bytes(key[1:5]), PANE + key[5:]


# Groups from rows: their identity, and the keys of their outputs.

KEY, NONE = "key", "none"
TEXT_BYTES_MAX = 1024
"""Longest text that identifies a group, in bytes of UTF-8."""


class Naming:
    """Names of groups, by the key of the rows, or by fields and levels of their topic."""

    def __init__(self, by: tuple[str, ...], levels: Collection[str], stream: str) -> None:
        """Parse the settings.

        Raises:
            WindowError: a name is not a field.
        """
        self.by = () if by == (NONE,) else by
        self.is_key = self.by == (KEY,)
        self._stream = stream.encode()
        self.levels = [name for name in self.by if name in levels]
        """Levels of the topic that rows are grouped by."""
        self.code = [self._code(name, levels) for name in self.by]
        """Code of the value of each name, from ``row``, its values ``v`` and its ``levels``."""

    def _code(self, name: str, levels: Collection[str]) -> ast.expr:
        if name in levels:
            return _expression(f"levels[{name!r}]")
        if name == KEY:
            return _expression("w_text(row.key)")
        return field_code(name)

    def group(self, gid: bytes, memory: list[int] | None) -> Group:
        """Return a new group by its bytes."""
        if self.is_key:
            return Group(gid, None, gid, {}, memory)
        values = msgspec.msgpack.decode(gid) if self.by else []
        name = None
        if values and all(type(each) is str for each in values):
            name = values[0] if len(values) == 1 else tuple(values)
        key = "/".join(map(_text, values)).encode() if self.by else self._stream
        return Group(gid, name, key, dict(zip(self.by, values, strict=True)), memory)

    def gid(self, row: Row, values: tuple[Any, ...]) -> bytes:
        """Return the bytes that name the group of a row.

        Raises:
            Refusal: a value cannot identify a group.
        """
        if self.is_key:
            if len(row.key) > TEXT_BYTES_MAX:
                raise Refusal(f"its topic has more than {TEXT_BYTES_MAX} bytes; groups need shorter ones")
            return row.key
        if not self.by:
            return b""
        return msgspec.msgpack.encode([_plain(name, value) for name, value in zip(self.by, values, strict=True)])


def field_code(path: str) -> ast.expr:
    """Return the code that reads a field, from the values ``v`` of a row.

    Raises:
        WindowError: it is not a path of a field.
    """
    try:
        names = names_in(path)
    except ValueError as error:
        raise WindowError(str(error)) from None
    return _expression("v" + "".join(f"[{name!r}]" for name in names))


def text_of(key: bytes) -> str:
    """Return a key as text. Bytes that are not UTF-8 are replaced."""
    return key.decode(errors="replace")


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _plain(name: str, value: Any) -> Any:
    """Return the canonical value of a group. 2 and 2.0 are one number, as in SQL."""
    if type(value) is str:
        if len(value.encode(errors="replace")) > TEXT_BYTES_MAX:
            raise Refusal(f"{name} is a text of more than {TEXT_BYTES_MAX} bytes; groups need shorter ones")
        return value
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if type(value) is float and value - value == 0:
        return value
    if type(value) is bool or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    raise Refusal(f"{name} is {_shown(value)}, which names no group; groups are text, numbers, true or false")


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)[:40] if type(value) in (int, float) else f"a {type(value).__name__}"


def _text(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)
