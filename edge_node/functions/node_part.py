"""The functions of a node, joined to its log, its links and its local subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weft.bounds import Rounds
from weft.config.models import EdgeConfig
from weft.edge_node.functions.chain import Alert
from weft.edge_node.functions.definitions import Definition, definitions
from weft.edge_node.functions.runtime.functions import Functions
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Record
from weft.edge_node.mqtt.broker import Broker
from weft.edge_node.sessions.store.retained import RetainedMessages
from weft.edge_node.streams import RAW_PREFIX
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Publish
from weft.protocols.ranges import RangeSet
from weft.replication.release import Party, ReleaseLedger
from weft.storage.segment_log import SegmentLog

_QOS_FLAGS = (Flag.PUBLISHED_QOS0, Flag(0), Flag.PUBLISHED_QOS2)


def node_functions(
    config: EdgeConfig, log: SegmentLog, broker: Broker, ledger: ReleaseLedger, wall_clock: Callable[[], int]
) -> Functions:
    """Return the functions of a configuration, not yet started. Blocks while it reads their states.

    Call before links start.

    Args:
        broker: its subscribers get alerts, and functions wait in its rounds for their turn.
        ledger: of what may be deleted; functions become parties to it.
        wall_clock: ns since 1970.

    Raises:
        OSError, LogFailed, UnsupportedVersion: as ``Functions``.
    """
    found = list(definitions(config))
    parties = _join(ledger, log, found)

    def released(function: str, stream: str, ranges: RangeSet) -> None:
        if (function, stream) in parties:
            ledger.released(Party("function", function), log.stream(stream), ranges)

    return Functions(
        found,
        log,
        alerts=Alerts(broker.ingest, broker.retained, wall_clock),
        released=released,
        turn=_turn(broker.rounds),
        wall_clock=wall_clock,
        clock=asyncio.get_running_loop().time,
    )


class Alerts:
    """Publisher of what functions say, within the commit of their step."""

    def __init__(self, ingest: Ingest, retained: RetainedMessages, wall_clock: Callable[[], int]) -> None:
        """Publish as a client of the node does."""
        self._ingest = ingest
        self._retained = retained
        self._wall_clock = wall_clock

    def ready(self) -> None:
        """Store what clients have published before.

        Raises:
            LogFull, LogFailed: that is not possible.
        """
        self._ingest.turn.store()

    def __call__(self, alert: Alert) -> None:
        """Store and deliver a message."""
        if alert.retain:
            self._retained.retain(
                Publish(alert.topic, alert.payload, alert.qos, 0, retain=True), self._wall_clock()
            )  # fmt: skip
        flags = _QOS_FLAGS[alert.qos] | (Flag.RETAINED if alert.retain else Flag(0))
        self._ingest.publish(Record(alert.topic, alert.payload, int(flags)))


def _join(ledger: ReleaseLedger, log: SegmentLog, found: list[Definition]) -> set[tuple[str, str]]:
    """Have records that links carry, or that only functions read, wait for the functions. What has no such reader
    stays as long as its retention says."""
    parties = set()
    for definition in found:
        for name in definition.inputs:
            stream = log.stream(name)
            if name.startswith(RAW_PREFIX) or ledger.knows(stream):
                ledger.join(Party("function", definition.name), stream)
                parties.add((definition.name, name))
    return parties


def _turn(rounds: Rounds) -> Callable[[], asyncio.Future[None]]:
    def turn() -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rounds.wait(None, lambda: None if done.done() else done.set_result(None))
        return done

    return turn
