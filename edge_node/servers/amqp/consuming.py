"""Consumers and deliveries of one channel (class basic of the specification)."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

from weft.edge_node.queues.definitions import QueueError, origin_of
from weft.edge_node.queues.queue import Consumption, Credit
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.servers.amqp.client import DIRECT_REPLY_TO, AmqpClient, AmqpContext, Names, amqp_error
from weft.edge_node.servers.amqp.publishing import Transaction
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.amqp.content import DeliveryForm, content_parts, write_properties
from weft.protocols.amqp.frames import METHOD, AmqpError, ReplyCode, frame
from weft.protocols.amqp.methods import Method, commands, write_method, write_text

# One consumer of a channel: messages of a queue as basic.deliver.

_DELIVER = commands.Basic.Deliver.index.to_bytes(4, "big")
_GET_OK = commands.Basic.GetOk.index.to_bytes(4, "big")
_TAG = struct.Struct(">QB")
_COUNT = struct.Struct(">I")
_COUNT_MAX = (1 << 32) - 1


class ChannelConsumer:
    """A consumer with its tag."""

    __slots__ = ("_before", "_channel", "_client", "_head", "_no_ack", "_number", "_wall_clock", "consumption", "tag")

    def __init__(
        self,
        client: AmqpClient,
        channel: Consuming,
        number: int,
        tag: str,
        wall_clock: Callable[[], int],
        *,
        no_ack: bool,
    ) -> None:
        self._client = client
        self._channel = channel
        self._number = number
        self._no_ack = no_ack
        self._wall_clock = wall_clock
        self._head = _DELIVER + write_text(tag)
        self._before: list[bytes | memoryview] | None = []
        """Deliveries from before basic.consume-ok was sent; None after it."""
        self.tag = tag
        self.consumption: Consumption | None = None

    def start(self) -> None:
        """Send deliveries from now on: basic.consume-ok was sent."""
        before, self._before = self._before, None
        if before:
            self._client.send_all(before)

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Send messages."""
        names, now = self._client.peer.names, self._wall_clock()
        parts: list[bytes | memoryview] = []
        # The common part of messages is encoded once: mostly the headers of a batch of the log are one object.
        properties: dict[int, bytes] = {}
        forms: dict[tuple[int, bytes], DeliveryForm] = {}
        first = self._channel.next_tags(len(batch), () if self._no_ack else [delivery for delivery, _ in batch])
        for tag, (delivery, message) in enumerate(batch, first):
            headers = message.headers
            form = forms.get(place := (id(headers), message.topic))
            if form is None:
                own = properties.get(id(headers))
                if own is None:
                    own = properties[id(headers)] = write_properties(headers, now)
                origin = _origin(message, names)
                form = forms[place] = DeliveryForm(self._number, self._head, origin, own, self._client.frame_bytes_max)
            if len(message.payload) <= form.short_max:
                parts.append(form.write(tag, message.payload, redelivered=delivery.redelivered))
            else:
                parts += form.parts(tag, message.payload, redelivered=delivery.redelivered)
        if self._before is not None:
            self._before += parts
        else:
            self._client.send_all(parts)

    def cancelled(self, error: QueueError) -> None:  # noqa: ARG002
        """Notify the client that the queue was deleted, or that it may no longer read it."""
        self.consumption = None
        self._channel.ended(self.tag)


def write_get_ok(  # noqa: PLR0917
    client: AmqpClient, number: int, tag: int, delivery: Delivery, message: LogRecord, left: int, now: int
) -> list[bytes | memoryview]:
    """Return basic.get-ok with its content, in parts.

    Args:
        left: number of messages left in the queue.
        now: nanoseconds since 1970.
    """
    fields = (
        _TAG.pack(tag, delivery.redelivered) + _origin(message, client.peer.names) + _COUNT.pack(min(left, _COUNT_MAX))
    )
    content = content_parts(number, write_properties(message.headers, now), message.payload, client.frame_bytes_max)
    return [frame(METHOD, number, _GET_OK + fields), *content]


def _origin(message: LogRecord, names: Names) -> bytes:
    """Return exchange and routing key, as far as they fit: a topic of MQTT may be longer than a short string."""
    exchange, key = map(names.own, origin_of(message.topic, message.headers))
    data = key.encode()
    if len(data) > 255:
        key = data[:255].decode(errors="ignore")
    return write_text(exchange) + write_text(key)


TAG_PREFIX = "amq.ctag-"
GETS_MAX = 1024
"""Maximum number of basic.get requests of a channel that wait for their answers. Common clients send one at a time."""


class Consuming:
    """Consumers and deliveries of one channel."""

    __slots__ = (
        "_cancels",
        "_client",
        "_consumers",
        "_flow",
        "_getting",
        "_last_queue",
        "_last_tag",
        "_number",
        "_prefetch",
        "_shared",
        "_socket",
        "_together",
        "reply_queue",
        "unsettled",
    )

    def __init__(self, shared: AmqpContext, client: AmqpClient, number: int) -> None:
        self._shared = shared
        self._client = client
        self._number = number
        self._consumers: dict[str, ChannelConsumer] = {}
        self._last_tag = 0
        self._prefetch = 0
        """Prefetch of each later consumer of the channel; 0 for no limit."""
        self._together = Credit(comes_back=True)
        """Unacknowledged messages of all consumers of the channel (basic.qos with ``global``)."""
        self._socket = Credit()
        """Held while the client does not read."""
        self._flow = Credit()
        """Held while the client has stopped delivery (channel.flow)."""
        self.unsettled: dict[int, Delivery] = {}
        """Delivery tag -> delivery, in order of the tags."""
        self._last_queue = ""
        self.reply_queue = ""
        """Queue for answers, while one of the consumers is for direct reply-to."""
        self._getting: list[Consumption] = []
        """Requests of basic.get that still wait for their messages."""
        self._cancels: list[bytes] | None = None
        """Delayed frames of basic.cancel; None while they are sent at once."""
        if not client.is_writable:
            self._socket.hold()

    def handle(self, method: Method, transaction: Transaction | None, last_queue: str) -> None:
        """Handle a method.

        Args:
            transaction: collects acknowledgements, if there is one.
            last_queue: queue that an empty name means.

        Raises:
            AmqpError: the channel has to be closed, or the connection.
        """
        self._last_queue = last_queue
        settled = _SETTLING.get(method.index)
        try:
            if settled is not None:
                self._settle(*settled(self, method), transaction)
            else:
                _HANDLERS[method.index](self, method)
        except QueueError as error:
            raise amqp_error(error, method.index) from None

    def flow(self, *, active: bool) -> None:
        """Stop or resume delivery at the client's request (channel.flow)."""
        self._flow.free() if active else self._flow.hold()

    def writable(self) -> None:
        """Resume delivery: the client has read its data."""
        self._socket.free()

    def held(self) -> None:
        """Deliver nothing while the client does not read."""
        self._socket.hold()

    def close(self) -> None:
        """End all consumers; unsettled messages go back to their queues."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            self._cancel(consumer)
        getting, self._getting = self._getting, []
        for each in getting:  # or a message would arrive on a closed channel, and wait there
            self._shared.queues.consumptions.cancel(each)
        unsettled, self.unsettled = self.unsettled, {}
        if unsettled:
            self._shared.queues.settling.settle(list(unsettled.values()), Outcome.REQUEUE)

    def give_back(self, deliveries: Mapping[int, Delivery]) -> None:
        """Mark deliveries as unsettled again: their acknowledgements were rolled back."""
        self.unsettled = dict(sorted({**self.unsettled, **deliveries}.items()))

    def next_tags(self, count: int, deliveries: Sequence[Delivery]) -> int:
        """Return the first of so many delivery tags.

        Args:
            deliveries: one for each tag, or none where they need no acknowledgement.
        """
        first = self._last_tag + 1
        self._last_tag += count
        self.unsettled.update(zip(range(first, first + count), deliveries, strict=False))
        return first

    @contextmanager
    def keeps_cancels(self, cancels: list[bytes]) -> Iterator[None]:
        """Collect basic.cancel for consumers that a method of this channel ends, to send it behind the answer.

        RabbitMQ sends queue.delete-ok first. Kombu raises ConsumerCancelled out of its delete otherwise.
        """
        self._cancels = cancels
        try:
            yield
        finally:
            self._cancels = None

    def ended(self, tag: str) -> None:
        """Notify the client that a consumer's queue was deleted, or that it may no longer read it."""
        consumer = self._consumers.pop(tag, None)
        if self.reply_queue and not self._shared.queues.declarations.has_queue(self.reply_queue):
            self.reply_queue = ""
        if consumer is not None and "consumer_cancel_notify" in self._client.peer.capabilities:
            cancel = commands.Basic.Cancel(tag, True)
            if self._cancels is not None:
                self._cancels.append(write_method(cancel, self._number))
            else:
                self._client.answer(cancel, self._number)

    def _forget_reply_queue(self, consumer: ChannelConsumer) -> None:
        consumption = consumer.consumption
        if consumption is not None and consumption.queue.name == self.reply_queue:
            self.reply_queue = ""

    def _cancel(self, consumer: ChannelConsumer) -> None:
        if consumer.consumption is not None:
            self._shared.queues.consumptions.cancel(consumer.consumption)

    def _queue(self, name: str) -> str:
        """Return the node's name of a queue; an empty name means the queue that was declared last."""
        return self._client.peer.names.name(name or self._last_queue)

    # --- methods

    def _on_qos(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            reason = "prefetch-size is not supported: bound messages by prefetch-count"
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, reason, method.index)
        if method.global_:
            self._together.set_limit(method.prefetch_count)
        else:
            self._prefetch = method.prefetch_count
        self._client.answer(commands.Basic.QosOk(), self._number)

    def _on_consume(self, method: commands.Basic.Consume) -> None:
        tag = method.consumer_tag or TAG_PREFIX + secrets.token_urlsafe(16)
        if tag in self._consumers:
            reason = f"the consumer tag {tag!r} is in use on this channel"
            raise AmqpError(ReplyCode.NOT_ALLOWED, reason, method.index)
        queue = self._reply_queue(method) if method.queue == DIRECT_REPLY_TO else self._queue(method.queue)
        credit = [self._socket, self._flow]
        if not method.no_ack:
            credit += [self._together, Credit(self._prefetch, comes_back=True)] if self._prefetch else [self._together]
        consumer = ChannelConsumer(
            self._client, self, self._number, tag, self._shared.context.wall_clock, no_ack=method.no_ack
        )
        consumer.consumption = self._shared.queues.consumptions.consume(
            self._client.queue_client,
            queue,
            consumer,
            credit,
            needs_acks=not method.no_ack,
            exclusive=method.exclusive,
            arguments=method.arguments or {},
        )
        self._consumers[tag] = consumer
        if not method.nowait:
            self._client.answer(commands.Basic.ConsumeOk(tag), self._number)
        consumer.start()

    def _reply_queue(self, method: commands.Basic.Consume) -> str:
        """Create the queue of direct reply-to: it ends with its consumer."""
        if not method.no_ack:
            reason = f"{DIRECT_REPLY_TO!r} has no acknowledgements: consume it with no-ack"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason, method.index)
        if self.reply_queue:
            reason = f"{DIRECT_REPLY_TO!r} has a consumer on this channel: use that one"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason, method.index)
        self.reply_queue = self._shared.queues.declarations.declare_queue(
            self._client.queue_client, exclusive=True, auto_delete=True, own_name=f"{DIRECT_REPLY_TO}."
        ).name
        return self.reply_queue

    def _on_cancel(self, method: commands.Basic.Cancel) -> None:
        consumer = self._consumers.pop(method.consumer_tag or "", None)
        if consumer is not None:
            self._forget_reply_queue(consumer)
            self._cancel(consumer)
        if not method.nowait:
            self._client.answer(commands.Basic.CancelOk(method.consumer_tag), self._number)

    def _on_get(self, method: commands.Basic.Get) -> None:
        if len(self._getting) >= GETS_MAX:
            reason = f"{GETS_MAX} basic.get of the channel wait for their answers: send more after these answers"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason, method.index)
        waiting = self._shared.queues.consumptions.get(
            self._client.queue_client,
            self._queue(method.queue),
            partial(self._got, method),
            needs_acks=not method.no_ack,
        )
        if waiting.active:
            self._getting.append(waiting)

    def _got(self, method: commands.Basic.Get, found: tuple[Delivery, LogRecord, int] | None) -> None:
        if self._getting:
            self._getting = [each for each in self._getting if each.active]
        if found is None:
            self._client.answer(commands.Basic.GetEmpty(), self._number)
            return
        delivery, message, left = found
        tag = self.next_tags(1, () if method.no_ack else (delivery,))
        now = self._shared.context.wall_clock()
        self._client.send_all(write_get_ok(self._client, self._number, tag, delivery, message, left, now))

    def _pass_over(self, _method: Method) -> None:
        """Skip the answer to basic.cancel."""

    # --- settling

    def _on_ack(self, method: commands.Basic.Ack) -> tuple[dict[int, Delivery], Outcome]:
        return self._take(method.delivery_tag, method.multiple, method.index), Outcome.ACCEPT

    def _on_nack(self, method: commands.Basic.Nack) -> tuple[dict[int, Delivery], Outcome]:
        found = self._take(method.delivery_tag, method.multiple, method.index)
        return found, Outcome.REQUEUE if method.requeue else Outcome.REJECT

    def _on_reject(self, method: commands.Basic.Reject) -> tuple[dict[int, Delivery], Outcome]:
        found = self._take(method.delivery_tag or 0, False, method.index)
        return found, Outcome.REQUEUE if method.requeue else Outcome.REJECT

    def _on_recover(self, method: commands.Basic.Recover) -> None:
        """Requeue, even where the client asks for the same recipient: with one consumer both are the same."""
        unsettled, self.unsettled = self.unsettled, {}
        if isinstance(method, commands.Basic.Recover):
            self._client.answer(commands.Basic.RecoverOk(), self._number)
        if unsettled:
            self._shared.queues.settling.settle(list(unsettled.values()), Outcome.REQUEUE)

    def _take(self, tag: int, multiple: bool, index: int) -> dict[int, Delivery]:
        unsettled = self.unsettled
        if multiple and not tag:
            self.unsettled = {}
            return unsettled
        if tag not in unsettled:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", index)
        if not multiple:
            return {tag: unsettled.pop(tag)}
        if next(reversed(unsettled)) == tag:
            self.unsettled = {}
            return unsettled
        return {each: unsettled.pop(each) for each in list(takewhile(tag.__ge__, unsettled))}

    def _settle(self, found: dict[int, Delivery], outcome: Outcome, transaction: Transaction | None) -> None:
        if transaction is not None:
            transaction.settle(found, outcome)
        elif found:
            self._shared.queues.settling.settle(list(found.values()), outcome)


_SETTLING: Mapping[int, Callable[[Consuming, Any], tuple[dict[int, Delivery], Outcome]]] = {
    commands.Basic.Ack.index: Consuming._on_ack,
    commands.Basic.Nack.index: Consuming._on_nack,
    commands.Basic.Reject.index: Consuming._on_reject,
}
_HANDLERS: Mapping[int, Callable[[Consuming, Any], None]] = {
    commands.Basic.Qos.index: Consuming._on_qos,
    commands.Basic.Consume.index: Consuming._on_consume,
    commands.Basic.Cancel.index: Consuming._on_cancel,
    commands.Basic.CancelOk.index: Consuming._pass_over,
    commands.Basic.Get.index: Consuming._on_get,
    commands.Basic.Recover.index: Consuming._on_recover,
    commands.Basic.RecoverAsync.index: Consuming._on_recover,
}
