"""Payloads of Sparkplug B: metrics as fields by their names, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, EncodeError

from weft.functions.contract import Function, Out, PayloadError, Row, State, Values
from weft.functions.formats import DEPTH_MAX, TOO_DEEP, check_length

# Messages of Sparkplug B (Sparkplug 3.0, section 6.4), for the runtime of protobuf.
#
# The description is written here instead of generated: it has all fields that are read and written, and the parser
# skips other fields (metadata, extensions) without an object for each.

_PACKAGE = "weft.sparkplug"
_TYPES = {"uint32": 13, "uint64": 4, "float": 2, "double": 1, "bool": 8, "string": 9, "bytes": 12}
"""Type -> its number in a description. Any other name is a message's."""

_SCALAR_FIELDS = ("int uint32", "long uint64", "float float", "double double", "boolean bool", "string string")


def _scalars(first: int) -> dict[int, str]:
    return {first + at: f"={kind.replace(' ', '_value ')}" for at, kind in enumerate(_SCALAR_FIELDS)}


MESSAGES: dict[str, dict[int, str]] = {
    "Payload": {1: "timestamp uint64", 2: "*metrics Metric", 3: "seq uint64"},
    "Metric": {
        1: "name string",
        2: "alias uint64",
        3: "timestamp uint64",
        4: "datatype uint32",
        5: "is_historical bool",
        6: "is_transient bool",
        7: "is_null bool",
        9: "properties PropertySet",
        **_scalars(10),
        16: "=bytes_value bytes",
        17: "=dataset_value DataSet",
        18: "=template_value Template",
    },
    "DataSet": {1: "num_of_columns uint64", 2: "*columns string", 3: "*types uint32", 4: "*rows Row"},
    "Row": {1: "*elements Element"},
    "Element": _scalars(1),
    "Template": {
        1: "version string",
        2: "*metrics Metric",
        3: "*parameters Parameter",
        4: "template_ref string",
        5: "is_definition bool",
    },
    "Parameter": {1: "name string", 2: "type uint32", **_scalars(3)},
    "PropertySet": {1: "*keys string", 2: "*values Property"},
    "Property": {
        1: "type uint32",
        2: "is_null bool",
        **_scalars(3),
        9: "=propertyset_value PropertySet",
        10: "=propertysets_value PropertySetList",
    },
    "PropertySetList": {1: "*propertyset PropertySet"},
}
"""Message -> number of a field -> its name and type; ``*`` for a list, ``=`` for a value
of which at most one is set."""


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="weft_sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, field in fields.items():
            name, type_ = field.lstrip("*=").split()
            described = message.field.add(name=name, number=number, label=3 if field[0] == "*" else 1)
            if type_ in _TYPES:
                described.type = _TYPES[type_]
            else:
                described.type, described.type_name = 11, f".{_PACKAGE}.{type_}"
            if field[0] == "=":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                described.oneof_index = 0
    return file


def _payload_class() -> Any:
    pool = descriptor_pool.DescriptorPool()  # not the one of the process, where another library may have the same names
    pool.Add(_described())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload"))


Payload: Any = _payload_class()
"""Class of payloads."""


# Topics of Sparkplug B (Sparkplug 3.0, section 4): ``spBv1.0/GROUP/TYPE/NODE`` and ``.../DEVICE``.

NAMESPACE = b"spBv1.0"
NODE_MESSAGES = frozenset({b"NBIRTH", b"NDEATH", b"NDATA", b"NCMD"})
DEVICE_MESSAGES = frozenset({b"DBIRTH", b"DDEATH", b"DDATA", b"DCMD"})


class SparkplugTopic(NamedTuple):
    """Sender and kind of a message."""

    kind: bytes
    """``BIRTH``, ``DEATH``, ``DATA`` or ``CMD``."""
    node: bytes
    """``GROUP/NODE``: name of the edge node."""
    source: bytes
    """``GROUP/NODE`` or ``GROUP/NODE/DEVICE``: the owner of the metrics."""

    @property
    def is_node(self) -> bool:
        """Return whether the message is of the edge node itself, and not of a device."""
        return self.node == self.source


def parse_topic(topic: bytes) -> SparkplugTopic | None:
    """Return the parts of a topic; None for a topic of neither edge nodes nor devices, such as ``STATE`` of a host."""
    levels = topic.split(b"/")
    if levels[0] != NAMESPACE or not all(levels):
        return None
    if len(levels) == 4 and levels[2] in NODE_MESSAGES:
        node = source = b"/".join((levels[1], levels[3]))
    elif len(levels) == 5 and levels[2] in DEVICE_MESSAGES:
        node = b"/".join((levels[1], levels[3]))
        source = b"/".join((node, levels[4]))
    else:
        return None
    return SparkplugTopic(levels[2][1:], node, source)


# Datatypes of Sparkplug B and their values (Sparkplug 3.0, section 6.4.16).


class Datatype(IntEnum):
    """Datatypes by their number in a metric."""

    UNKNOWN = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT8 = 5
    UINT16 = 6
    UINT32 = 7
    UINT64 = 8
    FLOAT = 9
    DOUBLE = 10
    BOOLEAN = 11
    STRING = 12
    DATETIME = 13
    TEXT = 14
    UUID = 15
    DATASET = 16
    BYTES = 17
    FILE = 18
    TEMPLATE = 19
    INT8_ARRAY = 22
    INT16_ARRAY = 23
    INT32_ARRAY = 24
    INT64_ARRAY = 25
    UINT8_ARRAY = 26
    UINT16_ARRAY = 27
    UINT32_ARRAY = 28
    UINT64_ARRAY = 29
    FLOAT_ARRAY = 30
    DOUBLE_ARRAY = 31
    BOOLEAN_ARRAY = 32
    STRING_ARRAY = 33
    DATETIME_ARRAY = 34


_INTEGERS = {
    Datatype.INT8: (8, True),
    Datatype.INT16: (16, True),
    Datatype.INT32: (32, True),
    Datatype.INT64: (64, True),
    Datatype.UINT8: (8, False),
    Datatype.UINT16: (16, False),
    Datatype.UINT32: (32, False),
    Datatype.UINT64: (64, False),
    Datatype.DATETIME: (64, False),
}
"""Datatype -> its bits, and whether it has a sign. A time is milliseconds since 1970."""
_ARRAYS = {
    Datatype.INT8_ARRAY: "b",
    Datatype.INT16_ARRAY: "h",
    Datatype.INT32_ARRAY: "i",
    Datatype.INT64_ARRAY: "q",
    Datatype.UINT8_ARRAY: "B",
    Datatype.UINT16_ARRAY: "H",
    Datatype.UINT32_ARRAY: "I",
    Datatype.UINT64_ARRAY: "Q",
    Datatype.FLOAT_ARRAY: "f",
    Datatype.DOUBLE_ARRAY: "d",
    Datatype.DATETIME_ARRAY: "Q",
}
"""Datatype -> code of ``struct`` for an item."""
_FLOATS = frozenset({Datatype.FLOAT, Datatype.DOUBLE})
_TEXTS = frozenset({Datatype.STRING, Datatype.TEXT, Datatype.UUID})


_NAMES = {each: each.name.title().replace("_", "").replace("Uint", "UInt") for each in Datatype} | {
    Datatype.UUID: "UUID",
    Datatype.DATASET: "DataSet",
    Datatype.DATETIME: "DateTime",
    Datatype.DATETIME_ARRAY: "DateTimeArray",
}
"""Datatype -> its name in the specification: ``UInt16``, ``DateTimeArray``."""


def title_of(datatype: int) -> str:
    """Return the name of a datatype in the specification; its number where it has none."""
    return _NAMES.get(datatype) or str(datatype)  # type: ignore[call-overload]


def name_of(datatype: int) -> str:
    """Return the name of a datatype for people."""
    try:
        return Datatype(datatype).name.lower()
    except ValueError:
        return f"datatype {datatype}"


# --- reading


def integer(raw: int, datatype: int | None) -> int:
    """Return the value of an integer on the wire.

    The wire has no negative numbers. Senders write an Int8 of -1 as 255, or as 2**32 - 1: both are read.

    Raises:
        PayloadError: the datatype is not known, or the number does not fit into it.
    """
    if not datatype:
        raise PayloadError("it is an integer without a datatype, and the birth that gives it one is not known")
    bits, is_signed = _INTEGERS.get(datatype, (0, False))  # type: ignore[call-overload]
    if not bits:
        raise PayloadError(f"it is an integer, and its datatype is {name_of(datatype)}")
    number: int = raw & (1 << bits) - 1
    if is_signed and number >> bits - 1:
        number -= 1 << bits
    if raw not in (number, number & (1 << bits) - 1, number & 0xFFFF_FFFF, number & 0xFFFF_FFFF_FFFF_FFFF):
        raise PayloadError(f"it is {raw}, which does not fit into its datatype, {name_of(datatype)}")
    return number


def floating(number: float, datatype: int | None) -> float:
    """Return a float of the datatypes for floats.

    Raises:
        PayloadError: the datatype is another one.
    """
    return number if not datatype or datatype in _FLOATS else _mismatch("a float", datatype)


def boolean(value: bool, datatype: int | None) -> bool:
    """Return a truth value of its datatype.

    Raises:
        PayloadError: the datatype is another one.
    """
    return value if not datatype or datatype == Datatype.BOOLEAN else bool(_mismatch("true or false", datatype))


def text(value: Any, datatype: int | None) -> str:
    """Return text of the datatypes for text.

    Raises:
        PayloadError: the datatype is another one, or the text is not UTF-8.
    """
    if datatype and datatype not in _TEXTS:
        _mismatch("text", datatype)
    return utf8(value)


def utf8(value: Any) -> str:
    """Return text from protobuf, which returns bytes where they are not UTF-8.

    Raises:
        PayloadError: it is not UTF-8.
    """
    if type(value) is not str:
        raise PayloadError("it has a text that is not UTF-8")
    return value


def binary(value: bytes, datatype: int | None) -> Any:
    """Return bytes, or the list of numbers, truth values or texts that they encode.

    Raises:
        PayloadError: the datatype is another one, or the bytes do not match it.
    """
    if not datatype or datatype in (Datatype.BYTES, Datatype.FILE):
        return value
    if datatype in _ARRAYS:
        code = _ARRAYS[Datatype(datatype)]
        count, rest = divmod(len(value), struct.calcsize(f"<{code}"))
        if rest:
            raise PayloadError(f"{len(value)} bytes is not a whole number of values of {name_of(datatype)}")
        return list(struct.unpack(f"<{count}{code}", value))
    if datatype == Datatype.BOOLEAN_ARRAY:
        return _booleans(value)
    if datatype == Datatype.STRING_ARRAY:
        return _texts(value)
    return _mismatch("bytes", datatype)


def _mismatch(what: str, datatype: int) -> Any:
    raise PayloadError(f"it is {what}, and its datatype is {name_of(datatype)}")


def _booleans(value: bytes) -> list[bool]:
    count = int.from_bytes(value[:4], "little")
    bits = value[4:]
    if len(value) < 4 or len(bits) != (count + 7) // 8:
        raise PayloadError(f"{len(value)} bytes do not match the count of values in boolean_array")
    return [bool(bits[at >> 3] >> (7 - (at & 7)) & 1) for at in range(count)]


def _texts(value: bytes) -> list[str]:
    if value and value[-1]:
        raise PayloadError("the last text of its list does not end with NUL")
    try:
        return value.decode().split("\0")[:-1]
    except UnicodeDecodeError:
        raise PayloadError("its list of texts is not UTF-8") from None


# --- writing


def written_integer(number: int) -> tuple[Datatype, int]:
    """Return the datatype of an integer, and the number on the wire.

    Raises:
        PayloadError: it has more than 64 bits.
    """
    if -(1 << 63) <= number < 1 << 63:
        return Datatype.INT64, number & (1 << 64) - 1
    if 0 <= number < 1 << 64:
        return Datatype.UINT64, number
    raise PayloadError("an integer has more than 64 bits")


def written_list(values: list[Any]) -> tuple[Datatype, bytes]:
    """Return the datatype of a list of numbers, truth values or texts, and its bytes.

    Raises:
        PayloadError: the list has something else, or a mixture.
    """
    kinds = set(map(type, values))
    if kinds <= {bool} and values:
        return Datatype.BOOLEAN_ARRAY, _packed_booleans(values)
    if kinds <= {int}:
        datatype = Datatype.INT64_ARRAY if max(values, default=0) < 1 << 63 else Datatype.UINT64_ARRAY
        return datatype, _packed(datatype, values)
    if kinds <= {int, float}:
        return Datatype.DOUBLE_ARRAY, _packed(Datatype.DOUBLE_ARRAY, [float(each) for each in values])
    if kinds == {str} and not any("\0" in each for each in values):
        return Datatype.STRING_ARRAY, "".join(f"{each}\0" for each in values).encode()
    raise PayloadError("a list can have numbers, truth values, texts without NUL, or rows with the same fields")


def column(values: list[Any]) -> Datatype:
    """Return the datatype of a dataset's column, in which some values may be missing.

    Raises:
        PayloadError: the values have no datatype in common.
    """
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if kinds == {int}:
        least, most = min(present), max(present)
        if least >= -(1 << 63) and most < 1 << (64 if least >= 0 else 63):
            return Datatype.INT64 if most < 1 << 63 else Datatype.UINT64
    elif kinds and kinds <= {int, float}:
        return Datatype.DOUBLE
    elif kinds == {bool}:
        return Datatype.BOOLEAN
    elif kinds <= {str}:
        return Datatype.STRING
    raise PayloadError("a column of a dataset has numbers, truth values or texts, and no mixture of them")


def _packed(datatype: Datatype, values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}{_ARRAYS[datatype]}", *values)


def _packed_booleans(values: list[bool]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for at, value in enumerate(values):
        bits[at >> 3] |= value << (7 - (at & 7))
    return len(values).to_bytes(4, "little") + bits


WORD_MAX = (1 << 64) - 1
OWN_FIELDS = ("timestamp", "seq")
"""Fields of the payload itself: its time in milliseconds since 1970, and its number from 0 to 255."""


class Definition(NamedTuple):
    """Name and datatype that a birth gives to a metric."""

    name: str
    datatype: int


Definitions = Mapping[int | str, Definition]
"""Definitions by alias, and by name."""
NO_DEFINITIONS: Definitions = {}


class UnknownAlias(PayloadError):
    """A metric has an alias in place of a name, and no known birth has it."""


class SparkplugFormat:
    """Sparkplug B without a memory, for metrics with names, such as those of births.

    A metric is the field of its name; the last one of equal names counts. The payload's own ``timestamp`` and ``seq``
    are fields as well, unless a metric has the name. A template is a mapping, a dataset a list of mappings, a time
    milliseconds since 1970. Properties, metadata and the times of metrics are left out.
    """

    def decode(self, payload: bytes) -> Values:
        """Return the metrics.

        Raises:
            PayloadError: it is not Sparkplug B, or a metric has no name, or its datatype is only in its birth.
        """
        return values_of(parse(payload), NO_DEFINITIONS)

    def encode(self, values: Values) -> bytes:
        """Return a payload whose metrics have names, and the datatypes Int64, UInt64, Double, Boolean, String, Bytes
        and arrays of these; a mapping is a template, a list of mappings a dataset.

        Raises:
            PayloadError: Sparkplug B cannot hold the fields.
        """
        message = Payload()
        try:
            for name, value in values.items():
                if name in OWN_FIELDS and type(value) is int and 0 <= value <= WORD_MAX:
                    setattr(message, name, value)
                else:
                    _write_metric(message.metrics.add(), name, value, 0)
            payload: bytes = message.SerializeToString(deterministic=True)
        except PayloadError:
            raise
        except (ValueError, TypeError, OverflowError, struct.error, EncodeError) as error:
            raise PayloadError(f"Sparkplug B cannot hold its fields: {error}") from None
        return payload


# --- reading


def parse(payload: bytes) -> Any:
    """Return the protobuf message of a payload.

    Raises:
        PayloadError: it is not Sparkplug B, or too long.
    """
    check_length(payload)
    try:
        return Payload.FromString(payload)
    except DecodeError as error:
        raise PayloadError(f"it is not Sparkplug B: {error}") from None


def values_of(message: Any, known: Definitions) -> Values:
    """Return the fields of a payload.

    Args:
        known: definitions of the birth of its edge node or device.

    Raises:
        PayloadError: a metric has neither a name nor a known alias, or a value that does not match its datatype.
    """
    values: Values = {name: getattr(message, name) for name in OWN_FIELDS if message.HasField(name)}
    _read_metrics(message.metrics, known, values, 0)
    return values


def definition_of(metric: Any, known: Definitions) -> Definition:
    """Return the name and the datatype of a metric, 0 for none.

    Raises:
        PayloadError: it has neither a name nor a known alias.
    """
    datatype, name = metric.datatype, metric.name
    if name or metric.HasField("name"):
        name = utf8(name)
        if not datatype and name in known:
            datatype = known[name].datatype
        return Definition(name, datatype)
    if not metric.HasField("alias"):
        raise PayloadError("a metric has neither a name nor an alias")
    if (found := known.get(metric.alias)) is None:
        raise UnknownAlias(f"a metric has the alias {metric.alias}, and the birth that names it is not known")
    return found if not datatype else Definition(found.name, datatype)


def _read_metrics(metrics: Any, known: Definitions, values: Values, depth: int) -> None:
    for metric in metrics:
        name, datatype = definition_of(metric, known)
        try:
            values[name] = value_of(metric, datatype, depth)
        except PayloadError as error:
            raise PayloadError(f"metric {name[:100]}: {error}") from None


def value_of(metric: Any, datatype: int, depth: int = 0) -> Any:
    """Return the value of a metric; None for null.

    Args:
        datatype: that of ``definition_of``.
        depth: templates around it.

    Raises:
        PayloadError: it does not match its datatype, or has templates nested too deeply.
    """
    kind = metric.WhichOneof("value")
    if kind is None or metric.is_null:
        return None
    if kind in _SCALARS:
        return scalar_of(metric, kind, datatype)
    if kind == "bytes_value":
        return binary(metric.bytes_value, datatype)
    if kind == "dataset_value":
        return _rows(metric.dataset_value)
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)
    inside: Values = {}
    # Aliases are for the metrics of an edge node; those of a template have names.
    _read_metrics(metric.template_value.metrics, NO_DEFINITIONS, inside, depth + 1)
    return inside


_SCALARS: dict[str, Callable[[Any, int | None], Any]] = {
    "int_value": integer,
    "long_value": integer,
    "float_value": floating,
    "double_value": floating,
    "boolean_value": boolean,
    "string_value": text,
}


def scalar_of(holder: Any, kind: str, datatype: int) -> Any:
    """Return a number, truth value or text of a metric, property, parameter or dataset.

    Args:
        kind: name of the field with the value.

    Raises:
        PayloadError: it does not match its datatype.
    """
    return _SCALARS[kind](getattr(holder, kind), datatype)


def _rows(dataset: Any) -> list[Values]:
    columns = [utf8(name) for name in dataset.columns]
    types = list(dataset.types)
    if len(types) != len(columns) or len(set(columns)) != len(columns):
        raise PayloadError(f"a dataset has {len(types)} types for {len(set(columns))} different columns")
    if not columns and len(dataset.rows):  # Two bytes each, and a mapping without anything in it.
        raise PayloadError("a dataset has rows and no columns")
    return [_row(row, columns, types) for row in dataset.rows]


def _row(row: Any, columns: list[str], types: list[int]) -> Values:
    if len(row.elements) != len(columns):
        raise PayloadError(f"a row of a dataset has {len(row.elements)} values for {len(columns)} columns")
    values: Values = {}
    for name, datatype, element in zip(columns, types, row.elements, strict=True):
        kind = element.WhichOneof("value")
        values[name] = None if kind is None else scalar_of(element, kind, datatype)
    return values


# --- writing


def _write_metric(metric: Any, name: str, value: Any, depth: int) -> None:
    metric.name = name
    kind = type(value)
    if value is None:
        metric.is_null = True
    elif kind is dict:
        if depth >= DEPTH_MAX:
            raise PayloadError(TOO_DEEP)
        metric.datatype = Datatype.TEMPLATE
        metric.template_value.SetInParent()
        for inner, each in value.items():
            _write_metric(metric.template_value.metrics.add(), inner, each, depth + 1)
    elif kind is list:
        _write_list(metric, value)
    elif kind is bytes:
        metric.datatype, metric.bytes_value = Datatype.BYTES, value
    else:
        metric.datatype = _write_scalar(metric, value)


def _write_scalar(holder: Any, value: Any) -> Datatype:
    kind = type(value)
    if kind is int:
        datatype, holder.long_value = written_integer(value)
        return datatype
    if kind is float:
        holder.double_value = value
        return Datatype.DOUBLE
    if kind is bool:
        holder.boolean_value = value
        return Datatype.BOOLEAN
    if kind is str:
        holder.string_value = value
        return Datatype.STRING
    raise PayloadError(f"a field has a value of the type {kind.__name__}, which Sparkplug B cannot hold")


def _write_list(metric: Any, values: list[Any]) -> None:
    if not values or type(values[0]) is not dict:
        metric.datatype, metric.bytes_value = written_list(values)
        return
    metric.datatype = Datatype.DATASET
    dataset, names = metric.dataset_value, values[0].keys()
    if any(type(row) is not dict or row.keys() != names for row in values):
        raise PayloadError("a list of rows has rows with different fields")
    if not names:
        raise PayloadError("a list of rows has rows without fields")
    dataset.num_of_columns = len(names)
    dataset.columns.extend(names)
    types = [column([row[name] for row in values]) for name in names]
    dataset.types.extend(types)
    for row in values:
        written = dataset.rows.add()
        for name, datatype in zip(names, types, strict=True):
            element = written.elements.add()
            if (value := row[name]) is not None:
                _write_scalar(element, float(value) if datatype is Datatype.DOUBLE else value)


# Memory of births of Sparkplug B, and the function that decodes rows with it.
#
# A birth gives each metric a name, a datatype and perhaps an alias; later data may have only the alias (Sparkplug
# 3.0, sections 6.4.6 and 6.4.8). A Sparkplug ingest that follows sequences and requests births can use ``Births``
# directly: it does not depend on rows.

SOURCES_MAX = 1_000
"""Largest number of edge nodes and devices whose births are remembered."""
DEFINITIONS_MAX = 100_000
"""Largest number of metrics of them all; each takes some 200 bytes and its name."""
SOURCE_BYTES_MAX = 1_024
"""Longest name of an edge node or device whose birth is remembered, with its group."""
NAME_CHARACTERS_MAX = 256
"""Longest name of a metric that is remembered."""
BD_SEQ = "bdSeq"
"""Metric in births and deaths of edge nodes that relates a death to its birth (section 6.4.20)."""
NONE = -1
"""Value for a missing alias or ``bdSeq``; real ones are not negative."""


class _CachedDefinitions(NamedTuple):
    stored: Any
    definitions: Definitions


class Births:
    """Definitions of metrics by edge node and device, in the state of a function.

    The state has, under ``GROUP/NODE`` and ``GROUP/NODE/DEVICE``, the ``bdSeq`` of the birth and for each metric its
    name, alias and datatype. It is bounded by ``SOURCES_MAX``, ``DEFINITIONS_MAX`` and ``NAME_CHARACTERS_MAX``; a birth
    beyond them is refused.
    """

    def __init__(self, state: State) -> None:
        """Use a state, which may be filled later."""
        self._state = state
        # Look-up tables, created from the state at the first use and again after a change.
        self._tables: dict[bytes, _CachedDefinitions] = {}

    def learn(self, topic: SparkplugTopic, message: Any) -> None:
        """Remember a birth. The birth of an edge node also ends its devices, which have births of their own (6.4.6).

        Raises:
            PayloadError: a metric has no name, or the bounds do not allow more; nothing has changed then, and the
                earlier birth may be outdated (``lose``).
        """
        if len(topic.source) > SOURCE_BYTES_MAX:
            raise PayloadError(
                f"the names in its topic have {len(topic.source)} bytes; at most {SOURCE_BYTES_MAX} can be"
            )
        metrics = [stored_metric(metric) for metric in message.metrics]
        replaced = {topic.source, *(self._devices(topic.node) if topic.is_node else ())}
        kept = [stored for source, stored in self._state.values.items() if source not in replaced]
        if len(kept) >= SOURCES_MAX or sum(len(stored[1]) for stored in kept) + len(metrics) > DEFINITIONS_MAX:
            raise PayloadError(
                f"births of at most {SOURCES_MAX} edge nodes and devices with {DEFINITIONS_MAX} metrics are remembered"
            )
        for source in sorted(replaced):
            self._forget(source)
        self._state.set(topic.source, [bd_seq_of(message), metrics])

    def forget(self, topic: SparkplugTopic, message: Any) -> None:
        """Forget a birth after its death. The death of an edge node also ends its devices.

        The death of an edge node is its will, which a broker may send when the node is back already. A death whose
        ``bdSeq`` differs from the birth's is skipped.
        """
        stored = self._state.values.get(topic.source)
        if stored is None or (topic.is_node and stored[0] != bd_seq_of(message)):
            return
        self.lose(topic)

    def lose(self, topic: SparkplugTopic) -> None:
        """Forget a birth: its sender has gone, or a later birth that may have other names could not be parsed."""
        for source in sorted({topic.source, *(self._devices(topic.node) if topic.is_node else ())}):
            self._forget(source)

    def definitions(self, topic: SparkplugTopic) -> Definitions:
        """Return the known metrics of an edge node or device."""
        stored = self._state.values.get(topic.source)
        if stored is None:
            self._tables.pop(topic.source, None)
            return NO_DEFINITIONS
        known = self._tables.get(topic.source)
        if known is None or known.stored is not stored:
            known = self._tables[topic.source] = _CachedDefinitions(stored, dict(definitions_in(stored[1])))
        return known.definitions

    def _devices(self, node: bytes) -> list[bytes]:
        prefix = node + b"/"
        return [source for source in self._state.values if source.startswith(prefix)]

    def _forget(self, source: bytes) -> None:
        self._state.delete(source)
        self._tables.pop(source, None)


class SparkplugRows(Function):
    """Decoding of a stream of Sparkplug B, the first function of its chain.

    Each message of an edge node or device becomes a row with its metrics as fields. Data whose metrics have only
    aliases are rejected until a birth was seen. State: see ``Births``.
    """

    reads_values = False  # It decodes them itself.
    state: State

    def __init__(self) -> None:
        """Start without any births."""
        self.state = State()
        self._births = Births(self.state)

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with their fields."""
        decoded = []
        for row in rows:
            try:
                self._decode(row)
            except PayloadError as error:
                out.reject(row, str(error))
            else:
                decoded.append(row)
        return decoded

    def _decode(self, row: Row) -> None:
        if (topic := parse_topic(row.key)) is None:
            raise PayloadError("its topic is none of an edge node or device of Sparkplug B: spBv1.0/GROUP/TYPE/NODE")
        if topic.kind == b"BIRTH":
            try:
                message = parse(row.payload or b"")
                row.values = values_of(message, NO_DEFINITIONS)
                self._births.learn(topic, message)
            except PayloadError:
                self._births.lose(topic)
                raise
            return
        message = parse(row.payload or b"")
        row.values = values_of(message, self._births.definitions(topic))
        if topic.kind == b"DEATH":
            self._births.forget(topic, message)


def stored_metric(metric: Any) -> list[str | int]:
    """Return name, alias and datatype of a metric of a birth, to be remembered.

    Raises:
        PayloadError: it has no name, or one that is too long.
    """
    if not metric.HasField("name"):
        raise PayloadError("a metric of the birth has no name")
    name, datatype = definition_of(metric, NO_DEFINITIONS)
    if len(name) > NAME_CHARACTERS_MAX:
        raise PayloadError(f"the name of a metric has {len(name)} characters; at most {NAME_CHARACTERS_MAX} can be")
    return [name, metric.alias if metric.HasField("alias") else NONE, datatype]


def bd_seq_of(message: Any) -> int:
    """Return the number that relates the death of an edge node to its birth; ``NONE`` without one."""
    for metric in message.metrics:
        if metric.name == BD_SEQ:
            found: int = metric.long_value or metric.int_value
            return found
    return NONE


def definitions_in(metrics: Iterable[list[Any]]) -> Iterable[tuple[int | str, Definition]]:
    """Yield the definitions of remembered metrics, by name and by alias."""
    for name, alias, datatype in metrics:
        found = Definition(name, datatype)
        yield name, found
        if alias != NONE:
            yield alias, found


# Metrics of Sparkplug B with all their data in a payload: time, quality, flags, properties.

GOOD = 192
"""Quality of a metric without one: a sender must state only other qualities (Sparkplug 3.0, section 6.4.9.1)."""
STALE = 500
"""Quality of a metric after the death of its edge node or device."""
METRICS_MAX = 10_000
"""Maximum number of metrics in a payload. Each may become a record of its own, and a birth of 256 KiB has some
4,000."""
_QUALITY = "quality"
_INTEGER_FIELDS = ("int_value", "long_value")


class Reading(NamedTuple):
    """A metric of a payload."""

    name: str
    datatype: str
    """Name in the specification: ``Int16``."""
    value: Any
    timestamp: int | None
    """Its own time in milliseconds since 1970, or that of the payload; None without both."""
    quality: int
    is_historical: bool
    is_transient: bool
    properties: Values | None
    """Properties except the quality; None without any."""
    template: Values | None
    """Facts about a template beside its metrics: ``of``, ``version``, ``definition``, ``parameters``."""


def readings_of(message: Any, known: Definitions) -> list[Reading]:
    """Return the metrics of a payload, in their order.

    Args:
        known: definitions of the birth of its edge node or device.

    Raises:
        UnknownAlias: a metric has an alias that ``known`` does not have.
        PayloadError: as ``values_of``; or there are too many metrics, or a name is too long.
    """
    metrics = message.metrics
    if len(metrics) > METRICS_MAX:
        raise PayloadError(f"it has {len(metrics)} metrics; at most {METRICS_MAX} are read")
    sent = message.timestamp if message.HasField("timestamp") else None
    return [_reading(metric, known, sent) for metric in metrics]


def _reading(metric: Any, known: Definitions, sent: int | None) -> Reading:
    name, datatype = definition_of(metric, known)
    if len(name) > NAME_CHARACTERS_MAX:
        raise PayloadError(f"the name of a metric has {len(name)} characters; at most {NAME_CHARACTERS_MAX} can be")
    try:
        quality, properties = GOOD, None
        if metric.HasField("properties"):
            properties = _properties(metric.properties, 0)
            quality = _take_quality(properties)
        template = None
        if metric.HasField("template_value"):
            template = _about(metric.template_value)
        value = value_of(metric, datatype)
    except PayloadError as error:
        raise PayloadError(f"metric {name[:100]}: {error}") from None
    return Reading(
        name,
        title_of(datatype),
        value,
        metric.timestamp if metric.HasField("timestamp") else sent,
        quality,
        metric.is_historical,
        metric.is_transient,
        properties or None,
        template,
    )


def _take_quality(properties: Values) -> int:
    """Remove the quality from the properties and return it."""
    # The specification writes `Quality`; senders write both.
    for name in ("Quality", _QUALITY):
        if type(properties.get(name)) is int:
            found: int = properties.pop(name)
            return found
    return GOOD


def _properties(found: Any, depth: int) -> Values:
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)
    if len(found.keys) != len(found.values):
        raise PayloadError(f"its properties have {len(found.keys)} names for {len(found.values)} values")
    return {utf8(name): _property(each, depth) for name, each in zip(found.keys, found.values, strict=True)}


def _property(found: Any, depth: int) -> Any:
    kind = found.WhichOneof("value")
    if kind is None or found.is_null:
        return None
    if kind == "propertyset_value":
        return _properties(found.propertyset_value, depth + 1)
    if kind == "propertysets_value":
        return [_properties(each, depth + 1) for each in found.propertysets_value.propertyset]
    return _typed(found, kind)


def _about(template: Any) -> Values:
    about: Values = {}
    if template.HasField("template_ref"):
        about["of"] = utf8(template.template_ref)
    if template.HasField("version"):
        about["version"] = utf8(template.version)
    if template.is_definition:
        about["definition"] = True
    if template.parameters:
        about["parameters"] = {
            utf8(each.name): None if (kind := each.WhichOneof("value")) is None else _typed(each, kind)
            for each in template.parameters
        }
    return about


def _typed(holder: Any, kind: str) -> Any:
    if holder.type or kind not in _INTEGER_FIELDS:
        return scalar_of(holder, kind, holder.type)
    # Without a type the sign is unknown: use the number on the wire.
    return getattr(holder, kind)
