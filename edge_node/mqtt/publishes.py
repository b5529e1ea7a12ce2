"""What one MQTT client publishes: from its packets to records, and from durable records to acknowledgements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from weft.edge_node.broker_ports import Retained
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.back_pressure import Pause, Publisher
from weft.edge_node.ingest.ingest import Ingest, Target, Topics, flags_of
from weft.edge_node.sessions.ports import SessionJournal
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.message_headers import USER_PROPERTIES_MAX
from weft.protocols.mqtt.encoder import PUBACK, PUBCOMP, encode
from weft.protocols.mqtt.errors import ProtocolViolation
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import PubAck, Publish, PubRec
from weft.protocols.mqtt.properties import NO_PROPERTIES
from weft.protocols.mqtt.publish_run import PublishRun
from weft.protocols.mqtt.reason_codes import FAILED, ReasonCode
from weft.storage.segment_log import LogFailed, LogFull

ACK_BYTES = 4
"""A PUBACK or PUBREC that says nothing but success."""
TOPIC_SHOWN_BYTES_MAX = 128
"""Of a topic in a log line."""


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


class IntakeSettings(Protocol):
    """``BrokerSettings``, as far as publishes go."""

    @property
    def closes_on_refusal(self) -> bool: ...


class IntakeParts(Protocol):
    """What all intakes share (``Broker`` is it)."""

    ingest: Ingest
    retained: Retained
    journal: SessionJournal
    counters: Counters
    wall_clock: Callable[[], int]

    @property
    def settings(self) -> IntakeSettings:
        """What an operator may choose."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back once what is being handled is done."""


class _Due:
    """The acknowledgements of one read."""

    __slots__ = ("acks", "count", "waits")

    def __init__(self, acks: bytes, count: int, waits: int) -> None:
        self.acks = acks
        self.count = count
        """Of PUBACKs and PUBRECs."""
        self.waits = waits
        """Stores that have not said yet that they are durable."""


class Intake:
    """Gathers the publishes of a read, stores them, and acknowledges them after the fsync, in order of receipt."""

    __slots__ = (
        "_answers_due", "_answers_due_max", "_client", "_due", "_holding", "_packets", "_parts", "_retains", "_sending",
        "run", "topics",
    )  # fmt: skip

    def __init__(self, parts: IntakeParts, client: Client, topics: Topics, answers_due_max: int) -> None:
        """Take a client's publishes.

        Args:
            answers_due_max: publishes that may wait for PUBACK or PUBREC; past it the client is not read until some are
                answered.
                What one read brought is still taken, as with back-pressure: PUBRELs may lie behind publishes, so bytes
                that are left unread could hold up the answers that they wait for.
        """
        self._parts = parts
        self._client = client
        self.topics = topics
        self.run: PublishRun[Target] = PublishRun()
        """The publishes of this read so far."""
        self._packets: dict[Target, dict[int, Publish]] = {}
        self._retains = False
        self._due: deque[_Due] | None = None
        self._answers_due = 0
        self._answers_due_max = answers_due_max
        self._sending = False
        self._holding = False
        """Whether the client is not read because of ``_answers_due``."""

    def publish(self, session: Session, packet: Publish) -> None:
        """Take a publish that came through the full decoder. A QoS 2 identifier that is open is not taken again.

        Raises:
            ProtocolViolation: a client of 3.1 or 3.1.1 may not publish it, and can be told so in no other way.
        """
        if packet.qos == 2 and packet.packet_id in session.received:
            self._parts.counters.publishes_repeated += 1
            self._acknowledge(session, packet, ReasonCode.SUCCESS)
            return
        target = self.topics.target(packet.topic)
        code = self._refusal(session, packet, target)
        if target is None or code >= FAILED:
            self._refuse(session, packet, code)
            return
        if packet.qos == 2:
            session.received.add(packet.packet_id)
            self.run.received.append(packet.packet_id)
        if not target.streams and not target.live:
            code = ReasonCode.NO_MATCHING_SUBSCRIBERS
        self._acknowledge(session, packet, code)
        records = self.run.groups.get(target)
        if packet.properties is not NO_PROPERTIES:
            self._packets.setdefault(target, {})[len(records.keys) if records else 0] = packet
        self.run.add(target, packet.topic, packet.payload, flags_of(packet))

    def suppress(self, session: Session, packet: Publish) -> None:
        """Acknowledge a publish that is in the log already; at QoS 2 its identifier is open again until PUBREL."""
        self._parts.counters.publishes_resent += 1
        if packet.qos == 2:
            session.received.add(packet.packet_id)
            self.run.received.append(packet.packet_id)
        self._acknowledge(session, packet, ReasonCode.SUCCESS)

    def complete(self, session: Session, packet_ids: Sequence[int]) -> None:
        """PUBRELs came: forget the identifiers, and answer once that is durable, behind the answers before it.

        Raises:
            LogFull, LogFailed: they are not forgotten, and must not be answered.
        """
        self.store(session)  # the journal must have their PUBLISH first
        if session.persistent:
            self._parts.journal.released(session.client_id, packet_ids)
        session.forget(packet_ids)
        answers = b"".join([PUBCOMP + packet_id.to_bytes(2, "big") for packet_id in packet_ids])
        self._await_durable(_Due(answers, 0, 1), session, [])

    def store(self, session: Session) -> None:
        """Append what the read brought; its acknowledgements follow once that is durable.

        Raises:
            LogFull, LogFailed: nothing of the read may be acknowledged.
        """
        run = self.run
        if not (run.groups or run.acks):
            return
        packets, new_ids, retains = self._packets, run.received, self._retains
        self.run, self._retains = PublishRun(), False
        if packets:
            self._packets = {}
        acks = b"".join(run.acks)
        try:
            if session.persistent and acks and (run.groups or new_ids):
                self._store_with_journal(session, run, packets, new_ids)
            else:
                self._parts.ingest.store(run, packets, session.client_id)
        except (LogFull, LogFailed):
            session.forget(new_ids)
            raise
        self._parts.ingest.back_pressure.join(self._client)
        if acks:
            # Those that stand alone may be a byte longer, for a reason code.
            count = sum([len(each) // ACK_BYTES for each in run.acks])
            due = _Due(acks, count, 1 + retains)
            self._await_durable(due, session, new_ids, retains=retains)

    # --- taking

    def _refusal(self, session: Session, packet: Publish, target: Target | None) -> int:
        counters = self._parts.counters
        if target is None and self._is_unrouted(packet.topic):
            self._parts.ingest.unrouted.count([packet.topic])
            return ReasonCode.TOPIC_NAME_INVALID  # "not malformed, but is not accepted by this [...] Server", 3.4.2.1
        if target is None:
            counters.publishes_denied += 1
            deep = packet.topic.count(b"/") >= self._parts.ingest.topic_levels_max
            return ReasonCode.TOPIC_NAME_INVALID if deep else ReasonCode.NOT_AUTHORIZED
        if len(packet.properties.user_properties) > USER_PROPERTIES_MAX:
            return ReasonCode.QUOTA_EXCEEDED
        if packet.retain and not self._retain(packet):
            counters.retained_refused += 1
            if session.version == Version.V5:
                return ReasonCode.QUOTA_EXCEEDED
            # 3.1.1 has no word for that: it is a record as any other, only not the last one of its topic.
        return ReasonCode.SUCCESS

    def _refuse(self, session: Session, packet: Publish, code: int) -> None:
        """Say no. MQTT before 5.0 leaves a choice between an acknowledgement and the end of the connection
        [MQTT-3.3.5-2], and so do the settings: an acknowledgement would say that the message is kept, and a client with
        a queue sends it again for ever. ``$SYS`` is in no stream, and bridges of Mosquitto tell their state there: they
        would never stay connected."""
        closes = self._parts.settings.closes_on_refusal and not packet.topic.startswith(b"$SYS/")
        if packet.qos and session.version != Version.V5 and closes:
            what = ReasonCode(code).name.lower().replace("_", " ")
            if code == ReasonCode.TOPIC_NAME_INVALID and self._is_unrouted(packet.topic):
                what = "no stream matches it, `unrouted: refuse`"
            topic = packet.topic[:TOPIC_SHOWN_BYTES_MAX].decode(errors="replace")
            raise ProtocolViolation(
                f"a QoS {packet.qos} publish to {topic!r} is refused ({what}) and must not be acknowledged", "3.3.5-2"
            )
        self._acknowledge(session, packet, code)

    def _is_unrouted(self, topic: bytes) -> bool:
        """Whether the client may publish to a topic that ``Topics.target`` gave None for: then no stream matches it."""
        return self.topics.permits(topic) and self._parts.ingest.refuses(topic)

    def _retain(self, packet: Publish) -> bool:
        self._retains = True
        return retain(self._parts.retained, packet, self._parts.wall_clock())

    def _acknowledge(self, session: Session, packet: Publish, code: int) -> None:
        if not packet.qos:
            return
        if session.version != Version.V5 or not code:
            self.run.acknowledge(packet.qos, packet.packet_id)
        else:
            answer = PubAck(packet.packet_id, code) if packet.qos == 1 else PubRec(packet.packet_id, code)
            self.run.acks.append(encode(answer, Version.V5))

    # --- storing

    def _store_with_journal(
        self,
        session: Session,
        run: PublishRun[Target],
        packets: dict[Target, dict[int, Publish]],
        new_ids: Sequence[int],
    ) -> None:
        parts, client_id = self._parts, session.client_id
        with parts.journal.together():
            stored = parts.ingest.store(run, packets, client_id)
            if new_ids:
                parts.journal.received(client_id, new_ids)
            pubacks = _pubacks(run.acks)
            if stored and pubacks:
                parts.journal.published(client_id, pubacks, stored)

    # --- acknowledging

    def _await_durable(self, due: _Due, session: Session, new_ids: list[int], *, retains: bool = False) -> None:
        if self._due is None:
            self._due = deque()
        self._due.append(due)
        self._answers_due += due.count
        if self._answers_due > self._answers_due_max and not self._holding:
            self._holding = True
            self._parts.counters.receive_maximum_pauses += 1
            self._client.hold(Pause.ACKS)
        durable = partial(self._durable, due, session, new_ids)
        if retains:
            self._parts.retained.on_durable(durable)
        self._parts.ingest.on_durable(durable)

    def _durable(self, due: _Due, session: Session, new_ids: list[int], error: BaseException | None) -> None:
        if error is not None:
            session.forget(new_ids)
            self._client.refuse(error)
            return
        due.waits -= 1
        if not self._sending and self._due and not self._due[0].waits:
            self._sending = True  # one write for all reads of this commit, whose callbacks follow this one
            self._parts.call_soon(self._send_acks)

    def _send_acks(self) -> None:
        self._sending = False
        queue, ready = self._due, []
        while queue and not queue[0].waits:
            due = queue.popleft()
            ready.append(due.acks)
            self._answers_due -= due.count
            self._parts.counters.acks_sent += due.count
        if not ready or not self._client.is_open:
            return
        self._client.send(b"".join(ready))
        if self._holding and self._answers_due <= self._answers_due_max:
            self._holding = False
            self._client.release(Pause.ACKS)


def retain(retained: Retained, packet: Publish, now: int) -> bool:
    """Keep a message as its topic's last, or forget that one if this is empty; False when a limit forbids it."""
    if not packet.payload:
        retained.clear(packet.topic)
        return True
    properties = packet.properties
    if properties.topic_alias is not None:
        properties = msgspec.structs.replace(properties, topic_alias=None)
    return retained.set(packet.topic, packet.payload, packet.qos, properties, now)


def _pubacks(acks: Sequence[bytes]) -> bytes:
    return b"".join(each for each in acks if each.startswith(PUBACK))
