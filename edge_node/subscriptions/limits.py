"""Bounds on subscriptions: the memory of messages in flight and waiting, and the cost that filters add to one
message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from weft.bounds import Owner, Quota, Refusals

# Memory of messages in flight and waiting: bounds for one client, for one owner and for all clients together.

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


# Bound on the cost that filters add to one published message: visited nodes of the tree, and shares.
#
# The *shape* of a filter is the list of its levels, each ``+`` or not. Among all filters of one shape, a topic visits
# at most one node on each level: the node of ``+`` where the shape has it, else the one of the topic's own level. So
# a topic visits at most as many nodes as the filters and their prefixes have shapes, for any number of filters. A
# thousand devices that subscribe to ``+/their-name/commands`` have one shape; 65,536 filters of ``a`` and ``+`` in
# all orders have 65,536.
#
# Shapes that real filters have are free: up to ``COMMON_LEVELS`` levels with up to ``COMMON_PLUS`` of them ``+``,
# which are at most 833 nodes. So every client may use them. Further shapes are charged to the owner of the session.
#
# Each share name is one more message to deliver, and is charged to its owner like a node.

COMMON_LEVELS = 16
COMMON_PLUS = 2

_Cost = int | str
"""A shape, as bits after a leading 1, with 1 for ``+``; or the name of a share."""


class MatchCost:
    """Account of the cost that the filters of all sessions add to a message. Belongs to the event loop's thread."""

    def __init__(self, quota: Quota, refusals: Refusals) -> None:
        """Start without any.

        Args:
            quota: nodes beside the common ones that one topic may visit, because of all owners together and, with its
                share names, of one.
            refusals: counts refusals.
        """
        self.quota = quota
        self._refusals = refusals
        self._owners: dict[Owner, dict[_Cost, int]] = {}
        """Owner -> its costs -> number of its subscriptions with each."""
        self._shapes: dict[int, int] = {}
        """Shape -> number of owners that have it."""

    @property
    def used(self) -> int:
        """Return the maximum number of nodes beside the common ones that one topic visits."""
        return len(self._shapes)

    def of(self, owner: Owner) -> int:
        """Return the cost charged to an owner."""
        return len(self._owners.get(owner, ()))

    def fits(self, owner: Owner, topic_filter: str, share_name: str = "") -> bool:
        """Return whether an owner may have one more subscription, and count a refusal.

        Args:
            topic_filter: without ``$share/{name}/``.
        """
        own = self._owners.get(owner, {})
        new = [cost for cost in _costs(topic_filter, share_name) if cost not in own]
        if not new:
            return True
        is_share = len(own) + len(new) > self.quota.share
        nodes = len(self._shapes) + sum(type(cost) is int and cost not in self._shapes for cost in new)
        if not is_share and nodes <= self.quota.total:
            return True
        self._refusals.note(
            self.quota.bound(is_share=is_share),
            owner,
            f"no room for more {self.quota.what} as deep or with as many + as {topic_filter[:60]!r}",
        )
        return False

    def hold(self, owner: Owner, topic_filter: str, share_name: str = "") -> None:
        """Charge an owner with a subscription regardless of the bounds, for one that a restart found."""
        own = self._owners.get(owner)
        for cost in _costs(topic_filter, share_name):
            if own is None:
                own = self._owners[owner] = {}
            own[cost] = own.get(cost, 0) + 1
            if own[cost] == 1 and isinstance(cost, int):
                self._shapes[cost] = self._shapes.get(cost, 0) + 1

    def free(self, owner: Owner, topic_filter: str, share_name: str = "") -> None:
        """Release the cost of a subscription."""
        own = self._owners.get(owner)
        if own is None:
            return
        for cost in _costs(topic_filter, share_name):
            own[cost] -= 1
            if own[cost]:
                continue
            del own[cost]
            if isinstance(cost, int):
                self._shapes[cost] -= 1
                if not self._shapes[cost]:
                    del self._shapes[cost]
        if not own:
            del self._owners[owner]


def _costs(topic_filter: str, share_name: str) -> Iterator[_Cost]:
    if share_name:
        yield share_name
    if topic_filter.count("/") < COMMON_LEVELS and topic_filter.count("+") <= COMMON_PLUS:
        return
    shape, plus = 1, 0
    for depth, level in enumerate(topic_filter.split("/"), 1):
        if level == "#":
            return
        shape <<= 1
        if level == "+":
            shape |= 1
            plus += 1
        if depth > COMMON_LEVELS or plus > COMMON_PLUS:
            yield shape
