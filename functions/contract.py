"""Contract of an edge function: rows in, rows out, a batch at a time.

A function is plain, sequential code. The runtime reads the log, decodes payloads, keeps positions and state in the same
commit as the outputs, and calls the function again from its last durable state after a crash. So a function must be
deterministic: the same rows, ticks and gaps in the same order give the same rows. It reads no clock; all times are
those of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol, runtime_checkable

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


# Nested fields, by dotted paths: ``motor.rpm`` is the field ``rpm`` of the field ``motor``.
#
# Such a path cannot contain a name with a dot; expressions reach that field with ``field("a.b")``.

PATH_NAMES_MAX = 16
"""Maximum number of names in a path."""


class MissingType:
    """Type of ``MISSING``."""


MISSING: Final = MissingType()
"""Value of a field that a row does not have. A null field has None."""


def names_in(path: str) -> tuple[str, ...]:
    """Return the names in a path.

    Raises:
        ValueError: a name is empty, or there are too many.
    """
    names = tuple(path.split("."))
    if not all(names):
        raise ValueError(f'expected a field such as rms or motor.rpm, got "{path}"')
    if len(names) > PATH_NAMES_MAX:
        raise ValueError(f'"{path}" has {len(names)} names; a path has at most {PATH_NAMES_MAX}')
    return names


def check_no_overlap(paths: Collection[str]) -> None:
    """Check that no path leads into the field of another.

    Raises:
        ValueError: one does, such as ``motor.rpm`` and ``motor``; or a path is not valid.
    """
    known = {names_in(path): path for path in paths}
    for names, path in known.items():
        for length in range(1, len(names)):
            if other := known.get(names[:length]):
                raise ValueError(f'"{path}" lies in "{other}"; name only one of them')


def getter(path: str) -> Callable[[Values], Any]:
    """Return a function that takes the fields of a row and returns the value at a path, or ``MISSING``."""
    first, *rest = names_in(path)
    if not rest:
        return lambda values: values.get(first, MISSING)

    def get(values: Values) -> Any:
        value: Any = values.get(first, MISSING)
        for name in rest:
            if not isinstance(value, dict):
                return MISSING
            value = value.get(name, MISSING)
        return value

    return get


def put(value: Any, names: tuple[str, ...], at: int, new: Any) -> Values:
    """Return a mapping with a new value at a path, as a copy: rows may share nested values.

    Args:
        value: mapping, or None for an empty one.
        names: path.
        at: index in the path at which the mapping is.
        new: value.

    Raises:
        TypeError: a value on the path is not a mapping.
    """
    if value is None:
        value = {}
    elif not isinstance(value, Mapping):
        raise TypeError(f"{'.'.join(names[:at])} is not a mapping, and cannot have a field {names[at]}")
    name = names[at]
    return {**value, name: new if at + 1 == len(names) else put(value.get(name), names, at + 1, new)}


def without(values: Values, names: tuple[str, ...]) -> Values:
    """Return fields without the one at a path, as a copy; the same fields where it is missing."""
    first = names[0]
    if first not in values:
        return values
    if len(names) == 1:
        return {name: value for name, value in values.items() if name != first}
    inner = values[first]
    if not isinstance(inner, dict):
        return values
    return {**values, first: without(inner, names[1:])}


# Contract of a payload format: bytes to fields and back.


class PayloadError(ValueError):
    """A payload that is not of its stream's format, or values that the format cannot hold; the text states the
    problem."""


class Format(Protocol):
    """A format of payloads. Stateless; for one thread."""

    def decode(self, payload: bytes) -> Values:
        """Return the fields of a payload.

        Raises:
            PayloadError: it is not of this format.
        """
        ...

    def encode(self, values: Values) -> bytes:
        """Return a payload with these fields, the same bytes for the same values in the same order.

        Raises:
            PayloadError: the format cannot hold them.
        """
        ...


@runtime_checkable
class PartialFormat(Protocol):
    """A format that can leave out fields while it decodes."""

    def decoder(self, paths: frozenset[Path]) -> Callable[[bytes], Values]:
        """Return a function that decodes only these fields of a payload, as ``decode`` does. It may return more.

        It raises ``PayloadError`` as ``decode`` does, except for numbers in other fields that cannot be represented.
        """
        ...
