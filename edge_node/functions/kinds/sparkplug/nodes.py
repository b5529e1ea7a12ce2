"""State of Sparkplug B edge nodes from their messages: births, numbers, and births to request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from weft.config.functions.sparkplug import Sparkplug
from weft.edge_node.functions.contract import State
from weft.edge_node.functions.formats.sparkplug.births import NONE, bd_seq_of, definitions_in, stored_metric
from weft.edge_node.functions.formats.sparkplug.payload import Definitions
from weft.edge_node.functions.formats.sparkplug.topic import SparkplugTopic
from weft.edge_node.functions.payloads import PayloadError

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
