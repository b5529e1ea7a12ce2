"""Contract of an edge function: rows in, rows out, a batch at a time.

A function is plain, sequential code. The runtime reads the log, decodes payloads, keeps positions and state in the same
commit as the outputs, and calls the function again from its last durable state after a crash. So a function must be
deterministic: the same rows, ticks and gaps in the same order give the same rows. It reads no clock; all times are
those of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from weft.protocols.batch import HeaderPairs

Values = dict[str, Any]
"""Fields of a payload by name: text, bytes, numbers, booleans, None, and lists and mappings of these. A payload that is
one number, text or list is the field ``value``."""


Path = tuple[str, ...]
"""Names on the path to a nested field: ``motor.rpm`` is ``("motor", "rpm")``. At least one."""


Source = tuple[str | int, ...]
"""Records that a row was made of: input, first and last number and count, then the same of the next input."""


class Row(msgspec.Struct, gc=False):  # No row is part of a cycle. To look for one took 0.3 us a row.
    """A record on its way through functions. Functions may change rows that they receive, and create new ones."""

    time: int
    """Time at which the node received the record, ns since 1970; a row made of several has the time of the oldest."""
    key: bytes
    """Topic that the device published to, or what a window grouped by."""
    payload: bytes | None
    """The bytes of the record; None once ``values`` differs from it: then the payload is encoded from ``values``."""
    values: Values
    """The decoded payload. Empty where no function of the chain needs it (``Function.reads_values``)."""
    headers: HeaderPairs = ()
    seq: int = -1
    """Number in the input's lane; -1 for a row that a function made."""
    input: str = ""
    """Name of the stream that the row was read from."""
    original: bytes | None = None
    """Payload as it was read, for the stream of errors; None for a row that a function made."""
    is_private: bool = False
    """True for a row that failed with fields that a later function redacts. The stream of errors gets its place in the
    input, and none of its content."""
    source: Source = ()
    """Source of a row that a function made; empty where it is not known."""


class Gap(NamedTuple):
    """Numbers of an input that the log does not have and never will."""

    input: str
    first: int
    end: int
    reason: str
    """Name of the reason: ``expired``, ``budget``, ``corruption`` or ``operator``, or ``retention`` where other readers
    had the records."""
    after: int
    """Time of the last row before the gap, ns since 1970; 0 when there is none."""


class Out(Protocol):
    """Further outputs for rows. They belong to the step, and are durable with it or not at all."""

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        """Send a row to the stream of errors instead, with a reason for people. Functions that follow do not get it.

        Args:
            cause: row of the current call that made a function reject one that it kept. It decides the place of the
                rejected row among others.
        """

    def route(self, row: Row, stream: str) -> None:
        """Write a row to another stream."""

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        """Publish a message to local subscribers, and to the streams that its topic belongs to.

        Args:
            until: time after which it is no longer published, ns since 1970; 0 for never. Functions may be behind by
                hours, and some messages are of no use then.
        """

    def drop(self, row: Row, reason: str) -> None:
        """Report why a row is dropped, for ``weft edge test-function``. The call is optional; it costs nothing in a
        node."""


class Function:
    """One function of a derived stream. Each start makes its functions from their settings alone.

    The runtime calls ``process`` with the rows of the input in their order, ``tick`` when time has passed, and ``gap``
    where numbers are missing; each returns the rows for the next function, or prepares them.
    """

    reads_values: bool = True
    """True where ``Row.values`` must be decoded. Of the class, or of an instance whose settings decide it."""
    makes_values: ClassVar[bool] = False
    """True where no output row has values of an input row: all are computed from the fields that ``reads`` names."""
    is_stateless: ClassVar[bool] = False
    """True where a row's result depends on that row alone. Such functions may run before the log (``raw: discard``)."""
    redacts: ClassVar[bool] = False
    """True where the function removes fields that must not leave: the stream of errors gets no rows as they were before
    it."""

    state: State | None = None
    """Memory between rows; None where there is none."""

    def reads(self) -> frozenset[Path] | None:
        """Return the fields that the function reads; None for all of them.

        A function may name them if it passes each row on with unchanged payload and values or drops it, or if it
        ``makes_values``; and if it remembers no row's values. Payloads are then decoded as far as the chain needs.
        """
        return None

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the output rows for some input rows, in order."""
        raise NotImplementedError

    def tick(self, time: int, out: Out) -> list[Row]:  # noqa: ARG002
        """Return rows that were waiting for this time. Called for each whole second at which something can be due
        (``due``), before any row that the node received later. Every later row is of a later time, unless the clock is
        set back.

        Many rows can be due at once: ten thousand windows that end with the minute. A function may return some of them.
        While ``due`` returns ``time`` or earlier after a call, the runtime calls again with the same time, maybe after
        other work, and before any later row or tick.

        Args:
            time: ns since 1970.
        """
        return []

    def gap(self, gap: Gap, out: Out) -> None:
        """Handle a gap: records that are missing. The rows around it come before and after this call."""

    def due(self) -> int | None:
        """Return the first time at which ``tick`` has work, ns since 1970; None for never."""
        return None

    def oldest(self) -> int | None:
        """Return the time of the oldest row that may still be emitted: the lowest ``Row.time`` of the rows that
        ``tick`` and ``process`` may yet compute from the function's memory. None when it holds nothing."""
        return None

    def version(self) -> str:
        """Return a short hash of the files that the function works with besides its settings: code, a model, a table.
        Empty where there are none. It is part of the origin of a step's outputs, read after the step's last row."""
        return ""

    def trouble(self) -> str:
        """Return one line for the operator about a problem, such as a new version of a file that is not used because it
        fails. Empty when there is none. Shown in the status."""
        return ""


class NotReady(Exception):
    """A function cannot work now: its file is missing or its code does not load. The text states the problem and the
    remedy."""


class AsyncFunction(Function):
    """A function that works elsewhere, in a thread or a process of its own, or that reads files.

    The runtime awaits the methods below in place of ``process`` and ``tick``, and handles one chain at a time in a task
    of its own, so other streams continue meanwhile. A call that is cancelled or raises ends the step: nothing of it is
    kept, and the chain is created again from its last durable state.
    """

    async def prepare(self) -> None:
        """Make ready for a step: load files that changed. Called before any function of the chain has seen its rows,
        and before the first step. Returns at once when there is nothing to do.

        Raises:
            NotReady: the rows have to wait. The runtime reports it in the status, and calls again later.
        """

    async def process_async(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the output rows for some input rows, in order."""
        return self.process(rows, out)

    async def tick_async(self, time: int, out: Out) -> list[Row]:
        """Return rows that were waiting for this time, as ``tick`` does."""
        return self.tick(time, out)

    async def close(self) -> None:
        """End processes and threads. The function is not used again."""


class State:
    """A function's memory: values by key, of types that MessagePack can encode. The runtime writes the changes with
    each step, and restores them with ``load`` after a restart.

    Call ``touch`` for values that are changed in place, such as a list that grows.
    """

    __slots__ = ("_changed", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        """Read as you like; change through the methods."""
        self._changed: dict[bytes, None] = {}
        """In the order of the changes: the bytes written do not depend on the interpreter's order of a set."""

    def set(self, key: bytes, value: Any) -> None:
        """Remember a value."""
        self.values[key] = value
        self._changed[key] = None

    def touch(self, key: bytes) -> None:
        """Note that the value of a key was changed in place."""
        self._changed[key] = None

    def delete(self, key: bytes) -> None:
        """Forget a value, if there is one."""
        if self.values.pop(key, None) is not None:
            self._changed[key] = None

    def take_changes(self) -> dict[bytes, Any]:
        """Return the changes since the last call, with None for deleted keys. For the runtime."""
        changes = {key: self.values.get(key) for key in self._changed}
        self._changed.clear()
        return changes

    def load(self, key: bytes, value: Any) -> None:
        """Restore a value of an earlier run; None deletes it. For the runtime."""
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def items(self) -> Iterator[tuple[bytes, Any]]:
        """Yield all keys and values, for a full copy."""
        yield from self.values.items()


class Context(NamedTuple):
    """Facts from which the functions of a derived stream are created."""

    stream: str
    """Name of the derived stream."""
    inputs: tuple[str, ...]
    levels: Callable[[bytes], Mapping[str, str]]
    """Key -> named levels of its topic (``plant/{line}/{machine}``): names that expressions know."""
    level_names: tuple[str, ...]
    """All names that ``levels`` may return."""
    nulls: bool = False
    """True where the function's expressions treat a missing field as null, as in SQL (``missing: null``)."""
    signed_by: tuple[str, ...] = ()
    """PEM files with the keys that sign code; empty where code needs no signature."""
