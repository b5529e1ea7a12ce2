"""Log lines of a node on standard error: time, level, part and a sentence that cannot pose as another line."""

from __future__ import annotations

import logging
import re
import sys
import time

LINE_CHARACTERS_MAX = 2000
"""Longest message of one line. Peers write parts of some messages, and a disk holds only so much."""
_DIRECTION = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that make a terminal show what follows backwards (Unicode, UAX 9)."""
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_CONTROL_IN_TRACEBACKS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")


class LineFormatter(logging.Formatter):
    """``2026-11-20T07:51:26.123Z WARNING replication.runner.link_log: ...``: ISO 8601, UTC.

    UTC, as in status, tables and the API: the lines of edges in three time zones and of their hub sort together, and no
    hour is there twice in autumn. The time stands there under systemd too, whose journal shows it without a zone.

    Line breaks and other control characters in a message are written as escapes: a client identifier with a line
    break in it must not write a line of its own, nor drive the terminal that shows the log.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Return the record's time in UTC, to the millisecond."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, escaped and bounded."""
        message = record.message
        if len(message) > LINE_CHARACTERS_MAX:
            message = f"{message[:LINE_CHARACTERS_MAX]}... ({len(message):,} characters)"
        record.message = _CONTROL.sub(_escaped, message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        """Return a traceback in its lines; what an exception quotes is escaped too."""
        return _CONTROL_IN_TRACEBACKS.sub(_escaped, super().formatException(ei))  # type: ignore[arg-type]


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def log_to_stderr(level: str) -> None:
    """Set up logging for the long-running commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
