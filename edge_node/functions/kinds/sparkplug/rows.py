"""Rows of messages of Sparkplug B: one for each metric, or one for each message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from weft.edge_node.functions.contract import Row, Values
from weft.edge_node.functions.formats.sparkplug.datatypes import title_of
from weft.edge_node.functions.formats.sparkplug.payload import OWN_FIELDS
from weft.edge_node.functions.formats.sparkplug.readings import GOOD, STALE, Reading
from weft.edge_node.functions.kinds.sparkplug.nodes import Ended
from weft.protocols.batch import HeaderPairs

PREFIX = "sparkplug."
"""Prefix of the headers with a row's origin."""
ATTRIBUTES = "attributes"
"""Field of a message's row with the attributes of its metrics."""
_MS = 1_000_000


class SparkplugSender(NamedTuple):
    """Sender of a message, and the common part of its rows."""

    key: bytes
    """``GROUP/NODE/DEVICE``; the device is empty for the edge node itself."""
    headers: HeaderPairs


def sender_of(
    source: bytes, row: Row, kind: str, number: int | None, *, doubtful: bool, stale: bool
) -> SparkplugSender:
    """Return what the rows of an edge node or device have in common.

    Args:
        source: ``GROUP/NODE`` or ``GROUP/NODE/DEVICE``.
        row: the message.
        kind: ``NDATA`` and so on.
        number: number of the message; None without one.
        doubtful: whether messages before it are missing.
        stale: whether its metrics have no value any more.
    """
    group, node, device = [*source.decode(errors="replace").split("/"), ""][:3]
    headers: list[tuple[str, Any]] = [pair for pair in row.headers if not pair[0].startswith(PREFIX)]
    headers += [("sparkplug.group", group), ("sparkplug.node", node)]
    if device:
        headers.append(("sparkplug.device", device))
    headers.append(("sparkplug.type", kind))
    if number is not None:
        headers.append(("sparkplug.seq", number))
    if doubtful:
        headers.append(("sparkplug.doubtful", True))
    if stale:
        headers.append(("sparkplug.stale", True))
    return SparkplugSender(source if device else source + b"/", tuple(headers))


class MetricRows:
    """A row for each metric: its name, value, time, datatype and quality."""

    def read(self, message: Any, readings: Iterable[Reading], sender: SparkplugSender, row: Row) -> Iterator[Row]:  # noqa: ARG002
        """Yield the rows of a message."""
        for reading in readings:
            values: Values = {
                "metric": reading.name,
                "value": reading.value,
                "timestamp": reading.timestamp,
                "datatype": reading.datatype,
                "quality": reading.quality,
                "historical": reading.is_historical,
                "transient": reading.is_transient,
            }
            if reading.properties is not None:
                values["properties"] = reading.properties
            if reading.template is not None:
                values["template"] = reading.template
            yield _made(row, _key(sender, reading.name), values, sender)

    def stale(self, ended: Ended, sender: SparkplugSender, row: Row, timestamp: int) -> Iterator[Row]:
        """Yield the rows of an edge node or device that is offline."""
        for name, _, datatype in ended.metrics:
            values: Values = {
                "metric": name,
                "value": None,
                "timestamp": timestamp,
                "datatype": title_of(datatype),
                "quality": STALE,
                "historical": False,
                "transient": False,
            }
            yield _made(row, _key(sender, name), values, sender)


class MessageRows:
    """A row for each message, with the metrics as fields by their names."""

    def read(self, message: Any, readings: Iterable[Reading], sender: SparkplugSender, row: Row) -> Iterator[Row]:
        """Yield the row of a message."""
        values: Values = {name: getattr(message, name) for name in OWN_FIELDS if message.HasField(name)}
        sent = values.get("timestamp")
        attributes: Values = {}
        for reading in readings:
            values[reading.name] = reading.value
            if said := _said(reading, sent):
                attributes[reading.name] = said
        if attributes:
            values.setdefault(ATTRIBUTES, attributes)
        yield _made(row, sender.key, values, sender)

    def stale(self, ended: Ended, sender: SparkplugSender, row: Row, timestamp: int) -> Iterator[Row]:  # noqa: ARG002
        """Yield the row of an edge node or device that is offline."""
        yield _made(row, sender.key, {"timestamp": timestamp}, sender)


def milliseconds(row: Row) -> int:
    """Return the time at which the node received a message, in milliseconds since 1970."""
    return row.time // _MS


def _said(reading: Reading, sent: int | None) -> Values:
    """Return the attributes of a metric that differ from the message's defaults."""
    said: Values = {}
    if reading.timestamp != sent:
        said["timestamp"] = reading.timestamp
    if reading.quality != GOOD:
        said["quality"] = reading.quality
    if reading.is_historical:
        said["historical"] = True
    if reading.is_transient:
        said["transient"] = True
    if reading.properties is not None:
        said["properties"] = reading.properties
    if reading.template is not None:
        said["template"] = reading.template
    return said


def _key(sender: SparkplugSender, name: str) -> bytes:
    return b"%b/%b" % (sender.key, name.encode(errors="replace"))


def _made(row: Row, key: bytes, values: Values, sender: SparkplugSender) -> Row:
    # Number and stream remain the message's: they decide the row's place among the errors.
    return Row(row.time, key, None, values, sender.headers, row.seq, row.input)
