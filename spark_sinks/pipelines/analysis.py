"""Errors of Spark's analysis as one sentence: Spark appends plans, codes and traces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_sinks.runtime.session import is_connect

_CODE = re.compile(r"^\s*\[([A-Z][A-Z0-9_.]*)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"[;.,]?\s*\(?line (\d+)[,]? pos(?:ition)? (\d+)\)?")
_TICKS = re.compile(r"`([^`]*)`")
SENTENCE_CHARACTERS_MAX = 600
_MARK = "weft.source"
"""Key in a column's metadata, with the name that the source gave it."""
_NODES_MAX = 10_000
"""Maximum number of nodes of a plan that are looked at for one column."""


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error is one of Spark's own, with a condition and a message."""
    return isinstance(error, PySparkException)


def plan_of(frame: DataFrame) -> str:
    """Return the analysed plan of a DataFrame; empty with Spark Connect, where only the server has it."""
    return "" if is_connect(frame.sparkSession) else str(frame._jdf.queryExecution().analyzed().toString())


def marked(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return a DataFrame whose named columns are known as the source's own in what is made of it."""
    for name in names:
        frame = frame.withMetadata(name, {**frame.schema[name].metadata, _MARK: name})
    return frame


def is_own(frame: DataFrame, name: str) -> bool:
    """Return whether each value of a column is that of the marked column of the same name.

    It is false where that cannot be seen, as behind ``mapInPandas``. With Spark Connect, where only the server has the
    plan, the column's metadata decide: another column or an expression has none, and the result of a function may.
    """
    if is_connect(frame.sparkSession):
        return bool(frame.schema[name].metadata.get(_MARK) == name)
    plan = frame._jdf.queryExecution().analyzed()
    return _is_of_mark(plan, plan.output().apply(frame.columns.index(name)), name)


def _is_of_mark(plan: Any, column: Any, name: str) -> bool:
    """Follow a column of an analysed plan down to where it was marked; of a union, in each of its parts."""
    defined: dict[int, Any] = {}
    waiting = [(plan, column)]
    for _ in range(_NODES_MAX):
        if not waiting:
            return True
        node, column = waiting.pop()
        kind = node.nodeName()
        if kind == "WithCTE":
            defined |= {each.id(): each.child() for each in _listed(node.cteDefs())}
        if kind == "Union":
            at = _place(node.output(), column)
            waiting += [(each, each.output().apply(at)) for each in _listed(node.children())]
        elif kind == "CTERelationRef":
            query = defined[node.cteId()]
            waiting.append((query, query.output().apply(_place(node.output(), column))))
        elif (below := _below(node, column)) is not None:
            waiting.append((below, column))
        else:
            made = _made(node, column)
            if made is None:
                return False
            if made.metadata().contains(_MARK) and made.explicitMetadata().isDefined():
                if made.metadata().getString(_MARK) != name:
                    return False
            elif made.child().nodeName() == "AttributeReference":
                waiting.append((node, made.child()))
            else:
                return False
    return False


def _below(node: Any, column: Any) -> Any | None:
    """Return the child of a node that hands a column on; None if the node makes it."""
    return next((each for each in _listed(node.children()) if each.outputSet().contains(column)), None)


def _made(node: Any, column: Any) -> Any | None:
    """Return the expression with which a SELECT names a column; None for other nodes."""
    kind = node.nodeName()
    if kind not in ("Project", "Aggregate"):
        return None
    named = _listed(node.projectList() if kind == "Project" else node.aggregateExpressions())
    return next((each for each in named if each.nodeName() == "Alias" and _is_same(each, column)), None)


def _place(columns: Any, column: Any) -> int:
    return next(at for at, each in enumerate(_listed(columns)) if _is_same(each, column))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one.exprId().equals(other.exprId()))


def _listed(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    return (sequence.apply(at) for at in range(sequence.size()))


def condition(error: BaseException) -> str:
    """Return the name of Spark's error condition, such as ``UNRESOLVED_COLUMN.WITH_SUGGESTION``; empty without one."""
    getter = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return (getter() if getter else None) or ""


def explained(error: BaseException, tables: Sequence[str] = (), lines_before: int = 0) -> str:
    """Return an error of analysis as a sentence.

    Args:
        tables: names that a SELECT may read here.
        lines_before: lines in front of the user's SQL in the text that Spark parsed.
    """
    text = str(error).strip()
    place = _PLACE.search(text)
    named = condition(error)
    sentence = _of_condition(named, text, tables) or _plain(text)
    line = int(place[1]) - lines_before if place else 0
    if place and named == "PARSE_SYNTAX_ERROR":
        found = f"{sentence} (line {line}, column {int(place[2]) + 1} of the SQL)" if line > 0 else sentence
        return f"{found}. Expected a SELECT, such as `SELECT line, avg_temp FROM input`"  # noqa: S608
    return f"{sentence} (line {line} of the SQL)" if line > 1 else sentence


def _of_condition(named: str, text: str, tables: Sequence[str]) -> str | None:
    ticks = _TICKS.findall(text)
    if named.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD")) and ticks:
        column = ".".join(_name(text))
        near = _suggestions(text)
        return f"there is no column {column} here" + (f". Did you mean {' or '.join(near[:3])}?" if near else "")
    if named == "TABLE_OR_VIEW_NOT_FOUND" and ticks and tables:
        return f"there is no table {ticks[0]}. A step can read {', '.join(tables)}"
    return None


def _name(text: str) -> list[str]:
    """Return the parts of the first name in backticks: ```a`.`b```."""
    match = re.search(r"`[^`]*`(?:\.`[^`]*`)*", text)
    return _TICKS.findall(match[0]) if match else []


def _suggestions(text: str) -> list[str]:
    match = re.search(r"following\? \[([^\]]*)\]", text)
    return [".".join(_TICKS.findall(part)) for part in match[1].split(", ")] if match else []


def _plain(text: str) -> str:
    """Return Spark's own sentence: without its code, its state, and the plan that follows."""
    text = _CODE.sub("", text)
    text = _STATE.split(text)[0]
    text = re.split(r";?\s*\n(?:['~+!]|==|[A-Z]\w+ \[|\s*at |\n)", text)[0]
    text = _PLACE.sub("", " ".join(text.split())).rstrip(" ;.")
    if len(text) > SENTENCE_CHARACTERS_MAX:
        text = f"{text[:SENTENCE_CHARACTERS_MAX]}..."
    return text
