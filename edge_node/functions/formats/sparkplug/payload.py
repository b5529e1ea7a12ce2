"""Payloads of Sparkplug B: metrics as fields by their names, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, EncodeError

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import DEPTH_MAX, TOO_DEEP, check_length
from weft.edge_node.functions.formats.sparkplug import datatypes
from weft.edge_node.functions.formats.sparkplug.datatypes import Datatype, utf8
from weft.edge_node.functions.formats.sparkplug.schema import Payload
from weft.edge_node.functions.payloads import PayloadError

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
        return datatypes.binary(metric.bytes_value, datatype)
    if kind == "dataset_value":
        return _rows(metric.dataset_value)
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)
    inside: Values = {}
    # Aliases are for the metrics of an edge node; those of a template have names.
    _read_metrics(metric.template_value.metrics, NO_DEFINITIONS, inside, depth + 1)
    return inside


_SCALARS: dict[str, Callable[[Any, int | None], Any]] = {
    "int_value": datatypes.integer,
    "long_value": datatypes.integer,
    "float_value": datatypes.floating,
    "double_value": datatypes.floating,
    "boolean_value": datatypes.boolean,
    "string_value": datatypes.text,
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
        datatype, holder.long_value = datatypes.written_integer(value)
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
        metric.datatype, metric.bytes_value = datatypes.written_list(values)
        return
    metric.datatype = Datatype.DATASET
    dataset, names = metric.dataset_value, values[0].keys()
    if any(type(row) is not dict or row.keys() != names for row in values):
        raise PayloadError("a list of rows has rows with different fields")
    if not names:
        raise PayloadError("a list of rows has rows without fields")
    dataset.num_of_columns = len(names)
    dataset.columns.extend(names)
    types = [datatypes.column([row[name] for row in values]) for name in names]
    dataset.types.extend(types)
    for row in values:
        written = dataset.rows.add()
        for name, datatype in zip(names, types, strict=True):
            element = written.elements.add()
            if (value := row[name]) is not None:
                _write_scalar(element, float(value) if datatype is Datatype.DOUBLE else value)
