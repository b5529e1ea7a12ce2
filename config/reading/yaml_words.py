"""YAML's own errors, reworded for the person who wrote the file."""

from __future__ import annotations

import re
from typing import NamedTuple

import yaml

from weft.config.units import quoted

_NEEDS_QUOTES = re.compile(r"found character '([^\\])' that cannot start any token")
_MARKS = "*&!"
"""Characters that begin an alias, an anchor and a tag: none of them has a meaning in a configuration."""
_VALUE = re.compile(r"(?:.*?:\s+|\s*-\s+)(?P<value>\S.*?)\s*")
_FLOW_END = re.compile(r",\s|\s?[\]}]+\s*$|(?<=\S)\s+[\]}]")
_NO_SPACE = re.compile(r"\s*[a-z_]+:[^\s:]")
_INDENTATION = "the indentation does not fit the lines above. Settings of one section begin in the same column"


class LineProblem(NamedTuple):
    """A line, counted from 1 (0 for the file as a whole), and the problem there."""

    line: int
    message: str


def explained(error: yaml.YAMLError, text: str) -> LineProblem:
    """Return the place where a text is not YAML, and what to write instead."""
    if isinstance(error, yaml.reader.ReaderError):
        number = text.count("\n", 0, error.position) + 1
        return LineProblem(number, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML. Delete it")
    if not isinstance(error, yaml.MarkedYAMLError):
        return LineProblem(0, f"this is not YAML: {str(error).splitlines()[0]}")
    at = error.problem_mark or error.context_mark
    if at is None:
        return LineProblem(0, f"this is not YAML: {error.problem or error.context}")
    lines = text.splitlines()
    line = lines[at.line] if at.line < len(lines) else ""
    opened = error.context_mark.line if error.context_mark is not None else at.line
    return _explained(error, line, at, opened, lines) or LineProblem(
        at.line + 1, f"this is not YAML: {error.problem or error.context}"
    )


def _explained(
    error: yaml.MarkedYAMLError, line: str, at: yaml.Mark, opened: int, lines: list[str]
) -> LineProblem | None:
    """Explain the most common mistakes, by the words of PyYAML and the line itself."""
    problem, context = error.problem or "", error.context or ""
    number = at.line + 1
    if r"'\t'" in problem:
        return LineProblem(number, "a tab is used for indentation. Replace it with spaces: YAML allows no tabs there")
    if line[: at.column].rstrip().endswith(("}", "]")) and ("block end" in problem or "expected ','" in problem):
        return LineProblem(number, _quotes_for(_bracketed(line, at.column)))
    if match := _NEEDS_QUOTES.search(problem):
        return LineProblem(number, _quotes_for(_value(line, at.column) or match[1]))
    value = _VALUE.fullmatch(line)
    if value and value["value"][0] in _MARKS and ("alias" in context + problem or "anchor" in context):
        return LineProblem(number, _quotes_for(value["value"]))
    if "mapping values are not allowed" in problem:
        return _second_colon(line, number, lines)
    if line[: at.column].rstrip().endswith(("'", '"')) and "expected <block end>" in problem:
        return LineProblem(number, "text follows after a quoted value. Put all of the value in one pair of quotes")
    if "end of stream" in problem and "quoted scalar" in context:
        return LineProblem(opened + 1, "a quote that begins here is not closed")
    if "expected ',' or" in problem:
        return LineProblem(opened + 1, "a bracket that opens here is not closed, or a comma is missing after an entry")
    if "could not find expected ':'" in problem:
        return LineProblem(
            opened + 1, f"expected `name: value`, with a space after the colon, got {quoted(lines[opened])}"
        )
    if "another document" in problem:
        return LineProblem(number, "a second document begins here. One file holds one configuration: delete the `---`")
    if "unknown escape character" in problem:
        return LineProblem(number, "a backslash in double quotes begins an escape. Use single quotes")
    return LineProblem(number, _INDENTATION) if "expected <block end>" in problem else None


def _second_colon(line: str, number: int, lines: list[str]) -> LineProblem:
    """Explain an unexpected colon: the value needs quotes, or the line above lacks a space after its colon."""
    if line.count(": ") > 1:
        return LineProblem(number, "a value with a colon and a space needs quotes")
    if number > 1 and _NO_SPACE.match(lines[number - 2]):
        return LineProblem(number - 1, f"a space is missing after the colon of {quoted(lines[number - 2].strip())}")
    return LineProblem(number, _INDENTATION)


def _bracketed(line: str, column: int) -> str:
    """Return the bracketed value that ends before ``column``."""
    start = line.rfind("{" if line[:column].rstrip().endswith("}") else "[", 0, column)
    return _value(line, start)


def _value(line: str, start: int) -> str:
    """Return the value that begins at ``start``, up to a comment, or inside brackets up to a comma or the closing
    bracket."""
    value = line[start:].partition(" #")[0]
    is_inside = bool({"{", "["} & set(line[:start]))
    return (_FLOW_END.split(value, maxsplit=1)[0] if is_inside else value).strip()


def _quotes_for(value: str) -> str:
    return f"a value that begins with {value[0]} needs quotes. Write {quoted(value)}"
