"""JSON Schema of the models, for editors, and their settings as a flat list, for the reference page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from weft.config.fields import UNITS, Shape, default_of, model_shape, shape_of, unit_of
from weft.config.values import OneOf

_NUMBER_KEYS = ("minimum", "maximum")


class Setting(NamedTuple):
    """One setting as the reference page shows it."""

    path: str
    expected: str
    default: str
    description: str


def schema(model: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the YAML that ``config.load`` reads as ``model``."""
    generated = _as_written(msgspec.json.schema(model))
    assert isinstance(generated, dict)
    for choice in OneOf.__subclasses__():
        if choice.__name__ in generated["$defs"]:
            definition = generated["$defs"][choice.__name__]
            definition |= {"minProperties": 1, "maxProperties": 1 + len(choice.beside)}
            if choice.beside:
                names = [name for name in definition["properties"] if name not in choice.beside]
                definition["oneOf"] = [{"required": [name]} for name in names]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}


def _as_written(node: Any) -> Any:
    """Describe values as people write them (64MiB, 10s); msgspec describes them as the model holds them (bytes,
    seconds)."""
    if isinstance(node, list):
        return [_as_written(each) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("default"), dict):
        # A section's default only repeats those of its settings.
        node = {key: value for key, value in node.items() if key != "default"}
    if "x-short" in node:
        return _with_short({key: value for key, value in node.items() if key != "x-short"}, node["x-short"])
    unit = UNITS[node["x-unit"]] if "x-unit" in node else None
    if unit is not None:
        node = {key: value for key, value in node.items() if key not in ("x-unit", *_NUMBER_KEYS)}
        if unit.written != ("string",) and node.get("type") != "array":
            node |= {"type": [*unit.written]}
        if unit.pattern is not None:
            node |= {"pattern": unit.pattern}
            if "default" in node:
                node["default"] = unit.format(node["default"])
    else:
        optional = next((UNITS[each["x-unit"]] for each in node.get("anyOf", ()) if "x-unit" in each), None)
        if optional is not None and node.get("default") is not None:
            node = node | {"default": optional.format(node["default"])}
    written = {key: _as_written(value) for key, value in node.items()}
    if written.get("type") == "array" and "$ref" not in written.get("items", {}):
        # A single value may stand for a list; a section may not, as its dash would be missed at the second one.
        both = {key: written.pop(key) for key in ("type", "items", "minItems", "maxItems") if key in written}
        written["anyOf"] = [both.get("items", {}), both]
    return written


def _with_short(section: dict[str, Any], short: str) -> dict[str, Any]:
    """Add the single value that may stand for a section, which may be null."""
    choices = section.pop("anyOf", None) or [{"$ref": section.pop("$ref")}]
    (reference,) = (each["$ref"] for each in choices if "$ref" in each)
    return {**section, "anyOf": [*choices, {"$ref": f"{reference}/properties/{short}"}]}


def settings(model: type[msgspec.Struct]) -> Iterator[Setting]:
    """Yield every setting of ``model``, each section before its settings, in the order of the model."""
    yield from _settings(model_shape(model), "")


def _settings(struct: inspect.StructType, prefix: str) -> Iterator[Setting]:
    for field in struct.fields:
        shape = shape_of(field.type)
        path = f"{prefix}{field.encode_name}"
        section, suffix = _section(shape.type)
        if section is None:
            yield Setting(path, _words(shape), _default(field, shape), shape.description)
            continue
        description = shape.description or (section.cls.__doc__ or "").strip()
        yield Setting(f"{path}{suffix}", "section", "", description)
        yield from _settings(section, f"{path}{suffix}.")


def _section(type_: inspect.Type) -> tuple[inspect.StructType | None, str]:
    if isinstance(type_, inspect.StructType):
        return type_, ""
    if isinstance(type_, inspect.UnionType):
        return next((found for each in type_.types if (found := _section(shape_of(each).type))[0]), (None, ""))
    if isinstance(type_, inspect.VarTupleType):
        section, suffix = _section(shape_of(type_.item_type).type)
        return section, f"[]{suffix}"
    if isinstance(type_, inspect.DictType):
        return _section(shape_of(type_.value_type).type)[0], ".<name>"
    return None, ""


def _words(shape: Shape) -> str:
    inner = shape.type
    if isinstance(inner, inspect.UnionType):
        shapes = [shape_of(each) for each in inner.types if not isinstance(each, inspect.NoneType)]
        return ", or ".join(_words(each._replace(unit=each.unit or shape.unit)) for each in shapes)
    words = "text"
    if shape.unit is not None:
        words = UNITS[shape.unit].words
    elif isinstance(inner, inspect.LiteralType):
        words = " or ".join(f"`{value}`" for value in inner.values)
    elif isinstance(inner, inspect.IntType):
        words = "a whole number"
    elif isinstance(inner, inspect.FloatType):
        words = "a number"
    elif isinstance(inner, inspect.BoolType):
        words = "`true` or `false`"
    elif isinstance(inner, inspect.AnyType):
        words = "any value"
    elif isinstance(inner, inspect.VarTupleType):
        item = _words(shape_of(inner.item_type))
        words = "a list of names" if item == "text" else f"{item}, or a list of them"
    elif isinstance(inner, inspect.DictType):
        words = f"a mapping: name -> {_words(shape_of(inner.value_type))}"
    if isinstance(inner, inspect.VarTupleType) and shape.unit is not None:
        words += ", or a list of them"
    if isinstance(inner, inspect.IntType | inspect.FloatType):
        show = UNITS[shape.unit].format if shape.unit else str
        bounds = (("at least", inner.ge), ("at most", inner.le), ("more than", inner.gt), ("less than", inner.lt))
        words += "".join(f", {word} {show(bound)}" for word, bound in bounds if bound is not None)
    return words


def _default(field: inspect.Field, shape: Shape) -> str:
    if field.required:
        return "required"
    value = default_of(field)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    unit = unit_of(shape.type) or shape.unit
    return UNITS[unit].format(value) if unit else str(value)
