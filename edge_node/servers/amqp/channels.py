"""Channels of one connection, by their numbers (class channel of the specification)."""

from __future__ import annotations

from weft.edge_node.servers.amqp.channel import Channel
from weft.edge_node.servers.amqp.client import AmqpClient, Shared
from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.frames import BODY, HEADER, METHOD, Frame
from weft.protocols.amqp.methods import commands, name_of, read_method

_OPEN = commands.Channel.Open.index
_CLOSE = commands.Channel.Close.index
_CLOSE_OK = commands.Channel.CloseOk.index
_CONNECTION_CLASS = commands.Connection.index >> 16


class Channels:
    """Channels that are open, or wait for channel.close-ok."""

    __slots__ = ("_channels_max", "_client", "_open", "_shared")

    def __init__(self, shared: Shared, client: AmqpClient, channels_max: int) -> None:
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
            self._shared.channels.free(self._client.inbox.owner)
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
        owner = self._client.inbox.owner
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
