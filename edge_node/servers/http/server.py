"""Interface of the HTTP side for its connections. ``HttpService`` implements it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.http.answers import Answers
from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.problem import Problem
from weft.edge_node.servers.http.request import KnownHeads, Request
from weft.edge_node.servers.http.settings import HttpSettings


class OpenConnection(Protocol):
    """One connection (``HttpConnection``)."""

    def recheck(self) -> None:
        """Check the client again: users or rules were read again."""

    def shut_down(self) -> None:
        """Close: the node stops."""


class Server(Protocol):
    """The shared part of all connections. Belongs to the event loop's thread."""

    context: ProtocolContext
    settings: HttpSettings
    counters: HttpCounters
    answers: Answers
    heads: KnownHeads

    def arrived(self, connection: OpenConnection) -> None:
        """Register a connection."""

    def left(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""

    def count(self, status: int) -> None:
        """Count an answer."""

    @property
    def holds(self) -> bool:
        """Return whether too much waits for the disk to accept more."""
        ...

    def busy(self) -> Problem:
        """Return the refusal for requests meanwhile."""
        ...

    def is_open_to_all(self, request: Request) -> bool:
        """Return whether a request needs no authentication."""
        ...

    def handle(self, exchange: Exchange) -> Iterator[None] | None:
        """Carry out a request. Return the steps of a long one, for the caller to run.

        Raises:
            Problem: it is refused; the steps raise it, too.
        """
        ...
