"""Figures by stream for the metrics: records in the log, lag of the tables, completeness.

A hub of 10,000 edges with 20 streams holds 200,000 lanes. Walking them takes a good part of a second, during which the
hub could not serve links. So they are walked in slices, between which the event loop does other work, at most once in
``REFRESH_S``, and only when metrics are requested. Nothing is read for them: other processes' shards are known from the
last round of the tables.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from weft.bounds import Shares
from weft.bounds.background import BackgroundTask
from weft.cloud_hub.api.streams.summary import renamed_lanes
from weft.cloud_hub.shard.shards import KnownShards
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import moment_of
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.every_shard import missing_shards

REFRESH_S = 5.0
"""Maximum age of figures, less than the interval of any scraper."""
SLICE_LANES = 2_000
"""Number of lanes walked without a pause: about a millisecond."""
LAG_INTERVAL_S = 5.0
"""Interval at which log positions are noted: the precision of the lag in seconds."""
STREAMS_MAX = 500
"""Maximum number of streams with figures of their own; each is four series in Prometheus."""
STREAMS_OF_TENANT_MAX = 400
"""Maximum number of these streams for one tenant, so that others still have some."""
OTHERS = ("(other)", "(other)")
"""Tenant and stream for the sums of all other streams. No stream can have this name."""
NOTES_MAX = 256
_UNKNOWN = -(1 << 63)
"""A value below every moment, so that the earliest of several is unknown if one of them is."""


class StreamFigure(NamedTuple):
    """The current figures of one stream."""

    tenant: str
    stream: str
    records: int
    complete_up_to: int | None
    """Nanoseconds since 1970; None while an edge has not reported, or a shard is not loaded."""
    lag_records: int | None
    """Records that are not table rows yet; None while this node does not know it."""
    lag_seconds: float | None
    """None when this node does not keep tables."""


class TableLag:
    """The waiting time of the oldest record without a table row. Records become rows in order.

    ``now`` is monotonic seconds.
    """

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()
        """Times at which the log was first seen with a number of records, while not all of them are rows."""
        self._noted = 0

    def note(self, now: float, records: int, rows: int) -> None:
        """Note the number of records in the log and the number of rows."""
        if records > self._noted:
            self._notes.append((now, records))
            self._noted = records
        while self._notes and rows >= self._notes[0][1]:
            self._notes.popleft()
        if len(self._notes) > NOTES_MAX:
            # The oldest note remains, since the lag is counted from it. Later notes become coarser.
            self._notes = deque(list(self._notes)[::2])

    def seconds(self, now: float) -> float:
        """Return the lag with a precision of ``LAG_INTERVAL_S``; 0 if the table has everything."""
        return now - self._notes[0][0] if self._notes else 0.0


class StreamFigures:
    """The figures of all streams of a hub node.

    Args:
        shards: every shard of the store, as far as this process knows it.
        table_rows: (tenant, stream) -> records that are rows; None while unknown.
        keeps_tables: true when this node makes table rows.
        monotonic: seconds.
        expected: returns the streams with expected edges at present, each with its moment.
        peers: whether another cluster may have records that this one lacks.
    """

    def __init__(
        self,
        shards: KnownShards,
        table_rows: Callable[[str, str], int | None],
        keeps_tables: bool,
        monotonic: Callable[[], float],
        expected: Callable[[], Mapping[StreamKey, Callable[[], Awaitable[int | None]]]] = dict,
        *,
        peers: bool = False,
    ) -> None:
        self.figures: list[StreamFigure] = []
        """Figures as of the last ``refresh``."""
        self._shards = shards
        self._table_rows = table_rows
        self._keeps_tables = keeps_tables
        self._monotonic = monotonic
        self._expected = expected
        self._peers = peers
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._named: Shares[str] = Shares(STREAMS_MAX, STREAMS_OF_TENANT_MAX)
        self._labels: dict[StreamKey, StreamKey] = {}
        """Streams in the order of their first appearance, so that a stream with series keeps them."""
        self._lags: dict[StreamKey, TableLag] = {}
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start noting the tables' positions."""
        if self._keeps_tables:
            self._task.start(self._note_lags(), name="table-lag")

    async def close(self) -> None:
        """Stop noting the tables' positions."""
        await self._task.close()

    async def refresh(self) -> None:
        """Update ``figures`` when they are older than ``REFRESH_S``. Concurrent callers wait for the update."""
        async with self._refreshing:
            now = self._monotonic()
            if self._refreshed_at is None or now - self._refreshed_at >= REFRESH_S:
                await self._shards.read()
                complete = await self._complete_up_to()
                self._note_lag()
                self.figures = self._combined(complete)
                self._refreshed_at = self._monotonic()

    async def _note_lags(self) -> None:
        while True:
            self._note_lag()
            await asyncio.sleep(LAG_INTERVAL_S)

    def _note_lag(self) -> None:
        if not self._keeps_tables:
            return
        now = self._monotonic()
        for key, (records, rows) in self._counted().items():
            self._lags.setdefault(key, TableLag()).note(now, records, rows or 0)

    def _counted(self) -> dict[StreamKey, tuple[int, int | None]]:
        """Return records and rows of each label."""
        totals: dict[StreamKey, int] = {}
        states = [shard.state for shard in self._shards]
        for state in states:
            for key, end in state.next_offset.items():
                totals[key] = totals.get(key, 0) + end
        for key in {key for state in states for key in state.forgotten}:
            if not any(state.has_stream(*key) for state in states):
                self._forget(key)
                del totals[key]
        counted: dict[StreamKey, tuple[int, int | None]] = {}
        for key, records in totals.items():
            label, rows = self._label(key), self._table_rows(*key)
            others, others_rows = counted.get(label, (0, 0))
            all_rows = None if rows is None or others_rows is None else rows + others_rows
            counted[label] = records + others, all_rows
        return counted

    def _forget(self, key: StreamKey) -> None:
        """Give the series of a deleted stream to others."""
        self._lags.pop(key, None)
        if self._labels.pop(key, None) is not None:
            self._named.free(key[0])

    def _label(self, key: StreamKey) -> StreamKey:
        known = self._labels.get(key)
        if known is None:
            if not self._named.take(key[0]):
                return OTHERS
            known = self._labels[key] = key
        return known

    async def _complete_up_to(self) -> dict[StreamKey, int]:
        """Return the earliest moment of each label's lanes, walking the lanes in slices."""
        earliest: dict[StreamKey, int] = {}
        ended: dict[StreamKey, set[Lane]] = {}
        shards = list(self._shards)
        for shard in shards:
            # Copies, since chunks are applied between slices. Marks only advance, so an older one claims nothing false.
            # Two lists of existing objects: a list of pairs would make so many new objects that Python's collector
            # scans everything, which blocks the event loop for a quarter of a second.
            lanes, states = list(shard.state.lanes), list(shard.state.lanes.values())
            for start in range(0, len(lanes), SLICE_LANES):
                end = start + SLICE_LANES
                for lane, held in zip(lanes[start:end], states[start:end], strict=True):
                    if not held.counts:
                        continue
                    key = lane.tenant, lane.stream
                    if held.last_word is not None:
                        if key not in ended:
                            ended[key] = renamed_lanes([each.state for each in shards], *key, peers=self._peers)
                        if lane in ended[key]:
                            continue
                    moment = moment_of(held, peers=self._peers)
                    moment = _UNKNOWN if moment is None else moment
                    if moment < earliest.get(key, moment + 1):
                        earliest[key] = moment
                await asyncio.sleep(0)
        for key, complete_up_to in self._expected().items():
            moment = await complete_up_to()
            earliest[key] = _UNKNOWN if moment is None else moment
        if missing_shards([each.state for each in shards]):
            return {}  # a chunk moved lanes to a shard that was not looked at
        return self._by_label(earliest.items())

    def _by_label(self, moments: Iterable[tuple[StreamKey, int]]) -> dict[StreamKey, int]:
        by_label: dict[StreamKey, int] = {}
        for key, moment in moments:
            label = self._label(key)
            by_label[label] = min(moment, by_label.get(label, moment))
        return by_label

    def _combined(self, complete: dict[StreamKey, int]) -> list[StreamFigure]:
        now, counted = self._monotonic(), self._counted()
        all_loaded = all(shard.loaded for shard in self._shards)
        figures = []
        for label in sorted(complete.keys() | counted.keys()):
            records, rows = counted.get(label, (0, None))
            moment = complete.get(label, _UNKNOWN)
            lag = self._lags.get(label)
            figures.append(
                StreamFigure(
                    *label,
                    records,
                    moment if all_loaded and moment != _UNKNOWN else None,
                    max(0, records - rows) if self._keeps_tables and rows is not None else None,
                    lag.seconds(now) if lag is not None else None,
                )
            )
        return figures
