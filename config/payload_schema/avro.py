"""Schemas of Avro (Apache Avro 1.12, "Schema Declaration"): parsed, and as fields of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.config.payload_schema.paths import STEPS_MAX, Path, format_path

TYPES_MAX = 4096
"""Maximum number of types of a schema."""
DEPTH_MAX = 64
"""Maximum depth of types in each other, as they are written; a type may refer to itself by its name."""
FIXED_BYTES_MAX = 1 << 20
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_UNITS = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
_TYPES = {"boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float", "string": "string",
          "enum": "string", "bytes": "binary", "fixed": "binary"}  # fmt: skip


@dataclass(eq=False)
class AvroType:
    """A type of a schema."""

    kind: str
    """One of ``PRIMITIVES``, ``record``, ``enum``, ``array``, ``map``, ``union`` or ``fixed``."""
    fields: list[AvroField] = field(default_factory=list)
    inside: list[AvroType] = field(default_factory=list)
    """The branches of a union; the items of an array or a map."""
    symbols: list[str] = field(default_factory=list)
    size: int = 0
    """Bytes of a fixed."""
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None


def parse_avro(text: str) -> AvroType:
    """Return the type of a schema in JSON.

    Raises:
        ValueError: it is not a schema of Avro.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a schema of Avro in JSON: {error}") from None
    return _AvroReader().type(written, "", 0)


class _AvroReader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._count = 0

    def type(self, written: Any, space: str, depth: int) -> AvroType:
        self._count += 1
        if self._count > TYPES_MAX or depth > DEPTH_MAX:
            raise ValueError(f"the schema of Avro has more than {TYPES_MAX} types, or {DEPTH_MAX} in each other")
        if isinstance(written, str):
            if written in PRIMITIVES:
                return AvroType(written)
            named = self._named.get(written if "." in written else _full(written, space)) or self._named.get(written)
            if named is None:
                raise ValueError(f"there is no type {written[:80]!r} of Avro, and none before it has this name")
            return named
        if isinstance(written, list):
            return AvroType("union", inside=[self.type(each, space, depth + 1) for each in written])
        if not isinstance(written, dict):
            raise ValueError(f"expected a type of Avro, got {str(written)[:80]}")
        return self._object(written, space, depth)

    def _object(self, written: dict[str, Any], space: str, depth: int) -> AvroType:
        kind = written.get("type")
        if kind not in {"record", "error", "enum", "fixed", "array", "map", *PRIMITIVES}:
            return self.type(kind, space, depth + 1)
        made = AvroType("record" if kind == "error" else kind)
        made.logical = written.get("logicalType") if isinstance(written.get("logicalType"), str) else None
        made.precision, made.scale = _number(written, "precision"), _number(written, "scale")
        if kind in {"array", "map"}:
            made.inside = [self.type(written.get("items" if kind == "array" else "values"), space, depth + 1)]
        if kind in {"record", "error", "enum", "fixed"}:
            name = written.get("name")
            if not isinstance(name, str):
                raise ValueError(f"a {kind} of Avro has no name")
            space = name.rpartition(".")[0] or str(written.get("namespace") or space)
            self._named[name if "." in name else _full(name, space)] = made
        if kind == "fixed":
            made.size = _number(written, "size")
            if made.size > FIXED_BYTES_MAX:
                raise ValueError(f"a fixed of Avro has {made.size} bytes, at most {FIXED_BYTES_MAX} are decoded")
        if kind == "enum":
            made.symbols = [str(each) for each in _list(written, "symbols")]
        for each in _list(written, "fields") if kind in {"record", "error"} else ():
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise ValueError(f"a field of record {written['name']} of Avro has no name")
            doc = each.get("doc")
            inside = self.type(each.get("type"), space, depth + 1)
            made.fields.append(AvroField(each["name"], inside, doc if isinstance(doc, str) else None))
        return made


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space else name


def _number(written: dict[str, Any], name: str) -> int:
    found = written.get(name, 0)
    if type(found) is not int or not 0 <= found < 1 << 31:
        raise ValueError(f"{name} of Avro: expected a number, got {str(found)[:80]}")
    return found


def _list(written: dict[str, Any], name: str) -> list[Any]:
    found = written.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} of Avro: expected a list, got {str(found)[:80]}")
    return found


def avro_fields(root: AvroType) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the places of a schema that can be columns, with the settings of their fields; None for one that cannot."""
    yield from _fields(root, (), None, set())


def _fields(
    kind: AvroType, path: Path, doc: str | None, above: set[int]
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    if kind.kind == "union":
        branches = [each for each in kind.inside if each.kind != "null"]
        if len(branches) != 1:
            yield path, None
            return
        kind = branches[0]
    if kind.kind == "record":
        # A record within itself has no end. One without fields is a place: callers bound the places that they take.
        if id(kind) in above or len(path) >= STEPS_MAX or not kind.fields:
            yield path, None
            return
        for each in kind.fields:
            yield from _fields(each.type, (*path, each.name), each.doc, above | {id(kind)})
        return
    settings: dict[str, Any] = {"type": column_type(kind), "from": format_path(path)}
    if settings["type"] is None:
        yield path, None
        return
    yield path, settings | ({"description": doc[:1024]} if doc else {})


def column_type(kind: AvroType) -> str | None:
    """Return the type of a column for values of a type; None if there is none."""
    if kind.kind == "array":
        item = column_type(kind.inside[0])
        return None if item is None or item.startswith("array") else f"array<{item}>"
    if kind.logical in _UNITS and kind.kind == "long":
        return f"timestamp({_UNITS[kind.logical]})"
    if kind.logical == "decimal" and kind.kind in {"bytes", "fixed"} and 1 <= kind.precision <= 38:
        return f"decimal({kind.precision},{min(kind.scale, kind.precision)})"
    return _TYPES.get(kind.kind)
