"""Batch and streaming reads through a hub. Tasks ask it for ranges of offsets; the store stays closed to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_sinks.errors import ReadError
from spark_sinks.source.broken_pipes import keep_broken_pipes_quiet
from spark_sinks.source.hub.client import HubClient
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.positions import Offsets, Position, from_json, limited, to_json
from spark_sinks.source.selection import Mask, masks
from spark_sinks.source.typed import typed_arrays, with_typed

TASK_ROWS = 200_000
"""Rows of a task: some requests."""
TASKS_MAX = 1024
"""Maximum number of tasks of one read; a longer read gets larger tasks."""
THROUGH = "hub"
"""Key beside the shards of a checkpoint's offsets that says that they were read through a hub."""


@dataclass(frozen=True)
class HubTask(InputPartition):
    """Offsets ``[first, end)`` of a shard."""

    options: ReadOptions
    shard: int
    first: int
    end: int


def client_of(options: ReadOptions) -> HubClient:
    """Return a client for the hub of a read."""
    assert options.hub is not None, "the read is through a hub"
    return HubClient(options.hub, options.tenant, options.stream)


def columns_of(options: ReadOptions) -> pa.Schema:
    """Return the stream's columns, followed by those of the payload schema in the options.

    Raises:
        ReadError: the hub does not answer, or lacks the stream.
    """
    client = client_of(options)
    shard = min(client.heads(), default=0)
    return with_typed(client.page(shard, 0, None, 0).schema, options.schema)


class HubReader(DataSourceReader):
    """A batch read through a hub. The plan is made once per DataFrame: load again to see later records."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks between ``starting`` and ``ending``.

        Raises:
            ReadError: the hub does not answer, or its log lacks the offsets.
        """
        client = client_of(self._options)
        heads = client.heads(_given(self._options.starting) | _given(self._options.ending))
        start = _resolved("starting", self._options.starting, client, heads)
        return _tasks(self._options, start, _resolved("ending", self._options.ending, client, heads))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema)


class HubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read through a hub. Its offsets are the log's by shard, which never change."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        keep_broken_pipes_quiet()
        self._options, self._schema = options, schema
        self._target: Offsets | None = None
        self._heads: Offsets = {}
        self._made: HubClient | None = None

    @property
    def _client(self) -> HubClient:
        """Return a client with the token of the present: one of an issuer ends long before the query."""
        assert self._options.hub is not None, "the read is through a hub"
        renewed = self._options.hub.renewed()
        if self._made is None or renewed != self._options.hub:
            self._options = replace(self._options, hub=renewed)
            self._made = client_of(self._options)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which a new query starts."""
        return _encoded(
            _resolved("starting", self._options.starting, self._client, self._seen(_given(self._options.starting)))
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next micro-batch ends: at most ``limit`` records later, and not past the
        target of availableNow.

        Raises:
            ReadError: the checkpoint is not of this hub, or the hub's store was restored to an earlier state.
        """
        at = _decoded(start)
        heads = self._seen(at)  # another node may have said where the query is, and this one read less of the log yet
        before = dict.fromkeys(heads, 0) | at
        for shard, offset in before.items():
            if offset > heads.get(shard, 0):
                raise ReadError(
                    f"checkpoint: it is at offset {offset} of shard {shard}, and the stream ends at "
                    f"{heads.get(shard, 0)}. It is of another hub, or the hub's store was restored to an earlier state"
                )
        end = heads if self._target is None else dict.fromkeys(heads, 0) | self._target
        end = {shard: max(before[shard], offset) for shard, offset in end.items()}
        return _encoded(limited(before, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of ``max_records_per_trigger``."""
        records = self._options.max_records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the log as last seen, for the lag that Spark reports."""
        return to_json(self._heads)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the present end of the log."""
        self._target = self._seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch."""
        last = _decoded(end)
        _ = self._client  # after a restart, a batch is planned before any look at the hub
        return _tasks(self._options, dict.fromkeys(last, 0) | _decoded(start), last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema)

    def _seen(self, known: Offsets | None = None) -> Offsets:
        self._heads = self._client.heads(known)
        return self._heads

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without the connection."""
        return {**self.__dict__, "_made": None}


def read_task(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in exactly ``schema``. For an empty plan, Spark passes a plain partition.

    Raises:
        ReadError: the hub does not answer, or its log no longer has the rows.
    """
    if not isinstance(partition, HubTask):
        return
    keep_broken_pipes_quiet()
    options = partition.options
    wanted = [mask for found in masks(options, timed=True).values() for mask in found] + _edges_mask(options)
    for batch in client_of(options).rows(partition.shard, partition.first, partition.end):
        kept = batch
        for mask in wanted:
            kept = kept.filter(mask(kept))
        if not kept.num_rows:
            continue
        typed = typed_arrays(kept, options.schema, schema.names)
        arrays = [_column(kept, typed, field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, typed: dict[str, pa.Array], field: pa.Field) -> pa.Array:
    if field.name in typed:
        return typed[field.name].cast(field.type)
    if field.name not in batch.schema.names:  # a topic level that no edge of this shard has named
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name).cast(field.type)


def _edges_mask(options: ReadOptions) -> list[Mask]:
    if options.edges is None:
        return []
    names = pa.array(sorted(options.edges))
    return [lambda batch: pc.is_in(batch.column("_edge"), names)]


def _given(position: Position) -> Offsets:
    """Return the offsets that an option names; none if it names none."""
    return position if isinstance(position, dict) else {}


def _resolved(option: str, position: Position, client: HubClient, heads: Offsets) -> Offsets:
    if position == "latest":
        return heads
    if position == "earliest":
        return {shard: client.first_offset(shard) for shard in heads}
    if isinstance(position, datetime):
        raise ReadError(f"{option}: a read through a hub begins and ends at offsets; filter times with since and until")
    assert isinstance(position, dict)
    beyond = [shard for shard, offset in position.items() if offset > heads.get(shard, 0)]
    if beyond:
        raise ReadError(f"{option}: the offset of shard {beyond[0]} is past the end of the log")
    return dict.fromkeys(heads, 0) | position


def _tasks(options: ReadOptions, start: Offsets, end: Offsets) -> list[InputPartition]:
    rows = sum(max(0, end[shard] - start.get(shard, 0)) for shard in end)
    size = max(TASK_ROWS, -(-rows // TASKS_MAX))
    return [
        HubTask(options, shard, at, min(at + size, end[shard]))
        for shard in sorted(end)
        for at in range(start.get(shard, 0), end[shard], size)
    ]


def _encoded(offsets: Offsets) -> dict[str, Any]:
    return {**to_json(offsets), THROUGH: True}


def _decoded(value: Any) -> Offsets:
    if not isinstance(value, dict) or THROUGH not in value:
        raise ReadError("checkpoint: it is of a read of the store. A read through a hub needs a checkpoint of its own")
    try:
        return from_json({shard: offset for shard, offset in value.items() if shard != THROUGH})
    except ValueError as error:
        raise ReadError(f"checkpoint: {error}") from None
