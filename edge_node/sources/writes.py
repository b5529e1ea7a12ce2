"""Messages that write a value at a device or server: checked, written once, read back, and each has a record.

A message comes from a client of the node, or from a hub (``links.NAME.down``). It is written after it is on disk, so
that what was done is in the log first, and never a second time: what a crash interrupts has no record, and its sender
asks what the value is. Nothing waits for a source that is away, as a command that comes late may harm. What a source
has read is no command, whatever its topic: a value would command itself, and a stranger's broker the devices.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from weft.config.log_lines import Repeats, left_out
from weft.config.sources import Register, Write
from weft.edge_node.ingest.record import NodeRecord
from weft.edge_node.sources.connection import PUBLISHER_PREFIX, SourceContext, SourceDown, Topics
from weft.edge_node.streams import WRITE_LEVEL, WRITTEN_LEVEL
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import CONTENT_TYPE, CORRELATION_ID, MESSAGE_NUMBER
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import InvalidTopic
from weft.storage.segment_log import LogError

log = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX = 4096
"""Longest payload; a text has fewer characters."""
WAITING_MAX = 100
"""Messages of one source that wait for the disk or for the one before them. Further ones are refused."""
AGE_S_MAX = 5.0
"""Longest time between the arrival of a message and its write. An older one is refused: a command that comes late may
harm."""
TOO_LATE = f"the message is too old: it has expired, or has waited for {AGE_S_MAX:g} s"
WRITE_TIMEOUT_S = 30.0
"""Longest time for one message, with the reading back."""
INTEGERS = {
    **{f"{sign}{bits}": (sign == "i", bits) for bits in (16, 32, 64) for sign in "ui"},
    "SByte": (True, 8),
    "Byte": (False, 8),
    **{f"{name}Int{bits}": (not name, bits) for bits in (16, 32, 64) for name in ("", "U")},
}
"""Type of a register or variable -> whether it has a sign, and its bits."""
REGISTER_FORMATS = {"u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f32": "f", "f64": "d"}
"""Type of a register -> its format in ``struct``."""
_NOISE = 1e-6
"""Part of a step of an integer that a factor such as 0.1 leaves: 21.3 / 0.1 is 213.00000000000003."""
_SIGNIFICANT = 15
"""Decimal digits that a double holds."""
_F32 = struct.Struct("<f")
_F32_MAX = 3.4028234663852886e38
_ROUNDING = {"f32": 2**-23, "Float": 2**-23}
"""Type -> largest part of a number by which it rounds, and a factor such as 0.1; others round as doubles do."""
_ROUNDING_F64 = 2**-49
Value = bool | int | float | str


class WriteRefused(Exception):
    """The value was not sent, or the device or server has refused it: it is what it was. The text has the reason."""


class WriteUnconfirmed(Exception):
    """The value was sent, and may be in force or not. The text has the reason."""


class ReadBack(NamedTuple):
    """The value that a device or server has after a write."""

    value: Value | None
    is_same: bool


class Writable(Protocol):
    """A source that writes. Event loop's thread only."""

    async def write(self, name: str, value: Value, not_after: float) -> ReadBack:
        """Write a value that fits type and range, and read back what the device or server then has.

        Args:
            not_after: seconds by the loop's clock after which it is not written any more.

        Raises:
            WriteRefused: as it says; also for a value that the device or server would have as another number.
            WriteUnconfirmed: as it says.
            SourceDown: there is no connection, so that nothing was sent.
        """

    def kind(self, name: str) -> str:
        """Return the type of a register or variable."""


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of the record about a message, as JSON."""

    source: str
    write: str
    outcome: Literal["written", "refused", "unconfirmed"]
    value: Value | None = None
    """Value of the message; None where it is none."""
    read_back: Value | None = None
    reason: str = ""
    message: int | None = None
    """Number of the hub's message."""


def value_of(payload: bytes, kind: str, write: Write) -> Value:
    """Return the value of a message, of the type and in the range of a register or variable.

    Raises:
        WriteRefused: it is none.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise WriteRefused(f"the payload has {len(payload)} bytes; the limit is {PAYLOAD_BYTES_MAX}")
    try:
        value: Any = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WriteRefused("the payload is not JSON: send the value alone, such as 71.5 or true") from None
    wanted = {"Boolean": bool, "bool": bool, "String": str, "text": str}.get(kind)
    if wanted is not None:
        if type(value) is not wanted or "\0" in str(value):
            raise WriteRefused(f"expected {'true or false' if wanted is bool else 'a text without zero bytes'}")
        return value if isinstance(value, bool | str) else str(value)
    if type(value) not in (int, float) or (isinstance(value, float) and not math.isfinite(value)):
        raise WriteRefused("expected a number")
    if write.min is None or write.max is None or not write.min <= value <= write.max:
        raise WriteRefused(f"expected a number from {write.min} to {write.max}, got {str(value)[:40]}")
    return int(value) if isinstance(value, int) else float(value)


def whole(value: float, kind: str) -> int:
    """Return a number as the integer of a type.

    Raises:
        WriteRefused: it has a fraction, or the type has no room for it.
    """
    is_signed, bits = INTEGERS[kind]
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    if not float(value).is_integer():
        raise WriteRefused(f"expected a whole number, as the type is {kind}, got {value}")
    if not least <= int(value) <= most:
        raise WriteRefused(f"{kind} has room for {least} to {most}, got {value}")
    return int(value)


def exact(value: Value, kind: str, write: Write) -> Value:
    """Return a value as a variable of an OPC UA server will have it.

    Raises:
        WriteRefused: the type has no room for it.
    """
    if isinstance(value, bool | str):
        return value
    sent = whole(value, kind) if kind in INTEGERS else single(value) if kind == "Float" else float(value)
    check_same(value, shortest(sent) if kind == "Float" else sent, kind, write)
    return sent


def single(value: float) -> float:
    """Return a number as 32 bits have it.

    Raises:
        WriteRefused: they have no room for it.
    """
    try:
        (found,) = _F32.unpack(_F32.pack(value))
    except OverflowError:
        raise WriteRefused(f"32 bits have no room for {value}") from None
    return float(found)


def shortest(number: float) -> float:
    """Return the number with the fewest digits that is the same in 32 bits: 3.1, not 3.0999999046325684."""
    for digits in range(6, 9):
        short = float(f"{number:.{digits}g}")
        if abs(short) <= _F32_MAX and _F32.pack(short) == _F32.pack(number):
            return short
    return float(f"{number:.9g}")


def check_same(value: Value, found: Value | None, kind: str, write: Write, shift: float = 0.0) -> None:
    """Check that a number, as the device or server will have it, is the one that was asked for.

    Args:
        found: the number after its encoding; None if it is not finite.
        shift: number that the encoding subtracts, whose digits count.

    Raises:
        WriteRefused: it is another one, beyond the rounding of its type, or out of range.
    """
    if isinstance(value, bool | str):
        return
    if found is None or isinstance(found, str):
        raise WriteRefused(f"{kind} has no room for {value}")
    if write.min is None or write.max is None or not write.min <= found <= write.max:
        raise WriteRefused(f"{value} would be {found} as {kind}: expected a number from {write.min} to {write.max}")
    if found == value:
        return
    # Whole numbers count things, or name them: 16,777,217 is another one than 16,777,216.
    is_whole = float(value).is_integer() and not shift
    if is_whole or abs(found - value) > _ROUNDING.get(kind, _ROUNDING_F64) * (abs(value) + abs(shift)):
        raise WriteRefused(f"{value} would be {found} as {kind}, which has no room for all of its digits")


def encoded(register: Register, value: Value) -> list[int]:
    """Return the registers, or the bit, of a value that fits the type's kind: the inverse of reading.

    Raises:
        WriteRefused: the type has no room for it.
    """
    kind = register.type or "u16"
    if register.is_bit:
        return [int(bool(value))]
    if isinstance(value, str):
        data = value.encode()
        if len(data) > 2 * register.width:
            raise WriteRefused(f"the text has {len(data)} bytes; the registers have room for {2 * register.width}")
        data = data.ljust(2 * register.width, b"\0")
    else:
        endian = "<" if register.order in ("CDAB", "DCBA") else ">"
        data = struct.pack(endian + REGISTER_FORMATS.get(kind, "H"), _raw(register, kind, value))
    swapped = register.order in ("BADC", "CDAB")
    return list(struct.unpack(f"{'<' if swapped else '>'}{register.width}H", data))


def _raw(register: Register, kind: str, value: float) -> float:
    if kind == "bool":
        return int(value)
    raw: float = value
    if register.scale != 1 or register.offset != 0:
        if register.scale == 0:
            raise WriteRefused("`scale` is 0: each value is read as the same number")
        raw = (value - register.offset) / register.scale
        near = round(raw) if kind in INTEGERS and math.isfinite(raw) else raw
        raw = near if abs(raw - near) < max(_NOISE, abs(raw) * _ROUNDING_F64) else float(f"{raw:.{_SIGNIFICANT}g}")
    return whole(raw, kind) if kind in INTEGERS else single(raw) if kind == "f32" else raw


class _Command(NamedTuple):
    name: str
    payload: bytes
    not_after: float
    """Seconds by the loop's clock after which it is not written any more."""
    number: int | None
    """Number of the hub's message."""
    kept: HeaderPairs
    """Headers of its record."""


class Writes:
    """The messages that write values of one source. A subscriber of the node, from ``start`` to ``close``."""

    persistent = False

    def __init__(
        self, source: str, writes: Mapping[str, Write], writable: Writable, node: SourceContext, topics: Topics
    ) -> None:
        """Subscribe to nothing yet."""
        self.client_id = f"{PUBLISHER_PREFIX}{source}"
        self._source, self._writes, self._writable, self._node, self._topics = source, writes, writable, node, topics
        names = {write.topic or f"{source}/{WRITE_LEVEL}/{name}": name for name, write in writes.items()}
        self._names = {topic.encode(): name for topic, name in names.items()}
        self._subscriptions = [ClientSubscription(self, topic, Subscription(topic), None) for topic in names]
        self._waiting: asyncio.Queue[_Command] = asyncio.Queue(WAITING_MAX)
        self._is_taking = False
        self._task: asyncio.Task[None] | None = None
        self._lines = Repeats()

    def start(self) -> None:
        """Take messages from now on."""
        for each in self._subscriptions:
            self._node.subscriptions.add(each)
        self._is_taking = True
        self._task = asyncio.create_task(self._run(), name=f"writes of {self._source}")

    def stop(self) -> None:
        """Take no more messages, from now on. Those that wait are refused."""
        if not self._is_taking:
            return
        self._is_taking = False
        for each in self._subscriptions:
            self._node.subscriptions.remove(each)
        while not self._waiting.empty():
            self._tell(self._waiting.get_nowait(), "refused", reason="the source was stopped")

    async def close(self) -> None:
        """Take no more messages. One that is being written has a record."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- for subscriptions

    def may_read(self, topic: bytes) -> bool:  # noqa: ARG002
        """Return true: who may publish to the topic may write."""
        return True

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Take a message."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Take a message, or refuse it."""
        loop = asyncio.get_running_loop()
        name, now = self._names[message.topic], self._node.wall_clock()
        if message.publisher is not None and message.publisher.startswith(PUBLISHER_PREFIX):
            # Without a record: with its topic rewritten, the record would be such a message itself, without end.
            self._warn(name, f"ignored: the message is what {message.publisher} has read")
            return
        left_s = min(AGE_S_MAX, (message.expires_ns - now) / 1e9 if message.expires_ns else AGE_S_MAX)
        kept = tuple((header, value) for header, value in message.headers if header == CORRELATION_ID)
        numbers = (value for header, value in message.headers if header == MESSAGE_NUMBER and isinstance(value, int))
        command = _Command(name, message.payload, loop.time() + left_s, next(numbers, None), kept)
        if why := self._why_not(message):
            loop.call_soon(self._refuse, command._replace(payload=b""), why)  # not inside the delivery of this one
        else:
            self._waiting.put_nowait(command)

    def _why_not(self, message: Message) -> str:
        """Return why a message is not even looked at; empty if it is."""
        if message.stream == NOWHERE:
            return "the message is not on disk, as no stream matches its topic. Add the topic to `from` of a stream"
        if message.is_repeat:
            return "the message may be a repetition (DUP). Compare the value, then send another message"
        if message.retain:
            return "the message is retained, and would be a command for each later subscriber. Send it without RETAIN"
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            return f"the payload has {len(message.payload)} bytes; the limit is {PAYLOAD_BYTES_MAX}"
        return f"{WAITING_MAX} messages wait to be written" if self._waiting.full() else ""

    def _refuse(self, command: _Command, why: str) -> None:
        self._tell(command, "refused", reason=why)

    # --- one after the other

    async def _run(self) -> None:
        while True:
            command = await self._waiting.get()
            try:
                await self._write(command)
            except asyncio.CancelledError:
                self._tell(command, "unconfirmed", reason="the source was stopped")
                raise
            except Exception as error:
                log.exception("source %s: a write failed", self._source)
                self._tell(command, "unconfirmed", reason=f"internal fault: {type(error).__name__}")

    async def _write(self, command: _Command) -> None:
        value: Value | None = None
        try:
            if not await self._is_durable(command.not_after):
                raise WriteRefused("the node's log has failed, or is full")
            kind = self._writable.kind(command.name)
            value = value_of(command.payload, kind, self._writes[command.name])
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                found = await self._writable.write(command.name, value, command.not_after)
        except (WriteRefused, SourceDown) as error:
            self._tell(command, "refused", value, reason=str(error))
        except WriteUnconfirmed as error:
            self._tell(command, "unconfirmed", value, reason=str(error))
        except (OSError, TimeoutError) as error:
            self._tell(command, "unconfirmed", value, reason=str(error) or "no answer in time")
        else:
            outcome, reason = "written", ""
            if not found.is_same:
                outcome, reason = "unconfirmed", "what was read back is not what was written"
            self._tell(command, outcome, value, read_back=found.value, reason=reason)

    async def _is_durable(self, not_after: float) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._node.ingest.on_durable(lambda error: None if done.done() else done.set_result(error is None))
        try:
            async with asyncio.timeout_at(not_after):
                return await done
        except TimeoutError:
            raise WriteRefused(TOO_LATE) from None

    def _tell(self, command: _Command, outcome: Any, value: Value | None = None, **more: Any) -> None:
        """Store the record about a message."""
        told = Written(
            source=self._source, write=command.name, outcome=outcome, value=value, message=command.number, **more
        )
        if outcome != "written":
            self._warn(command.name, f"{outcome}: {told.reason}")
        headers: HeaderPairs = ((CONTENT_TYPE, "application/json"), *command.kept)
        try:
            key = self._topics.key(f"{self._source}/{WRITTEN_LEVEL}".encode())
            record = NodeRecord(key, msgspec.json.encode(told), headers=headers, publisher=self.client_id)
            self._node.ingest.publish(record)
        except (LogError, InvalidTopic) as error:
            log.error("source %s: the record of write %s is not kept: %s", self._source, command.name, error)
        except Exception:
            # Messages come from here on, too.
            log.exception("source %s: the record of write %s is not kept", self._source, command.name)

    def _warn(self, name: str, text: str) -> None:
        if (repeated := self._lines.due(name, asyncio.get_running_loop().time())) is not None:
            log.warning("source %s: write %s: %s%s", self._source, name, text, left_out(repeated))
