"""``select`` and ``set``: chosen fields, and computed fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.edge_node.functions.contract import Context, Function, Out, Path, Row, Values
from weft.edge_node.functions.expressions import FieldMaker
from weft.edge_node.functions.expressions.generate import function
from weft.edge_node.functions.paths import MISSING, check_no_overlap, getter, names_in, put


class Set(Function):
    """New fields, or other values for fields: each by an expression over the original row.

    Drops nothing; rows on which an expression fails go to the errors. Without state.
    """

    is_stateless = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field is within another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=False, nulls=context.nulls)
        self._levels = context.levels

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with their new fields."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNew(Function):
    """Only the fields that expressions compute. Rows on which one fails go to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: Mapping[str, str], context: Context) -> None:
        """Compile the expressions.

        Raises:
            ValueError: an expression is not valid, or a field is within another one.
        """
        self._maker = FieldMaker(settings, context.level_names, only=True, nulls=context.nulls)
        self._levels = context.levels

    def reads(self) -> frozenset[Path]:
        """Return the fields of the expressions."""
        return frozenset[Path]().union(*(each.paths for each in self._maker.expressions.values()))

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with only the new fields."""
        return self._maker.make_fields(rows, self._levels, out.reject)


class SelectNames(Function):
    """Named fields, as far as a row has them. A row that has none of them goes to the errors. Without state."""

    is_stateless = True
    makes_values = True

    def __init__(self, settings: tuple[str, ...]) -> None:
        """Parse the names, which may be dotted.

        Raises:
            ValueError: a name is empty, or a field is within another one.
        """
        names = tuple(dict.fromkeys(settings))
        check_no_overlap(names)
        self._getters = [(names_in(name), getter(name)) for name in names]
        self._reason = f"it has none of the fields {', '.join(names)}"
        self._reads = frozenset(path for path, _ in self._getters)
        self._make: Callable[[Values], Values] = self._nested
        if all(len(path) == 1 for path, _ in self._getters):
            self._make = _plain(names)

    def reads(self) -> frozenset[Path]:
        """Return the chosen fields."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with only these fields."""
        make = self._make
        done: list[Row] = []
        for row in rows:
            made = make(row.values)
            if not made:
                out.reject(row, self._reason)
                continue
            row.values = made
            row.payload = None
            done.append(row)
        return done

    def _nested(self, values: Values) -> Values:
        made: Values = {}
        for names, get in self._getters:
            value = get(values)
            if value is not MISSING:
                made = put(made, names, 0, value)
        return made


_PLAIN = """
def run(values):
    try:
        return {made}
    except Missing:
        return {{name: values[name] for name in names if name in values}}
"""


def _plain(names: tuple[str, ...]) -> Callable[[Values], Values]:
    """Return a function that takes fields by name. Most rows have all of them: a mapping created in one expression."""
    made = ", ".join(f"{name!r}: values[{name!r}]" for name in names)
    return function(_PLAIN.format(made=f"{{{made}}}"), {}, Missing=KeyError, names=names)


def make_select(settings: tuple[str, ...] | Mapping[str, str], context: Context) -> Function:
    """Create the function for a list of names, or for new names with expressions.

    Raises:
        ValueError: a name or an expression is not valid.
    """
    return SelectNew(settings, context) if isinstance(settings, Mapping) else SelectNames(settings)
