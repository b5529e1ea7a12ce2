"""``/v1/messages``: publish messages to edges, and read their outcomes (docs/reference/api.md)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET

from weft.bounds import NestedShares, Rates
from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.down.edge_queue import Draft, KeyConflict, QueueFull
from weft.cloud_hub.down.hub_down import HubDown, OutcomeUnknown, UnknownEdge
from weft.cloud_hub.down.lane_writer import CannotWrite
from weft.cloud_hub.facts.edges import GroupKey, Groups
from weft.cloud_hub.http.exchange import NOTHING_STORED, answered, read_body, routes
from weft.cloud_hub.reads.views import SLICE_S
from weft.cloud_hub.shard.sequencer import public_reason
from weft.cloud_hub.shard.shards import Shards
from weft.hub_api.answers import ApiError, MissingShard, moment_of
from weft.hub_api.messages import (
    EDGES_MAX,
    KEY_CHARACTERS_MAX,
    MessageOutcome,
    MessageRequest,
    MessagesAnswer,
    PublishedAnswer,
    PublishedTo,
    WaitingMessage,
)
from weft.hub_api.rights import Right
from weft.protocols.errors import CodecError
from weft.protocols.lane import DOWN_STREAM, NAME_RULE, NodeName, valid_name
from weft.protocols.link import MESSAGE_BYTES_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.topics import InvalidTopic, check_topic
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError

T = TypeVar("T")

# Edges of a group, in pages: a message to 10,000 edges is published in requests of at most 500.

LOOKED_AT_ONCE = 16
"""Number of edges between two looks at the clock: 256 groups with 1,024 patterns take 0.5 ms for each."""


class UnknownGroup(Exception):
    """No such group is declared, or its declaration cannot be read."""


class Members(NamedTuple):
    """A page of a group's edges, by name."""

    edges: list[str]
    next_after: str | None
    """The last name, for the next page; None if there is none."""


async def members(
    groups: Groups,
    key: GroupKey,
    states: Sequence[ShardState],
    after: str,
    *,
    limit: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Members:
    """Return the edges of a group by name: the named ones, and those that have linked and match a pattern.

    An edge of a pattern is left out if all its lanes are retired.

    Args:
        states: states of all shards.
        after: end of the previous page; empty for the first one.
        limit: maximum number of edges.

    Raises:
        UnknownGroup: there is no such group.
    """
    document = groups.document(key)
    if document is None:
        why = groups.unusable.get("/".join(key))
        raise UnknownGroup(
            f"group {key[1]} of tenant {key[0]} cannot be read: {why}"
            if why
            else f"no group {key[1]} of tenant {key[0]} is declared"
        )
    found = sorted({edge for edge in document.edges if "*" not in edge and edge > after})[: limit + 1]
    named, began = frozenset(document.edges), clock()
    if any("*" in edge for edge in named):
        for some in _slices(states):
            more = [
                edge
                for state, (tenant, edge) in some
                if tenant == key[0]
                and edge > after
                and edge not in named
                and key[1] in groups.of_edge(tenant, edge)
                and _is_alive(state, tenant, edge)
            ]
            if more:
                found = sorted([*found, *more])[: limit + 1]
            if clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = clock()
    return Members(found[:limit], found[limit - 1] if len(found) > limit else None)


def _slices(states: Sequence[ShardState]) -> Iterator[list[tuple[ShardState, tuple[str, str]]]]:
    for state in states:
        names = state.edge_names()
        for at in range(0, len(names), LOOKED_AT_ONCE):
            yield [(state, name) for name in names[at : at + LOOKED_AT_ONCE]]


def _is_alive(state: ShardState, tenant: str, edge: str) -> bool:
    lanes = state.edge_lanes(tenant, edge).items()
    return any(held.retired is None for lane, held in lanes if lane.stream != DOWN_STREAM)


BODY_BYTES_MAX = 512 << 10
UNDER_WAY_MAX, UNDER_WAY_OF_ONE_MAX = 2000, 500
"""Maximum number of messages that are being stored, of all requests and of one token."""
UNDER_WAY_BYTES_MAX, UNDER_WAY_BYTES_OF_ONE_MAX = 64 << 20, 16 << 20
"""Maximum bytes of their payloads, counted once for each edge."""
SHOWN_MAX = 1000
"""Maximum number of outcomes in an answer."""


BURST_S = 10.0
"""Burst of a tenant, in seconds of its rate."""
Elsewhere = Callable[[str], Callable[[int], str | None]]


def message_rates(rate: float, clock: Callable[[], float]) -> Rates[str]:
    """Return the rates of tenants' messages. The burst lets the largest request through.

    Args:
        rate: messages a second.
        clock: monotonic seconds.
    """
    return Rates(rate, max(BURST_S * rate, EDGES_MAX), clock)


class Messages:
    """Handlers of the requests.

    Args:
        elsewhere: Host header -> (shard -> URL of its owner; None if it is this process, or unknown).
        groups: groups of edges.
        rates: messages of each tenant.
    """

    def __init__(
        self,
        down: HubDown,
        shards: Shards,
        access: Access,
        elsewhere: Elsewhere,
        clock: HubClock,
        *,
        groups: Groups,
        rates: Rates[str],
    ) -> None:
        self._down, self._shards, self._access = down, shards, access
        self._elsewhere, self._clock, self._groups = elsewhere, clock, groups
        self._rates = rates
        self._under_way: NestedShares[str] = NestedShares(UNDER_WAY_MAX, UNDER_WAY_MAX // 2, UNDER_WAY_OF_ONE_MAX)
        self._bytes: NestedShares[str] = NestedShares(
            UNDER_WAY_BYTES_MAX, UNDER_WAY_BYTES_MAX // 2, UNDER_WAY_BYTES_OF_ONE_MAX
        )

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(publish=self.post, messages=self.get))

    async def post(self, request: web.Request) -> web.Response:
        """Publish a message to edges. The answer is sent when it is durable."""
        tenant, identity = self._access.publisher(request)
        wanted, key = await _read(request), request.headers.get("Idempotency-Key", "")
        if len(key) > KEY_CHARACTERS_MAX or not (key.isascii() and key.isprintable()):
            advice = f"expected at most {KEY_CHARACTERS_MAX} printable ASCII characters"
            raise ApiError(400, f"Idempotency-Key: {len(key)} characters, or not printable ASCII", advice)
        payload = _payload(wanted)
        group, missing = wanted.group, list[MissingShard]()
        if group is None:
            page = Members(_edges(wanted), None)
        else:
            page, missing = await self._members(tenant, group, wanted, len(payload))
        edges = page.edges
        by = "" if identity is None else identity.name
        draft = Draft(wanted.topic, payload, int(wanted.expires_s * 1e9), wanted.qos, key, by)
        if (wrong := self._clock.wrong()) is not None:
            raise ApiError(503, wrong, ADVICE)
        owner, size = by or request.remote or "", len(edges) * len(draft.payload)
        if size > UNDER_WAY_BYTES_OF_ONE_MAX:
            error = f"the payloads for {len(edges)} edges have {size} bytes; the limit is {UNDER_WAY_BYTES_OF_ONE_MAX}"
            raise ApiError(413, error, "name fewer edges in a request")
        if not self._under_way.fits(tenant, owner, len(edges)) or not self._bytes.fits(tenant, owner, size):
            raise ApiError(
                429, "too many messages of yours are being stored", "wait for answers before you publish more"
            )
        elsewhere = self._elsewhere(request.host) if wanted.redirect else None
        place = self._shards.place
        urls = {edge: None if elsewhere is None else elsewhere(place(NodeName(tenant, edge))) for edge in edges}
        if wait := self._rates.use(tenant, sum(url is None for url in urls.values())):
            advice = f"nothing was stored; send it again in {wait:.1f} s, or raise messages_per_second"
            raise ApiError(429, f"tenant {tenant} publishes too many messages a second", advice, retry_s=wait)
        self._under_way.hold(tenant, owner, len(edges))
        self._bytes.hold(tenant, owner, size)
        try:
            made = await asyncio.gather(
                *(self._publish(wanted, NodeName(tenant, edge), draft, url, identity) for edge, url in urls.items())
            )
        finally:
            self._under_way.free(tenant, owner, len(edges))
            self._bytes.free(tenant, owner, size)
        return answered(
            PublishedAnswer(
                tenant=tenant,
                topic=draft.topic,
                messages=made,
                group=UNSET if group is None else group,
                next_after=UNSET if group is None else page.next_after,
                missing_shards=missing or UNSET,
            )
        )

    async def _members(
        self, tenant: str, group: str, wanted: MessageRequest, size: int
    ) -> tuple[Members, list[MissingShard]]:
        """Return a page of the edges of a group, and the shards whose edges may be left out."""
        if wanted.edge is not None or wanted.edges:
            raise ApiError(400, "group cannot be combined with edge or edges", "send one of them")
        if not valid_name(group):
            raise ApiError(400, f"{group[:80]!r} is not a name of a group", f"expected {NAME_RULE}")
        limit = min(EDGES_MAX, UNDER_WAY_BYTES_OF_ONE_MAX // max(1, size))
        shards = await self._shards.all()
        states = [each.state for each in shards if each.loaded]
        try:
            page = await members(self._groups, (tenant, group), states, wanted.after, limit=limit)
        except UnknownGroup as error:
            raise ApiError(404, str(error), "list groups with `weft hub group list`") from None
        # Edges of a pattern are known from their shards: some of a shard that is not loaded may be left out.
        missing = [
            MissingShard(each.log.shard, each.public_trouble or "it is being loaded")
            for each in shards
            if not each.loaded
        ]
        return page, missing

    async def _publish(
        self, wanted: MessageRequest, edge: NodeName, draft: Draft, url: str | None, identity: TokenIdentity | None
    ) -> PublishedTo:
        try:
            self._access.check(identity, Right.PUBLISH, edge.edge)
            if url is not None:
                return PublishedTo(edge=edge.edge, url=url)
            message = await _answered(lambda: self._down.publish(edge, draft))
        except ApiError as error:
            if wanted.edge is not None:  # the one edge of the request: the error is its answer
                raise
            return PublishedTo(edge=edge.edge, status=error.status, error=error.error, advice=error.advice)
        return PublishedTo(
            edge=edge.edge,
            number=message.number,
            accepted=moment_of(message.accepted),
            expires=moment_of(message.expires),
        )

    async def get(self, request: web.Request) -> web.Response:
        """Return the messages of an edge that wait, and the remembered outcomes of others."""
        tenant, identity = self._access.publisher(request)
        edge = NodeName(tenant, request.query.get("edge", ""))
        if not valid_name(edge.edge):
            raise ApiError(400, f"edge={edge.edge[:80]!r}", f"give edge=NAME: {NAME_RULE}")
        self._access.check(identity, Right.PUBLISH, edge.edge)
        if "redirect" in request.query:
            url = self._elsewhere(request.host)(self._shards.place(edge))
            if url is not None:
                return answered(MessagesAnswer(edge=edge.edge, url=url))
        queue = await _answered(lambda: self._down.queue(edge))
        now = self._clock.now()
        return answered(
            MessagesAnswer(
                tenant=tenant,
                edge=edge.edge,
                waiting=[
                    WaitingMessage(
                        number=message.number,
                        accepted=moment_of(message.accepted),
                        expires=moment_of(message.expires),
                        topic=message.topic,
                        bytes=len(message.payload),
                        expired=message.expires <= now,
                        by=message.by or None,
                    )
                    for _, message in queue.waiting.values()
                ],
                trouble=queue.trouble or None,
                outcomes=[
                    MessageOutcome(
                        number=each.number,
                        accepted=moment_of(each.accepted),
                        topic=each.topic,
                        outcome=each.outcome,
                        reason=each.reason or None,
                        time=moment_of(each.time),
                    )
                    for each in queue.outcomes()[:SHOWN_MAX]
                ],
            )
        )


async def _answered(work: Callable[[], Awaitable[T]]) -> T:
    """Return a result; raise ``ApiError`` for what may go wrong with messages."""
    try:
        return await work()
    except UnknownEdge as error:
        raise ApiError(404, str(error), "check the name and the tenant: GET /v1/edges lists the edges") from error
    except QueueFull as error:
        raise ApiError(429, str(error), "wait until the edge has taken some: GET /v1/messages?edge=NAME") from error
    except KeyConflict as error:
        raise ApiError(409, str(error), "use a different key for each message") from error
    except OutcomeUnknown as error:
        advice = "whether it was stored is unknown: look at GET /v1/messages?edge=NAME before sending it again"
        raise ApiError(503, str(error), advice) from error
    except CannotWrite as error:
        raise ApiError(503, str(error), NOTHING_STORED) from error
    except (StoreError, NotFound, CodecError, CollectedPast) as error:
        raise ApiError(503, f"the log cannot be read: {public_reason(error)}", NOTHING_STORED) from error


async def _read(request: web.Request) -> MessageRequest:
    body = await read_body(request, BODY_BYTES_MAX, "publish shorter messages")
    try:
        return msgspec.json.decode(body, type=MessageRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not a message: {error}", "see docs/reference/api.md") from None


def _edges(wanted: MessageRequest) -> list[str]:
    edges = list(dict.fromkeys([*([] if wanted.edge is None else [wanted.edge]), *wanted.edges]))
    if not edges or (wanted.edge is not None and wanted.edges):
        raise ApiError(400, "expected one of edge, edges and group", 'send "edge": "press-7"')
    if wanted.after:
        raise ApiError(400, "after needs group", "send the group that the page is of")
    if (wrong := next((edge for edge in edges if not valid_name(edge)), None)) is not None:
        raise ApiError(400, f"{wrong[:80]!r} is not a name of an edge", f"expected {NAME_RULE}")
    return edges


def _payload(wanted: MessageRequest) -> bytes:
    try:
        check_topic(wanted.topic)
    except InvalidTopic as error:
        raise ApiError(400, str(error), "name the topic without wildcards") from None
    if wanted.topic.startswith("$"):
        raise ApiError(400, f"topic {wanted.topic[:80]!r} begins with $", "edges accept no messages for such topics")
    if wanted.payload is not None and wanted.payload_base64 is not None:
        raise ApiError(400, "payload and payload_base64 are both set", "give one of them")
    try:
        payload = base64.b64decode(wanted.payload_base64 or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, f"payload_base64: {error}", "encode the payload with base64") from None
    try:
        payload = payload if wanted.payload is None else wanted.payload.encode()
    except UnicodeEncodeError as error:
        raise ApiError(400, f"payload: {error}", "send bytes as payload_base64") from None
    if len(payload) > MESSAGE_BYTES_MAX:
        too_long = f"the payload has {len(payload)} bytes; the limit is {MESSAGE_BYTES_MAX}"
        raise ApiError(413, too_long, "publish a shorter payload")
    return payload
