"""What one MQTT client publishes: from its packets to records, and from durable records to acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge_node.back_pressure import Pause, Publisher
from edge_node.counters import Counters
from edge_node.ingest import Ingest, Target
from edge_node.sessions import Session
from protocols.batch import Flag
from protocols.mqtt.packets import Publish
from protocols.mqtt.publish_run import PublishRun
from storage.segment_log import LogFailed, LogFull

ACK_BYTES = 4
"""A PUBACK or PUBREC."""
ACKS_DUE_BYTES_MAX = ACK_BYTES * 65_535
"""Acknowledgements that may wait for the disk: one for every packet identifier. Past it the client is not read."""


class Client(Publisher, Protocol):
    """The connection that the publishes come from."""

    @property
    def is_open(self) -> bool:
        """Whether the client can still be sent something."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole packets."""

    def refuse(self, error: BaseException) -> None:
        """Close: what the client sent could not be stored, so it must not be acknowledged."""


class Intake:
    """Gathers the publishes of a read, stores them, and acknowledges them after the fsync, in order of receipt."""

    def __init__(
        self, ingest: Ingest, counters: Counters, client: Client, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._ingest = ingest
        self._counters = counters
        self._client = client
        self._call_soon = call_soon
        self.run: PublishRun[Target] = PublishRun()
        """The publishes of this read so far."""
        self._live: list[Publish] = []
        self._new_ids: list[int] = []
        """QoS 2 identifiers that this read opened; closed again if its records cannot be stored."""
        self._acks_ready: list[bytes] = []
        self._acks_due_bytes = 0

    def publish(self, session: Session, packet: Publish) -> None:
        """Take a publish that came through the full decoder. A QoS 2 identifier that is open is not taken again."""
        self.run.acknowledge(packet.qos, packet.packet_id)
        if packet.qos == 2:
            if not session.received.add(packet.packet_id):
                self._counters.publishes_repeated += 1
                return
            self._new_ids.append(packet.packet_id)
        target = self._ingest.target(packet.topic)
        flags = (Flag.RETAINED if packet.retain else 0) | (Flag.DUPLICATE_SUSPECTED if packet.dup else 0)
        self.run.add(target, packet.topic, packet.payload, flags)
        if target.live:
            self._live.append(packet)

    def store(self, session: Session | None) -> None:
        """Append what the read brought; its acknowledgements follow once that is durable.

        Raises:
            LogFull, LogFailed: nothing of the read may be acknowledged.
        """
        run, live, new_ids = self.run, self._live, self._new_ids
        if session is None or not (run.groups or run.acks):
            return
        self.run, self._live, self._new_ids = PublishRun(), [], []
        try:
            self._ingest.store(run)
        except (LogFull, LogFailed):
            session.forget(new_ids)
            raise
        self._ingest.back_pressure.join(self._client)
        if run.acks:
            self._await_durable(b"".join(run.acks), session, new_ids)
        for publish in live:
            self._ingest.deliver(publish.topic, publish.payload, publish.qos)

    def _await_durable(self, acks: bytes, session: Session, new_ids: list[int]) -> None:
        self._acks_due_bytes += len(acks)
        if self._acks_due_bytes > ACKS_DUE_BYTES_MAX:
            self._client.hold(Pause.ACKS)
        self._ingest.on_durable(partial(self._durable, acks, session, new_ids))

    def _durable(self, acks: bytes, session: Session, new_ids: list[int], error: BaseException | None) -> None:
        if error is not None:
            session.forget(new_ids)
            self._client.refuse(error)
            return
        if not self._acks_ready:  # one write for all reads of this commit, whose callbacks follow this one
            self._call_soon(self._send_acks)
        self._acks_ready.append(acks)

    def _send_acks(self) -> None:
        acks = b"".join(self._acks_ready)
        self._acks_ready.clear()
        if not self._client.is_open:
            return
        self._client.send(acks)
        self._counters.acks_sent += len(acks) // ACK_BYTES
        self._acks_due_bytes -= len(acks)
        if self._acks_due_bytes <= ACKS_DUE_BYTES_MAX:
            self._client.release(Pause.ACKS)
