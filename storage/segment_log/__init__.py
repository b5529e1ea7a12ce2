"""The edge node's log: it reports an append only when it is durable, and reports every later loss of such records."""

from weft.storage.segment_log.errors import LogError, LogFailed, LogFull, LogVersionError, RecordTooLarge, WrongOwner
from weft.storage.segment_log.log import SegmentLog
from weft.storage.segment_log.read.answers import Gone
from weft.storage.segment_log.read.pages import LogPage, PageReader
from weft.storage.segment_log.read.stats import LogStats
from weft.storage.segment_log.recover.recovery import RecoveryReport
from weft.storage.segment_log.settings import LogSettings, StreamPolicy
from weft.storage.segment_log.state.log_state import SYNC_BUCKETS_S

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
