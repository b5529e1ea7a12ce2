"""Text forms of a payload schema: YAML or JSON, or the short form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.config.errors import ConfigError, Problem
from weft.config.load import parse
from weft.config.payload_schema.model import PayloadSchema, check_schema
from weft.config.payload_schema.short_form import written_out


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
    text = written_out(text, name, payload_format)
    return parse(text, name, PayloadSchema, lambda schema: list(check_schema(schema))).config


def schema_text(schema: PayloadSchema) -> str:
    """Return the JSON of a schema, which ``parse_schema`` reads."""
    return msgspec.json.encode(schema).decode()


def _written(value: Mapping[str, Any], name: str) -> str:
    try:
        return msgspec.json.encode(dict(value)).decode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem(name, 0, (), f"expected text, numbers, lists and mappings alone: {error}")]
        ) from None
