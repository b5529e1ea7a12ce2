"""Fields that expressions compute, for many rows at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from weft.edge_node.functions.contract import Row
from weft.edge_node.functions.expressions.errors import ExpressionError, InvalidExpression
from weft.edge_node.functions.expressions.expression import (
    Expression,
    Failed,
    LevelsOf,
    compile_expression,
    levels_line,
)
from weft.edge_node.functions.expressions.generate import function, lines
from weft.edge_node.functions.paths import check_no_overlap, names_in, put

_ROWS = """
def run(rows, levels_of, failed):
    done = []
    keep = done.append
    for row in rows:
        try:
            v = row.values
            {levels}
{computed}
        except Failure as error:
            failed(row, error)
            continue
{written}
        row.payload = None
        keep(row)
    return done
"""


class FieldMaker:
    """Compiled expressions that make fields of rows: ``motor.rpm`` is a nested field.

    All of them see the original row. A row on which one fails stays unchanged.
    """

    def __init__(self, fields: Mapping[str, str], levels: Collection[str], *, only: bool, nulls: bool = False) -> None:
        """Compile the expressions.

        Args:
            fields: name of a new field, which may be dotted -> expression.
            levels: names of topic levels.
            only: whether rows have only the new fields afterwards.
            nulls: as for ``compile_expression``.

        Raises:
            InvalidExpression: an expression is not valid; the message names its field.
            ValueError: two of the names conflict.
        """
        check_no_overlap(fields)
        self.expressions: dict[str, Expression] = {}
        for name, text in fields.items():
            try:
                self.expressions[name] = compile_expression(text, levels, nulls=nulls)
            except InvalidExpression as error:
                raise error.of(name) from None
        used = frozenset[str]().union(*(each.levels for each in self.expressions.values()))
        template = _rows(list(fields), levels_line(used), only=only)
        code = {f"E{at}": each.code for at, each in enumerate(self.expressions.values())}
        self._run = function(template, code, put=put)

    def make_fields(self, rows: list[Row], levels_of: LevelsOf, failed: Failed) -> list[Row]:
        """Change rows, and return the rows with the new fields. Rows on which an expression fails go to ``failed``."""

        def explain(row: Row, error: Exception) -> None:
            failed(row, self._reason(row, levels_of(row.key), error))

        done: list[Row] = self._run(rows, levels_of, explain)
        return done

    def _reason(self, row: Row, levels: Mapping[str, str], error: Exception) -> str:
        for name, expression in self.expressions.items():
            try:
                expression.evaluate(row, levels)
            except ExpressionError as found:
                return f"{name}: {found.reason}"
        return str(error)


def _rows(names: list[str], levels: str, *, only: bool) -> str:
    """Return the template of a loop that computes all fields, then writes them.

    All parts are inserted at once: a name of a field may look like a placeholder of the template.
    """
    tops: dict[str, Any] = {}
    for at, name in enumerate(names):
        tops.setdefault(names_in(name)[0], []).append(at)
    computed, written = [], []
    for number, (top, numbers) in enumerate(tops.items()):
        path = names_in(names[numbers[0]])
        code = f"E{numbers[0]}"
        if len(path) > 1:
            code = "None" if only else f"v.get({top!r})"
            for at in numbers:
                code = f"put({code}, {names_in(names[at])!r}, 1, E{at})"
        computed.append(f"r{number} = {code}")
        written.append(f"v[{top!r}] = r{number}")
    if only:
        made = ", ".join(f"{top!r}: r{number}" for number, top in enumerate(tops))
        written = [f"row.values = {{{made}}}"]
    return _ROWS.format(levels=levels, computed=lines(12, *computed).rstrip(), written=lines(8, *written).rstrip())
