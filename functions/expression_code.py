"""Checked parts of expressions, the Python code of each, and the reasons why a part has no result on a row."""

from __future__ import annotations

import ast
import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.functions.contract import Row

# Checked parts of an expression: the Python code of each, and the data that explains its failure.


class Kind(enum.Enum):
    """Kind of a part's value, as far as it is known without a row."""

    ANY = "any value"
    NUMBER = "a number"
    DECIMAL = "a number "
    """Certainly a ``float``: it cannot repeat text, and only its size needs a check."""
    TEXT = "text"
    BOOL = "true or false"
    NULL = "null"
    LIST = "a list"

    @property
    def is_number(self) -> bool:
        """Return whether Python calculates with it; true and false count as 1 and 0."""
        return self in (Kind.NUMBER, Kind.DECIMAL, Kind.BOOL)

    def __str__(self) -> str:
        return self.value.strip()


class Role(enum.Enum):
    """Role of a part, which decides how its failure is explained."""

    PLAIN = enum.auto()
    """A literal, or a part that fails only when one of its own parts does."""
    FIELD = enum.auto()
    LEVEL = enum.auto()
    COMPARISON = enum.auto()
    CALCULATION = enum.auto()
    CALL = enum.auto()
    CONDITION = enum.auto()
    ALL = enum.auto()
    """``and``, or a chain of comparisons: the parts up to the first that is false are computed."""
    ANY = enum.auto()
    """``or``: the parts up to the first that is true are computed."""
    CHOICE = enum.auto()
    """``a if condition else b``: parts are the condition, then the two values."""
    DEFAULT = enum.auto()
    """``default(a, b)``: its part is computed when no field exists."""
    RESULT = enum.auto()


@dataclass(eq=False, slots=True)
class Node:
    """A checked part of an expression."""

    code: ast.expr
    """Python that computes it from ``row``, ``v`` (its values) and ``levels`` (of its topic)."""
    kind: Kind
    text: str
    """Source text of the part."""
    role: Role = Role.PLAIN
    parts: list[Node] = field(default_factory=list)
    """Parts whose values it uses, in the order in which they are computed."""
    path: tuple[str | int, ...] = ()
    """Name of a field, then the keys in brackets; or the name of a level."""
    name: str = ""
    """Operator or function."""
    literal: bool = False


def name_code(identifier: str) -> ast.expr:
    """Return the code that reads a name."""
    return ast.Name(identifier, ast.Load())


def call(function: str, *arguments: ast.expr) -> ast.expr:
    """Return the code of a call."""
    return ast.Call(name_code(function), list(arguments), [])


def constant(value: object) -> ast.expr:
    """Return the code of a literal."""
    return ast.Constant(value)  # type: ignore[arg-type]


def item(container: ast.expr, key: str | int) -> ast.expr:
    """Return the code of ``container[key]``."""
    return ast.Subscript(container, constant(key), ast.Load())


def names_of(path: tuple[str | int, ...]) -> ast.expr:
    """Return the code of a tuple of names."""
    return ast.Tuple([constant(each) for each in path], ast.Load())


KEY = ast.parse("row.key.decode('utf-8', 'replace')", mode="eval").body
TIME = ast.parse("row.time / 1e9", mode="eval").body


# Bounds of expressions and of their results.

CHARACTERS_MAX = 4_000
"""Longest text of an expression."""
NODES_MAX = 200
"""Maximum number of operators, names, values and calls in an expression."""
ARGUMENTS_MAX = 20
"""Maximum number of arguments of ``min``, ``max`` and ``default``."""
DEPTH_MAX = 50
"""Deepest nesting of an expression."""
TEXT_MAX = 1 << 16
"""Longest text that an expression computes, in characters. Text that it only passes on may be as long as its
payload."""
NUMBER_TEXT_MAX = 64
"""Longest text that ``int`` and ``float`` read; Python's time for long ones grows with the square."""
INTEGER_MIN = -(1 << 63)
INTEGER_MAX = (1 << 64) - 1
"""Largest integer in results and literals: every format of payloads can hold it."""
FACTOR_MAX = 1 << 256
"""Largest integer that is multiplied, divided or compared with a remainder: 64-bit numbers may grow on the way to a
result, such as in ``(a * b) // c``, and no work on them takes more than a microsecond."""
FLOAT_MAX = 1.7976931348623157e308
DIGITS_MAX = 15
"""Maximum number of digits in ``round``."""


# Errors of expressions: one for their authors, one for a row on which they fail.


class InvalidExpression(ValueError):
    """A text that is not a valid expression, with the column, the problem and the remedy."""

    def __init__(self, column: int, message: str) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column
        """Place in the text, from 1."""
        self._message = message

    def of(self, field: str) -> InvalidExpression:
        """Return the same error for the expression of a field."""
        error = InvalidExpression(self.column, self._message)
        error.args = (f"{field}: {error}",)
        return error


class ExpressionError(Exception):
    """A row on which an expression has no result."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """Reason for people, such as ``field rms is missing``."""


# Operations that compiled expressions call in place of Python's own, which could cost too much on a row.
#
# They raise ``TypeError`` and the like as Python does; ``reason`` finds the value and the problem later.


class TooLarge(OverflowError):
    """A number or text beyond the bounds of expressions."""


def add(left: Any, right: Any) -> Any:
    """Add numbers, or join texts."""
    total = left + right
    if type(total) is float or type(total) is int:
        return total
    if type(total) is not str:
        raise TypeError("neither numbers nor texts")
    if len(total) > TEXT_MAX:
        raise TooLarge(f"a text of more than {TEXT_MAX} characters")
    return total


def multiply(left: Any, right: Any) -> Any:
    """Multiply numbers; texts and lists are not repeated."""
    if type(left) is float or type(right) is float:
        return left * right
    return _factor(left) * _factor(right)


def divide_down(left: Any, right: Any) -> Any:
    """Return ``left // right``."""
    return _factor(left) // _factor(right)


def remainder(left: Any, right: Any) -> Any:
    """Return ``left % right`` of numbers; text on the left is refused, because Python would format it."""
    return _factor(left) % _factor(right)


def _factor(value: Any) -> Any:
    number = +value  # a TypeError for a value that is not a number
    if type(number) is int and not -FACTOR_MAX <= number <= FACTOR_MAX:
        raise TooLarge("an integer of more than 256 bits")
    return number


def condition(value: Any) -> bool:
    """Return a value that is true or false.

    Raises:
        TypeError: it is another value. Python would treat the text "off" as true.
    """
    if value is True or value is False:
        return bool(value)
    raise TypeError("neither true nor false")


def condition_or_null(value: Any) -> bool:
    """Return a value that is true or false; null is not true.

    Raises:
        TypeError: it is another value.
    """
    return value is not None and condition(value)


def result(value: Any) -> Any:
    """Return a computed value that every format of payloads can hold.

    Raises:
        TooLarge: an infinite number, or an integer of more than 64 bits.
        ValueError: not a number.
    """
    if type(value) is float:
        if -FLOAT_MAX <= value <= FLOAT_MAX:
            return value
        if value != value:  # noqa: PLR0124 - NaN
            raise ValueError("not a number")
        raise TooLarge("an infinite number")
    if type(value) is int and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise TooLarge("an integer of more than 64 bits")
    return value


def has(value: Any, path: tuple[str | int, ...]) -> bool:
    """Return whether a field, or a part of a field, exists."""
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            return False
    return True


def get(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a part of a field; None where it is missing."""
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            return None
    return value


# --- functions that expressions call by name


def to_int(value: Any) -> int:
    """Convert a text or number to an integer; decimals are cut off."""
    return int(_readable(value))


def to_float(value: Any) -> float:
    """Convert a text or number to a decimal number."""
    return float(_readable(value))


def _readable(value: Any) -> Any:
    if type(value) is str:
        if len(value) > NUMBER_TEXT_MAX:
            raise TooLarge(f"a text of more than {NUMBER_TEXT_MAX} characters")
        return value
    if isinstance(value, int | float):
        return value
    raise TypeError("neither text nor a number")


def to_str(value: Any) -> str:
    """Return the text of a number or of true and false, as Python writes them; return text unchanged."""
    if isinstance(value, str | float):
        return str(value)
    if isinstance(value, int):
        return str(result(value))
    raise TypeError("neither a number nor text")


def to_bool(value: Any) -> bool:
    """Return whether a number is not zero. Text is refused: Python would treat "false" as true."""
    if isinstance(value, int | float):
        return bool(value)
    raise TypeError("not a number")


def lower(value: str) -> str:
    """Return a text in lower case."""
    return str.lower(_short(value))


def upper(value: str) -> str:
    """Return a text in upper case."""
    return str.upper(_short(value))


def strip(value: str) -> str:
    """Return a text without the white space around it."""
    return str.strip(value)


def _short(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not text")
    if len(value) > TEXT_MAX:
        raise TooLarge(f"a text of more than {TEXT_MAX} characters")
    return value


def contains(whole: Any, part: Any) -> bool:
    """Return whether a text has a part, or a list an item."""
    return part in whole


def smallest(*values: Any) -> Any:
    """Return the smallest of some values, or of one list."""
    return min(_items(values))


def largest(*values: Any) -> Any:
    """Return the largest of some values, or of one list."""
    return max(_items(values))


def _items(values: tuple[Any, ...]) -> Any:
    if len(values) > 1:
        return values
    if type(values[0]) is not list:
        raise TypeError("not a list")
    return values[0]


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are not numbers."""
    return type(value) is float or type(value) is int


def is_text(value: Any) -> bool:
    """Return whether a value is text."""
    return type(value) is str


def power(base: Any, exponent: Any) -> float:
    """Return a power as a decimal number: as an integer it might have millions of digits."""
    return math.pow(base, exponent)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": add,
    "multiply": multiply,
    "divide_down": divide_down,
    "remainder": remainder,
    "power": power,
    "condition": condition,
    "condition_or_null": condition_or_null,
    "result": result,
    "has": has,
    "get": get,
}
"""Further names in generated code, besides the functions of ``CALLS``."""


# Functions that expressions may call, by name.


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
    "min": Call(smallest, (_ANY,), _ANY, "min(a, b)", most=ARGUMENTS_MAX),
    "max": Call(largest, (_ANY,), _ANY, "max(a, b)", most=ARGUMENTS_MAX),
    "round": Call(round, (_NUMBER, _NUMBER), _NUMBER, "round(rms, 2)", least=1),
    "floor": Call(math.floor, (_NUMBER,), _NUMBER, "floor(rms)"),
    "ceil": Call(math.ceil, (_NUMBER,), _NUMBER, "ceil(rms)"),
    "sqrt": Call(math.sqrt, (_NUMBER,), _DECIMAL, "sqrt(x * x + y * y)"),
    "log": Call(math.log, (_NUMBER, _NUMBER), _DECIMAL, "log(x)", least=1),
    "log10": Call(math.log10, (_NUMBER,), _DECIMAL, "log10(x)"),
    "exp": Call(math.exp, (_NUMBER,), _DECIMAL, "exp(x)"),
    "len": Call(len, (_ANY,), _NUMBER, "len(name)"),
    "int": Call(to_int, (_ANY,), _NUMBER, "int(line)"),
    "float": Call(to_float, (_ANY,), _DECIMAL, "float(reading)"),
    "str": Call(to_str, (_ANY,), _TEXT, "str(line)"),
    "bool": Call(to_bool, (_NUMBER,), _BOOL, "bool(flag)"),
    "lower": Call(lower, (_TEXT,), _TEXT, "lower(name)"),
    "upper": Call(upper, (_TEXT,), _TEXT, "upper(name)"),
    "strip": Call(strip, (_TEXT,), _TEXT, "strip(name)"),
    "startswith": Call(str.startswith, (_TEXT, _TEXT), _BOOL, 'startswith(name, "press")'),
    "endswith": Call(str.endswith, (_TEXT, _TEXT), _BOOL, 'endswith(name, "-1")'),
    "contains": Call(contains, (_ANY, _ANY), _BOOL, 'contains(name, "press")'),
    "is_number": Call(is_number, (_ANY,), _BOOL, "is_number(rms)"),
    "is_text": Call(is_text, (_ANY,), _BOOL, "is_text(name)"),
    "is_nan": Call(math.isnan, (_NUMBER,), _BOOL, "is_nan(rms)"),
}
"""``default``, ``exists`` and ``field`` are part of the language: they operate on fields, not on values."""


# Code of fields and calculations.

_CALLED = {"+": "add", "*": "multiply", "//": "divide_down", "%": "remainder", "**": "power"}


def has_code(container: str, path: tuple[str | int, ...]) -> ast.expr:
    """Return the code that checks whether a field or level exists."""
    if len(path) == 1:
        return ast.Compare(constant(path[0]), [ast.In()], [name_code(container)])
    return call("has", name_code(container), names_of(path))


def get_code(node: Node) -> ast.expr:
    """Return the code that reads a field or level; null where it is missing."""
    container = name_code("v" if node.role is Role.FIELD else "levels")
    if len(node.path) == 1:
        return ast.Call(ast.Attribute(container, "get", ast.Load()), [constant(node.path[0])], [])
    return call("get", container, names_of(node.path))


def kind_of(operator: str, left: Kind, right: Kind) -> Kind:
    """Return the kind of a calculation's result."""
    if Kind.DECIMAL in (left, right) or operator in ("/", "**"):
        return Kind.DECIMAL
    # Two fields that are added may be numbers or texts; any other result is a number.
    return Kind.ANY if operator == "+" and left is right is Kind.ANY else Kind.NUMBER


def code_of(operator: str, sign: ast.operator, parts: tuple[Node, Node], codes: list[ast.expr]) -> ast.expr:
    """Return the code of a calculation. Python's own operator where its cost is bounded, else a call that checks the
    operands."""
    (left, right), (first, second) = parts, codes
    plain = ast.BinOp(first, sign, second)
    is_number = left.kind.is_number or right.kind.is_number
    if operator == "+":
        return plain if is_number else call("add", first, second)
    if operator in ("-", "/"):
        return plain  # Only numbers, whose results grow by a bit.
    if operator == "*" and Kind.DECIMAL in (left.kind, right.kind):
        return plain  # A float cannot repeat text, and has a fixed size.
    return call(_CALLED[operator], first, second)


def is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


# Code with null as in SQL: calculations with null are null, and conditions have three values.


class Nulls:
    """Generator of such code for one expression. Each value is computed once, and checked under a name of its own."""

    def __init__(self) -> None:
        self._names = 0

    def of(
        self, codes: Sequence[ast.expr], known: Sequence[bool], make: Callable[[list[ast.expr]], ast.expr]
    ) -> ast.expr:
        """Return code that is null when one of some values is null, and otherwise combines them.

        Args:
            known: values that are never null.
        """
        tests: list[ast.expr] = []
        given: list[ast.expr] = []
        for code, is_known in zip(codes, known, strict=True):
            if is_known:
                given.append(code)
                continue
            name, value = self._named(code)
            tests.append(_is(value, None))
            given.append(name)
        if not tests:
            return make(given)
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
        return ast.IfExp(test, constant(None), make(given))

    def joined(self, codes: Sequence[ast.expr], *, stops: bool) -> ast.expr:
        """Return code of conditions joined by ``and``, or by ``or``. Conditions behind a deciding one are not computed.

        Args:
            stops: value that decides alone: false for ``and``, true for ``or``.
        """
        found = codes[0]
        for code in codes[1:]:
            first, value = self._named(found)
            second, other = self._named(code)
            # If the first does not decide, the result is the second, unless the first is null and the second does not
            # decide.
            counts = ast.BoolOp(ast.Or(), [_is(other, stops), _is(first, not stops)])
            rest = ast.IfExp(counts, second, constant(None))
            found = ast.IfExp(_is(value, stops), constant(stops), rest)
        return found

    def _named(self, code: ast.expr) -> tuple[ast.expr, ast.expr]:
        self._names += 1
        name = f"n{self._names}"
        return name_code(name), ast.NamedExpr(ast.Name(name, ast.Store()), code)


def _is(code: ast.expr, value: bool | None) -> ast.expr:
    return ast.Compare(code, [ast.Is()], [constant(value)])


# Generation of Python functions from checked parts.
#
# The code comes from templates of this package, in which names in capitals are placeholders of checked code. It runs
# in a namespace without builtins: it can only reach ``row``, its values, the levels of its topic, and the operations.

_NAMESPACE: Mapping[str, Any] = {
    "__builtins__": {},
    "Failure": Exception,
    **OPERATIONS,
    **{f"call_{name}": call.function for name, call in CALLS.items()},
}


def function(template: str, expressions: Mapping[str, ast.expr], **more: Any) -> Callable[..., Any]:
    """Compile the function ``run`` of a template.

    Args:
        template: Python code of this package.
        expressions: name in the template -> code that replaces it.
        more: further names that the template uses.
    """
    tree = _Filled(expressions).visit(ast.parse(template))
    namespace = {**_NAMESPACE, **more}
    exec(compile(ast.fix_missing_locations(tree), "<expression>", "exec"), namespace)  # noqa: S102 - code of ours
    run: Callable[..., Any] = namespace["run"]
    return run


class _Filled(ast.NodeTransformer):
    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._expressions.get(node.id, node)


Operation = Callable[[Any, Any, Any, list[Any]], Any]
"""(row, its values, levels, values of the parts) -> value of a part of an expression."""


def single_operations(root: Node) -> dict[Node, Operation]:
    """Compile each part of an expression by itself: its function receives the values of the part's own parts, and does
    not compute them."""
    found = list(dict.fromkeys(_parts(root)))
    parameters = ast.arguments([], [ast.arg(name) for name in ("row", "v", "levels", "parts")], None, [], [], None, [])
    made = ast.List([ast.Lambda(parameters, _Single(node).visit(node.code)) for node in found], ast.Load())
    module = ast.Module([ast.Assign([ast.Name("run", ast.Store())], made)], [])
    namespace = dict(_NAMESPACE)
    exec(compile(ast.fix_missing_locations(module), "<expression>", "exec"), namespace)  # noqa: S102 - code of ours
    return dict(zip(found, namespace["run"], strict=True))


def _parts(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _parts(part)


class _Single(ast.NodeTransformer):
    """Copy of a part's code in which the code of its own parts is replaced by their values."""

    def __init__(self, node: Node) -> None:
        self._places = {id(part.code): at for at, part in enumerate(node.parts)}

    def visit(self, node: ast.AST) -> Any:
        at = self._places.get(id(node))
        if at is not None:
            return ast.Subscript(ast.Name("parts", ast.Load()), ast.Constant(at), ast.Load())
        return type(node)(**{name: self._copied(value) for name, value in ast.iter_fields(node)})

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(each) for each in value]
        return self.visit(value) if isinstance(value, ast.AST) else value


def lines(indent: int, *statements: str) -> str:
    """Return lines of a template."""
    return "".join(f"{' ' * indent}{each}\n" for each in statements)


# Reasons for people why an expression has no result on a row.
#
# After the whole expression has failed, its parts are computed one after the other, by the same operations, to find
# the first that fails. Only failing rows have this cost.

_SHOWN_MAX = 40
"""Characters of a value in a reason."""
_SAID_MAX = 4
"""Values in a reason."""
Levels = Mapping[str, str]


class Reasons:
    """Reasons of one expression."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._operations: dict[Node, Operation] = {}

    def reason(self, row: Row, levels: Levels) -> str:
        """Return the reason why the expression has no result on a row."""
        if not self._operations:
            self._operations = single_operations(self._root)
        try:
            _Values(self._operations, row, levels).of(self._root)
        except _Failed as failed:
            return _explained(failed, row)
        return "there is a result"  # Not reached: the same operations on the same values fail again.


class _Failed(Exception):
    def __init__(self, node: Node, values: list[Any], error: Exception) -> None:
        self.node, self.values, self.error = node, values, error


class _Values:
    """Values of the parts of an expression on a row, each computed once, and only if the expression needs it."""

    def __init__(self, operations: Mapping[Node, Operation], row: Row, levels: Levels) -> None:
        self._operations, self._row, self._levels = operations, row, levels
        self._known: dict[Node, Any] = {}

    def of(self, node: Node) -> Any:
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]

    def _compute(self, node: Node) -> Any:
        match node.role:
            case Role.ALL:
                return self._joined(node, stops=False)
            case Role.ANY:
                return self._joined(node, stops=True)
            case Role.CHOICE:
                test, body, other = node.parts
                return self.of(body if self.of(test) else other)
            case Role.DEFAULT:
                found = self._run(node, [_NOTHING])
                return self.of(node.parts[0]) if found is _NOTHING else found
        return self._run(node, [self.of(part) for part in node.parts])

    def _joined(self, node: Node, *, stops: bool) -> bool | None:
        """Return the result of joined conditions, up to the first that decides. With nulls as in SQL, conditions may be
        null."""
        found: bool | None = not stops
        for part in node.parts:
            value: bool | None = self.of(part)
            if value is stops:
                return stops
            found = None if value is None else found
        return found

    def _run(self, node: Node, values: list[Any]) -> Any:
        try:
            return self._operations[node](self._row, self._row.values, self._levels, values)
        except Exception as error:
            raise _Failed(node, values, error) from None


_NOTHING = object()


def _explained(failed: _Failed, row: Row) -> str:
    node, values, error = failed.node, failed.values, failed.error
    match node.role:
        case Role.FIELD:
            return _missing(node, row)
        case Role.LEVEL:
            return f"the topic has no level {node.path[0]}"
        case Role.COMPARISON:
            return _not_comparable(node, values)
        case Role.CALCULATION:
            return _not_calculable(node, values, error)
        case Role.CALL:
            return _not_callable(node, values, error)
        case Role.CONDITION:
            return f"{_subject(node.parts[0])} is {_kind(values[0])} instead of true or false: {_shown(values[0])}"
        case Role.RESULT:
            return f"the result of {_subject(node.parts[0])} is {error}"
    return f"{_subject(node)}: {error}"


def _missing(node: Node, row: Row) -> str:
    value: Any = row.values
    done: list[str] = []
    for name in node.path:
        if not hasattr(value, "__getitem__"):
            return f"{'.'.join(done)} is {_kind(value)} and has no {name}"
        done.append(str(name))
        try:
            value = value[name]
        except LookupError:
            return f"field {'.'.join(done)} is missing"
        except TypeError:
            return f"{'.'.join(done[:-1])} is {_kind(value)} and has no {name}"
    return f"field {'.'.join(done)} cannot be read"


def _not_comparable(node: Node, values: list[Any]) -> str:
    left, right = (_kind(value) for value in values)
    verb = f"cannot look for {left} in {right}" if "in" in node.name else f"cannot compare {left} with {right}"
    return verb + _said(node, values)


def _not_calculable(node: Node, values: list[Any], error: Exception) -> str:
    if isinstance(error, ZeroDivisionError):
        return f"division by zero: {_subject(node.parts[1])} is 0"
    if isinstance(error, OverflowError | ValueError):
        what = f": {error}" if isinstance(error, TooLarge) else ""
        verb = "is not a number" if isinstance(error, ValueError) else "is too large"
        return f"the result of {_subject(node)} {verb}{what}"
    wrong = next((value for value in values if not isinstance(value, int | float)), None)
    return f"cannot calculate with {_kind(wrong)}" + _said(node, values, numbers=False)


def _not_callable(node: Node, values: list[Any], error: Exception) -> str:
    if isinstance(error, TypeError):
        kinds = " and ".join(dict.fromkeys(_kind(value) for value in values))
        return f"{node.name} cannot take {kinds}" + _said(node, values)
    if isinstance(error, TooLarge):
        return f"{node.name}: {error}"
    if isinstance(error, OverflowError):
        return f"the result of {node.name} is too large" + _said(node, values)
    return f"{node.name} has no result" + _said(node, values)


def _said(node: Node, values: list[Any], *, numbers: bool = True) -> str:
    """Return the values of the parts that are not literals, as a clause."""
    said = [
        f"{_subject(part)} is {_shown(value)}"
        for part, value in zip(node.parts, values, strict=True)
        if not part.literal and (numbers or not isinstance(value, int | float))
    ]
    if len(said) > _SAID_MAX:
        said[_SAID_MAX:] = ["..."]
    return f": {', '.join(said)}" if said else ""


def _subject(node: Node) -> str:
    return node.text if len(node.text) <= 2 * _SHOWN_MAX else f"{node.text[: 2 * _SHOWN_MAX]}..."


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for types, words in _KINDS:
        if isinstance(value, types):
            return words
    return type(value).__name__


_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    (int | float, "a number"),
    (str, "text"),
    (bytes, "bytes"),
    (list | tuple, "a list"),
    (dict, "a mapping"),
)


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]!r}..."
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, int) and value.bit_length() > 256:
        return "an integer of more than 256 bits"
    return repr(value) if isinstance(value, int | float) else _kind(value)
