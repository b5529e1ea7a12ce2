"""Topics and payloads of messages, from names in braces or from expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Context, Row
from weft.edge_node.functions.expressions import Expression, ExpressionError, InvalidExpression, compile_expression
from weft.edge_node.functions.paths import MISSING, getter

VALUE_CHARACTERS_MAX = 1024
"""Longest text of one value in a topic or text."""
TOPIC_BYTES_MAX = 65_535
"""Longest topic (MQTT 5.0 section 1.5.4)."""
_PART = re.compile(r"\{([^{}]*)\}|([{}])")
_NOT_IN_LEVELS = re.compile(r"[/+#\0]")


class Template:
    """A text with names in braces: ``key``, ``time``, topic levels and fields of the payload."""

    def __init__(self, text: str, context: Context) -> None:
        """Parse a text.

        Raises:
            ValueError: a brace is alone, or a name is not valid.
        """
        self._parts: list[str | tuple[str, Callable[[Row], Any]]] = []
        names = {found[1] for found in _PART.finditer(text) if found[1] is not None}
        known = {"key", "time", *context.level_names}
        self.fields = frozenset(name.partition(".")[0] for name in names - known)
        """Fields of the rows that are read, by their first names."""
        position = 0
        for found in _PART.finditer(text):
            if found[2]:
                raise ValueError(f"column {found.start() + 1}: a {found[2]} is alone; write names in braces: {{key}}")
            self._parts += [text[position : found.start()], (found[1], _source(found[1], context))]
            position = found.end()
        self._parts.append(text[position:])
        self.literal = "".join(part for part in self._parts if isinstance(part, str))
        """The text without the names."""

    def fill(self, row: Row, clean: Callable[[str, str], str] = lambda _, text: text) -> str:
        """Return the text for a row.

        Args:
            clean: changes the text of a value, given its name and the text.

        Raises:
            ExpressionError: a field is missing.
        """
        done = []
        for part in self._parts:
            if isinstance(part, str):
                done.append(part)
                continue
            name, get = part
            value = get(row)
            if value is MISSING:
                raise ExpressionError(f"field {name} is missing")
            done.append(clean(name, _text(value)))
        return "".join(done)


class Topic:
    """A topic with names in braces. A value other than ``key`` stays within its level: separators of levels, and
    wildcards, become ``_``."""

    def __init__(self, text: str, context: Context) -> None:
        """Parse a topic.

        Raises:
            ValueError: it is not a valid topic.
        """
        self._template = Template(text, context)
        self.fields = self._template.fields
        """Fields of the rows that are read, by their first names."""
        if re.search(r"[+#\0]", self._template.literal):
            raise ValueError("a topic to publish to has no + and no #")
        if text.startswith("$"):
            raise ValueError("topics that begin with $ are the node's own")

    def fill(self, row: Row) -> bytes:
        """Return the topic for a row.

        Raises:
            ExpressionError: a field is missing, or the topic too long.
        """
        topic = self._template.fill(row, _clean).encode()
        if not topic or len(topic) > TOPIC_BYTES_MAX or topic.startswith(b"$"):
            raise ExpressionError(f"no topic to publish to: {topic[:80]!r}")
        return topic


class Payload:
    """Payloads of messages: JSON of a whole row, JSON of expressions, or a text with names in braces."""

    def __init__(self, payload: Mapping[str, str] | str | None, context: Context) -> None:
        """Compile the settings.

        Raises:
            ValueError: an expression or the text is not valid.
        """
        self._levels = context.levels
        self._template = Template(payload, context) if isinstance(payload, str) else None
        self._expressions: dict[str, Expression] = {}
        self.fields: frozenset[str] | None = None
        """Fields of the rows that are read, by their first names; None for all."""
        if self._template is not None:
            self.fields = self._template.fields
        elif isinstance(payload, Mapping):
            self._expressions = {name: _compiled(name, text, context) for name, text in payload.items()}
            self.fields = frozenset[str]().union(*(each.fields for each in self._expressions.values()))

    def fill(self, row: Row) -> bytes:
        """Return the payload for a row.

        Raises:
            ExpressionError: a field is missing, or an expression fails.
        """
        if self._template is not None:
            return self._template.fill(row).encode()
        if not self._expressions:
            key = row.key.decode(errors="replace")
            return _json({"key": key, "time": row.time / 10**9, "values": row.values})
        levels = self._levels(row.key)
        return _json({name: each.evaluate(row, levels) for name, each in self._expressions.items()})


def _compiled(name: str, text: str, context: Context) -> Expression:
    try:
        return compile_expression(text, context.level_names, nulls=context.nulls)
    except InvalidExpression as error:
        raise error.of(name) from None


def _json(values: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ExpressionError(f"the message cannot be JSON: {error}") from None


def _source(name: str, context: Context) -> Callable[[Row], Any]:
    if name in context.level_names:
        return lambda row: context.levels(row.key).get(name, MISSING)
    if name == "key":
        return lambda row: row.key.decode(errors="replace")
    if name == "time":
        return lambda row: row.time / 10**9
    get = getter(name)
    return lambda row: get(row.values)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:VALUE_CHARACTERS_MAX]
    if isinstance(value, bytes):
        return value.hex()[:VALUE_CHARACTERS_MAX]
    return json.dumps(value, ensure_ascii=False, default=str)[:VALUE_CHARACTERS_MAX]


def _clean(name: str, text: str) -> str:
    return text if name == "key" else _NOT_IN_LEVELS.sub("_", text) or "_"
