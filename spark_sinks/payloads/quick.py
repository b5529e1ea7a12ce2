"""The quick way through payloads of JSON and MessagePack that fit: msgspec decodes exactly the requested fields.

Payloads that it rejects are read the exact way (``payloads.formats``). For all others, both give the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_sinks.payloads.formats import PAYLOAD_BYTES_MAX, opens_few
from spark_sinks.payloads.tree import Node
from weft.config.payload_schema.model import SchemaFormat
from weft.config.payload_schema.types import FieldType
from weft.protocols.payloads import NESTING_MAX, nests_at_most

Values = list[list[Any]]
"""Values of the rows by field; null if a payload lacks the field."""
_OPEN, _CLOSE, _ARRAY = b"{"[0], b"}"[0], b"["[0]
_SINGLE: dict[str, Any] = {
    "bool": bool,
    # Whole numbers may be written 1.0, which msgspec rejects for an integer.
    "int": int | float,
    "float": float,
    "string": str,
    "binary": bytes,
    "base64": bytes,
}


class Quick:
    """A decoder of payloads into the values of a tree of fields."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], name: SchemaFormat) -> None:
        """Make the decoder.

        Raises:
            LookupError: there is no quick way for these paths.
        """
        self._root = root
        self._count = len(kinds)
        self._made: dict[Any, Any] = {}
        self._is_json = name == "json"
        shape = self._shape(root, kinds, is_root=True)
        if self._is_json:
            decoder = msgspec.json.Decoder(shape)
            self._decode: Callable[[bytes], Any] = decoder.decode
            self._decode_lines = decoder.decode_lines
        else:
            self._decode = msgspec.msgpack.Decoder(shape).decode

    def all(self, payloads: pa.Array) -> Values | None:
        """Return the values of payloads that are objects of JSON and all fit; None when one of them may not.

        They are decoded as lines of one text, which takes two thirds of the time of decoding each. A line is not always
        a row: it may hold two values, or none if it is empty. But if each payload begins with ``{`` and ends with
        ``}``, no value continues in the next line: at the end of a line the text is behind a value, where no ``{`` may
        follow, or in a string, where no line may end. So each line has one value or more, and equal numbers of values
        and payloads mean one each.
        """
        if not self._is_json or not self._root.names or not _are_objects(payloads):
            return None
        lines = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
        text = pc.binary_join(lines, b"\n")[0].as_buffer().to_pybytes()
        try:
            if not text.isascii():
                text.decode()
            rows = self._decode_lines(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return None
        return self._values(rows) if len(rows) == len(payloads) else None

    def each(self, payloads: Sequence[bytes]) -> tuple[Values, list[int]]:
        """Return the values of payloads, and the numbers of the payloads that must be read the exact way."""
        rows: list[Any] = []
        others: list[int] = []
        decode, passes = self._decode, self._passes
        for number, payload in enumerate(payloads):
            try:
                rows.append(decode(payload) if passes(payload) else None)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
                rows.append(None)
            if rows[-1] is None:
                others.append(number)
        return self._values(rows), others

    def _passes(self, payload: bytes) -> bool:
        """Return whether the exact way would accept a payload that can be decoded."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            return False
        if not self._is_json:
            return opens_few(payload)
        # msgspec does not check the text of skipped fields for valid UTF-8.
        if not payload.isascii():
            payload.decode()
        return nests_at_most(NESTING_MAX, payload)

    def _values(self, rows: list[Any]) -> Values:
        values: Values = [[]] * self._count
        _collect(self._root, rows, values)
        return values

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
            attributes = {f"f{number}": name for number, name in enumerate(names)}
            fields = [(attribute, shape, None) for attribute, shape in zip(attributes, shapes, strict=True)]
            self._made[key] = msgspec.defstruct(f"Object{len(self._made)}", fields, rename=attributes, gc=False)
        return self._made[key]

    def _single(self, kind: FieldType) -> Any:
        if kind.item is not None:
            return list[self._single(kind.item) | None]  # type: ignore[misc]
        if kind.name == "decimal":
            # For a float in MessagePack, the exact way uses its shortest text, so floats are left to it.
            return Decimal if self._is_json else int | str
        if kind.name == "timestamp":
            # msgspec would read text as a time by rules of its own.
            return str if kind.unit is None else int | float
        return _SINGLE[kind.name]


def _are_objects(payloads: pa.Array) -> bool:
    """Return whether each payload begins with ``{``, ends with ``}`` and is neither too long nor too deep."""
    _, offsets_buffer, data_buffer = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.min() < 2 or lengths.max() > PAYLOAD_BYTES_MAX:
        return False
    data = np.frombuffer(data_buffer, np.uint8)
    if not (data[offsets[:-1]] == _OPEN).all() or not (data[offsets[1:] - 1] == _CLOSE).all():
        return False
    if lengths.max() <= NESTING_MAX:
        return True
    within = data[offsets[0] : offsets[-1]]
    opening = (within == _OPEN) | (within == _ARRAY)
    counts = np.add.reduceat(opening, offsets[:-1] - offsets[0], dtype=np.int32)
    return bool((counts <= NESTING_MAX).all())


def _collect(node: Node, rows: list[Any], values: Values) -> None:
    """Collect the values of the fields below a place from each row."""
    for number in node.fields:
        values[number] = rows
    for place, inside in node.places.items():
        items = [row[place] if row is not None and len(row) > place else None for row in rows]
        _collect(inside, items, values)
    for number, inside in enumerate(node.names.values()):
        attribute = operator.attrgetter(f"f{number}")
        if None in rows:
            _collect(inside, [None if row is None else attribute(row) for row in rows], values)
        else:
            _collect(inside, list(map(attribute, rows)), values)
