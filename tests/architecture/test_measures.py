"""The figures of the product's modules count what they say."""

from __future__ import annotations

from tests.architecture.measures import lines_of, measure, median_module

SOURCE = '''"""A module."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Log(Protocol):
    def append(self, row: bytes) -> None: ...


class OwnLog:
    def append(self, row: bytes) -> None:
        self.last = row


class Node:
    # Nine arguments are too many.
    def __init__(self, a, b, c, d, e, f, g, h, on_end: Callable[[], None]) -> None:
        self.log = OwnLog()
        self.log.last = b""

    def keep(self, row: bytes) -> None:
        """Append a row."""
        self.log.append(row)

    def keep_twice(self, row: bytes) -> None:
        self.log.append(row + row)
'''


def test_lines_are_counted_by_kind() -> None:
    assert lines_of(SOURCE)._asdict() == {"code": 13, "imports": 3, "docstrings": 2, "comments": 1, "blank": 9}


def test_half_of_the_lines_are_in_modules_of_at_most_that_of_the_median_line() -> None:
    assert median_module([100, 10, 10, 10]) == 100
    assert median_module([30, 10, 20]) == 20
    assert median_module([]) == 0


def test_what_ties_fragments_together_is_found() -> None:
    found = measure({"room.node": SOURCE})
    assert found.files == 1
    assert found.contracts == ["room.node.Log"]
    assert found.forwarders == ["room.node.Node.keep"]
    assert found.callbacks == ["room.node.Node: on_end"]
    assert found.late == ["room.node: self.log.last"]
    assert found.constructors == ["room.node.Node"]
