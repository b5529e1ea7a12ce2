"""Places of windows and of what the query remembers: a sink that keeps both in one commit, or a sink and a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, open_store

Sink = Callable[[DataFrame, int], None]
"""Called with rows and a number that grows; it upserts them by ``window_start`` and the keys."""
STATE_KEY = "windows/state.json"


@runtime_checkable
class KeepsState(Protocol):
    """Sink that keeps a text beside its rows, in one commit."""

    def load_state(self) -> str | None:
        """Return the text of the last commit that had one; None before it."""

    def write_with_state(self, frame: DataFrame | None, state: str) -> None:
        """Upsert rows and keep the text, both or neither; None keeps the text alone.

        Raises:
            SinkConflict: another query has kept a text since this object loaded or kept one.
        """


class WindowStore(Protocol):
    """Place of windows and state."""

    def load(self) -> str | None:
        """Return the last state; None before the first."""

    def save(self, frame: DataFrame | None, state: str) -> None:
        """Upsert rows, if there are any, and keep the state; durable when this returns.

        A crash may leave the rows without the state. The next start then computes them again, from the same log.
        """


def open_window_store(sink: Sink | KeepsState, folder: str | None) -> WindowStore:
    """Return the place of a sink's windows.

    Args:
        folder: path or URI for the state of a sink that keeps none; None keeps it in memory, so that each start
            computes all windows again.
    """
    if isinstance(sink, KeepsState):
        return _InTheSink(sink)
    return _BesideTheSink(sink, None if folder is None else _StateFile(folder))


def stored_state(folder: str) -> str | None:
    """Return the state that a query of windows finds in a folder; None when there is none yet.

    Raises:
        ReadError: it is no folder of a store.
        StoreError: the store does not answer.
    """
    return _StateFile(folder).load()


class _InTheSink:
    def __init__(self, sink: KeepsState) -> None:
        self._sink = sink

    def load(self) -> str | None:
        return self._sink.load_state()

    def save(self, frame: DataFrame | None, state: str) -> None:
        self._sink.write_with_state(frame, state)


class _BesideTheSink:
    """Rows first, then the state: what a crash leaves between the two is computed and upserted once more."""

    def __init__(self, sink: Sink, file: _StateFile | None) -> None:
        self._sink = sink
        self._file = file
        self._step = 0

    def load(self) -> str | None:
        return self._file.load() if self._file else None

    def save(self, frame: DataFrame | None, state: str) -> None:
        if frame is not None:
            self._sink(frame, self._step)
            self._step += 1
        if self._file:
            self._file.save(state)


class _StateFile:
    """A text in an object store."""

    def __init__(self, folder: str) -> None:
        try:
            self._store: ObjectStore = open_store(folder)
        except ValueError as error:
            raise ReadError(f"checkpoint: {error}") from error
        self._etag: str | None = None

    def load(self) -> str | None:
        try:
            found = run(self._store.get(STATE_KEY))
        except NotFound:
            self._etag = None
            return None
        self._etag = found.etag
        return bytes(found.data).decode(errors="replace")

    def save(self, state: str) -> None:
        data = state.encode()
        try:
            if self._etag is None:
                self._etag = run(self._store.create(STATE_KEY, data))
            else:
                self._etag = run(self._store.swap(STATE_KEY, data, self._etag))
        except (AlreadyExists, PreconditionFailed):
            raise ReadError(
                "checkpoint: another query has written the state of these windows; run one of them, or give each a "
                "checkpoint and a sink of its own"
            ) from None
