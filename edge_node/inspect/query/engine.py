"""One query: find its tables, load them, run it within its bounds."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.edge_node.inspect.query import guard, own_tables, tables, tokens
from weft.edge_node.inspect.query.errors import TOO_LARGE, QueryRefused, QueryStopped, explained
from weft.edge_node.inspect.query.loading import StreamTable
from weft.edge_node.inspect.query.times import shifted, time_text
from weft.edge_node.inspect.tail import Wait, settled_commits, sleep
from weft.edge_node.inspect.tail_start import Start, find_beginning
from weft.edge_node.inspect.view import Commit, Cursor, DamagedBytes, Durability, LogDirectory, summarise
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError
from weft.protocols.segment import Footer

FILE_BYTES_MAX = 1 << 30
HEAP_BYTES_MAX = 768 << 20
GRACE_S = 0.5
"""Time after the deadline in which SQLite itself detects it."""
_PROGRESS_STEPS = 20_000
"""Number of steps of SQLite's machine between two checks of the clock: a few milliseconds."""


@dataclass(frozen=True)
class QuerySettings:
    """The bounds of a query."""

    rows_max: int = 10_000_000
    """Maximum number of records to load."""
    timeout_s: float = 60.0
    """Maximum run time, loading included."""
    since_ns: int | None = None
    """Earliest time of receipt of the records, ns since 1970."""
    file_bytes_max: int = FILE_BYTES_MAX
    """Maximum size of the loaded records: 64 MiB of memory, and then a temporary file."""
    heap_bytes_max: int = HEAP_BYTES_MAX
    """Memory of all of SQLite in this process: its cache, and the sorting and grouping of queries. The lowest bound of
    all queries of a process counts."""


class Result(NamedTuple):
    """The result of a query, row by row."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    """Rows. Raises ``QueryRefused`` and ``QueryStopped`` as ``Query.run`` does."""


class Query:
    """A database for one query. ``close`` it. For one thread."""

    def __init__(
        self,
        directory: LogDirectory,
        streams: Mapping[str, Sequence[str]],
        durability: Durability,
        settings: QuerySettings,
        *,
        now_ns: int,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Wait = sleep,
    ) -> None:
        """Prepare for a query over the log in ``directory``.

        Args:
            streams: the existing streams, with their topic patterns as far as known.
            now_ns: the time of ``now()``, ns since 1970.
        """
        self._directory = directory
        self._streams = streams
        self._durability = durability
        self._settings = settings
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._wait = wait
        self._deadline = monotonic() + settings.timeout_s
        self._loaded = 0
        self._function_error: Exception | None = None
        self._is_in_sqlite = False
        self.damage: list[DamagedBytes] = []
        """Unreadable bytes of the log: rows lack their records."""
        self._tables = tables.columns_of(streams)
        self._connection = sqlite3.connect("", isolation_level=None)
        guard.confine(self._connection, settings.file_bytes_max, settings.heap_bytes_max)
        self._connection.create_function("now", -1, self._now, deterministic=True)
        self._connection.create_function("level", 2, _level, deterministic=True)
        tables.create(self._connection, self._tables)

    def close(self) -> None:
        """Drop all loaded data."""
        self._connection.close()

    def why_stuck(self) -> str | None:
        """Return the message of a query that does not end by itself; None while it may. For any thread.

        SQLite checks the clock between the steps of its machine. One step can call a function that takes minutes, such
        as ``instr`` with two long texts, and only the end of the process ends it.
        """
        is_stuck = self._is_in_sqlite and self._monotonic() > self._deadline + GRACE_S
        return self._too_long() if is_stuck else None

    @property
    def is_in_sqlite(self) -> bool:
        """Return whether SQLite is running now. For any thread."""
        return self._is_in_sqlite

    def run(self, sql: str) -> Result:
        """Load the tables that ``sql`` reads, and start the query.

        Raises:
            QueryRefused: the SQL is wrong, or not a SELECT.
            QueryStopped: a bound was reached.
            NoLog, OSError, UnsupportedVersion: the log cannot be read.
            KeyboardInterrupt: while SQLite was running.
        """
        parts = tokens.words(sql)
        tokens.refuse_other_times(parts)
        reads = self._guarded(lambda: guard.what_it_reads(self._connection, sql))
        self._guarded(lambda: self._load(reads, parts))
        self._connection.set_progress_handler(self._is_late, _PROGRESS_STEPS)
        self._connection.set_authorizer(guard.authorize)
        cursor = self._guarded(lambda: self._connection.execute(sql))
        return Result(tuple(column[0] for column in cursor.description or ()), self._rows(cursor))

    def _rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        while (row := self._guarded(cursor.fetchone)) is not None:
            yield row

    def _load(self, reads: Mapping[str, set[str]], parts: Sequence[str]) -> None:
        wanted = {name: reads[name] for name in self._streams if name in reads}
        since, few = self._settings.since_ns, None
        if len(wanted) == 1:
            (table,) = wanted
            bound = tokens.earliest_wanted(parts, table, self._evaluate)
            since = max((each for each in (since, bound) if each is not None), default=None)
            few = tokens.few_wanted(parts, table) if since is None else None
        if wanted:
            self._load_records(wanted, since, few)
        if tables.STREAMS_TABLE in reads or tables.GAPS_TABLE in reads:
            own_tables.fill(self._connection, self._streams, summarise(self._directory).streams)

    def _load_records(self, wanted: Mapping[str, set[str]], since: int | None, few: tokens.Few | None) -> None:
        fills = {
            name: StreamTable(self._connection, name, self._streams[name], columns) for name, columns in wanted.items()
        }

        def is_too_old(footer: Footer) -> bool:
            lanes = [lane for lane in (*footer.lanes, *footer.moved) if footer.streams.get(lane.stream) in wanted]
            return all(since is not None and lane.last_time < since for lane in lanes)

        place, enough = None, math.inf
        if few is not None and not few.newest:
            enough = few.rows
        elif few is not None:
            place = find_beginning(self._directory, wanted.__contains__, Start(last=few.rows)).place
        cursor = Cursor(self._directory, place, wanted.__contains__, is_too_old)
        self._connection.execute("BEGIN").close()
        try:
            for commit in settled_commits(cursor, self._durability, self._wait):
                self._add(commit, fills, since, enough)
                if self._loaded >= enough:
                    break
            for fill in fills.values():
                fill.flush()
        finally:
            cursor.close()
        self._connection.execute("COMMIT").close()

    def _add(self, commit: Commit, fills: Mapping[str, StreamTable], since: int | None, enough: float) -> None:
        if self._is_late():
            raise QueryStopped(self._too_long())
        for item in commit.items:
            if self._loaded >= enough:
                return
            if isinstance(item, DamagedBytes):
                self.damage.append(item)
                continue
            name, entry = item
            header = entry.value
            if not isinstance(header, BatchHeader) or (since and max(header.first_time, header.last_time) < since):
                continue
            try:
                self._loaded += fills[name].add(entry.body, since, commit.origins.get(header.origin))
            except CodecError:
                self.damage.append(DamagedBytes(commit.file, entry.offset, entry.end))
            if self._loaded > self._settings.rows_max:
                raise QueryStopped(
                    f"the query reads more than {self._settings.rows_max} records: ask for fewer with --since 10m or "
                    "WHERE time > now('-10m'), or allow more with --rows-max"
                )

    def _evaluate(self, expression: str) -> object:
        """Return the value of a constant expression; None when it has none."""
        try:
            row = self._connection.execute(f"SELECT {expression}").fetchone()
        except sqlite3.Error:
            return None
        return row[0] if row else None

    def _now(self, *offset: object) -> str:
        try:
            return time_text(shifted(self._now_ns, *map(str, offset[:1])))
        except (ValueError, OverflowError) as error:
            self._function_error = ValueError(f"now(): {error}") if "now(" not in str(error) else error
            raise

    def _is_late(self) -> bool:
        return self._monotonic() > self._deadline

    def _too_long(self) -> str:
        return f"the query took longer than {self._settings.timeout_s:g} s: ask for less, or allow more with --timeout"

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call SQLite, and convert its errors to sentences."""
        self._is_in_sqlite = True
        try:
            return call()
        except sqlite3.Error as error:
            if "interrupted" in str(error):
                # Ctrl-C ends SQLite through the progress handler, in which Python swallows the exception.
                raise (QueryStopped(self._too_long()) if self._is_late() else KeyboardInterrupt) from None
            raise self._explained(error) from None
        except sqlite3.Warning as error:
            raise self._explained(error) from None
        except MemoryError:
            raise QueryStopped(TOO_LARGE) from None
        finally:
            self._is_in_sqlite = False

    def _explained(self, error: Exception) -> QueryRefused | QueryStopped:
        if self._function_error is not None:
            return QueryRefused(str(self._function_error))
        return explained(str(error), self._tables)


def _level(key: object, number: object) -> str | None:
    """Return the ``number``-th level of a topic, counted from 1; NULL when there is none."""
    if not isinstance(key, str) or not isinstance(number, int):
        return None
    levels = key.split("/")
    return levels[number - 1] if 1 <= number <= len(levels) else None
