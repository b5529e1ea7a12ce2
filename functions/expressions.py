"""Expressions of edge functions: a checked subset of Python, compiled once (docs/functions/expressions.md)."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from weft.functions import expression_code
from weft.functions.contract import Path, Row, check_no_overlap, names_in, put
from weft.functions.expression_code import (
    ARGUMENTS_MAX,
    CALLS,
    CHARACTERS_MAX,
    DEPTH_MAX,
    DIGITS_MAX,
    FLOAT_MAX,
    INTEGER_MAX,
    INTEGER_MIN,
    NODES_MAX,
    ExpressionError,
    InvalidExpression,
    Kind,
    Node,
    Reasons,
    Role,
    function,
    lines,
)

# Parsing of an expression's text to a tree, with hints for habits of other languages.


def tree_of(text: str) -> ast.expr:
    """Return the tree of an expression by Python's parser.

    Raises:
        InvalidExpression: it is too long, empty, or not an expression of Python.
    """
    if len(text) > CHARACTERS_MAX:
        raise InvalidExpression(1, f"{len(text)} characters; an expression has at most {CHARACTERS_MAX}")
    if not text:
        raise InvalidExpression(1, "the expression is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on texts such as "\d" is for its own programs.
            tree = ast.parse(text, mode="eval").body
        comment = next((token for token in _tokens(text) if token.type == tokenize.COMMENT), None)
    except SyntaxError as error:
        raise InvalidExpression(_column_of(error, text), _hint(error, text)) from None
    except (ValueError, tokenize.TokenError) as error:
        raise InvalidExpression(1, f"this is not an expression: {error}") from None
    except (RecursionError, MemoryError):
        raise InvalidExpression(1, f"nested deeper than {DEPTH_MAX}") from None
    if comment is not None:
        raise InvalidExpression(comment.start[1] + 1, "comments are not allowed in an expression; use those of YAML")
    return tree


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline)) if "#" in text else []


def _column_of(error: SyntaxError, text: str) -> int:
    if error.offset == 0:  # the text ends too early
        return len(text) + 1
    return min(max(error.offset or 1, 1), len(text) + 1)


def _hint(error: SyntaxError, text: str) -> str:
    words = text.replace("(", " ").replace(")", " ").split()
    if "&&" in text or "||" in text:
        return "write `and` and `or` instead of && and ||"
    if words and (
        "=" in words or (error.msg or "").startswith(("invalid syntax. Maybe you meant '=='", "cannot assign"))
    ):
        return "write == to compare"
    if "!" in text.replace("!=", ""):
        return "write `not` instead of !"
    if error.offset == 0:
        return "it ends too early; something is missing here"
    return f'{error.msg or "this is not an expression"}; a field whose name is not an identifier is field("its name")'


# Conversion of an expression's text to checked parts. Syntax that is not listed here is refused.
#
# Python's parser reads the text. Its tree is never run: each node of the language becomes new code, in which names of
# fields are text (``v["rms"]``) and the only names are those of this package's operations.

_REFUSED: dict[type[ast.AST], str] = {
    ast.Lambda: "lambda is not allowed",
    ast.ListComp: "comprehensions are not allowed",
    ast.SetComp: "comprehensions are not allowed",
    ast.DictComp: "comprehensions are not allowed",
    ast.GeneratorExp: "comprehensions are not allowed",
    ast.JoinedStr: 'f-strings are not allowed; join texts with +: "line " + line',
    ast.NamedExpr: "`:=` is not allowed; compare with ==",
    ast.Starred: "`*` before a value is not allowed",
    ast.Dict: "mappings are not allowed",
    ast.Set: 'sets are not allowed; write a list: x in ["a", "b"]',
    ast.List: 'a list may only follow `in`: x in ["a", "b"]',
    ast.Tuple: 'a list may only follow `in`: x in ["a", "b"]',
    ast.Await: "await is not allowed",
    ast.Yield: "yield is not allowed",
    ast.YieldFrom: "yield is not allowed",
}
_OTHER_WORDS = {"true": "True", "false": "False", "null": "None", "nil": "None"}
_CALCULATIONS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}

_TAKE_NULLS = ("is_number", "is_text")
_FALLBACK = ', or default(name, "?") to fall back on a value'


def parse(text: str, levels: Collection[str], *, nulls: bool = False) -> tuple[Node, frozenset[Path], frozenset[str]]:
    """Return an expression as checked parts, the paths of the fields that it reads, and the levels.

    Args:
        nulls: treat a missing field as null, and compute null from null, as in SQL. Otherwise both fail.

    Raises:
        InvalidExpression: the text has unknown syntax, or exceeds a bound.
    """
    text = text.strip().replace("\n", " ").replace("\r", " ")
    tree = tree_of(text)
    parser = _Parser(text, levels, nulls=nulls)
    node = parser.node(tree, 0)
    return node, frozenset(parser.paths), frozenset(parser.used_levels)


class _Parser:
    def __init__(self, text: str, levels: Collection[str], *, nulls: bool) -> None:
        self._nulls = expression_code.Nulls() if nulls else None
        self._bytes = text.encode()
        self._levels = frozenset(levels)
        self._count = 0
        self._temporaries = 0
        self.paths: list[Path] = []
        self.used_levels: set[str] = set()
        self._kinds: dict[type[ast.AST], Callable[..., Node]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Subscript: self._subscript,
            ast.UnaryOp: self._unary,
            ast.BinOp: self._calculation,
            ast.BoolOp: self._bool,
            ast.Compare: self._comparison,
            ast.IfExp: self._choice,
            ast.Call: self._call,
        }

    def node(self, tree: ast.expr, depth: int) -> Node:
        """Return a part, checked."""
        self._count += 1
        if self._count > NODES_MAX:
            raise InvalidExpression(
                1, f"more than {NODES_MAX} names, values and operators; make fields in a `set` first"
            )
        if depth > DEPTH_MAX:
            self._refuse(tree, f"nested deeper than {DEPTH_MAX}; make fields in a `set` first")
        make = self._kinds.get(type(tree))
        if isinstance(tree, ast.Attribute):
            self._refuse(tree, f'attributes are not allowed; write {self._source(tree.value)[:40]}["{tree.attr}"]')
        if make is None:
            self._refuse(tree, _REFUSED.get(type(tree), f"{type(tree).__name__} is not allowed"))
        return make(tree, depth + 1)

    def _refuse(self, tree: ast.expr, message: str) -> NoReturn:
        column = len(self._bytes[: tree.col_offset].decode(errors="ignore")) + 1
        raise InvalidExpression(column, message)

    def _source(self, tree: ast.expr) -> str:
        return self._bytes[tree.col_offset : tree.end_col_offset].decode(errors="replace")

    # --- values

    def _constant(self, tree: ast.Constant, _depth: int) -> Node:
        value = tree.value
        kind = {str: Kind.TEXT, bool: Kind.BOOL, float: Kind.DECIMAL, int: Kind.NUMBER, type(None): Kind.NULL}.get(
            type(value)
        )
        if kind is None:
            self._refuse(tree, f"{self._source(tree)} is not allowed; literals are numbers, text, True, False and None")
        if type(value) is int and not INTEGER_MIN <= value <= INTEGER_MAX:
            self._refuse(tree, "an integer has at most 64 bits")
        if type(value) is float and not value <= FLOAT_MAX:
            self._refuse(tree, f"{self._source(tree)} is infinite")
        if type(value) is str and not expression_code.is_encodable(value):
            self._refuse(tree, "text with half a surrogate pair")
        return Node(expression_code.constant(value), kind, self._source(tree), literal=True)

    def _name(self, tree: ast.Name, _depth: int) -> Node:
        # Python reads some letters as others: µ (micro) as μ (mu). The payload has the name as written.
        word = self._source(tree)
        if word in self._levels:
            self.used_levels.add(word)
            return self._read(
                Node(
                    expression_code.item(expression_code.name_code("levels"), word),
                    Kind.TEXT,
                    word,
                    Role.LEVEL,
                    path=(word,),
                )
            )
        if word == "key":
            return Node(expression_code.KEY, Kind.TEXT, word)
        if word == "time":
            return Node(expression_code.TIME, Kind.DECIMAL, word)
        if word.startswith("__"):
            self._refuse(tree, f'names that begin with __ are not allowed; write field("{word}")')
        if word in _OTHER_WORDS:
            self._refuse(tree, f'write {_OTHER_WORDS[word]}, or field("{word}") for a field of this name')
        return self._field(tree, (word,))

    def _field(self, tree: ast.expr, path: tuple[str | int, ...]) -> Node:
        # Up to an item of a list: lists are read as a whole.
        self.paths.append(tuple(str(each) for each in itertools.takewhile(lambda each: isinstance(each, str), path)))
        code: ast.expr = expression_code.name_code("v")
        for each in path:
            code = expression_code.item(code, each)
        return self._read(Node(code, Kind.ANY, self._source(tree), Role.FIELD, path=path))

    def _read(self, node: Node) -> Node:
        if self._nulls is not None:
            node.code = expression_code.get_code(node)
        return node

    def _subscript(self, tree: ast.Subscript, depth: int) -> Node:
        whole = self.node(tree.value, depth)
        if whole.role is not Role.FIELD:
            self._refuse(tree, 'brackets may only follow a field: motor["rpm"], axes[0]')
        index = tree.slice
        is_negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
        literal = index.operand if isinstance(index, ast.UnaryOp) and is_negative else index
        key = literal.value if isinstance(literal, ast.Constant) else None
        if type(key) is int and key <= INTEGER_MAX:
            key = -key if is_negative else key
        elif type(key) is not str or is_negative or not expression_code.is_encodable(key):
            self._refuse(tree, 'brackets take a literal text or integer: motor["rpm"], axes[0]')
        self.paths.pop()  # the path of the field before the brackets, which is not needed as a whole
        return self._field(tree, (*whole.path, key))

    # --- operators

    def _unary(self, tree: ast.UnaryOp, depth: int) -> Node:
        operand = self.node(tree.operand, depth)
        if isinstance(tree.op, ast.Not):
            condition = self.condition(tree.operand, operand)
            code = self._of([condition], lambda made: ast.UnaryOp(ast.Not(), made[0]))
            return Node(code, Kind.BOOL, self._source(tree), parts=[condition])
        if not isinstance(tree.op, ast.USub | ast.UAdd):
            self._refuse(tree, "`~` is not allowed; write `not`")
        self._check_number(tree.operand, operand)
        kind = Kind.DECIMAL if operand.kind is Kind.DECIMAL else Kind.NUMBER
        sign = "-" if isinstance(tree.op, ast.USub) else "+"
        code = self._of([operand], lambda made: ast.UnaryOp(tree.op, made[0]))
        return Node(code, kind, self._source(tree), Role.CALCULATION, [operand], name=sign, literal=operand.literal)

    def _of(self, parts: Sequence[Node], make: Callable[[list[ast.expr]], ast.expr]) -> ast.expr:
        """Return code of some parts; with nulls as in SQL, it returns null when one of them is null."""
        given = [part.code for part in parts]
        if self._nulls is None:
            return make(given)
        return self._nulls.of(given, [part.literal or part.kind is Kind.LIST for part in parts], make)

    def _check_number(self, tree: ast.expr, node: Node) -> None:
        if node.kind is not Kind.ANY and not node.kind.is_number:
            more = f"; write float({node.text})" if node.role is Role.LEVEL else ""
            self._refuse(tree, f"cannot calculate with {node.kind}: {node.text}{more}")

    def _calculation(self, tree: ast.BinOp, depth: int) -> Node:
        operator = _CALCULATIONS.get(type(tree.op))
        if operator is None:
            self._refuse(
                tree, "operators on bits and matrices are not allowed; conditions are joined by `and` and `or`"
            )
        left, right = self.node(tree.left, depth), self.node(tree.right, depth)
        if operator == "+" and Kind.TEXT in (left.kind, right.kind):
            for each, side in ((left, tree.left), (right, tree.right)):
                if each.kind not in (Kind.TEXT, Kind.ANY):
                    self._refuse(side, f"cannot join text and {each.kind}; write str({each.text})")
            kind = Kind.TEXT
        else:
            self._check_number(tree.left, left)
            self._check_number(tree.right, right)
            kind = expression_code.kind_of(operator, left.kind, right.kind)
        code = self._of([left, right], lambda made: expression_code.code_of(operator, tree.op, (left, right), made))
        return Node(code, kind, self._source(tree), Role.CALCULATION, [left, right], name=operator)

    def _bool(self, tree: ast.BoolOp, depth: int) -> Node:
        parts = [self.condition(each, self.node(each, depth)) for each in tree.values]
        role = Role.ALL if isinstance(tree.op, ast.And) else Role.ANY
        given = [part.code for part in parts]
        code: ast.expr = ast.BoolOp(tree.op, given)
        if self._nulls is not None:
            code = self._nulls.joined(given, stops=role is Role.ANY)
        return Node(code, Kind.BOOL, self._source(tree), role, parts)

    def condition(self, tree: ast.expr, node: Node) -> Node:
        """Return a part that is true or false: Python would treat any other text or number than an empty one as
        true."""
        if node.kind is Kind.BOOL:
            return node
        if node.kind is not Kind.ANY:
            self._refuse(tree, f"a condition is true or false, and this is {node.kind}; write a comparison{_FALLBACK}")
        code = self._of([node], lambda made: expression_code.call("condition", made[0]))
        return Node(code, Kind.BOOL, node.text, Role.CONDITION, [node])

    def _choice(self, tree: ast.IfExp, depth: int) -> Node:
        test = self.condition(tree.test, self.node(tree.test, depth))
        body, other = self.node(tree.body, depth), self.node(tree.orelse, depth)
        kind = body.kind if body.kind is other.kind else Kind.ANY
        code = ast.IfExp(test.code, body.code, other.code)
        return Node(code, kind, self._source(tree), Role.CHOICE, [test, body, other])

    def _comparison(self, tree: ast.Compare, depth: int) -> Node:
        operands = [self.node(tree.left, depth)]
        pairs: list[Node] = []
        trees = [tree.left, *tree.comparators]
        for at, (operator, side) in enumerate(zip(tree.ops, tree.comparators, strict=True)):
            self._count += 1
            sign = _COMPARISONS.get(type(operator))
            if sign is None:
                self._refuse(side, "`is` is not allowed; write == or !=")
            is_list = sign in ("in", "not in") and isinstance(side, ast.List | ast.Tuple)
            operands.append(self._list(side, depth) if is_list else self.node(side, depth))
            left, right = operands[-2:]
            self._check_comparison(trees[at], left, right, sign)
            code = self._compared(left, operator, right)
            text = f"{left.text} {sign} {right.text}"
            pairs.append(Node(code, Kind.BOOL, text, Role.COMPARISON, [left, right], name=sign))
        if len(pairs) == 1:
            return pairs[0]
        code = ast.Compare(operands[0].code, tree.ops, [each.code for each in operands[1:]])
        if self._nulls is not None:
            code = self._nulls.joined([pair.code for pair in pairs], stops=False)
        return Node(code, Kind.BOOL, self._source(tree), Role.ALL, pairs)

    def _compared(self, left: Node, operator: ast.cmpop, right: Node) -> ast.expr:
        if Kind.NULL in (left.kind, right.kind):  # x == None checks whether there is a value
            return ast.Compare(left.code, [operator], [right.code])
        return self._of([left, right], lambda made: ast.Compare(made[0], [operator], [made[1]]))

    def _list(self, tree: ast.expr, depth: int) -> Node:
        assert isinstance(tree, ast.List | ast.Tuple)
        self._count += 1
        parts = [self.node(each, depth + 1) for each in tree.elts]
        # A tuple of literals is a constant of the code, where a list would be made for each row.
        code = ast.Tuple([part.code for part in parts], ast.Load())
        if all(part.literal for part in parts):
            return Node(code, Kind.LIST, self._source(tree), literal=True)
        return Node(code, Kind.LIST, self._source(tree), parts=parts)

    def _check_comparison(self, tree: ast.expr, left: Node, right: Node, sign: str) -> None:
        if sign in ("in", "not in"):
            if right.kind not in (Kind.LIST, Kind.TEXT, Kind.ANY):
                self._refuse(tree, f"`in` looks into a list or text, and {right.text} is {right.kind}")
            if right.kind is Kind.TEXT and left.kind not in (Kind.TEXT, Kind.ANY):
                self._refuse(tree, f"`in` looks for text in text, and {left.text} is {left.kind}")
            return
        kinds = {Kind.NUMBER if each.kind.is_number else each.kind for each in (left, right)} - {Kind.ANY}
        if sign in ("==", "!="):
            kinds -= {Kind.NULL}
        if len(kinds) > 1 or Kind.NULL in kinds:
            level = next((each for each in (left, right) if each.role is Role.LEVEL), None)
            more = f"; write float({level.text})" if level and Kind.NUMBER in kinds else ""
            self._refuse(tree, f"cannot compare {left.kind} with {right.kind}: {left.text} {sign} {right.text}{more}")

    # --- calls

    def _call(self, tree: ast.Call, depth: int) -> Node:
        function = tree.func.id if isinstance(tree.func, ast.Name) else ""
        if isinstance(tree.func, ast.Attribute):
            written = f"{tree.func.attr}({self._source(tree.func.value)[:40]})"
            self._refuse(tree, f"methods are not allowed; functions take the value in parentheses: {written}")
        if tree.keywords or any(isinstance(each, ast.Starred) for each in tree.args):
            self._refuse(tree, "arguments are values alone, without names and *")
        if function == "field":
            return self._field(tree, (self._text_argument(tree, 'field("motor rpm")'),))
        if function == "exists":
            return self._exists(tree, depth)
        if function == "default":
            return self._default(tree, depth)
        known_call = CALLS.get(function)
        if known_call is None:
            names = ", ".join(sorted({*CALLS, "default", "exists", "field"}))
            self._refuse(tree, f"{self._source(tree.func)[:40]} is not a function here. There are: {names}")
        least, most = known_call.counts()
        if not least <= len(tree.args) <= most:
            self._refuse(tree, f"{function} has {len(tree.args)} values in parentheses; write {known_call.example}")
        parts = [self.node(each, depth) for each in tree.args]
        for at, (part, side) in enumerate(zip(parts, tree.args, strict=True)):
            takes = known_call.takes[min(at, len(known_call.takes) - 1)]
            is_fit = (
                part.kind in (takes, Kind.ANY) or takes is Kind.ANY or (takes is Kind.NUMBER and part.kind.is_number)
            )
            if not is_fit:
                self._refuse(side, f"{function} takes {takes}, and {part.text} is {part.kind}")
        if function == "round" and len(parts) == 2:
            self._check_digits(tree.args[1])
        called = f"call_{function}"
        if function in _TAKE_NULLS:
            code = expression_code.call(called, *(part.code for part in parts))
        else:
            code = self._of(parts, lambda made: expression_code.call(called, *made))
        return Node(code, known_call.gives, self._source(tree), Role.CALL, parts, name=function)

    def _check_digits(self, tree: ast.expr) -> None:
        literal = tree.operand if isinstance(tree, ast.UnaryOp) else tree
        value = literal.value if isinstance(literal, ast.Constant) else None
        if type(value) is not int or value > DIGITS_MAX:
            self._refuse(tree, f"round takes a literal number of digits, at most {DIGITS_MAX}: round(rms, 2)")

    def _text_argument(self, tree: ast.Call, example: str) -> str:
        argument = tree.args[0] if len(tree.args) == 1 else None
        value = argument.value if isinstance(argument, ast.Constant) else None
        if not isinstance(value, str) or not value or not expression_code.is_encodable(value):
            self._refuse(tree, f"write the name as text: {example}")
        return value

    def _path(self, tree: ast.expr, depth: int, example: str) -> Node:
        node = self.node(tree, depth)
        if node.role not in (Role.FIELD, Role.LEVEL):
            self._refuse(tree, f"{node.text} is not a field; write {example}")
        return node

    def _exists(self, tree: ast.Call, depth: int) -> Node:
        example = 'exists(rms) or exists("motor.rpm")'
        if len(tree.args) != 1:
            self._refuse(tree, f"exists takes one field; write {example}")
        if isinstance(tree.args[0], ast.Constant):
            path: tuple[str | int, ...] = tuple(self._text_argument(tree, example).split("."))
            if len(path) > DEPTH_MAX:
                self._refuse(tree, f"a path has at most {DEPTH_MAX} names")
            self.paths.append(tuple(map(str, path)))
            return Node(expression_code.has_code("v", path), Kind.BOOL, self._source(tree))
        node = self._path(tree.args[0], depth, example)
        return Node(
            expression_code.has_code("v" if node.role is Role.FIELD else "levels", node.path),
            Kind.BOOL,
            self._source(tree),
        )

    def _default(self, tree: ast.Call, depth: int) -> Node:
        example = "default(rms, 0)"
        if len(tree.args) < 2:
            self._refuse(tree, f"default takes fields, and a value if all are missing; write {example}")
        if len(tree.args) > ARGUMENTS_MAX:
            self._refuse(tree, f"default takes at most {ARGUMENTS_MAX} values")
        *fields, other = tree.args
        paths = [self._path(each, depth, example) for each in fields]
        last = self.node(other, depth)
        code = last.code
        for path in reversed(paths):
            self._temporaries += 1
            temporary = f"t{self._temporaries}"
            there = ast.Compare(
                ast.NamedExpr(ast.Name(temporary, ast.Store()), expression_code.get_code(path)),
                [ast.IsNot()],
                [expression_code.constant(None)],
            )
            code = ast.IfExp(there, expression_code.name_code(temporary), code)
        is_text = last.kind is Kind.TEXT and all(path.role is Role.LEVEL for path in paths)
        return Node(code, Kind.TEXT if is_text else Kind.ANY, self._source(tree), Role.DEFAULT, [last])


# Compiled expressions, for one row or for many.

LevelsOf = Callable[[bytes], Mapping[str, str]]
"""Function that returns the named levels of a topic, such as ``Context.levels``."""
Failed = Callable[[Row, str], None]
"""Function that takes a row without result, and the reason, such as ``Out.reject``."""

_ONE = """
def run(row, levels):
    v = row.values
    return EXPRESSION
"""
_FILTER = """
def run(rows, levels_of, failed, drop):
    kept = []
    keep = kept.append
    for row in rows:
        try:
            v = row.values
            LEVELS
            if EXPRESSION:
                keep(row)
            else:
                drop(row)
        except Failure as error:
            failed(row, error)
    return kept
"""


class Expression:
    """A compiled expression. It has no state, and may be used by several threads."""

    def __init__(
        self, text: str, root: Node, paths: frozenset[Path], levels: frozenset[str], *, nulls: bool = False
    ) -> None:
        self.text = text
        self.paths = paths
        """Fields of the payload that it reads; for nested fields all names of the path."""
        self.fields = frozenset(path[0] for path in paths)
        """Fields of the payload that it reads, by their first name."""
        self.levels = levels
        """Named levels of the topic that it reads."""
        self.kind = root.kind
        """Kind of its results, as far as it is known."""
        self.node = root
        self._result = _with_checked_result(root, nulls=nulls)
        self._run = function(_ONE, {"EXPRESSION": self._result.code})
        self._reasons = Reasons(self._result)

    @property
    def code(self) -> ast.expr:
        """Python code that computes a checked result from ``row``, its values ``v`` and ``levels``."""
        return self._result.code

    def evaluate(self, row: Row, levels: Mapping[str, str]) -> Any:
        """Return the result for a row.

        Args:
            row: record with its decoded values.
            levels: named levels of its topic.

        Raises:
            ExpressionError: a field is missing, has the wrong type, or the result is not a value for payloads.
        """
        try:
            return self._run(row, levels)
        except Exception:
            raise ExpressionError(self._reasons.reason(row, levels)) from None


def compile_expression(text: str, levels: Collection[str], *, nulls: bool = False) -> Expression:
    """Compile an expression.

    Args:
        text: source, a checked subset of Python.
        levels: names of topic levels; they take precedence over fields of the same name.
        nulls: treat a missing field as null, and compute null from null, as in SQL.

    Raises:
        InvalidExpression: the text is not valid; the error has the column and the remedy.
    """
    return Expression(text, *parse(text, levels, nulls=nulls), nulls=nulls)


class Condition:
    """A compiled expression that is true or false, for many rows."""

    def __init__(self, text: str, levels: Collection[str], *, nulls: bool = False) -> None:
        """Compile a condition.

        Args:
            nulls: as for ``compile_expression``; a condition that is null does not hold.

        Raises:
            InvalidExpression: the text is not an expression, or is certainly neither true nor false.
        """
        self.expression = compile_expression(text, levels, nulls=nulls)
        root = self.expression.node
        if root.kind not in (Kind.BOOL, Kind.ANY):
            raise InvalidExpression(1, f"a condition is true or false, and this is {root.kind}; write a comparison")
        if root.kind is Kind.ANY:
            code = expression_code.call("condition_or_null" if nulls else "condition", root.code)
            root = Node(code, Kind.BOOL, root.text, Role.CONDITION, [root])
        self._reasons = Reasons(root)
        template = _FILTER.replace("LEVELS", levels_line(self.expression.levels))
        self._run = function(template, {"EXPRESSION": root.code})
        self._one = function(_ONE, {"EXPRESSION": root.code})

    def holds(self, row: Row, levels: Mapping[str, str]) -> bool:
        """Return whether the condition holds for a row.

        Raises:
            ExpressionError: it is neither true nor false there.
        """
        try:
            return bool(self._one(row, levels))
        except Exception:
            raise ExpressionError(self._reasons.reason(row, levels)) from None

    def filter_rows(
        self, rows: list[Row], levels_of: LevelsOf, failed: Failed, dropped: Callable[[Row], object] = lambda _: None
    ) -> list[Row]:
        """Return the rows for which the condition holds, in order.

        Args:
            rows: records with their decoded values.
            levels_of: topic -> its named levels.
            failed: receives rows on which the condition fails, with the reason.
            dropped: receives rows for which it does not hold.
        """

        def explain(row: Row, _error: Exception) -> None:
            failed(row, self._reasons.reason(row, levels_of(row.key)))

        kept: list[Row] = self._run(rows, levels_of, explain, dropped)
        return kept


def levels_line(levels: Collection[str]) -> str:
    """Return the template's line that looks up the levels of a row's topic, if they are used."""
    return "levels = levels_of(row.key)" if levels else "pass"


def _with_checked_result(root: Node, *, nulls: bool) -> Node:
    """Return an expression with a check of its result: no infinite number, and no integer that formats cannot hold."""
    is_literal = root.literal and root.role is Role.PLAIN  # and no sign before one: -(2**64 - 1) is out of bounds
    if root.role in (Role.FIELD, Role.LEVEL) or is_literal or root.kind in (Kind.TEXT, Kind.BOOL, Kind.NULL):
        return root  # A value of the payload passes unchanged.
    code = expression_code.call("result", root.code)
    if root.kind is Kind.DECIMAL and not nulls:
        # Inline, for the common case: a conversion of units costs a comparison more, and no call.
        value = ast.NamedExpr(ast.Name("t0", ast.Store()), root.code)
        limits: list[ast.expr] = [value, expression_code.constant(FLOAT_MAX)]
        is_finite = ast.Compare(expression_code.constant(-FLOAT_MAX), [ast.LtE(), ast.LtE()], limits)
        code = ast.IfExp(
            is_finite, expression_code.name_code("t0"), expression_code.call("result", expression_code.name_code("t0"))
        )
    return Node(code, root.kind, root.text, Role.RESULT, [root])


# Fields that expressions compute, for many rows at once.

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


__all__ = [
    "Condition",
    "Expression",
    "ExpressionError",
    "Failed",
    "FieldMaker",
    "InvalidExpression",
    "LevelsOf",
    "compile_expression",
]
