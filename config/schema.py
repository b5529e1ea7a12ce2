"""JSON Schema of the models, for editors, and their settings as a flat list, for the reference page."""

from __future__ import annotations

import functools
import ipaddress
import operator
import os.path
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import inspect

from weft.config import units
from weft.config.payload_schema import model as types
from weft.config.payload_schema import paths
from weft.config.units import BUCKETS, WRITTEN, OneOf

# Units, bounds and descriptions of the models, for the loader, the schema and the reference.

ADVERTISED_BYTES_MAX = 256
"""Longest URL of a hub process: it is the process's name, too, in an entry that others read (``storage.presence``)."""


class Shape(NamedTuple):
    """A type without its ``Annotated`` layers: the type itself, the unit of its text form, and its description."""

    type: inspect.Type
    unit: str | None
    description: str
    short: str | None = None
    """Setting of a section that may stand for the whole section."""
    examples: tuple[str, ...] = ()
    """Valid texts, quoted in error messages."""


def shape_of(type_: inspect.Type) -> Shape:
    """Unwrap the ``Annotated`` layers of a type."""
    extra: dict[str, Any] = {}
    while isinstance(type_, inspect.Metadata):
        extra = {**(type_.extra_json_schema or {}), **extra}
        type_ = type_.type
    return Shape(
        type_, extra.get("x-unit"), extra.get("description", ""), extra.get("x-short"), (*extra.get("examples", ()),)
    )


def unit_of(type_: inspect.Type) -> str | None:
    """Return the unit of a type's text form, also where the setting may be null, or is a list."""
    shape = shape_of(type_)
    inner: list[inspect.Type] = []
    if isinstance(shape.type, inspect.UnionType):
        inner = [each for each in shape.type.types if not isinstance(each, inspect.NoneType)]
    elif isinstance(shape.type, inspect.VarTupleType):
        inner = [shape.type.item_type]
    return shape.unit or next((unit for each in inner if (unit := unit_of(each)) is not None), None)


@functools.cache
def model_shape(model: type[msgspec.Struct]) -> inspect.StructType:
    """Return the fields of a model."""
    shape = inspect.type_info(model)
    assert isinstance(shape, inspect.StructType)
    return shape


def default_of(field: inspect.Field) -> Any:
    """Return a field's default value; ``msgspec.NODEFAULT`` when it is required."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


class Unit(NamedTuple):
    """The text form of a value. ``parse`` takes the text and the folder of the file, and raises ``ValueError``."""

    words: str
    parse: Callable[[str, str], Any]
    format: Callable[[Any], str]
    pattern: str | None = None
    written: tuple[str, ...] = ("string",)
    """YAML types that the value may have, by their names in JSON Schema."""


def _bind(text: str, _folder: str) -> str:
    units.parse_bind(text)
    return text


def _listen(text: str, folder: str) -> str:
    parsed = units.parse_listen(text)
    if isinstance(parsed, units.UnixSocket):
        return str(units.parse_listen(f"unix:{_path(parsed.path, folder)}"))
    return text


def _network(text: str, _folder: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(
            f"expected an address or network such as 192.0.2.7 or 192.0.2.0/28, got {units.quoted(text)}"
        ) from None


def _host(text: str, _folder: str) -> str:
    name = text.strip().lower().removesuffix(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError(f"expected a host name without port such as edge.example.com, got {units.quoted(text)}")
    return name


def _path(text: str, folder: str) -> str:
    if not text or "\0" in text:
        raise ValueError(f"expected a path, got {units.quoted(text)}")
    if text.startswith("~"):
        raise ValueError(f"expected a path written out, without ~, got {units.quoted(text)}")
    return os.path.abspath(os.path.join(folder, text))


ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):|(s3|gs|az)//")
"""Beginning of a text that is neither a URL nor, in all likelihood, meant as a path: ``s3:/bucket``, ``s3//bucket``, or
``C:\\store``."""


def _store(text: str, folder: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        if found := ONE_SLASH.match(text):
            kind = next((word for word in found.groups() if word in BUCKETS), "s3")
            raise ValueError(
                f"expected {kind}://bucket/prefix, or a folder of this machine, got {units.quoted(text)}. "
                f"Write ./{found[0]}... for a folder of that name"
            )
        return _path(text, folder)
    if scheme not in (*BUCKETS, "file", "memory") or not rest:
        raise ValueError(f"expected a folder, {WRITTEN}; got {units.quoted(text)}")
    if "@" in rest or "?" in rest:
        raise ValueError("expected a store without credentials or options: those come from the environment")
    return text


def _url(text: str, _folder: str) -> str:
    try:
        url = urlsplit(text)
        port_is_fine = url.port is None or url.port > 0
    except ValueError:
        raise ValueError(f"expected a URL such as https://hub.example.com, got {units.quoted(text)}") from None
    if url.username is not None or url.password is not None:
        raise ValueError("expected a URL without a user name or password: the token comes from token_file")
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or not port_is_fine:
        raise ValueError(f"expected a URL such as https://hub.example.com, got {units.quoted(text)}")
    if "$" in url.netloc:
        raise ValueError(f"expected the name of a host, got {units.quoted(url.netloc)}. No variables are expanded here")
    return text.rstrip("/")


def _advertised_url(text: str, folder: str) -> str:
    url = _url(text, folder)
    if (size := len(url.encode(errors="replace"))) > ADVERTISED_BYTES_MAX:
        raise ValueError(f"expected a URL of at most {ADVERTISED_BYTES_MAX} bytes, got {size}")
    if not url.isprintable() or " " in url:
        raise ValueError(f"expected a URL without spaces and control characters, got {units.quoted(url)}")
    return url


_BROKER_SCHEMES = ("mqtt", "mqtts", "amqp", "amqps", "opc.tcp")


def _broker_url(text: str, _folder: str) -> str:
    example = "mqtts://broker.example.com"
    try:
        url = urlsplit(text)
        port_is_fine = url.port is None or url.port > 0
    except ValueError:
        raise ValueError(f"expected a URL such as {example}, got {units.quoted(text)}") from None
    if url.username is not None or url.password is not None:
        raise ValueError("expected a URL without a user name or password: see username and password_file")
    if url.scheme not in _BROKER_SCHEMES or not url.hostname or url.query or url.fragment or not port_is_fine:
        raise ValueError(f"expected a URL such as {example}, got {units.quoted(text)}")
    return text


def _filter(text: str, _folder: str) -> str:
    if not text or len(text.encode()) > 65_535:
        raise ValueError(f'expected an MQTT filter such as "plant/{{line}}/#", got {units.quoted(text)}')
    return text


def _location(text: str, folder: str) -> str:
    """Return a path, or the URL of a file system that Spark knows, such as ``hdfs://``."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _path(text, folder)
    if not re.fullmatch("[a-z][a-z0-9]*", scheme) or not rest or "@" in rest.partition("/")[0] or "?" in rest:
        raise ValueError(
            f"expected a folder, or a URL without credentials such as hdfs://name/path, got {units.quoted(text)}"
        )
    return text


AVAILABLE_NOW = "available_now"


def _trigger(text: str, _folder: str) -> str:
    if text != AVAILABLE_NOW:
        try:
            units.parse_duration(text)
        except ValueError:
            raise ValueError(f"expected {_TRIGGER}, got {units.quoted(text)}") from None
    return text


_TRIGGER = f"a duration such as 10s or 1m, or {AVAILABLE_NOW}"


def _expression(text: str, _folder: str) -> str:
    if not text.strip():
        raise ValueError("expected an expression such as rms > 2.5, got nothing")
    return text


def _field_type(text: str, _folder: str) -> str:
    return str(types.field_type(text))


def _field_path(text: str, _folder: str) -> str:
    return paths.format_path(paths.parse_path(text))


def _window(text: str, _folder: str) -> str:
    units.parse_window(text)
    return text.strip()


def _zone(text: str, _folder: str) -> str:
    try:
        ZoneInfo(text)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ValueError(
            f"expected a time zone of this machine's database such as Europe/Berlin, got {units.quoted(text)}. Without "
            "the database, install tzdata"
        ) from None
    return text


_MEASURED = ("string", "integer")
UNITS = {
    "duration": Unit(
        "a duration such as 250ms, 10s or 1h30m",
        lambda text, _: units.parse_duration(text),
        units.format_duration,
        rf"^(0|{units.DURATION_PATTERN})$",
        _MEASURED,
    ),
    "size": Unit(
        "a size such as 64KiB, 16MiB or 2GiB",
        lambda text, _: units.parse_size(text),
        units.format_size,
        rf"^(0|{units.SIZE_PATTERN})$",
        _MEASURED,
    ),
    "rate": Unit(
        "a rate such as 64KiB/s", lambda text, _: units.parse_rate(text), units.format_rate, f"^{units.RATE_PATTERN}$"
    ),
    "share": Unit(
        "a share such as 25%",
        lambda text, _: units.parse_share(text),
        units.format_share,
        f"^{units.SHARE_PATTERN}$",
        _MEASURED,
    ),
    "windows": Unit("a window of time such as 01:00-05:00", _window, str, f"^{units.WINDOW_PATTERN}$"),
    "zone": Unit("a time zone such as Europe/Berlin", _zone, str),
    "bind": Unit("host:port such as 127.0.0.1:1883", _bind, str),
    "listen": Unit("host:port such as 127.0.0.1:1883, or unix:/path", _listen, str),
    "networks": Unit("an address or network such as 192.0.2.0/28", _network, str),
    "hosts": Unit("a host name such as edge.example.com", _host, str),
    "path": Unit("a path", _path, str),
    "store": Unit(f"a folder, {WRITTEN}", _store, str),
    "filters": Unit('an MQTT filter such as "plant/{line}/#"', _filter, str),
    "expression": Unit("an expression such as rms > 2.5", _expression, str, written=("string", "number", "boolean")),
    "field_type": Unit(types.WORDS, _field_type, str, types.TYPE_PATTERN),
    "field_path": Unit(paths.WORDS, _field_path, str),
    "trigger": Unit(_TRIGGER, _trigger, str),
    "location": Unit("a folder, or the URL of one such as hdfs://name/path", _location, str),
    "urls": Unit("a URL such as https://hub.example.com", _url, str),
    "advertised_urls": Unit("a URL such as https://hub-1.example.com:8090", _advertised_url, str),
    "broker_urls": Unit("a URL such as mqtts://broker.example.com", _broker_url, str),
}
"""Units by the ``x-unit`` of the models. ``filters``, ``urls``, ``advertised_urls``, ``broker_urls``, ``windows``,
``networks`` and ``hosts`` are lists: a single value may stand for one."""


def out_of_bounds(value: float, type_: inspect.IntType | inspect.FloatType, show: Callable[[Any], str]) -> str | None:
    """Return why a number is outside the bounds of its type; None if it is within."""
    wanted = (
        ("at least", type_.ge, operator.ge),
        ("at most", type_.le, operator.le),
        ("more than", type_.gt, operator.gt),
        ("less than", type_.lt, operator.lt),
    )
    for words, bound, holds in wanted:
        if bound is not None and not holds(value, bound):
            return f"expected {words} {show(bound)}, got {show(value)}"
    return None


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
        description = shape.description or " ".join((section.cls.__doc__ or "").split())
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
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or str(value)
    return UNITS[unit].format(value) if unit else str(value)
