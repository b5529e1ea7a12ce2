"""A network in virtual time: WebSockets that are slow, stalled in one direction, cut, and dead at one end only."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Any

import aiohttp

BUFFER_MESSAGES = 64
"""Messages that a stalled direction takes before its sender waits."""
ABNORMAL = int(aiohttp.WSCloseCode.ABNORMAL_CLOSURE)


class Way:
    """One direction of a connection. It keeps the order of its messages."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s
        self._messages: deque[bytes] = deque()
        self._last = 0.0
        self._news = asyncio.Event()
        self._moves = asyncio.Event()
        """Set while it is not stalled."""
        self._moves.set()
        self.is_stalled = False
        self.close_code: int | None = None
        """How its receiver finds it closed; None while it is open."""

    async def put(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._after_last(), loop.time() + self._delay_s())
        if self.is_stalled and len(self._messages) >= BUFFER_MESSAGES:
            await self._moves.wait()
        loop.call_at(self._last, self._arrive, bytes(data))

    def _arrive(self, data: bytes) -> None:
        if self.close_code is None:
            self._messages.append(data)
            self._news.set()

    async def get(self) -> bytes | None:
        """Return the next message; None after the end."""
        while not self._messages or self.is_stalled:
            if self.close_code is not None and not self._messages:
                return None
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()

    def stall(self, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        self._news.set()
        if is_stalled:
            self._moves.clear()
        else:
            self._moves.set()

    def close_in_order(self, code: int) -> None:
        """End it behind the messages that are under way."""
        loop = asyncio.get_running_loop()
        loop.call_at(max(self._after_last(), loop.time()), self.close, code)

    def _after_last(self) -> float:
        """Return the first moment after the last message: a loop does not keep the order of calls at one moment."""
        return math.nextafter(self._last, math.inf)

    def close(self, code: int) -> None:
        """End it: what has arrived can still be read."""
        if self.close_code is None:
            self.close_code = code
        self.stall(False)


class Socket:
    """What both ends use of aiohttp's WebSockets."""

    def __init__(self, inward: Way, outward: Way) -> None:
        self._in, self._out = inward, outward

    @property
    def close_code(self) -> int | None:
        return self._in.close_code

    def get_extra_info(self, name: str) -> None:
        return None

    async def receive(self, timeout: float | None = None) -> aiohttp.WSMessage:
        async with asyncio.timeout(timeout):
            data = await self._in.get()
        if data is None:
            return aiohttp.WSMessage(aiohttp.WSMsgType.CLOSED, None, None)
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, data, None)

    async def send_bytes(self, data: bytes) -> None:
        if self._in.close_code is not None:
            raise ConnectionResetError("the connection was cut")
        await self._out.put(data)

    async def close(self) -> None:
        self._in.close(int(aiohttp.WSCloseCode.OK))
        self._out.close_in_order(int(aiohttp.WSCloseCode.OK))


class Connection:
    """A connection of an edge to a node."""

    def __init__(self, edge: int, node: int, rng: random.Random) -> None:
        self.edge, self.node = edge, node
        slowness = rng.choice([0.001, 0.02, 0.3])
        self.up, self.down = (Way(lambda: rng.random() * slowness) for _ in range(2))
        self.client, self.server = Socket(self.down, self.up), Socket(self.up, self.down)

    @property
    def is_open(self) -> bool:
        return self.up.close_code is None or self.down.close_code is None

    def cut(self, *, reported: tuple[bool, bool] = (True, True)) -> None:
        """Cut it; ``reported`` are the edge and the node that notice."""
        for way, notices in zip((self.down, self.up), reported, strict=True):
            if notices:
                way.close(ABNORMAL)

    def lose_edge(self, rng: random.Random) -> None:
        """The edge is gone; its last messages may arrive, and the node may notice nothing."""
        self.cut(reported=(True, rng.random() < 0.7))


class Network:
    """All connections.

    Args:
        serve: takes the node's end of a new connection, or raises ``OSError``.
    """

    def __init__(self, rng: random.Random, serve: Callable[[Connection], None]) -> None:
        self._rng, self._serve = rng, serve
        self.connections: list[Connection] = []
        self.refused = 0.0
        """Share of attempts that fail."""
        self.away: set[int] = set()
        """Machines that reach no hub."""
        self.walls: set[tuple[int, int]] = set()
        """(machine, node): the machine does not reach this node."""
        self.early_cuts: dict[int, int] = {}
        """Machine -> connections that end before the hub has answered, though it may have been told."""

    async def connect(self, edge: int, url: str) -> Socket:
        await asyncio.sleep(self._rng.random() * 0.05)
        node = int(url.rpartition(":")[2].partition("/")[0]) - 1
        if edge in self.away or (edge, node) in self.walls or self._rng.random() < self.refused:
            raise ConnectionRefusedError("injected: connection refused")
        connection = Connection(edge, node, self._rng)
        self._serve(connection)
        self.connections = [*(each for each in self.connections if each.is_open), connection]
        if self.early_cuts.get(edge, 0) > 0:
            self.early_cuts[edge] -= 1
            asyncio.get_running_loop().call_later(self._rng.random() * 0.02, connection.cut)
        return connection.client

    def lose(self, edge: int, after_s: float, for_s: float) -> None:
        """Let a machine reach no hub for some time."""

        def lose() -> None:
            self.away.add(edge)
            for connection in self.of(edge):
                connection.cut()
            loop.call_later(for_s, self.away.discard, edge)

        loop = asyncio.get_running_loop()
        loop.call_later(after_s, lose)

    def wall_off(self, ways: Collection[tuple[int, int]], for_s: float) -> None:
        """Keep machines from nodes for some time. An end may not notice it."""
        self.walls.update(ways)
        for connection in self.connections:
            if (connection.edge, connection.node) in ways and connection.is_open:
                connection.cut(reported=(self._rng.random() < 0.7, self._rng.random() < 0.7))
        asyncio.get_running_loop().call_later(for_s, self.walls.difference_update, ways)

    def of(self, edge: int) -> list[Connection]:
        return [each for each in self.connections if each.edge == edge and each.is_open]

    def blow(self) -> None:
        """One fault of one connection."""
        live = [each for each in self.connections if each.is_open]
        if not live:
            return
        connection = self._rng.choice(live)
        match self._rng.choice(["cut", "cut", "half", "up", "down", "both"]):
            case "cut":
                connection.cut()
            case "half":
                connection.cut(reported=self._rng.choice([(True, False), (False, True)]))
            case which:
                for name in ("up", "down") if which == "both" else (which,):
                    self._stall(getattr(connection, name))

    def _stall(self, way: Way) -> None:
        way.stall(True)
        asyncio.get_running_loop().call_later(self._rng.uniform(0.5, 40.0), way.stall, False)

    def heal(self) -> None:
        """No fault continues; a connection that one end holds for open ends."""
        self.refused = 0.0
        self.away.clear()
        self.walls.clear()
        self.early_cuts.clear()
        for connection in self.connections:
            connection.up.stall(False)
            connection.down.stall(False)
            connection.cut()


MACHINE: ContextVar[tuple[Network, int]] = ContextVar("machine")
"""The network, and the machine that the running task belongs to."""


class Session:
    """What ``run_link`` uses of aiohttp's client session."""

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ws_connect(self, url: str, **_: Any) -> Socket:
        network, edge = MACHINE.get()
        return await network.connect(edge, url)
