"""Topics, to be found by filter: a tree of topic levels (MQTT 5.0 section 4.7)."""

from __future__ import annotations

from typing import Any


class _Node:
    __slots__ = ("children", "topic")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.topic: bytes | None = None


class TopicTree:
    """A set of valid topics.

    ``match`` costs what the filter's wildcards reach, not what the set holds. Nothing recurses: a topic of thousands of
    levels cannot exhaust the stack.
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, topic: bytes) -> None:
        """Add a topic, UTF-8."""
        node = self._root
        for level in topic.decode().split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.topic = topic

    def remove(self, topic: bytes) -> None:
        """Take a topic out, which must be there. Branches left empty are cut off."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.decode().split("/"):
            path.append((node, level))
            assert node.children is not None
            node = node.children[level]
        node.topic = None
        while path and node.topic is None and not node.children:
            node, level = path.pop()
            assert node.children is not None
            del node.children[level]

    def match(self, topic_filter: str) -> list[bytes]:
        """Return the topics that a valid filter matches; those that begin with ``$`` only if the filter does too."""
        found: list[bytes] = []
        nodes = [self._root]
        levels = topic_filter.split("/")
        for depth, level in enumerate(levels):
            if level == "#":
                found += [node.topic for node in nodes if node.topic is not None]  # "sport/#" matches "sport" too
                _below(nodes, found, hidden=depth == 0)
                return found
            nodes = _children(nodes, level, hidden=depth == 0)
            if not nodes:
                return found
        found += [node.topic for node in nodes if node.topic is not None]
        return found


def _children(nodes: list[_Node], level: str, *, hidden: bool) -> list[_Node]:
    if level != "+":
        return [node.children[level] for node in nodes if node.children and level in node.children]
    return [
        child
        for node in nodes
        if node.children
        for name, child in node.children.items()
        if not (hidden and name.startswith("$"))  # [MQTT-4.7.2-1]
    ]


def _below(nodes: list[_Node], found: list[bytes], *, hidden: bool) -> None:
    waiting: list[Any] = _children(nodes, "+", hidden=hidden)
    while waiting:
        node = waiting.pop()
        if node.topic is not None:
            found.append(node.topic)
        if node.children:
            waiting.extend(node.children.values())
