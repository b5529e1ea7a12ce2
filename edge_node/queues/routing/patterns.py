"""Keys of topic bindings in a tree. ``*`` is one word, ``#`` any number of them, also in the middle."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    __slots__ = ("bound", "branches", "loops")

    def __init__(self, *, loops: bool) -> None:
        self.branches: dict[str, _Node[T]] = {}
        self.bound: dict[T, int] = {}
        """Bound things with the key that ends here -> number of times."""
        self.loops = loops
        """True for ``#``, which takes further words."""


class PatternTree(Generic[T]):
    """Patterns and what is bound by them.

    A look-up follows all patterns side by side, word by word. It takes time for the nodes that match on the way, and
    for a ``#`` once, however many words it takes.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(loops=False)

    def add(self, pattern: str, bound: T) -> None:
        """Bind something by a pattern; the same again counts."""
        node = self._root
        for word in _words(pattern):
            found = node.branches.get(word)
            if found is None:
                found = node.branches[word] = _Node(loops=word == "#")
            node = found
        node.bound[bound] = node.bound.get(bound, 0) + 1

    def remove(self, pattern: str, bound: T) -> None:
        """Take back what ``add`` did, once."""
        node, way = self._root, list[tuple[_Node[T], str]]()
        for word in _words(pattern):
            way.append((node, word))
            node = node.branches[word]
        node.bound[bound] -= 1
        if not node.bound[bound]:
            del node.bound[bound]
        for parent, word in reversed(way):
            child = parent.branches[word]
            if child.bound or child.branches:
                break
            del parent.branches[word]

    def match(self, key: str) -> set[T]:
        """Return what is bound by patterns that match a key."""
        active: set[_Node[T]] = {self._root}
        loops = _Loops[T]()
        for word in key.split(".") if key else ():
            following = loops.after(active, word)
            for node in active:
                if not node.loops:
                    for branch in (word, "*"):
                        if branch != "#" and (found := node.branches.get(branch)) is not None:
                            following.add(found)
            active = following
            if not active and not loops.reached:
                break
        loops.reach(active)
        return {bound for node in active | loops.reached for bound in node.bound}


class _Loops(Generic[T]):
    """The ``#`` that a look-up has reached. Each takes all words that follow, so it is looked at once, and then what
    stands behind it waits for its word."""

    __slots__ = ("_waiting", "reached")

    def __init__(self) -> None:
        self.reached: set[_Node[T]] = set()
        self._waiting: dict[str, set[_Node[T]]] = {}

    def reach(self, nodes: set[_Node[T]]) -> None:
        """Take in those among some nodes, and behind them by ``#`` for no word."""
        for node in nodes:
            found = node if node.loops else node.branches.get("#")
            if found is not None and found not in self.reached:
                self.reached.add(found)
                for word, child in found.branches.items():
                    self._waiting.setdefault(word, set()).add(child)

    def after(self, active: set[_Node[T]], word: str) -> set[_Node[T]]:
        """Return the nodes behind ``#`` that a word leads to."""
        self.reach(active)
        if not self.reached:
            return set()
        return self._waiting.get(word, set()) | self._waiting.get("*", set())


def _words(pattern: str) -> list[str]:
    words = pattern.split(".") if pattern else []
    # `#.#` matches what `#` does: one of them, so that the tree has no chains to follow for nothing.
    return [word for at, word in enumerate(words) if word != "#" or not at or words[at - 1] != "#"]
