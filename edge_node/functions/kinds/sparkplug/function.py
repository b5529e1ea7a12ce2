"""The function ``sparkplug``: messages of edge nodes, interpreted as a host application does."""

from __future__ import annotations

from typing import Any

from weft.config.functions.sparkplug import Sparkplug as Settings
from weft.edge_node.functions.contract import Context, Function, Gap, Out, Row, State
from weft.edge_node.functions.formats.sparkplug.datatypes import Datatype
from weft.edge_node.functions.formats.sparkplug.payload import NO_DEFINITIONS, UnknownAlias, parse
from weft.edge_node.functions.formats.sparkplug.readings import Reading, readings_of
from weft.edge_node.functions.formats.sparkplug.schema import Payload
from weft.edge_node.functions.formats.sparkplug.topic import SparkplugTopic, parse_topic
from weft.edge_node.functions.kinds.sparkplug.nodes import NUMBERS, EdgeNodes, Ended
from weft.edge_node.functions.kinds.sparkplug.rows import MessageRows, MetricRows, milliseconds, sender_of
from weft.edge_node.functions.payloads import PayloadError

SOURCE_BYTES_MAX = 512
"""Longest name of an edge node or device with its group. It is part of every key, and of a header."""
CERTIFICATES = b"$sparkplug/certificates/"
"""Prefix of the topic of a birth that is retained for later subscribers (Sparkplug 3.0, section 10.1: aware MQTT
servers)."""
REBIRTH = "Node Control/Rebirth"
"""Metric that requests an edge node's births."""
_STATES = (b"spBv1.0/STATE/", b"STATE/")


class SparkplugFunction(Function):
    """Rows of the metrics of Sparkplug B, with their names, datatypes and quality (docs/functions/sparkplug.md).

    Guarantee: a metric has the name and datatype that the birth before it in the log gives it, or its message goes to
    the errors. Where messages in between are missing, the rows are marked until the next birth.

    State: births and numbers of edge nodes, see ``EdgeNodes``.
    """

    reads_values = False  # It takes payloads apart itself.
    state: State

    def __init__(self, settings: Settings, context: Context) -> None:  # noqa: ARG002
        """Start without any births."""
        self.state = State()
        self._nodes = EdgeNodes(self.state, settings)
        self._rows = MetricRows() if settings.rows == "metric" else MessageRows()
        self._asks = settings.rebirth
        self._lifetime = round(settings.rebirth_every_s * 10**9)
        self._certificates = settings.certificates

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows of some messages."""
        made: list[Row] = []
        for row in rows:
            try:
                made += self._understood(row, out)
            except PayloadError as error:
                out.reject(row, str(error))
        return made

    def due(self) -> int | None:
        """Return the time until which a missing message may come late."""
        return self._nodes.due()

    def tick(self, time: int, out: Out) -> list[Row]:
        """Request edge nodes' births."""
        for node in self._nodes.take_due(time):
            if self._asks:
                group, _, name = node.partition(b"/")
                topic = b"/".join((b"spBv1.0", group, b"NCMD", name))
                out.alert(topic, rebirth_request(time), 0, time, retain=False, until=time + self._lifetime)
        return []

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """Discard earlier births: another one may be among the missing messages."""
        self._nodes.lose_all()

    # --- inside

    def _understood(self, row: Row, out: Out) -> list[Row]:
        topic = parse_topic(row.key)
        if topic is None:
            if row.key.startswith(_STATES):
                out.drop(row, "the state of a host application")
                return []
            raise PayloadError("its topic is none of an edge node or device of Sparkplug B: spBv1.0/GROUP/TYPE/NODE")
        if topic.kind == b"CMD":
            out.drop(row, "a command to an edge node or device")
            return []
        if len(topic.source) > SOURCE_BYTES_MAX or b"\0" in topic.source:
            raise PayloadError(
                f"the names in its topic have {len(topic.source)} bytes; at most {SOURCE_BYTES_MAX} can be"
            )
        if topic.kind == b"DEATH":
            message = parse(row.payload or b"") if topic.is_node else _numbered(row)
            return self._death(row, topic, message, out)
        if topic.kind == b"DATA":
            return self._data(row, topic, _numbered(row))
        try:
            return self._birth(row, topic, _numbered(row), out)
        except PayloadError:
            # It may have other names for the aliases.
            self._nodes.lose(topic)
            raise

    def _birth(self, row: Row, topic: SparkplugTopic, message: Any, out: Out) -> list[Row]:
        if not topic.is_node:
            self._number(row, topic, message)
        readings = readings_of(message, NO_DEFINITIONS)
        ended: list[Ended] = []
        if topic.is_node:
            ended = self._nodes.node_born(topic, message)
        else:
            if not self._nodes.is_born(topic.node):
                self._nodes.want(topic.node, topic.node, row.time)
            self._nodes.device_born(topic, message)
        if self._certificates:
            out.alert(CERTIFICATES + row.key, row.payload or b"", 0, row.time, retain=True)
        return [*self._stale(row, ended, milliseconds(row)), *self._read(row, topic, message, readings)]

    def _data(self, row: Row, topic: SparkplugTopic, message: Any) -> list[Row]:
        self._number(row, topic, message)
        known = self._nodes.definitions(topic)
        if not self._nodes.is_born(topic.node):
            # A device's birth is valid no longer than its edge node's.
            known = None
            self._nodes.want(topic.node, topic.node, row.time)
        elif known is None:
            self._nodes.want(topic.node, topic.source, row.time)
        try:
            readings = readings_of(message, NO_DEFINITIONS if known is None else known)
        except UnknownAlias:
            self._nodes.want(topic.node, topic.source, row.time)
            raise
        return self._read(row, topic, message, readings)

    def _death(self, row: Row, topic: SparkplugTopic, message: Any, out: Out) -> list[Row]:
        if topic.is_node:
            # The will was written when its connection began: its time is not that of the death.
            ended, timestamp = self._nodes.node_died(topic, message), milliseconds(row)
            if ended is None:
                out.drop(row, "the death of an earlier connection: its bdSeq is not that of the birth")
                return []
        else:
            self._number(row, topic, message)
            ended = self._nodes.device_died(topic)
            timestamp = message.timestamp if message.HasField("timestamp") else milliseconds(row)
        if not ended:
            out.drop(row, "the death of an edge node or device whose birth is not known")
        return self._stale(row, ended, timestamp)

    def _number(self, row: Row, topic: SparkplugTopic, message: Any) -> None:
        if message.HasField("seq"):
            self._nodes.arrived(topic.node, message.seq, row.time)

    def _read(self, row: Row, topic: SparkplugTopic, message: Any, readings: list[Reading]) -> list[Row]:
        number = message.seq if message.HasField("seq") else None
        doubtful = self._nodes.is_doubtful(topic.node)
        sender = sender_of(topic.source, row, _kind(row), number, doubtful=doubtful, stale=False)
        return list(self._rows.read(message, readings, sender, row))

    def _stale(self, row: Row, ended: list[Ended], timestamp: int) -> list[Row]:
        made: list[Row] = []
        for each in ended:
            sender = sender_of(each.source, row, _kind(row), None, doubtful=False, stale=True)
            made += self._rows.stale(each, sender, row, timestamp)
        return made


def rebirth_request(time: int) -> bytes:
    """Return the payload that requests an edge node's births.

    Args:
        time: ns since 1970.
    """
    timestamp = time // 1_000_000
    request = Payload(timestamp=timestamp)
    request.metrics.add(name=REBIRTH, timestamp=timestamp, datatype=Datatype.BOOLEAN, boolean_value=True)
    payload: bytes = request.SerializeToString(deterministic=True)
    return payload


def _numbered(row: Row) -> Any:
    """Return the message of a row.

    Raises:
        PayloadError: it is not Sparkplug B, or its number is not valid.
    """
    message = parse(row.payload or b"")
    if message.seq >= NUMBERS:
        raise PayloadError(f"its number (seq) is {message.seq}; numbers are 0 to {NUMBERS - 1}")
    return message


def _kind(row: Row) -> str:
    return row.key.split(b"/", 3)[2].decode()
