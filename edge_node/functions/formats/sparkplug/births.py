"""Memory of births of Sparkplug B, and the function that decodes rows with it.

A birth gives each metric a name, a datatype and perhaps an alias; later data may have only the alias (Sparkplug 3.0,
sections 6.4.6 and 6.4.8). A Sparkplug ingest that follows sequences and requests births can use ``Births`` directly: it
does not depend on rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from weft.edge_node.functions.contract import Function, Out, Row, State
from weft.edge_node.functions.formats.sparkplug.payload import (
    NO_DEFINITIONS,
    Definition,
    Definitions,
    definition_of,
    parse,
    values_of,
)
from weft.edge_node.functions.formats.sparkplug.topic import SparkplugTopic, parse_topic
from weft.edge_node.functions.payloads import PayloadError

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


class _Known(NamedTuple):
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
        self._tables: dict[bytes, _Known] = {}

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
            known = self._tables[topic.source] = _Known(stored, dict(definitions_in(stored[1])))
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
