"""Schemas as people write, import, draft and compare them."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import yaml

from weft.config.payload_schema.languages import (
    Place,
    ProtoMessage,
    avro_fields,
    column_type,
    json_schema_fields,
    parse_avro,
    parse_descriptors,
    protobuf_fields,
)
from weft.config.payload_schema.model import (
    FIELDS_MAX,
    Compatibility,
    FieldType,
    PayloadSchema,
    SchemaField,
    SchemaFormat,
    column_name,
    written_out,
)
from weft.config.payload_schema.paths import STEPS_MAX, FieldPath, format_path

# Text of a schema for people, and the differences between two schemas.


def yaml_text(schema: PayloadSchema) -> str:
    """Return a schema in YAML, as ``config.load.parse_schema`` reads it: a line for each field."""
    fields = "".join(f"{field_line(name, field)}\n" for name, field in schema.fields.items())
    given = {name: getattr(schema, name) for name in ("definition", "message", "framing")}
    more = {name: value for name, value in given.items() if value is not None}
    head = yaml.safe_dump(more, allow_unicode=True, sort_keys=False, width=1 << 20) if more else ""
    return f"format: {schema.format}\n{head}fields:\n{fields}"


def field_line(name: str, field: SchemaField) -> str:
    """Return the line of a field below `fields:`."""
    settings = _settings(field)
    is_short = settings.keys() == {"type"}
    written = {name: settings["type"] if is_short else settings}
    flow = False if is_short else None  # a field on one line
    text = yaml.safe_dump(written, allow_unicode=True, default_flow_style=flow, sort_keys=False, width=1 << 20)
    return f"  {text.rstrip()}"


def _settings(field: SchemaField) -> dict[str, object]:
    """Return the settings of a field that are not defaults."""
    found = msgspec.to_builtins(field)
    return {name: value for name, value in found.items() if name == "type" or value not in {None, False}}


class FieldChange(NamedTuple):
    """A field that differs between two schemas."""

    name: str
    before: SchemaField | None
    """None for a new field."""
    after: SchemaField | None
    """None for one that is gone."""

    @property
    def makes_column(self) -> bool:
        """Return whether the table gets another column for the field: its type or unit changed, or it is new."""
        if self.before is None or self.after is None:
            return self.after is not None
        other_unit = self.before.unit is not None and self.after.unit not in {None, self.before.unit}
        return _column_type(self.before) != _column_type(self.after) or other_unit

    def __str__(self) -> str:
        """Return the change on one line."""
        if self.before is None or self.after is None:
            return f"{'+' if self.before is None else '-'} {self.name}: {_words(self.after or self.before)}"
        before, after = _settings(self.before), _settings(self.after)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return f"~ {self.name}: " + ", ".join(
            f"{name} {_shown(before.get(name))} -> {_shown(after.get(name))}" for name in changed
        )


def differences(before: PayloadSchema, after: PayloadSchema) -> list[FieldChange]:
    """Return the fields that differ, in the order of the later schema, those that are gone behind them."""
    names = dict.fromkeys([*after.fields, *before.fields])
    changes = (FieldChange(name, before.fields.get(name), after.fields.get(name)) for name in names)
    return [each for each in changes if each.before != each.after]


def _column_type(field: SchemaField) -> str:
    # In a column, times of all units are the same.
    kind, item = field.type, field.type.item
    return str(kind._replace(unit=None, item=item and item._replace(unit=None)))


def _words(field: SchemaField | None) -> str:
    return (
        ""
        if field is None
        else ", ".join(
            f"{value}" if name == "type" else f"{name} {_shown(value)}" for name, value in _settings(field).items()
        )
    )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


# A draft of a schema from a sample of payloads.
#
# Payloads come decoded, thousands at a time, and are looked at by column: a million of them take a second or two.

NAMES_MAX = 1024
"""Maximum number of names within one object that are looked at: an object with keys of machines has any number."""
PLACES_MAX = 4096
"""Maximum number of places in payloads that are looked at."""
TEXTS_MAX = 256
"""Number of texts of a field that are compared with times."""
TIMES_SHARE = 0.9
"""Share of these texts from which on the draft says that they are times, and how many are not."""
_TIME_TEXT = re.compile(r"[0-9]{4}(-?)[0-9]{2}\1[0-9]{2}[Tt ][0-9]{2}")
_DAY_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MISSING = object()
_NONE = type(None)
_NUMBERS = {int, float}
_TIME_NAME = re.compile(r"(?:^|[_.])(?:ts|time|timestamp|datetime|date|at)(?:_?(?:s|ms|us|ns))?$", re.IGNORECASE)
_SECONDS = (10**9, 4 * 10**9)
"""The years 2001 to 2096: a number between them, in a field named like a time, is a time."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WORDS = {
    str: "text",
    int: "whole numbers",
    float: "numbers",
    bool: "true or false",
    bytes: "bytes",
    list: "arrays",
    dict: "objects",
    datetime: "times",
}


class _Spot:
    """The values at one place of the payloads."""

    def __init__(self, path: FieldPath) -> None:
        self.path = path
        self.kinds: Counter[type] = Counter()
        self.low: float | None = None
        self.high: float | None = None
        self.texts: Counter[str] = Counter()
        self.inside: dict[str, _Spot] = {}
        self.items: _Spot | None = None
        self.left_out = False

    def names(self) -> Iterator[_Spot]:
        """Yield the places below, and this one if it has values of its own."""
        if any(kind not in {dict, _NONE} for kind in self.kinds):
            yield self
        for each in self.inside.values():
            yield from each.names()


class PayloadSample:
    """A sample of payloads of a stream."""

    def __init__(self) -> None:
        self.records = 0
        self.unreadable = 0
        """Payloads that are not of their format."""
        self._root = _Spot(())
        self._places = 1

    def take(self, values: Sequence[Any], broken: int) -> None:
        """Add decoded payloads, some thousands at most, and the number of those that could not be decoded."""
        self.records += len(values) + broken
        self.unreadable += broken
        self._look(self._root, values)

    def _look(self, place: _Spot, values: Sequence[Any]) -> None:
        kinds = Counter(map(type, values))
        place.kinds.update(kinds)
        if kinds[int] or kinds[float]:
            numbers = (
                values if kinds.keys() <= {int, float} else [each for each in values if type(each) in {int, float}]
            )
            low, high = min(numbers), max(numbers)
            place.low = low if place.low is None else min(low, place.low)
            place.high = high if place.high is None else max(high, place.high)
        if kinds[str] and (room := TEXTS_MAX - place.texts.total()) > 0:
            place.texts.update(islice((each for each in values if type(each) is str), room))
        if kinds[dict]:
            objects = values if kinds[dict] == len(values) else [each for each in values if type(each) is dict]
            self._look_inside(place, objects)
        if kinds[list]:
            items = [item for each in values if type(each) is list for item in each[:64]]
            if items:
                place.items = place.items or _Spot((*place.path, 0))
                self._look(place.items, items)

    def _look_inside(self, place: _Spot, objects: Sequence[dict[Any, Any]]) -> None:
        for name in dict.fromkeys(name for keys in dict.fromkeys(map(tuple, objects)) for name in keys):
            child = place.inside.get(name)
            if child is None:
                full = len(place.inside) >= NAMES_MAX or self._places >= PLACES_MAX
                if full or len(place.path) >= STEPS_MAX or not isinstance(name, str):
                    place.left_out = True
                    continue
                child = place.inside[name] = _Spot((*place.path, name))
                self._places += 1
            column = [each.get(name, _MISSING) for each in objects]
            self._look(child, [each for each in column if each is not _MISSING] if _MISSING in column else column)

    def draft(self, payload_format: SchemaFormat) -> str:
        """Return a schema in YAML with what was found beside each field, to be edited."""
        lines = self.lines((), ())
        broken = f"; {self.unreadable} of them are not {payload_format}" if self.unreadable else ""
        head = f"# A draft from {self.records} records{broken}. Add units, descriptions and what is required.\n"
        return f"{head}format: {payload_format}\nfields:\n{''.join(lines)}"

    def lines(self, known: Collection[FieldPath], taken: Collection[str]) -> list[str]:
        """Return the lines of a draft below `fields:`.

        Args:
            known: places that get no line, nor what is inside of them or around them.
            taken: names of columns that others have, in lower case.
        """
        lines, names = list[str](), set(taken)
        for place in self._root.names():
            if not place.path or len(names) >= FIELDS_MAX or any(_overlap(place.path, each) for each in known):
                continue
            found = _guess(place)
            if found.type is None:
                path = "".join(each if each.isprintable() else " " for each in format_path(place.path))
                lines.append(f"  # {path}: {found.words}\n")
                continue
            name = column_name(place.path, names)
            names.add(name.casefold())
            from_ = None if place.path == (name,) else format_path(place.path)
            seen = sum(count for kind, count in place.kinds.items() if kind is not _NONE)
            share = "" if seen == self.records else f"in {100 * seen / self.records:.3g} % of the records"
            words = "; ".join(filter(None, (found.words, share)))
            line = field_line(name, SchemaField(type_=found.type, from_=from_))
            lines.append(f"{line}  # {words}\n" if words else f"{line}\n")
        return lines

    @property
    def has_fields(self) -> bool:
        """Return whether a payload was an object with fields."""
        return bool(self._root.inside)


def _overlap(one: FieldPath, other: FieldPath) -> bool:
    steps = min(len(one), len(other))
    return one[:steps] == other[:steps]


class _Guess(NamedTuple):
    type: str | None
    words: str


def _guess(place: _Spot) -> _Guess:
    kinds = Counter({kind: count for kind, count in place.kinds.items() if kind not in {_NONE, dict}})
    numbers = kinds[int] + kinds[float]
    if kinds[float]:
        del kinds[int]
        kinds[float] = numbers
    kind, total = kinds.most_common(1)[0][0], sum(kinds.values())
    rest = ((count, _WORDS.get(other, other.__name__)) for other, count in kinds.items() if other is not kind)
    others = [f"{count} of {total} are {words}" for count, words in rest]
    if place.inside:
        others.append("also an object")
    type_, words = _type_of(place, kind)
    return _Guess(type_, "; ".join(filter(None, (words, *others))))


def _type_of(place: _Spot, kind: type) -> tuple[str | None, str]:
    between = f"{place.low:g} to {place.high:g}" if kind in {int, float} else ""
    if kind is list:
        return _array(place)
    if kind is str:
        return _text(place.texts)
    if kind in {int, float}:
        unit = _unit(place)
        return (f"timestamp({unit})", "") if unit else ("int" if _fits(place, kind) else "float", between)
    return {bool: "bool", bytes: "binary", datetime: "timestamp"}.get(kind), ""


def _fits(place: _Spot, kind: type) -> bool:
    return kind is int and (place.low or 0) >= -(1 << 63) and (place.high or 0) < 1 << 63


def _array(place: _Spot) -> tuple[str | None, str]:
    items = place.items
    if items is None:
        return None, "arrays without items"
    if not any(kind not in {dict, list, _NONE} for kind in items.kinds):
        return None, "arrays of objects or arrays: name single places, such as readings[0].value"
    guess = _guess(items)
    is_single = guess.type is not None and not guess.type.startswith("array")
    return (f"array<{guess.type}>", guess.words) if is_single else (None, "arrays of different values")


def _unit(place: _Spot) -> str | None:
    """Return the unit of numbers that are times, by the field's name and their size."""
    name = next((step for step in reversed(place.path) if isinstance(step, str)), "")
    if not _TIME_NAME.search(name) or place.low is None or place.high is None:
        return None
    low, high = _SECONDS
    return next((unit for unit, size in _UNITS.items() if low * size <= place.low <= place.high <= high * size), None)


def _text(texts: Counter[str]) -> tuple[str, str]:
    """Return the type of texts, and what to know of it."""
    total = texts.total()
    days = Counter({each: count for each, count in texts.items() if _DAY_TEXT.fullmatch(each) and _time_of(each)})
    times = Counter({each: count for each, count in texts.items() if _TIME_TEXT.match(each) and _time_of(each)})
    for type_, found in (("date", days), ("timestamp", times)):
        if total and found.total() >= TIMES_SHARE * total:
            others = f"{total - found.total()} of {total} texts are none" if found.total() < total else ""
            is_local = type_ == "timestamp" and not any(time.tzinfo for each in found if (time := _time_of(each)))
            zone = "without an offset, so in UTC; local_timestamp assumes no zone" if is_local else ""
            return type_, "; ".join(filter(None, (zone, others)))
    return "string", ""


def _time_of(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


# Compatibility of a version of a schema with the one before: whose payloads which version still reads.
#
# The rule belongs to the stream and not to the text of the schema: a version could relax the rule by which it is
# judged.

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
        yield f"payloads of format {written.format} cannot be read as {read.format}"
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


# Schemas in other languages as the model: JSON Schema, and definitions of Avro and Protobuf, which also say how
# payloads are read.

LEFT_OUT_MAX = 1000
"""Maximum number of places without a column that are counted."""
LEFT_OUT_SHOWN = 5
"""Number of them that an error names."""
_JSON_SCHEMA = ("$schema", "$ref", "$defs", "properties", "allOf", "anyOf", "oneOf")
"""Names by which a JSON Schema is known: those that write a model out as one may leave out `$schema`."""


class Imported(NamedTuple):
    """A schema of another language."""

    settings: dict[str, Any]
    """The settings of the model, unchecked."""
    left_out: list[str]
    """Paths of places that get no column: values of several types, maps, arrays of objects. Some with the reason."""


def imported(text: str) -> Imported | None:
    """Return the model of a text that is JSON Schema or a schema of Avro; None if it is neither.

    Raises:
        ValueError: it is one, with a mistake.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    if written.get("type") in {"record", "error"} and isinstance(written.get("fields"), list):
        settings, left_out = _fields(avro_fields(parse_avro(text)))
        return Imported({"format": "avro", "definition": json.dumps(written), "fields": settings}, left_out)
    if not written.keys().isdisjoint(_JSON_SCHEMA):
        settings, left_out = _fields(json_schema_fields(written))
        return Imported({"format": "json", "fields": settings}, left_out)
    return None


def imported_descriptors(data: bytes, message: str | None) -> Imported:
    """Return the model of a message of a descriptor set of Protobuf.

    Raises:
        ValueError: it is no descriptor set, or does not have the message.
    """
    definition = base64.b64encode(data).decode()
    settings, left_out = _fields(protobuf_fields(parse_descriptors(definition, message)))
    named = {"message": message} if message is not None else {}
    return Imported({"format": "protobuf", "definition": definition, **named, "fields": settings}, left_out)


def _fields(places: Iterable[Place]) -> tuple[dict[str, Any], list[str]]:
    fields: dict[str, Any] = {}
    taken, left_out = set[str](), list[str]()
    for path, settings in islice(places, FIELDS_MAX + LEFT_OUT_MAX):
        if not isinstance(settings, dict) or not path:
            left_out.append(format_path(path) + (f" ({settings})" if isinstance(settings, str) else ""))
            continue
        if len(fields) == FIELDS_MAX:
            raise ValueError(f"it has more than {FIELDS_MAX} fields: declare those that are wanted as columns, in YAML")
        name = column_name(path, taken)
        taken.add(name.casefold())
        fields[name] = settings if path != (name,) else {key: value for key, value in settings.items() if key != "from"}
    if not fields:
        named = [each for each in left_out if each != format_path(())][:LEFT_OUT_SHOWN]
        raise ValueError(": ".join(filter(None, ("it has no field that can be a column", ", ".join(named)))))
    return fields, left_out


# Files with a schema: in YAML or JSON of the model, in its short form, or in another language.

FILE_BYTES_MAX = 1 << 20
DESCRIPTORS = (".desc", ".pb", ".binpb", ".protoset")
"""Ends of the names of files with descriptor sets of Protobuf."""


class SchemaFile(NamedTuple):
    """Contents of a file."""

    text: str
    """YAML or JSON of the model, unchecked."""
    left_out: list[str]
    """Places of a schema in another language that become no field."""


def read_schema_file(file: str, message: str | None = None) -> SchemaFile:
    """Return the schema in a file. Blocks.

    Args:
        message: message of Protobuf with its package; the file is a descriptor set then.

    Raises:
        ValueError: the file cannot be read, or is no schema; the text says why, without the file's name.
        ConfigError: it is the short form, with a mistake.
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX >> 20} MiB: a schema has some kilobytes")
    if message is not None or file.endswith(DESCRIPTORS):
        other: Imported | None = imported_descriptors(data, message)
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            ends = ", ".join(DESCRIPTORS)
            raise ValueError(f"it is not UTF-8 text, and its name has no end of a descriptor set ({ends})") from None
        other = imported(text)
    if other is None:
        return SchemaFile(written_out(text, file), [])
    return SchemaFile(json.dumps(other.settings), other.left_out)
