"""Code of the process that runs the SELECTs of a ``sql`` function, in place of a user's code.

A process instead of a thread of the node: a SELECT sorts in memory, and SQLite can only bound the memory of a whole
process, which the node's sessions would share.
"""

from __future__ import annotations

from typing import Any

from weft.edge_node.functions.windows.select import Limits, Select, SelectError

_selects: dict[str, Select] = {}


def process(record: dict[str, Any], ctx: object) -> dict[str, Any]:  # noqa: ARG001
    """Return the result of a window's SELECT, or the reason why it has none."""
    text = record["select"]
    if text not in _selects:
        _selects[text] = Select(text, record["names"], Limits(*record["limits"]))
    try:
        return _selects[text].rows(record["rows"], dict(record["levels"]))._asdict()
    except SelectError as error:
        return {"error": str(error)}
