"""Errors of Spark's analysis as one sentence: Spark appends plans, codes and traces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_sinks.runtime.session import is_connect

_CODE = re.compile(r"^\s*\[([A-Z][A-Z0-9_.]*)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"[;.,]?\s*\(?line (\d+)[,]? pos(?:ition)? (\d+)\)?")
_TICKS = re.compile(r"`([^`]*)`")
SENTENCE_CHARACTERS_MAX = 600


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error is one of Spark's own, with a condition and a message."""
    return isinstance(error, PySparkException)


def plan_of(frame: DataFrame) -> str:
    """Return the analysed plan of a DataFrame; empty with Spark Connect, where only the server has it."""
    return "" if is_connect(frame.sparkSession) else str(frame._jdf.queryExecution().analyzed().toString())


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
