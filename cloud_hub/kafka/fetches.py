"""Fetches of Kafka's clients: waits for records, and answers with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as fetched

from weft.cloud_hub.kafka.messages import NO_TIME
from weft.cloud_hub.kafka.partitions import NONE, PARTITION_S, ZSTD, OffsetGone, PartitionReads, Place
from weft.cloud_hub.kafka.topics import FAULTS, Call, Client, Partitions, Topics
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.chunk_index import StreamKey
from weft.protocols.shard.shard_state import ShardState

MAX_WAIT_S = 30.0
"""Longest time that a fetch waits for records, whatever the client asks for."""
LOOK_S = 0.5
"""Interval at which a waiting fetch looks at shards of other processes."""
HEAD_S = 0.02
"""Interval at which the numbers of chunks of the shards here are compared, while a fetch waits."""
ERASED_RUNS_MAX = 8
"""Maximum number of runs without a record that one answer passes."""
ZSTD_VERSION = 10
"""First version of Fetch whose clients can read zstd (KIP-110)."""


class Heads:
    """A watch over the chunks of the shards that this process holds, which costs nothing while no fetch waits."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None

    def numbers(self) -> list[tuple[int, int]]:
        """Return each shard with its last chunk."""
        return [(each.log.shard, each.state.n) for each in self._shards]

    async def moved(self, seen: list[tuple[int, int]], wait_s: float) -> None:
        """Wait until a shard has another chunk than was seen, or the time is over."""
        if self.numbers() != seen:
            return
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look(), name="kafka-heads")
        self._waiting += 1
        try:
            await asyncio.wait([self._watch], timeout=wait_s)
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        before = self.numbers()
        while True:
            await asyncio.sleep(HEAD_S)
            if not self._waiting or self.numbers() != before:
                return


class Fetches:
    """Answers to fetches. Event loop's thread only.

    Args:
        bytes_max: longest answer, in bytes of record batches.
    """

    def __init__(self, shards: Shards, topics: Topics, reads: PartitionReads, bytes_max: int) -> None:
        self._shards, self._topics, self._reads, self._bytes_max = shards, topics, reads, bytes_max
        self._heads = Heads(shards)

    async def answer(self, call: Call) -> Any:
        """Wait for records, and hold the room of the answer with them until it is sent."""
        body, client, version = call.body, call.client, call.version
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + max(0.0, min(body.max_wait / timedelta(seconds=1), MAX_WAIT_S))
        if body.session_id:
            # Fetch sessions (KIP-227) are not kept: this error makes a client continue without one.
            return self._fetched(ErrorCode.fetch_session_id_not_found, {})
        wanted = {(topic.topic, each.partition): each for topic in body.topics for each in topic.partitions}
        names = [topic.topic for topic in body.topics]
        while True:
            seen = self._heads.numbers()
            await self._reads.time.pay(client.charged)
            views = await self._topics.looks(client, names)
            found = {
                place: self._head(each, views[place[0]].state(place[1]), (client.tenant, place[0]))
                for place, each in wanted.items()
            }
            self._reads.time.charge(client.charged, PARTITION_S * len(wanted))
            behind = [place for place, each in found.items() if wanted[place].fetch_offset < each.high_watermark]
            if behind:
                await call.take_room()
                codec = ZSTD if version >= ZSTD_VERSION else NONE
                left = min(body.max_bytes, self._bytes_max)
                for place in behind:
                    if left <= 0:
                        break
                    found[place] = await self._filled(place, found[place], wanted[place], views, (client, codec, left))
                    left -= len(found[place].records)
            left_s = ends_at - loop.time()
            if left_s <= 0 or any(each.records or each.error_code is not ErrorCode.none for each in found.values()):
                return self._fetched(ErrorCode.none, found)
            await call.free_room()
            is_all_here = len(self._shards.own) == self._shards.count and not behind
            await self._heads.moved(seen, left_s if is_all_here else min(left_s, LOOK_S))

    def _head(self, asked: Any, state: ShardState | ErrorCode, key: StreamKey) -> Any:
        """Return the answer about a partition without records."""
        end = -1 if isinstance(state, ErrorCode) else state.next_offset.get(key, 0)
        if isinstance(state, ErrorCode):
            error = state
        else:
            error = ErrorCode.none if 0 <= asked.fetch_offset <= end else ErrorCode.offset_out_of_range
        return fetched.PartitionData(
            partition_index=asked.partition,
            error_code=error,
            high_watermark=end if error is ErrorCode.none else -1,
            last_stable_offset=end,
            aborted_transactions=None,
            records=b"",
        )

    async def _filled(
        self,
        place: tuple[str, int],
        head: Any,
        asked: Any,
        views: dict[str, Partitions],
        request: tuple[Client, int, int],
    ) -> Any:
        """Return the answer about a partition with records."""
        (stream, shard), (client, codec, left) = place, request
        reader, offset, end = views[stream].reader(shard), asked.fetch_offset, head.high_watermark
        try:
            for _ in range(ERASED_RUNS_MAX):
                at = Place((client.tenant, stream), shard, codec, offset)
                run = await self._reads.read(reader, at, end, client.charged)
                data = b"".join(run.since(offset, min(left, asked.partition_max_bytes)))
                if data or run.next_offset in (offset, end):
                    return replace(head, records=data)
                offset = run.next_offset  # all of the run was erased
        except OffsetGone:
            return replace(head, error_code=ErrorCode.offset_out_of_range)
        except FAULTS:
            return replace(head, error_code=ErrorCode.kafka_storage_error)
        return head

    def _fetched(self, error: ErrorCode, found: dict[tuple[str, int], Any]) -> Any:
        topics: dict[str, list[Any]] = {}
        for (topic, _), each in found.items():
            topics.setdefault(topic, []).append(each)
        return fetched.FetchResponse(
            throttle_time=NO_TIME,
            error_code=error,
            responses=tuple(
                fetched.FetchableTopicResponse(topic=topic, partitions=tuple(parts)) for topic, parts in topics.items()
            ),
        )
