"""Metrics of Sparkplug B with all their data in a payload: time, quality, flags, properties."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import DEPTH_MAX, TOO_DEEP
from weft.edge_node.functions.formats.sparkplug.datatypes import title_of, utf8
from weft.edge_node.functions.formats.sparkplug.payload import Definitions, definition_of, scalar_of, value_of
from weft.edge_node.functions.payloads import PayloadError

GOOD = 192
"""Quality of a metric without one: a sender must state only other qualities (Sparkplug 3.0, section 6.4.9.1)."""
STALE = 500
"""Quality of a metric after the death of its edge node or device."""
METRICS_MAX = 10_000
"""Maximum number of metrics in a payload. Each may become a record of its own, and a birth of 256 KiB has some
4,000."""
NAME_CHARACTERS_MAX = 256
"""Longest name of a metric, as for remembered ones."""
_QUALITY = "quality"
_INTEGERS = ("int_value", "long_value")


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
        PayloadError: as ``payload.values_of``; or there are too many metrics, or a name is too long.
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
        name, title_of(datatype), value, metric.timestamp if metric.HasField("timestamp") else sent, quality,
        metric.is_historical, metric.is_transient, properties or None, template,
    )  # fmt: skip


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
    if holder.type or kind not in _INTEGERS:
        return scalar_of(holder, kind, holder.type)
    # Without a type the sign is unknown: use the number on the wire.
    return getattr(holder, kind)
