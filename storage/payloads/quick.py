"""The quick way through payloads of JSON and MessagePack that fit: msgspec decodes exactly the requested fields.

Payloads that it rejects are read the exact way (``payloads.formats``). For all others, both give the same.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.config.payload_schema.model import SchemaFormat
from weft.config.payload_schema.types import FieldType
from weft.protocols.payloads import NESTING_MAX
from weft.storage.payloads.formats import PAYLOAD_BYTES_MAX
from weft.storage.payloads.tree import Node
from weft.storage.payloads.typed import TypedDecoder, attribute_of

Values = list[list[Any]]
"""Values of the rows by field; null if a payload lacks the field."""
_OPEN, _CLOSE, _ARRAY = b"{"[0], b"}"[0], b"["[0]


class Quick:
    """A decoder of payloads into the values of a tree of fields."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], name: SchemaFormat) -> None:
        """Make the decoder.

        Raises:
            LookupError: there is no quick way for these paths.
        """
        self._root = root
        self._count = len(kinds)
        self._typed = TypedDecoder(root, kinds, name)

    def all(self, payloads: pa.Array) -> Values | None:
        """Return the values of payloads that are objects of JSON and all fit; None when one of them may not.

        They are decoded as lines of one text, which takes two thirds of the time of decoding each. A line is not always
        a row: it may hold two values, or none if it is empty. But if each payload begins with ``{`` and ends with
        ``}``, no value continues in the next line: at the end of a line the text is behind a value, where no ``{`` may
        follow, or in a string, where no line may end. So each line has one value or more, and equal numbers of values
        and payloads mean one each.
        """
        if not self._typed.is_json or not self._root.names or not _are_objects(payloads):
            return None
        lines = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
        text = pc.binary_join(lines, b"\n")[0].as_buffer().to_pybytes()
        try:
            if not text.isascii():
                text.decode()
            rows = self._typed.decode_lines(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return None
        return self._values(rows) if len(rows) == len(payloads) else None

    def each(self, payloads: Sequence[bytes]) -> tuple[Values, list[int]]:
        """Return the values of payloads, and the numbers of the payloads that must be read the exact way."""
        rows = list(map(self._typed.decode, payloads))
        others = [number for number, row in enumerate(rows) if row is None]
        return self._values(rows), others

    def _values(self, rows: list[Any]) -> Values:
        values: Values = [[]] * self._count
        _collect(self._root, rows, values)
        return values


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
        attribute = operator.attrgetter(attribute_of(number))
        if None in rows:
            _collect(inside, [None if row is None else attribute(row) for row in rows], values)
        else:
            _collect(inside, list(map(attribute, rows)), values)
