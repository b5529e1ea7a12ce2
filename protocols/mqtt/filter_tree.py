"""Who subscribed to what: a tree of filter levels, walked once per topic (MQTT 3.1.1 section 4.7)."""

from __future__ import annotations

from typing import Generic, TypeVar

Subscriber = TypeVar("Subscriber")


class _Node(Generic[Subscriber]):
    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Subscriber]] = {}
        self.subscribers: dict[Subscriber, int] = {}


class FilterTree(Generic[Subscriber]):
    """Filters with the subscribers (hashable) of each and the QoS they were granted. Filters must be valid ones.

    The cost of ``match`` depends on the topic's levels and on the filters that match its beginning, not on how many
    filters there are. Depth is walked in a loop: a filter of thousands of levels cannot exhaust the stack.
    """

    def __init__(self) -> None:
        self._root: _Node[Subscriber] = _Node()

    def add(self, topic_filter: str, subscriber: Subscriber, qos: int) -> None:
        """Subscribe, or change the QoS of a subscription [MQTT-3.8.4-3]."""
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.subscribers[subscriber] = qos

    def remove(self, topic_filter: str, subscriber: Subscriber) -> None:
        """End a subscription; nothing happens when there is none. Branches left empty are cut off."""
        node = self._root
        path: list[tuple[_Node[Subscriber], str]] = []
        for level in topic_filter.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return
            node = child
        node.subscribers.pop(subscriber, None)
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.subscribers or child.children:
                return
            del parent.children[level]

    def match(self, topic: str) -> dict[Subscriber, int]:
        """The subscribers of a topic, each with the highest QoS among its filters that match [MQTT-3.3.5-1]."""
        found: dict[Subscriber, int] = {}
        nodes = [self._root]
        hidden = topic.startswith("$")  # no wildcard on the first level matches these [MQTT-4.7.2-1]
        for level in topic.split("/"):
            following: list[_Node[Subscriber]] = []
            for node in nodes:
                children = node.children
                if level in children:
                    following.append(children[level])
                if not hidden:
                    if "+" in children:
                        following.append(children["+"])
                    if "#" in children:
                        _collect(found, children["#"])
            hidden = False
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            _collect(found, node)
            if "#" in node.children:  # "sport/#" matches "sport" too (section 4.7.1.2)
                _collect(found, node.children["#"])
        return found

    def __bool__(self) -> bool:
        return bool(self._root.children)


def _collect(found: dict[Subscriber, int], node: _Node[Subscriber]) -> None:
    for subscriber, qos in node.subscribers.items():
        if qos > found.get(subscriber, -1):
            found[subscriber] = qos
