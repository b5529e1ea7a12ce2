"""The quality rules of one table: what is checked in its rows at present, and what its newest version has counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weft.storage.table.delta.calls import guarded
from weft.storage.table.errors import TableError
from weft.storage.table.quality.checks import Checking, RowChecks, Tally, UniqueCheck, checking, number_of
from weft.storage.table.quality.counts import QualityCounts
from weft.storage.table.quality.declared import StreamQuality
from weft.storage.table.quality.look_back import Place, last_keys
from weft.storage.table.quality.marks import FAILED_COLUMN
from weft.storage.table.quality.repeats import KeyRun, repeated
from weft.storage.table.typed_rows import TypedRows


class NewRows(NamedTuple):
    """Rows of one shard that are about to be committed."""

    shard: int
    first: int
    """Offset of the first row: the position of the table in the shard."""
    end: int
    """Position behind them."""
    tally: Tally | None
    """None for records that an operator skipped, and without rules."""

    def keys(self, number: int) -> KeyRun:
        """Return their keys for a check."""
        parts = [] if self.tally is None else self.tally.keys.get(number, [])
        keys = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        return KeyRun(self.shard, self.first, self.end, keys)


class _Memory:
    """The keys of the last rows for one check."""

    def __init__(self, check: UniqueCheck) -> None:
        self.check = check
        self.tails: dict[int, KeyRun] = {}
        self.after: dict[int, KeyRun] = {}
        """The tails with the rows that are about to be committed."""
        self.trouble: str | None = None
        """Reason why the last rows are not known."""

    def unknown(self, positions: Mapping[int, int]) -> list[tuple[int, int]]:
        """Return the shards, each with its position, whose last rows are not known."""
        known = {shard: tail.end for shard, tail in self.tails.items()}
        return [(shard, end) for shard, end in positions.items() if end and known.get(shard) != end]

    def count(self, rows: Sequence[NewRows]) -> int:
        """Return the number of repeated rows."""
        runs = [each.keys(self.check.number) for each in rows]
        marks, self.after = repeated(self.tails, runs, self.check.within)
        return sum(int(each.sum()) for each in marks)


class TableQuality:
    """The quality rules of a table. Without declared ones, it costs a look-up in each step.

    Args:
        declared: returns the rules of the stream, as this process knows them.
        applications: beginning of the stream's transactions, as of ``names.app_ids``.
    """

    def __init__(self, declared: Callable[[], StreamQuality | None], applications: str) -> None:
        self._declared, self._applications = declared, applications
        self._taken: tuple[StreamQuality, TypedRows | None, pa.Schema] | None = None
        self._checking: Checking | None = None
        self._memories: dict[UniqueCheck, _Memory] = {}
        self.counts = QualityCounts({}, applications)
        """The counts of the version last read or committed."""
        self.first: QualityCounts | None = None
        """Those of the first version that was read: what this process has seen coming is the difference."""

    def checks(self, typed: TypedRows | None, schema: pa.Schema) -> RowChecks | None:
        """Take up the rules as they are known now. Return the checks of rows, the same object while nothing changes;
        None without rules.

        Args:
            typed: maker of the typed columns.
            schema: all columns of the rows.
        """
        declared = self._declared()
        if declared is None:
            self._taken = self._checking = None
            self._memories.clear()
            return None
        if self._taken is None or self._taken[:2] != (declared, typed) or not self._taken[2].equals(schema):
            self._taken = declared, typed, schema
            self._checking = checking(declared, {} if typed is None else typed.columns, schema)
            unique = self._checking.checks.unique
            self._memories = {check: self._memories.get(check) or _Memory(check) for check in unique}
        assert self._checking is not None
        return self._checking.checks

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Return the columns that a table lacks for marks of rows.

        Args:
            names: its columns. Spark and Delta treat names that differ only in case as one.
        """
        declared = self._declared()
        has = {name.casefold() for name in names}
        return (
            [FAILED_COLUMN] if declared is not None and declared.rules.quarantine and FAILED_COLUMN not in has else []
        )

    @property
    def why_not(self) -> Mapping[str, str]:
        """Return the rules that could not be checked in the last rows, by name, each with the reason."""
        if self._checking is None or self._taken is None:
            return {}
        blind = {each.check.number: each.trouble for each in self._memories.values() if each.trouble is not None}
        if not blind:
            return self._checking.why_not
        rules = self._taken[0].rules.rules
        return {
            **self._checking.why_not,
            **{name: blind[number_of(rule)] for name, rule in rules.items() if number_of(rule) in blind},
        }

    def read(self, transactions: Mapping[str, int]) -> None:
        """Take the counts of a version."""
        self.counts = QualityCounts(transactions, self._applications)
        if self.first is None:
            self.first = self.counts

    async def counting(
        self, transactions: Mapping[str, int], version: int, place: Place, positions: Mapping[int, int],
        rows: Sequence[NewRows],
    ) -> dict[str, int]:  # fmt: skip
        """Return the transactions that count further rows.

        Args:
            transactions: those of the version on which the rows are committed.
            version: that version.
            positions: of the table before these rows, by shard.
            rows: by the checks that were taken up last.
        """
        tallies = [each.tally for each in rows if each.tally is not None]
        if not tallies:
            return {}
        total = Tally(tallies[0].checks)
        for each in tallies:
            total.join(each)
        for memory in self._memories.values():
            memory.after = {}
            if await self._recall(memory, version, place, positions):
                total.failed[memory.check.number] = await asyncio.to_thread(memory.count, rows)
        return QualityCounts(transactions, self._applications).after(total, sum(positions.values()))

    async def _recall(self, memory: _Memory, version: int, place: Place, positions: Mapping[int, int]) -> bool:
        """Read the last rows of the shards where they are not known. Return whether they are known now."""
        unknown, check = memory.unknown(positions), memory.check
        memory.trouble = None
        if not unknown:
            return True
        try:
            read = lambda: guarded(lambda: last_keys(place, version, unknown, check.columns, check.within))  # noqa: E731
            memory.tails |= await asyncio.to_thread(read)
        except TableError as error:
            # No row waits for it: the rows are not counted for this rule.
            memory.trouble = f"the last rows of the table cannot be read: {error}"
        return memory.trouble is None

    def committed(self) -> None:
        """Note that the rows of the last ``counting`` are in the table."""
        for memory in self._memories.values():
            if memory.trouble is None and memory.after:
                memory.tails, memory.after = memory.after, {}
