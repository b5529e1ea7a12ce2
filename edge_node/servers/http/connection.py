"""One HTTP connection: reads to requests, requests to answers in their order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from weft.bounds import Owner
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.servers.clients.output import Output, WritingConnection
from weft.edge_node.servers.clients.reading import KEEPS, NEVER, ReadBuffer, Reading
from weft.edge_node.servers.http import bodies, posts
from weft.edge_node.servers.http.access import Browsers, RequestAuth, claim_of
from weft.edge_node.servers.http.bodies import media_type_of
from weft.edge_node.servers.http.request import (
    CONTINUE,
    PIECE_BYTES,
    FeedHandler,
    HttpExchange,
    LongestBody,
    Problem,
    Request,
    RequestParser,
    Server,
    unquoted,
)
from weft.edge_node.servers.http.settings import BODY_BYTES_PER_S, CHECK_S, PENDING_MAX, HttpSettings
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator

# The end of a connection after its last answer.

LINGER_S = 2.0
"""Time for which input is discarded before a connection is closed: without it the system would reset the connection,
and the client might not get the answer."""
LINGER_BYTES_MAX = 4 << 20


class LingeringClose:
    """Reader that discards a client's input for a while."""

    __slots__ = ("_left", "_timer", "_transport", "_write_timeout_s")

    def __init__(self, transport: asyncio.Transport, write_timeout_s: float) -> None:
        """Begin to end a connection, without further writes.

        Args:
            write_timeout_s: time in which the client can read the sent data.
        """
        self._write_timeout_s = write_timeout_s
        self._left = LINGER_BYTES_MAX
        self._transport = transport
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed it
                transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def received(self, size: int) -> None:
        """Discard received bytes."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def _close(self) -> None:
        self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(self._write_timeout_s, self._transport.abort)

    def cancel(self) -> None:
        """Stop waiting: the connection has ended."""
        self._timer.cancel()


# Answers of one connection, sent in the order of its requests.


class ResponseQueue:
    """Exchanges whose answers are not sent yet.

    Args:
        send: writes bytes to the client; its second argument ends the connection after them.
    """

    __slots__ = ("_is_flushing", "_send", "_server", "pending")

    def __init__(self, server: Server, send: Callable[[bytes, bool], None]) -> None:
        self._server = server
        self._send = send
        self._is_flushing = False
        self.pending: deque[HttpExchange] = deque()

    def answered(self) -> None:
        """Send the answer; if more than one is due, send all of the turn in one write."""
        pending = self.pending
        if len(pending) == 1 and pending[0].ready:
            exchange = pending.popleft()
            self._server.count(exchange.status)
            self._send(exchange.rendered(self._server.answers), not exchange.keeps_alive)
        elif len(pending) > 1 and not self._is_flushing:
            self._is_flushing = True
            self._server.context.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers that do not wait for earlier ones."""
        self._is_flushing = False
        data, closes = [], False
        while self.pending and self.pending[0].ready and not closes:
            exchange = self.pending.popleft()
            closes = not exchange.keeps_alive
            self._server.count(exchange.status)
            data.append(exchange.rendered(self._server.answers))
        if data:
            self._send(data[0] if len(data) == 1 else b"".join(data), closes)


# Long requests, carried out a turn at a time.


class LongRequest:
    """The long request of one connection; later requests wait behind it.

    Args:
        failed: called with the exception of a step.
        done: called at the end, if the request took more than one turn.
    """

    __slots__ = ("_done", "_exchange", "_failed", "_server", "_steps", "held")

    def __init__(
        self, server: Server, failed: Callable[[HttpExchange, Exception], None], done: Callable[[], None]
    ) -> None:
        self._server = server
        self._failed = failed
        self._done = done
        self._exchange: HttpExchange | None = None
        self._steps: Iterator[None] = iter(())
        self.held = 0
        """Bytes of the request, until it is done."""

    def take(self, exchange: HttpExchange, steps: Iterator[None], owner: Owner) -> bool:
        """Begin, in the rest of the turn. Return whether all is done."""
        self._exchange, self._steps, self.held = exchange, steps, exchange.request.size
        if self._resume():
            return True
        self._server.context.round_robin.wait(owner, self._in_turn)
        return False

    def end(self) -> None:
        """Drop the remaining steps: the client is gone. Stored records stay."""
        self._exchange, self._steps, self.held = None, iter(()), 0

    def _resume(self) -> bool:
        assert self._exchange is not None
        budget = self._server.context.pacing.budget
        try:
            for _ in self._steps:
                if not budget.spend():
                    return False
        except Exception as error:
            self._failed(self._exchange, error)
        self._exchange, self._steps, self.held = None, iter(()), 0
        return True

    def _in_turn(self) -> None:
        if self._exchange is None:
            return
        context, owner = self._server.context, self._exchange.owner
        context.pacing.budget.begin(context.clock())
        try:
            is_done = self._resume()
        finally:
            context.ingest.batch.gathered()
        if is_done:
            self._done()
        else:
            context.round_robin.wait(owner, self._in_turn)


log = logging.getLogger(__name__)

_KEEPS = KEEPS | Pause.ACKS
"""Reasons for which data is kept unparsed: a request begins only where its answer has room."""


TAKEN_BYTES = 2048
"""Bytes of the input of a feed's client in one turn: 341 frames of a WebSocket at most, a millisecond."""


class HttpConnection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_auth",
        "_batch",
        "_broken",
        "_browsers",
        "_feed",
        "_lingering",
        "_long_request",
        "_parser",
        "_pending",
        "_read_buffer",
        "_responses",
        "_service",
        "accepted",
        "reading",
        "wheel_slot",
    )

    def __init__(
        self, service: Server, authenticator: Authenticator, accepted: AcceptedConnection, browsers: Browsers
    ) -> None:
        """Begin a connection, which the listener has counted."""
        self.accepted = accepted
        self.wheel_slot = -1
        self._service = service
        self._browsers = browsers
        self._auth = RequestAuth(service, authenticator, accepted)
        self._read_buffer = ReadBuffer(service.context.unfinished, self._auth.owner)
        self._batch = service.context.ingest.batch
        self._parser = RequestParser(service.heads, longest_body_by(service.settings), self._on_head)
        self._responses = ResponseQueue(service, self._reply)
        self._pending = self._responses.pending
        self._broken: Problem | None = None
        """Refusal of data that cannot be parsed; nothing after it is read."""
        self._feed: FeedHandler | None = None
        self.reading = Reading(service.context, self._read_buffer, self._read_ahead, _KEEPS)
        self._long_request = LongRequest(service, self._failed, partial(self.reading.resume, Pause.FAIRNESS))
        self._lingering: LingeringClose | None = None
        self._transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request; until its sender is admitted, the listener bounds the time as well."""
        self._transport = cast(asyncio.Transport, transport)
        self.reading.begin(self._transport)
        self._output = Output(self._transport, self._service.context.writes, self, self._read_buffer.owner)
        self._service.arrived(self)
        self._service.context.wheel.set(self, self.reading.heard + CHECK_S)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._feed is not None:
            self._give(self._feed, data)
        elif self._lingering is not None:
            self._lingering.received(len(data))
        else:
            now = self._service.context.clock()
            if self.reading.admits(now):
                self._work(data, now)
            elif self._transport is not None:
                self._read_buffer.ahead += data
                if self._settle():
                    self.reading.put_off()

    def eof_received(self) -> bool:
        """Answer requests from before the client closed its side."""
        transport = self._transport
        if (
            transport is None
            or self._lingering is not None
            or not self._pending
            or transport.get_extra_info("sslcontext")
        ):
            return False  # TLS ends both ways at once
        self._pending[-1].keeps_alive = False
        return True

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read."""
        self.reading.falls_behind()
        if self._feed is not None:
            self._feed.pause()
        self._service.context.wheel.set(self, self.reading.write_until)

    def catches_up(self) -> None:
        """Resume reading from a client that has caught up."""
        self.reading.catches_up()
        if self._feed is not None:
            self._feed.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Forget the connection. Stored records of unanswered requests stay."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self.reading.end()
        self._output.drop()
        self._service.context.wheel.cancel(self)
        if self._lingering is not None:
            self._lingering.cancel()
        if self._feed is not None:
            self._feed.stop()
        self._parser.close()
        self._long_request.end()
        self._read_buffer.ahead = b""
        self._settle()
        self._auth.forget()
        self._service.left(self)
        self.accepted.closed()

    # --- reading

    def _read_ahead(self, now: float) -> None:
        self._work(self._read_buffer.take(), now)

    def _work(self, data: bytes, now: float) -> None:
        reading = self.reading
        reading.heard = now
        budget, size, at = self._service.context.pacing.budget, len(data), 0
        budget.begin(now)
        self._batch.bytes += size
        try:
            if self._posts_at_once(data):
                at = size
            else:
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
                    reading.end_turn()
        finally:
            self._batch.gathered()
        reading.handled(size)
        if self._feed is not None:
            if at < size:
                self._give(self._feed, data[at:])
        elif self._lingering is None:
            if at < size:
                self._read_buffer.ahead = data[at:] + self._read_buffer.ahead
            self._settle()

    def _posts_at_once(self, data: bytes) -> bool:
        """Store the message of a read that is one request with a known head, as most reads of devices are. Return
        False, with nothing done, for any other read: it takes the way of all requests, and is refused there."""
        service, auth = self._service, self._auth
        if self._pending or len(data) > PIECE_BYTES or not self._reads or not self._parser.awaits_request:
            return False
        if (found := service.heads.find(data)) is None:
            return False
        head, body = found
        if head.plan is None or not auth.admits(head):
            return False
        try:
            fields = self._browsers.check(head)
        except Problem:
            return False
        exchange = HttpExchange(self, head, self._read_buffer.owner, fields)
        exchange.identity, exchange.routes = auth.known()
        self._pending.append(exchange)
        try:
            if not service.posts_at_once(exchange, body):
                self._pending.pop()
                return False
        except Exception as error:
            self._failed(exchange, error)
        self._batch.relieve()
        service.context.pacing.budget.spend()
        return True

    @property
    def _reads(self) -> bool:
        """Return whether more may be parsed now."""
        return (
            self._transport is not None
            and not self.reading.pause & _KEEPS
            and self._broken is None
            and self._lingering is None
            and self._feed is None
        )

    def _handle(self) -> None:
        """Handle the complete requests."""
        complete = self._parser.complete
        while complete and self._transport is not None and not self.reading.pause & _KEEPS and self._feed is None:
            if self._lingering is not None:
                complete.clear()
                return
            if len(self._pending) >= PENDING_MAX:
                self.reading.hold(Pause.ACKS)
                return
            if self._knows(complete[0]):
                self._begin(complete.pop(0))
                self._batch.relieve()
                if not self._service.context.pacing.budget.spend() and complete:
                    self.reading.end_turn()
        if self._broken is not None and not complete and self._lingering is None and not self.reading.pause & _KEEPS:
            problem, self._broken = self._broken, None
            problem.closes = True
            self._service.context.counters.protocol_errors += problem.status == 400
            self._refuse(Request(), problem)

    def _settle(self) -> bool:
        """Charge the owner with the held bytes. Return whether it may have so many; else the connection is closed."""
        if self._transport is None:
            return self._read_buffer.charge(0)
        if self._read_buffer.charge(self._parser.held + len(self._read_buffer.ahead) + self._long_request.held):
            return True
        self._transport.abort()
        return False

    # --- requests

    def _on_head(self, request: Request) -> None:
        """Handle the head of a request before its body: its sender is checked first."""
        if not self._pending and not self._parser.complete:
            self._knows(request)
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            if self._service.holds:
                raise self._service.busy()
            if not self._pending and not request.is_http10 and self._transport is not None:
                self._output.write(CONTINUE)

    def _knows(self, request: Request) -> bool:
        """Return whether a request's sender is known, or does not matter; otherwise begin the check."""
        if self._auth.is_known(request):
            return True
        if not self.reading.pause & Pause.RESULT:
            self.reading.hold(Pause.RESULT)
            self._auth.ask(request, self._transport, self._asked)
        return False

    def _asked(self) -> None:
        """Resume: the check of the sender has ended."""
        self._read_buffer.belongs_to(self._auth.owner)
        self._output.owner = self._auth.owner
        denied = self._auth.denied
        if denied is not None and self._parser.is_in_body and not self._pending and self._transport is not None:
            self._refuse(Request(), denied)  # before a long body arrives
        self.reading.resume_in_turn(Pause.RESULT)

    def _begin(self, request: Request) -> None:
        exchange = HttpExchange(self, request, self._read_buffer.owner)
        self._pending.append(exchange)
        self._service.counters.http_requests += 1
        try:
            exchange.answer_fields = self._browsers.check(request)
            if request.method == "OPTIONS":
                exchange.answer(204, fields=self._browsers.preflight(request))
                return
            if not self._service.is_open_to_all(request):
                claim_of(request)
                exchange.identity, exchange.routes = self._auth.known()
            steps = self._service.handle(exchange)
            if steps is not None and not self._long_request.take(exchange, steps, exchange.owner):
                self.reading.hold(Pause.FAIRNESS)
        except Exception as error:
            self._failed(exchange, error)

    def _failed(self, exchange: HttpExchange, error: Exception) -> None:
        if isinstance(error, Problem):
            exchange.fail(error)
            return
        log.error("a request of %s could not be handled", self.accepted.name, exc_info=error)
        exchange.fail(Problem(500, "internal error of the node; its log has the details"))

    def _refuse(self, request: Request, problem: Problem) -> None:
        request.keeps_alive = False
        exchange = HttpExchange(self, request, self._read_buffer.owner)
        self._pending.append(exchange)
        exchange.fail(problem)

    # --- answers

    def answered(self) -> None:
        """Send the answers that are due."""
        self._responses.answered()

    def _reply(self, data: bytes, closes: bool) -> None:
        if self._transport is None or self._lingering is not None:
            return
        self.send(data)
        if closes:
            self._end()
        elif self.reading.pause & Pause.ACKS and len(self._pending) < PENDING_MAX // 2:
            self.reading.resume_in_turn(Pause.ACKS)

    def stream_to(self, feed: FeedHandler) -> None:
        """Pass the connection to a feed. There is no earlier request, and no later one is accepted."""
        self._pending.clear()
        self._feed = feed
        feed.begin(self)
        if self._parser.rest:
            self._give(feed, self._parser.rest)

    def _give(self, feed: FeedHandler, data: bytes) -> None:
        """Pass input of a feed's client on, a little in each turn: a read may have 43,690 frames of a WebSocket."""
        data = self._read_buffer.take() + data
        if not self.reading.pause & _KEEPS:
            feed.received(data[:TAKEN_BYTES])
            data = data[TAKEN_BYTES:]
        if data and self._transport is not None:
            self._read_buffer.ahead = data
            if self._settle():
                self.reading.put_off()

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before that of the latest request."""
        return len(self._pending) <= 1

    def recheck(self) -> None:
        """Check the client again: users or rules were read again."""
        if self._feed is not None:
            self._feed.recheck()
        elif not self._pending and self._auth.has_to_go():  # otherwise its next request is refused
            self.close()

    def shut_down(self) -> None:
        """Close: the node stops. Unanswered requests may have been stored."""
        if self._feed is not None:
            self._feed.stop()
        elif self._transport is not None:
            self.close() if not self._pending else self._transport.abort()

    def due(self, now: float) -> float | None:
        """Close the connection if the client is too slow. For the timer wheel."""
        if self._transport is None:
            return None
        settings = self._service.settings
        reading = self.reading
        if reading.write_until != NEVER:
            if reading.is_stuck(now):
                self._transport.abort()
                return None
            return reading.write_until
        if reading.pause:
            reading.heard = self._parser.began = now  # the time of a client that is not read does not count
        elif self._parser.is_within and self._lingering is None:
            body_s = settings.body_s + self._parser.held / BODY_BYTES_PER_S
            limit = body_s if self._parser.is_in_body else settings.head_s
            if now - self._parser.began >= limit:
                self._service.counters.http_timeouts += 1
                self._refuse(Request(), Problem(408, f"no whole request after {limit:.0f} s; send it faster"))
        elif not self._pending and self._feed is None and now - reading.heard >= settings.idle_s:
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
        self._lingering = LingeringClose(transport, self._service.settings.limits.write_timeout_s)
        self._parser.complete.clear()
        self._read_buffer.ahead = b""
        self.reading.last_words()

    def close(self) -> None:
        """Close, after the waiting bytes if the client reads."""
        if self._transport is not None:
            self.shut(self._transport, drains=not self.reading.pause & Pause.WRITE)


_POSTS = (b"/v1/streams/", b"/v1/topics/")


def longest_body_by(settings: HttpSettings) -> Callable[[Request], LongestBody]:
    """Return the function that gives the bound on a request's body: the longest message where the body is one message
    that is stored unchanged. A body that must be parsed, for its messages or for the fields of a key or a time, has a
    bound of its own."""
    of_message = LongestBody(settings.limits.message_bytes, "limits.message")
    of_request = LongestBody(settings.limits.request_bytes, "limits.request")
    shorter = min(of_message, of_request)

    def longest_body(request: Request) -> LongestBody:
        headers = request.headers
        if b"content-encoding" not in headers and int(headers.get(b"content-length", shorter.size + 1)) <= shorter.size:
            return shorter  # which it keeps, whatever it is
        return of_message if request.target.startswith(_POSTS) and _is_one_message(request) else of_request

    return longest_body


def _is_one_message(request: Request) -> bool:
    headers = request.headers
    # The key comes from the unquoted path, and clients may write a brace as %7B.
    if b"weft-time-field" in headers or b"{" in unquoted(request.path) + headers.get(b"weft-key", b""):
        return False
    kind = media_type_of(headers.get(b"content-type", b"").decode("latin-1"))
    if kind == "application/json":
        return headers.get(b"weft-batch") == b"no"
    return not (bodies.is_lines(kind) or kind.startswith(posts.OF_ANY_FORMAT))
