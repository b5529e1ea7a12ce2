"""Warning of a stream whose functions reject more than a few of their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable

from weft.config.log_lines.repeats import Repeats, left_out
from weft.edge_node.functions.runtime.counters import FunctionCounters

PERCENT = 1
"""Share of rejected rows from which on the log and the status report it."""
ROWS = 10_000
"""Rows after which the count starts again: devices may change their messages after a year."""

logger = logging.getLogger(__name__)


class Rejections:
    """Watch over the share of rows that go to a stream of errors."""

    def __init__(self, stream: str, counters: FunctionCounters, clock: Callable[[], float]) -> None:
        """Watch a stream.

        Args:
            clock: monotonic seconds.
        """
        self._stream, self._counters, self._clock = stream, counters, clock
        self._rows_in = self._rejected = 0
        self._lines = Repeats()

    def look(self) -> None:
        """Check the counters after a step, and log a line when the share is reached: once, then seldom."""
        counters = self._counters
        rows, rejected = counters.rows_in - self._rows_in, counters.rows_rejected - self._rejected
        if rejected and rejected * 100 >= rows * PERCENT:
            share = f"{min(100 * rejected // max(rows, 1), 100)} %"
            counters.warning = (
                f"{rejected:,} of {rows:,} rows ({share}) went to {self._stream}-errors; the reason is in each of them"
            )
            repeated = self._lines.say(self._stream, self._clock())
            if repeated is not None:
                logger.warning(
                    "stream %s: %s. See weft edge tail EDGE_YAML %s-errors. Where fields are missing, `missing: null` "
                    "beside a function takes them as SQL does%s",
                    self._stream, counters.warning, self._stream, left_out(repeated),
                )  # fmt: skip
        elif rows >= ROWS:
            counters.warning = ""
        if rows >= ROWS:
            self._rows_in, self._rejected = counters.rows_in, counters.rows_rejected
