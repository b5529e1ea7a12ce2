"""Marks of streams that functions write."""

from __future__ import annotations

from collections.abc import Callable


class MarkHolds:
    """Times below which the marks of streams stay, since rows from then on may come. Several functions may write to one
    stream: the least of their times counts."""

    def __init__(self, hold_mark: Callable[[int, int | None], None]) -> None:
        """Tell the log (``SegmentLog.hold_mark``)."""
        self._hold_mark = hold_mark
        self._times: dict[int, dict[str, int]] = {}

    def hold(self, writer: str, streams: tuple[int, ...], time: int) -> None:
        """Keep the marks of streams below a time, as far as one writer is concerned."""
        for stream in streams:
            own = self._times.setdefault(stream, {})
            own[writer] = time
            self._hold_mark(stream, min(own.values()))

    def hold_also(self, writer: str, streams: tuple[int, ...]) -> None:
        """Keep the marks of further streams where those of the writer's other streams are; of a new writer, where they
        are now."""
        times = [own[writer] for own in self._times.values() if writer in own]
        for stream in streams:
            if writer not in self._times.get(stream, {}):
                self.hold(writer, (stream,), min(times, default=1))

    def keep_only(self, writer: str, streams: tuple[int, ...]) -> None:
        """Forget all other streams of a writer, which writes to these alone from now on."""
        for stream, own in self._times.items():
            if stream not in streams and own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))

    def lift(self, writer: str) -> None:
        """Forget a writer, which writes nothing more."""
        for stream, own in self._times.items():
            if own.pop(writer, None) is not None:
                self._hold_mark(stream, min(own.values(), default=None))
