"""Publishes of one MQTT client: from its packets to records, and from durable records to acknowledgements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from weft.bounds import Owner
from weft.edge_node.ingest.ingest import COST_MAX, Pause
from weft.edge_node.ingest.record import Gathering, Route
from weft.edge_node.ingest.routing import RouteCache, is_refused, refusal
from weft.edge_node.servers.mqtt.server import MqttClient, MqttServer
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.message import USER_PROPERTIES_MAX, to_headers
from weft.protocols.batch import Flag
from weft.protocols.mqtt.encoder import PUBACK, PUBCOMP, PUBREC
from weft.protocols.mqtt.packets import (
    FAILED,
    NO_PROPERTIES,
    Properties,
    ProtocolViolation,
    PubAck,
    Publish,
    PubRec,
    ReasonCode,
    Version,
)
from weft.protocols.mqtt.publish_run import scan
from weft.storage.segment_log import LogError

ACK_BYTES = 4
"""Length of a PUBACK or PUBREC for plain success."""
LONG_READ_BYTES = 32 << 10
SCAN_BYTES_MAX = 16 << 10
"""Bytes of publishes that are handled from a longer read before the client's turn is checked: three thousand packets,
if they are empty."""
TOPIC_SHOWN_BYTES_MAX = 128
"""Bytes of a topic shown in a log line."""
_QOS_FLAGS = (int(Flag.PUBLISHED_QOS0), 0, int(Flag.PUBLISHED_QOS2))


class Publishes:
    """Publishes of one client, which are answered after the fsync, in order of receipt.

    Publishes of a session that ends with its connection are gathered in the ``TickBatch`` that all connections share.
    Publishes of a session with a journal are stored at the end of their read, in one commit with their journal entries.
    """

    protocol = "mqtt"
    """Name of the protocol in traces."""
    __slots__ = (
        "_asked",
        "_client",
        "_context",
        "_encode",
        "_gathered",
        "_has_codes",
        "_holding",
        "_kept",
        "_late",
        "_opened",
        "_retains",
        "_server",
        "_session",
        "due",
        "due_max",
        "in_5",
        "joined",
        "known",
        "publisher",
        "routes",
    )

    def __init__(  # noqa: PLR0917
        self,
        server: MqttServer,
        client: MqttClient,
        session: Session,
        routes: RouteCache,
        answers_due_max: int,
        encode: Callable[[PubAck | PubRec], bytes],
    ) -> None:
        """Begin for a client.

        Args:
            encode: encodes an acknowledgement with a reason code, as long as the client allows.
            answers_due_max: publishes that may wait for PUBACK or PUBREC; beyond it the client is not read until some
                are answered. The rest of a read is still handled, as with back-pressure: PUBRELs may follow publishes,
                so unhandled bytes could delay the answers that the publishes wait for.
        """
        self._server, self._context = server, server.context
        self._client = client
        self._encode = encode
        self._session = session
        self.publisher: str | None = session.client_id
        self.routes = routes
        self.in_5 = session.version == Version.V5
        self.known = routes.matched if self.in_5 else routes.plain
        """Topics whose plain publishes only need to be stored."""
        self._gathered: Gathering = Gathering() if session.persistent else server.context.ingest.batch
        self._opened: list[int] = []
        """QoS 2 identifiers that this read opened; they are closed again if its records cannot be stored."""
        self._retains = False
        self._late: deque[tuple[bytes, int]] | None = None
        """Answers whose records are durable while a retained message of the client is not. Each has the value of
        ``_kept`` from which on it may be sent. None while no retained message is pending."""
        self._asked = self._kept = 0
        """Numbers of callbacks requested and received for durable retained messages of the client."""
        self.due = 0
        """Number of pending answers."""
        self.due_max = answers_due_max
        self._has_codes = False
        """True if some answers were longer than ``ACK_BYTES``, for a reason code."""
        self._holding = False
        """True while the client is not read because of ``due``."""
        self.joined = False
        """True once the client has joined back-pressure."""

    @property
    def is_fast(self) -> bool:
        """Return whether ``single`` may handle the client's publishes."""
        return self.joined and self.waits_for_turn

    @property
    def waits_for_turn(self) -> bool:
        """Return whether the records of a read are stored at the end of the turn."""
        return self._gathered is self._context.ingest.batch

    # --- packets

    def scan(self, data: bytes, at: int) -> int:
        """Handle a row of plain publishes from ``data[at:]``, or the first of them; return the offset of the rest."""
        gathered = self._gathered
        before = len(gathered.answers)
        until = len(data) if len(data) - at <= LONG_READ_BYTES else at + SCAN_BYTES_MAX
        after = scan(
            data,
            at,
            self.known,
            gathered,
            self,
            self._session.received,
            self._opened,
            self._context.settings.limits.message_bytes,
            self._session.version,
            _QOS_FLAGS,
            until,
            COST_MAX - gathered.cost,
        )
        if after > at and not self.joined:
            self._join()
        if len(gathered.answers) > before:
            self.is_due(len(gathered.answers[-1]) // ACK_BYTES)
        self._relieve()
        return after

    def publish(self, packet: Publish) -> None:
        """Handle a publish from the full decoder. An open QoS 2 identifier is not stored again.

        Raises:
            ProtocolViolation: a client of 3.1 or 3.1.1 may not publish it, and its protocol has no reason code for
                that.
        """
        if not self.joined:
            self._join()
        session = self._session
        # A repeat before PUBREL: acknowledge it again without storing it, so that it is delivered exactly once (section
        # 4.3.3).
        if packet.qos == 2 and packet.packet_id in session.received:
            self._context.counters.publishes_repeated += 1
            self._acknowledge(packet, ReasonCode.SUCCESS)
            return
        route = self.routes.route(packet.topic)
        misfits = None if route is None or route.checks is None else route.checks.look(packet.payload)
        is_hidden = route is not None and route.checks is not None and route.checks.hides(misfits or ())
        if is_hidden and not packet.payload:
            # It retains nothing, and ends what is retained [MQTT-3.3.1-6], unless it is refused below.
            is_hidden = self.in_5 and bool(packet.qos) and is_refused(misfits or ())
        code = self._refusal(packet, route, is_hidden=is_hidden)
        if route is None or code >= FAILED:
            self._refuse(packet, code)
            return
        if misfits and self.in_5 and packet.qos and (why := refusal(route, misfits)):
            self._acknowledge(packet, ReasonCode.PAYLOAD_FORMAT_INVALID, why)
            return
        if packet.qos == 2:
            session.received.add(packet.packet_id)
            self._opened.append(packet.packet_id)
        # Accepted, although nothing takes it: MQTT 5.0 treats reason codes below 0x80 as success.
        if not route.taken:
            code = ReasonCode.NO_MATCHING_SUBSCRIBERS
        headers = to_headers(packet.properties, self._context.wall_clock())
        self._gathered.add(route, packet.topic, packet.payload, self, flags_of(packet), headers, misfits)
        self._acknowledge(packet, code)
        self._relieve()

    def suppress(self, packet: Publish) -> None:
        """Acknowledge a publish that is in the log already; at QoS 2 its identifier is open again until PUBREL."""
        self._context.counters.publishes_resent += 1
        if packet.qos == 2:
            self._session.received.add(packet.packet_id)
            self._opened.append(packet.packet_id)
        self._acknowledge(packet, ReasonCode.SUCCESS)

    def complete(self, packet_ids: Sequence[int]) -> None:
        """Forget the identifiers of PUBRELs, and answer once that is durable, behind earlier answers.

        Raises:
            LogFull, LogFailed: they are not forgotten, and must not be answered.
        """
        session = self._session
        answers = b"".join([PUBCOMP + packet_id.to_bytes(2, "big") for packet_id in packet_ids])
        if session.persistent:
            self.store()  # the journal must have their PUBLISH first
            self._server.journal.released(session.client_id, packet_ids)
        session.forget(packet_ids)
        self._gathered.answer(self, answers)
        self._gathered.more_acks -= 1  # PUBREC has acknowledged these messages already
        self.is_due(len(packet_ids))

    # --- storing

    def end_read(self) -> None:
        """Store the records of the read, unless they can wait for the end of the turn.

        Raises:
            LogFull, LogFailed: nothing of the read may be acknowledged.
        """
        if self._retains:
            self._retains = False
            self._asked += 1
            if self._late is None:
                self._late = deque()
            self._server.retained.on_durable(self._keep_retained)
        if self.waits_for_turn:
            self._opened.clear()
        elif self._gathered:
            self.store()

    def _relieve(self) -> None:
        """Store the publishes so far if their delivery is expensive, so that the cost is charged to the client's turn.

        Raises:
            LogFull, LogFailed: nothing of the read may be acknowledged.
        """
        if self._gathered.cost > COST_MAX:
            self.store()
            self._context.ingest.batch.is_heavy = True

    def store(self) -> None:
        """Append the publishes so far; their acknowledgements follow once they are durable.

        Raises:
            LogFull, LogFailed: nothing of the read may be acknowledged.
        """
        self._context.ingest.batch.store()
        if self.waits_for_turn or not self._gathered:
            return
        gathered, opened, session = self._gathered.hand_over(), self._opened, self._session
        self._opened = []
        try:
            if session.persistent and gathered.answers and (gathered.groups or opened):
                self._store_with_journal(gathered, opened)
            else:
                self._context.ingest.store(gathered)
        except LogError:  # for any error: an open identifier would acknowledge a record that was not stored
            session.forget(opened)
            raise
        if gathered.clients:
            self._context.ingest.on_durable(partial(self._durable, gathered, opened))

    def is_due(self, count: int) -> None:
        """Count gathered answers, and stop reading while there are too many."""
        self.due += count
        if self.due > self.due_max:
            self.hold_back()

    def hold_back(self) -> None:
        """Stop reading from the client until answers are sent."""
        # Not a disconnect with 0x93, which MQTT 5.0 section 3.3.4 allows: MQTT.js exceeds Receive Maximum, connects
        # again and sends all again, and 10,000 messages became 11,000 records. Exchanges that wait for PUBREL do not
        # count: the PUBREL may lie behind publishes that are not read.
        if not self._holding:
            self._holding = True
            self._context.counters.receive_maximum_pauses += 1
            self._client.reading.hold(Pause.ACKS)

    # --- checks

    def _join(self) -> None:
        self.joined = True
        self._client.reading.join()

    def _refusal(self, packet: Publish, route: Route | None, *, is_hidden: bool) -> int:
        counters = self._context.counters
        if route is None and self._is_unrouted(packet.topic):
            self._context.routing.unrouted.count([packet.topic])
            return ReasonCode.TOPIC_NAME_INVALID  # "not malformed, but is not accepted by this [...] Server", 3.4.2.1
        if route is None:
            counters.publishes_denied += 1
            deep = packet.topic.count(b"/") >= self._context.routing.topic_levels_max
            return ReasonCode.TOPIC_NAME_INVALID if deep else ReasonCode.NOT_AUTHORIZED
        if len(packet.properties.user_properties) > USER_PROPERTIES_MAX:
            return ReasonCode.QUOTA_EXCEEDED
        if packet.retain and not is_hidden and not self._retain(packet):
            counters.retained_refused += 1
            if self.in_5:
                return ReasonCode.QUOTA_EXCEEDED
            # 3.1.1 has no reason code for that: store a normal record that is not retained.
        return ReasonCode.SUCCESS

    def _refuse(self, packet: Publish, code: int) -> None:
        """Refuse a publish. MQTT before 5.0 allows an acknowledgement or the end of the connection [MQTT-3.3.5-2], and
        so do the settings: an acknowledgement would wrongly confirm the message, and without one a client with a queue
        sends it again at every connection. ``$SYS`` is in no stream, and bridges of Mosquitto publish their state
        there: they would never stay connected."""
        closes = self._server.settings.closes_on_refusal and not packet.topic.startswith(b"$SYS/")
        if packet.qos and not self.in_5 and closes:
            what = ReasonCode(code).name.lower().replace("_", " ")
            if code == ReasonCode.TOPIC_NAME_INVALID and self._is_unrouted(packet.topic):
                what = "no stream matches it, `unrouted: refuse`"
            topic = packet.topic[:TOPIC_SHOWN_BYTES_MAX].decode(errors="replace")
            raise ProtocolViolation(
                f"a QoS {packet.qos} publish to {topic!r} is refused ({what}) and must not be acknowledged", "3.3.5-2"
            )
        self._acknowledge(packet, code)

    def _is_unrouted(self, topic: bytes) -> bool:
        """Return whether the client may publish to a topic that has no route: then no stream matches it."""
        return self.routes.permits(topic) and self._context.routing.refuses(topic)

    def _retain(self, packet: Publish) -> bool:
        self._retains = True
        return self._server.retained.retain(packet, self._context.wall_clock(), self._session.owner)

    def _acknowledge(self, packet: Publish, code: int, why: str = "") -> None:
        if not packet.qos:
            return
        if self.in_5 and code:
            properties = Properties(reason_string=why) if why else NO_PROPERTIES
            answer = self._encode((PubAck if packet.qos == 1 else PubRec)(packet.packet_id, code, properties))
            self._has_codes = True
        else:
            answer = (PUBACK if packet.qos == 1 else PUBREC) + packet.packet_id.to_bytes(2, "big")
        self._gathered.answer(self, answer)
        self.is_due(1)

    # --- storing at the end of a read

    def _store_with_journal(self, gathered: Gathering, opened: Sequence[int]) -> None:
        ingest, server, client_id = self._context.ingest, self._server, self._session.client_id
        with server.journal.together():
            stored = ingest.store(gathered)
            if opened:
                server.journal.received(client_id, opened)
            pubacks = b"".join(each for each in gathered.answers if each.startswith(PUBACK))
            if stored and pubacks:
                server.journal.published(client_id, pubacks, stored)

    def _durable(self, gathered: Gathering, opened: Sequence[int], error: BaseException | None) -> None:
        if error is not None:
            self._session.forget(opened)
        self._context.ingest.batch.durable(gathered, error)

    # --- answering

    @property
    def owner(self) -> Owner:
        """Return the owner that the client's costs are charged to."""
        return self._session.owner

    def acknowledge(self, answers: bytes) -> None:
        """Send answers: everything before them is durable."""
        if self._late is not None:
            # This may wait for more than needed: messages retained after these publishes and before this commit.
            self._late.append((answers, self._asked))
            return
        self.due -= _packets_in(answers) if self._has_codes else len(answers) // ACK_BYTES
        self._client.send(answers)
        if self._holding and self.due <= self.due_max:
            self._holding = False
            self._client.reading.release(Pause.ACKS)

    def refuse(self, error: BaseException) -> None:
        """End the connection: some of its messages could not be stored, so they must not be acknowledged."""
        self._client.refuse(error)

    def _keep_retained(self, error: BaseException | None) -> None:
        if error is not None:
            self._client.refuse(error)
            return
        self._kept += 1
        late, self._late = self._late or deque(), None
        while late and late[0][1] <= self._kept:
            self.acknowledge(late.popleft()[0])
        if late or self._kept < self._asked:
            self._late = late


def _packets_in(answers: bytes) -> int:
    count = at = 0
    while at < len(answers):
        length = answers[at + 1]
        at += 2
        if length > 127:  # with a reason string
            length += (answers[at] << 7) - 128
            at += 1
        at += length
        count += 1
    return count


def flags_of(packet: Publish) -> int:
    """Return the record's flags for a publish."""
    flags = Flag.PUBLISHED_QOS0 if not packet.qos else Flag.PUBLISHED_QOS2 if packet.qos == 2 else Flag(0)
    if packet.retain:
        flags |= Flag.RETAINED
    if packet.dup:
        flags |= Flag.DUPLICATE_SUSPECTED
    return int(flags)
