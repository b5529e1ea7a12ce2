"""Parsing of aggregates in ``emit``: ``max(rms)``, ``quantile(rms, 0.99)``."""

from __future__ import annotations

import ast
from typing import NamedTuple

from weft.edge_node.functions.windows.plan import WindowError

NUMERIC = ("sum", "mean", "min", "max", "stddev", "median", "quantile", "envelope", "lttb")
"""Aggregates of numbers; true and false count as 1 and 0."""
SCALAR = ("count", "first", "last")
"""Aggregates of any number, text, true or false."""
ENVELOPE = ("min", "max", "first", "last")
POINTS_MAX = 1000
"""Maximum number of points of ``lttb``."""
_NAMES = sorted((*NUMERIC, *SCALAR))


class Aggregate(NamedTuple):
    """One aggregate of a window."""

    name: str
    """Name of the result's field; for an envelope, its first part."""
    function: str
    argument: str
    """Aggregated expression; empty for ``count()``."""
    number: float = 0.0
    """Second argument: the quantile, or the number of points."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the result that it fills."""
        return tuple(f"{self.name}_{each}" for each in ENVELOPE) if self.function == "envelope" else (self.name,)


def parse_aggregate(name: str, text: str) -> Aggregate:
    """Return the aggregate of a text such as ``max(rms)``.

    Raises:
        WindowError: it is not an aggregate; the message has the problem and the remedy.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WindowError(f"{name}: {_shown(text)} is not an aggregate; write one such as max(rms)") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise WindowError(f"{name}: {_shown(text)} is not an aggregate; write one such as max(rms)")
    function = node.func.id
    if function not in _NAMES:
        raise WindowError(f"{name}: {function} is not an aggregate. Known here: {', '.join(_NAMES)}")
    arguments = [ast.get_source_segment(text.strip(), each) or "" for each in node.args]
    wanted = 2 if function in ("quantile", "lttb") else 1
    if len(arguments) != wanted and not (function == "count" and not arguments):
        raise WindowError(f"{name}: {function} takes {wanted} argument{'s'[: wanted - 1]}, got {len(arguments)}")
    number = 0.5 if function == "median" else _number(name, function, node.args[1]) if wanted == 2 else 0.0
    return Aggregate(name, "quantile" if function == "median" else function, arguments[0] if arguments else "", number)


def _number(name: str, function: str, node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if function == "quantile":
        if type(value) in (int, float) and 0 <= value <= 1:  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        raise WindowError(f"{name}: the second argument of quantile is a number from 0 to 1, such as 0.99")
    if type(value) is int and 3 <= value <= POINTS_MAX:
        return value
    raise WindowError(f"{name}: the second argument of lttb is a number of points from 3 to {POINTS_MAX}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
