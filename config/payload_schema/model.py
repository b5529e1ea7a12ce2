"""Settings of a payload schema. Streams and pipelines declare the same one."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from weft.config.errors import ConfigError, Finding, KeyPath, Problem
from weft.config.payload_schema.paths import FieldPath, parse_path
from weft.config.units import Count, Duration, OneOf, Section, format_duration, quoted

# Types of fields: ``float``, ``timestamp(ms)``, ``decimal(10,2)``, ``array<string>``.

SCALARS = ("bool", "int", "float", "string", "binary", "timestamp", "date", "local_timestamp")
TIMES = ("timestamp", "local_timestamp", "date")
"""Types of times and days: text, or a number since 1970."""
TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Unit of a time as a number -> its nanoseconds."""
DECIMAL_DIGITS_MAX = 38
"""Most digits of a decimal, as in Spark and Delta."""
TYPE_PATTERN = (
    r"^(array<\s*)?(bool|int|float|string|binary|(local_)?timestamp(\((s|ms|us|ns)\))?|date(\(d\))?"
    r"|decimal\(\s*[0-9]{1,2}\s*(,\s*[0-9]{1,2}\s*)?\))(\s*>)?$"
)
SPARK_NAMES = {
    "boolean": "bool",
    "bigint": "int",
    "long": "int",
    "integer": "int",
    "double": "float",
    "timestamp_ntz": "local_timestamp",
}
"""Spark's names of types -> ours. Only the short text form accepts them."""
WORDS = "a type such as float, int, string, timestamp(ms) or array<float>"

_TIME = re.compile(r"((?:local_)?timestamp)\(\s*(\w+)\s*\)")
_DAYS = re.compile(r"date\(\s*d\s*\)")
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*(?:,\s*([0-9]{1,2})\s*)?\)")
_ARRAY = re.compile(r"array\s*<(.*)>", re.DOTALL)
_MEANT = {
    **SPARK_NAMES,
    "number": "float",
    "real": "float",
    "text": "string",
    "str": "string",
    "bytes": "binary",
    "day": "date",
    "datetime": "timestamp",
    "time": "timestamp",
    "list": "array<float>",
    "array": "array<float>",
    "decimal": "decimal(10,2)",
}


class FieldType(NamedTuple):
    """A type of a field. ``str`` gives its text form."""

    name: str
    """One of ``SCALARS``, ``decimal`` or ``array``."""
    unit: str | None = None
    """Unit of a time or day that is a number since 1970, `d` for days; None for text in ISO 8601."""
    digits: int = 0
    """Digits of a decimal, those after the point included."""
    scale: int = 0
    """Digits of a decimal after the point."""
    item: FieldType | None = None
    """Type of an array's items."""

    def __str__(self) -> str:
        if self.item is not None:
            return f"array<{self.item}>"
        if self.name == "decimal":
            return f"decimal({self.digits},{self.scale})"
        return f"{self.name}({self.unit})" if self.unit else self.name


def field_type(text: str) -> FieldType:
    """Return the type of a text form.

    Raises:
        ValueError: it is not a type; the message suggests a similar one.
    """
    form = text.strip().lower()
    if match := _ARRAY.fullmatch(form):
        if _ARRAY.match(match[1].strip()):
            raise ValueError(f"expected an array of single values such as array<float>, got {quoted(text)}")
        return FieldType("array", item=field_type(match[1]))
    if match := _TIME.fullmatch(form):
        if match[2] not in TIME_UNITS:
            raise ValueError(f"expected {match[1]}(s), (ms), (us) or (ns), got {quoted(text)}")
        return FieldType(match[1], match[2])
    if _DAYS.fullmatch(form):
        return FieldType("date", "d")
    if match := _DECIMAL.fullmatch(form):
        digits, scale = int(match[1]), int(match[2] or 0)
        if not 1 <= digits <= DECIMAL_DIGITS_MAX or scale > digits:
            raise ValueError(
                f"expected decimal(DIGITS,SCALE) with 1 to {DECIMAL_DIGITS_MAX} digits, SCALE of them after the "
                f"point, got {quoted(text)}"
            )
        return FieldType("decimal", digits=digits, scale=scale)
    if form in SCALARS:
        return FieldType(form)
    raise ValueError(f"expected {WORDS}, got {quoted(text)}{_hint(form)}")


def _hint(form: str) -> str:
    import difflib  # where there is a mistake, and not in every node

    near = _MEANT.get(form) or next(iter(difflib.get_close_matches(form, [*SCALARS, *_MEANT], 1)), None)
    return f". Did you mean {_MEANT.get(near, near)}?" if near else ""


FIELDS_MAX = 256
"""Largest number of fields of a schema."""
NAME_CHARACTERS_MAX = 64
PAYLOAD = "payload"
"""Column of the payload itself, which no field may be named after."""
_NAME = re.compile(r"[^\W_]\w*")

SchemaFormat = Literal["json", "cbor", "msgpack", "avro", "protobuf"]
Compatibility = Literal["none", "backward", "forward", "full"]
"""Rule between a version of a schema and the one before (``documents.incompatible``)."""
DEFINED: tuple[SchemaFormat, ...] = ("avro", "protobuf")
"""Formats whose payloads cannot be read without a definition."""
DEFINITION_CHARACTERS_MAX = 48 << 10
Framing = Literal["confluent", "single_object"]


class SchemaField(Section, frozen=True, kw_only=True, omit_defaults=True):
    """A typed column: `temperature: float` is short for `temperature: {type: float}`."""

    type_: Annotated[
        str,
        Meta(
            extra_json_schema={"x-unit": "field_type"},
            description="Type of the column: `bool`, `int`, `float`, `string`, `binary`, `timestamp`, `date`, "
            "`local_timestamp`, `decimal(DIGITS,SCALE)`, or `array<TYPE>` of one of these. `int` and `float` have 64 "
            "bits. A `timestamp` is text in ISO 8601; `timestamp(s)`, `(ms)`, `(us)` and `(ns)` are numbers since "
            "1970. A `local_timestamp` is the same without a time zone. A `date` is a day as text in ISO 8601, and "
            "`date(d)` a number of days since 1970.",
        ),
    ] = field(name="type")
    from_: Annotated[
        str | None,
        Meta(
            extra_json_schema={"x-unit": "field_path"},
            description="Path in the payload: `motor.rpm`, `readings[0].value`, or `$` for the payload itself. "
            "Unset: the field of the column's name.",
        ),
    ] = field(default=None, name="from")
    required: Annotated[
        bool, Meta(description="Whether a payload without the field is a misfit. Otherwise the column is null.")
    ] = False
    unit: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Unit of the values for people, such as `°C`. It becomes a comment of the column."),
    ] = None
    description: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="Meaning of the values for people. It becomes a comment of the column."),
    ] = None
    personal: Annotated[
        bool,
        Meta(
            description="Whether the values are personal data. The column's comment and metadata (`weft.personal`) "
            "record it; `weft hub schema list` names the field."
        ),
    ] = False

    @property
    def type(self) -> FieldType:
        """Return the parsed type."""
        return field_type(self.type_)

    def path(self, name: str) -> FieldPath:
        """Return the path in the payload of the field called ``name``."""
        return (name,) if self.from_ is None else parse_path(self.from_)


class PayloadSchema(Section, frozen=True, kw_only=True):
    """Format of payloads, and their fields that become typed columns."""

    format: Annotated[SchemaFormat, Meta(description="Format of the payloads.")] = "json"
    definition: Annotated[
        Annotated[str, Meta(min_length=1, max_length=DEFINITION_CHARACTERS_MAX)] | None,
        Meta(
            description="Definition without which payloads cannot be read: for `format: avro` a schema in Avro's JSON, "
            "for `format: protobuf` a descriptor set in base64."
        ),
    ] = None
    message: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Message of Protobuf that the payloads are, with its package. Unset: the only one."),
    ] = None
    framing: Annotated[
        Framing | None,
        Meta(
            description="Bytes before each payload of Avro or Protobuf, which are passed over. `confluent` has 0 and "
            "the four bytes of a registry's id. `single_object` has the ten bytes of Avro's single-object encoding."
        ),
    ] = None
    fields: Annotated[
        dict[str, Annotated[SchemaField, Meta(extra_json_schema={"x-short": "type"})]],
        Meta(
            min_length=1,
            max_length=FIELDS_MAX,
            description="Typed columns, by name, in this order. A name begins with a letter and has letters, digits "
            "and `_`; names that differ in case only are the same column.",
        ),
    ]


def check_schema(schema: PayloadSchema, at: KeyPath = ()) -> Iterator[Finding]:
    """Yield the problems with the names of a schema, as a check for ``config.load.parse``.

    Args:
        at: place of the schema in the file.
    """
    yield from _check_definition(schema, at)
    seen: dict[str, str] = {}
    for name in schema.fields:
        path = (*at, "fields", name)
        if name.startswith("_"):
            yield Finding(
                path,
                "names that begin with _ are the stream's own columns. Name the field otherwise, and "
                f"set `from: {name}`",
            )
        elif name.casefold() == PAYLOAD:
            yield Finding(
                path, f"`payload` is the column of the bytes as sent. Name the field otherwise, and set `from: {name}`"
            )
        elif not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            yield Finding(
                path,
                f"expected a name of letters, digits and _, at most {NAME_CHARACTERS_MAX} characters, "
                f"got {quoted(name)}. Name the column so, and set `from` to the field",
            )
        elif (other := seen.setdefault(name.casefold(), name)) != name:
            yield Finding(path, f"is the same column as {other}: names may not differ in case only")


def _check_definition(schema: PayloadSchema, at: KeyPath) -> Iterator[Finding]:
    if schema.format not in DEFINED:
        for name in ("definition", "message", "framing"):
            if getattr(schema, name) is not None:
                yield Finding((*at, name), f"payloads of format {schema.format} have none: leave it out")
        return
    if schema.definition is None:
        yield Finding((*at, "format"), f"payloads of format {schema.format} can only be read with `definition`: set it")
        return
    if schema.format == "avro" and schema.message is not None:
        yield Finding((*at, "message"), "payloads of Avro have none: leave it out")
    if schema.format == "protobuf" and schema.framing == "single_object":
        yield Finding((*at, "framing"), "single_object is of Avro; payloads of Protobuf may have `confluent`")
    # Imported here: edges have this model, and few have a definition.
    from weft.config.payload_schema.languages import parse_avro, parse_descriptors

    try:
        if schema.format == "avro":
            parse_avro(schema.definition)
        else:
            parse_descriptors(schema.definition, schema.message)
    except ValueError as error:
        yield Finding((*at, "definition"), str(error))


def column_name(path: FieldPath, taken: Collection[str]) -> str:
    """Return a name of a column for a path.

    Args:
        taken: names that others have, in lower case.
    """
    name = re.sub(r"\W", "_", "_".join(map(str, path))).strip("_")[:NAME_CHARACTERS_MAX] or "field"
    base = f"{name[: NAME_CHARACTERS_MAX - 6]}_value" if name.casefold() == PAYLOAD else name
    name, number = base, 1
    while name.casefold() in taken:
        number += 1
        name = f"{base[: NAME_CHARACTERS_MAX - 5]}_{number}"
    return name


# Short form of a schema, ``temperature float, unit string``, as Spark writes columns.

EXAMPLE = "`temperature float, unit string`"
_YAML = re.compile(r"\s*(?:\{|#|---|(?:format|fields)\s*:)")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:`]+))\s*:?\s+(.+?)(\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+")
_OPENING, _CLOSING = "(<", ")>"


def written_out(text: str, name: str, payload_format: str | None = None) -> str:
    """Return a schema as YAML or JSON of the model: the text itself, unless it is the short form.

    Args:
        name: name of the text in errors.
        payload_format: format of the payloads, where the text is the short form; None takes ``json``.

    Raises:
        ConfigError: it is neither, or has a format beside ``payload_format``.
    """
    if _YAML.match(text) is not None:
        if payload_format is not None:
            raise _error(
                name, f"has a format of its own: leave out payload_format, or write `format: {payload_format}` into it"
            )
        return text
    fields = dict(_columns(text, name))
    return json.dumps({"fields": fields} | ({} if payload_format is None else {"format": payload_format}))


def _error(name: str, message: str) -> ConfigError:
    return ConfigError([Problem(name, 0, (), message)])


def _columns(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    seen: set[str] = set()
    for part in _split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise _error(name, f"expected columns such as {EXAMPLE}, or YAML with `fields:`, got {quoted(part)}")
        column = match[1] or match[2]
        if column in seen:
            raise _error(name, f"{column} is named twice: keep one")
        seen.add(column)
        type_ = _WORD.sub(lambda word: SPARK_NAMES.get(word[0].lower(), word[0]), match[3])
        yield column, {"type": type_} | ({"required": True} if match[4] else {})


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas; commas in brackets do not count."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


# Quality rules of a stream: what its rows should be like, and how many may be otherwise before the hub raises an
# alarm.

RULES_MAX = 32
"""Largest number of rules of a stream."""
UNIQUE_MAX = 4
"""Largest number of these rules about unique values: each has the keys of many rows in memory."""
OVER_S = 600.0
_RULE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_Column = Annotated[str, Meta(min_length=1, max_length=128)]


class ValueRange(Section, frozen=True, kw_only=True):
    """Bounds of numbers. A null value is within them: `not_null` is a rule of its own."""

    field_: Annotated[
        _Column, Meta(description="Field of the stream's schema: an `int`, a `float` or a `decimal`.")
    ] = field(name="field")
    min: Annotated[float | None, Meta(description="Smallest good value. Unset: no bound.")] = None
    max: Annotated[float | None, Meta(description="Largest good value. Unset: no bound.")] = None


class UniqueKeys(Section, frozen=True, kw_only=True):
    """Values that no two rows have: `unique: [machine, at]` is short for `unique: {fields: [machine, at]}`."""

    fields: Annotated[
        tuple[_Column, ...],
        Meta(
            min_length=1,
            max_length=8,
            description="Fields of the schema, topic levels, `_key` (the topic), `_edge`, "
            "`_time` or `payload`. Rows without a value of one of them are not compared.",
        ),
    ]
    within: Annotated[int, Meta(ge=1, le=100_000, description="Number of rows of each shard to look back.")] = 1000


class QualityRule(OneOf, frozen=True, kw_only=True):
    """One check of a stream's rows, and how much of a failure is tolerated."""

    noun: ClassVar[str] = "check"
    beside: ClassVar[tuple[str, ...]] = ("tolerate", "over_s", "over")

    range: Annotated[ValueRange | None, Meta(description="Numbers of a field are within bounds.")] = None
    not_null: Annotated[
        _Column | None, Meta(description="A field of the schema, or a topic level, has a value in each row.")
    ] = None
    fits: Annotated[
        bool | None, Meta(description="`true`: payloads fit the stream's schema, so that `_misfit` is null.")
    ] = None
    unique: Annotated[
        UniqueKeys | None,
        Meta(extra_json_schema={"x-short": "fields"}, description="No row repeats the values of a row before it."),
    ] = None
    fresh: Annotated[
        Annotated[Duration, Meta(ge=1, le=366 * 86_400)] | None,
        Meta(description="The newest row is younger than this, by clocks that can be believed."),
    ] = None
    tolerate: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Share of rows that may fail before the hub raises an alarm: `0.01` is one in a "
            "hundred. Not for `fresh`.",
        ),
    ] = 0.0
    over_s: Annotated[
        Duration,
        Meta(
            ge=10,
            le=86_400,
            description="Time over which the share is taken. It reaches further back until it has "
            "20 rows. Not for `fresh`.",
        ),
    ] = field(default=OVER_S, name="over")

    @property
    def check(self) -> bytes:
        """Return the check without what is tolerated, as text that is the same for the same check."""
        name, value = self.chosen
        return msgspec.json.encode([name, msgspec.to_builtins(value)], order="sorted")

    @property
    def words(self) -> str:
        """Return the check for people."""
        name, value = self.chosen
        if isinstance(value, ValueRange):
            low = "" if value.min is None else f"{value.min:g}"
            high = "" if value.max is None else f"{value.max:g}"
            return f"range of {value.field_}: {low}..{high}"
        if isinstance(value, UniqueKeys):
            return f"unique within {value.within:,} rows: {', '.join(value.fields)}"
        if name == "fresh":
            return f"fresh: {format_duration(value)}"
        return "fits the schema" if name == "fits" else f"{name}: {value}"


class QualityRules(Section, frozen=True, kw_only=True):
    """Quality rules of a stream."""

    quarantine: Annotated[
        bool,
        Meta(
            description="Mark rows that fail a rule about single rows in the column `_failed`, and copy them into the "
            "stream's quarantine table."
        ),
    ] = False

    rules: Annotated[
        dict[str, QualityRule],
        Meta(
            max_length=RULES_MAX,
            description="Rules by name. A name begins with a letter and has letters, digits, `-` and `_`.",
        ),
    ] = field(default_factory=dict)
    vanished_after: Annotated[
        Count | None,
        Meta(
            description="Number of rows without a value, from which on a field that had values counts as "
            "vanished: it was renamed, or is no longer sent. Null: never."
        ),
    ] = 1000


def check_rules(given: QualityRules) -> Iterator[Finding]:
    """Yield the problems with rules, as a check for ``config.load.parse``."""
    checks: dict[bytes, str] = {}
    unique = 0
    for name, rule in given.rules.items():
        at = ("rules", name)
        if not _RULE_NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            yield Finding(
                at,
                f"expected a name of letters, digits, - and _, at most {NAME_CHARACTERS_MAX} characters, "
                f"got {quoted(name)}",
            )
        kind, value = rule.chosen
        if isinstance(value, ValueRange):
            yield from _check_range(value, (*at, "range"))
        elif isinstance(value, UniqueKeys):
            unique += 1
            if unique > UNIQUE_MAX:
                yield Finding((*at, "unique"), f"a stream has at most {UNIQUE_MAX} rules about unique values")
            if len({*value.fields}) < len(value.fields):
                yield Finding((*at, "unique"), "a field is named twice: keep one")
        elif kind == "fits" and value is False:
            yield Finding((*at, "fits"), "expected `true`: leave the rule out where payloads need not fit")
        elif kind == "fresh" and rule.tolerate:
            yield Finding((*at, "tolerate"), "a stream is fresh or not: leave it out, or give `fresh` more time")
        if (other := checks.setdefault(rule.check, name)) != name:
            yield Finding(at, f"is the same check as {other}: keep one")
    if not given.rules and given.vanished_after is None:
        yield Finding(("rules",), "expected rules, got an empty file")


def _check_range(value: ValueRange, at: tuple[str, ...]) -> Iterator[Finding]:
    bounds = [each for each in (value.min, value.max) if each is not None]
    if not bounds:
        yield Finding(at, "expected `min`, `max` or both")
    elif not all(map(isfinite, bounds)):
        yield Finding(at, "expected numbers as bounds; leave out one that is infinite")
    elif value.min is not None and value.max is not None and value.min > value.max:
        yield Finding(at, f"expected min below max, got {value.min:g} and {value.max:g}")
