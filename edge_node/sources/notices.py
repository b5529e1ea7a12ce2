"""Notices about gaps in what a source reads, in the stream: no hole in the data is silent.

A record says which items are missing, why, from when to when. How a gap is known differs. A server of OPC UA numbers
what it sends: `OpcuaConnection` names what is missing in the order of the values, once, and the server keeps what
comes behind it until the notice is durable. Devices that are polled keep nothing: `Gaps` counts what was missed, by
device or register. There a gap has one notice when it opens, with ``to`` null, and one when it is over, and both are
repeated until they are durable.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec

from weft.edge_node.streams import GAP_LEVEL
from weft.storage.filesystem import FileSystem, write_atomically

REASONS_MAX = 3
"""Maximum number of different reasons in a notice; the first ones count."""
NOT_RUNNING = "the node was not running"
NOTICES_MAX = 10_000
"""Maximum number of notices about polls that wait for the disk. Beyond it, the oldest notices of openings are dropped
first: the notice of the end says the same and more."""
FOLDER = "sources"


class GapNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a record about a gap, as JSON."""

    source: str
    kind: str
    """``polls`` that were missed, or as the protocol of a server has it (`docs/reference/sources.md`)."""
    reason: str
    lost: Literal["certain", "possible", "none"]
    from_: str | None = msgspec.field(name="from")
    """Time of the first missed value, or of the last one before the gap where that is not known: UTC, RFC 3339. None
    where neither is known."""
    to: str | None
    """Time of the first value after the gap; None while the gap is open."""
    items: tuple[str, ...] | None = None
    """Values that are missing: topics of an OPC UA source, ``meter1/power`` of Modbus devices. None: all."""
    items_more: int = 0
    """Number of further items."""
    missed: int | None = None
    """Number of missed polls until now; None of a server, which is not polled."""
    values: int | None = None
    """Number of values of the gap that were read later."""


def gap_topic(source: str) -> bytes:
    """Return the topic of a source's notices, before ``rewrite`` and ``prefix``."""
    return f"{source}/{GAP_LEVEL}".encode()


def moment(time_ns: int) -> str:
    """Return a time in RFC 3339 with milliseconds."""
    return datetime.fromtimestamp(time_ns // 1_000_000 / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


@dataclass(slots=True)
class Gap:
    """An open gap. Times in ns since 1970."""

    items: tuple[str, ...]
    since: int
    reasons: list[str] = field(default_factory=list)
    missed: int = 0
    is_told: bool = False
    """True once there is a notice that it is open."""

    @property
    def reason(self) -> str:
        """Return all reasons, the first one first."""
        return "; ".join(self.reasons)


class KeyState(msgspec.Struct, frozen=True):
    """State of a key in the file: what a node that was killed no longer knows."""

    items: tuple[str, ...]
    through: int
    """Time of the last value that is durable, or of the first missed one while a gap is open; ns since 1970."""
    reasons: tuple[str, ...] = ()


class Gaps:
    """The gaps of a source that polls. Time is an argument, in ns since 1970. Event loop's thread only."""

    def __init__(self, source: str, notice_after: int = 1) -> None:
        """Start without gaps.

        Args:
            notice_after: number of missed polls in a row from which on a gap has notices; all are counted.
        """
        self._source = source
        self._notice_after = notice_after
        self.open: dict[str, Gap] = {}
        """Open gaps by key."""
        self.missed = 0
        """Missed polls, in total."""
        self._through: dict[str, tuple[tuple[str, ...], int]] = {}
        self._number = 0
        self._due: dict[int, bytes] = {}
        """Notices to write."""
        self._written: dict[int, bytes] = {}
        """Notices that are written, and not known to be durable."""
        self._openings: OrderedDict[int, None] = OrderedDict()
        """Numbers of those among both that are of openings, the oldest first."""

    # --- gaps

    def miss(self, key: str, items: tuple[str, ...], reason: str, since: int, count: int = 1) -> None:
        """Count missed polls of a key: its gap opens, or grows.

        Args:
            items: what is missing.
            reason: for people, without figures that differ each time.
            since: time of the first of them.
            count: number of polls, 1 or more.
        """
        gap = self.open.get(key)
        if gap is None:
            gap = self.open[key] = Gap(items, since)
        if reason not in gap.reasons and len(gap.reasons) < REASONS_MAX:
            gap.reasons.append(reason)
        gap.missed += count
        self.missed += count
        if not gap.is_told and gap.missed >= self._notice_after:
            gap.is_told = True
            self._tell(gap, None)

    def close(self, key: str, at: int) -> Gap | None:
        """End the gap of a key with the value of a time. Return it; None if none was open that began before."""
        gap = self.open.get(key)
        if gap is None or at < gap.since:
            return None
        del self.open[key]
        if gap.missed >= self._notice_after:
            self._tell(gap, at)
        return gap

    def missed_between(self, items: tuple[str, ...], reason: str, since: int, to: int, count: int) -> None:
        """Count polls that were left out between two values: a gap that was over when it was noticed."""
        self.missed += count
        gap = Gap(items, since, [reason], count)
        if gap.missed >= self._notice_after:
            self._tell(gap, to)

    def _tell(self, gap: Gap, to: int | None) -> None:
        notice = GapNotice(
            source=self._source,
            kind="polls",
            reason=gap.reason,
            lost="certain",
            items=gap.items,
            from_=moment(gap.since),
            to=moment(to) if to is not None else None,
            missed=gap.missed,
        )
        self._number += 1
        self._due[self._number] = msgspec.json.encode(notice)
        if to is None:
            self._openings[self._number] = None
        if len(self._due) + len(self._written) > NOTICES_MAX:
            # What is written is older than what is due.
            self._drop(next(iter(self._openings or self._written or self._due)))

    def _drop(self, number: int) -> None:
        for waiting in (self._written, self._due, self._openings):
            waiting.pop(number, None)

    # --- notices

    def due(self) -> list[tuple[int, bytes]]:
        """Return number and content of the notices to write, which count as written from now on."""
        found = sorted(self._due.items())
        self._written |= self._due
        self._due = {}
        return found

    def durable(self, number: int) -> None:
        """Forget a notice that is on disk."""
        self._drop(number)

    def again(self) -> None:
        """Have the notices written once more that are not known to be durable: the log refused some."""
        self._due = self._written | self._due
        self._written = {}

    # --- across restarts

    def reached(self, key: str, items: tuple[str, ...], at: int) -> None:
        """Note that the values of a key are durable up to a time."""
        self._through[key] = items, at

    def state(self) -> bytes:
        """Return what the next run of the node needs to know."""
        states = {key: KeyState(items, at) for key, (items, at) in self._through.items()}
        for key, gap in self.open.items():
            states[key] = KeyState(gap.items, gap.since, tuple(gap.reasons))
        return msgspec.json.encode(states)

    def restore(self, data: bytes, intervals: Mapping[str, float], at: int) -> None:
        """Open the gaps of an earlier run of the node, for keys that are still read.

        Polls that the earlier run stored after it last wrote its state are among the missed ones: a gap is never
        named shorter than it is.

        Args:
            data: what ``state`` returned; anything else counts as nothing.
            intervals: key -> seconds between its polls.
            at: time by the clock now. A clock that went back names no gap that begins in the future.
        """
        try:
            states = msgspec.json.decode(data, type=dict[str, KeyState])
        except msgspec.DecodeError:
            return
        for key, interval_s in intervals.items():
            if (state := states.get(key)) is None:
                continue
            since = min(state.through, at)
            if missed := int((at - since) / 1e9 / interval_s):
                reasons = [*state.reasons[: REASONS_MAX - 1], NOT_RUNNING]
                self.open[key] = Gap(state.items, since, reasons, missed)
                self.missed += missed


class GapFile:
    """The state of a source's gaps, in ``<data_dir>/sources/NAME.gaps.json``. Every method blocks on the disk."""

    def __init__(self, filesystem: FileSystem, data_dir: str, source: str) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(data_dir, FOLDER, f"{source}.gaps.json")

    def read(self) -> bytes:
        """Return the state; empty without one."""
        try:
            return self._filesystem.read(self._path)
        except OSError:
            return b""

    def write(self, state: bytes) -> None:
        """Replace the state.

        Raises:
            OSError: nothing has changed.
        """
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, state)
