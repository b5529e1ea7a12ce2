"""Positions and states of functions as records of the log.

Each step of a derived stream writes one record to the stream ``weft-functions``: how far the inputs were read, and what
changed in the states. When the changes outweigh the states, a full copy follows, in pieces that ride on later steps, so
that no step is long because of it. A piece has the values of its keys as they are when it is written, and changes go
on being written meanwhile: all records from the copy's first on, in order, give the states. What is older is then
released.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from weft.edge_node.functions.contract import State
from weft.protocols.batch import records
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.ranges import RangeSet

READ_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
"""Length of a piece of a copy, about: what a step writes beside its changes."""
COPY_BYTES_MIN = 256 << 10
"""Least bytes of changes after which a copy is begun."""
COPY_FACTOR = 2
"""Times that the changes outweigh the last copy when the next is begun."""
VERSION = 1

logger = logging.getLogger(__name__)


class Positions(msgspec.Struct, array_like=True):
    """Progress of a derived stream through its inputs."""

    inputs: dict[str, int] = {}
    """Name of an input -> number of the first record that no step has read."""
    tick: int = 0
    """Last second, in ns since 1970, up to which all rows of the inputs were handled."""
    times: dict[str, int] = {}
    """Name of an input -> time of the last row that was read."""
    hold: int = 1
    """Time below which the marks of the outputs stay."""
    last: dict[int, int] = {}
    """Number of a stream -> time of the last row that was written to it."""
    replayed: str = ""
    """Derived stream that this one is a replay of; empty for a stream of the configuration."""


class _Entry(msgspec.Struct, array_like=True):
    """Value of one record."""

    version: int
    positions: Positions
    changes: dict[str, dict[bytes, Any]]
    """Label of a function -> key -> value, None for what was deleted."""
    begins_copy: bool = False
    piece: dict[str, dict[bytes, Any]] = {}
    """Values of the copy, likewise."""
    ends_copy: bool = False


class Log(Protocol):
    """Methods of the segment log that reading and releasing need."""

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return encoded batches."""
        ...

    def durable_end(self, stream: int) -> int:
        """Return the number after the last durable record."""
        ...


class Remembered:
    """Contents of the log about one derived stream."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.states: dict[str, dict[bytes, Any]] = {}
        """Label -> key -> value."""
        self.seqs: list[int] = []
        """Numbers of the records that this stands in."""
        self.size_bytes = 0
        """Length of all records since the node's first, or since the last copy."""
        self._copy: dict[str, dict[bytes, Any]] | None = None
        self._copy_from = 0

    def learn(self, seq: int, entry: _Entry, length: int) -> None:
        """Take in the next record."""
        self.seqs.append(seq)
        self.size_bytes = length if entry.begins_copy else self.size_bytes + length
        self.positions = entry.positions
        if entry.begins_copy:
            self._copy, self._copy_from = {}, len(self.seqs) - 1
        for states in (self.states, self._copy):
            if states is not None:
                _apply(states, entry.changes)
        if self._copy is not None:
            _apply(self._copy, entry.piece)
            if entry.ends_copy:
                self.states, self._copy = self._copy, None
                del self.seqs[: self._copy_from]


def _apply(states: dict[str, dict[bytes, Any]], changes: dict[str, dict[bytes, Any]]) -> None:
    for label, values in changes.items():
        own = states.setdefault(label, {})
        for key, value in values.items():
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value


class StateReader:
    """Reads the log once, when a node starts. Blocks; for a thread."""

    def __init__(self, log: Log, stream: int) -> None:
        """Read all of the stream.

        Raises:
            OSError, LogFailed: it cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.streams: dict[str, Remembered] = {}
        """Name of a derived stream -> what is remembered of it; those that are not configured any more, too."""
        decoder = msgspec.msgpack.Decoder(_Entry)
        seq, end = 0, log.durable_end(stream)
        while seq < end and (batches := log.read(stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    self._learn(record.seq, record.key.decode(), record.payload, decoder)

    def _learn(self, seq: int, name: str, payload: bytes, decoder: msgspec.msgpack.Decoder[_Entry]) -> None:
        try:
            entry = decoder.decode(payload)
        except msgspec.MsgspecError as error:
            logger.error("a step of the functions of stream %s is lost: %s", name, error)
            return
        if entry.version > VERSION:
            raise UnsupportedVersion(f"the functions of stream {name} have run in a later release: install that again")
        self.streams.setdefault(name, Remembered()).learn(seq, entry, len(payload))


class StateWriter:
    """Writer of the records of one derived stream, which knows when they may go."""

    def __init__(self, name: str, remembered: Remembered) -> None:
        """Go on after what the log has."""
        self.key = name.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._seqs = list(remembered.seqs)
        self._changed_bytes = remembered.size_bytes
        self._copied_bytes = 0
        self._copy: Iterator[tuple[str, bytes, Any]] | None = None
        self._copy_from = 0
        self._has_ended = False

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the last copy, and of the changes since."""
        return self._copied_bytes + self._changed_bytes

    def entry(self, positions: Positions, states: Iterable[tuple[str, State]]) -> bytes:
        """Return the record of a step: everything that changed since the last call, and a piece of a copy if one is
        under way. ``written`` follows."""
        states = list(states)
        changes = {label: changed for label, state in states if (changed := state.take_changes())}
        entry = _Entry(VERSION, positions, changes)
        if self._copy is None and self._changed_bytes > max(COPY_BYTES_MIN, COPY_FACTOR * self._copied_bytes):
            entry.begins_copy = True
            self._changed_bytes = self._copied_bytes = 0
            self._copy, self._copy_from = _all_of(states), len(self._seqs)
        if self._copy is not None:
            self._add_piece(entry, self._copy)
        payload = self._encoder.encode(entry)
        self._changed_bytes += len(payload)
        return payload

    def written(self, seq: int) -> RangeSet:
        """Note the number that the record got. Return the records that may go once it is durable."""
        self._seqs.append(seq)
        gone = RangeSet()
        if self._has_ended:
            self._has_ended = False
            for old in self._seqs[: self._copy_from]:
                gone.add(old, old + 1)
            del self._seqs[: self._copy_from]
        return gone

    def _add_piece(self, entry: _Entry, copy: Iterator[tuple[str, bytes, Any]]) -> None:
        size = 0
        while size < PIECE_BYTES:
            found = next(copy, None)
            if found is None:
                entry.ends_copy = self._has_ended = True
                self._copy = None
                break
            label, key, value = found
            encoded = self._encoder.encode(value)
            entry.piece.setdefault(label, {})[key] = msgspec.Raw(encoded)
            size += len(encoded) + len(key)
        self._copied_bytes += size


def _all_of(states: Iterable[tuple[str, State]]) -> Iterator[tuple[str, bytes, Any]]:
    """Yield the label, key and value of everything, as it is when its turn comes."""
    for label, state in states:
        for key in list(state.values):
            if (value := state.values.get(key)) is not None:
                yield label, key, value
