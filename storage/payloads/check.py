"""Check of payloads against a schema, without Arrow: nodes that take payloads and tables decide alike what fits."""

from __future__ import annotations

import base64
import binascii
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import lru_cache
from types import NoneType
from typing import Any

import msgspec

from weft.config.payload_schema.model import (
    DECIMAL_DIGITS_MAX,
    TIME_UNITS,
    TIMES,
    FieldType,
    PayloadSchema,
    SchemaFormat,
)
from weft.config.payload_schema.paths import FieldPath, format_path
from weft.protocols.payloads import NESTING_MAX, PAYLOAD_BYTES_MAX, nests_at_most
from weft.storage.payloads.formats import (
    MISSING,
    PAYLOAD,
    Format,
    Misfit,
    RowMisfits,
    Unreadable,
    expected,
    found,
    opens_few,
    parts_of,
    shown,
)

# Checks that values of payloads fit the types of their fields, without Arrow: edges check payloads, too.

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
BASE64 = "base64"
"""Name of the type ``binary`` in JSON, which has no bytes: they are text in base64."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Times that Spark and Python can both show: the years 1 to 9999."""
_DAY_US = timedelta(days=1) // _MICROSECOND
_CONTEXT = Context(prec=DECIMAL_DIGITS_MAX, traps=[Inexact, InvalidOperation])
EXACT_MAX = 1 << 53
"""Number below which a float of 64 bits is whole only if the number was: larger ones may have been rounded to it."""
MAY_ROUND = re.compile(rb"[0-9.]{17}|[eE]-[0-9]{3}")
"""JSON with a number that a float of 64 bits may not show: with at most 15 digits, each has a float of its own."""
_NOT_A_NUMBER = Decimal("NaN")
_WHOLE = frozenset({int, NoneType})
_DECIMALS = frozenset({Decimal, NoneType})
_NOTHING = frozenset({NoneType})
_AS_THEY_ARE: dict[str, frozenset[type[Any]]] = {
    "bool": frozenset({bool, NoneType}),
    "float": frozenset({float, NoneType}),
    "string": frozenset({str, NoneType}),
    "binary": frozenset({bytes, NoneType}),
}
"""Type of items -> classes of items that fit as they are."""


def in_json(kind: FieldType) -> FieldType:
    """Return the type of the values in JSON."""
    if kind.item is not None:
        return kind._replace(item=in_json(kind.item))
    return kind._replace(name=BASE64) if kind.name == "binary" else kind


def fit(kind: FieldType, value: Any) -> Any:
    """Return a value that is not null in the form for ``array_of``.

    Raises:
        Misfit: it does not fit the type.
    """
    return _FITS[kind.name](kind, value)


def _bool(kind: FieldType, value: Any) -> bool:
    if type(value) is not bool:
        raise expected(kind, value)
    return value


def int_of(kind: FieldType, value: Any) -> int:
    """Return a whole number, which may be written 1.0.

    Raises:
        Misfit: it is none of 64 bits.
    """
    number = value
    if type(value) is Decimal:  # by its digits: as floats, 9007199254740993.5 and 1e-400 would be whole numbers
        is_whole = INT_MIN <= value <= INT_MAX and value == value.to_integral_value()
        number = int(value) if is_whole else None
    # Beyond, each float is a whole number, whatever was rounded to it. Of JSON, the exact way has the digits.
    if type(number) is float and number.is_integer() and abs(number) < EXACT_MAX:
        number = int(number)
    if type(number) is not int or not INT_MIN <= number <= INT_MAX:
        raise expected(kind, value)
    return number


def is_float_of_whole(kind: FieldType, value: Any) -> bool:
    """Return whether a value for whole numbers is a float, or has one: if ``MAY_ROUND`` finds something in its JSON, it
    may have been rounded."""
    single = kind.item or kind
    if single.name != "int" and (single.name != "date" or single.unit is None):
        return False
    return type(value) is float or (type(value) is list and float in map(type, value))


def _float(kind: FieldType, value: Any) -> float:
    if type(value) is float:
        return value  # also NaN and infinity, which CBOR and MessagePack have
    if type(value) is int or type(value) is Decimal:
        try:
            number = float(value)
        except OverflowError:
            raise expected(kind, value) from None
        if abs(number) != float("inf"):
            return number
    raise expected(kind, value)


def _string(kind: FieldType, value: Any) -> str:
    if type(value) is not str:
        raise expected(kind, value)
    return value


def _binary(kind: FieldType, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    raise expected(kind, value)


def _base64(kind: FieldType, value: Any) -> bytes:
    # RFC 4648 section 4, with padding.
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise expected(kind, value)


def decimal_of(kind: FieldType, value: Any) -> Decimal:
    """Return a number that has room in a type of so many digits.

    Raises:
        Misfit: it has none, or is no number.
    """
    exponent, limit, whole_limit = _room(kind.digits, kind.scale)
    if type(value) is int:
        if -whole_limit < value < whole_limit:
            return Decimal(value)
        raise expected(kind, value)
    number = value
    try:
        if type(value) is str:
            number = Decimal(value)
        elif type(value) is float:
            # The shortest text of this float, most likely the digits that the device sent.
            number = Decimal(repr(value))
        # Signals where it would have to round.
        found: Decimal = number.quantize(exponent, context=_CONTEXT) if type(number) is Decimal else _NOT_A_NUMBER
    except (DecimalException, ValueError):
        raise expected(kind, value) from None
    if not found.is_finite() or not -limit < found < limit:
        raise expected(kind, value)
    return found


@lru_cache(maxsize=64)
def _room(digits: int, scale: int) -> tuple[Decimal, Decimal, int]:
    """Return the exponent of a type's numbers, and the least number that is too large for it, also as an integer."""
    limit = 10 ** (digits - scale)
    return Decimal(1).scaleb(-scale), Decimal(limit), limit


def microseconds(kind: FieldType, value: Any) -> int:
    """Return the microseconds since 1970 of a time, rounded down; a float, whose fraction is binary, to the nearest.

    Raises:
        Misfit: it is not a time of the years 1 to 9999.
    """
    found: int | None = None
    try:
        if type(value) is datetime:  # the timestamps of MessagePack: moments, which no local time is
            found = (value - _EPOCH) // _MICROSECOND if kind.name == "timestamp" else None
        elif kind.unit is None:
            if type(value) is str:
                time = datetime.fromisoformat(value)
                # Without its offset, a moment would be another time.
                if time.tzinfo is None or kind.name == "timestamp":
                    found = (_in_utc(time) - _EPOCH) // _MICROSECOND
        elif type(value) is int:
            found = value * TIME_UNITS[kind.unit] // 1000
        elif type(value) is float or type(value) is Decimal:
            found = round(float(value) * TIME_UNITS[kind.unit] / 1000)
    except (ValueError, OverflowError):
        pass
    if found is None or not _TIME_MIN <= found <= _TIME_MAX:
        raise expected(kind, value)
    return found


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _time(kind: FieldType, value: Any) -> Any:
    microseconds(kind, value)
    return value


def days_of(kind: FieldType, value: Any) -> int:
    """Return the days since 1970 of a day.

    Raises:
        Misfit: it is not a day of the years 1 to 9999.
    """
    found: int | None = None
    if kind.unit is not None:
        found = int_of(kind, value)
    elif type(value) is str:
        with suppress(ValueError):
            found = (date.fromisoformat(value) - _EPOCH.date()).days
    if found is None or not _TIME_MIN <= found * _DAY_US <= _TIME_MAX:
        raise expected(kind, value)
    return found


def _day(kind: FieldType, value: Any) -> Any:
    days_of(kind, value)
    return value


def _array(kind: FieldType, value: Any) -> list[Any]:
    if type(value) is not list:
        raise expected(kind, value)
    assert kind.item is not None
    types = set(map(type, value))
    # Looked at in C: an array may have tens of thousands of items.
    if types <= _AS_THEY_ARE.get(kind.item.name, _NOTHING):
        return value
    if kind.item.name in {"int", "decimal"} and types <= _WHOLE:
        numbers = value if NoneType not in types else [each for each in value if each is not None]
        least, most = _whole_limits(kind.item)
        if not numbers or (min(numbers) >= least and max(numbers) <= most):
            return value
    if kind.item.name == "decimal" and types <= _DECIMALS:
        return _decimals(kind.item, value)
    return [each if each is None else _element(kind.item, index, each) for index, each in enumerate(value)]


def _whole_limits(kind: FieldType) -> tuple[int, int]:
    """Return the least and the largest whole number of a type."""
    if kind.name == "int":
        return INT_MIN, INT_MAX
    most = _room(kind.digits, kind.scale)[2] - 1
    return -most, most


def _decimals(kind: FieldType, value: list[Any]) -> list[Any]:
    """Return numbers that have room in a type of so many digits, each as ``decimal_of`` does.

    Raises:
        Misfit: one of them has none.
    """
    exponent, limit, _ = _room(kind.digits, kind.scale)
    found: list[Any] = []
    try:
        for each in value:
            found.append(None if each is None else each.quantize(exponent, None, _CONTEXT))
        numbers = [each for each in found if each is not None]
        if numbers and not (min(numbers) > -limit and max(numbers) < limit):
            found = found[: next(at for at, each in enumerate(found) if each is not None and not -limit < each < limit)]
    except DecimalException:
        if len(found) == len(value):  # comparisons with NaN signal
            found = found[: next(at for at, each in enumerate(found) if each is not None and each.is_nan())]
    rest = range(len(found), len(value))
    return found + [None if value[at] is None else _element(kind, at, value[at]) for at in rest]


def _element(kind: FieldType, index: int, value: Any) -> Any:
    try:
        return fit(kind, value)
    except Misfit as misfit:
        raise Misfit(f"[{index}]: {misfit}") from None


_FITS: dict[str, Callable[[FieldType, Any], Any]] = {
    "bool": _bool,
    "int": int_of,
    "float": _float,
    "string": _string,
    "binary": _binary,
    BASE64: _base64,
    "timestamp": _time,
    "local_timestamp": _time,
    "date": _day,
    "decimal": decimal_of,
    "array": _array,
}


# Fields of a schema by their paths: a payload is walked once for all of them.


@dataclass(slots=True)
class Node:
    """A place in payloads."""

    path: FieldPath
    fields: list[int] = field(default_factory=list)
    """Numbers of the fields that have their values here."""
    names: dict[str, Node] = field(default_factory=dict)
    """Places in an object, by name."""
    places: dict[int, Node] = field(default_factory=dict)
    """Places in an array, counted from 0."""

    def inside(self) -> Iterator[Node]:
        """Yield the nodes directly below this one."""
        yield from self.names.values()
        yield from self.places.values()

    def below(self) -> Iterator[int]:
        """Yield the numbers of the fields here and below."""
        yield from self.fields
        for node in self.inside():
            yield from node.below()


def tree(paths: Sequence[FieldPath]) -> Node:
    """Return the root of a tree of paths. The fields are numbered in the order of ``paths``."""
    root = Node(())
    for number, path in enumerate(paths):
        node = root
        for at, step in enumerate(path, 1):
            if isinstance(step, int):
                node = node.places.setdefault(step, Node(path[:at]))
            else:
                node = node.names.setdefault(step, Node(path[:at]))
        node.fields.append(number)
    return root


# The exact way through one payload: each field's value, or the reason why it does not fit.


class ExactReader:
    """A reader of payloads, for those that the quick ways leave to it.

    Args:
        names: of the fields.
        kinds: their types, as payloads of the format have them (``in_json``).
        root: their places (``tree.tree``).
        parts: the format.
    """

    def __init__(self, names: Sequence[str], kinds: Sequence[FieldType], root: Node, parts: Format) -> None:
        self._names, self._kinds = names, kinds
        self._root, self._parts = root, parts

    def read(self, payload: bytes, misfits: RowMisfits) -> list[Any]:
        """Return the values of a payload by field, null for those that are missing or do not fit."""
        values: list[Any] = [None] * len(self._names)
        try:
            self._walk(self._root, self._parts.root(payload), values, misfits)
        except Unreadable as error:
            misfits.add(PAYLOAD, str(error))
        return values

    def _walk(self, node: Node, part: Any, values: list[Any], misfits: RowMisfits) -> None:
        if node.fields:
            try:
                value = self._parts.plain(part)
            except Unreadable as error:
                for number in node.fields:
                    misfits.add(self._names[number], str(error))
                value = None
            for number in node.fields if value is not None else ():
                try:
                    values[number] = fit(self._kinds[number], value)
                except Misfit as misfit:
                    misfits.add(self._names[number], str(misfit))
        if node.names or node.places:
            self._enter(node, part, values, misfits)

    def _enter(self, node: Node, part: Any, values: list[Any], misfits: RowMisfits) -> None:
        """Walk into an object or array."""
        try:
            value = self._parts.opened(part)
        except Unreadable as error:
            self._refuse([*node.inside()], node, str(error), misfits)
            return
        if value is None:
            return
        if isinstance(value, dict):
            for name, inside in found(value, node.names).items():
                self._walk(node.names[name], inside, values, misfits)
            lost, wanted = [*node.places.values()], "an array"
        elif isinstance(value, list):
            for place, child in node.places.items():
                if place < len(value):
                    self._walk(child, value[place], values, misfits)
            lost, wanted = [*node.names.values()], "an object"
        else:
            lost, wanted = [*node.inside()], "an object" if node.names else "an array"
        reason = f"expected {wanted} at {format_path(node.path)}, got {shown(value)}"
        self._refuse(lost, node, reason, misfits)

    def _refuse(self, lost: list[Node], node: Node, reason: str, misfits: RowMisfits) -> None:
        """Record why the fields below a node are missing."""
        if lost and not node.path:
            misfits.add(PAYLOAD, reason)
            return
        for number in (number for each in lost for number in each.below()):
            misfits.add(self._names[number], reason)


# Payloads of JSON and MessagePack decoded by msgspec into exactly the fields of a schema: the quick way for those
# that fit, one at a time.

_REJECTED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
_SINGLE: dict[str, Any] = {
    "bool": bool,
    # Whole numbers may be written 1.0, which msgspec rejects for an integer.
    "int": int | float,
    "float": float,
    "string": str,
    "binary": bytes,
    "base64": bytes,
}


def attribute_of(number: int) -> str:
    """Return the attribute of a decoded object for the name at a position in its node (``Node.names``)."""
    return f"f{number}"


class TypedDecoder:
    """A decoder of payloads into objects with the fields of a tree."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], name: SchemaFormat) -> None:
        """Make the decoder.

        Raises:
            LookupError: there is no quick way for these paths.
        """
        self._made: dict[Any, Any] = {}
        self.is_json = name == "json"
        shape = self._shape(root, kinds, is_root=True)
        if self.is_json:
            decoder = msgspec.json.Decoder(shape)
            self._decode: Callable[[bytes], Any] = decoder.decode
            self.decode_lines = decoder.decode_lines
        else:
            self._decode = msgspec.msgpack.Decoder(shape).decode

    def decode(self, payload: bytes) -> Any:
        """Return the object of a payload; None if it must be read the exact way."""
        try:
            return self._decode(payload) if self._passes(payload) else None
        except _REJECTED:
            return None

    def _passes(self, payload: bytes) -> bool:
        """Return whether the exact way would accept a payload that can be decoded."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            return False
        if not self.is_json:
            return opens_few(payload)
        # msgspec does not check the text of skipped fields for valid UTF-8.
        if not payload.isascii():
            payload.decode()
        return nests_at_most(NESTING_MAX, payload)

    def _shape(self, node: Node, kinds: Sequence[FieldType], *, is_root: bool = False) -> Any:
        """Return the type of a place. Equal places have equal types, as the items of an array need."""
        inside = [*node.inside()]
        if len(node.fields) + bool(node.names) + bool(node.places) != 1:
            raise LookupError("a place has two meanings")
        if node.fields:
            found = self._single(kinds[node.fields[0]])
        elif node.places:
            shapes = [self._shape(each, kinds) for each in inside]
            if any(shape != shapes[0] for shape in shapes):
                raise LookupError("the items of an array have different types")
            found = list[shapes[0]]  # type: ignore[valid-type]
        else:
            shapes = [self._shape(each, kinds) for each in inside]
            found = self._object(tuple(node.names), shapes)
        return found if is_root else found | None

    def _object(self, names: tuple[str, ...], shapes: list[Any]) -> Any:
        key = (names, tuple(map(repr, shapes)))
        if key not in self._made:
            attributes = {attribute_of(number): name for number, name in enumerate(names)}
            fields = [(attribute, shape, None) for attribute, shape in zip(attributes, shapes, strict=True)]
            self._made[key] = msgspec.defstruct(f"Object{len(self._made)}", fields, rename=attributes, gc=False)
        return self._made[key]

    def _single(self, kind: FieldType) -> Any:
        if kind.item is not None:
            return list[self._single(kind.item) | None]  # type: ignore[misc]
        if kind.name == "decimal":
            # For a float in MessagePack, the exact way uses its shortest text, so floats are left to it.
            return Decimal if self.is_json else int | str
        if kind.name in TIMES:
            # msgspec would read text as a time by rules of its own.
            return str if kind.unit is None else int | float
        return _SINGLE[kind.name]


# Check of single payloads against a schema, for nodes that take them: what fits is decided as for tables.

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
        if self._typed is not None and self._fits(self._typed.decode(payload), payload):
            return []
        found = RowMisfits()
        values = self._exact.read(payload, found)
        for number in self._required:
            name = self._names[number]
            if values[number] is None and name not in found.reasons and PAYLOAD not in found.reasons:
                found.add(name, MISSING)
        return found.items()

    def _fits(self, row: Any, payload: bytes) -> bool:
        """Return whether a decoded object fits for certain. None stands for one that could not be decoded."""
        if row is None:
            return False
        is_json = self._typed is not None and self._typed.is_json
        try:
            for get, kind, required in self._looks:
                value = get(row)
                if value is None:
                    if required:
                        return False
                elif kind is not None:
                    if is_json and is_float_of_whole(kind, value) and MAY_ROUND.search(payload):
                        return False
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
