"""The files of a table's version, by shard and offset: a micro-batch finds its few of a million without a walk."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from spark_sinks.source.options import ReadOptions
from spark_sinks.source.positions import Offsets

STATISTICS_STEP = timedelta(milliseconds=1)
"""Delta truncates times in its statistics to milliseconds."""


class TableFile(NamedTuple):
    """A Parquet file of the table. The bounds are from the commit's statistics; None when a writer left them out."""

    path: str
    """Relative to the table's root."""
    size_bytes: int
    shard_min: int | None
    shard_max: int | None
    offset_min: int | None
    offset_max: int | None
    time_min: datetime | None
    time_max: datetime | None
    edge_min: str | None = None
    edge_max: str | None = None

    def may_hold(self, shard: int, first: int, end: int) -> bool:
        """Return whether this file may have rows of ``shard`` with offsets in ``[first, end)``."""
        if self.shard_min is not None and self.shard_max is not None and not self.shard_min <= shard <= self.shard_max:
            return False
        if self.offset_min is None or self.offset_max is None:
            return True
        return self.offset_min < end and first <= self.offset_max

    def is_within(self, start: Offsets, end: Offsets) -> bool:
        """Return whether all its rows have offsets in ``[start, end)`` of one shard."""
        shard = self.shard_min
        if shard is None or shard != self.shard_max or self.offset_min is None or self.offset_max is None:
            return False
        return start.get(shard, 0) <= self.offset_min and self.offset_max < end.get(shard, 0)

    def may_hold_edge(self, edges: Collection[str]) -> bool:
        """Return whether the file may have a row of one of these edge nodes."""
        if self.edge_min is None or self.edge_max is None:
            return True
        return any(self.edge_min <= edge <= self.edge_max for edge in edges)

    def may_start(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` before ``moment``."""
        return self.time_min is None or self.time_min < moment

    def may_match(self, options: ReadOptions) -> bool:
        """Return whether the options may select a row of the file."""
        return (
            (options.since is None or self.may_reach(options.since))
            and (options.until is None or self.may_start(options.until))
            and (options.edges is None or self.may_hold_edge(options.edges))
        )

    def may_reach(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` of ``moment`` or later."""
        return self.time_max is None or self.time_max + STATISTICS_STEP >= moment


class _Shard(NamedTuple):
    """The files of one shard alone, with bounds of their offsets."""

    files: list[TableFile]
    """In the order of their lowest offsets."""
    span: int = 0
    """Largest range of offsets of a file that was ever among them."""


class FileIndex:
    """The files of one version. It never changes; iteration yields all of them, in no order."""

    def __init__(self, files: Iterable[TableFile] = ()) -> None:
        self._shards: Mapping[int, _Shard] = {}
        self._others: tuple[TableFile, ...] = ()
        """Files of several shards, or without bounds: engines of others wrote them."""
        self._set(files)

    def _set(self, files: Iterable[TableFile]) -> None:
        shards: dict[int, list[TableFile]] = {}
        others: list[TableFile] = []
        for file in files:
            place = _place(file)
            (others if place is None else shards.setdefault(place[0], [])).append(file)
        self._shards = {
            shard: _Shard(sorted(found, key=_lowest), max(map(_span, found))) for shard, found in shards.items()
        }
        self._others = tuple(others)

    def __iter__(self) -> Iterator[TableFile]:
        return chain(*(each.files for each in self._shards.values()), self._others)

    def __len__(self) -> int:
        return sum(len(each.files) for each in self._shards.values()) + len(self._others)

    def overlapping(self, shard: int, first: int, end: int) -> Iterator[TableFile]:
        """Yield the files that may have rows of a shard with offsets in ``[first, end)``."""
        files, span = self._shards.get(shard, _Shard([]))
        for at in range(bisect_left(files, first - span, key=_lowest), bisect_left(files, end, key=_lowest)):
            if files[at].may_hold(shard, first, end):
                yield files[at]
        yield from (file for file in self._others if file.may_hold(shard, first, end))

    def lowest(self, shard: int, end: int) -> int:
        """Return the lowest offset below ``end`` that a file of a shard may have; ``end`` if none has one."""
        files = self._shards.get(shard, _Shard([])).files
        lows = [_lowest(files[0])] if files else []
        lows += [file.offset_min or 0 for file in self._others if file.may_hold(shard, 0, end)]
        return min(end, *lows) if lows else end

    def changed(self, removed: Iterable[TableFile], added: Iterable[TableFile]) -> FileIndex:
        """Return the files of a later version."""
        # Only the lists that change are copied: this version keeps its own.
        removed, added, shards = list(removed), list(added), dict(self._shards)
        for shard in {place[0] for file in (*removed, *added) if (place := _place(file)) is not None}:
            files, span = shards.get(shard, _Shard([]))
            shards[shard] = _Shard(list(files), span)
        others = {file.path: file for file in self._others}
        for file in removed:
            if (place := _place(file)) is None:
                others.pop(file.path, None)
            else:
                shard, low = place
                files = shards[shard].files
                at = bisect_left(files, low, key=_lowest)
                while files[at].path != file.path:
                    at += 1
                del files[at]
        for file in added:
            if (place := _place(file)) is None:
                others[file.path] = file
            else:
                known = shards[place[0]]
                insort(known.files, file, key=_lowest)
                shards[place[0]] = known._replace(span=max(known.span, _span(file)))
        made = FileIndex()
        made._shards, made._others = shards, tuple(others.values())
        return made


def _place(file: TableFile) -> tuple[int, int] | None:
    """Return shard and lowest offset of a file of one shard; None of others."""
    if file.shard_min is None or file.shard_min != file.shard_max or file.offset_max is None:
        return None
    return None if file.offset_min is None else (file.shard_min, file.offset_min)


def _lowest(file: TableFile) -> int:
    return file.offset_min or 0


def _span(file: TableFile) -> int:
    return (file.offset_max or 0) - _lowest(file)
