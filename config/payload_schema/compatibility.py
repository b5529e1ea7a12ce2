"""Compatibility of a version of a schema with the one before: whose payloads which version still reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from weft.config.payload_schema.avro import parse_avro
from weft.config.payload_schema.model import PayloadSchema, SchemaField
from weft.config.payload_schema.paths import format_path
from weft.config.payload_schema.protobuf import ProtoMessage, column_type, parse_descriptors
from weft.config.payload_schema.types import FieldType

Compatibility = Literal["none", "backward", "forward", "full"]
RULES: tuple[Compatibility, ...] = ("none", "backward", "forward", "full")
INT_DIGITS = 19
"""Digits of the largest whole number of 64 bits."""


def incompatible(before: PayloadSchema, after: PayloadSchema, rule: Compatibility) -> list[str]:
    """Return why a version does not keep a rule, a sentence for each field; empty if it does.

    ``backward``: the later version reads all payloads that fit the one before, so that devices may stay as they are.
    ``forward``: the version before reads all payloads that fit the later one, so that readers may. ``full``: both. A
    field of the same name and path counts as the same field; one that is not required may come and go.
    """
    found: list[str] = []
    if rule in {"backward", "full"}:
        found += (f"backward: {why}" for why in unreadable(before, after))
    if rule in {"forward", "full"}:
        found += (f"forward: {why}" for why in unreadable(after, before))
    return found


def unreadable(written: PayloadSchema, read: PayloadSchema) -> Iterator[str]:
    """Yield why payloads that fit one schema do not all fit another, or would mean something else there."""
    if written.format != read.format:
        yield f"payloads of format {written.format} are no {read.format}"
        return
    if written.framing != read.framing:
        yield f"framing {written.framing or 'none'} is not {read.framing or 'none'}"
    yield from _unreadable_definition(written, read)
    for name, wanted in read.fields.items():
        if (given := written.fields.get(name)) is None:
            if wanted.required:
                yield f"{name} is required, and the other version does not have it"
            continue
        yield from _unreadable_field(name, given, wanted)


def _unreadable_field(name: str, given: SchemaField, wanted: SchemaField) -> Iterator[str]:
    if given.path(name) != wanted.path(name):
        paths = [format_path(each.path(name)) for each in (given, wanted)]
        yield f"{name} is at {paths[0]}, and not at {paths[1]}"
    if wanted.required and not given.required:
        yield f"{name} is required, and may be missing in the other version"
    if not is_read_as(given.type, wanted.type):
        yield f"{name}: not every {given.type} is a {wanted.type}"
    if given.unit is not None and wanted.unit is not None and given.unit != wanted.unit:
        yield f"{name} has unit {given.unit}, and not {wanted.unit}"


def is_read_as(given: FieldType, wanted: FieldType) -> bool:
    """Return whether every value of a type fits another, with the same meaning. Whole numbers above 2^53 are rounded as
    `float`."""
    if given == wanted:
        return True
    if given.item is not None and wanted.item is not None:
        return is_read_as(given.item, wanted.item)
    if wanted.name == "decimal":
        whole = wanted.digits - wanted.scale
        if given.name == "decimal":
            return given.scale <= wanted.scale and given.digits - given.scale <= whole
        return given.name == "int" and whole >= INT_DIGITS
    return given.name == "int" and wanted.name == "float"


def _unreadable_definition(written: PayloadSchema, read: PayloadSchema) -> Iterator[str]:
    if written.definition is None or read.definition is None:
        return
    if written.format == "avro":
        if _plain_avro(written.definition) != _plain_avro(read.definition):
            yield "payloads of Avro can be read by the definition alone that they were written with"
        return
    ours, theirs = (parse_descriptors(each.definition or "", each.message) for each in (written, read))
    yield from _unreadable_message(ours, theirs, set())


def _plain_avro(definition: str) -> Any:
    """Return a definition without what does not change the bytes of payloads."""
    parse_avro(definition)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in {"doc", "aliases", "default"}}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return plain(json.loads(definition))


def _unreadable_message(written: ProtoMessage, read: ProtoMessage, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the fields of a message, by number, whose bytes mean something else. Fields of one side alone are passed
    over, as Protobuf does."""
    if (written.name, read.name) in seen:
        return
    seen.add((written.name, read.name))
    for number, each in written.fields.items():
        other = read.fields.get(number)
        if other is None:
            continue
        if other.name != each.name:
            yield f"field {number} of {written.name} is {each.name}, and not {other.name}"
        elif (other.kind, other.repeated) != (each.kind, each.repeated):
            kind = column_type(each) or "message"
            yield f"field {each.name} of {written.name} is of another type of Protobuf, and not this {kind}"
        elif each.message is not None and other.message is not None:
            yield from _unreadable_message(each.message, other.message, seen)
