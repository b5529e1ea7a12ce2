"""Slots for admitted clients: at most ``limits.connections``, and a short wait when all are taken."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Generic, TypeVar

WAIT_S = 0.5
"""Longest wait of a client for the slot of one that leaves."""

Holder = TypeVar("Holder")


class ClientSlots(Generic[Holder]):
    """Holders of slots, and clients that wait for one. Belongs to the event loop's thread."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._holders: set[Holder] = set()
        self._waiting: dict[Holder, asyncio.Future[None]] = {}
        """Waiting clients, in order of arrival."""

    def __len__(self) -> int:
        return len(self._holders)

    def take(self, holder: Holder) -> None:
        """Take a slot, free or not: for a holder after ``get``, or one that has just displaced another."""
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """Free a slot, or stop waiting for one; do nothing without either."""
        waits = self._waiting.pop(holder, None)
        if waits is not None and not waits.done():
            waits.set_result(None)
        if holder in self._holders:
            self._holders.discard(holder)
            if self._waiting:
                # Not at once: a client that displaces another takes that one's slot right after it was left. If another
                # client got it in between, the number of clients would grow with each displacement.
                asyncio.get_running_loop().call_soon(self._hand_out)

    async def get(self, holder: Holder) -> bool:
        """Take a slot; False when none became free within ``WAIT_S``, or the holder has left meanwhile."""
        if len(self._holders) < self._slots_max and not self._waiting:
            self._holders.add(holder)
            return True
        # Wait before a refusal: clients that lose their connection come back at once, often before the node sees the
        # end of their old connection. A pause in reading, a closing TLS or WebSocket connection or a proxy may delay
        # that end. The node has room for them.
        granted = self._waiting[holder] = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(WAIT_S):
                    await granted
            finally:
                self._waiting.pop(holder, None)
        return holder in self._holders

    def _hand_out(self) -> None:
        while self._waiting and len(self._holders) < self._slots_max:
            holder = next(iter(self._waiting))
            granted = self._waiting.pop(holder)
            if not granted.done():
                self._holders.add(holder)
                granted.set_result(None)
