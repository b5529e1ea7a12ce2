"""What a later document of the API takes away from clients of an earlier one: nothing, or it is named here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
FOLDER = Path(__file__).parent
WORDS = {"description", "title", "examples", "default"}
"""Keys of a schema that no client depends on."""
WIDER = {
    "minimum": min,
    "exclusiveMinimum": min,
    "minLength": min,
    "minItems": min,
    "maximum": max,
    "exclusiveMaximum": max,
    "maxLength": max,
    "maxItems": max,
}
"""Bound -> which of two lets more through. What a request may say can grow."""


def api_file(release: str) -> Path:
    """Return the file with the document that a release served."""
    return FOLDER / f"{release}.openapi.json"


class Side(NamedTuple):
    """One side of the conversation."""

    earlier: Schema
    now: Schema
    is_answer: bool


def broken(earlier: Schema, now: Schema) -> list[str]:
    """Return what a client of the earlier document misses."""
    return list(_broken(earlier, now))


def _broken(earlier: Schema, now: Schema) -> Iterator[str]:
    for path, methods in earlier["paths"].items():
        for method, operation in methods.items():
            place = f"{method.upper()} {path}"
            other = now["paths"].get(path, {}).get(method)
            if other is None:
                yield f"{place} is gone"
            else:
                yield from _operation(place, operation, other, earlier, now)


def _operation(place: str, earlier: Schema, now: Schema, all_earlier: Schema, all_now: Schema) -> Iterator[str]:
    if earlier["operationId"] != now["operationId"]:
        yield f"{place}: operationId is {now['operationId']}, it was {earlier['operationId']}"
    if lost := _scopes(earlier) - _scopes(now):
        yield f"{place} is not open to {', '.join(sorted(lost))} any more"
    asks, answers = Side(all_earlier, all_now, False), Side(all_earlier, all_now, True)
    known = {(each["in"], each["name"]): each for each in earlier["parameters"]}
    wanted = {(each["in"], each["name"]): each for each in now["parameters"]}
    for key, parameter in known.items():
        if key not in wanted:
            yield f"{place}: the parameter {key[1]} is gone"
            continue
        if wanted[key]["required"] and not parameter["required"]:
            yield f"{place}: the parameter {key[1]} is required now"
        yield from _schema(f"{place} {key[1]}", parameter["schema"], wanted[key]["schema"], asks)
    for key in wanted.keys() - known.keys():
        if wanted[key]["required"]:
            yield f"{place}: the new parameter {key[1]} is required"
    if "requestBody" in now:
        body = earlier.get("requestBody")
        if body is None:
            yield f"{place} needs a body now"
        else:
            yield from _contents(f"{place} body", body["content"], now["requestBody"]["content"], asks)
    status = min(earlier["responses"])  # those of errors are behind it
    success, other = earlier["responses"][status], now["responses"].get(status, {})
    for header in success.get("headers", {}).keys() - other.get("headers", {}).keys():
        yield f"{place}: the header {header} is gone"
    yield from _contents(f"{place} answer", success["content"], other.get("content", {}), answers)


def _scopes(operation: Schema) -> set[str]:
    return {scope for each in operation["security"] for scope in each.get("bearer", ())}


def _contents(place: str, earlier: Schema, now: Schema, side: Side) -> Iterator[str]:
    for kind, content in earlier.items():
        if kind not in now:
            yield f"{place}: {kind} is gone"
        else:
            yield from _schema(place, content["schema"], now[kind]["schema"], side)


def _schema(place: str, earlier: Schema, now: Schema, side: Side) -> Iterator[str]:
    """Yield the differences of two schemas that matter. Schemas of the API hold no circles."""
    was, has = _found(earlier, side.earlier), _found(now, side.now)
    for key in sorted((was.keys() | has.keys()) - WORDS - {"properties", "required", "items", "anyOf"}):
        one, two = was.get(key), has.get(key)
        if one == two:
            continue
        if key == "additionalProperties" and isinstance(one, dict) and isinstance(two, dict):
            yield from _schema(f"{place}.*", one, two, side)
        elif not (not side.is_answer and _is_wider(key, one, two)):
            yield f"{place}: {key} is {two!r}, it was {one!r}"
    yield from _members(place, was, has, side)
    if isinstance(was.get("items"), dict) and isinstance(has.get("items"), dict):
        yield from _schema(f"{place}[]", was["items"], has["items"], side)
    elif was.get("items") != has.get("items"):
        yield f"{place}: items is {has.get('items')!r}, it was {was.get('items')!r}"
    choices, others = was.get("anyOf", []), has.get("anyOf", [])
    if len(choices) != len(others):
        yield f"{place}: there are {len(others)} choices, there were {len(choices)}"
    for one, two in zip(choices, others, strict=False):
        yield from _schema(place, one, two, side)


def _members(place: str, was: Schema, has: Schema, side: Side) -> Iterator[str]:
    members = has.get("properties", {})
    for name, member in was.get("properties", {}).items():
        if name not in members:
            yield f"{place}.{name} is gone"
        else:
            yield from _schema(f"{place}.{name}", member, members[name], side)
    required, wanted = set(was.get("required", ())), set(has.get("required", ()))
    if side.is_answer:
        yield from (f"{place}.{name} may be absent now" for name in sorted(required - wanted))
    else:
        yield from (f"{place}.{name} is required now" for name in sorted(wanted - required))


def _found(schema: Schema, document: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    return {**document["components"]["schemas"][name], **{key: schema[key] for key in schema if key != "$ref"}}


def _is_wider(key: str, one: Any, two: Any) -> bool:
    if key == "enum" and one is not None:
        return two is None or set(one) <= set(two)
    return key in WIDER and (two is None or (one is not None and WIDER[key](one, two) == two))
