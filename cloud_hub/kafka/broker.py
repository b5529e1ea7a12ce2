"""Answers to the requests of Kafka's consumers: brokers, topics, offsets and records.

A topic is a stream of the client's tenant, a partition a shard, and the leader of a partition the process that owns the
shard. Any process answers for any partition, so that a client that has old metadata reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

from kio.schema.describe_cluster.v0 import response as cluster
from kio.schema.describe_configs.v3 import response as configs
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as fetched
from kio.schema.list_offsets.v5 import response as offsets
from kio.schema.metadata.v8 import response as metadata

from weft.cloud_hub.auth.access import Charged, readable
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.cluster import Owners
from weft.cloud_hub.http.exchange import AnswerRoom, Answers
from weft.cloud_hub.kafka.messages import NO_TIME
from weft.cloud_hub.kafka.partitions import CHUNK_S, NONE, ZSTD, OffsetGone, PartitionReads, Place
from weft.cloud_hub.reads.records import RecordReader, ShardsView, ShardViews
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.cloud_hub.reads.views import Search
from weft.cloud_hub.shard.shards import Shards
from weft.config.units import Address
from weft.hub_api.rights import Right
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.lane import valid_name
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError

MAX_WAIT_S = 30.0
"""Longest time that a fetch waits for records, whatever the client asks for."""
LOOK_S = 0.5
"""Interval at which a waiting fetch looks at shards of other processes."""
LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another request made."""
HEAD_S = 0.02
"""Interval at which the numbers of chunks of the shards here are compared, while a fetch waits."""
UNLISTED_MAX = 8
"""Maximum number of topics of one request that are looked for though the list of streams, some seconds old, lacks
them."""
LOOKS_AT_ONCE = 16
BEGINS_MAX = 16_384
"""Maximum number of partitions whose first offset is known."""
PARTITION_S = 0.000_005
"""Processor time of the loop for each partition of a request, each time that a fetch looks at it."""
LISTED_AT_ONCE = 500
"""Number of partitions whose offsets are found in one step."""
ERASED_RUNS_MAX = 8
"""Maximum number of runs without a record that one answer passes."""
ZSTD_VERSION = 10
"""First version of Fetch whose clients can read zstd (KIP-110)."""
LATEST, EARLIEST = -1, -2
"""Times of ListOffsets that mean the end and the beginning of the log."""
CONFIG_OF_TOPIC = {"cleanup.policy": "delete", "compression.type": "zstd", "message.timestamp.type": "CreateTime"}
TOPIC_RESOURCE, BROKER_RESOURCE, DEFAULT_SOURCE = 2, 4, 5
_FAULTS = (StoreError, NotFound, CodecError, TableError)


class Client(NamedTuple):
    """The client of one request."""

    identity: TokenIdentity | None
    """Its token; None at a hub without tokens."""
    charged: Charged
    local_host: str
    """Address of this machine at which it came."""

    @property
    def tenant(self) -> str:
        """Return the tenant whose streams are its topics."""
        return "default" if self.identity is None else self.identity.tenant

    def may_read(self, stream: str) -> bool:
        """Return whether a stream is a topic for it."""
        return self.identity is None or self.identity.rights.allow(Right.READ, stream)


# Brokers: the hub processes with a listener for Kafka's clients.


class KafkaBroker(NamedTuple):
    """A hub process as a broker."""

    id: int
    host: str
    port: int


def broker_id(name: str) -> int:
    """Return the number of a hub process as a broker: the same at every process and after a restart."""
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


class Brokers:
    """The brokers as one process knows them.

    Args:
        advertise: address of this process for clients; None for the one at which a client came.
    """

    def __init__(self, owners: Owners, advertise: Address | None) -> None:
        self._owners, self._advertise = owners, advertise
        self._port = 0
        self.own_id = broker_id(owners.own)

    def listens(self, port: int) -> None:
        """Note the port at which this process listens, for clients and for the other processes."""
        self._port = port
        address = self._advertise or Address("", port)
        self._owners.serves_kafka(f"{address.host}:{address.port}")

    def all(self, client: Client) -> dict[str, KafkaBroker]:
        """Return the brokers that a client can reach, by the name of the process. This one is the first."""
        own = self._advertise or Address(client.local_host, self._port)
        found = {self._owners.own: KafkaBroker(self.own_id, own.host, own.port)}
        for entry in self._owners.others():
            host, _, port = entry.kafka.rpartition(":")
            if not port.isdecimal() or not (host or self._owners.is_here(entry)):
                continue
            found[entry.name] = KafkaBroker(broker_id(entry.name), host or client.local_host, int(port))
        return found

    def leader(self, shard: int, brokers: dict[str, KafkaBroker]) -> int:
        """Return the broker of a shard's owner; this process where clients cannot reach it."""
        owner = brokers.get(self._owners.owner(shard))
        return self.own_id if owner is None else owner.id


# Topics: looks at streams, which requests share.


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


class Topics:
    """The streams of a tenant, for its clients."""

    def __init__(self, views: ShardViews, summaries: ShardSummaries, now: Callable[[], float]) -> None:
        self._views, self._summaries, self._now = views, summaries, now
        self._looks: dict[StreamKey, tuple[asyncio.Task[ShardsView], float]] = {}

    async def names(self, client: Client) -> list[str]:
        """Return the streams that a client may read, by name."""
        streams = await (await self._summaries.every()).streams(client.tenant)
        return await readable(streams, client.may_read)

    async def known(self, client: Client, names: Iterable[str]) -> set[str]:
        """Return those of some names that are streams. The client must be allowed to read them."""
        listed = await (await self._summaries.every()).streams(client.tenant)
        wanted = {name for name in names if valid_name(name)}
        new = sorted(wanted - listed.keys())[:UNLISTED_MAX]
        found = await asyncio.gather(*(self.look((client.tenant, name)) for name in new))
        is_there = [
            any(state.has_stream(client.tenant, name) for state in view.states)
            for name, view in zip(new, found, strict=True)
        ]
        return (wanted & listed.keys()) | {name for name, there in zip(new, is_there, strict=True) if there}

    async def look(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream, as of a moment ago."""
        now = self._now()
        for old in [each for each, (task, at) in self._looks.items() if task.done() and now - at >= LOOK_AGE_S]:
            del self._looks[old]
        if key not in self._looks:
            self._looks[key] = asyncio.create_task(self._views.of_stream(*key), name="kafka-look"), now
        return await asyncio.shield(self._looks[key][0])

    async def looks(self, client: Client, names: Sequence[str]) -> dict[str, Partitions]:
        """Return the partitions of some topics."""
        allowed = [name for name in dict.fromkeys(names) if client.may_read(name)]
        known = await self.known(client, allowed)
        found: dict[str, ShardsView | ErrorCode] = dict.fromkeys(names, ErrorCode.topic_authorization_failed)
        found |= dict.fromkeys(allowed, ErrorCode.unknown_topic_or_partition)
        there = [name for name in allowed if name in known]
        for at in range(0, len(there), LOOKS_AT_ONCE):
            part = there[at : at + LOOKS_AT_ONCE]
            found.update(
                zip(part, await asyncio.gather(*(self.look((client.tenant, name)) for name in part)), strict=True)
            )
        return {name: Partitions(view) for name, view in found.items()}


class Partitions:
    """The partitions of one topic for one request, or why a client cannot read them."""

    def __init__(self, view: ShardsView | ErrorCode) -> None:
        self._view = view
        self._states = {} if isinstance(view, ErrorCode) else {state.shard: state for state in view.states}

    def state(self, shard: int) -> ShardState | ErrorCode:
        """Return the state of a partition, or why it cannot be read."""
        if (found := self._states.get(shard)) is not None:
            return found
        if isinstance(self._view, ErrorCode):
            return self._view
        return ErrorCode.leader_not_available if shard in self._view.missing else ErrorCode.unknown_topic_or_partition

    def reader(self, shard: int) -> RecordReader:
        """Return the reader of a partition that has a state."""
        assert isinstance(self._view, ShardsView), "others have no states"
        return self._view.readers[shard]


# The requests.


class Broker:
    """Answers of one process. Event loop's thread only.

    Args:
        answers: bounds on the answers in progress.
        bytes_max: longest answer, in bytes of record batches.
    """

    def __init__(
        self,
        cluster_id: str,
        shards: Shards,
        brokers: Brokers,
        topics: Topics,
        *,
        reads: PartitionReads,
        answers: Answers,
        bytes_max: int,
    ) -> None:
        self._cluster_id, self._shards, self._brokers, self._topics = cluster_id, shards, brokers, topics
        self._reads, self._answers, self._bytes_max = reads, answers, bytes_max
        self._heads = Heads(shards)
        self._begins: dict[tuple[StreamKey, int], tuple[int, int]] = {}

    async def metadata(self, body: Any, client: Client) -> Any:
        """Return the brokers, and all topics or some."""
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

    async def describe_cluster(self, _: Any, client: Client) -> Any:
        """Return the brokers."""
        return cluster.DescribeClusterResponse(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            cluster_id=self._cluster_id,
            controller_id=self._brokers.own_id,
            brokers=tuple(
                cluster.DescribeClusterBroker(broker_id=each.id, host=each.host, port=each.port)
                for each in self._brokers.all(client).values()
            ),
        )

    async def describe_configs(self, body: Any, client: Client) -> Any:
        """Return settings of topics that clients look at, which cannot be changed; of brokers none."""
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

    async def list_offsets(self, body: Any, client: Client) -> Any:
        """Return offsets by time: those of the first record that the hub committed at the time or later."""
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
        except _FAULTS:
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

    @asynccontextmanager
    async def fetch(self, body: Any, client: Client, version: int) -> AsyncIterator[tuple[Any, AnswerRoom | None]]:
        """Wait for records, and hold the room of the answer with them until it is sent."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + max(0.0, min(body.max_wait / timedelta(seconds=1), MAX_WAIT_S))
        if body.session_id:
            # Fetch sessions (KIP-227) are not kept: this error makes a client continue without one.
            yield self._fetched(ErrorCode.fetch_session_id_not_found, {}), None
            return
        wanted = {(topic.topic, each.partition): each for topic in body.topics for each in topic.partitions}
        names = [topic.topic for topic in body.topics]
        async with AsyncExitStack() as holding:
            while True:
                seen, room = self._heads.numbers(), None
                await self._reads.time.pay(client.charged)
                views = await self._topics.looks(client, names)
                found = {
                    place: self._head(each, views[place[0]].state(place[1]), (client.tenant, place[0]))
                    for place, each in wanted.items()
                }
                self._reads.time.charge(client.charged, PARTITION_S * len(wanted))
                behind = [place for place, each in found.items() if wanted[place].fetch_offset < each.high_watermark]
                if behind:
                    room = await holding.enter_async_context(self._answers.turn(client.charged))
                    codec = ZSTD if version >= ZSTD_VERSION else NONE
                    left = min(body.max_bytes, self._bytes_max)
                    for place in behind:
                        if left <= 0:
                            break
                        found[place] = await self._filled(
                            place, found[place], wanted[place], views, (client, codec, left)
                        )
                        left -= len(found[place].records)
                left_s = ends_at - loop.time()
                if left_s <= 0 or any(each.records or each.error_code is not ErrorCode.none for each in found.values()):
                    yield self._fetched(ErrorCode.none, found), room
                    return
                await holding.aclose()
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
        except _FAULTS:
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
