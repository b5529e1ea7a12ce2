"""``enrich``: fields from a file."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from weft.config.functions.enrich import Enrich as Settings
from weft.edge_node.functions.contract import AsyncFunction, Context, NotReady, Out, Row
from weft.edge_node.functions.kinds.lookup_table import LookupTable, TableError, Wanted, read_table, text_of
from weft.edge_node.functions.kinds.watched_files import CHECK_INTERVAL_S, WatchedFiles
from weft.edge_node.functions.paths import MISSING, getter

log = logging.getLogger(__name__)


class Enrich(AsyncFunction):
    """Rows with fields from a CSV file or an SQLite database, looked up by one of their values
    (docs/functions/enrich.md).

    State: none. The table in memory has at most ``rows`` rows and about ``memory`` bytes; it is read in a thread, and
    meanwhile there are two of them.
    """

    def __init__(self, settings: Settings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._value = _value_getter(settings.on, context)
        self._wanted = wanted_of(settings)
        # A database in WAL mode is changed in a file beside it.
        self._files = WatchedFiles((settings.file, f"{settings.file}-wal"), CHECK_INTERVAL_S)
        self._table: LookupTable | None = None
        self._trouble = ""
        self._stopped = threading.Event()

    async def prepare(self) -> None:
        """Read the file, if it changed."""
        if self._files.changed(asyncio.get_running_loop().time()):
            try:
                table = await asyncio.to_thread(read_table, self._wanted, self._stopped.is_set)
            except TableError as error:
                self._refuse(str(error))
            else:
                self._trouble = ""
                if self._table is None or table.version != self._table.version:
                    log.info(
                        "%s: read %d rows of %s, version %s",
                        self._context.stream,
                        len(table.rows),
                        self._settings.file,
                        table.version,
                    )
                self._table = table
        if self._table is None:
            raise NotReady(self._trouble)

    def _refuse(self, why: str) -> None:
        stays = "; the rows read before stay in use" if self._table is not None else ""
        if self._trouble != f"{why}{stays}":
            log.error("%s: %s%s", self._context.stream, why, stays)
        self._trouble = f"{why}{stays}"

    async def close(self) -> None:
        """Stop reading. The end of a node waits for its threads."""
        self._stopped.set()

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with the fields of the file."""
        assert self._table is not None
        fields, table = self._table.fields, self._table.rows
        nothing = (None,) * len(fields)
        missing = self._settings.missing
        made: list[Row] = []
        for row in rows:
            value = self._value(row)
            if value is MISSING:
                out.reject(row, f"field {self._settings.on} is missing")
                continue
            key = text_of(value)
            found = table.get(key) if key is not None else None
            if found is None:
                if missing != "keep":
                    reason = f"{self._settings.on} {value!r:.80} is not in {self._wanted.file}"
                    (out.reject if missing == "reject" else out.drop)(row, reason)
                    continue
                found = nothing
            row.values = {**row.values, **dict(zip(fields, found, strict=True))}
            row.payload = None
            made.append(row)
        return made

    def version(self) -> str:
        """Return the prefix of the hash of the table's content."""
        return self._table.version if self._table is not None else ""

    def trouble(self) -> str:
        """Return the reason why the present file is not in use."""
        return self._trouble


def wanted_of(settings: Settings) -> Wanted:
    """Return the file and columns of the settings."""
    return Wanted(
        file=settings.file,
        column=settings.column or settings.on.rpartition(".")[2],
        fields=settings.fields,
        numbers=frozenset(settings.numbers),
        table=settings.table,
        rows_max=settings.rows,
        bytes_max=settings.memory_bytes,
    )


def _value_getter(on: str, context: Context) -> Callable[[Row], Any]:
    if on in context.level_names:
        return lambda row: context.levels(row.key).get(on, MISSING)
    if on == "key":
        return lambda row: row.key.decode(errors="replace")
    get = getter(on)
    return lambda row: get(row.values)
