"""Records that hubs have acknowledged, and the alarm when a hub no longer has some of them.

This happens only when the hub's store was restored to an earlier state, or lost objects. The edge may have deleted
these records after the acknowledgement, so they may never be sent again: an operator must know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.protocols.link import ACKNOWLEDGED_MAX, ACKNOWLEDGED_RANGES_MAX
from weft.protocols.ranges import Range, RangeSet

HubStream = tuple[str, str]
"""(cluster id, stream)."""


class Lost(NamedTuple):
    """Records of one stream that a hub acknowledged and no longer has."""

    missing: RangeSet
    named: RangeSet
    """The part that this node lacks too, and reported as gaps: the hub then holds a notice, not a record."""


_NOTHING = Lost(RangeSet(), RangeSet())


class _Connection(NamedTuple):
    """Knowledge of a stream on the newest connection. The sets are the sender's own and grow with it."""

    safe: RangeSet
    told: RangeSet


class Acknowledged:
    """The acknowledged records of one log by hub and stream, for all its links. Event loop's thread.

    Args:
        ranges: the ranges that hubs acknowledged before, and ``lost`` those that they no longer had.
    """

    def __init__(
        self, ranges: Mapping[HubStream, RangeSet] | None = None, lost: Mapping[HubStream, Lost] | None = None
    ) -> None:
        self._ranges = dict(ranges or {})
        self._lost = dict(lost or {})
        self._newest: dict[HubStream, _Connection] = {}
        self._hubs: dict[str, dict[str, None]] = {}
        """Stream -> the hubs with records of it. A node has many streams, and each is looked up on its own."""
        for hub, stream in self._ranges:
            self._hubs.setdefault(stream, {})[hub] = None

    def opened(self, hub: str, stream: str, safe: RangeSet, told: RangeSet, noticed: Iterable[Range]) -> str:
        """Note that a hub accepted a lane. Return a message if the hub has lost records of it, else an empty text.

        Args:
            safe: the ranges that the hub holds; the set grows on this connection.
            told: the numbers that this connection sent as gaps; the set grows likewise.
            noticed: numbers with gap notices in the log: no hub needs to have their records.
        """
        key = hub, stream
        self._settle(key)
        expected = self._ranges.setdefault(key, RangeSet())
        self._hubs.setdefault(stream, {})[hub] = None
        _remove(expected, noticed)
        gone = RangeSet(part for run in expected for part in safe.missing(*run))
        self._newest[key] = _Connection(safe, told)
        if not gone:
            return ""
        _remove(expected, gone)
        before = self._lost.get(key, Lost(RangeSet(), RangeSet()))
        before.missing.update(gone)
        self._lost[key] = before
        return _sentence(key, gone)

    def _settle(self, key: HubStream) -> None:
        """Apply the changes of the newest connection."""
        newest = self._newest.get(key)
        if newest is None:
            return
        records = newest.safe.copy()
        _remove(records, newest.told)
        self._ranges[key].update(records)
        lost = self._lost.get(key)
        if lost is not None:
            lost.named.update(part for run in lost.missing for part in _common(newest.told, run))
            _remove(records, lost.named)
            _remove(lost.missing, records)
            if not lost.missing:
                del self._lost[key]

    def state(self) -> tuple[dict[HubStream, RangeSet], dict[HubStream, Lost]]:
        """Return the acknowledged and the lost ranges, to store them. The caller must not change them."""
        for key in self._newest:
            self._settle(key)
        return self._ranges, self._lost

    def told(self, stream: str) -> list[tuple[str, list[Range]]]:
        """Return the ranges of a stream that hubs acknowledged, including lost ones, by cluster id: for LANE_OPEN."""
        found = []
        for hub in filter(None, self._hubs.get(stream, ())):
            key = hub, stream
            self._settle(key)
            expected = self._ranges[key].copy()
            expected.update(self._lost.get(key, _NOTHING).missing)
            found.append((hub, list(expected)[:ACKNOWLEDGED_RANGES_MAX]))
        return [(hub, told) for hub, told in found if told][-ACKNOWLEDGED_MAX:]

    def alarm(self, hub: str) -> str:
        """Return a hub's losses with advice; empty without any. An empty ``hub`` means all hubs."""
        _, lost = self.state()
        return "; ".join(_sentence(key, found.missing) for key, found in lost.items() if hub in ("", key[0]))

    def acknowledge(self) -> list[str]:
        """End all alarms on an operator's command; return their messages."""
        _, lost = self.state()
        ended = [_sentence(key, found.missing) for key, found in lost.items()]
        self._lost.clear()
        return ended


def _sentence(key: HubStream, missing: RangeSet) -> str:
    hub, stream = key
    first = next(iter(missing))[0]
    return (
        f"hub {hub} has lost {missing.count()} records that it had acknowledged, from seq {first} on, of stream "
        f"{stream}. Its store was restored to an earlier state, or lost objects. This node sends again what it still "
        "has; look for the rest at other hubs, and in the tables. `weft link acknowledge` ends this alarm"
    )


def _remove(ranges: RangeSet, others: Iterable[Range]) -> None:
    for first, end in list(others):
        ranges.remove(first, end)


def _common(ranges: RangeSet, run: Range) -> Iterable[Range]:
    at = run[0]
    for first, end in [*ranges.missing(*run), (run[1], run[1])]:
        if at < first:
            yield at, first
        at = end
