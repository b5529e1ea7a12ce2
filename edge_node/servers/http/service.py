"""The HTTP side of a node: the shared part of all connections, and the dispatch of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from weft.bounds import Refusals
from weft.config.listeners import Listener, bind_of
from weft.config.models import EdgeConfig
from weft.config.units import Address, parse_listen
from weft.edge_node.check.streams import Flow, intake, streams_of
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.http.access import Browsers
from weft.edge_node.servers.http.connection import HttpConnection
from weft.edge_node.servers.http.feeds import Readers
from weft.edge_node.servers.http.idempotency import IdempotencyKeys
from weft.edge_node.servers.http.influx import Influx
from weft.edge_node.servers.http.posts import Plan, Posts
from weft.edge_node.servers.http.request import (
    Answers,
    HttpExchange,
    OpenConnection,
    Problem,
    Request,
    RequestHeadCache,
    try_later,
    unquoted,
)
from weft.edge_node.servers.http.settings import BrowserSettings, HttpCounters, HttpSettings
from weft.edge_node.servers.http.storing import MisfitRule, PostMisfits, PostTarget, Storing
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.protocols.lane import Lane
from weft.storage.segment_log import SegmentLog

RETRY_S = 1
"""Seconds after which a client may retry when too much waited for the disk."""
_OPEN = (b"/ping", b"/health")
"""Paths without authentication: they only show that the node runs."""
_WHERE = (
    "there is POST /v1/streams/STREAM, POST /v1/topics/TOPIC, GET /v1/streams/STREAM/events, GET /v1/topics?filter=, "
    "and InfluxDB's /api/v2/write, /write, /ping and /health"
)


class Streams(NamedTuple):
    """Streams of a configuration, for requests."""

    takes: Mapping[str, PostTarget]
    """Streams that accept messages, by name."""
    others: frozenset[str]
    """Names of the other streams."""


class HttpService:
    """The HTTP side of a node. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        config: EdgeConfig,
        log: SegmentLog,
        context: ProtocolContext,
        settings: HttpSettings,
        counters: HttpCounters,
        refusals: Refusals,
        keys: IdempotencyKeys,
        wall_clock: Callable[[], int],
    ) -> None:
        """Connect it to the node.

        Args:
            wall_clock: nanoseconds since 1970.
        """
        self.context = context
        self.settings = settings
        self.counters = counters
        self.answers = Answers(wall_clock)
        self.heads = RequestHeadCache()
        self._config = config
        self._browsers: dict[str, Browsers] = {}
        """Rules for browsers by listener."""
        self._log = log
        self._open: set[OpenConnection] = set()
        self._misfits = PostMisfits(counters)
        self.streams = self._streams_of(config)
        storing = Storing(log, context.ingest, keys, self._misfits, wall_clock)
        self._posts = Posts(storing, settings, counters, wall_clock)
        self._influx = Influx(storing, settings, counters)
        self._readers = Readers(log, context, settings, counters, refusals, self.answers)

    # --- the node

    def make_connection(self, authenticator: Authenticator, accepted: AcceptedConnection) -> HttpConnection:
        """Return a connection of a listener."""
        browsers = self._browsers.get(authenticator.name)
        if browsers is None:
            browsers = self._browsers[authenticator.name] = Browsers(browser_settings(self._config, authenticator.name))
        return HttpConnection(self, authenticator, accepted, browsers)

    def use(self, config: EdgeConfig) -> None:
        """Accept messages for the streams of a changed configuration."""
        self.streams = self._streams_of(config)

    def permissions_changed(self) -> None:
        """Check again what readers may read: users or access rules were read again."""
        for connection in list(self._open):
            connection.recheck()

    def close(self) -> None:
        """Close all connections. Clients send unanswered requests again."""
        for connection in list(self._open):
            connection.shut_down()

    # --- connections

    def arrived(self, connection: OpenConnection) -> None:
        """Register a connection."""
        self._open.add(connection)

    def left(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)

    def count(self, status: int) -> None:
        """Count an answer."""
        if status >= 400:
            if status == 429:
                self.counters.http_throttled += 1
            elif status >= 500:
                self.counters.http_errors += 1
            else:
                self.counters.http_refused += 1

    @property
    def holds(self) -> bool:
        """Return whether too much waits for the disk to accept more."""
        return self.context.ingest.back_pressure.holding

    def busy(self) -> Problem:
        """Return the refusal for requests meanwhile."""
        return try_later(429, "too much waits for the disk (limits.pending); send it again later", RETRY_S)

    # --- requests

    def is_open_to_all(self, request: Request) -> bool:
        """Return whether a request needs no authentication."""
        return request.path in _OPEN or request.method == "OPTIONS"

    def handle(self, exchange: HttpExchange) -> Iterator[None] | None:
        """Carry out a request. Return the steps of a long one, for the caller to run.

        Raises:
            Problem: it is refused.
        """
        request = exchange.request
        path = request.path
        known = request.known
        if known is not None and type(plan := known.plan) is Plan and self._holds_still(plan.target):
            if self.holds:
                raise self.busy()
            return self._posts.planned(exchange, plan)
        if path.startswith(b"/v1/"):
            return self._ours(exchange, path)
        if path in (b"/api/v2/write", b"/write"):
            exchange.is_influx = True
            self._takes(request, "POST")
            if self.holds:
                raise self.busy()
            return self._influx.write(exchange, is_v2=path != b"/write")
        if path in _OPEN or path == b"/query":
            exchange.is_influx = True
            self._influx.answer(exchange, path, self.settings.software)
            return None
        raise Problem(404, f"there is nothing at this path; {_WHERE}")

    def posts_at_once(self, exchange: HttpExchange, body: bytes) -> bool:
        """Store a message by the plan of its known head. Return False, with nothing done, if it needs ``handle``."""
        plan = exchange.request.plan
        if type(plan) is not Plan or self.holds or not self._holds_still(plan.target):
            return False
        if not self._posts.at_once(exchange, plan, body):
            return False
        self.counters.http_requests += 1
        return True

    def _holds_still(self, target: PostTarget | None) -> bool:
        """Return whether the configuration has not changed since a request was posted to a target."""
        return target is None or self.streams.takes.get(target.name) is target

    def _ours(self, exchange: HttpExchange, path: bytes) -> Iterator[None] | None:
        request = exchange.request
        _, _, what, *rest = path.split(b"/", 4)
        name = rest[0] if rest else b""
        tail = rest[1] if len(rest) > 1 else None
        if what == b"streams" and name:
            stream = unquoted(name).decode(errors="replace")
            if request.method in ("GET", "HEAD") and tail == b"events":
                self._readers.read_stream(exchange, *self._source(stream))
                return None
            self._takes(request, "POST")
            if self.holds:
                raise self.busy()
            return self._posts.to_stream(exchange, self._target(stream), None if tail is None else unquoted(tail))
        if what == b"topics" and (name or request.method == "POST"):
            self._takes(request, "POST")
            if self.holds:
                raise self.busy()
            topic = path[len(b"/v1/topics/") :]
            return self._posts.to_topic(exchange, unquoted(topic))
        if what == b"topics":
            self._takes(request, "GET")
            self._readers.read_topics(exchange)
            return None
        raise Problem(404, f"there is nothing at this path; {_WHERE}")

    def _takes(self, request: Request, method: str) -> None:
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise Problem(405, f"only {method} is possible here; send that", fields=(("Allow", method),))
        if method == "POST" and not request.has_body:
            # Not treated as an empty message: the body of an old client that sends no length would be lost, and
            # acknowledged.
            raise Problem(
                411, "the request has no length; send Content-Length, or `Transfer-Encoding: chunked`", closes=True
            )

    def _target(self, name: str) -> PostTarget:
        target = self.streams.takes.get(name)
        if target is None:
            if name in self.streams.others:
                raise Problem(403, f"functions write the stream {name}; post to the stream that they read")
            known = ", ".join(sorted(self.streams.takes)[:10]) or "none"
            raise Problem(404, f"the node has no stream of this name; its streams are: {known}")
        return target

    def _source(self, name: str) -> tuple[str, int]:
        """Return lane and number of a stream to read."""
        if name not in self.streams.takes and name not in self.streams.others:
            raise Problem(404, "the node has no stream of this name; see `weft edge status` for its streams")
        config = self._config
        return str(Lane(config.tenant, config.node, self._log.log_id, name)), self._log.stream(name)

    def _streams_of(self, config: EdgeConfig) -> Streams:
        takes, others, rules, flow = {}, set(), {}, Flow(config)
        for name, stream in streams_of(config).items():
            if not stream.from_:
                others.add(name)
                continue
            taken = intake(name, stream)
            lane = Lane(config.tenant, config.node, self._log.log_id, taken)
            number = self._log.stream(taken)
            takes[name] = PostTarget(name, number, str(lane), f"stream/{name}".encode())
            # A schema decides about payloads by itself, with `on_misfit`.
            is_json = flow.input_payload(name).format == "json" and stream.schema is None
            rules[number] = MisfitRule(name, stream.from_, is_json, stream.misfits == "take")
        self._misfits.use(rules)
        return Streams(takes, frozenset(others))


def browser_settings(config: EdgeConfig, name: str) -> BrowserSettings:
    """Return the rules for pages at one listener."""
    listener = config.listeners.get(name) or Listener(bind="127.0.0.1:0")
    bind = parse_listen(bind_of(name, listener))
    return BrowserSettings(
        origins=listener.origins or (),
        scheme="http" if listener.tls is None else "https",
        is_loopback=isinstance(bind, Address) and bind.is_loopback,  # no browser reaches a unix socket by itself
    )
