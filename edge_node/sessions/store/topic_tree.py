"""Search of topics by filter: a tree of topic levels (MQTT 5.0 section 4.7)."""

from __future__ import annotations

from collections.abc import Iterator


class _TopicNode:
    __slots__ = ("children", "topic")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode] | None = None
        self.topic: bytes | None = None


class TopicTree:
    """A set of valid topics.

    The cost of a search depends on the levels that the filter's wildcards reach, not on the size of the set. No method
    recurses: a topic of thousands of levels cannot exhaust the stack.
    """

    def __init__(self) -> None:
        self._root = _TopicNode()

    def add(self, topic: bytes) -> None:
        """Add a topic, UTF-8."""
        node = self._root
        for level in topic.decode().split("/"):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _TopicNode()
            node = child
        node.topic = topic

    def remove(self, topic: bytes) -> None:
        """Remove a topic, which must be in the set, and branches left empty."""
        path: list[tuple[_TopicNode, str]] = []
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
        """Return the topics that a valid filter matches; topics that begin with ``$`` only if the filter does too."""
        return [topic for topic in self.walk(topic_filter) if topic is not None]

    def walk(self, topic_filter: str) -> Iterator[bytes | None]:
        """Yield the topics that a valid filter matches, in steps of equal cost: a topic, or None for a step without a
        match.

        The tree may change between two steps: a topic added meanwhile may be missing, a removed one may be yielded.
        """
        levels = topic_filter.split("/")
        rest = levels[-1] == "#"  # "sport/#" matches "sport" too
        if rest:
            levels.pop()
        # Depth first: only the siblings along one path wait, not a whole level of the tree.
        waiting: list[tuple[Iterator[_TopicNode], int]] = [(iter((self._root,)), 0)]
        while waiting:
            nodes, depth = waiting[-1]
            node = next(nodes, None)
            if node is None:
                waiting.pop()
                continue
            is_match = depth >= len(levels)
            if node.children and (rest or not is_match):
                waiting.append((_children(node, "+" if is_match else levels[depth], hidden=not depth), depth + 1))
            yield node.topic if is_match else None


def _children(node: _TopicNode, level: str, *, hidden: bool) -> Iterator[_TopicNode]:
    children = node.children or {}
    if level != "+":
        return iter((children[level],) if level in children else ())
    if hidden:
        return iter([child for name, child in children.items() if not name.startswith("$")])  # [MQTT-4.7.2-1]
    return iter(list(children.values()))
