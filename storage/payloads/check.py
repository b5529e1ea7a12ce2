"""Check of single payloads against a schema, for nodes that take them: what fits is decided as for tables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from weft.config.payload_schema.model import PayloadSchema
from weft.config.payload_schema.types import FieldType
from weft.storage.payloads.exact import ExactReader
from weft.storage.payloads.fits import fit, in_json
from weft.storage.payloads.formats import parts_of
from weft.storage.payloads.misfits import MISSING, PAYLOAD, Misfit, RowMisfits
from weft.storage.payloads.tree import Node, tree
from weft.storage.payloads.typed import TypedDecoder, attribute_of

CHECKED_BYTES_MAX = 24 << 10
"""Longest payload that an event loop may check: an array of as many items takes up to 10 ms, in one step."""
Get = Callable[[Any], Any]
_AS_DECODED = frozenset({"bool", "float", "string", "binary", "base64"})
"""Types that msgspec checks whole."""


class PayloadCheck:
    """A check of payloads of one schema. Stateless; for one thread."""

    def __init__(self, schema: PayloadSchema) -> None:
        """Make the check of a schema that ``check_schema`` has accepted."""
        names = [*schema.fields]
        declared = [schema.fields[name] for name in names]
        kinds = [each.type if schema.format != "json" else in_json(each.type) for each in declared]
        root = tree([each.path(name) for name, each in zip(names, declared, strict=True)])
        self._names = names
        self._required = [number for number, each in enumerate(declared) if each.required]
        self._exact = ExactReader(names, kinds, root, parts_of(schema))
        self._typed: TypedDecoder | None = None
        self._looks: list[tuple[Get, FieldType | None, bool]] = []
        """Function that gets a field's value from a decoded object, the type if msgspec does not check that whole, and
        True if the field is required."""
        if schema.format in {"json", "msgpack"}:
            try:
                self._typed = TypedDecoder(root, kinds, schema.format)
            except LookupError:
                return  # there is no quick way for this schema
            for number, get in _gets(root, _itself):
                kind = None if (kinds[number].item or kinds[number]).name in _AS_DECODED else kinds[number]
                if kind is not None or declared[number].required:
                    self._looks.append((get, kind, declared[number].required))

    def misfits(self, payload: bytes) -> list[tuple[str, str]]:
        """Return the fields of a payload that do not fit, each with the reason; empty if all do."""
        if self._typed is not None and self._fits(self._typed.decode(payload)):
            return []
        found = RowMisfits()
        values = self._exact.read(payload, found)
        for number in self._required:
            name = self._names[number]
            if values[number] is None and name not in found.reasons and PAYLOAD not in found.reasons:
                found.add(name, MISSING)
        return found.items()

    def _fits(self, row: Any) -> bool:
        """Return whether a decoded object fits for certain. None stands for one that could not be decoded."""
        if row is None:
            return False
        try:
            for get, kind, required in self._looks:
                value = get(row)
                if value is None:
                    if required:
                        return False
                elif kind is not None:
                    fit(kind, value)
        except Misfit:
            return False
        return True


def _itself(row: Any) -> Any:
    return row


def _gets(node: Node, get: Get) -> Iterator[tuple[int, Get]]:
    """Yield the number of each field below a place, and the function that takes its value out of a decoded object."""
    for number in node.fields:
        yield number, get
    for at, inside in enumerate(node.names.values()):
        yield from _gets(inside, _attribute(get, attribute_of(at)))
    for place, inside in node.places.items():
        yield from _gets(inside, _item(get, place))


def _attribute(get: Get, name: str) -> Get:
    own = operator.attrgetter(name)
    if get is _itself:
        return own
    return lambda row: None if (within := get(row)) is None else own(within)


def _item(get: Get, place: int) -> Get:
    return lambda row: within[place] if (within := get(row)) is not None and len(within) > place else None
