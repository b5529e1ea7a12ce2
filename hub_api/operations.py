"""All operations of the API, and the OpenAPI document of them: each is declared once, in the module of its resource.

The hub serves it (a handler below its name), the document describes it, ``weft.client`` has a method of that name. To
add one: write the types of its body and its answer in the module of its resource in this package, and an ``Operation``
below them. A route under ``/v1`` without one fails a test.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from weft.hub_api import (
    acts,
    edges,
    messages,
    pipelines,
    pulls,
    records,
    regions,
    schemas,
    shards,
    status,
    streams,
    tenants,
    tokens,
)
from weft.hub_api.answers import Problem
from weft.hub_api.operation import ERRORS, TAGS, Operation, Parameter

UNDESCRIBED = {
    "/v1/link": "a WebSocket with a protocol of its own (docs/reference/formats/link.md)",
    "/v1/pair": "asked by edges without a token, and not by readers (docs/reference/formats/link.md)",
}
"""Route under ``/v1`` that the document leaves out -> reason."""


OPERATIONS: tuple[Operation, ...] = (
    *status.OPERATIONS,
    *acts.OPERATIONS,
    *regions.OPERATIONS,
    *shards.OPERATIONS,
    *streams.OPERATIONS,
    *records.OPERATIONS,
    *schemas.OPERATIONS,
    *edges.OPERATIONS,
    *messages.OPERATIONS,
    *pulls.OPERATIONS,
    *pipelines.OPERATIONS,
    *tenants.OPERATIONS,
    *tokens.OPERATIONS,
)
"""All operations, in the order of the document."""


OF_NAME: Mapping[str, Operation] = {each.name: each for each in OPERATIONS}


def operation_of(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """Return the operation of a request, and the parameters in its path and its query, as texts."""
    where, _, query = path.partition("?")
    parts = where.split("/")
    for each in OPERATIONS:
        of = each.path.split("/")
        if each.method == method.lower() and len(of) == len(parts):
            named = {name[1:-1]: unquote(part) for name, part in zip(of, parts, strict=True) if name.startswith("{")}
            if all(name.startswith("{") or name == part for name, part in zip(of, parts, strict=True)):
                return each, {**dict(parse_qsl(query, keep_blank_values=True)), **named}
    raise LookupError(f"{method} {where} is not an operation of the API")


# The OpenAPI 3.1 document of the operations, as JSON values.

Schema = dict[str, Any]
OPENAPI = "3.1.0"
API_VERSION = "1"
"""Version of the API, which is in its paths. Releases add to it, and remove nothing."""
_REFERENCE = "#/components/schemas/{name}"
_DESCRIPTION = """\
Later releases may add fields, parameters and operations; they remove none, and none changes its meaning. A client
ignores fields that it does not know. Times are RFC 3339 text in UTC with nanoseconds. Ranges have `first` and `end`:
`end` is one past the last. A hub without tokens asks for none. Every error is a
problem document (RFC 9457), whose `advice` is the remedy. Go by its status: its type may get narrower."""


@functools.cache
def document() -> Schema:
    """Return the document of this release. It takes some ten milliseconds, once."""
    return describe(OPERATIONS)


def describe(operations: Sequence[Operation]) -> Schema:
    """Return the OpenAPI document of some operations."""
    types = list(_types(operations))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, Schema] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method] = _operation(each, by_type)
    for struct in _structs(types):
        _document_fields(components[struct.__name__], struct)
    return {
        "openapi": OPENAPI,
        "info": {"title": "Weft hub", "version": API_VERSION, "description": _DESCRIPTION},
        "tags": [{"name": each.name, "description": each.description} for each in TAGS],
        "paths": paths,
        "components": {
            "schemas": {name: components[name] for name in sorted(components)},
            "responses": {str(status): _error(meaning, by_type) for status, meaning in ERRORS.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operations: Sequence[Operation]) -> Iterable[Any]:
    yield Problem
    yield int
    for each in operations:
        yield from (parameter.type for parameter in each.parameters)
        yield from (type_ for type_ in (each.answer, each.as_json, each.body) if type_ is not None)


def _key(type_: Any) -> str:
    """Return a name of a type. Annotated types compare by their bounds, which are not all hashable."""
    return repr(type_)


def _operation(each: Operation, by_type: Mapping[str, Schema]) -> Schema:
    answer: Schema = {"format": "binary"} if each.answer is None else by_type[_key(each.answer)]
    success: Schema = {"description": "The answer.", "content": {each.content_type: {"schema": answer}}}
    if each.as_json is not None:
        success["content"]["application/json"] = {"schema": by_type[_key(each.as_json)]}
    if each.headers:
        success["headers"] = {
            name: {"description": meaning, "schema": by_type[_key(int)]} for name, meaning in each.headers.items()
        }
    errors = {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(each.errors)}
    made: Schema = {
        "operationId": each.name,
        "tags": [each.tag],
        "summary": each.summary,
        "description": " ".join(_descriptions(each)),
        "security": [{"bearer": [scope.value]} for scope in each.scopes],
        "parameters": [_parameter(parameter, by_type) for parameter in each.parameters],
        "responses": {str(each.status): success, **errors},
    }
    if each.body is not None:
        content = {"application/json": {"schema": by_type[_key(each.body)]}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _descriptions(each: Operation) -> Iterable[str]:
    yield each.description
    if each.right is not None:
        yield f"Needs the right `{each.right}`."
    if each.command:
        yield f"`{each.command}` does the same."


def _parameter(parameter: Parameter, by_type: Mapping[str, Schema]) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": by_type[_key(parameter.type)],
    }


def _error(meaning: str, by_type: Mapping[str, Schema]) -> Schema:
    return {"description": meaning, "content": {"application/problem+json": {"schema": by_type[_key(Problem)]}}}


def _structs(types: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Return the structs that types consist of, each once."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.StructType):
            if each.cls in found:
                continue
            found[each.cls] = None
            waiting += [field.type for field in each.fields]
        elif isinstance(each, msgspec.inspect.UnionType):
            waiting += each.types
        elif isinstance(each, msgspec.inspect.Metadata):
            waiting.append(each.type)
        elif isinstance(each, msgspec.inspect.DictType):
            waiting.append(each.value_type)
        elif isinstance(each, msgspec.inspect.TupleType):
            waiting += each.item_types
        elif isinstance(each, msgspec.inspect.CollectionType):
            waiting.append(each.item_type)
    return list(found)


def _document_fields(component: Schema, struct: type[msgspec.Struct]) -> None:
    """Add the docstrings of a struct's fields to its schema."""
    for base in struct.__mro__:
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        for name, text in field_docs(base).items():
            member = component["properties"].get(name)
            if member is not None:
                member.setdefault("description", text)


def field_docs(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the docstring below each field of a struct's own."""
    found = {}
    body = _classes(struct.__module__)[struct.__qualname__].body
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


@functools.cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    # Python keeps no docstrings of fields, and `inspect.getsource` of a class parses its module again for each.
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
