"""A user's code in its process: loading it, and calling it for each record or each batch, with a limit on time."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from types import NoneType
from typing import Any

import msgspec

from weft.edge_node.functions.kinds.python.fair_time import waited_s
from weft.edge_node.functions.kinds.python.kept_state import KeptState
from weft.edge_node.functions.kinds.python.wire import (
    ANSWER_BYTES_ENOUGH,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    Answering,
    Begin,
    Record,
)

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

    def __init__(self, stream: str, state: KeptState) -> None:
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
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._begin = begin
        self._clock = clock
        self._process_id = os.getpid()
        self.state = KeptState(lambda value: self._encoder.encode(plain(value)), begin.state_bytes)
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
            raise TypeError("returned a mapping with a name that is no text")
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


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as plain values."""
    if callable(plain := getattr(value, "tolist", None)):
        return plain()
    raise TypeError(f"a value of type {type(value).__name__} cannot be part of a record: use text, numbers, lists")


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
"""Deepest nesting of lists and mappings, as in payloads. Deeper ones depend on the decoder's remaining stack: a state
that was written now might not be decoded at the next start."""

_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
_NAMES = frozenset({str, int})


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value with times as text. Other objects that MessagePack can encode stay unchanged.

    Raises:
        TypeError: it cannot be part of a record.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEPTH_MAX:
        raise TypeError(f"lists and mappings are more than {DEPTH_MAX} deep in each other")
    if isinstance(value, list | tuple):
        return value if {*map(type, value)} <= _PLAIN else [plain(each, depth + 1) for each in value]
    if isinstance(value, dict):  # also a returned record
        if not {*map(type, value)} <= _NAMES:
            raise TypeError("a mapping has a name that is no text")
        if {*map(type, value.values())} <= _PLAIN:
            return value
        return {name: plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, msgspec.Raw | msgspec.msgpack.Ext):
        raise TypeError(f"a value of type {kind.__name__} cannot be part of a record: use text, numbers, lists")
    return value
