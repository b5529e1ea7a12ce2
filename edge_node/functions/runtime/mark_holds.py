"""Holds on the marks of streams that functions write."""

from __future__ import annotations

from collections.abc import Callable


class MarkHolds:
    """Times below which the marks of streams stay, since rows from then on may still come. Several functions may write
    to one stream: the least of their times counts."""

    def __init__(self, hold_mark: Callable[[int, int | None], None]) -> None:
        """Set the log's function (``SegmentLog.hold_mark``)."""
        self._hold_mark = hold_mark
        self._times: dict[int, dict[str, int]] = {}

    def hold(self, writer: str, streams: tuple[int, ...], time: int) -> None:
        """Hold the marks of streams below a time for one writer."""
        for stream in streams:
            own = self._times.setdefault(stream, {})
            own[writer] = time
            self._hold_mark(stream, min(own.values()))

    def hold_also(self, writer: str, streams: tuple[int, ...]) -> None:
        """Hold the marks of further streams at the time of the writer's other streams; for a new writer, at their
        present time."""
        times = [own[writer] for own in self._times.values() if writer in own]
        for stream in streams:
            if writer not in self._times.get(stream, {}):
                self.hold(writer, (stream,), min(times, default=1))

    def keep_only(self, writer: str, streams: tuple[int, ...]) -> None:
        """Release all other streams of a writer, which only writes to these from now on."""
        for stream, own in self._times.items():
            if stream not in streams and own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))

    def lift(self, writer: str) -> None:
        """Release all holds of a writer that has ended."""
        for stream, own in self._times.items():
            if own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))
