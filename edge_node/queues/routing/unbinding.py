"""Bindings of queues and exchanges that were deleted: no message is routed by them, and they are removed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from weft.bounds import Owner
from weft.edge_node.queues.definitions import BindingDefinition
from weft.edge_node.queues.routing.exchange import Destination, Exchange

NOW_UNITS = 16
"""Units of bindings that are removed at once: most queues have no more."""
SLICE_UNITS = 128
"""Units of bindings that are removed before other owners have a turn: about a millisecond."""


class Unbinding:
    """Removal of bindings. Event loop's thread only.

    Their owners are charged with them until then: the bindings take memory, and look-ups pass them.

    Args:
        free: called with owner and exchange of each binding that is about to be removed.
        next_round: calls back at an owner's turn.
    """

    def __init__(
        self,
        free: Callable[[Owner, Exchange, BindingDefinition], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
    ) -> None:
        self._free = free
        self._next_round = next_round

    def begin(self, owner: Owner, to: Destination | None, exchange: Exchange | None = None) -> None:
        """Remove the bindings to a deleted queue or exchange, and from it.

        Args:
            owner: owner in whose turns they are removed.
            to: the queue or exchange; None where nothing is bound to it.
            exchange: the deleted exchange as a source of bindings.
        """
        taken = [] if to is None else [(source, to, source.take(to)) for source in list(to.sources)]
        self._go_on(owner, self._apart(taken, exchange), NOW_UNITS)

    def _go_on(self, owner: Owner, apart: Iterator[int], left: int) -> None:
        for units in apart:
            left -= units
            if left <= 0:
                self._next_round(owner, partial(self._go_on, owner, apart, SLICE_UNITS))
                return

    def _apart(
        self, taken: list[tuple[Exchange, Destination, dict[BindingDefinition, None]]], exchange: Exchange | None
    ) -> Iterator[int]:
        """Remove one binding at each step; yield its units."""
        for part in taken:
            yield from self._part(*part)
        while exchange is not None and exchange.bindings:
            to = next(reversed(exchange.bindings))
            yield from self._part(exchange, to, exchange.take(to))

    def _part(self, source: Exchange, to: Destination, bindings: dict[BindingDefinition, None]) -> Iterator[int]:
        while bindings:
            binding, _ = bindings.popitem()
            self._free(to.owner, source, binding)
            source.forget(binding, to)
            yield binding.units
