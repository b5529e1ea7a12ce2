"""The function ``sparkplug``: messages of edge nodes, interpreted as a host application does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from weft.config.functions.step import Sparkplug
from weft.config.functions.step import Sparkplug as Settings
from weft.functions.contract import Context, Function, Gap, Out, PayloadError, Row, State, Values
from weft.functions.sparkplug_payloads import (
    GOOD,
    NO_DEFINITIONS,
    NONE,
    OWN_FIELDS,
    STALE,
    Datatype,
    Definitions,
    Payload,
    Reading,
    SparkplugTopic,
    UnknownAlias,
    bd_seq_of,
    definitions_in,
    parse,
    parse_topic,
    readings_of,
    stored_metric,
    title_of,
)
from weft.protocols.batch import HeaderPairs

# State of Sparkplug B edge nodes from their messages: births, numbers, and births to request.
#
# Behind the log, as any function: nothing of it is on the path of an acknowledgement, and a restart or a replay finds
# the same.

NUMBERS = 256
"""Numbers of an edge node's messages are 0 to 255, and begin again."""
AHEAD_MAX = NUMBERS // 2
"""A number that is further ahead than this counts as an earlier one."""
UNBORN = -1
"""Value for the next number of an edge node without a known birth."""
NODE_METRICS_MAX = 20_000
"""Maximum number of metrics of an edge node with its devices: its death makes a record of each at once, in a tenth of a
second."""
WANTED_MAX = 16
"""Maximum number of an edge node's births noted as wanted: one request is for all."""
_SECOND = 1_000_000_000
_NODE = b"\0"
"""Prefix of an edge node's name in the state, for its numbers. No topic has a NUL."""


class Ended(NamedTuple):
    """An edge node or device whose metrics have become stale."""

    source: bytes
    metrics: list[list[Any]]
    """Name, alias and datatype of each."""


class EdgeNode(msgspec.Struct, array_like=True):
    """Numbers of an edge node, with its missing messages and births."""

    bd_seq: int = NONE
    next_seq: int = UNBORN
    missing: list[int] = []
    """Numbers that were skipped, and may come late."""
    wanted: list[bytes] = []
    """The edge node and its devices, as far as they sent data without a known birth."""
    since: int = 0
    """Time of the first message that revealed one of these."""
    asked: int = 0
    """Time of the last request for a birth; 0 for none."""
    is_doubtful: bool = False
    """True from the loss of a message until the next birth: it may have been a birth, with other aliases."""

    @property
    def is_troubled(self) -> bool:
        """Return whether a birth must be requested if nothing comes late."""
        return bool(self.missing or self.wanted)


class EdgeNodes:
    """Births and numbers of edge nodes, in the state of a function.

    The state has, under ``GROUP/NODE`` and ``GROUP/NODE/DEVICE``, whether the birth is valid, and name, alias and
    datatype of each metric; under a NUL and ``GROUP/NODE`` an ``EdgeNode``. Births beyond ``sources_max``,
    ``metrics_max`` and ``NODE_METRICS_MAX`` are refused, and at most ``sources_max`` edge nodes without a birth are
    noted.
    """

    def __init__(self, state: State, settings: Sparkplug) -> None:
        """Use a state, which may be filled later."""
        self._state = state
        self._sources_max = settings.sources_max
        self._metrics_max = settings.metrics_max
        self._reorder = round(settings.reorder_s * _SECOND)
        self._every = round(settings.rebirth_every_s * _SECOND)
        self._found: dict[bytes, EdgeNode] | None = None
        self._tables: dict[bytes, tuple[Any, Definitions]] = {}
        self._due: dict[bytes, int] = {}
        """Edge node -> time at which its birth is requested, or it is forgotten."""
        self._first_due: int | None = None

    # --- births and deaths

    def definitions(self, topic: SparkplugTopic) -> Definitions | None:
        """Return the metrics of an edge node or device; None without a valid birth."""
        entry = self._state.values.get(topic.source)
        if entry is None or not entry[0]:
            self._tables.pop(topic.source, None)
            return None
        known = self._tables.get(topic.source)
        if known is None or known[0] is not entry[1]:
            known = self._tables[topic.source] = (entry[1], dict(definitions_in(entry[1])))
        return known[1]

    def is_born(self, node: bytes) -> bool:
        """Return whether the birth of an edge node is valid."""
        known = self._nodes.get(node)
        return known is not None and known.next_seq != UNBORN

    def node_born(self, topic: SparkplugTopic, message: Any) -> list[Ended]:
        """Remember the birth of an edge node; its devices have births of their own after it (section 6.4.6).

        Returns:
            Stale metrics of an earlier connection whose death did not come.

        Raises:
            PayloadError: a metric has no name, or the bounds do not allow more; nothing has changed then.
        """
        node, number, known = topic.node, bd_seq_of(message), self._nodes.get(topic.node)
        is_other = known is not None and known.bd_seq not in (NONE, number) and number != NONE
        ended = self._all_of(node) if is_other else []
        self._learn(topic, message, {each.source for each in ended})
        for each in ended:
            if each.source != node:
                self._forget(each.source)
        for source in self._devices(node):
            self._unborn(source)
        first = message.seq if message.HasField("seq") else 0
        self._put(node, EdgeNode(number, (first + 1) % NUMBERS, asked=known.asked if known is not None else 0))
        return ended

    def device_born(self, topic: SparkplugTopic, message: Any) -> None:
        """Remember the birth of a device.

        Raises:
            PayloadError: as ``node_born``.
        """
        self._learn(topic, message, set())
        known = self._nodes.get(topic.node)
        if known is not None and topic.source in known.wanted:
            known.wanted = [source for source in known.wanted if source != topic.source]
            self._put(topic.node, known)

    def node_died(self, topic: SparkplugTopic, message: Any) -> list[Ended] | None:
        """Forget an edge node and its devices, and return them.

        Its death is its will, which a broker may send when the node is back already. For a death whose ``bdSeq``
        differs from the birth's, return None and change nothing (section 6.4.20).
        """
        known = self._nodes.get(topic.node)
        if known is None or topic.node not in self._state.values:
            return []
        if known.bd_seq != bd_seq_of(message):
            return None
        ended = self._all_of(topic.node)
        for each in ended:
            self._forget(each.source)
        if known.asked:
            self._put(topic.node, EdgeNode(asked=known.asked))  # until the next request is allowed
        else:
            self._drop(topic.node)
        return ended

    def device_died(self, topic: SparkplugTopic) -> list[Ended]:
        """Forget a device, and return it; nothing when it is unknown."""
        entry = self._state.values.get(topic.source)
        if entry is None:
            return []
        self._forget(topic.source)
        return [Ended(topic.source, entry[1])]

    def lose(self, topic: SparkplugTopic) -> None:
        """Discard the birth of an edge node or device: the latest one could not be parsed."""
        sources = [topic.source, *(self._devices(topic.node) if topic.is_node else ())]
        known = self._nodes.get(topic.node)
        if topic.is_node and known is not None:
            self._lose_count(topic.node, known)
        for source in sources:
            self._unborn(source)

    def lose_all(self) -> None:
        """Discard all births: messages are missing from the log, and other births may have been among them."""
        for node, known in list(self._nodes.items()):
            self._lose_count(node, known)
        for source in self._sources():
            self._unborn(source)

    # --- numbers

    def arrived(self, node: bytes, number: int, time: int) -> None:
        """Handle a message's number: the next one, a late one, or one that reveals missing ones."""
        known = self._nodes.get(node)
        if known is None or known.next_seq == UNBORN:
            return
        ahead = (number - known.next_seq) % NUMBERS
        if ahead and number in known.missing:
            known.missing = [each for each in known.missing if each != number]
        elif ahead + len(known.missing) <= AHEAD_MAX:
            if ahead:
                known.missing = [*known.missing, *((known.next_seq + at) % NUMBERS for at in range(ahead))]
                known.since = known.since or time
            known.next_seq = (number + 1) % NUMBERS
        elif ahead <= AHEAD_MAX:
            # Too many are missing to wait for them.
            known.missing, known.is_doubtful = [], True
            known.next_seq = (number + 1) % NUMBERS
        else:
            # A repeat, or a restart without a birth, or with a lost one.
            known.is_doubtful = True
        if known.is_doubtful and not known.is_troubled:
            known.wanted, known.since = [node], time
        self._put(node, known)

    def want(self, node: bytes, source: bytes, time: int) -> None:
        """Note that data of an edge node or device came without a known birth."""
        known = self._nodes.get(node)
        if known is None:
            if len(self._nodes) >= 2 * self._sources_max:
                return
            known = EdgeNode()
        if source not in known.wanted and len(known.wanted) < WANTED_MAX:
            known.wanted = [*known.wanted, source]
        known.since = known.since or time
        self._put(node, known)

    def is_doubtful(self, node: bytes) -> bool:
        """Return whether messages of an edge node are missing, so that its aliases may have other meanings by now."""
        known = self._nodes.get(node)
        return known is not None and known.next_seq != UNBORN and (known.is_doubtful or bool(known.missing))

    def due(self) -> int | None:
        """Return the first time at which ``take_due`` has work."""
        if self._found is None:
            self._restore()
        if self._first_due is None and self._due:
            self._first_due = min(self._due.values())
        return self._first_due

    def take_due(self, time: int) -> list[bytes]:
        """Return the edge nodes whose births must be requested by this time."""
        asked = []
        for _, node in sorted((due, node) for node, due in self._due.items() if due <= time):
            known = self._nodes[node]
            if not known.is_troubled:
                # An edge node that never sent its birth, or has died: there is nothing left to remember.
                for source in self._devices(node):
                    self._forget(source)
                self._drop(node)
                continue
            asked.append(node)
            known.missing, known.wanted, known.since, known.asked = [], [], 0, time
            known.is_doubtful = known.next_seq != UNBORN
            self._put(node, known)
        return asked

    # --- inside

    @property
    def _nodes(self) -> dict[bytes, EdgeNode]:
        return self._restore() if self._found is None else self._found

    def _restore(self) -> dict[bytes, EdgeNode]:
        values = self._state.values
        self._found = {key[1:]: msgspec.convert(values[key], EdgeNode) for key in sorted(values) if key[:1] == _NODE}
        for node, known in self._found.items():
            values[_NODE + node] = known
            self._schedule(node, known)
        return self._found

    def _put(self, node: bytes, known: EdgeNode) -> None:
        if not known.is_troubled:
            known.since = 0
        self._nodes[node] = known
        self._state.set(_NODE + node, known)
        self._schedule(node, known)

    def _drop(self, node: bytes) -> None:
        del self._nodes[node]
        self._state.delete(_NODE + node)
        self._due.pop(node, None)
        self._first_due = None

    def _schedule(self, node: bytes, known: EdgeNode) -> None:
        due: int | None = None
        if known.is_troubled:
            due = max(known.since + self._reorder, known.asked + self._every if known.asked else 0)
        elif known.next_seq == UNBORN and node not in self._state.values:
            due = known.asked + self._every
        before = self._due.pop(node, None)
        if due is not None:
            self._due[node] = due
        if due != before:
            self._first_due = None

    def _learn(self, topic: SparkplugTopic, message: Any, replaced: set[bytes]) -> None:
        metrics = [stored_metric(metric) for metric in message.metrics]
        replaced = {*replaced, topic.source}
        kept = [source for source in self._sources() if source not in replaced]
        counts = {source: len(self._state.values[source][1]) for source in kept}
        if len(kept) >= self._sources_max or sum(counts.values()) + len(metrics) > self._metrics_max:
            raise PayloadError(
                f"births of at most {self._sources_max} edge nodes and devices with {self._metrics_max} metrics are "
                "remembered"
            )
        own = sum(count for source, count in counts.items() if source == topic.node or _is_of(source, topic.node))
        if own + len(metrics) > NODE_METRICS_MAX:
            raise PayloadError(f"an edge node with its devices has at most {NODE_METRICS_MAX} metrics")
        self._state.set(topic.source, [True, metrics])

    def _sources(self) -> list[bytes]:
        return [source for source in self._state.values if source[:1] != _NODE]

    def _devices(self, node: bytes) -> list[bytes]:
        return sorted(source for source in self._state.values if _is_of(source, node))

    def _all_of(self, node: bytes) -> list[Ended]:
        return list(self._ended([node, *self._devices(node)]))

    def _ended(self, sources: list[bytes]) -> Iterator[Ended]:
        for source in sources:
            if (entry := self._state.values.get(source)) is not None:
                yield Ended(source, entry[1])

    def _lose_count(self, node: bytes, known: EdgeNode) -> None:
        known.next_seq, known.missing, known.is_doubtful = UNBORN, [], False
        self._put(node, known)

    def _unborn(self, source: bytes) -> None:
        entry = self._state.values.get(source)
        if entry is not None and entry[0]:
            self._state.set(source, [False, entry[1]])
            self._tables.pop(source, None)

    def _forget(self, source: bytes) -> None:
        self._state.delete(source)
        self._tables.pop(source, None)


def _is_of(source: bytes, node: bytes) -> bool:
    """Return whether a source is a device of an edge node."""
    return len(source) > len(node) and source[len(node)] == 0x2F and source.startswith(node)


# Rows of messages of Sparkplug B: one for each metric, or one for each message.

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
