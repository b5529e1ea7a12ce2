"""Work of executors on tables: rows of a part of the log into files, and files into one. No version names them yet."""

from __future__ import annotations

import asyncio
import pickle  # Between this driver and its executors, as Spark itself does.
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from spark_sinks.source.workers import settle
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, StoreError, open_store
from weft.storage.table.actions import DataFile, TableError
from weft.storage.table.quality import RowChecks, Tally
from weft.storage.table.rows import Erased
from weft.storage.table.typed_columns import TypedRows
from weft.storage.table_writer.settings import StreamStopped, TableSettings
from weft.storage.table_writer.shards import ChunkCache, Declared, ShardView
from weft.storage.table_writer.writers import Joiner, Made, OwnWriter, RowsRequest, StreamRows

CHUNK_BYTES_MAX = 128 << 20
"""Bytes of chunks that a task keeps in memory: those that it reads ahead."""
COLUMNS = "number int, result binary"


@dataclass(frozen=True)
class StoreAccess:
    """The hub's store, for tasks."""

    uri: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    cluster: Cluster

    def open(self) -> ObjectStore:
        """Return the store."""
        return open_store(self.uri, dict(self.options))


class LogPart(NamedTuple):
    """Offsets ``[first, end)`` of one shard, all of a task."""

    shard: int
    first: int
    end: int
    first_n: int
    """Chunk of the first offset, or an earlier one."""
    last_n: int
    """Chunk of the last offset, or a later one that exists."""
    whole: bool
    """Read whole chunks: most of them is this stream's."""


@dataclass(frozen=True)
class RowsWork:
    """Making of rows of one stream."""

    access: StoreAccess
    settings: TableSettings
    stream: StreamKey
    schema: pa.Schema
    payload: PayloadKind
    topics: dict[Lane, Sequence[str]]
    """Topic patterns of the stream's lanes, if its levels are columns."""
    parts: Sequence[LogPart]
    typed: TypedRows | None = None
    checks: RowChecks | None = None
    erased: Erased | None = None
    sort: Sequence[str] = ()

    async def run(self, number: int) -> Made:
        """Write the files of one part. Raises as ``FileWriter.write``, also for its first record."""
        part, store = self.parts[number], self.access.open()
        log = ShardLog(store, self.access.cluster, part.shard)
        state = ShardState(self.access.cluster.cluster_id, part.shard)
        state.n = part.last_n
        view = ShardView(log, state, ChunkCache(log, CHUNK_BYTES_MAX, whole=part.whole))
        writer = OwnWriter(store, self.settings)
        declared = _Shipped(*self.stream, self.topics)
        rows = StreamRows(
            self.stream, self.schema, self.payload, declared, self.typed, self.checks, self.erased, self.sort
        )
        files: list[DataFile] = []
        tally = None if self.checks is None else Tally(self.checks)
        at, n, done = part.first, part.first_n, None
        while at < part.end:
            (made,) = await writer.write(rows, [RowsRequest(view, n, at, part.end)])
            if not isinstance(made, Made):
                if done is None:
                    raise made
                break  # the rows before the one that failed are good
            files += made.files
            if tally is not None and made.tally is not None:
                tally.join(made.tally)
            done, (at, _, n, _) = made.gathered, made.gathered
        assert done is not None
        return Made(tuple(files), done, tally)


@dataclass(frozen=True)
class JoinWork:
    """Joining of files of one table."""

    access: StoreAccess
    settings: TableSettings
    key: str
    schema: pa.Schema
    runs: Sequence[Sequence[DataFile]]
    sort: Sequence[str] = ()

    async def run(self, number: int) -> tuple[list[DataFile], DataFile]:
        """Join one run. Raises as ``FileWriter.join``."""
        joiner = Joiner(
            self.access.open(),
            self.key,
            self.settings,
            clock=time.time_ns,
            monotonic=time.monotonic,
            nonce=lambda: secrets.token_hex(8),
        )
        old, new = await joiner.join(self.runs[number], self.schema, sort=self.sort)
        return list(old), new


class _Shipped(Declared):
    """Declarations as the driver read them."""

    def __init__(self, tenant: str, stream: str, topics: dict[Lane, Sequence[str]]) -> None:
        super().__init__(tenant, stream, ())
        self._topics = topics

    def topics(self, view: ShardView) -> Callable[[Lane], Sequence[str]]:  # noqa: ARG002
        """Return a look-up of topic patterns."""
        return lambda lane: self._topics.get(lane, ())


class Failure(NamedTuple):
    """An error on its way to the driver: most errors do not come out of ``pickle`` as they went in."""

    kind: str
    text: str
    offsets: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, error: Exception) -> Failure | None:
        """Return an expected error in this form; None for a bug."""
        if isinstance(error, StreamStopped):
            return cls("stopped", error.reason, (error.first, error.end))
        for kind, types in _KINDS.items():
            if isinstance(error, types):
                return cls(kind, str(error) or type(error).__name__)
        return None

    def error(self, table: str, shard: int) -> Exception:
        """Return the error again."""
        if self.kind == "stopped":
            return StreamStopped(table, shard, *self.offsets, ValueError(self.text))
        return _ERRORS[self.kind](self.text)


_KINDS: dict[str, tuple[type[Exception], ...]] = {
    "past": (CollectedPast,),
    "missing": (NotFound,),
    "damaged": (CodecError,),
    "store": (StoreError,),
    "table": (TableError,),
}
_ERRORS: dict[str, type[Exception]] = {
    "past": CollectedPast,
    "missing": NotFound,
    "damaged": Corrupt,
    "store": StoreError,
    "table": TableError,
}


def running(work: RowsWork | JoinWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of an executor: it does the work of the given numbers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in batch.column("id").to_pylist():
                result: Any
                try:
                    result = asyncio.run(_awaited(work.run(number)))
                except Exception as error:
                    result = Failure.of(error)
                    if result is None:
                        raise
                arrays = [pa.array([number], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())]
                yield pa.RecordBatch.from_arrays(arrays, names=["number", "result"])

    return run


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def prefix_of(parts: Sequence[LogPart], results: Sequence[Made | Failure]) -> Made | Failure:
    """Return what the parts of one shard made up to the first gap; the failure if there is nothing before it.

    Args:
        parts: in the order of their offsets, each beginning where the one before it ends.
    """
    made: Made | None = None
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, Failure):
            return result if made is None else made
        if made is None:
            made = result
        else:
            if made.tally is not None and result.tally is not None:
                made.tally.join(result.tally)
            made = Made((*made.files, *result.files), result.gathered, made.tally)
        if made.gathered.end < part.end:
            break
    assert made is not None
    return made
