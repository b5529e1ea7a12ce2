"""A reader of the fields of one complete packet (section 1.5)."""

from __future__ import annotations

from weft.protocols.mqtt.errors import MalformedPacket, ProtocolViolation, ReasonCode
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.topics import InvalidTopic, check_filter, check_topic


class Reader:
    """A reader of one field after another. A field that runs past the packet's end is an error, never a wait for more
    bytes."""

    __slots__ = ("at", "data", "end", "name", "version")

    def __init__(self, data: bytes, at: int, end: int, name: str, version: int) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.name = name
        self.version = version

    def clause(self, before_5: str, in_5: str) -> str:
        """Return the number of a rule in this packet's version."""
        return in_5 if self.version == Version.V5 else before_5

    def take(self, length: int, field: str) -> bytes:
        """Return the next bytes unchanged."""
        start = self.at
        if start + length > self.end:
            raise MalformedPacket(f"{self.name} ends inside its {field}")
        self.at = start + length
        return self.data[start : self.at]

    def u8(self, field: str) -> int:
        """Return a byte."""
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        """Return a two byte integer."""
        return int.from_bytes(self.take(2, field), "big")

    def u32(self, field: str) -> int:
        """Return a four byte integer."""
        return int.from_bytes(self.take(4, field), "big")

    def variable(self, field: str) -> int:
        """Return a variable byte integer; only its shortest form is valid (MQTT 5.0 section 1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8(field)
            value |= (byte & 127) << shift
            if byte < 128:
                if not byte and shift:
                    raise MalformedPacket(f"the {field} of {self.name} is longer than it need be", "1.5.5-1")
                return value
        raise MalformedPacket(f"the {field} of {self.name} is an integer of more than four bytes")

    def binary(self, field: str) -> bytes:
        """Return bytes that follow their length."""
        return self.take(self.u16(field), field)

    def text(self, field: str) -> str:
        """Return UTF-8 text that follows its length."""
        data = self.binary(field)
        try:
            value = data.decode()
        except UnicodeDecodeError:
            clause = self.clause("1.5.3-1", "1.5.4-1")
            raise MalformedPacket(f"the {field} of {self.name} is not UTF-8", clause) from None
        if "\0" in value:
            clause = self.clause("1.5.3-2", "1.5.4-2")
            raise MalformedPacket(f"the {field} of {self.name} holds the null character U+0000", clause)
        return value

    def topic(self, field: str, *, may_be_empty: bool = False) -> bytes:
        """Return a topic name."""
        value = self.text(field)
        if not value and may_be_empty:
            return b""
        try:
            check_topic(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error), code=ReasonCode.TOPIC_NAME_INVALID) from None
        return value.encode()

    def filter(self) -> str:
        """Return a topic filter."""
        value = self.text("topic filter")
        try:
            check_filter(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error), code=ReasonCode.TOPIC_FILTER_INVALID) from None
        return value

    def packet_id(self) -> int:
        """Return a packet identifier."""
        value = self.u16("packet identifier")
        if not value:
            reason, clause = f"{self.name} with packet identifier 0", self.clause("2.3.1-1", "2.2.1-3")
            raise MalformedPacket(reason, clause, ReasonCode.PROTOCOL_ERROR)
        return value

    def code(self, allowed: frozenset[int]) -> int:
        """Return a reason code from the packet's table."""
        value = self.u8("reason code")
        if value not in allowed:
            raise ProtocolViolation(f"{self.name} with reason code {value:#04x}, which it cannot have")
        return value

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(self.end - self.at, "payload")

    def finish(self) -> None:
        """Check that no bytes are left."""
        if self.at != self.end:
            raise MalformedPacket(f"{self.end - self.at} bytes follow the last field of {self.name}")
