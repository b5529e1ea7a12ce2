"""Quality rules of one table: what is checked in its rows, which rows fail, and what its newest version has counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from hashlib import blake2b
from math import ceil, floor
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.config.payload_schema.model import RULES_MAX, QualityRule, UniqueKeys, ValueRange
from weft.protocols.chunk import CLOCKS, CORRECTED, SYNCED
from weft.storage.payloads.decoder import MISFIT_COLUMN
from weft.storage.table.actions import TableError
from weft.storage.table.delta import guarded, open_table
from weft.storage.table.rows import FIXED_COLUMNS
from weft.storage.table.schemas import OWN_KEYS, StreamQuality
from weft.storage.table.typed_columns import TypedRows, typed_names

# Numbers for the values of several columns in a row, equal for equal values, in every process.
#
# They have 64 bits: among a million rows, two with different values have one number by chance once in 40 million
# times. They guard against chance and not against a sender who looks for such values: it would count its own rows as
# repeated.

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
LONG_BYTES = 1 << 10
"""Length from which on a text is hashed alone. Shorter ones of many rows are hashed together."""
SLICE_ROWS = 1 << 10
"""Rows that are hashed together: with ``LONG_BYTES``, it bounds the memory for it to some 30 MB."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64 (Steele, Lea and Flood, 2014)."""


def can_be_key(kind: pa.DataType) -> bool:
    """Return whether values of a type can be compared here."""
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def key_hashes(batch: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Hashes:
    """Return a number for each row; 0 where one of the columns is null."""
    total = np.zeros(batch.num_rows, np.uint64)
    is_null = np.zeros(batch.num_rows, np.bool_)
    for name in columns:
        column = batch.column(name)
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        total = _mixed(total * np.uint64(_BASE) + _hashes(values))
        if values.null_count:
            is_null |= values.is_null().to_numpy(zero_copy_only=False)
    total[total == 0] = 1
    total[is_null] = 0
    return total


def _hashes(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_decimal(kind):
        return _of_texts(values.cast(pa.string()))
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return _mixed((numbers + 0.0).view(np.uint64))  # which makes 0 of -0
    if pa.types.is_boolean(kind):
        return _mixed(values.fill_null(False).cast(pa.uint64()).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _mixed(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    return _of_texts(values)


def _of_texts(values: pa.Array) -> Hashes:
    found = np.empty(len(values), np.uint64)
    for first in range(0, len(values), SLICE_ROWS):
        part = values.slice(first, SLICE_ROWS).cast(pa.binary()).fill_null(b"")
        ends = np.frombuffer(part.buffers()[1], np.int32)[part.offset : part.offset + len(part) + 1]
        is_long = np.diff(ends) > LONG_BYTES
        into = found[first : first + len(part)]
        if not is_long.any():
            into[:] = _together(part, ends)
            continue
        into[is_long] = [_alone(text) for text in part.filter(pa.array(is_long)).to_pylist()]
        short = part.filter(pa.array(~is_long))
        into[~is_long] = _together(short, np.frombuffer(short.buffers()[1], np.int32)[: len(short) + 1])
    return found


def _alone(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _together(texts: pa.Array, ends: np.ndarray[Any, np.dtype[np.int32]]) -> Hashes:
    """Return for each text the value of a polynomial with its bytes, taken as a difference of sums over all bytes."""
    if not len(texts):
        return np.zeros(0, np.uint64)
    data = texts.buffers()[2]
    codes = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    at = (ends - ends[0]).astype(np.int64)
    powers, inverses = _powers(1 << len(codes).bit_length())
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes.astype(np.uint64) + 1) * powers[: len(codes)], out=sums[1:])
    lengths = np.diff(at).astype(np.uint64)
    return _mixed((sums[at[1:]] - sums[at[:-1]]) * inverses[at[:-1]] + lengths * np.uint64(_BASE))


@lru_cache(maxsize=4)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return powers of the base and of its inverse, in the arithmetic of 64 bits."""
    found = []
    for base in (_BASE, _INVERSE):
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        found.append(np.cumprod(factors))
    return found[0], found[1]


def _mixed(numbers: Hashes) -> Hashes:
    for shift, factor in _STEPS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    mixed: Hashes = numbers ^ (numbers >> np.uint64(31))
    return mixed


# Rows whose key an earlier row has: the keys of the last rows of each shard, in memory, and what further rows repeat.
#
# A row is repeated if a row with its key is among the ``within`` offsets before it in its shard, or among the last
# ``within`` rows of another shard when it became a row. Which of two rows in different shards counts as the repeated
# one is the second to come.

Marks = np.ndarray[Any, np.dtype[np.bool_]]


class KeyRun(NamedTuple):
    """Keys of consecutive rows of a shard; 0 stands for a row without one."""

    shard: int
    first: int
    """Offset of the first row."""
    end: int
    """Offset after the last one. It is further on than the rows where an operator skipped records."""
    keys: Hashes


Tails = Mapping[int, KeyRun]
"""Shard -> its last rows."""


def empty(shard: int, end: int = 0) -> KeyRun:
    """Return a run without rows."""
    return KeyRun(shard, end, end, np.zeros(0, np.uint64))


def repeated(tails: Tails, runs: Sequence[KeyRun], within: int) -> tuple[list[Marks], dict[int, KeyRun]]:
    """Return which rows of runs are repeated, and the last rows of each shard with them.

    Args:
        tails: the rows before them.
        runs: one of each shard, in the order in which they become rows.
    """
    after, marks = dict(tails), []
    for run in runs:
        tail = after.get(run.shard, empty(run.shard, run.first))
        keys = np.concatenate([tail.keys, run.keys])
        offsets = np.concatenate([np.arange(len(part.keys)) + part.first for part in (tail, run)])
        order = np.argsort(keys, kind="stable")
        is_near = (keys[order][1:] == keys[order][:-1]) & (np.diff(offsets[order]) <= within)
        is_repeated = np.zeros(len(keys), np.bool_)
        is_repeated[order[1:]] = is_near
        found = is_repeated[len(tail.keys) :]
        others = [each.keys for shard, each in after.items() if shard != run.shard and len(each.keys)]
        if others:
            found |= np.isin(run.keys, np.concatenate(others))
        found &= run.keys != 0
        marks.append(found)
        # Rows before records that an operator skipped are forgotten: those behind them may be far away.
        is_next = tail.first + len(tail.keys) == run.first
        last = (keys if is_next else run.keys)[-within:].copy()  # a view would keep all of them in memory
        after[run.shard] = KeyRun(run.shard, run.first + len(run.keys) - len(last), run.end, last)
    return marks, after


# The keys of a table's last rows, read from the table: a process that begins knows what further rows repeat.

BATCH_ROWS = 16 << 10
Place = tuple[str, dict[str, str]]
"""URI of a table, and options of its store."""


def last_keys(
    place: Place, version: int, ends: Sequence[tuple[int, int]], columns: Sequence[str], within: int
) -> dict[int, KeyRun]:
    """Return the keys of the last rows of shards. It blocks; the files of other rows are not read.

    Args:
        ends: (shard, offset after its last row).

    Raises:
        TableError: the version is no longer there, or has other rows.
    """
    wanted = {shard: (max(0, end - within), end) for shard, end in ends}
    tails = {shard: empty(shard, end) for shard, end in ends}
    if not wanted:
        return tails
    found = [
        (batch.column("_shard").to_numpy(), batch.column("_offset").to_numpy(), key_hashes(batch, columns))
        for batch in _batches(place, version, wanted, columns)
    ]
    if not found:
        return tails
    shards, offsets, keys = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for shard, (first, end) in wanted.items():
        mine = np.flatnonzero(shards == shard)
        mine = mine[np.argsort(offsets[mine])]
        if not len(mine):
            continue
        # Rows that were removed, or whose records were skipped, leave holes: what is there is taken as it lies.
        run = np.zeros(int(offsets[mine][-1]) + 1 - first, np.uint64)
        run[offsets[mine] - first] = keys[mine]
        tails[shard] = KeyRun(shard, first, end, run)
    return tails


def _batches(
    place: Place, version: int, wanted: dict[int, tuple[int, int]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    uri, options = place
    table = open_table(uri, options, version)
    if table is None:
        raise TableError(f"{uri}: the table is no longer there")
    dataset: Any = table.to_pyarrow_dataset()
    if missing := [name for name in columns if name not in dataset.schema.names]:
        raise TableError(f"{uri}: version {version} has no column {missing[0]}")
    parts = [
        (pc.field("_shard") == shard) & (pc.field("_offset") >= first) & (pc.field("_offset") < end)
        for shard, (first, end) in wanted.items()
    ]
    scanner = dataset.scanner(
        columns=["_shard", "_offset", *columns],
        filter=reduce(or_, parts),
        batch_size=BATCH_ROWS,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
    )
    yield from scanner.to_batches()


# Checks of rows by quality rules, on the record batches that become a file: a handful of operations on whole columns.
#
# A check looks at one row alone, so a tally over rows does not depend on how they were cut into batches and files.

TRUSTED = pa.array([CLOCKS[SYNCED], CLOCKS[CORRECTED]])
"""States of a record's clock in which its time can be believed."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def number_of(rule: QualityRule) -> int:
    """Return the number under which a table counts a check: the same for the same check, and never 0."""
    return int.from_bytes(blake2b(rule.check, digest_size=8).digest()) >> 1 | 1


Bounds = tuple[float | int | None, float | int | None]


class Check(NamedTuple):
    """A check of one column."""

    number: int
    column: str
    bounds: Bounds | None = None
    """Least and largest good number; None for a check that a value is there."""
    wants_null: bool = False
    """True if a row is good without a value, and not with one."""

    def failing(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it fails; null counts as good."""
        values = batch.column(self.column)
        if self.bounds is None:
            return values.is_valid() if self.wants_null else values.is_null()
        low, high = self.bounds
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        failing = pc.is_nan(values) if pa.types.is_floating(values.type) else None
        for bound, is_beyond in ((low, pc.less), (high, pc.greater)):
            if bound is not None:
                found = is_beyond(values, pa.scalar(bound, values.type))
                failing = found if failing is None else pc.or_(failing, found)
        return failing

    def failed(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows that fail."""
        if self.bounds is None:
            missing = int(batch.column(self.column).null_count)
            return batch.num_rows - missing if self.wants_null else missing
        return int(self.failing(batch).true_count)


class UniqueCheck(NamedTuple):
    """A check that no row repeats the key of one before it. The rows alone do not tell: their keys are taken along."""

    number: int
    columns: tuple[str, ...]
    within: int


@dataclass(frozen=True)
class RowChecks:
    """The checks of one stream's rows. They go with the making of files, also to other machines."""

    version: int
    """Version of the rules."""
    declared: frozenset[int]
    """Numbers of all counted checks that are declared, also of those that cannot be made."""
    checks: tuple[Check, ...]
    unique: tuple[UniqueCheck, ...] = ()
    watched: tuple[tuple[str, str], ...] = ()
    """Fields that may vanish, each with its column."""
    times: bool = False
    """True if the newest times are noted."""
    names: tuple[tuple[int, str], ...] = ()
    """Numbers of the checks of rows, each with the name of its rule, if rows that fail are marked."""


class Checking(NamedTuple):
    """The checks of a table's rows as they are now."""

    checks: RowChecks
    why_not: Mapping[str, str]
    """Rules that cannot be checked, by name, each with the reason."""


def checking(quality: StreamQuality, columns: Mapping[str, str], schema: pa.Schema) -> Checking:
    """Return the checks for the rows of a table.

    Args:
        columns: the fields of the stream's schema, each with its column.
        schema: all columns of the rows.
    """
    levels = {*schema.names} - FIXED_COLUMNS - {*typed_names(schema)}
    checks: list[Check] = []
    unique: list[UniqueCheck] = []
    why_not: dict[str, str] = {}
    declared = set[int]()
    for name, rule in quality.rules.rules.items():
        if rule.fresh is not None:
            continue
        declared.add(number_of(rule))
        found = _check(rule, columns, levels, schema)
        if isinstance(found, Check):
            checks.append(found)
        elif isinstance(found, UniqueCheck):
            unique.append(found)
        else:
            why_not[name] = found
    watched = tuple(columns.items()) if quality.rules.vanished_after is not None else ()
    times = any(rule.fresh is not None for rule in quality.rules.rules.values())
    marked = quality.rules.rules.items() if quality.rules.quarantine else ()
    names = tuple((number_of(rule), name) for name, rule in marked)
    made = RowChecks(quality.version, frozenset(declared), tuple(checks), tuple(unique), watched, times, names)
    return Checking(made, why_not)


def _check(
    rule: QualityRule, columns: Mapping[str, str], levels: Collection[str], schema: pa.Schema
) -> Check | UniqueCheck | str:
    """Return the check of a rule, or why it cannot be made."""
    kind, value = rule.chosen
    number = number_of(rule)
    if kind == "fits":
        if columns and MISFIT_COLUMN in schema.names:
            return Check(number, MISFIT_COLUMN, wants_null=True)
        return "the stream has no schema that payloads could fit"
    if isinstance(value, UniqueKeys):
        return _unique(number, value, columns, {*levels, *OWN_KEYS}, schema)
    name = value.field_ if isinstance(value, ValueRange) else str(value)
    column = columns.get(name) or (name if name in levels else None)
    if column is None or column not in schema.names:
        return _nowhere(name)
    if not isinstance(value, ValueRange):
        return Check(number, column)
    kind_of = schema.field(column).type
    if pa.types.is_integer(kind_of):
        return Check(number, column, _whole(value))
    if pa.types.is_floating(kind_of) or pa.types.is_decimal(kind_of):
        return Check(number, column, (value.min, value.max))
    return f"{name!r} has no numbers, which a range needs"


def _unique(
    number: int, value: UniqueKeys, columns: Mapping[str, str], others: Collection[str], schema: pa.Schema
) -> UniqueCheck | str:
    found: list[str] = []
    for name in value.fields:
        column = columns.get(name) or (name if name in others else None)
        if column is None or column not in schema.names:
            return _nowhere(name)
        if not can_be_key(schema.field(column).type):
            return f"{name!r} has lists, which are not compared"
        found.append(column)
    return UniqueCheck(number, tuple(found), value.within)


def _nowhere(name: str) -> str:
    return f"the stream's schema has no field {name!r}, and no edge names such a topic level"


def _whole(value: ValueRange) -> Bounds:
    """Return the bounds of whole numbers. A comparison with a fraction would make fractions of them, and fail for long
    ones."""
    low = None if value.min is None else min(max(ceil(value.min), INT_MIN), INT_MAX)
    high = None if value.max is None else min(max(floor(value.max), INT_MIN), INT_MAX)
    return low, high


@dataclass
class Tally:
    """Findings of checks in some rows."""

    checks: RowChecks
    rows: int = 0
    failed: dict[int, int] = field(default_factory=dict)
    """Number of each check that was made -> rows that fail it."""
    keys: dict[int, list[Hashes]] = field(default_factory=dict)
    """Number of each check for unique keys -> keys of the rows, in parts."""
    valued: set[str] = field(default_factory=set)
    """Watched fields with a value in one of the rows."""
    time: int = 0
    """Newest time by a clock that can be believed, us since 1970; 0 without one."""
    received: int = 0
    """Newest time of receipt by the hub."""
    doubtful: int = 0
    """Newest time of receipt of a row whose clock cannot be believed."""

    def add(self, batch: pa.RecordBatch) -> list[Check]:
        """Check rows, some microseconds for each check of a batch. Return the checks that some of them fail."""
        self.rows += batch.num_rows
        failing = []
        for check in self.checks.checks:
            count = check.failed(batch)
            self.failed[check.number] = self.failed.get(check.number, 0) + count
            if count:
                failing.append(check)
        for unique in self.checks.unique:
            self.keys.setdefault(unique.number, []).append(key_hashes(batch, unique.columns))
        for name, column in self.checks.watched:
            if name not in self.valued and batch.column(column).null_count < batch.num_rows:
                self.valued.add(name)
        if self.checks.times and batch.num_rows:
            self._add_times(batch)
        return failing

    def _add_times(self, batch: pa.RecordBatch) -> None:
        received = batch.column("_received")
        self.received = max(self.received, _newest(received))
        is_trusted = pc.is_in(batch.column("_clock"), value_set=TRUSTED)
        self.time = max(self.time, _newest(batch.column("_time").filter(is_trusted)))
        if is_trusted.false_count:
            self.doubtful = max(self.doubtful, _newest(received.filter(pc.invert(is_trusted))))

    def join(self, other: Tally) -> None:
        """Add the tally of rows behind these, by the same checks."""
        self.rows += other.rows
        for number, count in other.failed.items():
            self.failed[number] = self.failed.get(number, 0) + count
        for number, keys in other.keys.items():
            self.keys.setdefault(number, []).extend(keys)
        self.valued |= other.valued
        self.time, self.received = max(self.time, other.time), max(self.received, other.received)
        self.doubtful = max(self.doubtful, other.doubtful)


def _newest(times: pa.Array) -> int:
    return int(pc.max(times).cast(pa.int64()).as_py() or 0) if len(times) else 0


# Counts of quality rules in a table: transactions of the version that has the rows, so that each row counts once.
#
# A transaction of Delta is a name with a number, and cannot be removed. So a table has a fixed number of places for
# checks, and a place that a withdrawn check had is given to another one.
#
# =============== ===================================================================================================
# name number ===============
# =================================================================================================== ``rows`` rows
# that were checked ``from`` sum of the table's positions before the first of them ``K/rule`` place K: number of its
# check (``number_of``); 0 if it is free ``K/since`` version of the rules that took the place ``K/from``
# ``rows`` without those that this check looked at ``K/failed`` rows that failed the check ``field/NAME`` 0 while the
# field NAME has values; otherwise ``rows`` before the first row without one, plus 1 ``time`` newest time of a row by
# a clock that can be believed, microseconds since 1970 ``received`` newest time of receipt by the hub ``doubtful``
# newest time of receipt of a row whose clock cannot be believed ===============
# ===================================================================================================

FAMILY = "quality/"
"""Beginning of the names, behind that of the stream's application."""


class _Held(NamedTuple):
    number: int
    since: int
    start: int
    failed: int


class Counted(NamedTuple):
    """Counts of one check."""

    rows: int
    failed: int


class QualityCounts:
    """The counts in the transactions of a version.

    Args:
        transactions: those of the version.
        applications: beginning of the stream's own, as of ``actions.app_ids``.
    """

    def __init__(self, transactions: Mapping[str, int], applications: str) -> None:
        self._of, self._prefix = transactions, f"{applications}{FAMILY}"

    @property
    def rows(self) -> int:
        """Return the number of rows that were checked."""
        return self._get("rows")

    def unchecked(self, done: int) -> int:
        """Return the number of records since the first check that were not checked: a maker of tables did not know the
        rules, or an operator skipped them.

        Args:
            done: sum of the table's positions.
        """
        return max(0, done - self._get("from") - self.rows) if self.rows else 0

    def of(self, number: int) -> Counted | None:
        """Return the counts of a check; None before its first row."""
        place = self._by_number.get(number)
        return None if place is None else Counted(self.rows - place.start, place.failed)

    def absent(self, field: str) -> int | None:
        """Return the number of rows since a field's last value; None if it never had one."""
        since = self._of.get(f"{self._prefix}field/{field}")
        if since is None:
            return None
        return self.rows - since + 1 if since else 0

    @property
    def time(self) -> int:
        """Return the newest time of a row by a clock that can be believed, us since 1970; 0 without one."""
        return self._get("time")

    @property
    def received(self) -> int:
        """Return the newest time of receipt by the hub; 0 without one."""
        return self._get("received")

    @property
    def doubtful(self) -> int:
        """Return the newest time of receipt of a row whose clock cannot be believed; 0 without one."""
        return self._get("doubtful")

    def _get(self, name: str) -> int:
        return self._of.get(f"{self._prefix}{name}", 0)

    @cached_property
    def _by_number(self) -> dict[int, _Held]:
        return {each.number: each for _, each in self._places() if each.number}

    def _places(self) -> Iterator[tuple[int, _Held]]:
        for at in range(RULES_MAX):
            yield at, _Held(*(self._get(f"{at}/{name}") for name in ("rule", "since", "from", "failed")))

    def after(self, tally: Tally, done: int) -> dict[str, int]:
        """Return the transactions that count further rows: those that change.

        Args:
            done: sum of the table's positions before these rows.
        """
        counts: dict[str, int] = {}
        if not tally.rows:
            return counts
        if not self.rows:
            counts["from"] = done
        counts["rows"] = self.rows + tally.rows
        left = dict(tally.failed)
        free: list[int] = []
        for at, place in self._places():
            if place.number and (failed := left.pop(place.number, None)) is not None:
                if failed:
                    counts[f"{at}/failed"] = place.failed + failed
            elif place.number and (place.number in tally.checks.declared or place.since > tally.checks.version):
                # It could not be made, or the maker of these rows does not know it yet: they are not its rows.
                counts[f"{at}/from"] = place.start + tally.rows
            else:
                free.append(at)
                if place.number:
                    counts[f"{at}/rule"] = 0
        for (number, failed), at in zip(left.items(), free, strict=False):
            taken = {"rule": number, "since": tally.checks.version, "from": self.rows, "failed": failed}
            counts |= {f"{at}/{name}": value for name, value in taken.items()}
        counts |= self._fields(tally)
        for name, newest in (("time", tally.time), ("received", tally.received), ("doubtful", tally.doubtful)):
            if newest > self._get(name):
                counts[name] = newest
        return {f"{self._prefix}{name}": value for name, value in counts.items()}

    def _fields(self, tally: Tally) -> dict[str, int]:
        fields = {}
        for name, _ in tally.checks.watched:
            key = f"field/{name}"
            since = self._of.get(f"{self._prefix}{key}")
            if name in tally.valued:
                if since != 0:
                    fields[key] = 0
            elif since == 0:
                fields[key] = self.rows + 1
        return fields


# Marks of rows that fail: the column `_failed`, with the names of the rules, in tables whose rules ask for it.

FAILED_COLUMN = "_failed"
"""Column of text, null for a row that fails no rule. Releases that do not know it write null, as for a topic level that
no topic has."""
BETWEEN = ", "


def marked(batch: pa.RecordBatch, failing: Sequence[Check], names: Mapping[int, str]) -> pa.RecordBatch:
    """Return rows with their marks.

    Args:
        failing: the checks that some of the rows fail, in the order of the rules.
        names: number of each check -> name of its rule.
    """
    at = batch.schema.get_field_index(FAILED_COLUMN)
    if not failing:
        if batch.column(at).null_count == batch.num_rows:
            return batch
        return batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))
    codes = np.zeros(batch.num_rows, np.uint64)
    for number, check in enumerate(failing):
        mask = check.failing(batch).fill_null(False).to_numpy(zero_copy_only=False)
        codes |= mask.astype(np.uint64) << np.uint64(number)
    found, index = np.unique(codes, return_inverse=True)
    rules = [names[check.number] for check in failing]
    texts = [
        BETWEEN.join(rule for number, rule in enumerate(rules) if code >> number & 1) or None for code in found.tolist()
    ]
    values = pa.array(texts, pa.string()).take(pa.array(index.astype(np.int64)))
    return batch.set_column(at, batch.schema.field(at), values)


# The quality rules of one table: what is checked in its rows at present, and what its newest version has counted.


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
        applications: beginning of the stream's transactions, as of ``actions.app_ids``.
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
        """Adopt the rules as they are known now. Return the checks of rows, the same object while nothing changes;
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
        self,
        transactions: Mapping[str, int],
        version: int,
        place: Place,
        positions: Mapping[int, int],
        rows: Sequence[NewRows],
    ) -> dict[str, int]:
        """Return the transactions that count further rows.

        Args:
            transactions: those of the version on which the rows are committed.
            version: that version.
            positions: of the table before these rows, by shard.
            rows: by the checks that were adopted last.
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
