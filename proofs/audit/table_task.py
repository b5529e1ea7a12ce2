"""The table of an audited stream, and the task that counts rows of its files.

The files of one version never change, so tasks anywhere read the same rows unless the table is vacuumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from weft.proofs.audit.contents import add_payloads
from weft.proofs.audit.counts import coded, lanes_of, unsigned
from weft.proofs.audit.log_task import COLUMNS
from weft.proofs.audit.part import TABLE_PLACE, Part
from weft.proofs.audit.scope import Scope
from weft.proofs.audit.times import add_times
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.delta.calls import guarded
from weft.storage.table.delta.files import file_system
from weft.storage.table.delta.slices import group_slices
from weft.storage.table.delta.versions import open_table
from weft.storage.table.errors import TableError
from weft.storage.table.names import app_id, table_payload

TASK_BYTES = 32 << 20
"""Bytes of files for one task. A longer file is split between several tasks, by slices."""
SLICES_MAX = 64
SCAN_ROWS = 128 << 10


class File(NamedTuple):
    """A file of the table."""

    number: int
    path: str
    """Relative to the table."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class AuditedTable:
    """One version of a table."""

    uri: str
    options: dict[str, str] = field(repr=False)
    version: int
    positions: dict[int, int]
    schema: pa.Schema
    payload: PayloadKind
    files: tuple[File, ...]

    @classmethod
    def open(
        cls, uri: str, options: dict[str, str], cluster: Cluster, stream: str, version: int | None = None
    ) -> AuditedTable | None:
        """Return the newest or a given version of the table; None if there is no table. Blocks.

        Raises:
            TableError: it cannot be opened.
        """
        return guarded(lambda: _open(uri, options, cluster, stream, version))

    @property
    def has_origins(self) -> bool:
        """Return whether the table has the column of origins; tables of earlier releases lack it."""
        return ORIGIN_COLUMN in self.schema.names and self.schema.field(ORIGIN_COLUMN).type == pa.string()

    def tasks(self, columns: Sequence[str], collected: Mapping[int, RangeSet]) -> Iterator[TableTask]:
        """Yield the tasks that together count every row once.

        Args:
            columns: columns to read.
            collected: shard -> offsets of chunks that were deleted.
        """
        group: list[File] = []
        filled = 0
        for file in self.files:
            if file.size > TASK_BYTES:
                slices = min(SLICES_MAX, -(-file.size // TASK_BYTES))
                for number in range(slices):
                    yield self._task([file], columns, collected, number, slices)
                continue
            if group and filled + file.size > TASK_BYTES:
                yield self._task(group, columns, collected)
                group, filled = [], 0
            group.append(file)
            filled += file.size
        if group:
            yield self._task(group, columns, collected)

    def _task(
        self,
        files: Sequence[File],
        columns: Sequence[str],
        collected: Mapping[int, RangeSet],
        number: int = 0,
        slices: int = 1,
    ) -> TableTask:
        return TableTask(
            self.uri, self.options, tuple(files), self.schema, tuple(columns), self.has_origins, dict(collected),
            number, slices,
        )  # fmt: skip


def _open(uri: str, options: dict[str, str], cluster: Cluster, stream: str, version: int | None) -> AuditedTable | None:
    table = open_table(uri, options, version)
    if table is None:
        return None
    apps = {shard: app_id(cluster.cluster_id, stream, shard) for shard in range(cluster.tree.count)}
    found = {shard: table.transaction_version(app) for shard, app in apps.items()}
    # This call refuses tables whose files have more rows than the table, such as those with deletion vectors.
    table.to_pyarrow_dataset()
    types = {each.name: getattr(each.type, "type", None) for each in table.schema().fields}
    actions = table.get_add_actions(flatten=True)
    named = sorted(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    return AuditedTable(
        uri,
        options,
        table.version(),
        {shard: int(position or 0) for shard, position in found.items()},
        pa.schema(table.schema()),
        table_payload(types.get("payload"), table.metadata().configuration),
        tuple(File(number, unquote(path), size) for number, (path, size) in enumerate(named)),
    )


@dataclass(frozen=True)
class TableTask:
    """Some files of the table, or some slices of one file, at regular intervals."""

    uri: str
    options: dict[str, str] = field(repr=False)
    files: tuple[File, ...]
    schema: pa.Schema
    columns: tuple[str, ...]
    has_origins: bool
    collected: dict[int, RangeSet]
    slice: int
    slices: int

    async def run(self, _: ObjectStore, scope: Scope) -> Part:
        """Count the rows. An unreadable file is recorded as damage, and the others are still counted."""
        return await asyncio.to_thread(self._run, scope)

    def _run(self, scope: Scope) -> Part:
        part = Part()
        for file in self.files:
            counts = Part()
            try:
                guarded(lambda file=file, counts=counts: self._count_file(counts, file, scope))  # type: ignore[misc]
            except TableError as error:
                part.note(TABLE_PLACE, file.number, f"the table cannot be read on: {file.path} is damaged: {error}")
            part.merge(counts)
        return part

    def _count_file(self, part: Part, file: File, scope: Scope) -> None:
        for batch in self.rows(file):
            add_payloads(part.table_payloads, batch, scope)
            add_times(part.table_times, batch, scope)
            part.table.add_rows(*lanes_of(batch), unsigned(batch.column("_seq")))
            part.offsets.add_rows(*coded(batch.column("_shard")), unsigned(batch.column("_offset")))
            if self.collected:
                self._count_collected(part, batch, scope)

    def rows(self, file: File) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, or of this task's part of it. Blocks.

        The rows of a slice come together: they are sorted by other columns, and only all of them make a run of numbers.
        """
        fragment = pads.ParquetFileFormat().make_fragment(file.path, file_system(self.uri, self.options))
        for each in islice(group_slices(fragment.metadata), self.slice, None, self.slices):
            groups = list(range(each.first, each.end))
            scanner = fragment.subset(row_group_ids=groups, schema=self.schema).scanner(
                schema=self.schema,
                columns=list(self.columns),
                batch_size=SCAN_ROWS,
                batch_readahead=2,
                fragment_scan_options=pads.ParquetFragmentScanOptions(page_checksum_verification=True),
            )
            yield from scanner.to_batches() if len(groups) == 1 else scanner.to_table().combine_chunks().to_batches()

    def _count_collected(self, part: Part, batch: pa.RecordBatch, scope: Scope) -> None:
        """Count rows of offsets with deleted chunks as records of the log."""
        shards, codes = coded(batch.column("_shard"))
        offsets = unsigned(batch.column("_offset"))
        wanted = np.zeros(len(offsets), bool)
        for code, shard in enumerate(shards):
            for first, end in self.collected.get(shard, ()):
                wanted |= (codes == code) & (offsets >= first) & (offsets < end)
        rows = batch.filter(pa.array(wanted))
        part.collected.add_rows(*lanes_of(rows), unsigned(rows.column("_seq")))
        if self.has_origins:
            part.origins.add_rows(*lanes_of(rows), rows.column(ORIGIN_COLUMN))
        add_payloads(part.log_payloads, rows, scope)
        add_times(part.log_times, rows, scope)


def table_columns(table: AuditedTable, *, payloads: bool, collected: bool) -> list[str]:
    """Return the columns to read: all for a comparison of payloads, because a page's checksum is checked only when it
    is read."""
    if payloads:
        return list(table.schema.names)
    return [*COLUMNS, *([ORIGIN_COLUMN] if collected and table.has_origins else [])]
