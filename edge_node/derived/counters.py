"""Figures of a derived stream, for status and metrics."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

import msgspec

from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample


class FunctionCounters(msgspec.Struct):
    """Figures of one derived stream since the node started."""

    rows_in: int = 0
    """Rows of the inputs that the functions have seen. Rows read again after a failure count again."""
    rows_out: int = 0
    """Rows that were written to the stream itself."""
    rows_rejected: int = 0
    """Rows that were written to its stream of errors."""
    rows_routed: int = 0
    """Rows that were written to other streams."""
    alerts: int = 0
    gaps: int = 0
    """Stretches of missing records between the rows."""
    bytes_in: int = 0
    """Payload bytes of the rows read."""
    bytes_out: int = 0
    """Payload bytes that were written to the stream itself."""
    steps: int = 0
    failures: int = 0
    """Number of times that the functions were created again because of an error."""
    lag: int = 0
    """Records of the inputs that the functions have not seen."""
    until: int = 0
    """Time up to which all rows were handled, ns since 1970."""
    state_bytes: int = 0
    """Bytes of the last copy of the states and of the changes since, in the log."""
    version: str = ""
    trouble: str = ""
    """Line about a problem that stops them; empty when there is none."""
    refused: str = ""
    """Line about newer settings or files that are not in use; empty when there are none."""
    warning: str = ""
    """Line about rejected rows; empty where they are few."""


class FunctionFacts(TypedDict):
    """Facts about the functions of a stream, since the node started."""

    version: str
    """Name of the running version, as in ``_origin`` of its rows."""
    rows_in: int
    rows_out: int
    rows_rejected: int
    """Rows in the stream of errors."""
    rows_routed: int
    alerts: int
    gaps: int
    bytes_in: int
    bytes_out: int
    failures: int
    """Number of times that they restarted after an error."""
    lag_records: int | None
    """None before the first look at the inputs."""
    lag_seconds: float | None
    """Age of the time up to which the stream is complete; None before the first."""
    state_bytes: int
    trouble: str
    """Sentence about a problem that stops them; empty when there is none."""
    refused: str
    """Sentence about newer settings or files that are not in use; empty when there are none."""
    warning: str
    """Sentence about rejected rows; empty where they are less than one in a hundred."""


def function_facts(counters: FunctionCounters, now: int) -> FunctionFacts:
    """Return the facts about the functions of a stream.

    Args:
        now: ns since 1970.
    """
    return FunctionFacts(
        version=counters.version,
        rows_in=counters.rows_in,
        rows_out=counters.rows_out,
        rows_rejected=counters.rows_rejected,
        rows_routed=counters.rows_routed,
        alerts=counters.alerts,
        gaps=counters.gaps,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        failures=counters.failures,
        lag_records=counters.lag if counters.until > 0 else counters.lag or None,
        lag_seconds=max(0, now - counters.until) / 1e9 if counters.until > 0 else None,
        state_bytes=counters.state_bytes,
        trouble=counters.trouble,
        refused=counters.refused,
        warning=counters.warning,
    )


def function_samples(name: str, facts: FunctionFacts) -> Iterator[Sample]:
    """Yield the values of every metric of a derived stream."""
    prefix = "weft_edge_function_"
    yield Sample(f"{prefix}rows_in_total", facts["rows_in"], (name,))
    yield Sample(f"{prefix}rows_out_total", facts["rows_out"], (name,))
    yield Sample(f"{prefix}rows_rejected_total", facts["rows_rejected"], (name,))
    yield Sample(f"{prefix}rows_routed_total", facts["rows_routed"], (name,))
    yield Sample(f"{prefix}alerts_total", facts["alerts"], (name,))
    yield Sample(f"{prefix}gaps_total", facts["gaps"], (name,))
    yield Sample(f"{prefix}in_bytes_total", facts["bytes_in"], (name,))
    yield Sample(f"{prefix}out_bytes_total", facts["bytes_out"], (name,))
    yield Sample(f"{prefix}failures_total", facts["failures"], (name,))
    if facts["lag_records"] is not None:
        yield Sample(f"{prefix}lag_records", facts["lag_records"], (name,))
    if facts["lag_seconds"] is not None:
        yield Sample(f"{prefix}lag_seconds", facts["lag_seconds"], (name,))
    yield Sample(f"{prefix}state_bytes", facts["state_bytes"], (name,))
    yield Sample(f"{prefix}in_trouble", bool(facts["trouble"]), (name,))
    yield Sample(f"{prefix}version_refused", bool(facts["refused"]), (name,))
    yield Sample(f"{prefix}info", 1, (name, facts["version"]))


# Warning of a stream whose functions reject more than a few of their rows.

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
            repeated = self._lines.due(self._stream, self._clock())
            if repeated is not None:
                logger.warning(
                    "stream %s: %s. See weft edge tail EDGE_YAML %s-errors%s%s",
                    self._stream,
                    counters.warning,
                    self._stream,
                    _advice(kind),
                    left_out(repeated),
                )
        elif rows >= ROWS:
            counters.warning = ""
        if rows >= ROWS:
            self._rows_in, self._rejected = counters.rows_in, counters.rows_rejected
            self._kinds.clear()


def _advice(kind: str) -> str:
    """Return what a setting does about the commonest reason; empty where none does."""
    if "missing" in kind or "no field" in kind:
        return ". `missing: null` beside a function treats missing fields as SQL does"
    if kind.startswith("arrived too late"):
        return ". A longer `lateness` of the window counts such rows"
    return ""
