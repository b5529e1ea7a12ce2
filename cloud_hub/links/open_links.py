"""The links of one hub process: bounds for each token and in total, and their end when a token is revoked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web
from msgspec import UNSET

from weft.bounds import Owner, OwnerKind, Refusals
from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.auth.certificates import CertificateIdentity
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.facts.tokens import WITHOUT_TOKEN, Credentials
from weft.cloud_hub.links.edge_link import EdgeLink, clock_differs
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.edge_reports import EdgeReport, is_later
from weft.cloud_hub.reads.summaries import Linked, LinksElsewhere
from weft.cloud_hub.shard.lane_ends import note_conflicts
from weft.cloud_hub.shard.shards import LOST_LISTED_MAX
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.hub_api.answers import ApiError, moment_of
from weft.hub_api.status import LinkOfProcess, LostOfLane
from weft.protocols.lane import NodeName, format_log_id, valid_name
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import Nanoseconds
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError
from weft.storage.presence import NodeEntry

_logger = logging.getLogger(__name__)

MOVES_PER_S = 100
"""Maximum number of edges that are redirected a second: each connects again and opens its lanes elsewhere."""
LOOKED_AT_ONCE = 256
"""Number of links that are checked before other tasks have a turn."""
SEND_ON_INTERVAL_S = 5.0
LOOK_INTERVAL_S = 2.0
"""Interval at which open links are checked against tokens that changed in a file or came to their end."""
BOUND = "limits.links_per_token"
TOTAL = "limits.links"
REGION_LINKS_MAX = 256
"""Links of one token of a region, at least: it has one for each of its shards."""
ENDING_MAX = 16
"""Maximum number of links of one tenant that are being closed for others. The hub exceeds its limit by as many, for
seconds."""
RELEASE_CHARACTERS_MAX = 64
LEFT_KEPT_MAX = 20_000
"""Maximum number of disconnected edges that a process remembers; the longest disconnected one is dropped first."""


class _Left(NamedTuple):
    """Facts about an edge whose link to this process has ended."""

    release: str
    report: EdgeReport | None
    """The last report, without its functions."""


class OpenLinks(Part):
    """The open links, each with its token.

    If a token has reached its share, its oldest link ends: an edge with an unstable network leaves dead links behind,
    which the hub has not detected yet. If the hub has reached its limit, the tenant with most links makes room for
    others.

    Args:
        links_max: links of all tokens.
        per_token_max: links of one token.
        refusals: counter of the links that ended for a newer one.
        wall_clock: nanoseconds since 1970.
        tokens: decide whether a token is still in force.
    """

    def __init__(
        self, links_max: int, per_token_max: int, refusals: Refusals, wall_clock: Callable[[], int], tokens: Credentials
    ) -> None:
        self._links_max, self._tokens = links_max, tokens
        self._per_token_max = per_token_max
        self._refusals = refusals
        self._wall_clock = wall_clock
        self._since: dict[EdgeLink, int] = {}
        self._by_token: dict[TokenIdentity | None, dict[EdgeLink, None]] = {}
        """Links of each token, and of None: those without a token."""
        self._by_holder: dict[object, dict[EdgeLink, None]] = {}
        """Links of each who has tokens: those of an issuer are new each time."""
        self._by_tenant: dict[str, dict[EdgeLink, None]] = {}
        self._left: OrderedDict[NodeName, _Left] = OrderedDict()
        """Edges whose links have ended."""
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[EdgeLink]:
        return iter(self._since)

    def samples(self) -> Iterator[Sample]:
        """Yield the number of links, and of those whose edges' synchronised clocks are a minute or more off."""
        yield Sample("weft_hub_links", len(self._since))
        yield Sample("weft_hub_links_clock_differs", sum(clock_differs(link.clock_off) for link in self._since))

    def views(self) -> dict[str, object]:
        """Return the links for status pages."""
        return {"links": [_view(link, since) for link, since in self._since.items()]}

    def by_edge(self, at: str = "") -> dict[NodeName, Linked]:
        """Return the linked edges of this process, whose name is ``at``."""
        return {
            NodeName(hello.tenant, hello.edge): Linked(since, hello.software, link.clock_off, at)
            for link, since in self._since.items()
            if (hello := link.hello) is not None and not link.is_region
        }

    def last_release(self, edge: NodeName) -> str | None:
        """Return the release of an edge whose link has ended since this process started; None if unknown."""
        left = self._left.get(edge)
        return None if left is None else left.release

    def since(self) -> dict[NodeName, int]:
        """Return the linked edges of this process, each with the time of its connection."""
        return {name: link.since for name, link in self.by_edge().items()}

    def reports(self) -> dict[NodeName, EdgeReport]:
        """Return the reports of edges that are or were linked to this process."""
        found = {name: left.report for name, left in self._left.items() if left.report is not None}
        for link in self._since:
            if link.last_report is not None and (hello := link.hello) is not None:
                found[NodeName(hello.tenant, hello.edge)] = link.last_report
        return found

    def check_room(self, identity: TokenIdentity | None) -> None:
        """Make room for a link, or refuse it.

        Raises:
            ApiError: 503.
        """
        if len(self._since) >= self._links_max:
            self._make_room("" if identity is None else identity.tenant)
        own = None if identity is None else self._by_holder.get(identity.holder)
        if own is None or identity is None:
            return
        most = max(self._per_token_max, REGION_LINKS_MAX) if identity.is_region else self._per_token_max
        if len(own) < most:
            return
        if len(own) >= 2 * most:
            raise ApiError(
                503, f"{identity.shown} has {len(own)} links, and ended ones are not closed yet", "wait some seconds"
            )
        oldest = next((link for link in own if not link.is_over), None)
        if oldest is not None:
            advice = "if the token belongs to several nodes, give each one of its own"
            message = f"{identity.shown} has {most} links, its limit; a newer link replaces this one"
            self._refusals.note(BOUND, Owner(OwnerKind.EDGE, f"{identity.tenant}/{identity.edge}"), advice)
            oldest.end(RefuseCode.OVERLOADED, message, advice)

    def _make_room(self, tenant: str) -> None:
        """End the oldest link of the tenant that has most, if it has more than this one.

        Raises:
            ApiError: 503: it has not, or enough of its links are ending.
        """
        full = f"the hub has {self._links_max} links, its limit"
        own, heaviest = len(self._by_tenant.get(tenant, ())), tenant
        for each, links in self._by_tenant.items():
            if len(links) > max(own, len(self._by_tenant.get(heaviest, ()))):
                heaviest = each
        advice = "where it is full, the tenant with most links makes room. Raise the setting, or run more nodes"
        self._refusals.note(TOTAL, Owner(OwnerKind.TENANT, heaviest), advice)
        of_heaviest = self._by_tenant.get(heaviest, {})
        oldest = next((link for link in of_heaviest if not link.is_over), None)
        if heaviest == tenant or oldest is None or sum(link.is_over for link in of_heaviest) >= ENDING_MAX:
            raise ApiError(503, full, "connect to another node")
        message = f"{full}, and tenant {heaviest} has most of them"
        oldest.end(RefuseCode.OVERLOADED, message, "connect to another node")

    @contextlib.contextmanager
    def opened(self, link: EdgeLink, identity: TokenIdentity | None) -> Iterator[None]:
        """Register a link while it is open."""
        self._since[link] = self._wall_clock()
        holder = None if identity is None else identity.holder
        self._by_token.setdefault(identity, {})[link] = None
        self._by_holder.setdefault(holder, {})[link] = None
        tenant = "" if identity is None else identity.tenant
        self._by_tenant.setdefault(tenant, {})[link] = None
        try:
            yield
        finally:
            del self._since[link]
            self._keep(link)
            _forget(self._by_token, identity, link)
            _forget(self._by_holder, holder, link)
            _forget(self._by_tenant, tenant, link)

    def _keep(self, link: EdgeLink) -> None:
        hello = link.hello
        if hello is not None and valid_name(hello.tenant) and valid_name(hello.edge):
            edge = NodeName(hello.tenant, hello.edge)
            before = self._left.get(edge)
            report = link.last_report or (before.report if before is not None else None)
            self._left[edge] = _Left(
                hello.software[:RELEASE_CHARACTERS_MAX], None if report is None else report.without_functions()
            )
            self._left.move_to_end(edge)
            if len(self._left) > LEFT_KEPT_MAX:
                self._left.popitem(last=False)

    def start(self) -> None:
        """Begin to redirect edges, and to check whether tokens are still in force."""
        self._tasks = [
            asyncio.create_task(self._send_on(), name="send-on"),
            asyncio.create_task(self._look(), name="open-links"),
        ]

    async def close(self) -> None:
        """Stop both."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []

    def end_all(self) -> None:
        """End the links that remain after the shards have closed: those without an open lane."""
        for link in self._since:
            if not link.is_over:
                advice = "connect to another node, or try again"
                link.end(RefuseCode.UNAVAILABLE, "the hub is shutting down", advice)

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(SEND_ON_INTERVAL_S)
            try:
                await self.send_on()
            except Exception:  # without this task, edges would stay where they are
                _logger.exception("edges could not be sent on")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                self.end_revoked()
            except Exception:  # without this task, links of revoked tokens would stay open
                _logger.exception("links of revoked tokens could not be ended")

    async def send_on(self, within_s: float | None = None) -> None:
        """Redirect the edges of shards that other processes now own, at most ``MOVES_PER_S``.

        Args:
            within_s: time for all of them; None for as long as it takes.
        """
        sent, links = 0, list(self._since)
        pause_s = 1 / MOVES_PER_S if within_s is None else min(1 / MOVES_PER_S, within_s / max(1, len(links)))
        for at, link in enumerate(links):
            if link.send_on():
                sent += 1
                await asyncio.sleep(pause_s)
            elif at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if sent:
            _logger.info("%d edges were sent on to the owners of their shards", sent)

    def end_revoked(self) -> None:
        """End the links of tokens that are no longer in force, and links without a token if every link needs one."""
        # The certificate of a link is not among the tokens, and its revocation ends the link elsewhere.
        others = [identity for identity in self._by_token if not isinstance(identity, CertificateIdentity)]
        for identity in self._tokens.revoked(others):
            why = WITHOUT_TOKEN if identity is None else self._tokens.why_over(identity)
            for link in self._by_token[identity]:
                link.end(RefuseCode.UNAUTHORISED, *why)


def _forget(links: dict[Any, dict[EdgeLink, None]], key: object, link: EdgeLink) -> None:
    del links[key][link]
    if not links[key]:
        del links[key]


def _view(link: EdgeLink, since: int) -> LinkOfProcess:
    hello = link.hello
    if hello is None:
        return LinkOfProcess(connected_since=moment_of(since), edge=None)
    return LinkOfProcess(
        connected_since=moment_of(since),
        tenant=hello.tenant,
        edge=hello.edge,
        log=format_log_id(hello.log_id),
        epoch=link.epoch,
        software=hello.software,
        streams=link.streams,
        clock_off_seconds=None if link.clock_off is None else link.clock_off / 1e9,
        unkept_clock_off_seconds=UNSET if link.unkept_clock_off is None else link.unkept_clock_off / 1e9,
    )


# Records of links that were refused because another node has their identity, so that completeness waits.


async def note_refused(
    link: EdgeLink, response: web.StreamResponse, wall_clock: Callable[[], int], random_bits: Callable[[int], int]
) -> None:
    """Record the conflicts of a closed link.

    Args:
        response: the response at the end of the link. Only a live node answers a refusal by closing the connection; a
            connection that its edge dropped long ago, and that was read only now, is not from a second node.
    """
    if isinstance(response, web.WebSocketResponse) and response.close_code == aiohttp.WSCloseCode.OK:
        for log, refused in link.refused_claims():
            await note_conflicts(log, refused, link.conflict, wall_clock=wall_clock, random_bits=random_bits)


# Edges that are linked to the hub processes of a store, for one that is asked about all of them.
#
# Each process keeps an object of its own with the edges that are linked to it, with the lost records that edges have
# told it of, and with their last reports. It writes the object again when they changed, at most each ten seconds, for
# reports alone each minute, and not at all while no other process is there. Only a process that is asked reads the
# others' objects. What they say is a hint for people: no log, no claim and no right depends on it.

WRITE_S = 10.0
"""Shortest time between two writes."""
REWRITE_LOOKS = 30
"""Number of looks after which the object is written unchanged, in case it was deleted."""
REPORT_LOOKS = 6
"""Number of looks between two writes for reports alone: those of a large fleet change all the time."""
CLEAN_LOOKS = 360
"""Number of looks between two deletions of objects of killed processes."""
READ_AGE_S = 5.0
"""Maximum age of what a request gets."""
EDGES_MAX = 65_536
"""Maximum number of edges in an object; further ones are left out."""
FUNCTIONS_BYTES_MAX = 4 << 20
"""Encoded bytes of all functions in an object. Each edge that has some gets an equal share."""
OBJECT_BYTES_MAX = 8 << 20
DECODED_BYTES_MAX = 32 << 20
SOFTWARE_CHARACTERS_MAX = 64
LISTED_MAX = 10_000
READS_AT_ONCE = 16
_LOG = re.compile("[0-9a-f]{16}").fullmatch


class LostLane(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledged records of a lane that the hub lacks, as the edge reported when it linked."""

    stream: str
    log: str
    """Id of the edge's log, 16 hexadecimal digits."""
    shard: int
    records: int
    first_seq: int


class LinkedEdge(msgspec.Struct, frozen=True, array_like=True):
    """An edge that is linked to a process, or was when it reported lost records or itself."""

    tenant: str
    edge: str
    since: Nanoseconds
    """Moment of the connection by the clock of the process; 0 without a link."""
    software: str
    lost: tuple[LostLane, ...] = ()
    report: EdgeReport | None = None


_DECODER = msgspec.msgpack.Decoder(list[LinkedEdge])
Published = dict[NodeName, LinkedEdge]
"""Entries of an object."""


class LinkedEdges(Part):
    """Exchange of linked edges between processes: this one writes its own, and reads those of others.

    Args:
        node_id: name of its object, that of its entry in ``nodes/``.
        own: returns its linked edges.
        lost: returns the lost records that it knows of, as ``lost_views``.
        others: returns the entries of the other processes.
        reports: returns the reports of edges to it.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        node_id: str,
        own: Callable[[], Mapping[NodeName, Linked]],
        lost: Callable[[], Sequence[LostOfLane]],
        others: Callable[[], Sequence[NodeEntry]],
        *,
        reports: Callable[[], Mapping[NodeName, EdgeReport]],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._own, self._lost, self._others = store, own, lost, others
        self._reports = reports
        self._written_reports: Mapping[NodeName, EdgeReport] = {}
        self._monotonic = monotonic
        self._node_id, self._key = node_id, hub_keys.linked_key(node_id)
        self._etag: str | None = None
        self._written: Published | None = None
        self._looks = 0
        self._known = LinksElsewhere({}, [])
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="linked-edges")

    async def close(self) -> None:
        """Stop, and remove the object."""
        if await self._task.close() and self._etag is not None:
            try:
                await self._store.delete(self._key)
            except StoreError as error:
                _logger.info("%s stays in the store until others remove it: %s", self._key, error)

    async def elsewhere(self, age_s: float = READ_AGE_S) -> LinksElsewhere:
        """Return the edges that are linked to other processes, as of so many seconds ago at most."""
        async with self._reading:
            now = self._monotonic()
            if self._read_at is None or now - self._read_at >= age_s:
                self._known, self._read_at = await self._read(), now
            return self._known

    async def _read(self) -> LinksElsewhere:
        found, unknown, lost = dict[NodeName, Linked](), list[str](), list[LostOfLane]()
        reports = dict[NodeName, EdgeReport]()
        others = list(self._others())
        for at in range(0, len(others), READS_AT_ONCE):
            part = others[at : at + READS_AT_ONCE]
            for entry, published in zip(part, await asyncio.gather(*map(self._read_one, part)), strict=True):
                if published is None:
                    unknown.append(entry.name)
                    continue
                for each in published:
                    name = NodeName(each.tenant, each.edge)
                    lost += [LostOfLane(*name, **msgspec.structs.asdict(lane)) for lane in each.lost]
                    if each.report is not None and is_later(each.report, reports.get(name)):
                        reports[name] = each.report
                    if each.since and (name not in found or found[name].since < each.since):  # it may just have moved
                        found[name] = Linked(each.since, each.software, None, entry.name)
        return LinksElsewhere(found, unknown, reports, lost[:LOST_LISTED_MAX])

    async def _read_one(self, entry: NodeEntry) -> list[LinkedEdge] | None:
        try:
            data = (await self._store.get(hub_keys.linked_key(entry.id))).data
            return await asyncio.to_thread(_decode, data)
        except (NotFound, StoreError, msgspec.MsgspecError, zlib.error, ValueError):
            return None

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.due("write", self._monotonic())
                if count is not None:
                    _logger.warning("other processes do not see which edges are linked: %s%s", error, left_out(count))
            except Exception:  # without this task, the edges would seem to be linked for good
                _logger.exception("linked edges could not be stored")
            await asyncio.sleep(WRITE_S)

    async def look(self) -> None:
        """Write the object if the edges changed, or a process has joined.

        Raises:
            StoreError: the store did not answer.
        """
        if not self._others():
            return
        published, reports = _published(self._own(), self._lost()), self._reports()
        is_due = self._looks % REPORT_LOOKS == 0 and reports != self._written_reports
        if published != self._written or is_due or self._looks % REWRITE_LOOKS == 0:
            await self._write(await asyncio.to_thread(_encode, published, reports))
            self._written, self._written_reports = published, reports
        if self._looks % CLEAN_LOOKS == 0:
            await self._clean()
        self._looks += 1

    async def _write(self, data: bytes) -> None:
        try:
            if self._etag is None:
                self._etag = await self._store.create(self._key, data)
            else:
                self._etag = await self._store.swap(self._key, data, self._etag)
        except (AlreadyExists, PreconditionFailed):  # an earlier attempt, or it was removed: no other process writes it
            await self._store.delete(self._key)
            self._etag = await self._store.create(self._key, data)

    async def _clean(self) -> None:
        """Remove objects of processes that have no entry any more."""
        left = await self._store.list(hub_keys.LINKED, limit=LISTED_MAX)
        there = {each.key.rpartition("/")[2] for each in await self._store.list(hub_keys.NODES, limit=LISTED_MAX)}
        for each in left:
            if each.key.rpartition("/")[2] not in {*there, self._node_id}:
                await self._store.delete(each.key)


def _published(linked: Mapping[NodeName, Linked], lost: Sequence[LostOfLane]) -> Published:
    published = {
        name: LinkedEdge(*name, link.since, link.software[:SOFTWARE_CHARACTERS_MAX])
        for name, link in list(linked.items())[:EDGES_MAX]
    }
    lanes: dict[NodeName, list[LostLane]] = {}
    for each in lost:
        of = lanes.setdefault(NodeName(each.tenant, each.edge), [])
        of.append(LostLane(each.stream, each.log, each.shard, each.records, each.first_seq))
    for name, found in lanes.items():
        published[name] = msgspec.structs.replace(published.get(name) or LinkedEdge(*name, 0, ""), lost=tuple(found))
    return published


def _encode(published: Published, reports: Mapping[NodeName, EdgeReport]) -> bytes:
    share = FUNCTIONS_BYTES_MAX // max(1, sum(bool(each.report.functions) for each in reports.values()))
    published = dict(published)
    for name, report in reports.items():
        if name in published or len(published) < EDGES_MAX:
            known = published.get(name) or LinkedEdge(*name, 0, "")
            published[name] = msgspec.structs.replace(known, report=report.within(share))
    return zlib.compress(msgspec.msgpack.encode(list(published.values())), 1)


def _decode(data: bytes) -> list[LinkedEdge]:
    """Return what a process tells.

    Raises:
        MsgspecError, zlib.error, ValueError: it holds something else.
    """
    if len(data) > OBJECT_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes")
    inflate = zlib.decompressobj()
    plain = inflate.decompress(data, DECODED_BYTES_MAX)
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {DECODED_BYTES_MAX} bytes")
    return [
        each
        for each in _DECODER.decode(plain)[: EDGES_MAX + LOST_LISTED_MAX]
        if valid_name(each.tenant) and valid_name(each.edge) and all(map(_is_sound, each.lost))
    ]


def _is_sound(lost: LostLane) -> bool:
    return valid_name(lost.stream) and _LOG(lost.log) is not None and min(lost.shard, lost.records, lost.first_seq) >= 0
