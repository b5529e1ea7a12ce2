"""Positions and states of functions as records of the log.

Each step of a derived stream writes one record to the stream ``weft-functions``: the positions in the inputs, and the
changes of the states. When the changes outweigh the states, a full copy follows, in pieces within later steps, so that
no step is long because of it. A piece has the present values of its keys, and changes are still written meanwhile: all
records from the copy's first on, in order, give the states. Older ones are then released.

A record names the one before it, and a step's record has the end of its outputs. So a start detects when the disk has
lost one (``Loss``), and reports it in the outputs instead of continuing with numbers that look right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from weft.edge_node.functions.contract import State
from weft.protocols.batch import records
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.ranges import RangeSet
from weft.storage.data_directory import FORMATS
from weft.storage.segment_log import SegmentLog

READ_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
"""Approximate length of a piece of a copy, which a step writes beside its changes."""
COPY_BYTES_MIN = 256 << 10
"""Least bytes of changes after which a copy is begun."""
COPY_FACTOR = 2
"""Ratio of the changes to the last copy at which the next one begins."""
VERSION = FORMATS["functions"]

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
    """Number of a stream -> time of the last row written to it."""
    replayed: str = ""
    """Derived stream that this one is a replay of; empty for a stream of the configuration."""
    ends: dict[int, int] = {}
    """Number of a stream that only this function writes -> number after its last record of a step."""


class Loss(NamedTuple):
    """Rows of an input whose effects on the states may be lost by damage of the disk."""

    input: str
    first: int
    end: int
    after: int
    """Time of the last row before them, ns since 1970; 0 when it is unknown."""


class _Entry(msgspec.Struct, array_like=True):
    """Value of one record."""

    version: int
    positions: Positions
    changes: dict[str, dict[bytes, Any]]
    """Label of a function -> key -> value, None for deleted keys."""
    begins_copy: bool = False
    piece: dict[str, dict[bytes, Any]] = {}
    """Values of the copy, likewise."""
    ends_copy: bool = False
    before: int = -1
    """Number of the record before it of the same derived stream; -1 for none."""
    labels: list[str] | None = None
    """Labels of all functions from now on: states of others are deleted. None: unchanged."""
    heals: bool = False
    """True where earlier losses have been reported."""


class _Beginning(msgspec.Struct, array_like=True):
    """Part of a record's value that each release can read."""

    version: int


class Remembered:
    """State of one derived stream in the log."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.states: dict[str, dict[bytes, Any]] = {}
        """Label -> key -> value."""
        self.seqs: list[int] = []
        """Numbers of the records with this state."""
        self.old: list[int] = []
        """Numbers of records that are no longer needed."""
        self.size_bytes = 0
        """Length of all records since the node's first, or since the last copy."""
        self.losses: dict[str, Loss] = {}
        """Input -> rows whose changes to the states are missing."""
        self.may_lack_end = False
        """True if records after the last one may have been lost."""
        self._copy: dict[str, dict[bytes, Any]] | None = None
        self._copy_from = 0
        self._copy_losses: dict[str, Loss] = {}

    def learn(self, seq: int, entry: _Entry, length: int) -> None:
        """Apply the next record."""
        self._look_for_loss(entry)
        self.seqs.append(seq)
        self.size_bytes = length if entry.begins_copy else self.size_bytes + length
        self.positions = entry.positions
        if entry.begins_copy:
            self._copy, self._copy_from = {}, len(self.seqs) - 1
        for states in (self.states, self._copy):
            if states is not None:
                if entry.labels is not None:
                    for label in states.keys() - entry.labels:
                        del states[label]
                _apply(states, entry.changes)
                # Also to states that need no copy: this record may be their only one.
                _apply(states, entry.piece)
        if self._copy is not None and entry.ends_copy:
            self.states, self._copy = self._copy, None
            self.losses = self._copy_losses
            self.old += self.seqs[: self._copy_from]
            del self.seqs[: self._copy_from]

    def _look_for_loss(self, entry: _Entry) -> None:
        if entry.begins_copy:
            self._copy_losses = {}
        if entry.heals:
            self.losses, self._copy_losses = {}, {}
        elif entry.before >= 0 and (not self.seqs or self.seqs[-1] != entry.before):
            # Records before a copy may be missing: they are released. Once the copy is complete, they no longer matter.
            for name, end in entry.positions.inputs.items():
                first, after = self.positions.inputs.get(name, 0), self.positions.times.get(name, 0)
                for losses in (self.losses, *(() if entry.begins_copy else (self._copy_losses,))):
                    known = losses.get(name, Loss(name, first, end, after))
                    losses[name] = known._replace(end=max(end, known.end))


def _apply(states: dict[str, dict[bytes, Any]], changes: dict[str, dict[bytes, Any]]) -> None:
    for label, values in changes.items():
        own = states.setdefault(label, {})
        for key, value in values.items():
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value


class StateReader:
    """Reader of the states at the start of a node. Blocks; for a thread."""

    def __init__(self, log: SegmentLog, stream: int) -> None:
        """Read the whole stream.

        Raises:
            OSError, LogFailed: the log cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.streams: dict[str, Remembered] = {}
        """Name of a derived stream -> its state, also of streams that are no longer configured."""
        self._lost_end = 0
        """Number after the last record that was lost or cannot be decoded."""
        decoder = msgspec.msgpack.Decoder(_Entry)
        seq, end = 0, log.durable_end(stream)
        missing = RangeSet([(0, end)])
        while seq < end and (batches := log.read(stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    missing.remove(record.seq, seq)
                    self._learn(record.seq, record.key.decode(), record.payload, decoder)
        # Released records that were deleted have no notice.
        told = [gone.end for gone in log.why_gone(stream, missing) if gone.reason is not None]
        self._lost_end = max(self._lost_end, *told, 0)
        for remembered in self.streams.values():
            remembered.may_lack_end = remembered.seqs[-1] < self._lost_end

    def of(self, name: str) -> Remembered:
        """Remove the state of a derived stream from ``streams`` and return it."""
        found = self.streams.pop(name, None)
        if found is None:
            found = Remembered()
            found.may_lack_end = self._lost_end > 0
        return found

    def _learn(self, seq: int, name: str, payload: bytes, decoder: msgspec.msgpack.Decoder[_Entry]) -> None:
        try:
            if msgspec.msgpack.decode(payload, type=_Beginning).version > VERSION:
                raise UnsupportedVersion(
                    f"the functions of stream {name} have run in a later release: install that again"
                )
            entry = decoder.decode(payload)
        except msgspec.MsgspecError as error:
            logger.error("a step of the functions of stream %s cannot be read: %s", name, error)
            self._lost_end = seq + 1
            return
        self.streams.setdefault(name, Remembered()).learn(seq, entry, len(payload))


class StateWriter:
    """Writer of the records of one derived stream, and of their release."""

    def __init__(self, name: str, remembered: Remembered, *, forgets: bool = False, heals: bool = False) -> None:
        """Continue after the log's last record.

        Args:
            forgets: the functions begin with empty memory, despite states in the log.
            heals: the next step reports the losses.
        """
        self.key = name.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._seqs = list(remembered.seqs)
        self._changed_bytes = remembered.size_bytes
        self._copied_bytes = 0
        self._copy: Iterator[tuple[str, bytes, Any]] | None = None
        self._copied: list[State] = []
        """States that the copy belongs to. Other functions have other states."""
        self._copy_from = 0
        self._has_ended = False
        self._labels: list[str] | None = None
        """Labels in the log."""
        self._forgets, self._heals = forgets, heals

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the last copy, and of the changes since."""
        return self._copied_bytes + self._changed_bytes

    def entry(self, positions: Positions, states: Iterable[tuple[str, State]]) -> bytes:
        """Return the record of a step: all changes since the last call, and a piece of a copy if one is under way. Call
        ``written`` afterwards."""
        states = list(states)
        changes = {label: changed for label, state in states if (changed := state.take_changes())}
        before = self._seqs[-1] if self._seqs else -1
        entry = _Entry(VERSION, positions, changes, before=before, heals=self._heals)
        labels = [label for label, _ in states]
        if labels != self._labels:
            entry.labels, self._labels = [] if self._forgets else labels, labels
        is_other = self._copy is not None and [id(own) for own in self._copied] != [id(own) for _, own in states]
        outweighs = self._changed_bytes > max(COPY_BYTES_MIN, COPY_FACTOR * self._copied_bytes)
        if is_other or (self._copy is None and outweighs):
            entry.begins_copy = True
            self._changed_bytes = self._copied_bytes = 0
            self._copied = [state for _, state in states]
            self._copy, self._copy_from = _all_of(states), len(self._seqs)
        if self._copy is not None:
            self._add_piece(entry, self._copy)
        payload = self._encoder.encode(entry)
        self._changed_bytes += len(payload)
        return payload

    def written(self, seq: int) -> RangeSet:
        """Set the record's number. Return the records to release once it is durable."""
        self._seqs.append(seq)
        self._forgets = self._heals = False
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
    """Yield label, key and present value of every entry."""
    for label, state in states:
        for key in list(state.values):
            if (value := state.values.get(key)) is not None:
                yield label, key, value


def tombstone(name: str, remembered: Remembered) -> tuple[bytes, bytes]:
    """Return key and value of a record that keeps the positions of a derived stream, and none of its states: if the
    stream returns, it emits nothing twice."""
    before = remembered.seqs[-1]
    entry = _Entry(VERSION, remembered.positions, {}, begins_copy=True, ends_copy=True, before=before, labels=[])
    return name.encode(), msgspec.msgpack.encode(entry)
