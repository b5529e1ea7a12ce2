"""Tables of figures in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Facts = dict[str, Any]
"""Results of a benchmark as its file has them."""


def table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]
