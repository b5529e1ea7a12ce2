"""The position of a query in a checkpoint of Spark's streaming engine, read and replaced while the query is stopped.

Spark writes ``offsets/N`` before batch N and ``commits/N`` after it: a version, a line about the batch, and a line for
each source. A query that starts again goes on from the last file. Only the text of one file is replaced: its state,
such as that of aggregates, stays.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from weft.storage.object_store import NotFound, ObjectStore, PreconditionFailed, StoreUnfit, open_store

VERSION = "v1"
"""First line of the files of the releases of Spark that Weft supports."""
BYTES_MAX = 4 << 20
"""Maximum size of a replaced file: Spark writes the position twice in each micro-batch."""
_HEAD_LINES = 2


class SparkCheckpoint:
    """A checkpoint whose last batch is complete.

    Args:
        folder: a path, or the URI of a folder in an object store.

    Raises:
        ReadError: it is no checkpoint of a query with one source, or its last batch is not complete.
        StoreError: the store does not answer.
    """

    def __init__(self, folder: str) -> None:
        uri = folder.replace("s3a://", "s3://", 1) if folder.startswith("s3a://") else folder
        try:
            self._store: ObjectStore = open_store(uri)
        except (ValueError, StoreUnfit) as error:
            raise ReadError(f"checkpoint: {error}") from error
        self._folder = folder
        planned, done = self._last("offsets"), self._last("commits")
        if planned is None:
            raise ReadError(f"checkpoint: {folder} has no offsets of a streaming query; name its checkpointLocation")
        if planned != done:
            raise ReadError(
                f"checkpoint: batch {planned} of the query in {folder} is not complete: its sink may have some rows of "
                "it. Run the query once more on its present store, with trigger(availableNow=True), and then move it"
            )
        self._key = f"offsets/{planned}"
        found = run(self._store.get(self._key))
        self._etag = found.etag
        self._lines = bytes(found.data).decode(errors="replace").splitlines()
        if self._lines[:1] != [VERSION] or len(self._lines) != _HEAD_LINES + 1:
            raise ReadError(
                f"checkpoint: {folder}/{self._key} is of a query with several sources, or of another release of Spark. "
                "Only a query with one source can be moved"
            )

    @property
    def position(self) -> Any:
        """Return the source's position after the last batch.

        Raises:
            ReadError: it is not JSON.
        """
        try:
            return json.loads(self._lines[_HEAD_LINES])
        except (ValueError, RecursionError):
            raise ReadError(f"checkpoint: {self._folder}/{self._key} is of another source") from None

    def replace(self, position: Any) -> None:
        """Replace the position. Durable when this returns; a crash before leaves the earlier one.

        Raises:
            ReadError: the query runs, and wrote it meanwhile; or the new one is too long.
            StoreError: the store does not answer.
        """
        data = "\n".join([*self._lines[:_HEAD_LINES], json.dumps(position, separators=(",", ":"))]).encode()
        if len(data) > BYTES_MAX:
            raise ReadError(
                f"the new position has {len(data)} bytes, and the limit is {BYTES_MAX}. Of too many lanes, the other "
                "region lacks what the query has read: wait until its link has caught up, and move the query then"
            )
        self._forget_checksum()
        try:
            run(self._store.swap(self._key, data, self._etag))
        except (PreconditionFailed, NotFound):
            raise ReadError(f"checkpoint: the query in {self._folder} runs; stop it first") from None

    def _last(self, kind: str) -> int | None:
        numbers = [item.key.rpartition("/")[2] for item in run(self._store.list(f"{kind}/"))]
        return max((int(number) for number in numbers if number.isdecimal()), default=None)

    def _forget_checksum(self) -> None:
        """Remove the file in which Hadoop keeps a local file's checksum: without it, the file is not compared."""
        path, _ = self._store.location(self._key)
        if "://" not in path:
            folder, name = os.path.split(path)
            with suppress(FileNotFoundError):
                os.remove(os.path.join(folder, f".{name}.crc"))
