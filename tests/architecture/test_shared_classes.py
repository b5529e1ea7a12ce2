"""Tests share their nodes and clients: one class has the name, and what is another thing has a name of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.house import nodes, place, sources

NAMES = ("Node", "Client")


def classes(name: str, *files: tuple[str, tuple[ast.AST, ...]]) -> Iterator[str]:
    """Files in which a class has the name."""
    for file, found in files:
        yield from (file for node in found if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_one_class_has_the_name(name: str) -> None:
    files = ((place(path), nodes(path)) for path in sources("tests"))
    found = list(classes(name, *files))
    assert len(found) <= 1, f"use one of them, or say what the others are: {found}"


def test_a_second_class_is_found() -> None:
    two = tuple(ast.walk(ast.parse("class Node:\n    class Client:\n        pass\nclass Node:\n    pass")))
    assert list(classes("Node", ("a.py", two))) == ["a.py", "a.py"]
    assert list(classes("Client", ("a.py", two))) == ["a.py"]
