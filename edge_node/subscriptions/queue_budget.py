"""Memory of messages in flight and waiting: bounds for one client, for one owner and for all clients together."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from weft.bounds import Owner

MESSAGE_OVERHEAD_BYTES = 200
"""Approximate memory of a waiting message besides its payload: its topic, tuple and places in the containers."""


class QueueBudget:
    """Bytes that the windows and queues of all clients may take together. Only ``QueueAccount`` changes it."""

    __slots__ = ("_shares", "bytes_max", "share_bytes_max", "used", "waiters", "waiting")

    def __init__(self, bytes_max: int, share_bytes_max: int | None = None) -> None:
        """Start with nothing taken.

        Args:
            share_bytes_max: bytes of one owner; None for the whole budget.
        """
        self.bytes_max = bytes_max
        self.share_bytes_max = bytes_max if share_bytes_max is None else min(bytes_max, share_bytes_max)
        self.used = 0
        self.waiting: dict[Callable[[], None], None] = {}
        """Callbacks of accounts that wait for room, the longest waiting first."""
        self.waiters = 0
        """Number of callbacks here and in all shares."""
        self._shares: WeakValueDictionary[Owner, QueueShare] = WeakValueDictionary()
        """Owner -> its share, as long as it has an account."""

    def share_of(self, owner: Owner | None) -> QueueShare:
        """Return the share of an owner; for the node, a new share that no other account is part of."""
        share = None if owner is None else self._shares.get(owner)
        if share is None:
            share = QueueShare()
            if owner is not None:
                self._shares[owner] = share
        return share


class QueueShare:
    """Bytes that the windows and queues of one owner's clients take."""

    __slots__ = ("__weakref__", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: dict[Callable[[], None], None] = {}
        """Callbacks of accounts that wait for room in the owner's share."""


class QueueAccount:
    """Part of the budget that one client, or one shared subscription, has taken, with a bound of its own.

    Each call updates all counts, so that they stay consistent.
    """

    __slots__ = ("_budget", "_bytes_max", "_share", "owner", "used")

    def __init__(self, budget: QueueBudget, bytes_max: int, owner: Owner | None = None) -> None:
        self._budget = budget
        self._share = budget.share_of(owner)
        self._bytes_max = bytes_max
        self.owner = owner
        self.used = 0

    def take(self, size: int) -> None:
        """Count bytes that are held from now on."""
        self.used += size
        self._share.used += size
        self._budget.used += size

    def free(self, size: int) -> None:
        """Count bytes that are held no longer."""
        self.used -= size
        self._share.used -= size
        self._budget.used -= size
        if self._budget.waiters:
            self._wake()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call back once, when another account has freed what this one lacks; another account may have taken it by
        then."""
        budget, share = self._budget, self._share
        waiting = share.waiting if share.used >= budget.share_bytes_max else budget.waiting
        if callback not in waiting:
            waiting[callback] = None
            budget.waiters += 1

    def _wake(self) -> None:
        budget, share = self._budget, self._share
        for waiting, is_full in (
            (share.waiting, share.used >= budget.share_bytes_max),
            (budget.waiting, budget.used >= budget.bytes_max),
        ):
            if waiting and not is_full:
                callbacks = list(waiting)
                budget.waiters -= len(callbacks)
                waiting.clear()
                for callback in callbacks:
                    callback()

    def fits(self, size: int) -> bool:
        """Return whether so many bytes more are within all bounds."""
        budget = self._budget
        return (
            self.used + size <= self._bytes_max
            and budget.used + size <= budget.bytes_max
            and self._share.used + size <= budget.share_bytes_max
        )

    def is_full(self) -> bool:
        """Return whether a bound is reached: then nothing more is sent before an acknowledgement."""
        budget = self._budget
        return (
            self.used >= self._bytes_max
            or budget.used >= budget.bytes_max
            or self._share.used >= budget.share_bytes_max
        )
