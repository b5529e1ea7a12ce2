"""The figures of the product's modules count what they say."""

from __future__ import annotations

import pytest

from tests.architecture.measures import lines_of, measure, median_module, report, source_of

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
    counted = lines_of(source_of(SOURCE))._asdict()
    assert counted == {"code": 13, "imports": 3, "docstrings": 2, "comments": 1, "blank": 9}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""One\n\ntwo."""\n\nA = 1  # counts\n"""What it is."""\n', 1),
        ("# alone\n\ndef f():\n    # why\n    return (\n        1\n    )\n", 4),
        ('A = """\none\n\n# two\n"""\n', 5),
        ('A = (\n    "one"\n    # why\n    "two"\n)\n', 4),
        ('class C:\n    """C."""\n\n    a: int\n    """A.\n    """\n\n    def f(self):\n        """F."""\n', 3),
    ],
)
def test_lines_of_code_are_counted(text: str, lines: int) -> None:
    assert lines_of(source_of(text)).code == lines


def test_half_of_the_lines_are_in_modules_of_at_most_that_of_the_median_line() -> None:
    assert median_module([100, 10, 10, 10]) == 100
    assert median_module([30, 10, 20]) == 20
    assert median_module([]) == 0


def test_what_ties_fragments_together_is_found() -> None:
    found = measure({"room.node": source_of(SOURCE)})
    assert found.files == 1
    assert found.callback_arguments == 1
    assert {kind: [each.key for each in those] for kind, those in found.exceptions.items() if those} == {
        "contracts": ["room: Log"],
        "forwarders": ["room: Node.keep"],
        "late": ["room: __init__: self.log.last"],
        "constructors": ["room: Node"],
    }
    assert "forwarders                                       1" in report(found)
