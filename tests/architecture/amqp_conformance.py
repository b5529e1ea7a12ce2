"""The table of AMQP 0-9-1's methods and fields: read the page, find the tests, write the page.

A test names methods, and with a colon their fields, in its docstring: ``basic.qos: prefetch-count; basic.qos-ok``.
``./run fix`` fills the page's last column from what it finds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.protocols.amqp.methods import METHODS, name_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "amqp-conformance.md"
NOT_COVERED = "not covered"
TESTS_NAMED_MAX = 2
FOLDERS = ("edge_node/servers/amqp", "protocols/amqp", "interop")

RESERVED = frozenset(
    {"ticket", "insist", "capabilities", "known_hosts", "out_of_band", "channel_id", "cluster_id", "cluster-id"}
)
"""Fields that the specification has no use for."""
_NAMES = {"exchange_type": "type", "global_": "global", "virtual_host": "virtual-host"}
_ROW = re.compile(r"\| `([a-z-]+\.[a-z-]+)` \| ([a-z-]*) \| (.*) \| (.*) \|")
_FIELD = r"[a-z][a-z-]*(?: \([^)]*\))?"
_TAG = re.compile(rf"\b([a-z]+\.[a-z-]+)(?: from the node)?(?:: ({_FIELD}(?:, {_FIELD})*))?")

Item = tuple[str, str]
"""A method, and a field of it or nothing."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    item: Item
    text: str
    covered_by: str


def items() -> list[Item]:
    """All methods, and their fields, in the order of the specification."""
    found: list[Item] = []
    for index, method in METHODS.items():
        name = name_of(index)
        found.append((name, ""))
        found += [
            (name, _NAMES.get(each, each.replace("_", "-"))) for each in method.attributes() if each not in RESERVED
        ]
    return found


def rows(page: str) -> list[Row]:
    """The lines of the page's tables, in its order."""
    found: list[Row] = []
    for line in page.splitlines():
        match = _ROW.fullmatch(line)
        if match:
            method, field, text, covered_by = match.groups()
            found.append(Row((method, field), text, covered_by))
    return found


def tags(text: str) -> Iterator[Item]:
    """The methods and fields that a docstring names."""
    for method, fields in _TAG.findall(" ".join(text.split())):
        yield method, ""
        for field in fields.split(", ") if fields else ():
            yield method, field.partition(" (")[0]


def coverage() -> dict[Item, list[str]]:
    """Method and field -> the tests that name them."""
    known = set(items())
    found: dict[Item, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    for item in dict.fromkeys(tags(ast.get_docstring(node) or "")):
                        if item in known:
                            below = path.relative_to(ROOT / "tests").as_posix()
                            found.setdefault(item, []).append(f"{below}::{node.name}")
    return found


def filled(page: str) -> str:
    """The page with its last column as the tests have it. What is not served stays as it is said."""
    covered = coverage()
    lines: list[str] = []
    for line in page.splitlines():
        match = _ROW.fullmatch(line)
        if match and not match[4].startswith("does not apply"):
            names = covered.get((match[1], match[2]), [])
            shown = [f"`{name}`" for name in names[:TESTS_NAMED_MAX]]
            if len(names) > TESTS_NAMED_MAX:
                shown.append(f"and {len(names) - TESTS_NAMED_MAX} more")
            lines.append(f"| `{match[1]}` | {match[2]} | {match[3]} | {', '.join(shown) or NOT_COVERED} |")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"
