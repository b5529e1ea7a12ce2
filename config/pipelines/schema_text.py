"""Text forms of a payload schema: YAML or JSON, or ``temperature float, unit string`` as Spark writes columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from weft.config.errors import ConfigError, Problem
from weft.config.load import parse
from weft.config.payload_schema.model import PayloadSchema, check_schema
from weft.config.payload_schema.types import SPARK_NAMES
from weft.config.units import quoted

EXAMPLE = "`temperature float, unit string`"
_YAML = re.compile(r"\s*(?:\{|#|---|(?:format|fields)\s*:)")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:`]+))\s*:?\s+(.+?)(\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+")
_OPENING, _CLOSING = "(<", ")>"


def parse_schema(
    text: str | Mapping[str, Any], name: str = "schema", payload_format: str | None = None
) -> PayloadSchema:
    """Return the schema of a text or of a mapping with the same keys.

    Args:
        text: YAML or JSON of the model, or the short form: ``temperature float, unit string not null``. The short form
            also knows Spark's names of types: ``double``, ``bigint``, ``boolean``.
        name: name of the text in errors.
        payload_format: format of the payloads, where the text is the short form; None takes ``json``.

    Raises:
        ConfigError: the text is not a schema; the message names the place and the fix.
    """
    if not isinstance(text, str):
        text = _written(text, name)
    is_yaml = _YAML.match(text) is not None
    if is_yaml and payload_format is not None:
        raise _error(
            name, f"has a format of its own: leave out payload_format, or write `format: {payload_format}` into it"
        )
    if not is_yaml:
        fields = dict(_columns(text, name))
        text = _written({"fields": fields} | ({} if payload_format is None else {"format": payload_format}), name)
    return parse(text, name, PayloadSchema, lambda schema: list(check_schema(schema))).config


def schema_text(schema: PayloadSchema) -> str:
    """Return the JSON of a schema, which ``parse_schema`` reads."""
    return msgspec.json.encode(schema).decode()


def _written(value: Mapping[str, Any], name: str) -> str:
    try:
        return msgspec.json.encode(dict(value)).decode()
    except (TypeError, ValueError) as error:
        raise _error(name, f"expected text, numbers, lists and mappings alone: {error}") from None


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
