"""Program of the process that runs a user's code: ``python -I -m weft.functions.python_worker``.

It imports little, so that it starts fast: from the project, only the modules that its messages need.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, MutableMapping
from types import NoneType
from typing import Any

import msgspec

from weft.functions.python_protocol import (
    ANSWER_BYTES_ENOUGH,
    EXIT_NO_MEMORY,
    LENGTH,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    Answering,
    Asked,
    Begin,
    Broken,
    Put,
    Ready,
    Record,
    ToProcess,
    framed,
    waited_s,
)

# State of a user's code: a mapping that outlives the process, because each answer contains the changes.

KEY_CHARACTERS_MAX = 256
_LIST_OF_ONE = b"\x91"
"""First byte of a list with one value in MessagePack."""


class StateFull(ValueError):
    """A call would make the state larger than the stream's settings allow."""


class PersistedState(MutableMapping[str, Any]):
    """A mapping with changes per call: kept at the end of a successful call, undone after a failed one.

    A list or mapping that was read may be changed in place, so values are compared as bytes, before and after a call.
    """

    def __init__(self, encode: Callable[[Any], bytes], bytes_max: int) -> None:
        self._encode = encode
        self._bytes_max = bytes_max
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._before: dict[str, bytes | None] = {}
        """Keys that this call has touched, each with the value that it had; None for a key that did not exist."""
        self._changes: dict[str, msgspec.Raw | None] = {}

    def put(self, wrapped: dict[str, list[Any]]) -> None:
        """Begin from these values, each in a list of its own."""
        values = self._values = {key: value for key, (value,) in wrapped.items()}
        self._sizes = {key: len(key) + len(self._encode(value)) for key, value in values.items()}
        self._bytes = sum(self._sizes.values())
        self._before = {}
        self._changes = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if type(value) in (list, dict):
            self._touch(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str) or len(key) > KEY_CHARACTERS_MAX:
            raise TypeError(f"a key of ctx.state is a text of at most {KEY_CHARACTERS_MAX} characters, got {key!r:.80}")
        if isinstance(value, tuple | set | frozenset):
            raise TypeError(f"ctx.state cannot keep a {type(value).__name__}: keep a list")
        self._touch(key)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self._values:
            raise KeyError(key)
        self._touch(key)
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _touch(self, key: str) -> None:
        if key not in self._before:
            self._before[key] = self._encode(self._values[key]) if key in self._values else None

    def keep(self) -> None:
        """End a call that succeeded.

        Raises:
            StateFull: the state would grow beyond its bound. The call must be undone. TypeError: a value cannot be
                kept. The call must be undone.
        """
        if not self._before:
            return
        after = {key: self._encode(self._values[key]) if key in self._values else None for key in self._before}
        sizes = {key: 0 if packed is None else len(key) + len(packed) for key, packed in after.items()}
        grown = self._bytes + sum(size - self._sizes.get(key, 0) for key, size in sizes.items())
        if grown > self._bytes_max and grown > self._bytes:
            raise StateFull(
                f"ctx.state would have {grown:,} bytes, and {self._bytes_max:,} are allowed: delete what is no longer "
                "needed, or raise `state`"
            )
        self._bytes = grown
        for key, packed in after.items():
            self._sizes[key] = sizes[key]
            if packed is None:
                self._sizes.pop(key)
            if packed != self._before[key]:
                self._changes[key] = None if packed is None else msgspec.Raw(_LIST_OF_ONE + packed)
        self._before = {}

    def undo(self) -> None:
        """End a failed call: restore the state from before it."""
        for key, packed in self._before.items():
            if packed is None:
                self._values.pop(key, None)
            else:
                self._values[key] = msgspec.msgpack.decode(packed)
        self._before = {}

    def take_changes(self) -> dict[str, msgspec.Raw | None]:
        """Return the changes of the calls since the last ``take_changes``: each value in a list of its own, so that
        None is a value, too; None for deleted keys."""
        changes, self._changes = self._changes, {}
        return changes


# A user's code in its process: loading it, and calling it for each record or each batch, with a limit on time.

REASON_CHARACTERS_MAX = 500
_NOTHING = msgspec.Raw(b"\xc0")
_STARVED_S = 0.01


class OutOfTime(BaseException):
    """A call took longer than it may. Not an ``Exception``, so that ``except Exception`` does not catch it."""


class Fields(dict[str, Any]):
    """The values of a record, with its other properties as attributes."""

    __slots__ = ("input", "key", "levels", "time", "time_ns")

    def __init__(self, record: Record) -> None:
        super().__init__(record.values)
        self.key = record.key.decode(errors="replace")
        self.levels = record.levels
        self.time_ns = record.time
        self.time = record.time / 10**9
        self.input = record.input


class CallContext:
    """The second argument of a user's code, ``ctx``: the state, log and facts beside the records."""

    def __init__(self, stream: str, state: PersistedState) -> None:
        self.stream = stream
        """Name of the derived stream."""
        self.state = state
        """Mapping that outlives the process and the node."""
        self.key = ""
        """Topic of the record; in a function for batches each record has its own."""
        self.time = 0.0
        """Seconds since 1970 at which the node received the record."""
        self.levels: dict[str, str] = {}
        """Named levels of the record's topic."""
        self._lines: list[str] = []
        self._lines_left_out = 0

    def log(self, *values: object) -> None:
        """Write a line to the node's log. Lines beyond the bound are left out and counted."""
        if len(self._lines) < LINES_MAX:
            self._lines.append(" ".join(map(str, values))[:LINE_CHARACTERS_MAX])
        else:
            self._lines_left_out += 1

    def take_lines(self) -> tuple[list[str], int]:
        """Return the lines since the last call, and the number of those left out."""
        taken = self._lines, self._lines_left_out
        self._lines, self._lines_left_out = [], 0
        return taken


class UserCode:
    """The loaded code.

    Raises:
        Exception: anything that the code raises while it is loaded; ``LookupError`` when the function is missing.
    """

    def __init__(self, begin: Begin, clock: Callable[[], float] = time.monotonic) -> None:
        self._encoder = _ENCODER
        self._begin = begin
        self._clock = clock
        self._process_id = os.getpid()
        self.state = PersistedState(lambda value: self._encoder.encode(plain(value)), begin.state_bytes)
        self._context = CallContext(begin.stream, self.state)
        self._limit = _TimeLimit(begin.timeout_s)
        self._module = _load(begin)
        call = getattr(self._module, begin.function, None)
        if not callable(call):
            raise LookupError(f"has no function {begin.function}")
        self._call: Callable[..., Any] = call
        if callable(setup := getattr(self._module, "setup", None)):
            setup(self._context)

    def answer(self, records: list[Record]) -> Answering:
        """Return the results of some records, or of the first of them when they take long or are large.

        Raises:
            MemoryError: the code needed more memory than allowed; the process must end.
        """
        self._limit.begin()
        results, failed = self._whole(records) if self._begin.by_batch else (self._one_by_one(records), "")
        lines, left_out = self._context.take_lines()
        return Answering(results, self.state.take_changes(), lines, left_out, failed)

    def _one_by_one(self, records: list[Record]) -> list[msgspec.Raw]:
        # An answer is due after a fraction of the limit, so that many slow records do not end the process.
        enough_at = self._clock() + self._begin.timeout_s / 4
        results: list[msgspec.Raw] = []
        size = 0
        context, call = self._context, self._call
        for record in records:
            fields = Fields(record)
            context.key, context.time, context.levels = fields.key, fields.time, fields.levels
            result = self._guarded(call, fields)
            results.append(result)
            size += len(result)
            if size > ANSWER_BYTES_ENOUGH or self._clock() > enough_at:
                break
        return results

    def _guarded(self, call: Callable[..., Any], fields: Fields) -> msgspec.Raw:
        try:
            with self._limit:
                result = call(fields, self._context)
            self._end_forks()
            packed = self._pack(result)
            self.state.keep()
        except MemoryError:
            raise
        except BaseException as error:  # also SystemExit, KeyboardInterrupt and OutOfTime
            self._end_forks()
            self.state.undo()
            return msgspec.Raw(self._encoder.encode(self.reason(error)))
        return packed

    def _whole(self, records: list[Record]) -> tuple[list[msgspec.Raw], str]:
        batch = [Fields(record) for record in records]
        try:
            with self._limit:
                results = self._call(batch, self._context)
            self._end_forks()
            if not isinstance(results, list | tuple) or len(results) != len(batch):
                raise TypeError(
                    f"{self._begin.function} has to return a list with one entry for each of the {len(batch)} records"
                )
            packed = [self._pack(result) for result in results]
            if sum(map(len, packed)) > max(ANSWER_BYTES_ENOUGH, self._begin.result_bytes):
                raise ValueError(f"the results have more than {ANSWER_BYTES_ENOUGH:,} bytes together")
            self.state.keep()
        except MemoryError:
            raise
        except BaseException as error:
            self._end_forks()
            self.state.undo()
            return [], self.reason(error)
        return packed, ""

    def _end_forks(self) -> None:
        # A copy of the process by os.fork returns from the call as well; only one of them may answer.
        if os.getpid() != self._process_id:
            os._exit(0)

    def _pack(self, result: Any) -> msgspec.Raw:
        if result is None:
            return _NOTHING
        made = [result] if isinstance(result, dict) else result
        if not isinstance(made, list | tuple) or not all(isinstance(each, dict) for each in made):
            raise TypeError(f"returned {type(result).__name__}: return a mapping, a list of mappings, or None")
        if not all(isinstance(name, str) for each in made for name in each):
            raise TypeError("returned a mapping whose keys are not all strings")
        packed = self._encoder.encode([plain(each) for each in made])
        if len(packed) > (most := self._begin.result_bytes):
            raise ValueError(f"returned {len(packed):,} bytes, and {most:,} are allowed for a record")
        return msgspec.Raw(packed)

    def reason(self, error: BaseException) -> str:
        """Return an error in a line: its place in the user's file, and its text."""
        return reason(error, self._begin.shown_as, self._begin.file)


def reason(error: BaseException, shown_as: str, file: str) -> str:
    """Return an error in a line: its last place in the user's file, and its text."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f"{shown_as}, line {lines[-1]}: " if lines else f"{shown_as}: "
    try:
        text = str(error)
    except Exception:
        text = ""
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, OutOfTime):
        said = text
    return (place + " ".join(said.split()))[:REASON_CHARACTERS_MAX]


def _load(begin: Begin) -> types.ModuleType:
    with open(begin.file, encoding="utf-8") as file:
        code = compile(file.read(), begin.file, "exec")
    module = types.ModuleType("weft_function")
    module.__file__ = begin.file
    sys.modules[module.__name__] = module  # dataclasses and pickle need it there
    sys.path.insert(0, os.getcwd())  # other files of the settings can be imported
    exec(code, module.__dict__)  # noqa: S102 - the operator's own code, in its own process
    return module


class _TimeLimit:
    """A limit on the time of one call, by a signal. It ends waiting, and loops of Python code. It cannot end a loop in
    C, or one that catches everything: for these the node ends the process."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_on = False
        self._waited_s = 0.0
        signal.signal(signal.SIGALRM, self._ring)

    def begin(self) -> None:
        """Begin an answer."""
        self._waited_s = waited_s()

    def __enter__(self) -> None:
        self._is_on = True
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    def __exit__(self, *_error: object) -> None:
        self._is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, *_signal: object) -> None:
        if not self._is_on:  # the alarm came while the call ended
            return
        waited, self._waited_s = self._waited_s, waited_s()
        starved_s = min(self._waited_s - waited, self._limit_s)
        if starved_s > _STARVED_S:
            signal.setitimer(signal.ITIMER_REAL, starved_s)
            return
        raise OutOfTime(f"took longer than {self._limit_s:g} s")


DEPTH_MAX = 32
"""Deepest nesting of lists and mappings, as in payloads. Deeper ones depend on the release of Python and the decoder's
remaining stack: a state that was written now might not be decoded at the next start."""
_TOO_DEEP = f"lists and mappings are more than {DEPTH_MAX} deep in each other"

_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
_NAMES = frozenset({str, int})


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value as text, numbers, lists and mappings, as they are in a record: times as text, arrays of numpy as
    lists, objects of data classes as mappings.

    Raises:
        TypeError: it cannot be part of a record.
        ValueError, OverflowError: likewise.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEPTH_MAX:
        raise TypeError(_TOO_DEEP)
    if isinstance(value, list | tuple):
        return value if {*map(type, value)} <= _PLAIN else [plain(each, depth + 1) for each in value]
    if isinstance(value, dict):  # also a returned record
        if not {*map(type, value)} <= _NAMES:
            raise TypeError("a mapping has keys that are not all strings")
        if {*map(type, value.values())} <= _PLAIN:
            return value
        return {name: plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, msgspec.Raw | msgspec.msgpack.Ext):
        raise _no_value(value)
    if callable(listed := getattr(value, "tolist", None)):  # of numpy
        return plain(listed(), depth)
    # What else MessagePack can encode, such as a set, may be nested as well: it is measured in its encoded form.
    try:
        found = msgspec.msgpack.decode(_ENCODER.encode(value))
    except RecursionError:
        raise TypeError(_TOO_DEEP) from None
    return plain(found, depth)


def _hook(value: Any) -> Any:
    """Return numbers and arrays of numpy within other objects as plain values."""
    if callable(listed := getattr(value, "tolist", None)):
        return listed()
    raise _no_value(value)


def _no_value(value: Any) -> TypeError:
    return TypeError(f"a value of type {type(value).__name__} cannot be part of a record: use text, numbers, lists")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_hook)


# Limits that the process of a user's code puts on itself before it loads the code.
#
# They protect the node from mistakes, not from malice: the code runs as the node's user with that user's rights.

NICENESS = 10
"""A tenth of a busy processor, all of an idle one."""
FILES_MAX = 256
ADDRESSES_BYTES_MORE = 1 << 30
"""Address space beyond the memory: libraries such as onnxruntime reserve far more than they write to."""
_PR_SET_PDEATHSIG = 1


def take_over_pipes() -> tuple[int, int]:
    """Return the descriptors of the pipes from and to the node. The code's standard input is empty, and its output goes
    to the standard error; neither reaches the pipes."""
    pipes = os.dup(0), os.dup(1)  # not inherited by processes that the code starts (PEP 446)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return pipes


def confine(memory_bytes: int, parent: int) -> None:
    """Lower the priority, limit memory, and tie the process's life to the node's."""
    # Set before the check: a node that ended in between has another parent in its place already.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the node has ended")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    # When memory is short, the kernel must end this process and not the node (proc(5); raising it needs no right).
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    # RLIMIT_DATA counts writable memory; RLIMIT_AS is a further bound for shared memory.
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_AS, memory_bytes + ADDRESSES_BYTES_MORE)
    _limit(resource.RLIMIT_NOFILE, FILES_MAX)
    _limit(resource.RLIMIT_CORE, 0)


def limit_cpu(seconds: float) -> None:
    """Let the kernel end the process when it uses so much processor time from now on. The node normally ends it sooner;
    this is for a node that cannot."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(what, (value, value))


CPU_MORE_S = 30.0
"""Processor time beyond the limit of a call after which the kernel ends the process."""


class Pipes:
    """The pipes from and to the node."""

    def __init__(self, from_node: int, to_node: int) -> None:
        self._from_node = from_node
        self._to_node = to_node
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToProcess)

    def receive(self) -> Begin | Put | Asked | None:
        """Return the next message; None when the node has closed its pipe."""
        head = self._read(LENGTH.size)
        if head is None:
            return None
        body = self._read(LENGTH.unpack(head)[0])
        return None if body is None else self._decoder.decode(body)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message."""
        rest = memoryview(framed(message, self._encoder))
        while rest:
            rest = rest[os.write(self._to_node, rest) :]

    def _read(self, count: int) -> bytearray | None:
        found = bytearray()
        while len(found) < count:
            part = os.read(self._from_node, min(count - len(found), 1 << 20))
            if not part:
                return None
            found += part
        return found


def main() -> None:
    """Load the code, and answer until the node closes the pipe."""
    pipes = Pipes(*take_over_pipes())
    begin = pipes.receive()
    if not isinstance(begin, Begin):
        return
    confine(begin.memory_bytes, begin.parent)
    limit_cpu(10 * CPU_MORE_S)  # loading a model may take a while
    try:
        code = UserCode(begin)
    except MemoryError:
        pipes.send(Broken(f"{begin.shown_as}: needs more memory than {begin.memory_bytes >> 20} MiB to load"))
        return
    except BaseException as error:
        pipes.send(Broken(reason(error, begin.shown_as, begin.file)))
        return
    pipes.send(Ready())
    while (message := pipes.receive()) is not None:
        if isinstance(message, Put):
            code.state.put(message.state)
        elif isinstance(message, Asked):
            limit_cpu(4 * begin.timeout_s + CPU_MORE_S)
            pipes.send(code.answer(message.records))


if __name__ == "__main__":
    status = 0
    try:
        main()
    except MemoryError:
        status = EXIT_NO_MEMORY
    except (OSError, msgspec.MsgspecError, KeyboardInterrupt):
        status = 1  # the pipe is gone: the node has ended, or the code has closed the pipe
    # At once: threads of the code may still run, and its exit handlers serve no purpose now.
    os._exit(status)
