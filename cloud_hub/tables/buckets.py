"""Files of a latest table. Each has the rows of a range of hashes of keys, a bucket, which the name of the file tells.

A bucket of depth d has the keys whose hashes begin with the same d bits. A bucket that grows too large is divided; the
ranges of two files of a version never overlap.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import attrgetter
from typing import IO, Any, NamedTuple

import numpy as np

from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, AddedFile, DataFile, plain_path
from weft.storage.table.delta.state import DeltaState
from weft.storage.table.errors import TableError

HIDDEN_FOLDER = "_weft"
HIDDEN = "latest/hidden"
"""End of the transaction whose version is the number of the file with hidden rows; 0 for none."""
BITS = 32
"""Bits of a hash."""
_NAME = re.compile(r"bucket-(\d{2})-([0-9a-f]{8})-[0-9a-f]+\.parquet")
Hashes = np.ndarray[Any, np.dtype[np.uint32]]


class Bucket(NamedTuple):
    """A range of hashes."""

    first: int
    depth: int

    @property
    def end(self) -> int:
        """Return the hash after the last one."""
        return self.first + (1 << (BITS - self.depth))

    def path(self, nonce: str) -> str:
        """Return the name of a file with its rows."""
        return f"bucket-{self.depth:02d}-{self.first:08x}-{nonce}.parquet"

    def halves(self) -> tuple[Bucket, Bucket]:
        """Return the two buckets of the next depth."""
        size = 1 << (BITS - self.depth - 1)
        return Bucket(self.first, self.depth + 1), Bucket(self.first + size, self.depth + 1)

    def overlaps(self, other: Bucket) -> bool:
        """Return whether both have some hash."""
        return self.first < other.end and other.first < self.end


class BucketFiles:
    """The files of a latest table, followed from version to version."""

    reads_files = True

    def __init__(self, key: str) -> None:
        self._key = key
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version, self.entry_hash = -1, b""
        self.files: dict[Bucket, DataFile] = {}
        self._buckets: dict[str, Bucket] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry. Raises TableError for a file that the hub did not write."""
        if action.remove is not None:
            path = plain_path(action.remove.path)
            bucket = self._buckets.pop(path, None)
            # An entry names removals and additions in any order: the bucket's file may be the new one already.
            if bucket is not None and self.files[bucket].path == path:
                del self.files[bucket]
        if action.add is not None:
            self._add(action.add)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one."""
        for added in checkpoint.files(file, name):
            self._add(added)

    def _add(self, added: AddedFile) -> None:
        path = plain_path(added.path)
        found = _NAME.fullmatch(path)
        depth = int(found[1]) if found else BITS + 1
        if found is None or depth > BITS or added.deletionVector is not None:
            raise TableError(
                f"{self._key} has {path}, which is none of the hub's files: another program has written to it. Move it "
                "away, and the hub makes it again"
            )
        bucket = Bucket(int(found[2], 16), depth)
        self._buckets[path] = bucket
        self.files[bucket] = DataFile(path, added.size, 0, 0, 0, 0, 0, added.stats or "")

    def of(self, hashes: Hashes) -> dict[Bucket, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return the buckets of hashes, each with the numbers of its hashes; new ones where no file has them."""
        order = np.argsort(hashes, kind="stable")
        ordered, at = hashes[order].astype(np.int64), 0
        known = sorted(self.files)
        found: dict[Bucket, np.ndarray[Any, np.dtype[np.int64]]] = {}
        while at < len(ordered):
            bucket = _bucket_of(int(ordered[at]), known)
            end = int(np.searchsorted(ordered, bucket.end, "left"))
            found[bucket] = order[at:end]
            at = end
        return found


def _bucket_of(value: int, known: list[Bucket]) -> Bucket:
    """Return the bucket of a hash: a known one, or the largest one that overlaps none of these."""
    at = bisect_right(known, value, key=attrgetter("first"))
    if at and value < known[at - 1].end:
        return known[at - 1]
    for depth in range(BITS + 1):
        size = 1 << (BITS - depth)
        bucket = Bucket(value - value % size, depth)
        inside = [each for each in known if each.overlaps(bucket)]
        if not inside:
            return bucket
        known = inside
    raise AssertionError("no known bucket has the hash")


def hidden_key(table: str, applications: str, state: DeltaState) -> str:
    """Return the key of the file with hidden rows that a version of a latest table names; none is there without some.

    Args:
        table: key of the table's folder.
        applications: as of ``app_ids``.
    """
    return hidden_file(table, state.transactions.get(f"{applications}{HIDDEN}", 0))


def hidden_file(table: str, number: int) -> str:
    """Return the key of a file with hidden rows, by its number."""
    # Of the folders of a table, vacuums leave those alone that begin with "_".
    return f"{table}/{HIDDEN_FOLDER}/hidden-{number:016x}.parquet"
