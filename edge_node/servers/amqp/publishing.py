"""Publishes of one channel: from basic.publish to a record, and from a durable record to its confirm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from weft.bounds import Owner
from weft.edge_node.ingest.ingest import COST_MAX
from weft.edge_node.ingest.record import COPY_COST, Gathering
from weft.edge_node.ingest.routing import refusal
from weft.edge_node.queues.declarations import Published
from weft.edge_node.queues.definitions import TOPIC_EXCHANGE, QueueError
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.servers.amqp.client import DIRECT_REPLY_TO, AmqpClient, AmqpContext, Target, amqp_error
from weft.protocols.amqp.content import ContentHeaders, read_further_keys, read_properties, write_content
from weft.protocols.amqp.frames import AmqpError, ReplyCode
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import REPLY_TO
from weft.storage.segment_log import LogFull

_PUBLISH: Final = commands.Basic.Publish.index
_CONFIRM = struct.Struct(">BHIHHQBB")
_CONFIRM_BYTES = 13
_BASIC = 60
_ACK, _NACK = 80, 120
_FRAME_END = 0xCE
TAG_BYTES = 8
IMMEDIATE: Final = "immediate=true"
"""RabbitMQ's text for a flag that it refuses, too; clients compare it."""


class Publishing:
    """Publishes of one channel; the source of its records."""

    protocol = "amqp"
    """Name of the protocol in traces."""
    __slots__ = (
        "_acked",
        "_batch",
        "_client",
        "_first",
        "_has_refused",
        "_is_closed",
        "_nacked",
        "_shared",
        "_stores",
        "confirms",
        "number",
        "publisher",
        "reply_queue",
        "tag",
    )

    def __init__(self, shared: AmqpContext, client: AmqpClient, number: int) -> None:
        self._shared = shared
        self._client = client
        self.number = number
        self.publisher: str | None = None
        """Always None: AMQP has no equivalent of No Local."""
        self._batch = shared.context.ingest.batch
        self.confirms = False
        """True once the client has asked for confirms."""
        self.reply_queue = ""
        """Queue of the channel's consumer of direct reply-to; empty without one."""
        self.tag = 0
        """Number of the last message since confirm.select."""
        self._acked = 0
        """Number of the last message that was confirmed."""
        self._first = 1
        """Number of the first message that was gathered and not stored, as of ``_stores``."""
        self._stores = -1
        self._nacked: set[int] = set()
        """Numbers from ``_first`` on that were refused at once, because a queue is full."""
        self._is_closed = False

    # --- publishes

    def check(self, method: commands.Basic.Publish) -> None:
        """Check the method alone, before its content.

        Raises:
            AmqpError: there is no such exchange, or the client may not publish to it.
        """
        if method.immediate:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, IMMEDIATE, _PUBLISH)
        try:
            self._shared.queues.publishing.check_exchange(self._client.peer.names.name(method.exchange))
        except QueueError as error:
            raise amqp_error(error, _PUBLISH) from None

    def publish(self, frame: bytes, method: commands.Basic.Publish, properties: bytes, body: bytes) -> None:
        """Handle a message that the hot path has not handled.

        Args:
            frame: of the method, by which the hot path recognises the next one.

        Raises:
            AmqpError: it cannot be published.
        """
        self.gather(self._batch, method, properties, body, frame)

    def gather(
        self, gathered: Gathering, method: commands.Basic.Publish, properties: bytes, body: bytes, frame: bytes = b""
    ) -> None:
        """Add a message to the gathered records. With a frame, the hot path handles the next ones.

        Raises:
            AmqpError: it cannot be published.
        """
        client = self._client
        content = read_properties(properties)
        self._check_user(content)
        client.reading.join()
        names = client.peer.names
        exchange, key = names.name(method.exchange), names.key(method.exchange, method.routing_key)
        also, headers = read_further_keys(content.headers)
        self._shared.context.pacing.budget.spend(len(also))
        content = content._replace(headers=self._answered_here(headers))
        also = tuple(names.key(method.exchange, each) for each in also)
        try:
            found = self._shared.queues.publishing.route(
                client.queue_client, exchange, key, content.headers, len(body), also
            )
        except QueueError as error:
            raise amqp_error(error, _PUBLISH) from None
        misfits, is_hidden = None, False
        if found.route is not None and found.route.checks is not None:
            misfits = found.route.checks.look(body)
            is_hidden = found.route.checks.hides(misfits)
            # There is no answer without confirms, nor in a transaction, which takes effect as a whole.
            if misfits and self.confirms and gathered is self._batch and refusal(found.route, misfits):
                self._nack_next()
                return
        is_routed = _is_routed(found, exchange)
        if method.mandatory and not is_routed:
            self._return(method, properties, body)
        if found.dead_letter_of and not is_hidden:
            self._send_on(gathered, found, content, body)
        if found.route is None:
            # Nothing takes the message, which is not an error: it counts as handled.
            self._count(gathered, is_rejected=found.is_rejected)
            return
        headers = (*content.at(self._shared.context.wall_clock()), *found.headers)
        gathered.add(found.route, found.topic, body, self, 0, headers, misfits)
        self._count(gathered, is_rejected=found.is_rejected)
        is_plain = found.is_constant and not found.route.is_wide and (is_routed or not method.mandatory)
        is_plain = is_plain and (found.route.checks is None or not found.route.checks.refuses)
        if frame and is_plain and not self._is_closed:
            channel = self.number.to_bytes(2, "big")
            client.targets.remember(frame, Target(self, channel, found.topic, found.headers, found.route))
            self._shared.context.routing.remembering.add(client.targets)
            self._shared.queues.topology.remembering.add(client.targets)

    def _send_on(self, gathered: Gathering, found: Published, content: ContentHeaders, body: bytes) -> None:
        """Add dead letters for full queues that dead-letter rejected messages."""
        headers = (*content.at(self._shared.context.wall_clock()), *found.headers)
        for route, topic, own in self._shared.queues.dead_letters.letters_of(
            found.dead_letter_of, found.topic, headers
        ):
            gathered.add(route, topic, body, self, 0, own)

    def _count(self, gathered: Gathering, *, is_rejected: bool) -> None:
        if gathered is not self._batch:
            return  # a transaction, which has no confirms
        if is_rejected and self.confirms:
            self._nack_next()
        else:
            self.published(1)

    def published(self, count: int) -> None:
        """Count gathered messages, and register their confirms if the client asked for these."""
        if not self.confirms:
            return
        batch = self._batch
        if self._stores != batch.stores:
            self._stores = batch.stores
            self._first = self.tag + 1
            self._nacked.clear()
        self.tag += count
        batch.clients.append(self)
        batch.answers.append(self.tag.to_bytes(TAG_BYTES, "big"))
        batch.more_acks += count - 1

    def confirm(self) -> None:
        """Confirm publishes from now on."""
        self.confirms = True

    def close(self) -> None:
        """Stop confirms: the channel is closed."""
        self._is_closed = True

    # --- answers

    @property
    def owner(self) -> Owner:
        """Return the owner that the client's costs are charged to."""
        return self._client.read_buffer.owner

    def acknowledge(self, answers: bytes) -> None:
        """Confirm all messages up to the last of ``answers``: they are durable."""
        tag = int.from_bytes(answers[-TAG_BYTES:], "big")
        acked, self._acked = self._acked, tag
        if not self._is_closed and tag > acked:
            self._client.send(self._confirm(_ACK, tag, multiple=tag - acked > 1))

    def refuse(self, error: BaseException) -> None:
        """Nack messages that could not be stored; without confirms, close the connection to report it."""
        if self._is_closed:
            return
        self._shared.context.counters.log_refusals += 1
        if self.confirms and isinstance(error, LogFull) and self._stores == self._batch.stores - 1:
            # One by one: a multiple nack would be about earlier messages, too, which wait for the disk.
            tags = [tag for tag in range(self._first, self.tag + 1) if tag not in self._nacked]
            self._shared.counters.amqp_nacked += len(tags)
            self._client.send(b"".join([self._confirm(_NACK, tag, multiple=False) for tag in tags]))
            if self._acked == self._first - 1:
                self._acked = self.tag
            return
        code = ReplyCode.RESOURCE_ERROR if isinstance(error, LogFull) else ReplyCode.INTERNAL_ERROR
        self._client.fail(AmqpError(code, f"what was published could not be stored: {error}", _PUBLISH))

    # --- inside

    def _nack_next(self) -> None:
        """Nack a message at once that a full queue refuses: its publisher may send it again."""
        self.tag += 1
        self._shared.counters.amqp_nacked += 1
        self._client.send(self._confirm(_NACK, self.tag, multiple=False))
        if self._stores == self._batch.stores:
            self._nacked.add(self.tag)
        if self._acked == self.tag - 1:
            self._acked = self.tag

    def _confirm(self, method: int, tag: int, *, multiple: bool) -> bytes:
        return _CONFIRM.pack(1, self.number, _CONFIRM_BYTES, _BASIC, method, tag, multiple, _FRAME_END)

    def _check_user(self, content: ContentHeaders) -> None:
        if content.user_id is not None and content.user_id != (self._client.peer.identity.username or "guest"):
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"user-id {content.user_id!r} is not the user of the connection",
                _PUBLISH,
            )

    def _answered_here(self, headers: HeaderPairs) -> HeaderPairs:
        """Return the headers of a message, with the real queue in place of direct reply-to."""
        if (REPLY_TO, DIRECT_REPLY_TO) not in headers:
            return headers
        if not self.reply_queue:
            reason = f"no consumer of {DIRECT_REPLY_TO!r} on this channel: consume it first, without acknowledgements"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason, _PUBLISH)
        return tuple((name, self.reply_queue if name == REPLY_TO else value) for name, value in headers)

    def _return(self, method: commands.Basic.Publish, properties: bytes, body: bytes) -> None:
        self._shared.counters.amqp_returned += 1
        returned = commands.Basic.Return(ReplyCode.NO_ROUTE, "NO_ROUTE", "", method.routing_key)
        returned.exchange = method.exchange  # set unchecked: pamqp allows few characters, and the exchange exists
        self._client.send(
            write_method(returned, self.number)
            + write_content(self.number, properties, body, self._client.frame_bytes_max)
        )


def _is_routed(found: Published, exchange: str) -> bool:
    """Return whether a message reaches a queue. For the topic exchange, streams count like queues."""
    if found.is_rejected or (found.route is not None and found.route.queues is not None):
        return True
    return exchange == TOPIC_EXCHANGE and found.is_routed


# Transactions of one channel (class tx): publishes and acknowledgements that take effect together, in one commit of
# the log.

RECORD_BYTES = 512
"""Charge for a message or acknowledgement that waits for its commit, beside its body."""
RESERVE_BYTES = 64 << 10
TRANSACTION_COST_MAX = 8 * COST_MAX
"""Highest cost of one commit, in units of ``Route.cost``: a commit is one step."""


class Transaction:
    """Publishes and acknowledgements of a channel since tx.select, or the last commit or rollback."""

    __slots__ = ("_bytes", "_client", "_gathered", "_number", "_settled", "_shared")

    def __init__(self, shared: AmqpContext, client: AmqpClient, number: int) -> None:
        self._shared = shared
        self._client = client
        self._number = number
        self._gathered = Gathering()
        self._settled: list[tuple[dict[int, Delivery], Outcome]] = []
        self._bytes = 0
        """Bytes charged for messages and acknowledgements that wait for the commit."""

    def publish(self, publishing: Publishing, method: commands.Basic.Publish, properties: bytes, body: bytes) -> None:
        """Add a message, which takes effect with the commit.

        Raises:
            AmqpError: it cannot be published, or is one too many.
        """
        before = self._gathered.cost
        publishing.gather(self._gathered, method, properties, body)
        if before and self._gathered.cost > TRANSACTION_COST_MAX:
            copies = TRANSACTION_COST_MAX // COPY_COST
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"a transaction makes more than {copies} copies in queues or {TRANSACTION_COST_MAX} deliveries to "
                "subscribers; commit more often",
                commands.Basic.Publish.index,
            )
        self._charge(len(body) + len(properties) + RECORD_BYTES)

    def settle(self, deliveries: dict[int, Delivery], outcome: Outcome) -> None:
        """Add acknowledgements, which take effect with the commit."""
        self._settled.append((deliveries, outcome))
        self._charge(RECORD_BYTES * len(deliveries))

    def commit(self, done: Callable[[], None]) -> None:
        """Store all of it in one commit; call back when that is durable.

        Raises:
            LogFull, LogFailed: nothing was stored, and nothing was acknowledged.
        """
        context, shared = self._shared.context, self._shared
        context.ingest.batch.store()  # earlier publishes come first
        gathered, settled, size = self._gathered, self._settled, self._bytes
        if gathered or settled:
            with context.ingest.log.together(RESERVE_BYTES + size * 2):
                if gathered:
                    context.ingest.store(gathered)
                for deliveries, outcome in settled:
                    shared.queues.contents.settle(list(deliveries.values()), outcome)
                shared.queues.writer.flush()
        self._begin()
        shared.counters.amqp_transactions += 1

        def durable(error: BaseException | None) -> None:
            if error is None:
                done()
            else:
                self._client.fail(AmqpError(ReplyCode.INTERNAL_ERROR, f"the transaction is lost: {error}"))

        context.ingest.on_durable(durable)

    def rollback(self) -> dict[int, Delivery]:
        """Forget all of it. Return the acknowledged deliveries, which are unsettled again: the client may recover
        them."""
        returned: dict[int, Delivery] = {}
        for deliveries, _ in self._settled:
            returned |= deliveries
        self._begin()
        return returned

    def _begin(self) -> None:
        self._gathered, self._settled = Gathering(), []
        self._charge(-self._bytes)

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._client.read_buffer.content_bytes += size
