"""The session journal read back from the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from weft.edge_node.sessions.store.backlog import READ_BYTES
from weft.edge_node.sessions.store.batches import DecodedBatch
from weft.edge_node.sessions.store.entries import JournalRecord, decode_entry
from weft.storage.segment_log import SegmentLog

logger = logging.getLogger(__name__)


def read_journal(log: SegmentLog, stream: int, seq: int, end: int) -> Iterator[JournalRecord]:
    """Yield the durable entries in ``[seq, end)``, in order. Blocks.

    Entries that the log has lost, or that do not decode, are skipped with an error in the node's log.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    while seq < end:
        batches = log.read(stream, seq, READ_BYTES)
        if not batches:
            _lost(end - seq)
            return
        for data in batches:
            batch = DecodedBatch(data)
            if seq >= end:  # later entries were appended since
                return
            if batch.base_seq > seq:
                _lost(min(batch.base_seq, end) - seq)
                seq = batch.base_seq
            while seq < min(batch.end_seq, end):
                record = batch.record(seq)
                seq += 1
                try:
                    entry = decode_entry(record.payload)
                except msgspec.MsgspecError as error:
                    logger.error("a change of the session of MQTT client %r is lost: %s", record.topic, error)
                    continue
                if entry is not None:
                    yield JournalRecord(record.topic.decode(errors="replace"), entry)


def _lost(count: int) -> None:
    logger.error(
        "the log has lost %d changes of MQTT sessions: clients may get messages again, or be treated as new", count
    )
