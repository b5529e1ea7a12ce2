"""Bound on what one published message can cost because of filters: nodes of the tree that it visits, and shares.

The *shape* of a filter says of each level whether it is ``+``. Of all filters of one shape, a topic visits at most one
node on each level: where the shape says ``+`` that node, else the one of the topic's own level. So a topic visits at
most as many nodes as the filters have shapes, their beginnings included, whatever their number. A thousand devices that
subscribe to ``+/their-name/commands`` have one shape; 65,536 filters of ``a`` and ``+`` in all orders have as many.

Shapes that real filters have are free: up to ``COMMON_LEVELS`` levels with up to ``COMMON_PLUS`` of them ``+``, which
are 833 nodes and no more. So they are there for every client. What is beyond is charged to the owner of the session.

Each share name is one message more to be delivered, and is charged to its owner as a node is.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.bounds import Owner, Refusals

COMMON_LEVELS = 16
COMMON_PLUS = 2

_Cost = int | str
"""A shape, as bits after a leading 1, of which 1 says ``+``; or the name of a share."""


class MatchCost:
    """Account of what the filters of all sessions can cost a message. Belongs to the event loop's thread."""

    def __init__(self, total: int, share: int, refusals: Refusals) -> None:
        """Start without any.

        Args:
            total: nodes beside the common ones that one topic may visit, because of all owners together.
            share: nodes beside the common ones, and shares, because of one owner.
            refusals: counts what is refused.
        """
        self.total = total
        self.share = share
        self._refusals = refusals
        self._owners: dict[Owner, dict[_Cost, int]] = {}
        """Owner -> what it is charged with -> how many of its subscriptions have that."""
        self._shapes: dict[int, int] = {}
        """Shape -> how many owners have it."""

    @property
    def used(self) -> int:
        """Return the nodes beside the common ones that one topic visits at most."""
        return len(self._shapes)

    def of(self, owner: Owner) -> int:
        """Return what an owner is charged with."""
        return len(self._owners.get(owner, ()))

    def fits(self, owner: Owner, topic_filter: str, share_name: str = "") -> bool:
        """Return whether an owner may have a subscription more; a refusal is counted.

        Args:
            topic_filter: without ``$share/{name}/``.
        """
        own = self._owners.get(owner, {})
        new = [cost for cost in _costs(topic_filter, share_name) if cost not in own]
        if not new:
            return True
        if len(own) + len(new) > self.share:
            setting = "limits.match_cost_per_user"
        elif len(self._shapes) + sum(type(cost) is int and cost not in self._shapes for cost in new) > self.total:
            setting = "limits.match_cost"
        else:
            return True
        self._refusals.note(
            setting, owner, f"no room for more filters as deep or with as many + as {topic_filter[:60]!r}"
        )
        return False

    def hold(self, owner: Owner, topic_filter: str, share_name: str = "") -> None:
        """Charge an owner with a subscription whatever the bounds say, as one that a restart found."""
        own = self._owners.get(owner)
        for cost in _costs(topic_filter, share_name):
            if own is None:
                own = self._owners[owner] = {}
            own[cost] = own.get(cost, 0) + 1
            if own[cost] == 1 and isinstance(cost, int):
                self._shapes[cost] = self._shapes.get(cost, 0) + 1

    def free(self, owner: Owner, topic_filter: str, share_name: str = "") -> None:
        """Give back what a subscription was charged with."""
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
