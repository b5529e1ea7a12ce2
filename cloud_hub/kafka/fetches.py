"""Fetches of Kafka's clients: waits for records, and answers with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as fetched

from weft.cloud_hub.kafka.messages import NO_TIME
from weft.cloud_hub.kafka.partitions import CHUNK_S, NONE, TOPIC_S, ZSTD, End, OffsetGone, PartitionReads, Place
from weft.cloud_hub.kafka.topics import FAULTS, Brokers, Call, Led, Partitions, Topics
from weft.cloud_hub.reads.views import Search
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import OWN_LOOK_S_MAX, Shards
from weft.protocols.chunk_index import StreamKey
from weft.protocols.shard.shard_state import ShardState

MAX_WAIT_S = 30.0
"""Longest time that a fetch waits for records, whatever the client asks for."""
FILL_S = 1.0
"""Time after which an answer that has records gets no more; and the least time for the first ones."""
LOOK_S = 0.5
"""Interval at which a waiting fetch looks at the client's token, and at shards that this process leads but does not
hold."""
HEAD_S = 0.02
"""Least interval at which the partitions here are compared, while fetches wait."""
WATCH_SHARE = 0.05
"""Share of the loop's time that the comparison takes at most, by longer intervals."""
PARTITIONS_SHORT = 128
"""Number of partitions up to which an answer without records reserves no bytes."""
ZSTD_VERSION = 10
"""First version of Fetch whose clients can read zstd (KIP-110)."""

TopicPlace = tuple[str, int]
"""Topic and partition of a request."""


class _Watched:
    """A partition that fetches wait for."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.waiting: dict[asyncio.Event, int] = {}
        """Signal of a fetch -> end of the partition as the fetch knows it."""


class Heads:
    """A watch over the partitions of the shards that this process holds. It costs nothing while no fetch waits, and a
    new chunk costs one comparison for each awaited partition of its shard, whatever the number of fetches."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._watched: dict[int, dict[StreamKey, _Watched]] = {}
        self._watch: asyncio.Task[None] | None = None

    def states(self) -> dict[int, ShardState]:
        """Return the states of the shards that this process holds."""
        return {each.log.shard: each.state for each in self._shards if each.loaded}

    @contextlib.contextmanager
    def watching(self, ends: Mapping[TopicPlace, int], tenant: str) -> Iterator[asyncio.Event]:
        """Hold a signal that is set once one of some partitions here ends after a known end."""
        news, states = asyncio.Event(), self.states()
        for (topic, shard), end in ends.items():
            if (now := states[shard].next_offset.get((tenant, topic), 0)) > end:
                news.set()
            watched = self._watched.setdefault(shard, {}).setdefault((tenant, topic), _Watched(now))
            watched.waiting[news] = end
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look(), name="kafka-heads")
        try:
            yield news
        finally:
            for topic, shard in ends:
                of_shard = self._watched[shard]
                watched = of_shard[tenant, topic]
                del watched.waiting[news]
                if not watched.waiting:
                    del of_shard[tenant, topic]
                if not of_shard:
                    del self._watched[shard]

    async def _look(self) -> None:
        seen: dict[int, int] = {}
        while self._watched:
            cost = Search()
            cost.timed(self._compare)(seen)
            await asyncio.sleep(max(HEAD_S, cost.worked_s / WATCH_SHARE))

    def _compare(self, seen: dict[int, int]) -> None:
        for shard, state in self.states().items():
            if seen.get(shard) == state.n:
                continue
            seen[shard] = state.n
            for key, watched in self._watched.get(shard, {}).items():
                if (end := state.next_offset.get(key, 0)) == watched.end:
                    continue
                watched.end = end
                for news, known in watched.waiting.items():
                    if known < end:
                        news.set()


class _Wanted(NamedTuple):
    """Request of one fetch."""

    places: dict[TopicPlace, Any]
    topics: dict[str, Partitions]
    """Topics, as of the last look at each."""
    led: Led
    codec: int
    ends_at: float
    """Time of the loop until which it waits."""


class Fetches:
    """Answers to fetches. Event loop's thread only.

    Args:
        bytes_max: longest answer, in bytes of record batches.
    """

    def __init__(
        self, shards: Shards, brokers: Brokers, topics: Topics, reads: PartitionReads, *, bytes_max: int
    ) -> None:
        self._shards, self._brokers, self._topics = shards, brokers, topics
        self._reads, self._bytes_max = reads, bytes_max
        self._heads = Heads(shards)

    async def answer(self, call: Call) -> Any:
        """Wait for records, and hold the room of the answer with them until it is sent."""
        body, now = call.body, asyncio.get_running_loop().time
        if body.session_id:
            # Fetch sessions (KIP-227) are not kept: this error makes a client continue without one.
            return _answer(ErrorCode.fetch_session_id_not_found, {})
        ends_at = now() + max(0.0, min(body.max_wait / timedelta(seconds=1), MAX_WAIT_S))
        places = {(topic.topic, each.partition): each for topic in body.topics for each in topic.partitions}
        by_topic: dict[str, list[int]] = {}
        for name, shard in places:
            by_topic.setdefault(name, []).append(shard)
        led = self._brokers.led(call.client, self._shards.count)
        topics = await self._topics.partitions(call.client, by_topic, led)
        self._reads.time.charge(call.client.charged, TOPIC_S * len(topics))
        wanted = _Wanted(places, topics, led, ZSTD if call.version >= ZSTD_VERSION else NONE, ends_at)
        while True:
            began, cost = now(), Search()
            call.check()
            found = cost.timed(_found)(call.client.tenant, wanted)
            await self._confirm(call, wanted, found)
            await self._fill(call, wanted, found)
            call.check()
            left_s = wanted.ends_at - now()
            if left_s <= 0 or any(each.records or each.error_code is not ErrorCode.none for each in found.values()):
                if call.room is None and len(found) > PARTITIONS_SHORT:
                    await call.take_room()
                self._reads.time.charge(call.client.charged, cost.worked_s)
                return cost.timed(_answer)(ErrorCode.none, found)
            await call.free_room()
            self._reads.time.charge(call.client.charged, cost.worked_s)
            await self._moved(call, wanted, found)
            await asyncio.sleep(max(0.0, began + HEAD_S - now()))

    async def _confirm(self, call: Call, wanted: _Wanted, found: dict[TopicPlace, Any]) -> None:
        """Look again at offsets above the end. The state of a shard may be old: an offset is out of range only once its
        owner has read its head. Else a client would begin again, and read twice or leave records out."""
        above = [place for place, each in found.items() if each.error_code is ErrorCode.offset_not_available]
        sure = {}
        for sequencer in [each for each in self._shards.own if any(each.log.shard == shard for _, shard in above)]:
            self._reads.time.charge(call.client.charged, CHUNK_S)
            sure[sequencer.log.shard] = await _is_at_head(sequencer)
        for topic, shard in above:
            if sure.get(shard):
                asked = wanted.places[topic, shard]
                head = _head(asked, wanted.topics[topic].state(shard), (call.client.tenant, topic))
                is_above = head.error_code is ErrorCode.offset_not_available
                found[topic, shard] = replace(head, error_code=ErrorCode.offset_out_of_range) if is_above else head

    async def _moved(self, call: Call, wanted: _Wanted, found: Mapping[TopicPlace, Any]) -> None:
        """Wait for news of the partitions, or until the fetch ends, and look at their topics again."""
        now, tenant, here = asyncio.get_running_loop().time, call.client.tenant, self._heads.states()
        ends = {place: each.high_watermark for place, each in found.items() if place[1] in here}
        away = {topic for topic, shard in found if shard not in here}
        with self._heads.watching(ends, tenant) as news:
            while not news.is_set() and (left_s := wanted.ends_at - now()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_S)):
                        await news.wait()
                call.check()
                if away:
                    break
        states = self._heads.states()
        changed = away | {
            topic
            for (topic, shard), end in ends.items()
            if shard not in states or states[shard].next_offset.get((tenant, topic), 0) != end
        }
        self._reads.time.charge(call.client.charged, TOPIC_S * len(changed) + CHUNK_S * len(away))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(wanted.ends_at):
                if away:
                    await self._reads.time.pay(call.client.charged)
                wanted.topics.update(await self._topics.look(tenant, list(changed), wanted.led))

    async def _fill(self, call: Call, wanted: _Wanted, found: dict[TopicPlace, Any]) -> None:
        """Add records. It takes room once there are some, and no more of them after ``FILL_S``."""
        behind = [
            place
            for place, each in found.items()
            if each.error_code is ErrorCode.none and wanted.places[place].fetch_offset < each.high_watermark
        ]
        if not behind:
            return
        # Each partition is the first in turn, since those at the end may get nothing.
        first, left = call.number % len(behind), min(call.body.max_bytes, self._bytes_max)
        fills_until = asyncio.get_running_loop().time() + FILL_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(wanted.ends_at, fills_until)) as limit:
                for place in [*behind[first:], *behind[:first]]:
                    found[place] = await self._filled(call, wanted, place, found[place], left)
                    left -= len(found[place].records)
                    if found[place].records:
                        limit.reschedule(fills_until)
                    if left <= 0:
                        return

    async def _filled(self, call: Call, wanted: _Wanted, place: TopicPlace, head: Any, left: int) -> Any:
        """Return the answer about a partition with records."""
        (stream, shard), asked, charged = place, wanted.places[place], call.client.charged
        reader, state = wanted.topics[stream].reader(shard), wanted.topics[stream].state(shard)
        assert isinstance(state, ShardState), "it is behind"
        at = Place((call.client.tenant, stream), shard, wanted.codec, asked.fetch_offset)
        end = End(head.high_watermark, state.n)
        try:
            while not (run := await self._reads.read(reader, at, end, charged)).batches:
                call.check()  # the search continues where it ended
            if call.room is None:
                del run  # those who wait for room hold nothing meanwhile
                await call.take_room()
                run = await self._reads.read(reader, at, end, charged)
        except OffsetGone:
            return replace(head, error_code=ErrorCode.offset_out_of_range)
        except FAULTS:
            return replace(head, error_code=ErrorCode.kafka_storage_error)
        return replace(head, records=b"".join(run.since(at.offset, min(left, asked.partition_max_bytes))))


def _found(tenant: str, wanted: _Wanted) -> dict[TopicPlace, Any]:
    """Return the answer about each partition, without records."""
    return {
        place: _head(each, wanted.topics[place[0]].state(place[1]), (tenant, place[0]))
        for place, each in wanted.places.items()
    }


def _head(asked: Any, state: ShardState | ErrorCode, key: StreamKey) -> Any:
    """Return the answer about a partition without records."""
    end = -1 if isinstance(state, ErrorCode) else state.next_offset.get(key, 0)
    if isinstance(state, ErrorCode):
        error = state
    elif asked.fetch_offset < 0:
        error = ErrorCode.offset_out_of_range
    else:
        error = ErrorCode.none if asked.fetch_offset <= end else ErrorCode.offset_not_available
    return fetched.PartitionData(
        partition_index=asked.partition,
        error_code=error,
        high_watermark=end if error is ErrorCode.none else -1,
        last_stable_offset=end,
        aborted_transactions=None,
        records=b"",
    )


async def _is_at_head(sequencer: Sequencer) -> bool:
    """Read a shard up to the head of its log. Return whether that was possible."""
    try:
        async with asyncio.timeout(OWN_LOOK_S_MAX):
            await sequencer.catch_up(0.0)
    except TimeoutError:
        return False
    return sequencer.loaded and sequencer.trouble is None


def _answer(error: ErrorCode, found: Mapping[TopicPlace, Any]) -> Any:
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
