"""Modbus devices as a source: polled on a schedule, and every poll is a record once or lies in a gap with a name.

A device sends nothing of its own accord and keeps nothing: a value that was not read is gone. The schedule does
not stop with the connection, and each of its polls is accounted for: stored, or missed for a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from weft.config.log_lines import left_out
from weft.config.sources import ModbusDevice, ModbusSource, Register
from weft.edge_node.sources.connection import AnyConnection, Runner, SourceConnection, SourceContext, SourceDown
from weft.edge_node.sources.modbus_line import (
    OF_THE_REQUEST,
    BadAnswer,
    Block,
    DeviceRefused,
    Line,
    Value,
    blocks,
    halves,
    open_line,
    values_of,
    words_of,
)
from weft.edge_node.sources.notices import GapFile, Gaps, gap_topic
from weft.edge_node.sources.status import Rate, Reading, SourceStatus
from weft.edge_node.sources.writes import TOO_LATE, ReadBack, WriteRefused, WriteUnconfirmed, check_same, encoded
from weft.edge_node.sources.writes import Value as WrittenValue

log = logging.getLogger(__name__)

# The devices of a source, and the schedule of their polls.

REFUSED_RETRY_S = 60.0
"""Time after which a register that the device refused is tried again."""
BACKOFF_DOUBLINGS_MAX = 16
AWAY_SHARE = 4
"""After the poll of a device that is away, others have this many times as long before the next one: devices that are
away cost a fifth of the line's time at most."""


@dataclass(slots=True)
class Refused:
    """A register that the device refuses to read."""

    reason: str
    retry_at: float
    """Seconds by the loop's clock."""


@dataclass(slots=True)
class Device:
    """A device and its place in the schedule. Times in seconds by the loop's clock."""

    number: int
    name: str
    settings: ModbusDevice
    first: float
    """Time of poll 0; poll N is N intervals later."""
    values: tuple[Value, ...]
    items: tuple[str, ...]
    """Topics of the values, below the source's."""
    blocks: list[Block] = field(default_factory=list)
    refused: dict[str, Refused] = field(default_factory=dict)
    next: int = 0
    """Number of the next poll that is not accounted for."""
    failures: int = 0
    """Failed polls in a row."""
    not_before: float = 0.0
    quiet_until: float = 0.0
    """Time before which its unit is asked nothing, since an answer may still come."""
    stored: int = 0
    """Polls that are durable."""

    @property
    def due(self) -> float:
        """Return the time of the next poll."""
        return self.first + self.next * self.settings.every_s

    def left_out(self, now: float) -> int:
        """Return the number of polls whose time is over: the next one's is not."""
        return max(0, int((now - self.first) / self.settings.every_s + 1e-9) - self.next)

    def plan(self) -> None:
        """Make the requests for all values that the device does not refuse."""
        self.blocks = blocks((value for value in self.values if value.name not in self.refused), self.settings)

    async def read(self, line: Line, reading: Reading) -> dict[str, Any]:
        """Read all values that the device has. What it refuses is then in ``refused``.

        Raises:
            TimeoutError, DeviceRefused, BadAnswer, SourceDown: there are no values.
        """
        now = asyncio.get_running_loop().time()
        again = [value for value in self.values if (each := self.refused.get(value.name)) and each.retry_at <= now]
        waiting, done = deque([*self.blocks, *(blocks([value], self.settings)[0] for value in again)]), list[Block]()
        found: dict[str, Any] = {}
        while waiting:
            block = waiting.popleft()
            try:
                async with line.turn:
                    data = await line.read(self.settings.unit_id, block, self.settings.timeout_s)
            except DeviceRefused as error:
                reading.exceptions += 1
                if error.code not in OF_THE_REQUEST:
                    raise
                # One register that the device lacks spoils the whole request.
                if len(block.values) > 1:
                    waiting.extendleft(reversed(halves(block, self.settings)))
                else:
                    self.refused[block.values[0].name] = Refused(str(error), now + REFUSED_RETRY_S)
                continue
            block.decode(data, found)
            done.append(block)
        self.blocks = done
        if back := [value.name for value in again if value.name in found]:
            for name in back:
                del self.refused[name]
            self.plan()
        return found


def no_answer(device: Device, line: Line) -> str:
    """Return the reason of a timeout."""
    return f"no answer within {device.settings.timeout_s:g} s" + (f", but {line.stray}" if line.stray else "")


class Schedule:
    """The devices of a line, and whose turn it is."""

    def __init__(self, settings: ModbusSource, now: float) -> None:
        """Spread the first polls over the interval of each device."""
        count = len(settings.devices)
        self.devices = [
            Device(
                number,
                name,
                each,
                now + each.every_s * number / count,
                values_of(each),
                tuple(f"{name}/{register}" for register in each.registers),
            )
            for number, (name, each) in enumerate(settings.devices.items())
        ]
        for device in self.devices:
            device.plan()
        self._retry_max_s = settings.retry_max_s
        self._away_at = 0.0
        """Time before which no device is polled that is away."""

    def turn(self) -> tuple[Device, float]:
        """Return the device that waits for longest, or will be the first, and the time of its turn."""
        turns = [(max(device.due, device.quiet_until, *self._waits(device)), device.number) for device in self.devices]
        at, number = min(turns)
        return self.devices[number], at

    def _waits(self, device: Device) -> tuple[float, ...]:
        return (device.not_before, self._away_at) if device.failures else ()

    def timed_out(self, device: Device, now: float) -> None:
        """Have nothing asked of a unit for a while, in whatever entries it has: a gateway may take the late answer to
        one request for that to the next."""
        for each in self.devices:
            if each.settings.unit_id == device.settings.unit_id:
                each.quiet_until = now + device.settings.timeout_s

    def failed(self, device: Device, begun: float, now: float) -> None:
        """Leave a device alone for a while, longer after each failure."""
        device.failures += 1
        every_s = device.settings.every_s
        wait_s = min(max(self._retry_max_s, every_s), every_s * 2 ** min(device.failures - 1, BACKOFF_DOUBLINGS_MAX))
        device.not_before = now + max(wait_s, device.settings.timeout_s)
        self._away_at = now + AWAY_SHARE * (now - begun)


# The way of records into the log.

_ANSWER = struct.Struct(">BIQ")
"""Acknowledgement of a record: what it is, number of the device or notice, time in ns since 1970."""
_POLL, _PART, _NOTICE = range(3)
"""``_PART`` is a record of a poll before its last one."""


class Intake(SourceConnection):
    """The source as a publisher. It outlives connections to devices, and ends when the log refuses a record."""

    def __init__(self, runner: ModbusRunner) -> None:
        super().__init__(runner.node, runner.status, runner.topics, runner.memory)
        self._runner = runner
        self.free = asyncio.Event()
        """Set while records may come."""
        self.free.set()
        self.polls: deque[tuple[int, int]] = deque()
        """Polls that are not durable yet: device, and time in ns since 1970."""
        self.join()

    def acknowledge(self, answers: bytes) -> None:
        """Note what is durable."""
        if self.ended.done():
            return  # these polls were counted as missed
        count = 0
        for kind, number, at in _ANSWER.iter_unpack(answers):
            count += 1
            if kind == _NOTICE:
                self._runner.gaps.durable(number)
            elif kind == _POLL:
                self.polls.popleft()
                self._runner.stored(number, at)
        self.status.acknowledged += count
        self.status.unacknowledged = max(0, self.status.unacknowledged - count)
        self._loop.call_soon(self._runner.tell)

    def pause(self) -> None:
        """Have no more polls."""
        self.free.clear()

    def resume(self) -> None:
        """Have polls again."""
        self.free.set()

    def end(self, reason: str) -> None:
        """End, once: what is not durable by now was not stored."""
        if not self.ended.done():
            super().end(reason)
            self.free.set()
            self._runner.not_stored(self.polls, reason)


# A source of Modbus devices while the node runs.

LATE = "the line, or the node, was too slow for the interval"
BEHIND = "the node's disk was behind"
FIRST_SAVE_S = 1.0
SAVE_S = 10.0
"""Interval at which the file of gaps is written: after a crash the gap is named so much longer than it was."""
SILENT_MAX = 3
"""Requests in a row without any answer, from no device, after which the node connects again."""


class LineConnection(AnyConnection):
    """A connection to the devices, with the task that polls them."""

    def __init__(self, runner: ModbusRunner, line: Line) -> None:
        super().__init__(runner.status, runner.node.wall_clock)
        self.line = line
        self._task = asyncio.create_task(self._poll(runner), name=f"polls of {runner.status.name}")
        line.ended.add_done_callback(lambda ended: self.end(ended.result()))

    async def _poll(self, runner: ModbusRunner) -> None:
        try:
            await runner.poll(self.line)
        except SourceDown as error:
            self.end(str(error))
        except Exception as error:
            log.exception("source %s: the polls failed", runner.status.name)
            self.end(f"internal fault: {type(error).__name__}. The log has more")

    def end(self, reason: str) -> None:
        """End the polls and the connection, once."""
        if self.ended.done():
            return
        super().end(reason)
        self._task.cancel()
        self.line.end(reason)


class ModbusRunner(Runner):
    """The polls of one source."""

    def __init__(
        self, settings: ModbusSource, status: SourceStatus, node: SourceContext, rng: random.Random, file: GapFile
    ) -> None:
        """Use checked settings."""
        super().__init__(settings, (settings.url,), status, node, rng)
        self._modbus = settings
        self._file = file
        self.gaps = Gaps(status.name, settings.notice_after)
        self._reading, self._values = Reading(self.gaps), Rate()
        status.reading, status.values = self._reading, self._values
        self._schedule = Schedule(settings, self._loop.time())
        self._intake: Intake | None = None
        self._down = "the source was starting"
        self._encode = msgspec.json.Encoder().encode

    async def run(self) -> None:
        """Serve until cancelled, as every source does, with the gaps of the last run."""
        every = {device.name: device.settings.every_s for device in self._schedule.devices}
        items = {item: every[device.name] for device in self._schedule.devices for item in device.items}
        self.gaps.restore(await asyncio.to_thread(self._file.read), every | items, self.node.wall_clock())
        self._schedule = Schedule(self._modbus, self._loop.time())
        saving = asyncio.create_task(self._save_often(), name=f"gaps of {self.status.name}")
        try:
            await super().run()
        finally:
            saving.cancel()
            if self._intake is not None:
                await self._intake.settle()
            await self._save()

    async def connect(self, url: str) -> LineConnection:
        """Connect, and start the polls.

        Raises:
            OSError, TimeoutError: there is no connection.
        """
        line = await open_line(url, self._modbus.serial, self._reading)
        self._account(self._down)
        return LineConnection(self, line)

    async def close(self, connection: AnyConnection) -> None:
        """Stop the polls, and disconnect."""
        connection.end("the source was stopped")

    async def _wait(self, url: str, reason: str) -> None:
        self._down = reason
        self._account(reason)
        self.tell()
        await super()._wait(url, reason)

    # --- writes

    def kind(self, name: str) -> str:
        """Return the type of a register that messages may write."""
        register = self._register(name)
        return register.type or ("bool" if register.is_bit else "u16")

    def _register(self, name: str) -> Register:
        write = self._modbus.writes[name]
        return self._modbus.devices[write.device].registers[write.register]

    async def write(self, name: str, value: WrittenValue, not_after: float) -> ReadBack:
        """Write a register, between the polls, and read it back. As ``Writable``."""
        write, register = self._modbus.writes[name], self._register(name)
        words, found = encoded(register, value), dict[str, Any]()
        device = next(each for each in self._schedule.devices if each.name == write.device)
        (block,) = blocks([Value(name, register)], device.settings)
        block.decode(words, found)
        check_same(value, found[name], self.kind(name), write, register.offset)
        if not isinstance(self.connection, LineConnection) or self.connection.ended.done():
            raise SourceDown("the source is not connected")
        line = self.connection.line
        async with line.turn:
            now = self._loop.time()
            if now > not_after:
                raise WriteRefused(TOO_LATE)
            if device.failures or now < device.quiet_until:
                # It would cost the polls of the others a timeout, and might be written once it is forgotten.
                raise WriteRefused(f"{device.name} does not answer")
            data = await self._written(line, device, block, words)
        block.decode(data, found)
        return ReadBack(found[name], data[: block.size] == words)

    async def _written(self, line: Line, device: Device, block: Block, words: list[int]) -> list[int]:
        """Write the registers, or the bit, of one value, and return what is read back."""
        unit, timeout_s = device.settings.unit_id, device.settings.timeout_s
        try:
            await line.write(unit, block.values[0].register, words, timeout_s)
        except DeviceRefused as error:
            self._reading.exceptions += 1
            if error.code in OF_THE_REQUEST:
                raise WriteRefused(str(error)) from None
            raise WriteUnconfirmed(str(error)) from None
        except (TimeoutError, BadAnswer, SourceDown) as error:
            raise self._unconfirmed(device, error) from None
        try:
            return [int(each) for each in await line.read(unit, block, timeout_s)]
        except (TimeoutError, BadAnswer, SourceDown, DeviceRefused) as error:
            raise self._unconfirmed(device, error) from None

    def _unconfirmed(self, device: Device, error: Exception) -> WriteUnconfirmed:
        if isinstance(error, TimeoutError):
            self._reading.timeouts += 1
            self._schedule.timed_out(device, self._loop.time())
        return WriteUnconfirmed(str(error) or f"no answer within {device.settings.timeout_s:g} s")

    # --- polls

    async def poll(self, line: Line) -> None:
        """Poll the devices, each in its turn, until cancelled.

        Raises:
            SourceDown: the connection has ended, or should end.
        """
        silent = 0
        while True:
            self.tell()
            intake = self._intake_now()
            if intake.is_held:
                await intake.free.wait()
                self._account(BEHIND)
                continue
            device, at = self._schedule.turn()
            if (wait := at - self._loop.time()) > 0:
                await asyncio.sleep(wait)
                continue
            silent = 0 if await self._poll_one(line, device) else silent + 1
            if silent >= SILENT_MAX and all(each.failures for each in self._schedule.devices):
                raise SourceDown(f"no device answers; the last {silent} requests timed out")

    async def _poll_one(self, line: Line, device: Device) -> bool:
        """Poll a device. Return whether it answered."""
        begun = self._loop.time()
        missed, since = device.left_out(begun), self._wall(device.due)
        device.next += missed
        due = self._wall(device.due)
        device.next += 1
        try:
            values = await device.read(line, self._reading)
        except TimeoutError:
            self._reading.timeouts += 1
            self._schedule.timed_out(device, self._loop.time())
            reason, answered = no_answer(device, line), False
        except (DeviceRefused, BadAnswer) as error:
            reason, answered = str(error), True
        except BaseException as error:
            # The connection has ended, or the source: this poll was begun, so nothing else counts it.
            ended = line.ended.result() if line.ended.done() else "the source was stopped"
            self._left_out(device, since, missed)
            self._missed(device, str(error) or ended, due, 1)
            raise
        else:
            self._taken(device, values, since, missed, due)
            return True
        self._left_out(device, since, missed)
        self._missed(device, reason, due, 1)
        self._schedule.failed(device, begun, self._loop.time())
        self._say_failed(device, reason)
        return answered

    def _taken(self, device: Device, values: dict[str, Any], since: int, missed: int, due: int) -> None:
        """Store the values of a poll."""
        now, name = self.node.wall_clock(), device.name
        for register, refused in device.refused.items():
            self.gaps.miss(f"{name}/{register}", (f"{name}/{register}",), refused.reason, due)
            self.status.last_error, self.status.last_error_time = f"{name}/{register}: {refused.reason}", now
        if name in self.gaps.open:
            self._left_out(device, since, missed)
        elif missed:
            self.gaps.missed_between(device.items, LATE, since, now, missed)
        if device.failures:
            self._say_back(device)
            device.failures = 0
        if not values:
            return  # each of its registers is in a gap
        self._values.count(len(values), self._loop.time())
        intake = self._intake_now()
        if why := self._publish(intake, device, values, now):
            self._missed(device, f"its records are refused: {why}", due, 1)
        else:
            intake.polls.append((device.number, now))
        self.node.ingest.batch.gathered()

    def _publish(self, intake: Intake, device: Device, values: dict[str, Any], now: int) -> str | None:
        topic = f"{self.status.name}/{device.name}"
        if self._modbus.records == "device":
            return intake.take(topic.encode(), self._encode(values), _ANSWER.pack(_POLL, device.number, now))
        for left, (name, value) in zip(range(len(values) - 1, -1, -1), values.items(), strict=True):
            answer = _ANSWER.pack(_PART if left else _POLL, device.number, now)
            if why := intake.take(f"{topic}/{name}".encode(), self._encode(value), answer):
                return why
        return None

    def _intake_now(self) -> Intake:
        if self._intake is None or self._intake.ended.done():
            self._intake = Intake(self)
        return self._intake

    # --- what is stored, and what is missed

    def stored(self, number: int, at: int) -> None:
        """Note that a poll is durable."""
        device = self._schedule.devices[number]
        device.stored += 1
        self.gaps.reached(device.name, device.items, at)
        self.status.value_time = at
        if self.gaps.open:
            self.gaps.close(device.name, at)
            for value, item in zip(device.values, device.items, strict=True):
                if value.name not in device.refused:
                    self.gaps.close(item, at)

    def not_stored(self, polls: deque[tuple[int, int]], reason: str) -> None:
        """Count polls that the log refused, and have the notices written again."""
        while polls:
            number, at = polls.popleft()
            self._missed(self._schedule.devices[number], reason, at, 1)
        self.gaps.again()
        self.status.last_error, self.status.last_error_time = reason, self.node.wall_clock()

    def _missed(self, device: Device, reason: str, since: int, count: int) -> None:
        self.gaps.miss(device.name, device.items, reason, since, count)

    def _left_out(self, device: Device, since: int, count: int) -> None:
        """Count the polls between two of a device: it was left alone after a failure, or the line was too slow."""
        if count:
            gap = self.gaps.open.get(device.name)
            self._missed(device, gap.reasons[-1] if gap is not None else LATE, since, count)

    def _account(self, reason: str) -> None:
        """Count the polls that were left out until now."""
        now = self._loop.time()
        for device in self._schedule.devices:
            if count := device.left_out(now):
                self._missed(device, reason, self._wall(device.due), count)
                device.next += count

    def tell(self) -> None:
        """Write the notices that are due."""
        for number, content in self.gaps.due():
            why = self._intake_now().take(gap_topic(self.status.name), content, _ANSWER.pack(_NOTICE, number, 0))
            if why is not None:
                self.gaps.durable(number)  # no stream takes it, which the log of the node says
            self.node.ingest.batch.gathered()

    async def _save_often(self) -> None:
        # Soon after the start, so that the gap before it does not appear again after a crash.
        wait_s = FIRST_SAVE_S
        while True:
            await asyncio.sleep(wait_s)
            await self._save()
            wait_s = SAVE_S

    async def _save(self) -> None:
        with contextlib.suppress(OSError):  # the log itself says when the disk fails
            await asyncio.to_thread(self._file.write, self.gaps.state())

    # --- for people

    def _wall(self, at: float) -> int:
        """Return the time since 1970 of a time by the loop's clock."""
        return self.node.wall_clock() - int((self._loop.time() - at) * 1e9)

    def _say_failed(self, device: Device, reason: str) -> None:
        status = self.status
        status.last_error, status.last_error_time = f"{device.name}: {reason}", self.node.wall_clock()
        repeated = self.memory.lines.due(device.name, self._loop.time())
        if repeated is not None:
            log.warning("source %s: %s: %s%s", status.name, device.name, reason, left_out(repeated))

    def _say_back(self, device: Device) -> None:
        gap = self.gaps.open.get(device.name)
        missed = gap.missed if gap is not None else 0
        if self.memory.lines.due(f"{device.name} again", self._loop.time()) is not None:
            log.info("source %s: %s answers again, %d polls were missed", self.status.name, device.name, missed)


# One read of everything, for people who set up a source.


class ReadValue(NamedTuple):
    """A value as ``weft edge test-source`` shows it."""

    item: str
    value: Any
    unit: str
    register: str
    """Kind, address and type."""
    trouble: str
    """Reason why the value is missing; empty if it is there."""


async def read_once(settings: ModbusSource) -> tuple[list[ReadValue], int]:
    """Read every value of a source once. Return the values, and the number of requests.

    Raises:
        OSError, TimeoutError, SourceDown: there is no connection.
    """
    reading, found = Reading(Gaps("")), list[ReadValue]()
    line = await open_line(settings.url, settings.serial, reading)
    try:
        for device in Schedule(settings, 0.0).devices:
            values, trouble = dict[str, Any](), ""
            try:
                values = await device.read(line, reading)
            except TimeoutError:
                trouble = no_answer(device, line)
            except (DeviceRefused, BadAnswer) as error:
                trouble = str(error)
            for (name, register), item in zip(device.values, device.items, strict=True):
                refused = device.refused.get(name)
                why = "" if name in values else trouble or (refused.reason if refused is not None else "")
                found.append(ReadValue(item, values.get(name), register.unit or "", words_of(register), why))
    finally:
        line.end("everything is read")
    return found, reading.requests
