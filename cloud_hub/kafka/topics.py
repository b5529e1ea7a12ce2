"""Requests of Kafka's clients, and what a client sees: the hub processes as brokers, and streams as topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from weft.cloud_hub.auth.access import Access, Charged, readable
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.cluster import Owners
from weft.cloud_hub.http.exchange import AnswerRoom, Answers
from weft.cloud_hub.kafka.messages import Request
from weft.cloud_hub.reads.records import RecordReader, ShardsView, ShardViews
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.config.units import Address
from weft.hub_api.rights import Right
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.lane import valid_name
from weft.protocols.shard.shard_state import ShardState
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError

LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another request made."""
UNLISTED_MAX = 8
"""Maximum number of topics of one request that are looked for though the list of streams, some seconds old, lacks
them."""
LOOKS_AT_ONCE = 16
FAULTS = (StoreError, NotFound, CodecError, TableError)
"""Errors of reads from the store."""

# Requests of admitted clients.


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


class Leaving(Exception):
    """The connection has to end. The text says why."""


class Call:
    """A request of an admitted client, until its answer is sent."""

    def __init__(self, request: Request, client: Client, access: Access, answers: Answers) -> None:
        self.body: Any = request.body
        self.version, self.number = request.version, request.correlation_id
        self.client = client
        self.room: AnswerRoom | None = None
        """Bytes that the answer reserves until it is sent; None for a short one."""
        self._access, self._answers = access, answers
        self._holding = AsyncExitStack()

    def check(self) -> None:
        """Check the client's token, as after every wait.

        Raises:
            Leaving: it is no longer in force.
        """
        if self._access.is_over(self.client.identity):
            raise Leaving("its token is no longer in force")

    async def take_room(self) -> None:
        """Reserve the bytes of the longest answer, when the client has read its earlier answers."""
        self.room = await self._holding.enter_async_context(self._answers.turn(self.client.charged))
        self.check()

    async def free_room(self) -> None:
        """Return the bytes."""
        self.room = None
        await self._holding.aclose()


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
