"""Outcomes of the messages of hubs: recovered from the log, so that none is stored twice.

Each message has one record in the stream ``weft-down-state``, in one commit with the message's own record in
``weft-down`` if it is published. After a crash at any instant the node knows a message if and only if it is stored. The
last ``KEPT_MAX`` outcomes of a hub stay: a hub sends only messages without an outcome again, of which it keeps fewer.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from weft.protocols.batch import records
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.link.down import DownMessage, MessageOutcome, OutcomeKind
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog

logger = logging.getLogger(__name__)

KEPT_MAX = 4096
"""Maximum number of outcomes of a hub that are remembered: four times as many as may wait at a hub."""
FORGOTTEN_AT_ONCE = 256
HUBS_MAX = 16
"""Maximum number of hubs that are remembered. Another one replaces the one that was silent for longest."""
READ_BYTES = 1 << 20
VERSION = 1
RECORD_BYTES = 512
"""Bytes of a record of this stream, at most: the room that a commit reserves."""


class _OutcomeVersion(msgspec.Struct, array_like=True):
    """Part of the value that each release can read."""

    version: int


class _OutcomeEntry(msgspec.Struct, array_like=True):
    """Value of one record; its key is the hub's cluster id."""

    version: int
    number: int
    accepted: int
    outcome: int
    reason: str = ""


class _Hub:
    """The outcomes of one hub's messages."""

    def __init__(self) -> None:
        self.next = 0
        self.accepted = -1
        """Latest time at which the hub accepted a message that is known here."""
        self.outcomes: OrderedDict[tuple[int, int], tuple[int, MessageOutcome]] = OrderedDict()
        """(number, accepted) -> the number of its record, and the outcome; the oldest first."""

    def add(self, seq: int, told: MessageOutcome) -> None:
        self.next = max(self.next, told.number + 1)
        self.accepted = max(self.accepted, told.accepted)
        self.outcomes[told.number, told.accepted] = seq, told


class DownMemory:
    """The outcomes of all hubs' messages. Belongs to the event loop's thread.

    Args:
        stream: number of the stream of outcomes.
        wall_clock: nanoseconds since 1970.

    Raises:
        OSError, LogError: the log cannot be read.
        UnsupportedVersion: a later release wrote it.
    """

    def __init__(self, log: SegmentLog, stream: int, wall_clock: Callable[[], int]) -> None:
        self._log, self._stream, self._wall_clock = log, stream, wall_clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._hubs: OrderedDict[str, _Hub] = OrderedDict()
        """Outcomes by cluster id; the hub that was silent for longest comes first."""
        self._load()

    def next(self, hub: str) -> int:
        """Return one past the highest known number of a hub's messages; 0 without one."""
        known = self._hubs.get(hub)
        return 0 if known is None else known.next

    def known(self, hub: str, message: DownMessage) -> MessageOutcome | None:
        """Return the outcome of a message that was stored before; None for a new one.

        A hub whose store was restored to an earlier state may give a number again, to a message that it accepted later:
        that is a new one.
        """
        of_hub = self._hubs.get(hub)
        if of_hub is None:
            return None
        found = of_hub.outcomes.get((message.number, message.accepted))
        if found is not None:
            return found[1]
        if message.number >= of_hub.next or message.accepted > of_hub.accepted:
            return None
        return MessageOutcome(
            message.number, message.accepted, OutcomeKind.UNKNOWN, "the edge has stored later messages"
        )

    def note(self, hub: str, told: Sequence[MessageOutcome]) -> None:
        """Remember outcomes, in the log as well. Call it in ``together``, with the messages' records.

        Raises:
            LogFull, LogFailed: they are not remembered.
        """
        entries = [
            self._encode(_OutcomeEntry(VERSION, each.number, each.accepted, each.outcome, each.reason)) for each in told
        ]
        seq = self._log.append(self._stream, self._wall_clock(), [hub.encode()] * len(entries), entries)
        for at, each in enumerate(told, seq):
            self._hub(hub).add(at, each)

    def forget(self) -> None:
        """Release the records of outcomes beyond those that are remembered. Call it when the last ones are durable."""
        gone = RangeSet()
        for hub in self._hubs.values():
            if len(hub.outcomes) >= KEPT_MAX + FORGOTTEN_AT_ONCE:
                while len(hub.outcomes) > KEPT_MAX:
                    seq = hub.outcomes.popitem(last=False)[1][0]
                    gone.add(seq, seq + 1)
        while len(self._hubs) > HUBS_MAX:
            for seq, _ in self._hubs.popitem(last=False)[1].outcomes.values():
                gone.add(seq, seq + 1)
        if gone:
            self._log.release(self._stream, gone)

    def _hub(self, hub: str) -> _Hub:
        known = self._hubs.setdefault(hub, _Hub())
        self._hubs.move_to_end(hub)
        return known

    def _load(self) -> None:
        decoder, seq, end = msgspec.msgpack.Decoder(_OutcomeEntry), 0, self._log.durable_end(self._stream)
        while seq < end and (batches := self._log.read(self._stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    entry = _decoded(record.payload, decoder)
                    if entry is not None:
                        told = MessageOutcome(entry.number, entry.accepted, entry.outcome, entry.reason)
                        self._hub(record.key.decode()).add(record.seq, told)
        self.forget()


def _decoded(payload: bytes, decoder: msgspec.msgpack.Decoder[_OutcomeEntry]) -> _OutcomeEntry | None:
    try:
        if msgspec.msgpack.decode(payload, type=_OutcomeVersion).version > VERSION:
            # Without these outcomes, messages would be published twice.
            raise UnsupportedVersion("a later release has stored messages of hubs on this node: install that again")
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        logger.error("the outcome of a hub's message cannot be read, and is forgotten: %s", error)
        return None
