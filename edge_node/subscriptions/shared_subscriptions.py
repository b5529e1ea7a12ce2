"""All shared subscriptions, and their members' joining and leaving (MQTT 5.0 section 4.8.2)."""

from __future__ import annotations

from weft.edge_node.subscriptions.shared_subscription import SharedParts, SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription, Member
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.topics import Share


class SharedSubscriptions:
    """Shared subscriptions by name. Belongs to the event loop's thread."""

    def __init__(self, subscriptions: Subscriptions, parts: SharedParts) -> None:
        """Start without any."""
        self._subscriptions = subscriptions
        self._parts = parts
        self._by_name: dict[str, SharedSubscription] = {}

    def all(self) -> list[SharedSubscription]:
        """Return all shared subscriptions."""
        return list(self._by_name.values())

    def take_moved(self) -> list[SharedSubscription]:
        """Return the subscriptions that have delivered to members since the last call."""
        moved = list(self._parts.moved)
        self._parts.moved.clear()
        return moved

    def has_moved(self, shared: SharedSubscription) -> bool:
        """Return whether a subscription has delivered to members since ``take_moved``."""
        return shared in self._parts.moved

    def get(self, name: str) -> SharedSubscription | None:
        """Return a shared subscription by its filter as clients write it."""
        return self._by_name.get(name)

    def join(self, member: Member, subscription: ClientSubscription, share: Share) -> SharedSubscription:
        """Make a client a member, or change its options."""
        name = subscription.options.filter
        shared = self._by_name.get(name)
        if shared is None:
            shared = self._by_name[name] = SharedSubscription(share.name, share.filter, self._parts, member.owner)
            shared.join(member, subscription)
            self._subscriptions.add(shared)
        else:
            shared.join(member, subscription)
            self._subscriptions.changed()
        return shared

    def leave(self, member: Member, shared: SharedSubscription) -> bool:
        """Remove a client that unsubscribes, or whose session ends. Return whether any member is left."""
        if shared.leave(member):
            return True
        self._by_name.pop(shared.name, None)
        self._parts.moved.discard(shared)
        self._subscriptions.remove(shared)
        return False
