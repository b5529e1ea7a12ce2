"""``route``: rows to other streams."""

from __future__ import annotations

import msgspec

from weft.config.functions.route import Route, Rule
from weft.edge_node.functions.contract import Context, Function, Out, Path, Row
from weft.edge_node.functions.expressions import Condition, InvalidExpression


class RouteFunction(Function):
    """Send rows to other streams by rules, tried in their order.

    The first rule that holds takes a row; with ``copy`` the row also goes on to the next rule. Rows that no rule took
    go on to the next function. Drops nothing; rows on which a condition fails go to the errors. Without state.
    """

    is_stateless = True

    def __init__(self, settings: Route, context: Context) -> None:
        """Compile the conditions.

        Raises:
            ValueError: a condition is not valid, or a rule can never be reached.
        """
        self._rules: list[tuple[Condition | None, Rule]] = []
        self._levels = context.levels
        for at, rule in enumerate(settings.rules):
            if self._rules and self._rules[-1][0] is None and not self._rules[-1][1].copy:
                raise ValueError(f"no row reaches rules[{at}]: the rule before it has no `where` and takes all of them")
            try:
                condition = (
                    None if rule.where is None else Condition(rule.where, context.level_names, nulls=context.nulls)
                )
            except InvalidExpression as error:
                raise error.of(f"rules[{at}].where") from None
            self._rules.append((condition, rule))

    def reads(self) -> frozenset[Path]:
        """Return the fields of the conditions."""
        return frozenset[Path]().union(*(condition.expression.paths for condition, _ in self._rules if condition))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Route rows, and return those that go on."""
        for condition, rule in self._rules:
            left: list[Row] = []
            # Rows on which the condition fails go to the errors. Other rows that it does not take remain.
            taken = condition.filter_rows(rows, self._levels, out.reject, left.append) if condition else rows
            for row in taken:
                out.route(_copied(row) if rule.copy else row, rule.to)
            rows = _merged(rows, taken, left) if rule.copy else left
            if not rows:
                break
        return rows


def _copied(row: Row) -> Row:
    """Return a copy of a row that later functions do not change."""
    return msgspec.structs.replace(row, values=dict(row.values))


def _merged(rows: list[Row], taken: list[Row], left: list[Row]) -> list[Row]:
    """Return the taken and remaining rows, in their order; others have failed."""
    if not taken or not left:
        return taken or left
    kept = {id(row) for part in (taken, left) for row in part}
    return [row for row in rows if id(row) in kept]
