"""Long requests, carried out a turn at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.bounds import Owner
from weft.edge_node.servers.http.exchange import Exchange
from weft.edge_node.servers.http.server import Server


class Steps:
    """The long request of one connection; later requests wait behind it.

    Args:
        failed: called with the exception of a step.
        done: called at the end, if the request took more than one turn.
    """

    __slots__ = ("_done", "_exchange", "_failed", "_server", "_steps", "held")

    def __init__(self, server: Server, failed: Callable[[Exchange, Exception], None], done: Callable[[], None]) -> None:
        self._server = server
        self._failed = failed
        self._done = done
        self._exchange: Exchange | None = None
        self._steps: Iterator[None] = iter(())
        self.held = 0
        """Bytes of the request, until it is done."""

    def take(self, exchange: Exchange, steps: Iterator[None], owner: Owner) -> bool:
        """Begin, in the rest of the turn. Return whether all is done."""
        self._exchange, self._steps, self.held = exchange, steps, exchange.request.size
        if self._go_on():
            return True
        self._server.context.rounds.wait(owner, self._in_turn)
        return False

    def end(self) -> None:
        """Drop the remaining steps: the client is gone. Stored records stay."""
        self._exchange, self._steps, self.held = None, iter(()), 0

    def _go_on(self) -> bool:
        assert self._exchange is not None
        budget = self._server.context.turns.budget
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
        context.turns.budget.begin(context.clock())
        try:
            is_done = self._go_on()
        finally:
            context.ingest.turn.gathered()
        if is_done:
            self._done()
        else:
            context.rounds.wait(owner, self._in_turn)
