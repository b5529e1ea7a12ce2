"""The table of MQTT's normative statements: read the page, find the tests, write the page.

A test names statements in its docstring, its class's or its comments: ``v5 [MQTT-3.1.2-24], v3 [MQTT-3.1.2-22]``. What
follows ``v3`` is MQTT 3.1.1's numbering, what follows ``v5`` MQTT 5.0's, and a number with neither before it is both's.
``./run fix`` fills the page's last column from what it finds.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "mqtt-conformance.md"
NOT_COVERED = "not covered"
TESTS_NAMED_MAX = 3
"""Further tests of a statement are counted, not named."""

_VERSIONS = {"## MQTT 5.0": 5, "## MQTT 3.1.1": 3}
_ROW = re.compile(r"\| \[MQTT-([0-9.]+-[0-9]+)\] \| (.*) \| (.*) \|")
_TAG = re.compile(r"\b(v3|v5)\b|\[MQTT-([0-9]+\.[0-9]+\.[0-9]+-[0-9]+)\]")
_NAMED = re.compile(r"`([^`]+\.py)::([^`]+)`")
_FIRST = ("conformance/", "interop/", "edge_node/", "protocols/")
"""Whose tests are named first: those that speak to a server before those of its parts."""

Statement = tuple[int, str]


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    version: int
    number: str
    text: str
    covered_by: str


def rows(page: str) -> list[Row]:
    """The statements of the page, in its order."""
    found: list[Row] = []
    version = 0
    for line in page.splitlines():
        version = _VERSIONS.get(line, version)
        match = _ROW.fullmatch(line)
        if match:
            found.append(Row(version, *match.groups()))
    return found


def named_tests(row: Row) -> list[tuple[str, str]]:
    """(path below ``tests``, name of the test) of a row."""
    return _NAMED.findall(row.covered_by)


def tags(text: str) -> Iterator[Statement]:
    """The statements that a docstring or comment names."""
    versions: tuple[int, ...] = (3, 5)
    for version, number in _TAG.findall(text):
        if version:
            versions = (int(version[1]),)
        else:
            yield from ((each, number) for each in versions)


def names_in(path: Path) -> dict[str, set[Statement]]:
    """The tests of a file, also those that are state machines, and what each names."""
    source = path.read_text()
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, set[Statement]] = {}
    for node in ast.parse(source).body:
        for test, prefix in _tests(node):
            first = min([test.lineno, *(each.lineno for each in test.decorator_list)])
            inside = [text for line, text in comments.items() if first <= line <= (test.end_lineno or first)]
            words = [ast.get_docstring(test) or "", *inside]
            found[prefix + test.name] = {tag for text in words for tag in tags(text)}
    return found


def _tests(node: ast.stmt) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
        yield node, ""
    elif isinstance(node, ast.ClassDef):
        yield node, ""
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test_"):
                yield inner, f"{node.name}::"


def coverage() -> dict[Statement, list[str]]:
    """Statement -> the tests that name it."""
    found: dict[Statement, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        below = path.relative_to(ROOT / "tests").as_posix()
        for name, statements in names_in(path).items():
            for statement in statements:
                found.setdefault(statement, []).append(f"{below}::{name}")
    for names in found.values():
        names.sort(key=lambda name: (not name.startswith(_FIRST[0]), not name.startswith(_FIRST), name))
    return found


def filled(page: str) -> str:
    """The page with its last column as the tests have it. What does not apply stays as it is said."""
    covered = coverage()
    lines: list[str] = []
    version = 0
    for line in page.splitlines():
        version = _VERSIONS.get(line, version)
        match = _ROW.fullmatch(line)
        if match and not match[3].startswith("does not apply"):
            names = covered.get((version, match[1]), [])
            shown = [f"`{name}`" for name in names[:TESTS_NAMED_MAX]]
            if len(names) > TESTS_NAMED_MAX:
                shown.append(f"and {len(names) - TESTS_NAMED_MAX} more")
            lines.append(f"| [MQTT-{match[1]}] | {match[2]} | {', '.join(shown) or NOT_COVERED} |")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"
