"""Contract of an edge function: rows in, rows out, a batch at a time.

A function is plain, sequential code. The runtime reads the log, decodes payloads, keeps positions and state in the
same commit as the outputs, and calls the function again from its last durable state after a crash. So a function must
be deterministic: the same rows, ticks and gaps in the same order give the same rows. It reads no clock but the times
that it is given.
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
"""Names on the way to a field in a field: ``motor.rpm`` is ``("motor", "rpm")``. At least one."""


Source = tuple[str | int, ...]
"""Records that a row was made of: input, first and last number and how many, then those of the next input."""


class Row(msgspec.Struct, gc=False):  # No row is part of a cycle. To look for one took 0.3 us a row.
    """A record on its way through functions. Functions may change rows that they were given, and make new ones."""

    time: int
    """Time at which the node took the record in, ns since 1970; of a row made of several, that of the oldest."""
    key: bytes
    """Topic that the device published to, or what a window grouped by."""
    payload: bytes | None
    """The bytes of the record; None once ``values`` says something else: then the payload is encoded from them."""
    values: Values
    """The decoded payload. Empty where no function of the chain asks for it (``Function.reads_values``)."""
    headers: HeaderPairs = ()
    seq: int = -1
    """Number in the input's lane; -1 for a row that a function made."""
    input: str = ""
    """Name of the stream that it was read from."""
    original: bytes | None = None
    """Payload as it was read, for the stream of errors; None for a row that a function made."""
    is_private: bool = False
    """True for a row that failed with fields that a function behind it redacts. The stream of errors gets its place in
    the input, and nothing that it holds."""
    source: Source = ()
    """Source of a row that a function made; empty where it is not known."""


class Gap(NamedTuple):
    """Numbers of an input that the log does not have and never will."""

    input: str
    first: int
    end: int
    reason: str
    """Name of the reason: ``expired``, ``budget``, ``corruption`` or ``operator``, or ``retention`` where others had
    the records."""
    after: int
    """Time of the last row before the gap, ns since 1970; 0 when there is none."""


class Out(Protocol):
    """Other ways out for rows. All of it belongs to the step, and is durable with it or not at all."""

    def reject(self, row: Row, reason: str, cause: Row | None = None) -> None:
        """Send a row to the stream of errors instead, with a reason for people. Functions that follow do not get it.

        Args:
            cause: row of the call in hand because of which a function gives up one that it kept. It decides the place
                of the rejected row among others.
        """

    def route(self, row: Row, stream: str) -> None:
        """Write a row to another stream."""

    def alert(self, topic: bytes, payload: bytes, qos: int, time: int, *, retain: bool, until: int = 0) -> None:
        """Publish a message to local subscribers, and to the streams that its topic belongs to.

        Args:
            until: time after which it is not published any more, ns since 1970; 0 for never. Functions may be behind by
                hours, and some messages are of no use then.
        """

    def drop(self, row: Row, reason: str) -> None:
        """Say why a row is left out, for ``weft edge test-function``. Need not be called; costs nothing in a node."""


class Function:
    """One function of a derived stream. Each start makes its functions from their settings alone.

    The runtime calls ``process`` with the rows of the input in their order, ``tick`` when time has passed, and ``gap``
    where numbers are missing; each returns or makes the rows for the next function.
    """

    reads_values: bool = True
    """True where ``Row.values`` must be decoded. Of the class, or of an instance whose settings decide it."""
    makes_values: ClassVar[bool] = False
    """True where no row comes out with values that came in: all of them are made of the fields that ``reads`` names."""
    is_stateless: ClassVar[bool] = False
    """True where a row's result depends on that row alone. Such functions may run before the log (``raw: discard``)."""
    redacts: ClassVar[bool] = False
    """True where fields leave that must not go on: the stream of errors gets no rows as they were before it."""

    state: State | None = None
    """Memory between rows; None where there is none."""

    def reads(self) -> frozenset[Path] | None:
        """Return the fields that it looks at; None for all of them.

        A function may name them if it gives rows on with payload and values as they came, or not at all, or if it
        ``makes_values``; and if it remembers no row's values. Payloads are then decoded as far as the chain needs.
        """
        return None

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return what becomes of some rows, in order."""
        raise NotImplementedError

    def tick(self, time: int, out: Out) -> list[Row]:  # noqa: ARG002
        """Return rows that were waiting for this time. Called for each whole second at which something can be due
        (``due``), before any row that the node took in later. Every later row is of a later time, unless the clock
        is set back.

        Many rows can be due at once: ten thousand windows that end with the minute. A function may return some of
        them. While ``due`` says ``time`` or earlier after a call, the runtime calls again with the same time, maybe
        after other work, and before any later row or tick.

        Args:
            time: ns since 1970.
        """
        return []

    def gap(self, gap: Gap, out: Out) -> None:
        """Take note of records that are missing. Rows around it come before and after this call."""

    def due(self) -> int | None:
        """Return the first time at which ``tick`` has something to do, ns since 1970; None for never."""
        return None

    def oldest(self) -> int | None:
        """Return the time of the oldest row that may still come out: the lowest ``Row.time`` of the rows that ``tick``
        and ``process`` may yet make of what the function holds. None when it holds nothing."""
        return None

    def version(self) -> str:
        """Return a short hash of the files that the function works with besides its settings: code, a model, a table.
        Empty where there are none. It is part of the origin of a step's outputs, read after the step's last row."""
        return ""

    def trouble(self) -> str:
        """Return one line about what an operator should look at, such as a new version of a file that is not used
        because it fails. Empty when all is well. For the status."""
        return ""


class NotReady(Exception):
    """A function cannot work now: its file is missing or its code does not load. Says what is wrong and what to do."""


class AsyncFunction(Function):
    """A function that works elsewhere, in a thread or a process of its own, or that reads files.

    The runtime awaits the methods below in place of ``process`` and ``tick``, and handles one chain at a time in a
    task of its own, so other streams go on meanwhile. A call that is cancelled or raises ends the step: nothing of it
    is kept, and the chain is made again from what is durable.
    """

    async def prepare(self) -> None:
        """Make ready for a step: load files that changed. Called before any function of the chain has seen its rows,
        and before the first step. Returns at once when there is nothing to do.

        Raises:
            NotReady: the rows have to wait. The runtime tells of it in the status, and calls again later.
        """

    async def process_async(self, rows: list[Row], out: Out) -> list[Row]:
        """Return what becomes of some rows, in order."""
        return self.process(rows, out)

    async def tick_async(self, time: int, out: Out) -> list[Row]:
        """Return rows that were waiting for this time, as ``tick`` does."""
        return self.tick(time, out)

    async def close(self) -> None:
        """End processes and threads. The function is not used again."""


class State:
    """A function's memory: values by key, of what MessagePack can hold. The runtime writes what was changed with each
    step, and puts it back with ``load`` after a restart.

    Call ``touch`` for values that are changed in place, such as a list that grows.
    """

    __slots__ = ("_changed", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        """Read as you like; change through the methods."""
        self._changed: dict[bytes, None] = {}
        """In the order of the changes: what is written does not depend on how the interpreter orders a set."""

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
        """Return what changed since the last call, None for what was deleted. For the runtime."""
        changes = {key: self.values.get(key) for key in self._changed}
        self._changed.clear()
        return changes

    def load(self, key: bytes, value: Any) -> None:
        """Put back what an earlier run remembered; None forgets it. For the runtime."""
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def items(self) -> Iterator[tuple[bytes, Any]]:
        """Yield all keys and values, for a full copy."""
        yield from self.values.items()


class Context(NamedTuple):
    """Facts that the functions of a derived stream are made with."""

    stream: str
    """Name of the derived stream."""
    inputs: tuple[str, ...]
    levels: Callable[[bytes], Mapping[str, str]]
    """Key -> named levels of its topic (``plant/{line}/{machine}``): names that expressions know."""
    level_names: tuple[str, ...]
    """All names that ``levels`` may give."""
    nulls: bool = False
    """True where a field that is missing is null to the function's expressions, as in SQL (``missing: null``)."""
