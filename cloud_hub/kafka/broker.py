"""Answers to the requests of Kafka's consumers: brokers, topics, offsets and records.

A topic is a stream of the client's tenant, a partition a shard, and the leader of a partition the process that owns the
shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kio.schema.describe_cluster.v0 import response as cluster
from kio.schema.describe_configs.v3 import response as configs
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5 import response as offsets
from kio.schema.metadata.v8 import response as metadata

from weft.cloud_hub.kafka import messages
from weft.cloud_hub.kafka.fetches import PARTITIONS_SHORT, Fetches
from weft.cloud_hub.kafka.messages import NO_TIME
from weft.cloud_hub.kafka.partitions import CHUNK_S, PARTITION_S, TOPIC_S, PartitionReads
from weft.cloud_hub.kafka.topics import FAULTS, Brokers, Call, Partitions, Topics
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import LOOKS_MAX, Search
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.chunk_index import StreamKey
from weft.protocols.shard.shard_state import ShardState

BEGINS_MAX = 16_384
"""Maximum number of partitions whose first offset is known."""
LISTED_AT_ONCE = 16
"""Number of partitions whose offsets are found before the request pays for them."""
LATEST, EARLIEST = -1, -2
"""Times of ListOffsets that mean the end and the beginning of the log."""
CONFIG_OF_TOPIC = {"cleanup.policy": "delete", "compression.type": "zstd", "message.timestamp.type": "CreateTime"}
TOPIC_RESOURCE, BROKER_RESOURCE, DEFAULT_SOURCE = 2, 4, 5

Handler = Callable[[Call], Awaitable[Any]]
"""The way from a request to its answer, both in the newest version that the hub serves. A long answer takes room before
it is made."""


class _Begin(NamedTuple):
    """Begin of the log of a partition, or the place where the search for it continues."""

    watermark: int
    offset: int | None
    chunk: int


class Broker:
    """Answers of one process. Event loop's thread only."""

    def __init__(
        self,
        cluster_id: str,
        shards: Shards,
        brokers: Brokers,
        topics: Topics,
        *,
        reads: PartitionReads,
        bytes_max: int,
    ) -> None:
        self._cluster_id, self._shards, self._brokers, self._topics = cluster_id, shards, brokers, topics
        self._reads = reads
        self._begins: dict[tuple[StreamKey, int], _Begin] = {}
        self.handlers: dict[int, Handler] = {
            messages.PRODUCE: self.produce,
            messages.FETCH: Fetches(shards, brokers, topics, reads, bytes_max=bytes_max).answer,
            messages.LIST_OFFSETS: self.list_offsets,
            messages.METADATA: self.metadata,
            messages.DESCRIBE_CONFIGS: self.describe_configs,
            messages.DESCRIBE_CLUSTER: self.describe_cluster,
        }
        """API key -> handler of each request of ``messages.APIS``, but for those before authentication."""

    async def produce(self, call: Call) -> Any:
        """Refuse records: streams have those of edges alone."""
        return messages.produce(call.body)

    async def metadata(self, call: Call) -> Any:
        """Return the brokers, and all topics or some."""
        body, client = call.body, call.client
        await call.take_room()
        brokers = self._brokers.all(client)
        if body.topics is None:
            errors = dict.fromkeys(await self._topics.names(client), ErrorCode.none)
        else:
            errors = await self._topics.errors(client, list(dict.fromkeys(each.name for each in body.topics)))
        self._reads.time.charge(client.charged, TOPIC_S * len(errors))
        # All streams have as many partitions.
        partitions = tuple(
            metadata.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=shard,
                leader_id=leader,
                replica_nodes=(leader,),
                isr_nodes=(leader,),
            )
            for shard in range(self._shards.count)
            for leader in [self._brokers.leader(shard, brokers)]
        )
        return metadata.MetadataResponse(
            throttle_time=NO_TIME,
            brokers=tuple(
                metadata.MetadataResponseBroker(node_id=each.id, host=each.host, port=each.port)
                for each in brokers.values()
            ),
            cluster_id=self._cluster_id,
            controller_id=self._brokers.own_id,
            topics=tuple(
                metadata.MetadataResponseTopic(
                    error_code=error, name=name, partitions=partitions if error is ErrorCode.none else ()
                )
                for name, error in errors.items()
            ),
        )

    async def describe_cluster(self, call: Call) -> Any:
        """Return the brokers."""
        return cluster.DescribeClusterResponse(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            cluster_id=self._cluster_id,
            controller_id=self._brokers.own_id,
            brokers=tuple(
                cluster.DescribeClusterBroker(broker_id=each.id, host=each.host, port=each.port)
                for each in self._brokers.all(call.client).values()
            ),
        )

    async def describe_configs(self, call: Call) -> Any:
        """Return settings of topics that clients look at, which cannot be changed; of brokers none."""
        body, client = call.body, call.client
        await call.take_room()
        names = {each.resource_name for each in body.resources if each.resource_type == TOPIC_RESOURCE}
        errors = await self._topics.errors(client, list(names))
        self._reads.time.charge(client.charged, TOPIC_S * len(body.resources))

        def result(asked: Any) -> configs.DescribeConfigsResult:
            is_topic = asked.resource_type == TOPIC_RESOURCE and errors[asked.resource_name] is ErrorCode.none
            is_known = is_topic or asked.resource_type == BROKER_RESOURCE
            keys = asked.configuration_keys
            return configs.DescribeConfigsResult(
                error_code=ErrorCode.none if is_known else ErrorCode.unknown_topic_or_partition,
                error_message=None,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=tuple(
                    configs.DescribeConfigsResourceResult(
                        name=name,
                        value=value,
                        read_only=True,
                        config_source=DEFAULT_SOURCE,
                        is_sensitive=False,
                        synonyms=(),
                        documentation=None,
                    )
                    for name, value in CONFIG_OF_TOPIC.items()
                    if is_topic and (not keys or name in keys)
                ),
            )

        return configs.DescribeConfigsResponse(throttle_time=NO_TIME, results=tuple(map(result, body.resources)))

    async def list_offsets(self, call: Call) -> Any:
        """Return offsets by time: those of the first record that the hub committed at the time or later."""
        body, client = call.body, call.client
        led = self._brokers.led(client, self._shards.count)
        wanted: dict[str, list[int]] = {}
        for topic in body.topics:
            wanted.setdefault(topic.name, []).extend(each.partition_index for each in topic.partitions)
        views = await self._topics.partitions(client, wanted, led)
        self._reads.time.charge(client.charged, TOPIC_S * len(views))
        search, watermarks, charged_s = Search(), dict[int, int](), 0.0
        known: dict[tuple[str, int, int], Any] = {}  # a request may name a partition thousands of times
        topics = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                place = topic.name, each.partition_index, each.timestamp
                if place not in known:
                    key = client.tenant, topic.name
                    known[place] = await self._offset(key, views[topic.name], each, (search, watermarks))
                    if len(known) % LISTED_AT_ONCE == 0:
                        cost_s = _cost_s(search, len(known))
                        self._reads.time.charge(client.charged, cost_s - charged_s)
                        charged_s = cost_s
                        await self._reads.time.pay(client.charged)
                        await asyncio.sleep(0)
                        call.check()
                partitions.append(known[place])
            topics.append(offsets.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
        self._reads.time.charge(client.charged, _cost_s(search, len(known)) - charged_s)
        if sum(len(each.partitions) for each in topics) > PARTITIONS_SHORT:
            await call.take_room()
        return offsets.ListOffsetsResponse(throttle_time=NO_TIME, topics=tuple(topics))

    async def _offset(
        self, key: StreamKey, partitions: Partitions, asked: Any, budget: tuple[Search, dict[int, int]]
    ) -> Any:
        def answer(error: ErrorCode, offset: int = -1, time_ms: int = -1) -> Any:
            return offsets.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=error, offset=offset, timestamp=time_ms
            )

        search, watermarks = budget
        state = partitions.state(asked.partition_index)
        if isinstance(state, ErrorCode):
            return answer(state)
        end, reader = state.next_offset.get(key, 0), partitions.reader(state.shard)
        if asked.timestamp == LATEST:
            return answer(ErrorCode.none, end)
        if asked.timestamp < EARLIEST:
            return answer(ErrorCode.unsupported_version)
        try:
            begin = await self._begin(key, reader, state, search, watermarks)
            if begin is None:
                return answer(ErrorCode.request_timed_out)  # the client asks for the others again
            if asked.timestamp == EARLIEST:
                return answer(ErrorCode.none, begin)
            if search.looks_left <= 0 or search.left <= 0:
                return answer(ErrorCode.request_timed_out)
            offset = (await reader.first(state, key, search, since=asked.timestamp * 1_000_000)).offset
            await asyncio.sleep(0)  # what is cached is found without a pause
            if offset is None:
                return answer(ErrorCode.request_timed_out)
            offset = max(offset, begin)
        except FAULTS:
            return answer(ErrorCode.kafka_storage_error)
        return answer(ErrorCode.none, offset, asked.timestamp) if offset < end else answer(ErrorCode.none)

    async def _begin(
        self, key: StreamKey, reader: RecordReader, state: ShardState, search: Search, watermarks: dict[int, int]
    ) -> int | None:
        """Return the first offset that the log still has; None if the request's budget ended before it was found. The
        next request continues the search.

        Args:
            watermarks: those that the request has read, by shard.
        """
        if state.shard not in watermarks:
            watermarks[state.shard] = (await reader.log.manifest())[0].watermark
        if not (watermark := watermarks[state.shard]):
            return 0
        known = self._begins.get((key, state.shard))
        if known is None or known.watermark != watermark:
            known = _Begin(watermark, None, watermark)
        if known.offset is None and search.looks_left > 0 and search.left > 0:
            found = await reader.first(state, key, search, chunk=known.chunk)
            if reader.log.watermark != watermark:
                return None  # the collector has continued, and what was found may be in the table alone
            known = _Begin(watermark, found.offset, found.chunk)
            if len(self._begins) >= BEGINS_MAX:
                del self._begins[next(iter(self._begins))]
            self._begins[key, state.shard] = known
        return known.offset


def _cost_s(search: Search, partitions: int) -> float:
    """Return the processor time of a search for offsets, and of the partitions that were listed."""
    return PARTITION_S * partitions + CHUNK_S * (search.passed + LOOKS_MAX - search.looks_left) + search.worked_s
