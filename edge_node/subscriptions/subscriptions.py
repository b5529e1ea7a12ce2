"""Who gets what: subscriptions in a tree, and for each topic the plan of its deliveries, made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.edge_node.sessions.packets_out import OWN
from weft.protocols.mqtt.filter_tree import FilterTree
from weft.protocols.mqtt.packets import Subscription

if TYPE_CHECKING:
    from weft.edge_node.sessions.client_window import Outbound
    from weft.edge_node.subscriptions.shared_subscription import Group

PLANS_MAX = 10_000
"""Topics whose plans are remembered; when there are more, all are forgotten and made anew."""
PLAN_TOPIC_BYTES_MAX = 512
"""Plans of longer topics are made every time, so that what is remembered stays small whatever clients send."""


class Entry:
    """One subscription of one client. Compared by identity."""

    __slots__ = ("filter", "identifier", "options", "outbound")

    def __init__(self, outbound: Outbound, topic_filter: str, options: Subscription, identifier: int | None) -> None:
        self.outbound = outbound
        self.filter = topic_filter
        """What topics are matched against: without ``$share/{name}/``."""
        self.options = options
        self.identifier = identifier


class Grant:
    """What one client is to get of one topic: all its subscriptions that match, as one delivery (section 3.3.4)."""

    __slots__ = ("group", "identifiers", "kind", "no_local", "outbound", "qos", "retain_as_published")

    def __init__(self, entries: Sequence[Entry], group: Group | None = None) -> None:
        self.outbound = entries[0].outbound
        self.group = group
        self.qos = max(entry.options.qos for entry in entries)
        self.no_local = all(entry.options.no_local for entry in entries)
        self.retain_as_published = any(entry.options.retain_as_published for entry in entries)
        self.identifiers = tuple(entry.identifier for entry in entries if entry.identifier)
        self.kind = OWN if self.identifiers else self.outbound.wire.kind


class Plan:
    """The deliveries of one topic."""

    __slots__ = ("grants", "groups")

    def __init__(self, grants: tuple[Grant, ...], groups: tuple[Group, ...]) -> None:
        self.grants = grants
        self.groups = groups

    @property
    def live(self) -> bool:
        """Whether anybody is subscribed."""
        return bool(self.grants or self.groups)

    @property
    def wanted(self) -> bool:
        """Whether a session that survives its connection wants the topic's messages at QoS 1 or 2."""
        return any(grant.qos and grant.outbound.persistent for grant in self.grants) or any(
            group.persistent for group in self.groups
        )

    @property
    def marked(self) -> bool:
        """Whether the log must say who published: a session that may read it there does not want its own messages. Also
        one that ends with its connection reads there when it is slow."""
        return any(grant.no_local and grant.qos for grant in self.grants)

    def grant_of(self, outbound: Outbound) -> Grant | None:
        """What one client gets."""
        return next((grant for grant in self.grants if grant.outbound is outbound), None)


class Subscriptions:
    """All subscriptions of the node. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._tree: FilterTree[Entry | Group] = FilterTree()
        self.plans: dict[bytes, Plan] = {}
        """Those made already; others are to be asked for with ``plan``."""
        self.count = 0
        """Subscriptions of all clients now; a group counts once for all its members."""
        self._watchers: list[Callable[[], None]] = []
        self._asked = False
        """Whether a plan was made since the last change."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after changes of who gets what, if anybody has asked for a plan since the one before: of a packet
        with a thousand filters it hears once."""
        self._watchers.append(callback)

    def add(self, key: Entry | Group) -> None:
        """Take in a subscription, or a group that all its members share. Its filter must be valid."""
        self._tree.add(key.filter, key)
        self.count += 1
        self.changed()

    def remove(self, key: Entry | Group) -> None:
        """Take one out that was added."""
        self._tree.remove(key.filter, key)
        self.count -= 1
        self.changed()

    def changed(self) -> None:
        """What somebody gets has changed: every plan is made anew."""
        if not self._asked:
            return
        self._asked = False
        self.plans.clear()
        for callback in self._watchers:
            callback()

    def plan(self, topic: bytes) -> Plan:
        """The deliveries of a valid topic."""
        found = self.plans.get(topic)
        if found is None:
            found = self._make(topic)
            if len(self.plans) >= PLANS_MAX:
                self.plans.clear()
            if len(topic) <= PLAN_TOPIC_BYTES_MAX:
                self.plans[topic] = found
        return found

    def entries(self, topic: bytes, outbound: Outbound) -> list[Entry]:
        """One client's own subscriptions that match a valid topic."""
        return [key for key in self._tree.match(topic.decode()) if isinstance(key, Entry) and key.outbound is outbound]

    def _make(self, topic: bytes) -> Plan:
        self._asked = True
        entries: dict[Outbound, list[Entry]] = {}
        groups: list[Group] = []
        for key in self._tree.match(topic.decode()):
            if isinstance(key, Entry):
                entries.setdefault(key.outbound, []).append(key)
            else:
                groups.append(key)
        readable = [Grant(of_one) for outbound, of_one in entries.items() if outbound.may_read(topic)]
        return Plan(tuple(readable), tuple(groups))
