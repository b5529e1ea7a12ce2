"""Warning of a stream whose functions reject more than a few of their rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

from weft.config.log_lines.repeats import Repeats, left_out
from weft.edge_node.functions.runtime.counters import FunctionCounters

PERCENT = 1
"""Share of rejected rows from which on the log and the status report it."""
KINDS_MAX = 64
"""Maximum number of kinds of reasons that are counted; rows with further ones are left out."""
KIND_CHARACTERS_MAX = 200
_VALUES = re.compile(r"""\"[^"]*"|'[^']*'|\d[\d.:TZ+-]*""")
"""Parts that differ from row to row in reasons of one kind, and may be of a payload."""
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
        self._kinds: dict[str, int] = {}
        """Kind of a reason -> rejected rows."""

    def note(self, reasons: Iterable[str]) -> None:
        """Count the reasons of rejected rows."""
        for reason in reasons:
            kind = _VALUES.sub("...", reason)[:KIND_CHARACTERS_MAX]
            if kind in self._kinds or len(self._kinds) < KINDS_MAX:
                self._kinds[kind] = self._kinds.get(kind, 0) + 1

    def look(self) -> None:
        """Check the counters after a step, and log a line when the share is reached: once, then seldom."""
        counters = self._counters
        rows, rejected = counters.rows_in - self._rows_in, counters.rows_rejected - self._rejected
        if rejected and rejected * 100 >= rows * PERCENT:
            share = f"{min(100 * rejected // max(rows, 1), 100)} %"
            kind = max(self._kinds, key=lambda each: self._kinds[each], default="")
            most = f"; most often: {kind}" if kind else ""
            counters.warning = (
                f"{rejected:,} of {rows:,} rows ({share}) went to {self._stream}-errors; the reason is in each of "
                f"them{most}"
            )
            repeated = self._lines.say(self._stream, self._clock())
            if repeated is not None:
                logger.warning(
                    "stream %s: %s. See weft edge tail EDGE_YAML %s-errors%s%s",
                    self._stream, counters.warning, self._stream, _advice(kind), left_out(repeated),
                )  # fmt: skip
        elif rows >= ROWS:
            counters.warning = ""
        if rows >= ROWS:
            self._rows_in, self._rejected = counters.rows_in, counters.rows_rejected
            self._kinds.clear()


def _advice(kind: str) -> str:
    """Return what a setting does about the commonest reason; empty where none does."""
    if "missing" in kind or "no field" in kind:
        return ". `missing: null` beside a function takes fields that are missing as SQL does"
    if kind.startswith("came too late"):
        return ". A longer `lateness` of the window counts such rows"
    return ""
