"""``select`` and ``set``: fields that stay, and fields that expressions make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.edge_node.functions.contract import Context, Function, Out, Row
from weft.edge_node.functions.expressions import FieldMaker
from weft.edge_node.functions.paths import MISSING, check_no_overlap, getter, names_in, put


class Set(Function):
    """New fields, or other values for fields: each by an expression, and all of them from the row as it came.

    Drops nothing; rows on which an expression fails go to the errors. Without state.
    """

    is_stateless = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field lies in another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=False)
        self._levels = context.levels

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with their new fields."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNew(Function):
    """Fields that expressions make, and no others. Rows on which one fails go to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field lies in another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=True)
        self._levels = context.levels

    def reads(self) -> frozenset[str]:
        """Return the fields of the expressions."""
        return frozenset[str]().union(*(each.fields for each in self._maker.expressions.values()))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with the new fields alone."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNames(Function):
    """Named fields, as far as a row has them. A row that has none of them goes to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: tuple[str, ...]) -> None:
        """Take the names, which may be dotted.

        Raises:
            ValueError: a name is empty, or a field lies in another one.
        """
        names = tuple(dict.fromkeys(settings))
        check_no_overlap(names)
        self._plain = names if all(len(names_in(name)) == 1 for name in names) else ()
        self._getters = [(names_in(name), getter(name)) for name in names]
        self._reason = f"it has none of the fields {', '.join(names)}"
        self._reads = frozenset(path[0] for path, _ in self._getters)

    def reads(self) -> frozenset[str]:
        """Return the fields that stay."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with these fields alone."""
        done: list[Row] = []
        for row in rows:
            values = row.values
            if self._plain:
                made = {name: values[name] for name in self._plain if name in values}
            else:
                made = self._nested(values)
            if not made:
                out.reject(row, self._reason)
                continue
            row.values = made
            row.payload = None
            done.append(row)
        return done

    def _nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for names, get in self._getters:
            value = get(values)  # type: ignore[arg-type]
            if value is not MISSING:
                made = put(made, names, 0, value)
        return made


def make_select(settings: tuple[str, ...] | Mapping[str, str], context: Context) -> Function:
    """Make the function for a list of names, or for new names with expressions.

    Raises:
        ValueError: a name or an expression is not valid.
    """
    return SelectNew(settings, context) if isinstance(settings, Mapping) else SelectNames(settings)
