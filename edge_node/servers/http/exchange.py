"""One request and its answer, which waits for the disk and for the answers before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.http.answers import JSON, Answers, Fields, influx_error
from weft.edge_node.servers.http.problem import Problem, try_later
from weft.edge_node.servers.http.request import Request
from weft.network.problem import PROBLEM_JSON
from weft.network.problem import problem as problem_document
from weft.storage.segment_log import LogFull
from weft.storage.segment_log.errors import RecordTooLarge

FULL_RETRY_S = 5
"""Seconds after which a client of a full log may try again."""


class Line(Protocol):
    """The connection of an exchange (``HttpConnection``)."""

    def answered(self) -> None:
        """Send the answers that are due."""

    def stream_to(self, taker: Taker) -> None:
        """Pass the connection to a feed; the exchange was answered with its head."""

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before that of the latest request."""
        ...


class Way(Protocol):
    """Interface of the connection for a feed."""

    def send(self, data: bytes) -> None:
        """Write bytes."""

    def send_all(self, parts: Sequence[bytes]) -> None:
        """Write bytes in parts, which other clients may share."""

    def close(self) -> None:
        """Close it, after the waiting bytes if the client reads."""


class Taker(Protocol):
    """A feed: it sends to a connection until either ends."""

    def begin(self, way: Way) -> None:
        """Begin to send."""

    def received(self, data: bytes) -> None:
        """Handle the client's input meanwhile."""

    def pause(self) -> None:
        """Send nothing until ``resume``: the client does not read."""

    def resume(self) -> None:
        """Resume sending."""

    def recheck(self) -> None:
        """Check again what the client may read, and whether it is admitted: users or rules were read again."""

    def stop(self) -> None:
        """End: the connection has ended, or the node stops."""


class Exchange:
    """A request until its answer is sent; the ``Source`` of its records."""

    protocol = "http"
    """Name of the protocol in traces."""
    __slots__ = ("_line", "answer_fields", "identity", "is_head", "is_influx", "owner", "publisher", "ready", "request",
                 "routes", "status", "stored", "whole")  # fmt: skip

    def __init__(self, line: Line, request: Request) -> None:
        self._line = line
        self.request = request
        self.publisher: str | None = None
        self.identity: Identity | None = None
        """Identity of the client; None for requests that need none."""
        self.owner: Owner
        self.routes: RouteCache
        self.is_influx = False
        """True if errors have the form of InfluxDB's."""
        self.answer_fields: Fields = ()
        """Fields that each answer to this request has."""
        self.ready = False
        self.status = 0
        self.whole: tuple[bytes, str, Fields] = (b"", JSON, ())
        """Body, type and fields of the answer."""
        self.stored: Callable[[], None] | None = None
        """Answers once the records are durable."""

    def answer(self, status: int, body: bytes = b"", content_type: str = JSON, fields: Fields = ()) -> None:
        """Set the answer; it is sent after earlier ones. The first call counts.

        JSON ends with a line break: people read it on a terminal.
        """
        if self.ready:
            return
        if body and content_type == JSON:
            body += b"\n"
        self.ready = True
        self.status, self.whole = status, (body, content_type, fields)
        self._line.answered()

    def rendered(self, answers: Answers) -> bytes:
        """Return the answer as bytes."""
        request, (body, content_type, fields) = self.request, self.whole
        return answers.whole(
            self.status, body, content_type, (*self.answer_fields, *fields), keeps_alive=request.keeps_alive,
            is_http10=request.is_http10, is_head=request.method == "HEAD",
        )  # fmt: skip

    def fail(self, problem: Problem) -> None:
        """Answer that the request is refused."""
        if problem.closes:
            self.request.keeps_alive = False
        if not self.is_influx:
            self.answer(problem.status, problem_document(problem.status, str(problem)), PROBLEM_JSON, problem.fields)
            return
        text = str(problem).replace("\r", " ").replace("\n", " ")
        fields = (*problem.fields, ("X-Influxdb-Error", text.encode("ascii", "replace").decode()))
        self.answer(problem.status, influx_error(problem), fields=fields)

    def stream_to(self, taker: Taker) -> None:
        """Pass the connection to a feed, once the earlier answers are sent."""
        self._line.stream_to(taker)

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before this one."""
        return self._line.is_first

    # --- ``Source``

    def acknowledge(self, answers: bytes) -> None:  # noqa: ARG002 - the answer says where the records are
        """Answer: the records are durable."""
        if self.stored is not None:
            self.stored()

    def refuse(self, error: BaseException) -> None:
        """Answer that the records could not be stored."""
        self.fail(problem_of(error))


def problem_of(error: BaseException) -> Problem:
    """Return the refusal of a request whose records the log refused."""
    if isinstance(error, LogFull):
        return try_later(503, f"not stored: {error}; send it again later", FULL_RETRY_S)
    if isinstance(error, RecordTooLarge):
        return Problem(413, f"not stored: {error}; send less in one message")
    return try_later(503, "not stored: the node's log has failed; send it again when the node has started again",
                     FULL_RETRY_S)  # fmt: skip
