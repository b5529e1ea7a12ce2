"""Checks of rows by quality rules, on the record batches that become a file: a handful of operations on whole columns.

A check looks at one row alone, so a tally over rows does not depend on how they were cut into batches and files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil, floor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weft.config.payload_schema.quality import QualityRule, UniqueKeys, ValueRange
from weft.storage.payloads.decoder import MISFIT_COLUMN
from weft.storage.table.quality.declared import StreamQuality
from weft.storage.table.quality.keys import Hashes, can_be_key, key_hashes
from weft.storage.table.record_time import CLOCKS, CORRECTED, SYNCED
from weft.storage.table.rows import FIXED_COLUMNS
from weft.storage.table.typed_columns import typed_names

TRUSTED = pa.array([CLOCKS[SYNCED], CLOCKS[CORRECTED]])
"""States of a record's clock in which its time can be believed."""
OWN_KEYS = ("_key", "_edge", "_time", "payload")
"""Columns of every table that may be a part of a unique key."""
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
