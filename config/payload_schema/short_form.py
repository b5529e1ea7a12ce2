"""Short form of a schema, ``temperature float, unit string``, as Spark writes columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from weft.config.errors import ConfigError, Problem
from weft.config.payload_schema.types import SPARK_NAMES
from weft.config.units import quoted

EXAMPLE = "`temperature float, unit string`"
_YAML = re.compile(r"\s*(?:\{|#|---|(?:format|fields)\s*:)")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:`]+))\s*:?\s+(.+?)(\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+")
_OPENING, _CLOSING = "(<", ")>"


def written_out(text: str, name: str, payload_format: str | None = None) -> str:
    """Return a schema as YAML or JSON of the model: the text itself, unless it is the short form.

    Args:
        name: name of the text in errors.
        payload_format: format of the payloads, where the text is the short form; None takes ``json``.

    Raises:
        ConfigError: it is neither, or has a format beside ``payload_format``.
    """
    if _YAML.match(text) is not None:
        if payload_format is not None:
            raise _error(
                name, f"has a format of its own: leave out payload_format, or write `format: {payload_format}` into it"
            )
        return text
    fields = dict(_columns(text, name))
    return json.dumps({"fields": fields} | ({} if payload_format is None else {"format": payload_format}))


def _error(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, 0, (), message)])


def _columns(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    seen: set[str] = set()
    for part in _split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise _error(name, f"expected columns such as {EXAMPLE}, or YAML with `fields:`, got {quoted(part)}")
        column = match[1] or match[2]
        if column in seen:
            raise _error(name, f"{column} is named twice: keep one")
        seen.add(column)
        type_ = _WORD.sub(lambda word: SPARK_NAMES.get(word[0].lower(), word[0]), match[3])
        yield column, {"type": type_} | ({"required": True} if match[4] else {})


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas; commas in brackets do not count."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
