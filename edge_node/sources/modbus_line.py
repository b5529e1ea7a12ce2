"""A connection to Modbus devices: registers and the requests for them, one request at a time, and its answer."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from pymodbus.framer import FRAMER_NAME_TO_CLASS, FramerType
from pymodbus.pdu import DecodePDU, ModbusPDU
from pymodbus.pdu.bit_message import ReadCoilsRequest, ReadDiscreteInputsRequest, WriteSingleCoilRequest
from pymodbus.pdu.register_message import (
    ReadHoldingRegistersRequest,
    ReadInputRegistersRequest,
    WriteMultipleRegistersRequest,
    WriteSingleRegisterRequest,
)

from weft.config.sources import ModbusDevice, Register, SerialLine
from weft.edge_node.sources.connection import CONNECT_TIMEOUT_S, SourceDown
from weft.edge_node.sources.status import Reading
from weft.edge_node.sources.writes import REGISTER_FORMATS, shortest

# The library logs each strange answer. A device that always answers so would fill the disk; the source counts, and
# repeats its own lines ever more rarely.
logging.getLogger("pymodbus.logging").setLevel(logging.CRITICAL)

# Registers: the requests that read them, and the values in the answers.

FUNCTIONS = {"coil": 1, "discrete": 2, "holding": 3, "input": 4}
"""Kind -> function code that reads it (Modbus Application Protocol 1.1b3, sections 6.1 to 6.4)."""
BIT_FUNCTIONS = frozenset({1, 2})
_WORD_BITS = 16
_SIGNIFICANT = 15
"""Decimal digits that a double holds: what a factor such as 0.1 leaves behind them is noise."""


class Value(NamedTuple):
    """A named value of a device."""

    name: str
    register: Register

    @property
    def function(self) -> int:
        """Return the function code that reads it."""
        return FUNCTIONS[self.register.kind]

    @property
    def end(self) -> int:
        """Return the address after its last register, or bit."""
        return self.register.address + self.register.width


class Block(NamedTuple):
    """One request, and the values that its answer has."""

    function: int
    address: int
    size: int
    """Registers, or bits."""
    values: tuple[Value, ...]

    def decode(self, data: Sequence[int], into: dict[str, Any]) -> None:
        """Add the values to a dict by name.

        Args:
            data: the answer's registers or bits, at least ``size``.
        """
        if self.function in BIT_FUNCTIONS:
            for name, register in self.values:
                into[name] = bool(data[register.address - self.address])
            return
        plain = struct.pack(f">{self.size}H", *data[: self.size])
        # BADC and CDAB: with the bytes of each word swapped they are ABCD and DCBA.
        swapped = struct.pack(f"<{self.size}H", *data[: self.size])
        for name, register in self.values:
            source = swapped if register.order in ("BADC", "CDAB") else plain
            into[name] = _value(register, source, 2 * (register.address - self.address))


def _value(register: Register, data: bytes, at: int) -> Any:
    kind = register.type or "u16"
    if kind == "text":
        text = data[at : at + 2 * register.width]
        return text.partition(b"\0")[0].rstrip(b" ").decode(errors="replace")
    endian = "<" if register.order in ("CDAB", "DCBA") else ">"
    if kind == "bool":
        (word,) = struct.unpack_from(endian + "H", data, at)
        return bool(word if register.bit is None else word >> register.bit & 1)
    (number,) = struct.unpack_from(endian + REGISTER_FORMATS[kind], data, at)
    if isinstance(number, float):
        if not math.isfinite(number):
            return None  # JSON has no such number, and devices send it for "no value"
        if kind == "f32":
            number = shortest(number)
    if register.scale == 1 and register.offset == 0:
        return number
    scaled = number * register.scale + register.offset
    return float(f"{scaled:.{_SIGNIFICANT}g}") if math.isfinite(scaled) else None


def values_of(device: ModbusDevice) -> tuple[Value, ...]:
    """Return the values of a device, in the order of the configuration."""
    return tuple(Value(name, register) for name, register in device.registers.items())


def blocks(values: Iterable[Value], device: ModbusDevice) -> list[Block]:
    """Return the fewest requests that read some values.

    Values of one kind that follow each other share a request, with at most ``fill`` unused registers between them and
    ``registers_in_request`` in all.
    """
    found: list[Block] = []
    begun: list[Value] = []
    end = 0
    for value in sorted(values, key=lambda each: (each.function, each.register.address)):
        # Requests of bits are bounded as those of words are: 125 registers have 2,000 bits.
        size = _WORD_BITS if value.function in BIT_FUNCTIONS else 1
        if (
            begun
            and value.function == begun[0].function
            and value.register.address <= end + device.fill * size
            and max(end, value.end) - begun[0].register.address <= device.registers_in_request * size
        ):
            begun.append(value)
            end = max(end, value.end)
            continue
        if begun:
            found.append(_block(begun, end))
        begun, end = [value], value.end
    if begun:
        found.append(_block(begun, end))
    return found


def halves(block: Block, device: ModbusDevice) -> list[Block]:
    """Return requests for both halves of a block that the device refused, to find the register that it lacks."""
    middle = len(block.values) // 2
    return [*blocks(block.values[:middle], device), *blocks(block.values[middle:], device)]


def _block(values: list[Value], end: int) -> Block:
    first = values[0].register.address
    return Block(values[0].function, first, end - first, tuple(values))


def words_of(register: Register) -> str:
    """Return kind, address and type of a register, for people."""
    return f"{register.kind} {register.address} {register.type or ('bool' if register.is_bit else 'u16')}"


# One connection to devices: a request, and its answer.
#
# The frames and messages are pymodbus's. Its client is not used: it hides why it cannot connect, raises errors of a
# bad answer into the event loop, and reconnects by itself, while the polls of that time have to be counted here.

PORT = 502
ADU_BYTES = range(3, 255)
"""Lengths that a header of Modbus TCP may announce: unit, function code, and at most 252 bytes of data."""
SILENCE_CHARACTERS = 3.5
SILENCE_S_MIN = 0.00175
"""Silence between two frames of RTU: 3.5 characters, and a constant above 19,200 baud (Modbus over Serial Line 1.02,
section 2.5.1.1)."""
_BITS_OF_CHARACTER = 11
RTU_BYTES_MAX = 520
"""Bytes without a frame after which a line does not speak RTU: two of its longest frames, one of which may be an echo
or noise (section 2.5.1 has 256 bytes)."""
_REQUESTS: dict[int, type[ModbusPDU]] = {
    1: ReadCoilsRequest,
    2: ReadDiscreteInputsRequest,
    3: ReadHoldingRegistersRequest,
    4: ReadInputRegistersRequest,
}
EXCEPTIONS = {
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "server device failure",
    5: "acknowledge",
    6: "server device busy",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}
"""Exception codes (Modbus Application Protocol 1.1b3, section 7)."""
OF_THE_REQUEST = frozenset({1, 2, 3})
"""Codes that refuse what was asked for, and would refuse it again."""


class DeviceRefused(Exception):
    """The device answered with an exception."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exception {code}: {EXCEPTIONS.get(code, 'not in the specification')}")
        self.code = code


class BadAnswer(Exception):
    """The answer does not fit the request."""


class Line(asyncio.Protocol):
    """A connection with one request at a time: hold ``turn`` around requests. Event loop's thread only."""

    def __init__(self, framer: FramerType, reading: Reading, silence_s: float = 0.0) -> None:
        """Wait for ``connection_made``.

        Args:
            silence_s: shortest time between two frames; RTU needs some.
        """
        self._loop = asyncio.get_running_loop()
        self._is_tcp = framer is FramerType.SOCKET
        self._decoder = DecodePDU(False)
        self._framer = FRAMER_NAME_TO_CLASS[framer](self._decoder)
        self._reading = reading
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._heard = 0.0
        self._number = self._unit = 0
        self.turn = asyncio.Lock()
        """Held by whose turn it is. It is given in the order in which it is asked for."""
        self._answer: asyncio.Future[ModbusPDU] | None = None
        self.stray = ""
        """Part of an error about the last frame that answered something else; empty if there was none."""
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Set to the reason once the connection has ended."""

    async def read(self, unit: int, block: Block, timeout_s: float) -> list[int]:
        """Return the registers or bits of a block.

        Raises:
            TimeoutError: no answer.
            DeviceRefused, BadAnswer, SourceDown: as they say.
        """
        request = _REQUESTS[block.function](dev_id=unit, address=block.address, count=block.size)
        answer = await self.ask(request, timeout_s)
        if answer.isError():
            raise DeviceRefused(answer.exception_code)
        if answer.function_code != block.function:
            raise self._bad(f"answered with function {answer.function_code}, asked for {block.function}")
        is_bits = block.function in BIT_FUNCTIONS
        data = list(answer.bits if is_bits else answer.registers)
        if len(data) != (-(-block.size // 8) * 8 if is_bits else block.size):
            raise self._bad(f"answered with {len(data)} of {block.size} {'bits' if is_bits else 'registers'}")
        return data

    async def write(self, unit: int, register: Register, words: list[int], timeout_s: float) -> None:
        """Write the registers, or the bit, of a value.

        Raises:
            TimeoutError: no answer.
            DeviceRefused, BadAnswer, SourceDown: as they say.
        """
        request: ModbusPDU
        if register.is_bit:
            request = WriteSingleCoilRequest(dev_id=unit, address=register.address, bits=[bool(words[0])])
        elif len(words) == 1:
            request = WriteSingleRegisterRequest(dev_id=unit, address=register.address, registers=words)
        else:
            request = WriteMultipleRegistersRequest(dev_id=unit, address=register.address, registers=words)
        answer = await self.ask(request, timeout_s)
        if answer.isError():
            raise DeviceRefused(answer.exception_code)
        if answer.function_code != request.function_code or answer.address != register.address:
            raise self._bad(f"answered with function {answer.function_code}, asked for {request.function_code}")

    async def ask(self, request: ModbusPDU, timeout_s: float) -> ModbusPDU:
        """Send a request, and return its answer, which may be an exception.

        A line of RTU is left alone for as long again after a timeout; what arrives meanwhile is dropped. It ends if the
        request is given up before: a late answer could pass for that to the next one.

        Raises:
            TimeoutError: no answer.
            BadAnswer: the answer cannot be decoded.
            SourceDown: the connection has ended.
        """
        if self._silence_s and (wait := self._heard + self._silence_s - self._loop.time()) > 0:
            await asyncio.sleep(wait)
        if self.ended.done() or self._transport is None:
            raise SourceDown(self.ended.result() if self.ended.done() else "the connection is not open")
        self._number = self._number % 0xFFFF + 1 if self._is_tcp else 0
        self._unit, request.transaction_id = request.dev_id, self._number
        self.stray = ""
        if not self._is_tcp:
            self._buffer = b""
        answer: asyncio.Future[ModbusPDU] = self._loop.create_future()
        self._answer = answer
        self._reading.requests += 1
        self._transport.write(self._framer.buildFrame(request))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._answer = None
            if not self._is_tcp:
                # RTU has no numbers, so a late answer could pass for that to the next request, of whatever block.
                await asyncio.wait([self.ended], timeout=timeout_s)
            raise
        except asyncio.CancelledError:
            if not self._is_tcp:
                self.end("a request was given up before its answer")
            raise
        finally:
            self._answer = None

    def _bad(self, what: str) -> BadAnswer:
        self._reading.bad_answers += 1
        return BadAnswer(what)

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready for requests."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Find the answer in the data of a read."""
        self._heard = self._loop.time()
        if not self._is_tcp and (self._answer is None or self._answer.done()):
            self._strayed("data that came later")
            return
        self._buffer += data
        if not self._is_tcp and len(self._buffer) > RTU_BYTES_MAX:
            self._reading.bad_answers += 1
            self.end(f"what answers does not speak Modbus RTU: it sent more than {RTU_BYTES_MAX} bytes without a frame")
            return
        while self._buffer:
            if self._is_tcp and (why := _broken_header(self._buffer)):
                self._reading.bad_answers += 1
                self.end(f"what answers does not speak Modbus TCP: {why}")
                return
            used, unit, number, pdu = self._framer.decode(self._buffer)
            if not used:
                return
            self._buffer = self._buffer[used:]
            self._frame(unit, number, pdu)

    def _frame(self, unit: int, number: int, pdu: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self._reading.bad_answers += 1
        elif not pdu:
            self._strayed("a frame with a wrong checksum")
        elif number != self._number:
            self._strayed("an answer to another request")
        elif unit != self._unit:
            self._strayed(f"an answer of unit {unit}")
        elif (decoded := self._decoder.decode(pdu)) is None:
            answer.set_exception(self._bad("answered with something else than Modbus"))
        else:
            answer.set_result(decoded)

    def _strayed(self, what: str) -> None:
        self._reading.bad_answers += 1
        self.stray = what

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.end(f"the connection was lost: {exc}" if exc else "the other side closed the connection")

    def end(self, reason: str) -> None:
        """Close the connection, once."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(SourceDown(reason))
        if self._transport is not None:
            self._transport.close()


def _broken_header(data: bytes) -> str:
    """Return why the beginning of the data is no header of Modbus TCP; empty if it is, or is too short to tell."""
    if len(data) < 6:
        return ""
    protocol, length = struct.unpack_from(">HH", data, 2)
    if protocol:
        return f"the protocol in its header is {protocol}, not 0"
    return "" if length in ADU_BYTES else f"its header announces {length} bytes"


async def open_line(url: str, serial: SerialLine, reading: Reading) -> Line:
    """Connect to the devices.

    Raises:
        OSError, TimeoutError: there is no connection.
    """
    loop, target = asyncio.get_running_loop(), urlsplit(url)
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        if target.scheme == "serial":
            # Imported here, as it needs pyserial.
            from pymodbus.transport.serialtransport import create_serial_connection

            silence_s = max(SILENCE_S_MIN, SILENCE_CHARACTERS * _BITS_OF_CHARACTER / serial.baud_rate)
            _, protocol = await create_serial_connection(
                loop,
                lambda: Line(FramerType.RTU, reading, silence_s),
                target.path,
                baudrate=serial.baud_rate,
                bytesize=serial.data_bits,
                parity=serial.parity[0].upper(),
                stopbits=serial.stop_bits,
                timeout=0,
            )
            await asyncio.sleep(0)  # the transport calls ``connection_made`` in the next turn of the loop
            await asyncio.sleep(0)
            return cast(Line, protocol)
        framer = FramerType.SOCKET if target.scheme == "tcp" else FramerType.RTU
        _, line = await loop.create_connection(
            lambda: Line(framer, reading, 0.0 if framer is FramerType.SOCKET else SILENCE_S_MIN),
            target.hostname or "",
            target.port or PORT,
        )
        return line
