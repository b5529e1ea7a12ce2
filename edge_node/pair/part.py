"""The pair as a part of the node: its listener, the link to the peer, and take-overs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from weft.bounds import Refusals
from weft.config.errors import SettingError
from weft.config.links import Pair
from weft.config.machine import why_not_listening
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.units import parse_bind
from weft.edge_node.check.data_directory import PAIR_FOLDER
from weft.edge_node.check.streams import Flow, carried_streams, copy_budget
from weft.edge_node.control.client import TakeOverReply
from weft.edge_node.links.links import Links, epoch_file, offered
from weft.edge_node.pair.copies import Copies, Copy, CopyLink
from weft.edge_node.pair.second_disk import ALONE_FILE, PairSource, PeerClocks, SecondDisk, TimesAlone
from weft.edge_node.pair.take_over import TakeOvers
from weft.edge_node.part import Part, Undo
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.edge_node.timing import seconds
from weft.network.accepting import CannotListen
from weft.network.admission import Admission, AdmissionLimits
from weft.network.http_server import Bound, HttpServer
from weft.network.reload import Reloads, Watched, read_token
from weft.network.tls import ClientTlsFiles, TlsFiles, TlsUnusable, read_tls
from weft.protocols.lane import NodeName, format_log_id
from weft.protocols.link import ENCRYPTED, PAIR, TIMES_ALONE_MAX, CopyReport, PairReport
from weft.replication.events import LinkState
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, Beats, LinkSettings, no_token, run_link, serve_link
from weft.storage.segment_log.encryption import disk_of

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
"""Maximum number of idle connections of the listener, and of connections of one address: there is one peer."""
SHUTDOWN_S = 1.0
LOOK_S = 0.5
"""Interval at which the peer gets to know what hubs have, and at which take-overs begin and end."""
TIDY_EVERY = 20
"""Number of looks after which copies store what was said, and those that are not needed leave."""
PING_S, SILENCE_S = 5.0, 15.0
"""Silence after which the nodes ask each other, and after which the other counts as away: there is no bad line between
them as to a hub."""
RETRY_MAX_S = 5.0


@dataclass
class _Counters:
    """Connections of the listener: ``Admission`` counts them here."""

    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connect_timeouts: int = 0
    connections_rate_limited: int = 0
    connections_half_open: int = 0
    half_open_evicted: int = 0
    handshakes_failed: int = 0
    proxy_headers_refused: int = 0
    accept_pauses: int = 0


class PeerListener:
    """The listener for the peer, which writes its copy here.

    Args:
        cluster_id: identity of this node's disk, for the peer.
    """

    def __init__(self, pair: Pair, copies: Copies, cluster_id: str, *, software: str) -> None:
        self._pair, self._copies, self._cluster_id, self._software = pair, copies, cluster_id, software
        self._server: HttpServer | None = None
        self._admission: Admission | None = None
        self._beats = Beats()
        self.port = 0

    async def start(self, refusals: Refusals, reloads: Reloads) -> None:
        """Listen.

        Raises:
            SettingError: the address cannot be bound, or a file cannot be used.
        """
        bound, loop = Bound(CONNECTIONS_MAX, "pair.listen"), asyncio.get_running_loop()
        self._server = server = HttpServer(bound, bound, loop.time, refusals, shutdown_s=SHUTDOWN_S)
        app = web.Application(client_max_size=1024, middlewares=[server.middleware])
        app.router.add_get(LINK_PATH, self._link)
        address, tls = parse_bind(self._pair.listen), self._pair.tls
        try:
            if tls is None:
                await server.start(app, address.host, address.port)
            else:
                files, counters = TlsFiles(certificate=tls.certificate, key=tls.key), _Counters()
                self._admission = Admission(AdmissionLimits(connections_max=CONNECTIONS_MAX), counters, counters)
                context = (await asyncio.to_thread(read_tls, files)).context
                await server.start(app, address.host, address.port, tls=context, admission=self._admission)
                read = functools.partial(read_tls, files)
                reloads.add(
                    Watched("certificate of `pair`", files.paths, read, lambda now: server.use_tls(now.context))
                )
        except TlsUnusable as error:
            raise SettingError(("pair", "tls"), str(error)) from None
        except CannotListen as error:
            raise SettingError(("pair", "listen"), str(error)) from None
        except OSError as error:
            raise SettingError(("pair", "listen"), why_not_listening(error, address)) from None
        self.port = server.addresses[0][1]

    async def _link(self, request: web.Request) -> web.StreamResponse:
        file = self._pair.token_file
        if file is not None:
            try:
                token = await asyncio.to_thread(read_token, file)
            except (OSError, ValueError) as error:
                logger.error("the peer is refused: %s", error)
                raise web.HTTPServiceUnavailable from None
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise web.HTTPUnauthorized
        settings = ReceiverSettings(
            # Devices wait for the acknowledgement, and the line is the site's own.
            ack_interval=0,
            features=(PAIR, ENCRYPTED) if self._copies.is_encrypted else (PAIR,),
            ping_interval=2 * int(PING_S * SECOND),
            silence=2 * int(SILENCE_S * SECOND),
        )
        link, wall_clock = CopyLink(self._copies), self._copies.wall_clock
        return await serve_link(
            request, link, settings, self._cluster_id, beats=self._beats, software=self._software, wall_clock=wall_clock
        )

    async def close(self) -> None:
        """Stop listening, and end the peer's connections."""
        if self._admission is not None:
            self._admission.close()
        if self._server is not None:
            await self._server.close()


@dataclass
class _Order:
    """An operator's order to bring a copy to the hubs."""

    takes_all: bool
    """True for all that the copy has, False for what the node had compared with its hubs."""
    ends: dict[str, int]
    """Stream -> end of its records when the order came: a node that is there may add to them without end."""


class PairPart(Part):
    """The pair of a node.

    Args:
        answered: sends acknowledgements whose callbacks were called (``TickBatch.committed``).
        post: runs a callback of another thread on the event loop's thread.
    """

    name = "pair"

    def __init__(
        self,
        config: EdgeConfig,
        pair: Pair,
        links: Links,
        *,
        software: str,
        answered: Callable[[], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._config, self._pair, self._links = config, pair, links
        self._now = asyncio.get_running_loop().time
        disk, folder = disk_of(config.data_dir), os.path.join(config.data_dir, PAIR_FOLDER)
        own = NodeName(config.tenant, config.node)
        path = os.path.join(folder, ALONE_FILE)
        self._times = TimesAlone(disk, path) if pair.acks == "both" else None
        # Of its own: a peer without a copy takes any epoch, and an old copy of this log must not count its way up there
        # to one that hubs take.
        self._epochs = epoch_file(disk, os.path.join(folder, "epoch"))
        self.second_disk = SecondDisk(
            links.log,
            pair.alone_after_s,
            self._times,
            wall_clock=lambda: links.wall_clock() + links.clocks.correction(),
            answered=answered,
            refuses=pair.alone == "refuse",
        )
        budget = pair.budget_bytes or copy_budget(config)
        own_log = own, links.log.log_id
        self.copies = Copies(disk, folder, budget, own_log, wall_clock=links.wall_clock, post=post, peer=pair.node)
        # Not the log id: who connects here must not learn what a connection in this node's name has to say.
        disk_id = hashlib.sha256(b"pair %d" % links.log.log_id).hexdigest()[:32]
        self.listener = PeerListener(pair, self.copies, disk_id, software=software)
        self._take_overs = TakeOvers(links, config)
        self._asked: dict[str, _Order] = {}
        """Copies that an operator wants at the hubs."""
        self._done: set[str] = set()
        """Copies that the hubs have, since their node is away."""
        self._away: dict[str, float] = {}
        """Copy -> time since which its node is away, by the loop's clock."""
        self._steering = asyncio.Lock()
        """Held while take-overs begin and end, and while copies leave: an order comes between two looks."""
        assert links.peer is not None, "the configuration has a pair"
        self.status = links.peer
        self._source: PairSource | None = None
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Return whether acknowledgements wait for the peer."""
        return self._times is not None

    async def open(self, refusals: Refusals, reloads: Reloads) -> None:
        """Listen for the peer. The copies open beside: a peer is answered once they are.

        Raises:
            SettingError: as ``PeerListener.start``.
        """
        self._opening = asyncio.create_task(self.copies.start(), name="pair-copies")
        await self.listener.start(refusals, reloads)

    def connect(self) -> None:
        """Connect to the peer. Call it before anything is appended: the peer may know that this log is an old copy."""
        self._follow(self._config)

    def start(self) -> None:
        """Look at the peer and at copies from now on."""
        self._looking = asyncio.create_task(self._look(), name="pair")

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Copy the streams that the links of ``now`` carry.

        Raises:
            ValueError: the log cannot have one of the streams; nothing has changed.
        """
        if self._task is None or _streams(before) == _streams(now):
            self._config = now
            return lambda: setattr(self, "_config", before)
        self._follow(now)
        return lambda: self._follow(before)

    def _follow(self, config: EdgeConfig) -> None:
        streams = _streams(config)
        numbers = [self._links.log.stream(name) for name in streams]
        self._config = config
        self.second_disk.follow(numbers)
        self._source = PairSource(self.second_disk, streams, self._links)
        former, self._task = self._task, asyncio.create_task(self._run(self._source, self._task), name="pair-link")
        if former is not None:
            former.cancel()

    async def _run(self, source: PairSource, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        pair, settings = self._pair, _link_settings(self._pair, is_encrypted=self.copies.is_encrypted)
        while True:
            try:
                await run_link(
                    source,
                    self._links.identity,
                    settings,
                    self._epochs,
                    self.status,
                    wall_clock=self._links.wall_clock,
                    clocks=PeerClocks(self._links.clocks),
                )
            except Exception as error:
                logger.exception("the link to the peer at %s failed", pair.peer)
                self.status.state, self.status.last_error = LinkState.WAITING, f"internal fault: {error!r}"
            await asyncio.sleep(settings.retry_max_s)

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                more = self.second_disk.look()
                if self._source is not None:
                    if more:
                        self._source.tell(more)
                    await self._source.follow_hubs()
                looks += 1
                async with self._steering:
                    await self._look_at_copies()
                    if looks % TIDY_EVERY == 0:
                        await self.copies.tidy(self._take_overs)
            except Exception:
                # A fault in this code must not stop a node that accepts records.
                logger.exception("the pair could not be looked at")

    async def _look_at_copies(self) -> None:
        await self._take_overs.adopt(self._config)
        after_s, now = self._pair.take_over_after_s, self._now()
        present = {copy.log.log_id for copy in self.copies.open.values() if copy.session is not None}
        for name, copy in list(self.copies.open.items()):
            order = self._asked.get(name)
            if order is not None and copy.log.log_id in present:
                # It is not gone for good. A hub that has numbers before the node has compared them would take its log
                # for a restored old copy.
                order.takes_all = False
            takes_all = order is not None and order.takes_all
            if copy.log.log_id in present:
                # An earlier copy too: its node sends the same records itself.
                self._away.pop(name, None)
                self._done.discard(name)
                if order is None:
                    await self._take_overs.end(name)
                    continue
            since = self._away.setdefault(name, now)
            # Another one ends, also one by itself: what came since the order is no part of it.
            if order is not None and not self._take_overs.runs(name, is_ordered=takes_all, ends=order.ends):
                await self._take_overs.end(name)
            if name in self._take_overs:
                if await self._take_overs.look(name, copy):
                    self._asked.pop(name, None)
                    self._done.add(name)
                    await self._take_overs.end(name)
            elif order is not None or (
                after_s is not None
                and now - since >= after_s
                and (name not in self._done or self._take_overs.unsent(copy))
            ):
                ends = None if order is None else order.ends
                self._take_overs.begin(name, copy, is_ordered=takes_all, ends=ends)

    async def take_over(self) -> TakeOverReply:
        """Send what hubs lack of nodes that are away to the hubs, at an operator's request, and say how that is. If the
        peer is connected: what this node has of it, such as records that the peer's disk has lost."""
        if self._opening is not None and not self._opening.done():
            return TakeOverReply(error="the copies are being opened: ask again in a while")
        unopened = "; ".join(f"{name}: {why}" for name, why in self.copies.unopened.items())
        if not self.copies.open and unopened:
            return TakeOverReply(error=f"copies of other nodes cannot be opened, and stay as they are: {unopened}")
        if not self.copies.open:
            return TakeOverReply(error="this node has no copy of another one: its peer was never connected")
        async with self._steering:
            away = [name for name, copy in self.copies.open.items() if copy.session is None]
            asked = set(away or self.copies.open)
            if not asked & self._asked.keys():
                self._asked.update({name: _Order(True, self.copies.open[name].ends()) for name in asked})
                self._done -= asked
            await self._look_at_copies()
        return TakeOverReply(dict(self.facts()["pair"]))

    async def close(self) -> None:
        """End the links, close the copies."""
        tasks = [task for task in (self._task, self._looking, self._opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.second_disk.close()
        await self._take_overs.close()
        if self._opening is not None:
            with contextlib.suppress(OSError):
                await self.listener.close()
            await self.copies.close()

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        second, status, times = self.second_disk, self.status, self._times
        copies = {name: self._copy(name, copy) for name, copy in self.copies.open.items()}
        return {
            "pair": {
                "node": self.copies.peer,
                "peer": list(self._pair.peer),
                "port": self.listener.port,
                "state": str(status.state),
                "connected_since": seconds(status.connected_since),
                "last_error": status.last_error,
                "conflict": status.conflict,
                "acks": self._pair.acks,
                "records_with_one_disk": sum(second.lag().values()),
                "acknowledgements_waiting": second.waiting,
                "alone_since": None if times is None else seconds(times.since),
                "times_alone": [] if times is None else [[seconds(first), seconds(end)] for first, end in times.times],
                "compared": self._source is not None and self._source.is_compared,
                "copies": copies,
                "copies_unopened": dict(self.copies.unopened),
            }
        }

    def report(self) -> PairReport:
        """Return what hubs are to know: they show it also when this node, or its peer, is lost."""
        away = [copy for copy in self.copies.open.values() if copy.session is None]
        copies = [
            CopyReport(*copy.owner, copy.log.log_id, copy.complete_to(), copy.is_vouched, sum(copy.waiting().values()))
            for copy in away
        ]
        return PairReport([] if self._times is None else self._times.times[-TIMES_ALONE_MAX:], copies)

    def _copy(self, name: str, copy: Copy) -> dict[str, Any]:
        stats, waiting = copy.log.stats(), copy.waiting()
        had, brought = self._take_overs.results(name)
        return {
            "node": copy.owner.edge,
            "tenant": copy.owner.tenant,
            "log_id": format_log_id(copy.log.log_id),
            "connected": copy.session is not None,
            "complete_to": seconds(copy.complete_to()),
            "vouched": copy.session is None and copy.is_vouched,
            "records": sum(waiting.values()),
            "only_by_order": sum(waiting.values()) - sum(copy.waiting(compared=True).values()),
            "unsent": self._take_overs.unsent_of(name, copy),
            "hubs_had": had,
            "hubs_took": brought,
            "bytes": stats.bytes_on_disk,
            "budget_bytes": stats.budget_bytes,
            "taking_over": name in self._take_overs,
            "not_carried": self._take_overs.not_carried(copy),
            "trouble": self._take_overs.trouble(name)
            or copy.damage
            or ("" if copy.is_sound else "the disk has damaged it"),
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        times = self._times
        yield Sample("weft_edge_pair_connected", self.status.state is LinkState.CONNECTED)
        yield Sample("weft_edge_pair_alone", times is not None and times.since is not None)
        yield Sample("weft_edge_pair_one_disk_records", sum(self.second_disk.lag().values()))
        yield Sample("weft_edge_pair_copied_bytes_total", self.status.bytes_sent)
        waiting = [sum(copy.waiting().values()) for copy in self.copies.open.values()]
        yield Sample("weft_edge_pair_copy_records", sum(waiting))
        bytes_ = [copy.log.stats().bytes_on_disk for copy in self.copies.open.values()]
        yield Sample("weft_edge_pair_copy_bytes", sum(bytes_))


def _streams(config: EdgeConfig) -> dict[str, Any]:
    flow = Flow(config)
    carried = [name for link in config.links.values() for name in carried_streams(link, config)]
    return {name: offered(flow, name) for name in dict.fromkeys(carried) if name not in STREAMS_THAT_STAY}


def _link_settings(pair: Pair, *, is_encrypted: bool) -> LinkSettings:
    ca_file = None if pair.tls is None else pair.tls.ca_file
    return LinkSettings(
        urls=pair.peer,
        token=no_token if pair.token_file is None else functools.partial(read_token, pair.token_file),
        tls=ClientTlsFiles(ca_file=ca_file),
        redirects=(),
        follows_environment=False,
        retry_max_s=RETRY_MAX_S,
        sender=SenderSettings(
            demands=frozenset({PAIR, ENCRYPTED} if is_encrypted else {PAIR}),
            compression_level=1,
            mark_interval=int(PING_S * SECOND),
            ping_interval=int(PING_S * SECOND),
            silence=int(SILENCE_S * SECOND),
        ),
    )
