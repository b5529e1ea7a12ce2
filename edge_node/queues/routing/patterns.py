"""Keys of topic bindings in a tree. ``*`` is one word, ``#`` any number of them, also in the middle."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    __slots__ = ("bound", "loop", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] | None = None
        """Word -> node that follows it; None without any, as in most nodes."""
        self.star: _Node[T] | None = None
        self.loop: _Node[T] | None = None
        """Node of ``#``, which matches further words."""
        self.bound: dict[T, int] | None = None
        """Bound things with the key that ends here -> number of times."""

    def get(self, word: str) -> _Node[T] | None:
        """Return the node that follows a word of a pattern."""
        if word == "*":
            return self.star
        if word == "#":
            return self.loop
        return None if self.words is None else self.words.get(word)

    def set(self, word: str, node: _Node[T] | None) -> None:
        """Set the node that follows a word of a pattern; None removes it."""
        if word == "*":
            self.star = node
        elif word == "#":
            self.loop = node
        elif node is None:
            assert self.words is not None
            del self.words[word]
            if not self.words:
                self.words = None
        elif self.words is None:
            self.words = {word: node}
        else:
            self.words[word] = node

    @property
    def goes_on(self) -> bool:
        """Return whether a word follows."""
        return self.words is not None or self.star is not None

    @property
    def is_empty(self) -> bool:
        """Return whether no pattern needs the node."""
        return self.bound is None and self.loop is None and not self.goes_on


class PatternTree(Generic[T]):
    """Patterns and the things bound by them.

    A look-up follows all patterns side by side, word by word. It takes time for the nodes that match on the way, and
    for each ``#`` that is not the last word, with every word that follows it. ``look_up_cost`` bounds both.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self.steps = 0
        """Number of nodes that the last look-up passed."""

    def add(self, pattern: str, bound: T) -> None:
        """Bind something by a pattern; repeated calls are counted."""
        node = self._root
        for word in words_of(pattern):
            found = node.get(word)
            if found is None:
                found = _Node()
                node.set(word, found)
            node = found
        if node.bound is None:
            node.bound = {}
        node.bound[bound] = node.bound.get(bound, 0) + 1

    def remove(self, pattern: str, bound: T) -> None:
        """Undo one ``add``."""
        node, way = self._root, list[tuple[_Node[T], str]]()
        for word in words_of(pattern):
            way.append((node, word))
            found = node.get(word)
            assert found is not None, f"{pattern!r} is not bound"
            node = found
        assert node.bound is not None, f"{pattern!r} is not bound"
        node.bound[bound] -= 1
        if not node.bound[bound]:
            del node.bound[bound]
        if not node.bound:
            node.bound = None
        for parent, word in reversed(way):
            if not node.is_empty:
                break
            parent.set(word, None)
            node = parent

    def match(self, key: str) -> set[T]:
        """Return the things bound by patterns that match a key."""
        active = [self._root]
        loops: dict[_Node[T], None] = {}
        waiting: list[_Node[T]] = []
        steps = 0
        for word in key.split(".") if key else ():
            following: list[_Node[T]] = []
            for node in active:
                loop = node.loop
                if loop is not None and loop not in loops:
                    loops[loop] = None
                    if loop.goes_on:
                        waiting.append(loop)
            steps += len(active) + len(waiting)
            # A node has one parent, so each word reaches it once.
            for nodes in (active, waiting):
                for node in nodes:
                    if node.words is not None and (found := node.words.get(word)) is not None:
                        following.append(found)
                    if node.star is not None:
                        following.append(node.star)
            active = following
            if not active and not waiting:
                break
        ends = [*loops, *active]
        self.steps = steps + len(ends)
        ends += (node.loop for node in active if node.loop is not None and node.loop not in loops)
        return {bound for node in ends if node.bound is not None for bound in node.bound}


def words_of(pattern: str) -> list[str]:
    """Return the words of a pattern. ``#.#`` matches the same as ``#`` and is reduced to it, so that the tree has no
    redundant chains."""
    words = pattern.split(".") if pattern else []
    return [word for at, word in enumerate(words) if word != "#" or not at or words[at - 1] != "#"]
