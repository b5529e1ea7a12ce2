"""The place of windows and of a query's state: a sink and a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.replaced import Replaced, ReplacesRanges
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreUnfit, open_store

Sink = Callable[[DataFrame, int], None]
"""Called with rows and a number that grows; it upserts them by ``window_start`` and the keys. A sink with
``ReplacesRanges`` also removes its other rows of these windows."""
STATE_KEY = "windows/state.json"


class WindowStore:
    """A sink of windows, and a file with the query's state.

    Rows are written first, then the state: after a crash between the two, the windows are computed and replaced again,
    with the same rows. So the table is right without the state, and the sink need not store it.

    Args:
        file: None stores no state, so that each start computes all windows again.
    """

    def __init__(self, sink: Sink, file: StateFile | None) -> None:
        self._sink = sink
        self._file = file
        self._step = 0

    def load(self) -> str | None:
        """Return the last state; None before the first."""
        return self._file.load() if self._file else None

    def write(self, frame: DataFrame, replaced: Replaced) -> None:
        """Replace windows. Durable when this returns, as far as the sink promises it."""
        if isinstance(self._sink, ReplacesRanges):
            self._sink.replace(frame, self._step, replaced)
        else:
            self._sink(frame, self._step)
        self._step += 1

    def keep(self, state: str) -> None:
        """Store the state. Durable when this returns.

        Raises:
            ReadError: another query has stored one since this one loaded or stored it.
        """
        if self._file:
            self._file.save(state)


def stored_state(folder: str) -> str | None:
    """Return the state of a query of windows in a folder; None when there is none yet.

    Raises:
        ReadError: it is no folder of a store.
        StoreError: the store does not answer.
    """
    return StateFile(folder).load()


class StateFile:
    """A text in a folder.

    Args:
        folder: path or URI of an object store.
        options: for the object store; what is missing comes from the environment.

    Raises:
        ReadError: it is no folder of a store.
    """

    def __init__(self, folder: str, options: Mapping[str, str] | None = None) -> None:
        try:
            self._store: ObjectStore = open_store(
                folder, {name.upper(): value for name, value in (options or {}).items()}
            )
        except (ValueError, StoreUnfit) as error:
            raise ReadError(f"checkpoint: {error}") from error
        self._etag: str | None = None

    def load(self) -> str | None:
        """Return the text; None before there is one."""
        try:
            found = run(self._store.get(STATE_KEY))
        except NotFound:
            self._etag = None
            return None
        self._etag = found.etag
        return bytes(found.data).decode(errors="replace")

    def save(self, state: str) -> None:
        """Replace the text that this object loaded or saved.

        Raises:
            ReadError: another writer has replaced it meanwhile.
        """
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
