"""One HTTP connection: reads to requests, requests to answers in their order."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import cast

from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.servers.broker.held import Held
from weft.edge_node.servers.broker.output import LONG_BYTES, Output, WritingConnection
from weft.edge_node.servers.http.access import claim_of
from weft.edge_node.servers.http.answers import CONTINUE
from weft.edge_node.servers.http.browsers import Browsers
from weft.edge_node.servers.http.ending import Ending
from weft.edge_node.servers.http.exchange import Exchange, Taker
from weft.edge_node.servers.http.problem import Problem
from weft.edge_node.servers.http.replies import Replies
from weft.edge_node.servers.http.request import PIECE_BYTES, Request, RequestParser
from weft.edge_node.servers.http.sender import Sender
from weft.edge_node.servers.http.server import Server
from weft.edge_node.servers.http.settings import BODY_BYTES_PER_S, CHECK_S, PENDING_MAX
from weft.edge_node.servers.http.steps import Steps
from weft.edge_node.servers.http.writes.sizes import longest_body
from weft.edge_node.servers.listeners.door import Arrival, Door

log = logging.getLogger(__name__)

_WAITING = Pause.ASKING | Pause.TURN | Pause.ACKS
"""Reasons for which what came is kept unparsed."""


class HttpConnection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_ahead", "_broken", "_browsers", "_ending", "_heard", "_held", "_parser", "_pause", "_pending", "_replies",
        "_sender", "_service", "_steps", "_taker", "_turn", "_write_deadline", "arrival", "wheel_slot",
    )  # fmt: skip

    def __init__(self, service: Server, door: Door, arrival: Arrival, browsers: Browsers) -> None:
        """Take a connection in; the listener has counted it."""
        self.arrival = arrival
        self.wheel_slot = -1
        self._service = service
        self._browsers = browsers
        self._sender = Sender(service, door, arrival)
        self._held = Held(service.broker.unfinished, self._sender.owner)
        self._turn = service.broker.ingest.turn
        self._parser = RequestParser(partial(longest_body, service.settings), self._on_head)
        self._replies = Replies(service, self._reply)
        self._pending = self._replies.pending
        self._ahead = b""
        self._pause = 0
        self._broken: Problem | None = None
        """Refusal of what cannot be read; nothing after it is."""
        self._taker: Taker | None = None
        self._heard = service.broker.clock()
        self._steps = Steps(service, self._failed, partial(self._go_on, Pause.TURN))
        self._ending: Ending | None = None
        self._write_deadline: float | None = None
        self._transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request; until its sender is let in, the listener minds how long as well."""
        self._transport = cast(asyncio.Transport, transport)
        self._output = Output(self._transport, self._service.broker.writes, self, self._held.owner)
        self._service.arrived(self)
        self._service.broker.wheel.set(self, self._heard + CHECK_S)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._taker is not None:
            self._taker.received(data)
        elif self._ending is not None:
            self._ending.received(len(data))
        else:
            now, turns = self._service.broker.clock(), self._service.broker.turns
            if self._pause & _WAITING or (now >= turns.reads_until and not turns.admits(now)):
                self._put_off(data)
            else:
                self._work(data, now)

    def eof_received(self) -> bool:
        """Answer what was asked before the client closed its side."""
        transport = self._transport
        if transport is None or self._ending is not None or not self._pending or transport.get_extra_info("sslcontext"):
            return False  # TLS ends both ways at once
        self._pending[-1].request.keeps_alive = False
        return True

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read."""
        self.hold(Pause.WRITE)
        if self._taker is not None:
            self._taker.pause()
        self._write_deadline = self._service.broker.clock() + self._service.settings.write_timeout_s
        self._service.broker.wheel.set(self, self._write_deadline)

    def catches_up(self) -> None:
        """Read on from a client that has caught up."""
        self._write_deadline = None
        self._release(Pause.WRITE)
        if self._taker is not None:
            self._taker.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Forget the connection. Records of requests that were not answered stay, as far as they are stored."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._output.drop()
        self._service.broker.wheel.cancel(self)
        if self._ending is not None:
            self._ending.cancel()
        if self._taker is not None:
            self._taker.stop()
        self._parser.close()
        self._steps.end()
        self._ahead = b""
        self._settle()
        self._sender.forget()
        self._service.left(self)
        self.arrival.closed()

    # --- reading

    def hold(self, reason: Pause) -> None:
        """Stop reading."""
        if not self._pause and self._transport is not None:
            self._transport.pause_reading()
        self._pause |= reason

    def _release(self, reason: Pause) -> None:
        if self._pause & reason:
            self._pause &= ~reason
            if not self._pause and self._transport is not None:
                self._heard = self._service.broker.clock()
                self._transport.resume_reading()

    def _put_off(self, data: bytes) -> None:
        """Keep a read for the time when the client may go on."""
        if self._transport is None:
            return
        self._ahead += data
        if self._settle() and not self._pause & _WAITING:
            self.hold(Pause.TURN)
            self._service.broker.rounds.wait(self._held.owner, partial(self._go_on, Pause.TURN))

    def _go_on(self, waited_for: Pause) -> None:
        """Handle what came while the connection waited, and read on."""
        self._pause &= ~waited_for
        if self._transport is None:
            return
        if not self._pause & _WAITING:
            data, self._ahead = self._ahead, b""
            self._work(data, self._service.broker.clock())
        if not self._pause and self._transport is not None:
            self._heard = self._service.broker.clock()
            self._transport.resume_reading()

    def _go_on_in_turn(self, waited_for: Pause) -> None:
        """Go on now, or where many do so at the same time when others have had their turn."""
        broker = self._service.broker
        now = broker.clock()
        if now < broker.turns.reads_until or broker.turns.admits(now):
            self._go_on(waited_for)
        else:
            self._pause = (self._pause & ~waited_for) | Pause.TURN
            broker.rounds.wait(self._held.owner, partial(self._go_on, Pause.TURN))

    def _work(self, data: bytes, now: float) -> None:
        self._heard = now
        budget, size, at = self._service.broker.turns.budget, len(data), 0
        budget.begin(now)
        self._turn.bytes += size
        try:
            self._handle()
            while at < size and self._reads:
                piece = data if size <= PIECE_BYTES else data[at : at + PIECE_BYTES]
                at += len(piece)
                try:
                    self._parser.feed(piece, now)
                except Problem as problem:
                    self._broken = problem
                self._handle()
                if at < size and self._reads and not budget.spend(0):
                    self._wait_for_turn()
        finally:
            self._turn.gathered()
        if size > LONG_BYTES and self._service.broker.writes.is_full and not self._pause & _WAITING:
            self.hold(Pause.TURN)
            self._service.broker.writes.when_short(self._held.owner, partial(self._go_on, Pause.TURN))
        if self._taker is not None:
            if at < size:
                self._taker.received(data[at:])
        elif self._ending is None:
            self._ahead = data[at:] + self._ahead if at < size else self._ahead
            self._settle()

    @property
    def _reads(self) -> bool:
        """Return whether more may be parsed now."""
        return (
            self._transport is not None
            and not self._pause & _WAITING
            and self._broken is None
            and self._ending is None
            and self._taker is None
        )

    def _handle(self) -> None:
        """Handle the requests that are whole."""
        complete = self._parser.complete
        while complete and self._transport is not None and not self._pause & _WAITING and self._taker is None:
            if self._ending is not None:
                complete.clear()
                return
            if len(self._pending) >= PENDING_MAX:
                self.hold(Pause.ACKS)
                return
            if self._knows(complete[0]):
                self._begin(complete.pop(0))
                self._turn.relieve()
                if not self._service.broker.turns.budget.spend() and complete and not self._pause & _WAITING:
                    self._wait_for_turn()
        if self._broken is not None and not complete and self._ending is None and not self._pause & _WAITING:
            problem, self._broken = self._broken, None
            problem.closes = True
            self._service.broker.counters.protocol_errors += problem.status == 400
            self._refuse(Request(), problem)

    def _wait_for_turn(self) -> None:
        """Go on when others had their turn and what came is durable: all wait for the commits of one client."""
        self.hold(Pause.TURN)
        self._turn.store()
        broker, owner = self._service.broker, self._held.owner
        broker.ingest.on_durable(lambda _: broker.rounds.wait(owner, partial(self._go_on, Pause.TURN)))

    def _settle(self) -> bool:
        """Charge the owner with what is held. Return whether it may have that much; else the connection is closed."""
        if self._transport is None:
            return self._held.charge(0)
        if self._held.charge(self._parser.held + len(self._ahead) + self._steps.held):
            return True
        self._transport.abort()
        return False

    # --- requests

    def _on_head(self, request: Request) -> None:
        """Look at a request whose body is still to come: who sends it is asked first."""
        if not self._pending and not self._parser.complete:
            self._knows(request)
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            if self._service.holds:
                raise self._service.busy()
            if not self._pending and not request.is_http10 and self._transport is not None:
                self._output.write(CONTINUE)

    def _knows(self, request: Request) -> bool:
        """Return whether it is known who sent a request, or that it does not matter; else ask."""
        if self._sender.is_known(request):
            return True
        if not self._pause & Pause.ASKING:
            self.hold(Pause.ASKING)
            self._sender.ask(request, self._transport, self._asked)
        return False

    def _asked(self) -> None:
        """Go on: it is known who sends the requests, or that it may not."""
        self._held.belongs_to(self._sender.owner)
        self._output.owner = self._sender.owner
        denied = self._sender.denied
        if denied is not None and self._parser.is_in_body and not self._pending and self._transport is not None:
            self._refuse(Request(), denied)  # before a long body comes
        self._go_on_in_turn(Pause.ASKING)

    def _begin(self, request: Request) -> None:
        exchange = Exchange(self, request)
        exchange.owner = self._held.owner
        self._pending.append(exchange)
        self._service.counters.http_requests += 1
        try:
            exchange.answer_fields = self._browsers.check(request)
            if request.method == "OPTIONS":
                exchange.answer(204, fields=self._browsers.preflight(request))
                return
            if not self._service.is_open_to_all(request):
                claim_of(request)
                exchange.identity, exchange.routes = self._sender.known()
            steps = self._service.handle(exchange)
            if steps is not None and not self._steps.take(exchange, steps, exchange.owner):
                self.hold(Pause.TURN)
        except Exception as error:
            self._failed(exchange, error)

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, Problem):
            exchange.fail(error)
            return
        log.error("a request of %s could not be handled", self.arrival.name, exc_info=error)
        exchange.fail(Problem(500, "the node made a mistake; its log says more"))

    def _refuse(self, request: Request, problem: Problem) -> None:
        exchange = Exchange(self, request)
        request.keeps_alive = False
        self._pending.append(exchange)
        exchange.fail(problem)

    # --- answers

    def answered(self) -> None:
        """Send what is due."""
        self._replies.answered()

    def _reply(self, data: bytes, closes: bool) -> None:
        if self._transport is None or self._ending is not None:
            return
        self.send(data)
        if closes:
            self._end()
        elif self._pause & Pause.ACKS and len(self._pending) < PENDING_MAX // 2:
            self._go_on_in_turn(Pause.ACKS)

    def stream_to(self, taker: Taker) -> None:
        """Give the connection to something that goes on sending. Nothing else was asked before, or may be now."""
        self._pending.clear()
        self._taker = taker
        taker.begin(self)
        if self._parser.rest:
            taker.received(self._parser.rest)

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before that of the latest request."""
        return len(self._pending) <= 1

    def recheck(self) -> None:
        """Look again who the client is: users or rules were read again."""
        if self._taker is not None:
            self._taker.recheck()
        elif not self._pending and self._sender.has_to_go():  # otherwise its next request is refused
            self.close()

    def shut_down(self) -> None:
        """Close: the node stops. What was not answered was perhaps stored."""
        if self._taker is not None:
            self._taker.stop()
        elif self._transport is not None:
            self.close() if not self._pending else self._transport.abort()

    def due(self, now: float) -> float | None:
        """Close the connection if the client is too slow. For the timer wheel."""
        if self._transport is None:
            return None
        settings = self._service.settings
        if self._write_deadline is not None:
            if now >= self._write_deadline:
                self._service.broker.counters.write_timeouts += 1
                self._transport.abort()
                return None
            return self._write_deadline
        if self._pause:
            self._heard = self._parser.began = now  # a client that is not read cannot be blamed
        elif self._parser.is_within and self._ending is None:
            body_s = settings.body_s + self._parser.held / BODY_BYTES_PER_S
            limit = body_s if self._parser.is_in_body else settings.head_s
            if now - self._parser.began >= limit:
                self._service.counters.http_timeouts += 1
                self._refuse(Request(), Problem(408, f"no whole request after {limit:.0f} s; send it faster"))
        elif not self._pending and self._taker is None and now - self._heard >= settings.idle_s:
            self.close()
            return None
        return now + CHECK_S

    # --- the end

    def _end(self) -> None:
        """Close once the client has the last answer."""
        if (transport := self._transport) is None:
            return
        if not self._output.finish():
            transport.abort()
            return
        self._ending = Ending(transport, self._service.settings.write_timeout_s)
        self._parser.complete.clear()
        self._ahead = b""
        self._pause &= Pause.WRITE
        if not self._pause:
            transport.resume_reading()

    def close(self) -> None:
        """Close, with what waits if the client reads."""
        if self._transport is not None:
            self.shut(self._transport, drains=not self._pause & Pause.WRITE)
