"""Requests of Kafka's clients, and what a client sees: the hub processes as brokers, and streams as topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

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
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError

LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another request made."""
LIST_AGE_S = 1.0
"""Maximum age of a list of the streams of a tenant that another request made."""
UNLISTED_MAX = 8
"""Maximum number of topics of one request that are looked for though the list of streams, some seconds old, lacks
them."""
LOOKS_AT_ONCE = 16
FAULTS = (StoreError, NotFound, CodecError, TableError, CollectedPast)
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


class Led(NamedTuple):
    """The partitions that a process leads."""

    total: int
    """Number of partitions of every topic."""
    own: frozenset[int]


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

    def led(self, client: Client, count: int) -> Led:
        """Return those of a number of shards that this process leads, for a client."""
        brokers = self.all(client)
        return Led(count, frozenset(each for each in range(count) if self.leader(each, brokers) == self.own_id))

    def leader(self, shard: int, brokers: dict[str, KafkaBroker]) -> int:
        """Return the broker of a shard's owner; this process where clients cannot reach it."""
        owner = brokers.get(self._owners.owner(shard))
        return self.own_id if owner is None else owner.id


# Topics: looks at streams, which requests share.


KeyT = TypeVar("KeyT")
T = TypeVar("T")


class Fresh(Generic[KeyT, T]):
    """Results that requests share for a moment.

    Args:
        age_s: maximum age of a result that another request began; one that is not there yet has none.
    """

    def __init__(self, make: Callable[[KeyT], Coroutine[Any, Any, T]], age_s: float, now: Callable[[], float]) -> None:
        self._make, self._age_s, self._now = make, age_s, now
        self._held: dict[KeyT, tuple[asyncio.Task[T], float]] = {}
        """In the order of their times."""

    async def get(self, key: KeyT) -> T:
        """Return a result; make it if there is none. Raises as ``make``."""
        now = self._now()
        while self._held and now - (oldest := next(iter(self._held.items())))[1][1] >= self._age_s:
            task, _ = self._held.pop(oldest[0])
            if not task.done():
                self._held[oldest[0]] = task, now
        if key not in self._held:
            self._held[key] = asyncio.create_task(self._make(key), name="kafka-look"), now
        return await asyncio.shield(self._held[key][0])


class Topics:
    """The streams of a tenant, for its clients."""

    def __init__(self, views: ShardViews, summaries: ShardSummaries, now: Callable[[], float]) -> None:
        self._summaries = summaries
        self._looks = Fresh[StreamKey, ShardsView](lambda key: views.of_stream(*key), LOOK_AGE_S, now)
        self._lists = Fresh[str, Collection[str]](self._listed, LIST_AGE_S, now)
        self._turn = 0
        """Number of names beyond the list that were looked for."""

    async def _listed(self, tenant: str) -> Collection[str]:
        return (await (await self._summaries.every()).streams(tenant)).keys()

    async def names(self, client: Client) -> list[str]:
        """Return the streams that a client may read, by name."""
        return await readable(await self._lists.get(client.tenant), client.may_read)

    async def errors(self, client: Client, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Return why a client cannot read each of some topics; ``none`` for those that it can."""
        allowed = await readable(names, client.may_read)
        listed, wanted = await self._lists.get(client.tenant), {name for name in allowed if valid_name(name)}
        new = sorted(wanted.difference(listed))
        # Each name has its turn, whatever else a client asks for.
        at = self._turn % len(new) if new else 0
        new = [*new[at:], *new[:at]][:UNLISTED_MAX]
        self._turn += len(new)
        views = await asyncio.gather(*(self._looks.get((client.tenant, name)) for name in new))
        found = wanted.intersection(listed) | {
            name
            for name, view in zip(new, views, strict=True)
            if any(state.has_stream(client.tenant, name) for state in view.states)
        }
        errors = dict.fromkeys(names, ErrorCode.topic_authorization_failed)
        errors |= dict.fromkeys(allowed, ErrorCode.unknown_topic_or_partition)
        return errors | dict.fromkeys(found, ErrorCode.none)

    async def partitions(
        self, client: Client, wanted: Mapping[str, Collection[int]], led: Led
    ) -> dict[str, Partitions]:
        """Return topics with some partitions.

        Args:
            led: the partitions that this process leads. Only topics with one of them are looked at.
        """
        errors = await self.errors(client, list(wanted))
        found = {name: Partitions(error, led) for name, error in errors.items()}
        here = [
            name for name, error in errors.items() if error is ErrorCode.none and not led.own.isdisjoint(wanted[name])
        ]
        return found | await self.look(client.tenant, here, led)

    async def look(self, tenant: str, names: Sequence[str], led: Led) -> dict[str, Partitions]:
        """Return topics that are there, as of a moment ago."""
        found: dict[str, Partitions] = {}
        for at in range(0, len(names), LOOKS_AT_ONCE):
            part = names[at : at + LOOKS_AT_ONCE]
            views = await asyncio.gather(*(self._looks.get((tenant, name)) for name in part))
            found.update((name, Partitions(view, led)) for name, view in zip(part, views, strict=True))
        return found


class Partitions:
    """The partitions of one topic for one request, or why a client cannot read them.

    Args:
        view: the shards of the topic; the error ``none`` if no partition of this process was asked for.
        led: the partitions that this process leads.
    """

    def __init__(self, view: ShardsView | ErrorCode, led: Led) -> None:
        self._view, self._led = view, led
        self._states = {} if isinstance(view, ErrorCode) else {state.shard: state for state in view.states}

    def state(self, shard: int) -> ShardState | ErrorCode:
        """Return the state of a partition, or why it cannot be read.

        Java's consumers end at an error that they do not expect in an answer to Fetch, such as LEADER_NOT_AVAILABLE.
        They ask for the leaders again after NOT_LEADER_OR_FOLLOWER.
        """
        if isinstance(self._view, ErrorCode) and self._view is not ErrorCode.none:
            return self._view
        if not 0 <= shard < self._led.total:
            return ErrorCode.unknown_topic_or_partition
        if shard not in self._led.own:
            return ErrorCode.not_leader_or_follower
        return self._states.get(shard, ErrorCode.not_leader_or_follower)

    def reader(self, shard: int) -> RecordReader:
        """Return the reader of a partition that has a state."""
        assert isinstance(self._view, ShardsView), "others have no states"
        return self._view.readers[shard]
