"""Subscriptions by filter: a tree of filter levels, walked once per topic (MQTT 3.1.1 and 5.0 section 4.7)."""

from __future__ import annotations

from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class _Node(Generic[Entry]):
    __slots__ = ("children", "entries")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Entry]] = {}
        self.entries: dict[Entry, None] = {}


class FilterTree(Generic[Entry]):
    """Filters with the entries of each. Filters must be valid ones, without ``$share/{name}/``.

    An entry is any hashable object for a subscription: the caller stores the requested and granted options in it, and
    one entry may represent all members of a shared subscription.

    The cost of ``match`` depends on the topic's levels and on the filters that match its beginning, not on the number
    of filters. Depth is walked in a loop: a filter of thousands of levels cannot exhaust the stack.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[Entry] = _Node()

    def add(self, topic_filter: str, entry: Entry) -> None:
        """Add an entry at a filter; do nothing when it is there already."""
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.entries[entry] = None

    def remove(self, topic_filter: str, entry: Entry) -> None:
        """Remove an entry; do nothing if it is not there. Empty branches are removed."""
        node = self._root
        path: list[tuple[_Node[Entry], str]] = []
        for level in topic_filter.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return
            node = child
        node.entries.pop(entry, None)
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.entries or child.children:
                return
            del parent.children[level]

    def match(self, topic: str) -> list[Entry]:
        """Return the entries of all filters that match a topic; an entry of several filters is returned for each."""
        found: list[Entry] = []
        nodes = [self._root]
        hidden = topic.startswith("$")  # no wildcard on the first level matches these [MQTT-4.7.2-1]
        for level in topic.split("/"):
            following: list[_Node[Entry]] = []
            for node in nodes:
                children = node.children
                if level in children:
                    following.append(children[level])
                if not hidden:
                    if "+" in children:
                        following.append(children["+"])
                    if "#" in children:
                        found += children["#"].entries
            hidden = False
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            found += node.entries
            if "#" in node.children:  # "sport/#" matches "sport" too (section 4.7.1.2)
                found += node.children["#"].entries
        return found

    def __bool__(self) -> bool:
        return bool(self._root.children)
