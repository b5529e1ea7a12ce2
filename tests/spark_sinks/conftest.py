"""One Spark session for all tests here, and a log with a table to read."""

from __future__ import annotations

import asyncio
import copy
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.log_writer import Delivery, LogWriter
from spark_sinks.runtime.session import session
from tests.cloud_hub.tables.latest_tables import drain_latest, latest
from tests.support.spark_classes import QUICK, end_with_java
from weft.cloud_hub.tables.buckets import Key
from weft.cloud_hub.tables.latest import LatestTierer
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.lane import Origin
from weft.protocols.payloads import PayloadKind
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
STREAM = "telemetry"
TOPIC = "plant/{line}/{machine}/telemetry"
SHARDS = 4
EDGES = ("press-1", "press-2", "press-3", "paint-1")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    started = session(
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield started
    # Java removes its temporary files when it ends, which otherwise is after the run has looked for leftovers.
    end_with_java(started)


class Hub:
    """A log that grows by rounds of ten records from every edge node, and a table that follows when told to."""

    def __init__(self, root: str, options: Mapping[str, str] | None = None, *, shards: int = SHARDS) -> None:
        self.root = root
        self.stream = STREAM
        self.rounds = 0
        self.kind = PayloadKind.BYTES
        """What the edge nodes say of their payloads."""
        self.origin: Origin | None = None
        """What makes the records of the next rounds; None when devices send them."""
        self.payload = payload
        self._writer = LogWriter(root, shards=shards, stream=STREAM, options=options)

    def write(self, rounds: int = 1, topic: str = TOPIC, edges: Collection[str] = EDGES) -> None:
        """Append rounds; one chunk per shard and round. Round r is taken in r seconds after START."""
        for number in range(self.rounds, self.rounds + rounds):
            deliveries = [
                Delivery(
                    edge,
                    [encoded(edge, number, self.payload, self.origin)],
                    log_id,
                    [topic],
                    self.kind,
                    [self.origin] if self.origin is not None else [],
                )
                for log_id, edge in enumerate(EDGES, 1)
                if edge in edges
            ]
            self._writer.write(*deliveries, received=START + (number + 1) * SECOND)
        self.rounds += rounds

    def read_on(self) -> None:
        """Write behind what a hub has written, such as its acts."""
        self._writer.read_on()

    def another(self, stream: str) -> Hub:
        """Another stream in the same log."""
        other = copy.copy(self)
        other.stream, other.rounds, other._writer = stream, 0, copy.copy(self._writer)
        other._writer.stream = stream
        return other

    def announce(self, topic: str = TOPIC) -> None:
        """An edge node offers the stream and has no record yet."""
        self._writer.write(Delivery(EDGES[0], [], 1, [topic]), received=START)

    def tier(self, schema: StreamSchema | None = None) -> int:
        """Fold the whole log into the table; returns the rows moved."""
        return asyncio.run(self._tier(schema))

    async def _tier(self, schema: StreamSchema | None) -> int:
        store, cluster = self._writer.store, self._writer.cluster
        views = await load_shards(store, cluster)
        settings = TableSettings(file_rows_max=40)
        tierer = Tierer(store, cluster, "default", self.stream, views, settings=settings, schema=lambda: schema)
        rows = 0
        while moved := await tierer.step():
            rows += moved
        return rows

    def latest(self, *, instead: bool = False) -> list[tuple[str, int]]:
        """Bring the latest table with a change feed up to the log. Return key and number of its rows."""
        store, cluster = self._writer.store, self._writer.cluster

        async def made() -> None:
            views = await load_shards(store, cluster)
            tierer = LatestTierer(store, cluster, "default", STREAM, views, Key(["_key"]), feed=True, instead=instead)
            await drain_latest(tierer)

        asyncio.run(made())
        return sorted((key, seq) for key, (_, seq, _) in latest(store).items())

    def heads(self) -> dict[str, int]:
        """The end of the log, as a checkpoint names it."""
        return {str(shard): end for shard, end in self._writer.write(received=0).items()}

    def backup(self) -> Callable[[], None]:
        """Copy the store. Returns what puts it back, as from a backup: offsets are given out again from there."""
        kept, rounds, states = f"{self.root}-backup", self.rounds, copy.deepcopy(self._writer._states)
        shutil.copytree(self.root, kept)

        def restore() -> None:
            shutil.rmtree(self.root)
            shutil.copytree(kept, self.root)
            self.rounds, self._writer._states = rounds, copy.deepcopy(states)

        return restore

    def load(self, spark: SparkSession, **options: object) -> DataFrame:
        """A batch read through the source."""
        named = {"store": self.root, "stream": self.stream, **options}
        return spark.read.format("weft").options(**named).load()

    def expected(self, rounds: range | None = None) -> list[tuple[str, int, bytes]]:
        """(edge, seq, payload) of every record, sorted."""
        return sorted(
            (edge, 10 * number + i, payload(edge, 10 * number + i))
            for number in (range(self.rounds) if rounds is None else rounds)
            for edge in EDGES
            for i in range(10)
        )


def payload(edge: str, seq: int) -> bytes:
    return f"{edge}:{seq}".encode()


def encoded(
    edge: str, number: int, payload: Callable[[str, int], bytes] = payload, origin: Origin | None = None
) -> bytes:
    """One round of an edge node: ten records, 100 ms apart, of two machines in turn."""
    first = 10 * number
    times = struct.pack("<10q", *(START + number * SECOND + i * SECOND // 10 for i in range(10)))
    keys = [f"plant/{edge[:5]}/m{i % 2}/telemetry".encode() for i in range(10)]
    columns = batch.columns_from_lists(times, keys, [payload(edge, first + i) for i in range(10)])
    clock = ClockReading(1, number, ClockState.SYNCED)
    return batch.encode(1, first, columns, clock, origin=origin.number if origin is not None else 0)


def records(frame: DataFrame) -> list[tuple[str, int, bytes]]:
    """(edge, seq, payload) of every row, sorted: doubles stay doubles."""
    rows = frame.select("_edge", "_seq", "payload").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in rows)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(str(tmp_path / "hub"))
