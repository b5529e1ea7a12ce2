"""A hub on a real port of this machine, for driving links over real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import ClassVar

from aiohttp import web

from weft.protocols.batch import BatchHeader, records
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.link import (
    Canary,
    Clock,
    ConfigState,
    DownOpen,
    Hello,
    LaneOpen,
    LaneOrigins,
    NodeReport,
    Outcomes,
    PairReport,
    PullState,
)
from weft.protocols.ranges import RangeSet
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LINK_PATH, Beats, LinkRefused, LinkSession, serve_link


class Hub:
    """A hub on a real port; it keeps what it took across connections and restarts."""

    numbers: ClassVar[dict[str, int]] = {}
    """Stream -> the number under which all hubs of a test know it. Without an entry, the first that a link gave it."""

    def __init__(self, cluster_id: str = "cluster-1") -> None:
        self.cluster_id = cluster_id
        self.held: dict[int, RangeSet] = {}
        self.stored: Counter[tuple[int, int]] = Counter()
        self.gaps: list[tuple[int, GapRange]] = []
        self.marks: list[tuple[int, Mark]] = []
        self.hellos: list[Hello] = []
        self.openings: list[LaneOpen] = []
        self.clocks: list[Clock] = []
        self.config_states: list[ConfigState] = []
        self.reports: list[NodeReport | PairReport] = []
        self.lanes: dict[str, int] = {}
        """Stream -> the number under which this hub knows it."""
        self.sessions: list[LinkSession] = []
        self.closed = 0
        self.reasons: list[str] = []
        self._beats = Beats()
        self.token: str | None = None
        self.refusal: LinkRefused | None = None
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.answers = True
        self.settings = ReceiverSettings(silence=2 * SECOND, ping_interval=SECOND // 5)
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(LINK_PATH, self._link)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized
        if not self.answers:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for _ in socket:
                pass
            return socket
        return await serve_link(request, _Handler(self), self.settings, self.cluster_id, beats=self._beats)


class _Handler:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.taken: list[tuple[int, int, list[tuple[BatchHeader, memoryview]]]] = []
        """Batches of the message that is being handled."""

    def connected(self, session: LinkSession) -> None:
        self.session = session

    async def open(self, hello: Hello) -> None:
        self.hub.hellos.append(hello)
        if self.hub.refusal is not None:
            raise self.hub.refusal
        self.hub.sessions.append(self.session)
        self.keys: dict[int, int] = {}

    def last_words(self, time: int, lanes: list[tuple[int, int]], renamed_to: str) -> None:
        self.marks(time, lanes)

    async def open_lane(self, opening: LaneOpen) -> None:
        self.hub.openings.append(opening)
        key = self.keys[opening.lane] = self.hub.lanes.setdefault(
            opening.stream, self.hub.numbers.get(opening.stream, opening.lane)
        )
        self.session.lane_opened(opening.lane, self.hub.held.get(key, RangeSet()).copy())

    def close_lane(self, lane: int, refusal: str = "") -> None:
        del self.keys[lane]

    def add_origins(self, frame: LaneOrigins) -> None:
        pass

    def config_state(self, state: ConfigState) -> None:
        self.hub.config_states.append(state)

    def report(self, report: NodeReport | PairReport) -> None:
        self.hub.reports.append(report)

    def pull_state(self, state: PullState) -> None:
        raise AssertionError("the edge was not asked for records")

    async def down(self, frame: DownOpen | Outcomes) -> None:
        pass

    async def canary(self, canary: Canary) -> None:
        if self.hub.may_take.is_set():
            self.session.prove(canary.number, 0.0)

    async def clock(self, clock: Clock) -> None:
        self.hub.clocks.append(clock)

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        self.taken.append((lane, self.keys[lane], batches))

    async def room(self) -> None:
        if self.taken:
            await self.hub.may_take.wait()
        for lane, key, batches in self.taken:
            self._store(lane, key, batches)
        self.taken.clear()

    def _store(self, lane: int, key: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        held = self.hub.held.setdefault(key, RangeSet())
        for header, batch in batches:
            self.hub.stored.update((key, record.seq) for record in records(batch) if record.seq not in held)
            held.add(header.base_seq, header.end_seq)
        self.session.acknowledge(lane, held.copy())

    async def gap(self, lane: int, gap: GapRange) -> None:
        key = self.keys[lane]
        self.hub.gaps.append((key, gap))
        self.hub.held.setdefault(key, RangeSet()).add(gap.first, gap.end)
        self.session.acknowledge(lane, self.hub.held[key].copy())

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        self.hub.marks += [(self.keys[lane], Mark(time, seq)) for lane, seq in lanes]

    def closed(self, reason: str) -> None:
        self.hub.closed += 1
        self.hub.reasons.append(reason)
