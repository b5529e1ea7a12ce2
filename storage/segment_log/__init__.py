"""The edge node's log: it reports an append only when it is durable, and reports every later loss of such records."""

from weft.storage.segment_log.log import SegmentLog
from weft.storage.segment_log.reader import Gone, LogPage, LogStats, PageReader
from weft.storage.segment_log.recovery import RecoveryReport
from weft.storage.segment_log.settings import (
    LogError,
    LogFailed,
    LogFull,
    LogSettings,
    LogVersionError,
    RecordTooLarge,
    StreamPolicy,
    WrongOwner,
)
from weft.storage.segment_log.state import SYNC_BUCKETS_S

__all__ = [
    "SYNC_BUCKETS_S",
    "Gone",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogPage",
    "LogSettings",
    "LogStats",
    "LogVersionError",
    "PageReader",
    "RecordTooLarge",
    "RecoveryReport",
    "SegmentLog",
    "StreamPolicy",
    "WrongOwner",
]
