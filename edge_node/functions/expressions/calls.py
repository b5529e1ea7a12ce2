"""Functions that expressions may call, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.edge_node.functions.expressions import operations
from weft.edge_node.functions.expressions.bounds import ARGUMENTS_MAX
from weft.edge_node.functions.expressions.nodes import Kind


class Call(NamedTuple):
    """A function of expressions."""

    function: Callable[..., Any]
    takes: tuple[Kind, ...]
    """Kinds of the arguments. The last one may be repeated."""
    gives: Kind
    example: str
    least: int | None = None
    """Minimum number of arguments; all of ``takes`` when unset."""
    most: int | None = None
    """Maximum number of arguments; all of ``takes`` when unset."""

    def counts(self) -> tuple[int, int]:
        """Return the minimum and maximum number of arguments."""
        return self.least or len(self.takes), self.most or len(self.takes)


_ANY, _NUMBER, _DECIMAL, _TEXT, _BOOL = Kind.ANY, Kind.NUMBER, Kind.DECIMAL, Kind.TEXT, Kind.BOOL

CALLS: Mapping[str, Call] = {
    "abs": Call(abs, (_NUMBER,), _NUMBER, "abs(rms)"),
    "min": Call(operations.smallest, (_ANY,), _ANY, "min(a, b)", most=ARGUMENTS_MAX),
    "max": Call(operations.largest, (_ANY,), _ANY, "max(a, b)", most=ARGUMENTS_MAX),
    "round": Call(round, (_NUMBER, _NUMBER), _NUMBER, "round(rms, 2)", least=1),
    "floor": Call(math.floor, (_NUMBER,), _NUMBER, "floor(rms)"),
    "ceil": Call(math.ceil, (_NUMBER,), _NUMBER, "ceil(rms)"),
    "sqrt": Call(math.sqrt, (_NUMBER,), _DECIMAL, "sqrt(x * x + y * y)"),
    "log": Call(math.log, (_NUMBER, _NUMBER), _DECIMAL, "log(x)", least=1),
    "log10": Call(math.log10, (_NUMBER,), _DECIMAL, "log10(x)"),
    "exp": Call(math.exp, (_NUMBER,), _DECIMAL, "exp(x)"),
    "len": Call(len, (_ANY,), _NUMBER, "len(name)"),
    "int": Call(operations.to_int, (_ANY,), _NUMBER, "int(line)"),
    "float": Call(operations.to_float, (_ANY,), _DECIMAL, "float(reading)"),
    "str": Call(operations.to_str, (_ANY,), _TEXT, "str(line)"),
    "bool": Call(operations.to_bool, (_NUMBER,), _BOOL, "bool(flag)"),
    "lower": Call(operations.lower, (_TEXT,), _TEXT, "lower(name)"),
    "upper": Call(operations.upper, (_TEXT,), _TEXT, "upper(name)"),
    "strip": Call(operations.strip, (_TEXT,), _TEXT, "strip(name)"),
    "startswith": Call(str.startswith, (_TEXT, _TEXT), _BOOL, 'startswith(name, "press")'),
    "endswith": Call(str.endswith, (_TEXT, _TEXT), _BOOL, 'endswith(name, "-1")'),
    "contains": Call(operations.contains, (_ANY, _ANY), _BOOL, 'contains(name, "press")'),
    "is_number": Call(operations.is_number, (_ANY,), _BOOL, "is_number(rms)"),
    "is_text": Call(operations.is_text, (_ANY,), _BOOL, "is_text(name)"),
    "is_nan": Call(math.isnan, (_NUMBER,), _BOOL, "is_nan(rms)"),
}
"""``default``, ``exists`` and ``field`` are part of the language: they operate on fields, not on values."""
