"""Fields of a schema by their paths: a payload is walked once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.config.payload_schema.paths import Path


@dataclass(slots=True)
class Node:
    """A place in payloads."""

    path: Path
    fields: list[int] = field(default_factory=list)
    """Numbers of the fields that have their values here."""
    names: dict[str, Node] = field(default_factory=dict)
    """Places in an object, by name."""
    places: dict[int, Node] = field(default_factory=dict)
    """Places in an array, counted from 0."""

    def inside(self) -> Iterator[Node]:
        """Yield the nodes directly below this one."""
        yield from self.names.values()
        yield from self.places.values()

    def below(self) -> Iterator[int]:
        """Yield the numbers of the fields here and below."""
        yield from self.fields
        for node in self.inside():
            yield from node.below()


def tree(paths: Sequence[Path]) -> Node:
    """Return the root of a tree of paths. The fields are numbered in the order of ``paths``."""
    root = Node(())
    for number, path in enumerate(paths):
        node = root
        for at, step in enumerate(path, 1):
            if isinstance(step, int):
                node = node.places.setdefault(step, Node(path[:at]))
            else:
                node = node.names.setdefault(step, Node(path[:at]))
        node.fields.append(number)
    return root
