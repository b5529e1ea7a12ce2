"""Answers to the requests of Kafka's consumers: brokers, topics, offsets and records.

A topic is a stream of the client's tenant, a partition a shard, and the leader of a partition the process that owns the
shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.describe_cluster.v0 import response as cluster
from kio.schema.describe_configs.v3 import response as configs
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5 import response as offsets
from kio.schema.metadata.v8 import response as metadata

from weft.cloud_hub.auth.access import readable
from weft.cloud_hub.kafka import messages
from weft.cloud_hub.kafka.fetches import Fetches
from weft.cloud_hub.kafka.messages import NO_TIME
from weft.cloud_hub.kafka.partitions import CHUNK_S, PARTITION_S, PartitionReads
from weft.cloud_hub.kafka.topics import FAULTS, Brokers, Call, Partitions, Topics
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import Search
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.chunk_index import StreamKey
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast

BEGINS_MAX = 16_384
"""Maximum number of partitions whose first offset is known."""
LISTED_AT_ONCE = 500
"""Number of partitions whose offsets are found in one step."""
LATEST, EARLIEST = -1, -2
"""Times of ListOffsets that mean the end and the beginning of the log."""
CONFIG_OF_TOPIC = {"cleanup.policy": "delete", "compression.type": "zstd", "message.timestamp.type": "CreateTime"}
TOPIC_RESOURCE, BROKER_RESOURCE, DEFAULT_SOURCE = 2, 4, 5

Handler = Callable[[Call], Awaitable[Any]]
"""The way from a request to its answer, both in the newest version that the hub serves. A long answer takes room before
it is made."""


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
        self._begins: dict[tuple[StreamKey, int], tuple[int, int]] = {}
        self.handlers: dict[int, Handler] = {
            messages.PRODUCE: self.produce,
            messages.FETCH: Fetches(shards, topics, reads, bytes_max).answer,
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
        brokers = self._brokers.all(client)
        if body.topics is None:
            errors = dict.fromkeys(await self._topics.names(client), ErrorCode.none)
        else:
            names = list(dict.fromkeys(each.name for each in body.topics))
            allowed = await readable(names, client.may_read)
            known = await self._topics.known(client, allowed)
            errors = dict.fromkeys(names, ErrorCode.topic_authorization_failed)
            errors |= dict.fromkeys(allowed, ErrorCode.unknown_topic_or_partition)
            errors |= dict.fromkeys(known, ErrorCode.none)
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
        names = [each.resource_name for each in body.resources if each.resource_type == TOPIC_RESOURCE]
        known = await self._topics.known(client, filter(client.may_read, names))

        def result(asked: Any) -> configs.DescribeConfigsResult:
            is_topic = asked.resource_type == TOPIC_RESOURCE and asked.resource_name in known
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
        views = await self._topics.looks(client, [each.name for each in body.topics])
        search, watermarks = Search(), dict[int, int]()
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
                        await asyncio.sleep(0)
                partitions.append(known[place])
            topics.append(offsets.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
        self._reads.time.charge(client.charged, PARTITION_S * len(known) + CHUNK_S * search.passed)
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
        try:
            if asked.timestamp == EARLIEST:
                return answer(ErrorCode.none, await self._begin(key, reader, state, watermarks))
            if asked.timestamp < 0:
                return answer(ErrorCode.unsupported_version)
            if search.looks_left <= 0 or search.left <= 0:
                return answer(ErrorCode.request_timed_out)  # the client asks for the others again
            offset = (await reader.first(state, key, search, since=asked.timestamp * 1_000_000)).offset
            await asyncio.sleep(0)  # what is cached is found without a pause
            if offset is None:
                return answer(ErrorCode.request_timed_out)
            offset = max(offset, await self._begin(key, reader, state, watermarks))
        except CollectedPast:
            return answer(ErrorCode.leader_not_available)
        except FAULTS:
            return answer(ErrorCode.kafka_storage_error)
        return answer(ErrorCode.none, offset, asked.timestamp) if offset < end else answer(ErrorCode.none)

    async def _begin(self, key: StreamKey, reader: RecordReader, state: ShardState, watermarks: dict[int, int]) -> int:
        """Return the first offset that the log still has.

        Args:
            watermarks: those that the request has read, by shard.
        """
        if state.shard not in watermarks:
            watermarks[state.shard] = (await reader.log.manifest())[0].watermark
        if not (watermark := watermarks[state.shard]):
            return 0
        known = self._begins.get((key, state.shard))
        if known is None or known[0] != watermark:
            found = await reader.first(state, key, Search(), chunk=watermark)
            offset = found.offset
            if offset is None:
                offset = (await reader.log.around(*key, watermark)).start
            if len(self._begins) >= BEGINS_MAX:
                del self._begins[next(iter(self._begins))]
            known = self._begins[key, state.shard] = watermark, offset
        return known[1]
