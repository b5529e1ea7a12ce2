"""Bindings of queues and exchanges that were deleted: no message goes by them, and they are taken apart in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from weft.bounds import Owner
from weft.edge_node.queues.definitions import BindingDefinition
from weft.edge_node.queues.routing.exchange import Destination, Exchange

NOW_UNITS = 16
"""Units of bindings that are taken apart at once: most queues have no more."""
SLICE_UNITS = 128
"""Units of bindings that are taken apart before it is others' turn: about a millisecond."""


class Unbinding:
    """Takes bindings apart. Event loop's thread only.

    Their owners are charged with them until then: they take memory, and look-ups pass them.

    Args:
        free: called with owner and exchange of each binding that is about to be taken apart.
        next_round: calls back when it is an owner's turn.
    """

    def __init__(
        self,
        free: Callable[[Owner, Exchange, BindingDefinition], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
    ) -> None:
        self._free = free
        self._next_round = next_round

    def begin(self, owner: Owner, to: Destination | None, exchange: Exchange | None = None) -> None:
        """Take apart what leads to something that is no more, and what leads from it.

        Args:
            owner: whose turns it takes.
            to: the queue or exchange; None where nothing is bound to it.
            exchange: the same as a source of bindings.
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
        """Take one binding apart each time; yield its units."""
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
