"""Search for the chunk with an offset: the right one, in few requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.log_writer import Delivery, LogWriter
from spark_sinks.source.stream_log import find_chunk
from tests.spark_sinks.conftest import START, STREAM, Hub, encoded
from tests.spark_sinks.source.following import collect
from weft.protocols.chunk_index import Chunk, StreamKey
from weft.storage.chunk_log import ShardLog

CHUNKS = 200
GETS_MAX = 24
KEY = ("default", STREAM)


class Searched(ShardLog):
    """A log that counts the indexes that it is asked for."""

    asked = 0

    async def index(self, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        self.asked += 1
        return await super().index(n, only)


def write(root: Path, holding: range) -> LogWriter:
    """Make chunks, of which some hold ten records and the others none."""
    writer = LogWriter(str(root), stream=STREAM)
    for number in range(CHUNKS):
        batches = [encoded("press-1", holding.index(number))] if number in holding else []
        writer.write(Delivery("press-1", batches), received=START + number)
    return writer


@pytest.mark.slow
@pytest.mark.parametrize("holding", [range(CHUNKS), range(3, CHUNKS, 40)])
def test_each_offset_is_found(tmp_path: Path, holding: range) -> None:
    writer = write(tmp_path, holding)

    async def search() -> None:
        for at, n in enumerate(holding):
            for offset in (10 * at, 10 * at + 9):
                log = Searched(writer.store, writer.cluster, 0)
                found = await find_chunk(log, KEY, offset, 0)
                assert found is not None
                assert (found.n, found.first, found.end) == (n, 10 * at, 10 * at + 10)
                assert len(holding) < CHUNKS or log.asked <= GETS_MAX
        assert await find_chunk(log, KEY, 10 * len(holding), 0) is None

    asyncio.run(search())


def test_a_chunk_that_the_hub_deleted_is_none(tmp_path: Path) -> None:
    hub = Hub(str(tmp_path))
    hub.write(4)
    hub.tier()
    collect(hub)
    writer = hub._writer
    shard = next(shard for shard, end in hub.heads().items() if end)
    log = ShardLog(writer.store, writer.cluster, int(shard))
    end = hub.heads()[shard]

    async def search() -> list[int | None]:
        found = [await find_chunk(log, KEY, offset, 0) for offset in (0, end - 1)]
        return [None if each is None else each.n for each in found]

    assert asyncio.run(search()) == [None, 3]
