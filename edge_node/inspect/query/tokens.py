"""Analysis of the words of a query, to skip records that it certainly does not need.

Only two shapes are recognised: a single SELECT over a single stream whose WHERE is a chain of ANDs, and one over the
first or the newest few records. All other queries are left to SQLite, which gets all records and returns the same
result, slower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from weft.edge_node.inspect.query.errors import QueryRefused
from weft.edge_node.inspect.query.times import earliest_ns

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]"
    r"|[^\W\d][\w$]*|\d[\w.]*|<=|>=|<>|!=|==|<<|>>|\|\||->>|->|.",
    re.DOTALL,
)
_UNCLEAR = frozenset(
    {"OR", "NOT", "CASE", "BETWEEN", "UNION", "INTERSECT", "EXCEPT", "JOIN", "WITH", "EXISTS", "COLLATE", "VALUES"}
)
_END_OF_WHERE = frozenset({"GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", ";"})
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FUNCTIONS = frozenset({"NOW", "DATETIME", "DATE", "STRFTIME"})
_MORE_THAN_ROWS = frozenset({"DISTINCT", "WHERE", "UNION", "INTERSECT", "EXCEPT", "WITH", "VALUES", "OVER", "OFFSET"})
_OF_ONE_ROW = frozenset({"LEVEL", "JSON_EXTRACT", "JSON_VALID", "LENGTH", "SUBSTR", "ROUND", "DATETIME", "DATE", "IIF"})
_LIKE_ISO = re.compile(r"'\d{4}-\d\d-\d\d[Tt]")


def words(sql: str) -> list[str]:
    """Return the tokens of a statement without spaces and comments."""
    return [part for part in _TOKEN.findall(sql) if not part.isspace() and not part.startswith(("--", "/*"))]


def refuse_other_times(tokens: Sequence[str]) -> None:
    """Refuse ``time > '2026-11-20T07:00'``: as text it sorts behind every time of that day, which is never intended.

    Raises:
        QueryRefused: the query has such a comparison.
    """
    for name, operator, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        left, right = (name, value) if _LIKE_ISO.match(value) else (value, name)
        if left.lower() == "time" and operator in (*_MIRRORED, "=", "==") and _LIKE_ISO.match(right):
            fixed = right[:11] + " " + right[12:].rstrip("Z'z") + "'"
            raise QueryRefused(f"times are written with a space here, in UTC: {fixed} instead of {right}")


def earliest_wanted(tokens: Sequence[str], table: str, evaluate: Callable[[str], object]) -> int | None:
    """Return the earliest time, ns since 1970, of records that can matter; None when all may.

    Args:
        table: the only stream that the query reads.
        evaluate: returns the value of a constant expression.
    """
    upper = [part.upper() for part in tokens]
    if upper.count("SELECT") != 1 or upper.count("WHERE") != 1 or not _UNCLEAR.isdisjoint(upper):
        return None
    if _mentions(tokens, table) != 1:
        return None
    bounds = [_bound(term, evaluate) for term in _terms(tokens, upper)]
    return max((bound for bound in bounds if bound is not None), default=None)


class Few(NamedTuple):
    """The number of records that a query reads from one end of a stream."""

    rows: int
    newest: bool


def few_wanted(tokens: Sequence[str], table: str) -> Few | None:
    """Return the n of ``SELECT ... FROM table [ORDER BY seq [DESC]] LIMIT n``; None for other queries.

    Args:
        table: the only stream that the query reads.
    """
    upper = [each.upper() for each in tokens if each != ";"]
    if upper.count("SELECT") != 1 or not _MORE_THAN_ROWS.isdisjoint(upper) or _mentions(tokens, table) != 1:
        return None
    calls = {name for name, after in pairwise(upper) if after == "("}
    if not calls <= _OF_ONE_ROW or len(upper) < 2 or upper[-2] != "LIMIT" or not upper[-1].isdecimal():
        return None
    start = upper.index("FROM") if "FROM" in upper else 0
    if upper[start + 1].strip('"`[]').lower() != table:
        return None
    order = upper[start + 2 : -2]
    if order in ([], ["ORDER", "BY", "SEQ", "DESC"]):
        return Few(int(upper[-1]), newest=bool(order))
    return None


def _mentions(tokens: Sequence[str], table: str) -> int:
    """Return the number of times that the query names the table other than before a column: a table joined to itself
    has no single bound."""
    pairs = zip(tokens, [*tokens[1:], ""], strict=True)
    return sum(1 for part, after in pairs if after != "." and part.strip('"`[]').lower() == table)


def _terms(tokens: Sequence[str], upper: Sequence[str]) -> Iterator[list[str]]:
    """Yield the terms of the WHERE between its ANDs."""
    term: list[str] = []
    depth = 0
    for part, word in zip(tokens, upper, strict=True):
        if word == "WHERE":
            term, depth = [], 0
            continue
        depth += (part == "(") - (part == ")")
        if depth == 0 and word in _END_OF_WHERE:
            break
        if depth == 0 and word == "AND":
            yield term
            term = []
        else:
            term.append(part)
    yield term


def _bound(term: Sequence[str], evaluate: Callable[[str], object]) -> int | None:
    if len(term) > 2 and term[1] == ".":
        term = term[2:]
    column, *rest = term or [""]
    if column.lower() in ("time", "time_ns") and rest and rest[0] in (">", ">="):
        return _value(column, rest[1:], evaluate)
    last = term[-1] if term else ""
    before = term[-2] if len(term) > 1 else ""
    if last.lower() in ("time", "time_ns") and before in ("<", "<="):
        return _value(last, term[:-2], evaluate)
    return None


def _value(column: str, operand: Sequence[str], evaluate: Callable[[str], object]) -> int | None:
    if not _is_constant(operand):
        return None
    value = evaluate(" ".join(operand))
    if column.lower() == "time_ns":
        return value if isinstance(value, int) else None
    return earliest_ns(value) if isinstance(value, str) else None


def _is_constant(operand: Sequence[str]) -> bool:
    """Return whether a term is a literal, or a call of a time function with only literals."""
    if len(operand) == 1:
        return operand[0][0] == "'" or operand[0].isdecimal()
    if len(operand) < 3 or operand[0].upper() not in _FUNCTIONS or operand[1] != "(" or operand[-1] != ")":
        return False
    return all(part == "," or part[0] == "'" or part.isdecimal() for part in operand[2:-1])
