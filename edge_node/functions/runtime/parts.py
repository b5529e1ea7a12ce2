"""Parts that a derived stream uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import NamedTuple

from weft.edge_node.functions.chain import Alerts, Chain
from weft.edge_node.functions.runtime.mark_holds import MarkHolds
from weft.edge_node.functions.runtime.state_log import Remembered
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.read.pages import PageReader


class StreamNumbers(NamedTuple):
    """Numbers of the streams that a derived stream reads and writes."""

    own: int
    errors: int
    states: int
    inputs: Mapping[str, int]
    """Name -> number, in the order of the configuration."""
    others: Mapping[str, int]
    """Name -> number, of streams that rows are routed to."""
    written: Set[str] = frozenset()
    """Names of all streams that functions write, whose rows are not in the order of time. It may change."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return the streams that rows are written to, whose marks are held."""
        return (self.own, self.errors, *self.others.values())


class Environment(NamedTuple):
    """Parts of the node that derived streams work with."""

    log: SegmentLog
    pages: PageReader
    mark_holds: MarkHolds
    alerts: Alerts
    released: Callable[[str, str, RangeSet], None]
    """Called with (derived stream, input, numbers) for records that a function has read, durably."""
    read_states: Callable[[str], Remembered]
    """Reads the state of a derived stream from the log. Blocks; for a thread."""
    turn: Callable[[], Awaitable[None]]
    """Returns when the node has time for more."""
    wall_clock: Callable[[], int]
    """Time in ns since 1970."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], Awaitable[None]]
    """Waits for some seconds."""


class Version(NamedTuple):
    """Version of the functions of a stream."""

    name: str
    digest: bytes
    """Checksum of their settings."""
    make_chain: Callable[[], Chain]
    """Creates the functions, without any state."""
    replayed: str = ""
    """Derived stream that is computed again; empty for a stream of the configuration."""
    whole: bytes = b""
    """Checksum of the settings with the folders of files."""

    def works_like(self, other: Version) -> bool:
        """Return whether another version has the same functions."""
        return (self.digest, self.whole) == (other.digest, other.whole)

    def text(self, files: str = "") -> str:
        """Return the text of the version in the origin of rows; ``files`` is the version of the files that the
        functions read."""
        return self.digest.hex()[:8] + (f"-{files}" if files else "")
