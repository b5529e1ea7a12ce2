"""``where``: rows for which a condition holds."""

from __future__ import annotations

from weft.edge_node.functions.contract import Context, Function, Out, Path, Row
from weft.edge_node.functions.expressions import Condition


class Where(Function):
    """Filter by an expression. Drops rows for which it is false; rows on which it fails go to the errors.

    Without state.
    """

    is_stateless = True

    def __init__(self, settings: str, context: Context) -> None:
        """Compile the condition.

        Raises:
            InvalidExpression: it is not valid.
        """
        self._condition = Condition(settings, context.level_names, nulls=context.nulls)
        self._levels = context.levels
        self._paths = self._condition.expression.paths
        self._reason = f"where is false: {settings.strip()}"

    def reads(self) -> frozenset[Path]:
        """Return the fields of the condition."""
        return self._paths

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows for which the condition holds."""
        drop, reason = out.drop, self._reason
        return self._condition.filter_rows(rows, self._levels, out.reject, lambda row: drop(row, reason))
