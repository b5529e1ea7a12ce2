"""One channel: dispatch of its methods, and assembly of the frames of a publish into one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.bounds import Owner
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.servers.amqp.client import DIRECT_REPLY_TO, AmqpClient, AmqpContext, amqp_error
from weft.edge_node.servers.amqp.consuming import Consuming
from weft.edge_node.servers.amqp.publishing import Publishing, Transaction
from weft.protocols.amqp.content import read_content_header
from weft.protocols.amqp.frames import BODY, HEADER, METHOD, AmqpError, Frame, ReplyCode
from weft.protocols.amqp.frames import frame as frame_of
from weft.protocols.amqp.methods import Method, commands, name_of, read_method, write_method

# Declarations of exchanges, queues and bindings by methods (classes exchange and queue of the specification).

Exchange, Queue = commands.Exchange, commands.Queue


class Topology:
    """Handler of one method of these classes.

    Args:
        last_queue: name of the queue that the channel declared last: an empty name means it.
    """

    __slots__ = ("_client", "_names", "_queues", "last_queue")

    def __init__(self, shared: AmqpContext, client: AmqpClient, last_queue: str) -> None:
        self._queues = shared.queues
        self._client = client.queue_client
        self._names = client.peer.names
        self.last_queue = last_queue

    def handle(self, method: Method) -> Method:
        """Handle the method, and return the answer. The caller sends it when the change is durable.

        Raises:
            AmqpError: it was refused; nothing has changed.
        """
        try:
            return _TOPOLOGY_HANDLERS[method.index](self, method)
        except QueueError as error:
            raise amqp_error(error, method.index) from None

    # --- class exchange

    def _declare_exchange(self, method: commands.Exchange.Declare) -> Method:
        name = self._names.name(method.exchange)
        if method.passive:
            self._queues.declarations.find_exchange(name)
        else:
            self._queues.declarations.declare_exchange(
                self._client,
                name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=self._names.arguments(method.arguments),
            )
        return Exchange.DeclareOk()

    def _delete_exchange(self, method: commands.Exchange.Delete) -> Method:
        self._queues.declarations.delete_exchange(
            self._client, self._names.name(method.exchange), if_unused=method.if_unused
        )
        return Exchange.DeleteOk()

    def _bind_exchange(self, method: commands.Exchange.Bind) -> Method:
        self._queues.declarations.bind_exchange(self._client, *self._between_exchanges(method))
        return Exchange.BindOk()

    def _unbind_exchange(self, method: commands.Exchange.Unbind) -> Method:
        self._queues.declarations.unbind_exchange(self._client, *self._between_exchanges(method))
        return Exchange.UnbindOk()

    def _between_exchanges(self, method: Any) -> tuple[str, str, str, Mapping[str, Any]]:
        names = self._names
        return (
            names.name(method.destination),
            names.name(method.source),
            names.key(method.source, method.routing_key),
            method.arguments or {},
        )

    # --- class queue

    def _declare_queue(self, method: commands.Queue.Declare) -> Method:
        name = self._names.name(method.queue)
        if name.startswith(DIRECT_REPLY_TO):
            return self._reply_queue(name)
        if method.passive:
            found = self._queues.declarations.find_queue(self._client, name or self._queue(""))
        else:
            found = self._queues.declarations.declare_queue(
                self._client,
                name,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=self._names.arguments(method.arguments),
            )
        self.last_queue = self._names.own(found.name)
        answer = Queue.DeclareOk("", found.messages, found.consumers)
        answer.queue = self.last_queue  # set unchecked: pamqp allows few characters, and the queue exists
        return answer

    def _reply_queue(self, name: str) -> Method:
        """Answer as if there were a queue: a responder checks in this way whether its answer is awaited."""
        if name != DIRECT_REPLY_TO and not self._queues.declarations.has_queue(name):
            raise QueueError(Reason.NOT_FOUND, f"no consumer waits for answers at {name!r}: its channel is closed")
        return Queue.DeclareOk(name, 0, 1)

    def _delete_queue(self, method: commands.Queue.Delete) -> Method:
        count = self._queues.declarations.delete_queue(
            self._client, self._queue(method.queue), if_unused=method.if_unused, if_empty=method.if_empty
        )
        return Queue.DeleteOk(count)

    def _bind_queue(self, method: commands.Queue.Bind) -> Method:
        # If both are left out, the key is the queue's name, too.
        key = method.routing_key if method.queue or method.routing_key else self.last_queue
        self._queues.declarations.bind(self._client, *self._to_queue(method, key))
        return Queue.BindOk()

    def _unbind_queue(self, method: commands.Queue.Unbind) -> Method:
        self._queues.declarations.unbind(self._client, *self._to_queue(method, method.routing_key))
        return Queue.UnbindOk()

    def _purge_queue(self, method: commands.Queue.Purge) -> Method:
        return Queue.PurgeOk(self._queues.declarations.purge(self._client, self._queue(method.queue)))

    def _to_queue(self, method: Any, key: str) -> tuple[str, str, str, Mapping[str, Any]]:
        names = self._names
        return (
            self._queue(method.queue),
            names.name(method.exchange),
            names.key(method.exchange, key),
            method.arguments or {},
        )

    def _queue(self, name: str) -> str:
        return self._names.name(name or self.last_queue)


_TOPOLOGY_HANDLERS: Mapping[int, Callable[[Topology, Any], Method]] = {
    Exchange.Declare.index: Topology._declare_exchange,
    Exchange.Delete.index: Topology._delete_exchange,
    Exchange.Bind.index: Topology._bind_exchange,
    Exchange.Unbind.index: Topology._unbind_exchange,
    Queue.Declare.index: Topology._declare_queue,
    Queue.Delete.index: Topology._delete_queue,
    Queue.Bind.index: Topology._bind_queue,
    Queue.Unbind.index: Topology._unbind_queue,
    Queue.Purge.index: Topology._purge_queue,
}


_PUBLISH = commands.Basic.Publish.index


class Channel:
    """One channel, from channel.open on."""

    __slots__ = (
        "_client",
        "_consuming",
        "_content",
        "_last_queue",
        "_late",
        "_publishing",
        "_shared",
        "is_open",
        "number",
        "transaction",
    )

    def __init__(self, shared: AmqpContext, client: AmqpClient, number: int) -> None:
        self._shared = shared
        self._client = client
        self.number = number
        self.is_open = True
        """False once channel.close was sent: until its answer comes, all other frames are skipped."""
        self._content: Content | None = None
        """Content whose frames are arriving."""
        self.transaction: Transaction | None = None
        self._last_queue = ""
        """Queue that was declared last; an empty name means it."""
        self._late = LateAnswers(client, self)
        self._publishing: Publishing | None = None
        self._consuming: Consuming | None = None

    # --- parts, created at their first use: most channels either publish or consume

    @property
    def publishing(self) -> Publishing:
        """Return the handler of the channel's publishes."""
        if self._publishing is None:
            self._publishing = Publishing(self._shared, self._client, self.number)
        return self._publishing

    @property
    def consuming(self) -> Consuming:
        """Return the channel's consumers and deliveries."""
        if self._consuming is None:
            self._consuming = Consuming(self._shared, self._client, self.number)
        return self._consuming

    def pause(self) -> None:
        """Deliver nothing while the client does not read."""
        if self._consuming is not None:
            self._consuming.held()

    def resume(self) -> None:
        """Resume delivery: the client reads again."""
        if self._consuming is not None:
            self._consuming.writable()

    # --- frames

    def handle(self, frame: Frame) -> None:
        """Handle a frame of the open channel.

        Raises:
            AmqpError: the channel has to be closed, or the connection.
        """
        if frame.kind != METHOD:
            self._on_content(frame)
            return
        if self._content is not None:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, "a method arrived before all of a message's content")
        method = read_method(frame.payload)
        if isinstance(method, commands.Basic.Publish):
            # Remembered by its bytes, so that the hot path handles the next ones.
            self._content = Content(frame_of(METHOD, self.number, frame.payload), method)
            self.publishing.check(method)
            return
        handler = _HANDLERS.get(method.index)
        if handler is None:
            raise AmqpError(
                ReplyCode.COMMAND_INVALID, f"{name_of(method.index)} is not for a client to send", method.index
            )
        handler(self, method)

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an exception; the connection stays open."""
        self._shared.counters.amqp_channel_errors += 1
        self.end()
        close = commands.Channel.Close(error.code, error.text, error.method >> 16, error.method & 0xFFFF)
        self._client.answer(close, self.number)

    def end(self) -> None:
        """Release everything: unsettled deliveries go back to their queues."""
        self.is_open = False
        self._drop_content()
        if self._publishing is not None:
            self._client.targets.forget(self._publishing)
            self._publishing.close()
        if self.transaction is not None:
            returned = self.transaction.rollback()
            if self._consuming is not None:
                self._consuming.give_back(returned)
            self.transaction = None
        if self._consuming is not None:
            self._consuming.close()

    def answer(self, method: Method) -> None:
        """Write a method on this channel."""
        self._client.answer(method, self.number)

    # --- content

    def _on_content(self, frame: Frame) -> None:
        content = self._content
        if content is None or (frame.kind == HEADER) != content.awaits_header:
            what = "header" if frame.kind == HEADER else "body"
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"a content {what} arrived where none is expected")
        if frame.kind == HEADER:
            content.begin(frame.payload, self._shared.settings.limits.message_bytes)
        else:
            self._client.read_buffer.content_bytes += len(frame.payload)
            content.add(frame.payload)
        if not content.left:
            self._drop_content()
            self._publish(content)

    def _drop_content(self) -> None:
        content, self._content = self._content, None
        if content is not None:
            self._client.read_buffer.content_bytes -= content.held

    def _publish(self, content: Content) -> None:
        publishing, body = self.publishing, b"".join(content.parts)
        if self.transaction is not None:
            self.transaction.publish(publishing, content.method, content.properties, body)
        else:
            publishing.publish(content.frame, content.method, content.properties, body)

    # --- class channel

    def _on_close(self, _method: Method) -> None:
        """Answer when earlier publishes are durable, as for connection.close."""
        ingest = self._shared.context.ingest
        ingest.batch.store()
        if not self.is_open:
            return  # there was no room for it, and the connection is closed with that exception
        self.end()
        ingest.on_durable(self._closed)

    def _closed(self, error: BaseException | None) -> None:
        if error is not None:
            reason = f"what was published could not be stored: {error}"
            self._client.fail(AmqpError(ReplyCode.INTERNAL_ERROR, reason))
            return
        self.answer(commands.Channel.CloseOk())
        self._client.end_channel(self.number)

    def _on_flow(self, method: commands.Channel.Flow) -> None:
        self.consuming.flow(active=bool(method.active))
        self.answer(commands.Channel.FlowOk(method.active))

    def _pass_over(self, _method: Method) -> None:
        """Skip an answer without a request."""

    # --- classes confirm and tx

    def _on_confirm(self, method: commands.Confirm.Select) -> None:
        if self.transaction is not None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "the channel has transactions: it cannot have confirms")
        self.publishing.confirm()
        if not method.nowait:
            self.answer(commands.Confirm.SelectOk())

    def _on_tx_select(self, _method: Method) -> None:
        if self._publishing is not None and self._publishing.confirms:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "the channel has confirms: it cannot have transactions")
        if self.transaction is None:
            self.transaction = Transaction(self._shared, self._client, self.number)
            self._client.targets.forget(self.publishing)
        self.answer(commands.Tx.SelectOk())

    def _begun(self) -> Transaction:
        if self.transaction is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "the channel has no transactions: send tx.select first")
        return self.transaction

    def _on_tx_commit(self, _method: Method) -> None:
        self._begun().commit(lambda: self.answer(commands.Tx.CommitOk()))

    def _on_tx_rollback(self, _method: Method) -> None:
        self.consuming.give_back(self._begun().rollback())
        self.answer(commands.Tx.RollbackOk())

    # --- classes exchange, queue and basic

    def _on_topology(self, method: Method) -> None:
        """Answer when the change is durable."""
        topology = Topology(self._shared, self._client, self._last_queue)
        consuming = self._consuming
        answers: list[bytes] = []
        keeping: AbstractContextManager[None] = consuming.keeps_cancels(answers) if consuming else nullcontext()
        with keeping:
            answer = topology.handle(method)
        self._last_queue = topology.last_queue
        # In front of the answer: at the end of the turn it would be in a later commit.
        self._shared.queues.writer.flush()
        if not getattr(method, "nowait", False):
            answers.insert(0, write_method(answer, self.number))
        if answers:
            self._shared.context.ingest.batch.answer(self._late, b"".join(answers))

    def _on_consuming(self, method: Method) -> None:
        consuming = self.consuming
        consuming.handle(method, self.transaction, self._last_queue)
        reply_queue = consuming.reply_queue
        if reply_queue != (self._publishing.reply_queue if self._publishing is not None else ""):
            self._client.targets.forget(self.publishing)  # its remembered messages have the queue's name
            self.publishing.reply_queue = reply_queue


class LateAnswers:
    """Answers of one channel that wait for the disk; a source of ``TickBatch``."""

    __slots__ = ("_channel", "_client", "publisher")

    def __init__(self, client: AmqpClient, channel: Channel) -> None:
        self._client = client
        self._channel = channel
        self.publisher: str | None = None

    @property
    def owner(self) -> Owner:
        """Return the owner that the client's costs are charged to."""
        return self._client.read_buffer.owner

    def acknowledge(self, answers: bytes) -> None:
        """Send the answers."""
        if self._channel.is_open:
            self._client.send(answers)

    def refuse(self, error: BaseException) -> None:
        """End the connection: its declarations are not stored."""
        self._client.fail(AmqpError(ReplyCode.INTERNAL_ERROR, f"what was declared could not be stored: {error}"))


class Content:
    """A message with frames still to come."""

    __slots__ = ("awaits_header", "frame", "held", "left", "method", "parts", "properties")

    def __init__(self, frame: bytes, method: commands.Basic.Publish) -> None:
        self.frame = frame
        self.method = method
        self.awaits_header = True
        self.properties = b""
        self.left = 0
        """Missing bytes of the body."""
        self.held = 0
        self.parts: list[bytes] = []

    def begin(self, payload: bytes, bytes_max: int) -> None:
        """Handle the content header.

        Raises:
            AmqpError: it is not well formed, or the body is too long.
        """
        self.left, self.properties = read_content_header(payload)
        self.awaits_header = False
        if self.left > bytes_max:
            raise AmqpError(
                ReplyCode.CONTENT_TOO_LARGE,
                f"a body of {self.left} bytes; {bytes_max} are possible (limits.message)",
                _PUBLISH,
            )

    def add(self, piece: bytes) -> None:
        """Add a piece of the body.

        Raises:
            AmqpError: the body exceeds the length in the content header.
        """
        self.held += len(piece)
        if len(piece) > self.left:
            raise AmqpError(ReplyCode.FRAME_ERROR, "more octets of a body than its content header announced", _PUBLISH)
        self.left -= len(piece)
        self.parts.append(piece)


_HANDLERS: Mapping[int, Callable[[Channel, Any], None]] = {
    commands.Channel.Close.index: Channel._on_close,
    commands.Channel.CloseOk.index: Channel._pass_over,
    commands.Channel.Flow.index: Channel._on_flow,
    commands.Channel.FlowOk.index: Channel._pass_over,
    commands.Confirm.Select.index: Channel._on_confirm,
    commands.Tx.Select.index: Channel._on_tx_select,
    commands.Tx.Commit.index: Channel._on_tx_commit,
    commands.Tx.Rollback.index: Channel._on_tx_rollback,
    **dict.fromkeys(
        (
            commands.Exchange.Declare.index,
            commands.Exchange.Delete.index,
            commands.Exchange.Bind.index,
            commands.Exchange.Unbind.index,
            commands.Queue.Declare.index,
            commands.Queue.Delete.index,
            commands.Queue.Bind.index,
            commands.Queue.Unbind.index,
            commands.Queue.Purge.index,
        ),
        Channel._on_topology,
    ),
    **dict.fromkeys(
        (
            commands.Basic.Qos.index,
            commands.Basic.Consume.index,
            commands.Basic.Cancel.index,
            commands.Basic.CancelOk.index,
            commands.Basic.Get.index,
            commands.Basic.Ack.index,
            commands.Basic.Nack.index,
            commands.Basic.Reject.index,
            commands.Basic.Recover.index,
            commands.Basic.RecoverAsync.index,
        ),
        Channel._on_consuming,
    ),
}
"""Method -> its handler."""


# Channels of one connection, by their numbers (class channel of the specification).

_OPEN = commands.Channel.Open.index
_CLOSE = commands.Channel.Close.index
_CLOSE_OK = commands.Channel.CloseOk.index
_CONNECTION_CLASS = commands.Connection.index >> 16


class Channels:
    """Channels that are open, or wait for channel.close-ok."""

    __slots__ = ("_channels_max", "_client", "_open", "_shared")

    def __init__(self, shared: AmqpContext, client: AmqpClient, channels_max: int) -> None:
        self._shared = shared
        self._client = client
        self._channels_max = channels_max
        self._open: dict[int, Channel] = {}

    def handle(self, frame: Frame) -> None:
        """Handle a frame of a channel.

        Raises:
            AmqpError: the connection has to be closed.
        """
        kind, number, payload = frame
        channel = self._open.get(number)
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(ReplyCode.FRAME_ERROR, f"there are no frames of type {kind}")
        if kind != METHOD:
            if channel is None:
                raise AmqpError(ReplyCode.CHANNEL_ERROR, f"content on channel {number}, which is not open")
            if channel.is_open:
                self._guarded(channel, frame, 0)
            return
        index = int.from_bytes(payload[:4], "big")
        if channel is None:
            self._first(number, index, payload)
        elif not channel.is_open:
            self._while_closing(channel, index)
        elif index == _OPEN:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"channel {number} is open already", index)
        elif index >> 16 == _CONNECTION_CLASS:
            raise AmqpError(ReplyCode.COMMAND_INVALID, f"{name_of(index)} belongs on channel 0", index)
        else:
            self._guarded(channel, frame, index)

    def remove(self, number: int) -> None:
        """Forget a channel that is closed."""
        if self._open.pop(number, None) is not None:
            self._shared.channels.free(self._client.read_buffer.owner)
            self._shared.counters.amqp_channels -= 1

    def pause(self) -> None:
        """Deliver nothing while the client does not read."""
        for channel in self._open.values():
            channel.pause()

    def resume(self) -> None:
        """Deliver again what waited for the client to read."""
        for channel in list(self._open.values()):
            channel.resume()

    def close(self) -> None:
        """Close all channels: the connection ends."""
        for number, channel in list(self._open.items()):
            channel.end()
            self.remove(number)

    def _first(self, number: int, index: int, payload: bytes) -> None:
        if index in (_CLOSE, _CLOSE_OK):
            # Both sides closed it at the same time.
            if index == _CLOSE:
                self._client.answer(commands.Channel.CloseOk(), number)
            return
        if index != _OPEN:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"{name_of(index)} on channel {number}, which is not open", index)
        read_method(payload)
        if number > self._channels_max:
            reason = f"channel {number} is above the agreed channel-max of {self._channels_max}"
            raise AmqpError(ReplyCode.NOT_ALLOWED, reason, index)  # RabbitMQ's code, which clients know
        owner = self._client.read_buffer.owner
        if not self._shared.channels.take(owner):
            self._shared.channels.refuse(owner)
            raise AmqpError(ReplyCode.RESOURCE_ERROR, "no room for more channels (queues.channels)", index)
        self._open[number] = Channel(self._shared, self._client, number)
        self._shared.counters.amqp_channels += 1
        self._client.answer(commands.Channel.OpenOk(), number)

    def _while_closing(self, channel: Channel, index: int) -> None:
        """Wait for the answer to channel.close; the client sent other frames before it saw the close."""
        if index == _CLOSE:
            self._client.answer(commands.Channel.CloseOk(), channel.number)
        if index in (_CLOSE, _CLOSE_OK):
            self.remove(channel.number)

    def _guarded(self, channel: Channel, frame: Frame, index: int) -> None:
        try:
            channel.handle(frame)
        except AmqpError as error:
            error.method = error.method or index
            if error.code.ends_connection:
                raise
            channel.fail(error)
