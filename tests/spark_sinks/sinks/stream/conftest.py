"""A real hub process, what streams hold, and rows as a task gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.demo.fabric import DemoHub, get_json
from spark_sinks.sinks.stream.lane import LaneFact, Position
from spark_sinks.sinks.stream.link import ProducerSettings
from spark_sinks.sinks.stream.sink import SendTask
from weft.proofs.audit.audit import audit
from weft.storage.object_store import open_store

TIME_US = 1_700_000_000_000_000
SCHEMA = pa.schema(
    [
        ("_shard", pa.int32()),
        ("_offset", pa.int64()),
        ("_ordinal", pa.int32()),
        ("_time", pa.int64()),
        ("_key", pa.binary()),
        ("_payload", pa.binary()),
        ("_headers", pa.map_(pa.string(), pa.string())),
        ("_lineage", pa.string()),
    ]
)


class StreamHub(DemoHub):
    """A hub process whose streams a test can look at."""

    def serve(self, store: str, shards: int, options: Mapping[str, str] | None = None) -> None:
        """Let the hub run over a store that is there already. Call it before the start."""
        text = self.config_path.read_text().replace(f"store: {self.store}", f"store: {store}")
        self.config_path.write_text(text.replace("shards: 2", f"shards: {shards}"))
        self.store, self.environment = store, dict(options or {})

    def settings(self, stream: str, **changes: Any) -> ProducerSettings:
        named: dict[str, Any] = {"urls": (self.url,), "stream": stream, "query": stream, "store": self.store}
        return ProducerSettings(**named | changes)

    def stream_records(self, stream: str, shards: int = 2) -> list[dict[str, Any]]:
        """All records of a stream in the hub's log, by shard and offset."""
        found: list[dict[str, Any]] = []
        for shard in range(shards):
            offset = 0
            while True:
                url = f"{self.url}/v1/streams/{stream}/records?shard={shard}&offset={offset}&limit=10000"
                answer = get_json(url, timeout_s=20)
                if not answer["records"]:
                    break
                found += answer["records"]
                offset = answer["next_offset"][str(shard)]
        return found

    def offsets(self, stream: str, shards: int = 2) -> list[tuple[int, ...]]:
        """Source positions of the stream's records, as the log has them."""
        texts = [dict(record["headers"])["weft.position"] for record in self.stream_records(stream, shards)]
        return [tuple(map(int, text.split(":"))) for text in texts]

    def problems(self, stream: str) -> list[str]:
        """What an audit of the stream finds."""
        return asyncio.run(audit(open_store(self.store, {}), "default", stream)).problems


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamHub]:
    started = StreamHub(tmp_path_factory.mktemp("hub"))
    started.start()
    yield started
    started.stop()


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[StreamHub]:
    """A hub that the test may kill."""
    started = StreamHub(tmp_path)
    started.start()
    yield started
    started.stop()


def rows(shard: int, offsets: Iterable[int], *, each: int = 1, payload: bytes = b"p") -> pa.RecordBatch:
    """Rows in order, ``each`` for a source record."""
    made = [
        {
            "_shard": shard,
            "_offset": offset,
            "_ordinal": None,
            "_time": TIME_US + offset,
            "_key": b"plant/m1",
            "_payload": payload + b":%d:%d" % (offset, number),
            "_headers": None,
            "_lineage": None,
        }
        for offset in offsets
        for number in range(each)
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def send(
    settings: ProducerSettings,
    *batches: pa.RecordBatch,
    facts: dict[int, LaneFact] | None = None,
    floors: dict[int, Position] | None = None,
) -> dict[int, dict[str, Any]]:
    """Run a task as Spark does. Returns its answers by source shard."""
    answers = list(SendTask(settings, facts or {}, floors or {}).run(iter(batches)))
    return {row["shard"]: row for answer in answers for row in answer.to_pylist()}
