"""Groups from rows: their identity, and the keys of their outputs."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Row
from weft.edge_node.functions.paths import names_in
from weft.edge_node.functions.windows.groups import Group
from weft.edge_node.functions.windows.plan import WindowError
from weft.edge_node.functions.windows.refusal import Refusal

KEY, NONE = "key", "none"
TEXT_BYTES_MAX = 1024
"""Longest text that identifies a group, in bytes of UTF-8."""


class Naming:
    """Names of groups, by the key of the rows, or by fields and levels of their topic."""

    def __init__(self, by: tuple[str, ...], levels: Collection[str], stream: str) -> None:
        """Parse the settings.

        Raises:
            WindowError: a name is not a field.
        """
        self.by = () if by == (NONE,) else by
        self.is_key = self.by == (KEY,)
        self._stream = stream.encode()
        self.levels = [name for name in self.by if name in levels]
        """Levels of the topic that rows are grouped by."""
        self.code = [self._code(name, levels) for name in self.by]
        """Code of the value of each name, from ``row``, its values ``v`` and its ``levels``."""

    def _code(self, name: str, levels: Collection[str]) -> ast.expr:
        if name in levels:
            return _expression(f"levels[{name!r}]")
        if name == KEY:
            return _expression("w_text(row.key)")
        return field_code(name)

    def group(self, gid: bytes, memory: list[int] | None) -> Group:
        """Return a new group by its bytes."""
        if self.is_key:
            return Group(gid, None, gid, {}, memory)
        values = msgspec.msgpack.decode(gid) if self.by else []
        name = None
        if values and all(type(each) is str for each in values):
            name = values[0] if len(values) == 1 else tuple(values)
        key = "/".join(map(_text, values)).encode() if self.by else self._stream
        return Group(gid, name, key, dict(zip(self.by, values, strict=True)), memory)

    def gid(self, row: Row, values: tuple[Any, ...]) -> bytes:
        """Return the bytes that name the group of a row.

        Raises:
            Refusal: a value cannot identify a group.
        """
        if self.is_key:
            if len(row.key) > TEXT_BYTES_MAX:
                raise Refusal(f"its topic has more than {TEXT_BYTES_MAX} bytes; groups take shorter ones")
            return row.key
        if not self.by:
            return b""
        return msgspec.msgpack.encode([_plain(name, value) for name, value in zip(self.by, values, strict=True)])


def field_code(path: str) -> ast.expr:
    """Return the code that reads a field, from the values ``v`` of a row.

    Raises:
        WindowError: it is not a path of a field.
    """
    try:
        names = names_in(path)
    except ValueError as error:
        raise WindowError(str(error)) from None
    return _expression("v" + "".join(f"[{name!r}]" for name in names))


def text_of(key: bytes) -> str:
    """Return a key as text. Bytes that are not UTF-8 are replaced."""
    return key.decode(errors="replace")


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _plain(name: str, value: Any) -> Any:
    """Return the canonical value of a group. 2 and 2.0 are one number, as in SQL."""
    if type(value) is str:
        if len(value.encode(errors="replace")) > TEXT_BYTES_MAX:
            raise Refusal(f"{name} is a text of more than {TEXT_BYTES_MAX} bytes; groups take shorter ones")
        return value
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if type(value) is float and value - value == 0:
        return value
    if type(value) is bool or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    raise Refusal(f"{name} is {_shown(value)}, which names no group; groups take text, numbers, true and false")


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)[:40] if type(value) in (int, float) else f"a {type(value).__name__}"


def _text(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)
