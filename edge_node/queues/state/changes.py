"""Records of the stream ``weft-queues-state``: changes to exchanges, queues and bindings, and copies of the whole
state."""

from __future__ import annotations

import msgspec

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.storage.data_directory import FORMATS

VERSION = FORMATS["queues"]


class Runs(msgspec.Struct, array_like=True):
    """Numbers of messages (``SeqRuns.to_bytes``)."""

    firsts: bytes = b""
    counts: bytes = b""


class Settled(msgspec.Struct, array_like=True):
    """Messages that left a queue."""

    messages: Runs
    bytes: int
    """Their payload bytes."""


class QueueCopy(msgspec.Struct, array_like=True):
    """Content of a queue."""

    number: int
    bytes: int
    """Payload bytes of its messages, delivered ones included."""
    levels: dict[int, Runs]
    """Priority -> messages in their order."""
    others: list[tuple[int, int]]
    """Number and priority of messages outside of that order, because they were delivered or came back."""
    attempts: dict[int, int]
    marked: int
    suspect: int


class Changes(msgspec.Struct, array_like=True, omit_defaults=True):
    """Value of one record. Removals apply before additions."""

    version: int = VERSION
    settled: dict[int, Settled] = {}
    """Number of a queue -> messages that left it."""
    marked: dict[int, int] = {}
    """Number of a queue -> first message that may not have been delivered yet."""
    attempts: dict[int, dict[int, int]] = {}
    """Number of a queue -> message -> failed deliveries."""
    bindings_gone: list[BindingDefinition] = []
    queues_gone: list[int] = []
    exchanges_gone: list[str] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []
    started: int = -1
    """At the start of a run: number after the last message in the log. Earlier records about later messages are void,
    since a crash lost them."""
    stopped: bool = False
    """True for the last record of a run that ended in order: unsettled deliveries are in ``attempts``."""
    copy_begins: bool = False
    """True for the first record of a copy: all before it is void once ``copy_ends`` is there."""
    copy_ends: bool = False
    through: int = 0
    """Number of the first message that is not in the copy."""
    next_number: int = 0
    """Number of the next queue, in a copy."""
    contents: list[QueueCopy] = []


def read_changes(value: bytes) -> Changes:
    """Return the changes of a record's value. Elements behind the known ones are of a later release, and skipped.

    Raises:
        UnsupportedVersion: a later release wrote it, and this one must not guess.
        Corrupt: the value has another form.
    """
    try:
        if _BEGINNING.decode(value).version > VERSION:
            raise UnsupportedVersion("a later release has changed the queues of this node: install that again")
        return _CHANGES.decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a change of exchanges and queues cannot be read: {error}") from None


class Beginning(msgspec.Struct, array_like=True):
    """Part of a record's value that each release can read."""

    version: int


_BEGINNING = msgspec.msgpack.Decoder(Beginning)
_CHANGES = msgspec.msgpack.Decoder(Changes)
