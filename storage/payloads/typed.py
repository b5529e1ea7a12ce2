"""Payloads of JSON and MessagePack decoded by msgspec into exactly the fields of a schema: the quick way for those that
fit, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from weft.config.payload_schema.model import SchemaFormat
from weft.config.payload_schema.types import FieldType
from weft.protocols.payloads import NESTING_MAX, nests_at_most
from weft.storage.payloads.formats import PAYLOAD_BYTES_MAX, opens_few
from weft.storage.payloads.tree import Node

_REJECTED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
_SINGLE: dict[str, Any] = {
    "bool": bool,
    # Whole numbers may be written 1.0, which msgspec rejects for an integer.
    "int": int | float,
    "float": float,
    "string": str,
    "binary": bytes,
    "base64": bytes,
}


def attribute_of(number: int) -> str:
    """Return the attribute of a decoded object for the name at a position in its node (``Node.names``)."""
    return f"f{number}"


class TypedDecoder:
    """A decoder of payloads into objects with the fields of a tree."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], name: SchemaFormat) -> None:
        """Make the decoder.

        Raises:
            LookupError: there is no quick way for these paths.
        """
        self._made: dict[Any, Any] = {}
        self.is_json = name == "json"
        shape = self._shape(root, kinds, is_root=True)
        if self.is_json:
            decoder = msgspec.json.Decoder(shape)
            self._decode: Callable[[bytes], Any] = decoder.decode
            self.decode_lines = decoder.decode_lines
        else:
            self._decode = msgspec.msgpack.Decoder(shape).decode

    def decode(self, payload: bytes) -> Any:
        """Return the object of a payload; None if it must be read the exact way."""
        try:
            return self._decode(payload) if self._passes(payload) else None
        except _REJECTED:
            return None

    def _passes(self, payload: bytes) -> bool:
        """Return whether the exact way would accept a payload that can be decoded."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            return False
        if not self.is_json:
            return opens_few(payload)
        # msgspec does not check the text of skipped fields for valid UTF-8.
        if not payload.isascii():
            payload.decode()
        return nests_at_most(NESTING_MAX, payload)

    def _shape(self, node: Node, kinds: Sequence[FieldType], *, is_root: bool = False) -> Any:
        """Return the type of a place. Equal places have equal types, as the items of an array need."""
        inside = [*node.inside()]
        if len(node.fields) + bool(node.names) + bool(node.places) != 1:
            raise LookupError("a place has two meanings")
        if node.fields:
            found = self._single(kinds[node.fields[0]])
        elif node.places:
            shapes = [self._shape(each, kinds) for each in inside]
            if any(shape != shapes[0] for shape in shapes):
                raise LookupError("the items of an array have different types")
            found = list[shapes[0]]  # type: ignore[valid-type]
        else:
            shapes = [self._shape(each, kinds) for each in inside]
            found = self._object(tuple(node.names), shapes)
        return found if is_root else found | None

    def _object(self, names: tuple[str, ...], shapes: list[Any]) -> Any:
        key = (names, tuple(map(repr, shapes)))
        if key not in self._made:
            attributes = {attribute_of(number): name for number, name in enumerate(names)}
            fields = [(attribute, shape, None) for attribute, shape in zip(attributes, shapes, strict=True)]
            self._made[key] = msgspec.defstruct(f"Object{len(self._made)}", fields, rename=attributes, gc=False)
        return self._made[key]

    def _single(self, kind: FieldType) -> Any:
        if kind.item is not None:
            return list[self._single(kind.item) | None]  # type: ignore[misc]
        if kind.name == "decimal":
            # For a float in MessagePack, the exact way uses its shortest text, so floats are left to it.
            return Decimal if self.is_json else int | str
        if kind.name == "timestamp":
            # msgspec would read text as a time by rules of its own.
            return str if kind.unit is None else int | float
        return _SINGLE[kind.name]
